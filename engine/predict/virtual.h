/*
 * Ranks in virtual time: what one rank's kernel and communicators advance, and what several stages
 * of a pipeline share. Private to this room.
 *
 *     host      |o|o|o|o|o|w......|        o: gives an operation to the device, w: waits for it
 *     kernels     |op |op  |    |op  |     the lane of the kernel's queue
 *     group            |gather  |          a lane for each group of ranks
 *
 * Without a queue host and kernels are one clock, and groups have lanes all the same.
 */
#ifndef TESSERA_PREDICT_VIRTUAL_H
#define TESSERA_PREDICT_VIRTUAL_H

#include "comm/world.h"
#include "core/engine.h"
#include "predict/network.h"
#include "predict/predict.h"

struct virtual_rank;
struct virtual_fences;
struct virtual_watch;

/* A lane of work that is done in order: a queue, of the kernels or of a group. */
struct virtual_queue {
    struct tess_queue queue;
    struct virtual_rank *rank;
    bool follows_host; /* of the kernels: a fence is not reached before the host has recorded it */
    double end_s;      /* what was given so far is done */
};

/* What operations took, late launches included in doing_s. */
enum virtual_sort { VIRTUAL_PRODUCT, VIRTUAL_PASS, VIRTUAL_SORTS };
struct virtual_spent {
    double sort_s[VIRTUAL_SORTS];
    double doing_s[TESS_DOING_COUNT];
};

/* Links work for a call, or the rank waits for one. */
struct virtual_span {
    double begin_s, end_s;
};
struct virtual_spans {
    struct virtual_span *span; /* [room] */
    size_t count, room;
};

/* One call of a group, or one message between two of its members, in which stages meet. */
struct virtual_call {
    int32_t arrived; /* members, or ends, that have called */
    double ready_s;  /* the last of them */
    double end_s;    /* once all have */
    enum tess_collective collective;
    uint64_t bytes;
    int32_t again; /* of crowd.c: that have called in its run */
    double again_s;
};

/* Calls that wait for each other's end, in order. */
struct virtual_line {
    struct virtual_call *call; /* [room] */
    uint64_t count, room;
    uint64_t done; /* calls that all have arrived at */
    double end_s;  /* of the latest of these */
};

/* What a rank of a crowd comes to; between two of them it works. */
struct virtual_stop {
    enum {
        VIRTUAL_COMES, /* to call `number` of a line */
        VIRTUAL_WAITS, /* for it; without a line as long as alone */
        VIRTUAL_MARKS  /* the step that is taken begins, or has ended */
    } what;
    double begin_s, end_s;     /* by its clock, as if it had its cores alone */
    double late_s, link_s;     /* after the last one has come: a rank that slept; all */
    struct virtual_line *line; /* NULL: ranks that are alike wait */
    uint64_t number;
};
struct virtual_stops {
    struct virtual_stop *stop; /* [room] */
    size_t count, room;
};

/* A product's time, as layers of one shape come again and again. */
struct virtual_product {
    double calls, m, n, k, bytes, seconds;
    enum tess_peak_type type;
    enum tess_product product;
};
#define VIRTUAL_PRODUCTS 64

/* What the operations of a unit's pass took, in their order. */
struct virtual_spell {
    double seconds;
    enum virtual_sort sort;
};
struct virtual_unit {
    struct virtual_spell *spell; /* [count] */
    int32_t count;
    double far_s; /* of the rank, then */
    bool known;   /* all of them, and nothing but operations */
};

struct virtual_rank {
    struct virtual_world *world;
    struct virtual_product product[VIRTUAL_PRODUCTS]; /* by a hash of the shape; seconds 0: none */
    int32_t stage;
    double host_s; /* its tess_clock_s */
    bool queued;   /* operations are queued */
    bool tf32;
    struct virtual_queue kernels; /* where they are */
    char *memory_end;             /* of the device: from world->space to here */
    double met_s;                 /* when it last came from a call */
    double far_s;                 /* more for a byte that was last touched a step ago */
    double *aside_s;              /* work is added to it, not to the clock; NULL: to the clock */
    const char *lacking;          /* an operation that is not modelled was called; NULL: none */
    const struct tess_board *board;
    /* While a step is recorded, what was spent before; and the records. */
    bool recording;
    struct virtual_spent before, record[TESS_GRAPH_SLOTS];

