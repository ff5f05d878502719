/*
 * Divides the cores of a host among its ranks. Pure arithmetic: bind_hwloc.c binds ranks by it, and
 * live.c uses it to place ranks that will be bound so.
 */
#include "topology/hwloc/live_room.h"

/* Cores of the run that begins at `first`. */
static int32_t share_run(const int32_t *numa, int32_t count, int32_t first)
{
    int32_t end = first + 1;
    while (end < count && numa[end] == numa[first])
        end++;
    return end - first;
}

/* The core that is in the middle of a place's share of all: its node is the place's. */
static int32_t share_middle(int32_t count, int32_t at, int32_t places)
{
    return (int32_t)((2 * (int64_t)at + 1) * count / (2 * (int64_t)places));
}

static void share_nodes(const int32_t *numa, int32_t count, int32_t from, int32_t to,
                        int32_t *first_out, int32_t *cores_out)
{
    int32_t node = 0, first = 0, cores = 0;
    for (int32_t core = 0; core < count; node++) {
        int32_t length = share_run(numa, count, core);
        if (node == from)
            first = core;
        if (node >= from && node < to)
            cores += length;
        core += length;
    }
    *first_out = first;
    *cores_out = cores;
}

void tess__share(const int32_t *numa, int32_t count, int32_t at, int32_t places, int32_t *first_out,
                 int32_t *cores_out)
{
    int32_t nodes = 0;
    for (int32_t core = 0; core < count; core += share_run(numa, count, core))
        nodes++;
    if (places <= nodes) {
        share_nodes(numa, count, (int32_t)((int64_t)at * nodes / places),
                    (int32_t)((int64_t)(at + 1) * nodes / places), first_out, cores_out);
        return;
    }
    *first_out = *cores_out = 0;
    if (count < 1)
        return;
    int32_t middle = share_middle(count, at, places), begin = 0, before = 0, beside = 0;
    while (begin + share_run(numa, count, begin) <= middle)
        begin += share_run(numa, count, begin);
    int32_t cores = share_run(numa, count, begin);
    for (int32_t i = 0; i < places; i++) {
        int32_t core = share_middle(count, i, places);
        beside += core >= begin && core < begin + cores;
        before += i < at && core >= begin && core < begin + cores;
    }
    int32_t first = (int32_t)((int64_t)before * cores / beside);
    int32_t end = (int32_t)((int64_t)(before + 1) * cores / beside);
    *first_out = begin + first;
    *cores_out = end > first ? end - first : 1; /* more places than cores: they share one */
}
