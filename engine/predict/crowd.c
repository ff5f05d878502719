/* Stages that take turns on the cores of one host; see virtual.h. */
#include "predict/virtual.h"

#include "base/array.h"
#include "tessera/check.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum tess_status virtual_stop(struct virtual_rank *rank, const struct virtual_stop *stop)
{
    struct virtual_stops *stops = &rank->stops;
    if (!rank->world->together)
        return TESS_OK;
    struct virtual_stop *all = tess__array_grow(stops->stop, stops->count, sizeof(*all));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a step's calls");
    stops->stop = all;
    stops->stop[stops->count++] = *stop;
    return TESS_OK;
}

enum crowd_state { CROWD_COMES, CROWD_BLOCKED, CROWD_SLEEPS, CROWD_WORKS };

/* A stage on its way from stop to stop. A slot has the cores of all ranks of one stage. */
struct crowd_stage {
    const struct virtual_stops *stops;
    size_t at; /* the stop where it is, or which comes next */
    enum crowd_state state;
    int32_t first_slot, slot; /* of its host, its own */
    double left_s;            /* works: before the stop, if it has its slot alone */
    double until_s;           /* sleeps */
    double begin_s, end_s;    /* of the step that is taken */
    double own_s, busy_s;     /* of its work in that: alone, and with others */
};

struct crowd {
    struct crowd_stage *stage; /* [count] */
    int32_t count;
    int32_t *load; /* [hosts, slots] stages that work there */
    int32_t slots; /* of a host */
    double room;   /* stages that a slot has the cores for, >= 1 */
    double now_s;
};

/*
 * The system looks for a core when a rank wakes: its own, unless another one has fewer. Later it
 * moves none, though a core may become idle while two share another one (on Linux 6.18 an idle
 * core has taken none of them for 3 ms). So a stage that hardly waits keeps a core for itself.
 */
static void crowd_place(struct crowd *crowd, struct crowd_stage *stage)
{
    for (int32_t i = stage->first_slot; i < stage->first_slot + crowd->slots; i++)
        if (crowd->load[i] < crowd->load[stage->slot])
            stage->slot = i;
    crowd->load[stage->slot]++;
}

/* What happens at a stop; false: it waits for others. */
static bool crowd_stop(struct crowd *crowd, struct crowd_stage *stage,
                       const struct virtual_stop *stop)
{
    struct virtual_call *call = stop->line != NULL ? &stop->line->call[stop->number] : NULL;
    const double late_s = stage->state == CROWD_BLOCKED ? stop->late_s : 0;
    stage->until_s = crowd->now_s;
    if (stop->what == VIRTUAL_MARKS) {
        *(stop->number == 0 ? &stage->begin_s : &stage->end_s) = crowd->now_s;
        if (stop->number == 0)
            stage->own_s = stage->busy_s = 0;
    } else if (stop->what == VIRTUAL_COMES) {
        call->again++;
        call->again_s = crowd->now_s;
    } else if (call == NULL) {
        stage->until_s += stop->end_s - stop->begin_s;
    } else if (call->again < call->arrived) {
        return false;
    } else {
        stage->until_s = fmax(crowd->now_s, call->again_s + stop->link_s) + late_s;
    }
    return true;
}

/* One thing that a stage can do now; false: nothing. */
static bool crowd_act(struct crowd *crowd, struct crowd_stage *stage)
{
    const struct virtual_stop *stop = &stage->stops->stop[stage->at];
    if (stage->state == CROWD_WORKS || stage->at == stage->stops->count)
        return false;
    if (stage->state != CROWD_SLEEPS) {
        const bool blocked = !crowd_stop(crowd, stage, stop);
        const bool acted = !blocked || stage->state == CROWD_COMES;
        stage->state = blocked ? CROWD_BLOCKED : CROWD_SLEEPS;
        return acted;
    }
    if (stage->until_s > crowd->now_s)
        return false;
    stage->state = CROWD_COMES;
    if (++stage->at < stage->stops->count && stop[1].begin_s > stop->end_s) {
        stage->left_s = stop[1].begin_s - stop->end_s;
        stage->state = CROWD_WORKS;
        crowd_place(crowd, stage);
    }
    return true;
}

