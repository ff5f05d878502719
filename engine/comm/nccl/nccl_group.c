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

/* The first rank whose node has not the `places` neighbours that it should. */
static int32_t group_astray(const int32_t *host, int32_t rank_count, int32_t places)
{
    int32_t r = 0;
    while (r < rank_count && host[r] == host[r / places * places] &&
           (r < places || host[r] != host[r - places]) && r / places < rank_count / places)
        r++;
    return r < rank_count ? r : 0;
}

/*
 * Two levels where the tree has them: each node has 2, 4, 8, ... neighbours. With one rank on each
 * there is no inner level.
 */
void tess__nccl_group_shape(struct nccl_group *group)
{
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    int32_t *host = group->host, places = 1;
    for (int32_t r = 0; r < n; r++)
        host[r] = group->family->host[group->member[r]];
    while (places < n && host[places] == host[0])
        places++;
    group->shape = tess__net_shape(rank, n, host, 0);
    const bool equal = group->shape.places == places;
    if (equal && (places & (places - 1)) == 0 && places > 1)
        return;
    group->shape = (struct net_shape){rank, n, 1, n, 0, NULL};
    if (rank == 0 && places < n && !(equal && places == 1))
        tess_log(TESS_LOG_DEBUG,
                 "NCCL: canonical sums of %d ranks go between nodes rank by rank, not node by "
                 "node: the node of rank %d is not one of equal nodes with 2, 4, 8, ... neighbours",
                 (int)n, (int)group->member[group_astray(host, n, places)]);
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
    if (!fresh)
        return TESS_OK;
    TESS_TRY(tess__nccl_scratch_open(group));
    return tess__nccl_register_all(group);
}
