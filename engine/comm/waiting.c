/* The wait that communicators share; see waiting.h. */
#include "comm/waiting.h"

#include "base/clock.h"
#include "comm/call.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

static bool waiting_is_missing(const struct tess__waiting *waiting, int32_t member,
                               bool *called_out)
{
    *called_out = false;
    if (tess__call_is_message(waiting->call))
        return member == waiting->call->peer;
    return waiting->is_missing(waiting->group, waiting->number, member, called_out);
}

/* The rank of the world that is late, if possible one that has not called; -1: none. */
static int32_t waiting_find_missing(const struct tess__waiting *waiting)
{
    int32_t found = -1;

    for (int32_t r = 0; r < waiting->rank_count; r++) {
        bool called;
        if (!waiting_is_missing(waiting, r, &called))
            continue;
        if (!called)
            return waiting->member[r];
        found = found < 0 ? waiting->member[r] : found;
    }
    return found;
}

/* Which ranks are late and what they do, first those that did not call; a rank that does not fit is
 * counted only. */
static void waiting_name_missing(const struct tess__waiting *waiting, char *text, size_t text_bytes)
{
    const int32_t n = waiting->rank_count;
    size_t used = 0;
    int32_t more = 0;

    for (int32_t i = 0; i < 2 * n; i++) {
        const int32_t r = i % n;
        bool called;
        if (!waiting_is_missing(waiting, r, &called) || called != (i >= n))
            continue;
        char doing[220], one[300];
        waiting->describe(waiting->group, waiting->member[r], doing, sizeof(doing));
        const size_t length = (size_t)snprintf(
            one, sizeof(one), "%srank %d %s it (%s)", used > 0 ? "; " : "", (int)waiting->member[r],
            called ? "has not finished" : "has not called", doing);
        if (more > 0 || used + length + sizeof("; 2147483647 more ranks") > text_bytes) {
            more++;
            continue;
        }
        memcpy(text + used, one, length + 1);
        used += length;
    }
    if (more > 0)
        snprintf(text + used, text_bytes - used, "; %d more rank%s", (int)more,
                 more > 1 ? "s" : "");
    else if (used == 0)
        snprintf(text, text_bytes, "no rank is late");
}

static enum tess_status waiting_time_out(const struct tess__waiting *waiting)
{
    const struct tess_comm_call *call = waiting->call;
    char late[480], causes[360] = "", reason[1000];

    waiting_name_missing(waiting, late, sizeof(late));
    if (waiting->world != NULL)
        tess__world_causes(waiting->world, waiting_find_missing(waiting), causes, sizeof(causes));
    snprintf(reason, sizeof(reason), "%s %llu%s%s did not end within %g s: %s%s",
             tess_collective_name(call->collective), (unsigned long long)waiting->number,
             call->site[0] != '\0' ? " at " : "", call->site, waiting->timeout_s, late, causes);
    return waiting->fail(waiting->group, TESS_ERR_TIMEOUT, reason);
}

static enum tess_status waiting_loop(const struct tess__waiting *waiting, struct tess_board *board)
{
    struct tess_awake awake = {0};
    double moved_s = tess_awake_s(&awake);

    for (;;) {
        bool moved = false;
        TESS_TRY(waiting->advance(waiting->group, &moved));
        if (waiting->ready(waiting->context))
            return TESS_OK;
        const double now_s = tess_awake_s(&awake);
        if (moved) {
            moved_s = now_s;
            continue;
        }
        const double left_s = (waiting->restarts ? moved_s : 0) + waiting->timeout_s - now_s;
        if (left_s < 0)
            return waiting_time_out(waiting);
        if (board != NULL && now_s - moved_s > waiting->report_s)
            atomic_store_explicit(&board->waits_for, waiting_find_missing(waiting),
                                  memory_order_relaxed);
        TESS_TRY(waiting->pause(waiting, now_s - moved_s, left_s));
    }
}

enum tess_status tess__wait_for(const struct tess__waiting *group, bool (*ready)(void *context),
                                void *context, const struct tess_comm_call *call, uint64_t number)
{
    struct tess__waiting waiting = *group;
    struct tess_board *board =
        group->world != NULL ? tess_world_board(group->world, group->rank) : NULL;
    bool moved = false;

    TESS_TRY(group->advance(group->group, &moved));
    if (ready(context))
        return TESS_OK;
    waiting.ready = ready;
    waiting.context = context;
    waiting.call = call;
    waiting.number = number;
    if (board != NULL) {
        atomic_store_explicit(&board->call_number, number, memory_order_relaxed);
        atomic_store_explicit(&board->collective, (int32_t)call->collective, memory_order_relaxed);
    }
    const enum tess_status status = waiting_loop(&waiting, board);
    if (board != NULL && status == TESS_OK) { /* else it shows where the rank has failed */
        atomic_store_explicit(&board->collective, -1, memory_order_relaxed);
        atomic_store_explicit(&board->waits_for, -1, memory_order_relaxed);
    }
    return status;
}