/* By how much longer its work takes. */
static double crowd_stretch(const struct crowd *crowd, const struct crowd_stage *stage)
{
    return fmax(1, crowd->load[stage->slot] / crowd->room);
}

/* Until the first one has done what it does; INFINITY: none does anything. */
static double crowd_next_s(const struct crowd *crowd)
{
    double next_s = INFINITY;
    for (int32_t s = 0; s < crowd->count; s++) {
        const struct crowd_stage *stage = &crowd->stage[s];
        if (stage->state == CROWD_SLEEPS)
            next_s = fmin(next_s, stage->until_s - crowd->now_s);
        else if (stage->state == CROWD_WORKS)
            next_s = fmin(next_s, stage->left_s * crowd_stretch(crowd, stage));
    }
    return next_s;
}

#define CROWD_DONE_S 1e-12 /* work of which no more is left has ended */

static void crowd_work(struct crowd *crowd, double seconds)
{
    crowd->now_s += seconds;
    for (int32_t s = 0; s < crowd->count; s++) {
        struct crowd_stage *stage = &crowd->stage[s];
        if (stage->state != CROWD_WORKS)
            continue;
        const double own_s = seconds / crowd_stretch(crowd, stage);
        stage->left_s -= own_s;
        stage->own_s += own_s;
        stage->busy_s += seconds;
    }
    for (int32_t s = 0; s < crowd->count; s++) {
        struct crowd_stage *stage = &crowd->stage[s];
        if (stage->state != CROWD_WORKS || stage->left_s > CROWD_DONE_S)
            continue;
        stage->state = CROWD_COMES;
        crowd->load[stage->slot]--;
    }
}

static bool crowd_open(struct crowd *crowd, int32_t near)
{
    const int32_t hosts = (crowd->count + near - 1) / near;
    crowd->stage = calloc((size_t)(uint32_t)crowd->count, sizeof(*crowd->stage));
    crowd->load = calloc((size_t)(uint32_t)(hosts * crowd->slots), sizeof(*crowd->load));
    for (int32_t s = 0; crowd->stage != NULL && s < crowd->count; s++) {
        crowd->stage[s].first_slot = s / near * crowd->slots;
        crowd->stage[s].slot = crowd->stage[s].first_slot + s % near % crowd->slots;
    }
    return crowd->stage != NULL && crowd->load != NULL;
}

static void crowd_close(struct crowd *crowd)
{
    free(crowd->stage);
    free(crowd->load);
}

/* All go through their stops. Returns the step of the stage that ends it first: it has all that
 * others do meanwhile, and of the step after it there is nothing. */
static double crowd_run(struct crowd *crowd)
{
    const struct crowd_stage *first = &crowd->stage[0];
    double next_s = 0;
    while (next_s < INFINITY) {
        crowd_work(crowd, next_s);
        for (bool acted = true; acted;) {
            acted = false;
            for (int32_t s = 0; s < crowd->count; s++)
                while (crowd_act(crowd, &crowd->stage[s]))
                    acted = true;
        }
        next_s = crowd_next_s(crowd);
    }
    for (int32_t s = 1; s < crowd->count; s++)
        first = crowd->stage[s].end_s < first->end_s ? &crowd->stage[s] : first;
    return first->end_s - first->begin_s;
}

/* ---- the calibrated pipeline ----------------------------------------------------------------- */

/* Of more cores it takes long. */
#define CHAIN_CORES  8
#define CHAIN_STAGES (2 * CHAIN_CORES)
#define CHAIN_STOPS  (4 * CHAIN_STAGES + 4)

struct chain {
    int32_t stages;
    struct virtual_call met, call[2][CHAIN_STAGES][CHAIN_STAGES]; /* by the stage that sends */
    struct virtual_line all, line[2][CHAIN_STAGES];
    struct virtual_stop stop[CHAIN_STAGES][CHAIN_STOPS];
    struct virtual_stops stops[CHAIN_STAGES];
};

