/*
 * How a rank waits on a transport, and how waits end: while it waits it advances all its groups, so
 * that no order of waits in different groups can block; and whoever finds that the job cannot go on
 * tells all others why. Knows nothing of what calls do.
 */
#include "comm/net_group.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define WAIT_SLEEP_S                                                                               \
    0.05 /* between two looks at the world, where a launcher says that all is over */
/* A launcher on this host learns how a rank died, and says so, within this time: its word is the
 * better one than that a connection was closed. */
#define WAIT_WORD_S 0.3

/* ---- endings --------------------------------------------------------------------------------- */

static bool wait_aborted(struct net_rank *rank)
{
    char reason[1024];
    int32_t who;

    if (rank->world == NULL || !tess_world_aborted(rank->world, &who, reason, sizeof reason))
        return false;
    rank->status = TESS_ERR_ABORTED;
    if (who < 0)
        (void)tess_fail(TESS_ERR_ABORTED, "stopped by the launcher: %s", reason);
    else
        (void)tess_fail(TESS_ERR_ABORTED, "stopped because rank %d failed: %s", (int)who, reason);
    /* Others may be where this world does not reach. */
    rank->transport->ops->abort(rank->transport, reason);
    return true;
}

enum tess_status tess__net_check(struct net_rank *rank)
{
    if (rank->status == TESS_OK)
        (void)wait_aborted(rank);
    return rank->status;
}

enum tess_status tess__net_lost(struct net_rank *rank, enum tess_status status)
{
    const double limit_s = tess_clock_s() + WAIT_WORD_S;

    if (status == TESS_OK || rank->status != TESS_OK)
        return rank->status;
    while (rank->world != NULL && tess_clock_s() < limit_s) {
        if (wait_aborted(rank))
            return rank->status;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    rank->status = status;
    if (rank->transport->reason != NULL && rank->transport->reason[0] != '\0')
        TESS_FAIL(status, "%s", rank->transport->reason);
    return status;
}

enum tess_status tess__net_fail(struct net_group *group, enum tess_status status,
                                const char *reason)
{
    struct net_rank *rank = group->rank;

    if (rank->world != NULL)
        tess_world_abort(rank->world, rank->transport->rank, reason);
    rank->transport->ops->abort(rank->transport, reason);
    rank->status = TESS_ERR_ABORTED;
    TESS_FAIL(status, "%s", reason);
}

/* ---- messages -------------------------------------------------------------------------------- */

enum tess_status tess__net_begin(struct net_group *group, bool send, int32_t peer, uint32_t tag,
                                 const void *data, size_t bytes, uint32_t *request)
{
    struct tess_transport *transport = group->rank->transport;
    const int32_t to = group->member[peer];
    const enum tess_status status =
        send ? transport->ops->send(transport, to, tag, data, bytes, request)
             : transport->ops->recv(transport, to, tag, (void *)data, bytes, request);

    return tess__net_lost(group->rank, status);
}

enum tess_status tess__net_done(struct net_group *group, uint32_t *request, bool *done_out)
{
    struct tess_transport *transport = group->rank->transport;