    /* What happened so far. The marks of communicators, which the engine's times rest on, leave out
     * calls of steps that have many; here are all. */
    struct virtual_spent spent;
    double late_s;                         /* the device waits for the host */
    double bubble_s;                       /* the rank waits for other stages */
    double exposed_s[TESS_PREDICT_GROUPS]; /* it waits for calls */
    struct virtual_spans calls, waits;
    struct virtual_stops stops; /* in a crowd: all so far */
    double stretch;             /* by how much its work becomes longer there */
    double *lost_s;             /* exposed [groups, collectives, units + 1]; unit -1 is the last */
    int32_t unit_count;
    struct virtual_unit *unit;    /* [2 unit_count] backward and forward; NULL: none are alike */
    struct virtual_unit *unit_at; /* its operations are being kept; NULL: of none */

    /* The time line, while `tracing`. */
    bool tracing;
    struct tess_trace_event *event; /* [event_max] */
    int32_t event_count, event_max;
    int32_t doing;               /* event that goes on; -1: none */
    struct virtual_watch *watch; /* of its memory; NULL: none */

    int32_t met_count;             /* groups opened so far that stages meet in */
    struct virtual_fences *fences; /* whose memory is freed with the rank */

    enum tess_doing at_doing; /* of what happens now; STARTING before there is a board */
    int32_t at_unit;          /* -1: none */
    struct virtual_act *act;  /* [act_room] what is to be done */
    size_t act_count, act_done, act_room;
    bool no_room; /* for one of them */
};

/* ---- virtual_later.c -------------------------------------------------------------------------
 * Stages of a pipeline wait for each other's messages. So that this takes no threads, what a stage
 * does to its clocks is kept in a list, step by step and stage by stage, and the lists are then
 * done together: each until it waits for another one. A rank alone does all at once.
 */

enum virtual_what {
    VIRTUAL_WORK,   /* seconds; at: the sort */
    VIRTUAL_DRAIN,  /* the host waits for the kernels */
    VIRTUAL_RECORD, /* of: the fence, in queue */
    VIRTUAL_FOLLOW, /* likewise */
    VIRTUAL_REACH,  /* the host waits for fence `of` */
    VIRTUAL_CALL,   /* of: the communicator; at: the ticket */
    VIRTUAL_WAIT,   /* likewise */
    VIRTUAL_MARK,   /* of: the stage; at: 0 before the step that is taken, 1 after it */
    VIRTUAL_TOUCH,  /* of: memory, so many bytes; at: enum virtual_touched */
    VIRTUAL_WHATS
};

struct virtual_act {
    union {
        double seconds;
        struct virtual_queue *queue;
        uint64_t bytes;
    };
    void *of;
    uint32_t at;
    uint32_t what : 4, doing : 8;
    int32_t unit : 20;
};

/* *waits_out: nothing was done, as another stage comes first. */
typedef enum tess_status virtual_do(struct virtual_rank *rank, const struct virtual_act *act,
                                    bool *waits_out);

/* Keep it for later? False: the caller does it now. */
bool virtual_later(struct virtual_rank *rank, struct virtual_act act);

struct virtual_world;
/* Do what all stages have kept. */
enum tess_status virtual_do_all(struct virtual_world *world);

/* ---- virtual_comm.c -------------------------------------------------------------------------- */

struct virtual_meeting;

#define VIRTUAL_MEETINGS_MAX 8

/* What the ranks share. */
struct virtual_world {
    const struct tess_profile *profile;
    const struct tess_model_ops *model;
    const struct tess_network *network;
    struct tess_mesh mesh; /* of the first rank */
    int32_t stage_count;
    double crowd;              /* ranks for each core, at least 1 */
    bool together;             /* a host has ranks of several stages, and they exceed its cores */
    int32_t near;              /* stages of a host */
    double alike;              /* threads of the ranks of one stage that share a host's cores */
    struct virtual_rank *rank; /* [stage_count] */
    char *space; /* [space_bytes] addresses of every rank's device memory, which nobody touches */
    size_t space_bytes;
    virtual_do *const *does;    /* [VIRTUAL_WHATS]; NULL where there is one stage */
    struct tess_kernel_ops own; /* of watched kernels: the backend itself */
    struct virtual_meeting *meeting[VIRTUAL_MEETINGS_MAX];
};

