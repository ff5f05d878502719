/*
 * A group's lanes and channels taken together: how they work on the kernels' queue, and let go of
 * it.
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

/* Nothing of the group is under way any more. False where NCCL does not come to an end: then
 * nothing that it may use can be freed. */
static bool group_quiet(struct nccl_group *group)
{
    tess__nccl_forget_graphs(group);
    for (int way = 0; way < NCCL_LANES; way++)
        tess__nccl_lane_quiet(group->family, &group->lane[way]);
    for (struct nccl_channel *at = NULL; (at = tess__nccl_channel_next(group, at)) != NULL;)
        tess__nccl_lane_quiet(group->family, &at->lane);
    if (tess__nccl_wait_aborted(group->family))
        return true;
    tess__cuda_give_up();
    tess_log(TESS_LOG_WARN, "rank %d: NCCL does not let go of its calls, nor do we of what it uses",
             (int)group->family->rank);
    return false;
}

void tess__nccl_group_detach(struct nccl_group *group)
{
    if (!group_quiet(group))
        return;
    for (int i = 0; i < 2; i++) {
        tess__nccl_fence_close(&group->full[i]);
        tess__nccl_fence_close(&group->taken[i]);
    }
    if (group->sums != NULL)
        group->sums->ops->close(group->sums);
    group->sums = NULL;
    for (int way = 0; way < NCCL_LANES; way++)
        tess__nccl_lane_detach(&group->lane[way]);
    for (struct nccl_channel *at = NULL; (at = tess__nccl_channel_next(group, at)) != NULL;)
        tess__nccl_lane_detach(&at->lane);
    /* Calls that were never waited for are done all the same. */
    for (int i = 0; i < NCCL_RECORDS; i++) {
        struct nccl_record *record = &group->record[i];
        if (record->state != NCCL_ON_DEVICE)
            continue;
        record->state = NCCL_DONE;
        if (!atomic_load(&group->family->failed))
            tess_comm_completed(&group->comm, record->ticket);
    }
}

enum tess_status tess__nccl_group_attach(struct nccl_group *group, struct tess_queue *kernels)
{
    struct nccl_lane *gathers = &group->lane[NCCL_GATHERS];
    struct tess_kernel *kernel = kernels->kernel;
    bool fresh = gathers->comm == NULL;
    if (fresh) {
        ncclComm_t comm;
        TESS_TRY(tess__nccl_lane_open(gathers));
        TESS_TRY(tess__nccl_lane_split(group->family, &group->lane[NCCL_SUMS], 0, group->comm.rank,
                                       &comm));
        TESS_TRY(tess__nccl_lane_take(group->family, gathers, comm));
    }
    for (int way = 0; way < NCCL_LANES; way++)
        TESS_TRY(tess__nccl_lane_attach(&group->lane[way], kernels));
    TESS_TRY(kernels->ops->open(kernel, &group->sums));
    for (int i = 0; i < 2; i++) {
        TESS_TRY(kernels->ops->fence_open(kernel, &group->full[i]));
        TESS_TRY(kernels->ops->fence_open(kernel, &group->taken[i]));
    }
    if (group->scratch == NULL) {
        void *scratch = NULL;
        CUDA_TRY(cudaMalloc(&scratch, 2 * NCCL_SCRATCH_BYTES));
        group->scratch = scratch;
    }
    if (!fresh)
        return TESS_OK;
    TESS_TRY(tess__nccl_run_first(group));
    return tess__nccl_register_all(group);
}