static void chain_add(struct virtual_stops *stops, int what, double at_s, struct virtual_line *line,
                      uint64_t number)
{
    stops->stop[stops->count++] = (struct virtual_stop){
        .what = what, .begin_s = at_s, .end_s = at_s, .line = line, .number = number};
}

/* All micro-batches forward and then backward, which takes twice as long; as ranks_chain_once in
 * calibrate_ranks.c. */
static void chain_stage(struct chain *chain, int32_t stage)
{
    struct virtual_stops *stops = &chain->stops[stage];
    const int32_t last = chain->stages - 1;
    double now_s = 0;
    stops->stop = chain->stop[stage];
    chain_add(stops, VIRTUAL_MARKS, 0, NULL, 0);
    for (int way = 0; way < 2; way++) {
        const int32_t before = way == 0 ? stage - 1 : stage + 1;
        chain->line[way][stage].call = chain->call[way][stage];
        for (int32_t micro = 0; micro <= last; micro++) {
            chain->call[way][stage][micro].arrived = 1;
            if (before >= 0 && before <= last)
                chain_add(stops, VIRTUAL_WAITS, now_s, &chain->line[way][before], (uint64_t)micro);
            now_s += 1 + way;
            chain_add(stops, VIRTUAL_COMES, now_s, &chain->line[way][stage], (uint64_t)micro);
        }
    }
    chain_add(stops, VIRTUAL_COMES, now_s, &chain->all, 0);
    chain_add(stops, VIRTUAL_WAITS, now_s, &chain->all, 0);
    chain_add(stops, VIRTUAL_MARKS, now_s, NULL, 1);
}

/* What it takes here by what it would take cores that stages share evenly, none of them ever idle:
 * they are stages - 1 times fewer, once as many, and stages - 1 times fewer again. 0: no memory. */
static double chain_run(int32_t cores)
{
    struct chain *chain = calloc(1, sizeof(*chain));
    struct crowd crowd = {.count = 2 * cores, .slots = cores, .room = 1};
    double even_s = 0, step_s = 0;
    if (chain != NULL && crowd_open(&crowd, crowd.count)) {
        chain->stages = crowd.count;
        chain->all.call = &chain->met;
        chain->met.arrived = crowd.count;
        for (int32_t s = 0; s < crowd.count; s++) {
            chain_stage(chain, s);
            crowd.stage[s].stops = &chain->stops[s];
        }
        for (int32_t k = 1; k < 2 * crowd.count; k++)
            even_s += 3 * fmax(1, fmin(k, 2 * crowd.count - k) / (double)cores);
        step_s = crowd_run(&crowd);
    }
    crowd_close(&crowd);
    free(chain);
    return even_s > 0 ? step_s / even_s : 0;
}

/* Run once: a search asks for every layout. */
static double chain_here(int32_t cores)
{
    static _Atomic double known[CHAIN_CORES + 1]; /* 0: not run */
    double here = atomic_load(&known[cores]);
    if (here <= 0)
        atomic_store(&known[cores], here = chain_run(cores));
    return here > 0 ? here : 1;
}

/* ---- a step ---------------------------------------------------------------------------------- */

double virtual_crowd(const struct virtual_world *world)
{
    const double cores = world->profile->cores;
    const int32_t slots = (int32_t)fmax(1, floor(cores / world->alike));
    const int32_t whole = (int32_t)fmax(1, fmin(cores, CHAIN_CORES));
    struct crowd crowd = {.count = world->stage_count,
                          .slots = slots,
                          .room = fmax(1, cores / (slots * world->alike))};
    double step_s = 0;
    if (crowd_open(&crowd, world->near)) {
        for (int32_t s = 0; s < crowd.count; s++)
            crowd.stage[s].stops = &world->rank[s].stops;
        /* What the system deals out less well than here, the calibration has seen. */
        step_s = crowd_run(&crowd) * fmax(1, world->profile->turn_chain / chain_here(whole));
        for (int32_t s = 0; s < crowd.count; s++) {
            const struct crowd_stage *stage = &crowd.stage[s];
            world->rank[s].stretch = stage->own_s > 0 ? stage->busy_s / stage->own_s : 1;
        }
    }
    crowd_close(&crowd);
    return step_s;
}