/* The communicator of all ranks, for the rank that has this plan (borrowed). */
enum tess_status virtual_comm_open(struct virtual_rank *rank, const struct tess_plan *plan,
                                   enum tess_order order, struct tess_comm **comm_out);
void virtual_world_fini(struct virtual_world *world);
virtual_do virtual_do_call, virtual_do_wait;

/* ---- virtual_kernel.c ------------------------------------------------------------------------ */

/* The backend: plan-time slots of `real`, operations that advance the clocks of the rank for which
 * the calling thread opens it. */
struct tess_kernel_ops virtual_kernel(const struct tess_kernel_ops *real);
/* For which rank the calling thread opens kernels from here on. */
void virtual_kernel_for(struct virtual_rank *rank);

static inline struct virtual_rank *virtual_rank_of(const struct tess_kernel *kernel)
{
    return *(struct virtual_rank **)kernel->state;
}

/* ---- virtual_queue.c ------------------------------------------------------------------------- */

extern const struct tess_queue_ops virtual_queue_ops;

virtual_do virtual_do_work, virtual_do_drain, virtual_do_record, virtual_do_follow,
    virtual_do_reach;

/* The host waits until the kernels have done all that they were given. */
void virtual_drain(struct virtual_rank *rank);
/* The kernels work for so long, as soon as they can. */
void virtual_work(struct virtual_rank *rank, enum virtual_sort sort, double seconds);
/* They do what was recorded once more, with one launch. */
void virtual_play(struct virtual_rank *rank, const struct virtual_spent *record);

/* An event of the time line, if there is one: of the unit that the rank is at. Returns its number,
 * -1 where it is not kept. */
int32_t virtual_event(struct virtual_rank *rank, const struct tess_trace_event *event);

void virtual_fences_free(struct virtual_fences *fences); /* NULL is allowed */

/* ---- virtual_unit.c -------------------------------------------------------------------------- */

/* The model, whose passes of a unit run once where rank->unit says so. */
struct tess_model_ops virtual_model(const struct tess_model_ops *real);
void virtual_units_free(struct virtual_rank *rank);

/* ---- loss.c ---------------------------------------------------------------------------------- */

/* unit_name: of the rank's units. */
struct tess_prediction_loss virtual_loss(const struct virtual_rank *rank,
                                         const struct tess_prediction_stage *stage,
                                         const char *const *unit_name);

/* ---- watch.c ---------------------------------------------------------------------------------
 * Which memory is needed when: for time lines.
 */

enum virtual_touched { VIRTUAL_BEGINS = 1, VIRTUAL_BRIEF = 2 };

virtual_do virtual_do_touch;

/* Operations of this backend report what they touch beside the passes of units: `own` is its copy.
 */
void virtual_watch_kernel(struct tess_kernel_ops *ops, struct tess_kernel_ops *own);
enum tess_status virtual_watch_open(struct virtual_rank *rank);
/* The calls of a communicator that has no groups yet. */
void virtual_watch_comm(struct virtual_rank *rank, struct tess_comm *comm);
/* The passes of an engine that is open. */
void virtual_watch_engine(struct virtual_rank *rank, struct tess_engine *engine);
void virtual_watch_close(struct virtual_rank *rank);
/* What was live when, from begin_s on, into stage->live. `engine` was opened and has done the step.
 */
enum tess_status virtual_watch_lines(struct virtual_rank *rank, struct tess_engine *engine,
                                     double begin_s, struct tess_prediction_stage *stage);

/* ---- crowd.c --------------------------------------------------------------------------------- */

/* Keep what a rank comes to, where there is a crowd. */
enum tess_status virtual_stop(struct virtual_rank *rank, const struct virtual_stop *stop);
/*
 * Stages whose ranks share the cores of one host take turns (world->together). Each was predicted
 * as if it had them alone with the ranks that are like it; here all go through their stops once
 * more, and have the cores that the system leaves them. Returns the seconds of a step; 0: no
 * memory.
 */
double virtual_crowd(const struct virtual_world *world);

/* Address space that must never be touched: who does dies. NULL: there is none. */
void *virtual_map(size_t bytes);
void virtual_unmap(void *memory, size_t bytes);

#endif
