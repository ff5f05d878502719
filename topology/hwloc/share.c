/*
 * Divides the cores of a host among its ranks. Pure arithmetic: bind_hwloc.c binds ranks by it, and
 * live.c uses it to place ranks that will be bound so.
 */
#include "topology/hwloc/live_room.h"

/* The core that is in the middle of a place's share of all: its node is the place's. */
static int32_t share_middle(int32_t count, int32_t at, int32_t places)
{
    return (int32_t)((2 * (int64_t)at + 1) * count / (2 * (int64_t)places));
}

/* All cores of the nodes number from .. to - 1 in the list. */
static void share_nodes(const int32_t *numa, int32_t count, int32_t from, int32_t to,
                        int32_t *first_out, int32_t *cores_out)
{
    for (int32_t core = 0, node = 0; core < count; core++) {
        node += core > 0 && numa[core] != numa[core - 1];
        if (node < from || node >= to)
            continue;
        if ((*cores_out)++ == 0)
            *first_out = core;
    }
}

void tess__share(const int32_t *numa, int32_t count, int32_t at, int32_t places, int32_t *first_out,
                 int32_t *cores_out)
{
    int32_t nodes = 0;
    *first_out = *cores_out = 0;
    for (int32_t core = 0; core < count; core++)
        nodes += core == 0 || numa[core] != numa[core - 1];
    if (places <= nodes) {
        share_nodes(numa, count, (int32_t)((int64_t)at * nodes / places),
                    (int32_t)((int64_t)(at + 1) * nodes / places), first_out, cores_out);
        return;
    }
    if (count < 1)
        return;
    int32_t begin = share_middle(count, at, places), end = begin, before = 0, beside = 0;
    while (begin > 0 && numa[begin - 1] == numa[end])
        begin--;
    while (end < count && numa[end] == numa[begin])
        end++;
    for (int32_t i = 0; i < places; i++) {
        int32_t core = share_middle(count, i, places);
        beside += core >= begin && core < end;
        before += i < at && core >= begin && core < end;
    }
    int32_t first = (int32_t)((int64_t)before * (end - begin) / beside);
    int32_t after = (int32_t)((int64_t)(before + 1) * (end - begin) / beside);
    *first_out = begin + first;
    *cores_out = after > first ? after - first : 1; /* more places than cores: they share one */
}