    *done_out = true;
    if (*request == NET_NO_REQUEST)
        return TESS_OK;
    const enum tess_status status = transport->ops->test(transport, *request, done_out);
    if (status != TESS_OK)
        return tess__net_lost(group->rank, status);
    if (*done_out)
        *request = NET_NO_REQUEST;
    return TESS_OK;
}

enum tess_status tess__net_advance(struct net_rank *rank, bool *moved_out)
{
    TESS_TRY(tess__net_check(rank));
    for (struct net_group *group = rank->groups; group != NULL; group = group->next) {
        if (group->current < group->posted)
            TESS_TRY(tess__net_run(group, moved_out));
        if (group->message_count > 0)
            TESS_TRY(tess__net_message_run(group, moved_out));
    }
    return TESS_OK;
}

/* ---- who is missing -------------------------------------------------------------------------- */

static bool wait_is_missing(const struct net_group *group, const struct tess_comm_call *call,
                            uint64_t number, int32_t peer, bool *called_out)
{
    *called_out = false;
    if (call->collective == TESS_COLLECTIVE_SEND || call->collective == TESS_COLLECTIVE_RECV)
        return peer == call->peer;
    return tess__net_is_missing(group, number - 1, peer, called_out);
}

/* The rank that a call waits for, of several one that has not called it; -1: none. */
static int32_t wait_find_missing(const struct net_group *group, const struct tess_comm_call *call,
                                 uint64_t number)
{
    int32_t found = -1;

    for (int32_t r = group->comm.rank_count - 1; r >= 0; r--) {
        bool called;
        if (wait_is_missing(group, call, number, r, &called) && (!called || found < 0))
            found = group->member[r];
    }
    return found;
}

/* What a rank does, where its board is in reach, and where it is, where there are several hosts. */
static void wait_describe(const struct net_rank *rank, int32_t who, char *text, size_t text_bytes)
{
    const struct tess_transport *transport = rank->transport;
    const struct tess_board *board =
        rank->world != NULL ? tess_world_board(rank->world, who) : NULL;
    bool hosts = false;
    int used = 0;

    for (int32_t r = 0; r < transport->rank_count; r++)
        hosts = hosts || transport->host[r] != 0;
    text[0] = '\0';
    if (board != NULL && atomic_load_explicit(&board->pid, memory_order_relaxed) != 0) {
        tess_board_describe(board, NULL, 0, text, text_bytes);
        used = (int)strlen(text);
        if (hosts)
            used += snprintf(text + used, text_bytes - (size_t)used, ", ");
    }
    if (hosts || used == 0)
        snprintf(text + used, text_bytes - (size_t)used, "on %s", transport->host_name[who]);
}

static void wait_name_missing(const struct net_group *group, const struct tess_comm_call *call,
                              uint64_t number, char *text, size_t text_bytes)
{
    const int32_t n = group->comm.rank_count;
    size_t used = 0;
    int32_t more = 0;

    for (int32_t i = 0; i < 2 * n; i++) {
        const int32_t r = i % n;
        bool called;
        if (!wait_is_missing(group, call, number, r, &called) || called != (i >= n))
            continue;
        char doing[220], one[300];
        wait_describe(group->rank, group->member[r], doing, sizeof doing);
        const size_t length = (size_t)snprintf(
            one, sizeof one, "%srank %d %s it (%s)", used > 0 ? "; " : "", (int)group->member[r],
            called ? "has not finished" : "has not called", doing);
        if (more > 0 || used + length + sizeof "; 64 more ranks" > text_bytes) {
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

static enum tess_status wait_time_out(struct net_group *group, const struct tess_comm_call *call,
                                      uint64_t number)
{
    struct net_rank *rank = group->rank;
    char who[480] = "", causes[360] = "", reason[1000];

    wait_name_missing(group, call, number, who, sizeof who);
    if (rank->world != NULL)
        tess__world_causes(rank->world, wait_find_missing(group, call, number), causes,
                           sizeof causes);
    snprintf(reason, sizeof reason, "%s %llu%s%s did not end within %g s: %s%s",
             tess_collective_name(call->collective), (unsigned long long)number,
             call->site[0] != '\0' ? " at " : "", call->site, rank->timeout_s, who, causes);
    return tess__net_fail(group, TESS_ERR_TIMEOUT, reason);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static enum tess_status wait_loop(struct net_group *group, struct tess_board *board,
                                  bool (*ready)(void *), void *context,
                                  const struct tess_comm_call *call, uint64_t number)
{
    struct net_rank *rank = group->rank;
    const double start_s = tess_clock_s();
    double seen_s = start_s; /* when something moved last: a slow link is not a late rank */

    for (;;) {
        bool moved = false;
        TESS_TRY(tess__net_advance(rank, &moved));
        if (ready(context))
            return TESS_OK;
        const double now_s = tess_clock_s(), left_s = seen_s + rank->timeout_s - now_s;
        if (moved) {
            seen_s = now_s;
            continue;
        }
        if (left_s < 0)
            return wait_time_out(group, call, number);
        if (board != NULL && now_s - start_s > WAIT_SLEEP_S)
            atomic_store_explicit(&board->waits_for, wait_find_missing(group, call, number),
                                  memory_order_relaxed);
        const enum tess_status status = rank->transport->ops->wait(
            rank->transport, left_s < WAIT_SLEEP_S ? left_s : WAIT_SLEEP_S);
        if (status != TESS_OK)
            return tess__net_lost(rank, status);
    }
}

enum tess_status tess__net_wait(struct net_group *group, bool (*ready)(void *context),
                                void *context, const struct tess_comm_call *call, uint64_t number)
{
    struct net_rank *rank = group->rank;
    struct tess_board *board =
        rank->world != NULL ? tess_world_board(rank->world, rank->transport->rank) : NULL;
    bool moved = false;

    TESS_TRY(tess__net_advance(rank, &moved));
    if (ready(context))
        return TESS_OK;
    if (board != NULL) {
        atomic_store_explicit(&board->call_number, number, memory_order_relaxed);
        atomic_store_explicit(&board->collective, (int32_t)call->collective, memory_order_relaxed);
    }
    const enum tess_status status = wait_loop(group, board, ready, context, call, number);
    if (board != NULL) {
        atomic_store_explicit(&board->collective, -1, memory_order_relaxed);
        atomic_store_explicit(&board->waits_for, -1, memory_order_relaxed);
    }
    return status;
}

/* Has everything gone that is complete for its caller already: notes, and copies of messages? */
static enum tess_status wait_gone(struct net_group *group, bool *gone_out)
{
    TESS_TRY(tess__net_notes_gone(group, gone_out));
    for (int32_t r = 0; r < group->comm.rank_count && *gone_out; r++)
        *gone_out = group->send[r] == NULL || group->send[r]->finished == group->send[r]->told;
    return TESS_OK;
}

bool tess__net_settle(struct net_group *group)
{
    struct net_rank *rank = group->rank;
    const double limit_s = tess_clock_s() + rank->timeout_s;
    bool moved = false, gone = false;

    while (rank->status == TESS_OK && tess__net_advance(rank, &moved) == TESS_OK &&
           wait_gone(group, &gone) == TESS_OK && !gone && tess_clock_s() < limit_s)
        (void)rank->transport->ops->wait(rank->transport, WAIT_SLEEP_S);
    return gone && group->message_count == 0 && group->current == group->posted;
}
