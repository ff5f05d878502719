/* What stages do, kept in lists and done together; see virtual.h. */
#include "predict/virtual.h"

#include "tessera/check.h"

#include <stdlib.h>

static void later_here(struct virtual_rank *rank)
{
    const struct tess_board *board = rank->board;
    rank->at_doing =
        board == NULL ? TESS_DOING_STARTING
                      : (enum tess_doing)atomic_load_explicit(&board->doing, memory_order_relaxed);
    rank->at_unit = board == NULL ? -1 : atomic_load_explicit(&board->unit, memory_order_relaxed);
}

static bool later_grow(struct virtual_rank *rank)
{
    const size_t room = 2 * rank->act_room + 256;
    struct virtual_act *act = realloc(rank->act, room * sizeof(*act));
    if (act == NULL)
        return false;
    rank->act = act;
    rank->act_room = room;
    return true;
}

bool virtual_later(struct virtual_rank *rank, struct virtual_act act)
{
    later_here(rank);
    if (act.what != VIRTUAL_WORK)
        rank->unit_at = NULL;
    if (rank->world->stage_count == 1)
        return false;
    if (rank->act_count == rank->act_room && !later_grow(rank)) {
        rank->no_room = true;
        return true;
    }
    act.doing = (uint32_t)rank->at_doing;
    act.unit = rank->at_unit;
    rank->act[rank->act_count++] = act;
    return true;
}

/* Until the rank waits for another stage, or its list ends. */
static enum tess_status later_rank(struct virtual_rank *rank, bool *moved)
{
    bool waits = false;
    while (rank->act_done < rank->act_count) {
        const struct virtual_act *act = &rank->act[rank->act_done];
        rank->at_doing = (enum tess_doing)act->doing;
        rank->at_unit = act->unit;
        TESS_TRY(rank->world->does[act->what](rank, act, &waits));
        if (waits)
            return TESS_OK;
        rank->act_done++;
        *moved = true;
    }
    return TESS_OK;
}

enum tess_status virtual_do_all(struct virtual_world *world)
{
    bool moved = true, ended = true;
    while (moved) {
        moved = false;
        for (int32_t s = 0; s < world->stage_count; s++)
            TESS_TRY(later_rank(&world->rank[s], &moved));
    }
    for (int32_t s = 0; s < world->stage_count; s++) {
        struct virtual_rank *rank = &world->rank[s];
        if (rank->no_room)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for what stage %d does in a step", s);
        ended = ended && rank->act_done == rank->act_count;
        rank->act_count = rank->act_done = 0;
    }
    if (!ended)
        TESS_FAIL(TESS_ERR_TIMEOUT, "a predicted stage waits for another one that does not come");
    return TESS_OK;
}
