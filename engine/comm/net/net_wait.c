/*
 * How a rank waits on a transport; the loop is comm/waiting.c's. What calls do is in net_run.c and
 * net_message.c.
 */
#include "base/clock.h"
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

#define WAIT_SLEEP_S 0.05 /* between two looks at the world, where a launcher notes an abort */

enum tess_status tess__net_advance(void *context, bool *moved_out)
{
    struct net_rank *rank = ((struct net_group *)context)->rank;

    TESS_TRY(tess__net_check(rank));
    for (struct net_group *group = LIST_FIRST(&rank->groups); group != NULL;
         group = LIST_NEXT(group, link)) {
        if (group->late.asked)
            TESS_TRY(tess__net_late_answer(group));
        if (group->current < group->posted)
            TESS_TRY(tess__net_run(group, moved_out));
        if (group->message_count > 0)
            TESS_TRY(tess__net_message_run(group, moved_out));
    }
    return tess__net_flush(rank);
}

static enum tess_status wait_pause(const struct tess__waiting *waiting, double idle_s,
                                   double left_s)
{
    struct net_rank *rank = ((struct net_group *)waiting->group)->rank;

    const double most_s = idle_s < NET_LATE_S ? NET_LATE_S : WAIT_SLEEP_S;

    return tess__net_lost(
        rank, rank->transport->ops->wait(rank->transport, left_s < most_s ? left_s : most_s));
}

/* What a rank does, where its board is in reach, and where it is, where there are several hosts. */
static void wait_describe(void *group, int32_t who, char *text, size_t text_bytes)
{
    const struct net_rank *rank = ((struct net_group *)group)->rank;
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
        snprintf(text + used, text_bytes - (size_t)used, "on %s",
                 transport->ops->host_name(transport, who));
}

void tess__net_wait_open(struct net_group *group)
{
    const struct net_rank *rank = group->rank;

    group->waiting = (struct tess__waiting){.group = group,
                                            .world = rank->world,
                                            .rank = rank->transport->rank,
                                            .rank_count = group->comm.rank_count,
                                            .member = group->member,
                                            .timeout_s = rank->timeout_s,
                                            .report_s = WAIT_SLEEP_S,
                                            .restarts = true, /* a slow link is no late rank */
                                            .advance = tess__net_advance,
                                            .pause = wait_pause,
                                            .is_missing = tess__net_is_missing,
                                            .describe = wait_describe,
                                            .fail = tess__net_fail};
}

/* Has everything gone that is complete for its caller already: notes, and copies of messages? */
static enum tess_status wait_gone(struct net_group *group, bool *gone_out)
{
    const struct net_pair *pair;

    TESS_TRY(tess__net_notes_gone(group, gone_out));
    SLIST_FOREACH(pair, &group->pairs, link)
    *gone_out = *gone_out && (!pair->send || pair->finished == pair->completed);
    return TESS_OK;
}

bool tess__net_settle(struct net_group *group)
{
    struct net_rank *rank = group->rank;
    struct tess_awake awake = {0};
    bool moved = false, gone = false;

    while (rank->status == TESS_OK && tess__net_advance(group, &moved) == TESS_OK &&
           wait_gone(group, &gone) == TESS_OK && !gone && tess_awake_s(&awake) < rank->timeout_s)
        (void)rank->transport->ops->wait(rank->transport, WAIT_SLEEP_S);
    return gone && group->message_count == 0 && group->current == group->posted;
}
