/*
 * What NCCL does for a call on device memory: one call of its own or an exchange (nccl_exchange.c),
 * or a sum in canonical order (nccl_sum.c). Nothing here waits for the device, allocates, or asks
 * anything of it, so that a call can be recorded in a graph.
 */
#include "comm/nccl/nccl_group.h"

#include "comm/call.h"

/*
 * By our tree, or by NCCL in an order of its own? NCCL adds 16 bits in 16 bits at every hop, which
 * tessera/comm.h rules out for any order.
 */
static bool run_is_canonical(const struct tess_comm_call *call)
{
    return call->order == TESS_ORDER_CANONICAL || tess__nccl_is_narrow(call);
}

/* By way of scratch, in pieces: one end is registered, the other is not. */
static enum tess_status run_staged(struct nccl_group *group, struct nccl_lane *lane,
                                   const struct tess_comm_call *call, size_t bytes)
{
    const int32_t n = group->comm.rank_count;
    const struct nccl_room room = tess__nccl_room(group, lane, call->source, bytes * (size_t)n);
    const size_t cell = room.bytes / (size_t)n / NCCL_ALIGN * NCCL_ALIGN;
    for (size_t first = 0; first < bytes; first += cell) {
        const size_t piece = bytes - first < cell ? bytes - first : cell;
        for (int32_t r = 0; r < n; r++)
            tess__nccl_part(
                group, &(struct nccl_part){.to = r,
                                           .from = r,
                                           .source = (const char *)call->source + r * bytes + first,
                                           .target = room.memory + r * cell,
                                           .send_bytes = piece,
                                           .receive_bytes = piece});
        TESS_TRY(tess__nccl_run_parts(group, lane));
        for (int32_t r = 0; r < n; r++)
            TESS_TRY(lane->queue->ops->copy(lane->queue, piece, room.memory + r * cell,
                                            (char *)call->target + r * bytes + first));
    }
    return TESS_OK;
}

static enum tess_status run_all_to_all(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call)
{
    const struct nccl_family *family = group->family;
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    const size_t total = bytes * (size_t)group->comm.rank_count;
    return tess__nccl_is_registered(family, lane, call->source, total) ==
                   tess__nccl_is_registered(family, lane, call->target, total)
               ? tess__nccl_all_to_all(group, lane, call->source, call->target, bytes)
               : run_staged(group, lane, call, bytes);
}

/* ---- all calls ---------------------------------------------------------------------------------
 */

enum tess_status tess__nccl_run(struct nccl_group *group, struct nccl_lane *lane,
                                const struct tess_comm_call *call)
{
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return run_all_to_all(group, lane, call);
    case TESS_COLLECTIVE_ALL_REDUCE:
    case TESS_COLLECTIVE_REDUCE_SCATTER:
    case TESS_COLLECTIVE_REDUCE:
        if (run_is_canonical(call))
            return tess__nccl_sum(group, lane, call);
        return tess__nccl_run_direct(group, lane, call);
    default:
        return tess__nccl_run_direct(group, lane, call);
    }
}

/*
 * NCCL connects ranks at the first call of a kind, which is in progress until all have made it, and
 * takes memory for it: one call of each kind, before any other is under way.
 */
enum tess_status tess__nccl_run_first(struct nccl_group *group, const struct nccl_room *room)
{
    static const enum tess_collective kinds[] = {
        TESS_COLLECTIVE_ALL_GATHER, TESS_COLLECTIVE_BROADCAST,      TESS_COLLECTIVE_ALL_TO_ALL,
        TESS_COLLECTIVE_ALL_REDUCE, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_COLLECTIVE_REDUCE};
    const bool fast = group->comm.order == TESS_ORDER_FAST;
    struct tess_comm_call call = {.reduce = TESS_REDUCE_MAX,
                                  .order = TESS_ORDER_FAST,
                                  .dtype = TESS_I32,
                                  .source = room->memory,
                                  .target = room->memory + room->bytes / 2,
                                  .count = 1,
                                  .site = ""};
    for (int i = 0; i < 2; i++) {
        call.collective = kinds[i];
        TESS_TRY(tess__nccl_run(group, &group->lane[NCCL_GATHERS], &call));
    }
    for (int i = 0; i < (fast ? 6 : 3); i++) {
        call.collective = kinds[i];
        TESS_TRY(tess__nccl_run(group, &group->lane[NCCL_SUMS], &call));
    }
    for (int way = 0; way < NCCL_LANES; way++) {
        const struct nccl_lane *lane = &group->lane[way];
        CUDA_TRY(cudaEventRecord(lane->beat, lane->stream));
        TESS_TRY(tess__nccl_await(group->family, lane->beat, lane));
    }
    return TESS_OK;
}

/* ---- traffic --------------------------------------------------------------------------------- */

/*
 * Payload by the formulas of exchange and ring, which are the same: an all-reduce of B bytes sends
 * 2 (N - 1) / N B, a reduce-scatter and a gather (N - 1) B / N each. In fast order NCCL may move
 * more or less (trees, switches that add): it does not report what it moved. A broadcast is counted
 * at its root, sums of host memory as the gathers that they are. Sums of 16 bits cross between
 * nodes as f32.
 */
void tess__nccl_count(struct nccl_group *group, const struct tess_comm_call *call)
{
    const bool scatters = call->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    const size_t size = tess_dtype_bytes(call->dtype);
    const size_t slice = tess__nccl_slice(call->count, group->comm.rank_count);
    const size_t begin = (size_t)group->comm.rank * slice;
    size_t own = begin >= call->count ? 0 : call->count - begin;
    own = own < slice ? own : slice;
    const bool slices = call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
                        call->collective == TESS_COLLECTIVE_REDUCE;
    if (call->device && (slices || scatters) && tess__nccl_is_narrow(call)) {
        const size_t more =
            (size_t)(group->shape.hosts - 1) * (scatters ? call->count : own) * size;
        group->comm.stats.sent_bytes += more;
        group->comm.stats.received_bytes += more;
    }
    if (slices && call->device)
        tess__call_count_slice(&group->comm, call, own * size);
    else
        tess__call_count(&group->comm, call, call->count * size);
}
