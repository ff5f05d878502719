/*
 * Large collectives: every lane of the plan is cut into chunks, a chunk of all lanes is a row, and
 * a few rows are under way at a time, so that one chunk comes while another is added and a third
 * goes. Rows are begun in order on every rank, and within a row messages with one peer in the order
 * of the plan, on both sides: so that they meet, and so that no rank waits for a row that another
 * one has no room for.
 */
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

static bool job_is_half(const struct tess_comm_call *call)
{
    return call->dtype == TESS_F16 || call->dtype == TESS_BF16;
}

/* Bytes of an element on its way up: see net_sum.c. */
static size_t job_size(const struct tess_comm_call *call, bool wide)
{
    return wide ? sizeof(float) : tess_dtype_bytes(call->dtype);
}

static char *job_at(const void *array, size_t lane_at, const struct net_job *job, size_t size)
{
    return lane_at == SIZE_MAX ? NULL : (char *)array + (lane_at + job->begin) * size;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Chunks are cut alike on every rank: from arguments that all ranks share. */
static void job_cut(struct net_group *group, const struct tess_comm_call *call)
{
    const size_t size = job_size(call, job_is_half(call));
    const size_t lanes = (size_t)group->comm.rank_count;
    size_t longest = 0, bytes = NET_ROW_BYTES / lanes;

    /* Not of this rank's own lanes alone: they may be the shorter ones. */
    longest = call->count;
    if (call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
        call->collective == TESS_COLLECTIVE_REDUCE)
        longest = (call->count + lanes - 1) / lanes;
    bytes = bytes < longest * size / 4 ? bytes : longest * size / 4;
    bytes = bytes > NET_CHUNK_LEAST ? bytes : NET_CHUNK_LEAST;
    bytes = bytes < NET_CHUNK_MOST ? bytes : NET_CHUNK_MOST;
    group->chunk = bytes / size;
    group->row_count = (longest + group->chunk - 1) / group->chunk;
    group->row_next = group->row_done = 0;
}

/* Memory for rows, kept for later calls. */
static enum tess_status job_reserve(struct net_group *group, const struct tess_comm_call *call)
{
    const size_t size = job_size(call, job_is_half(call));
    const size_t lanes = 2 * (size_t)group->comm.rank_count;
    size_t needed = 0;

    if (group->jobs == NULL) {
        group->jobs = calloc(NET_ROWS * lanes, sizeof(*group->jobs));
        for (size_t k = 0; group->jobs != NULL && k < NET_ROWS; k++)
            group->row[k].job = group->jobs + k * lanes;
    }
    for (int32_t l = 0; l < group->plan->lane_count; l++)
        needed += (size_t)group->plan->lane[l].come_count * group->chunk * size;
    for (int k = 0; k < NET_ROWS && needed > group->scratch_bytes; k++) {
        free(group->row[k].scratch);
        group->row[k].scratch = malloc(needed);
    }
    group->scratch_bytes = needed > group->scratch_bytes ? needed : group->scratch_bytes;
    for (int k = 0; k < NET_ROWS; k++)
        if (group->jobs == NULL || (needed > 0 && group->row[k].scratch == NULL))
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the chunks of a communicator of %d ranks",
                      (int)group->comm.rank_count);
    return TESS_OK;
}

enum tess_status tess__net_jobs_start(struct net_group *group, const struct tess_comm_call *call)
{
    tess__net_plan(&group->shape, call, group->plan);
    job_cut(group, call);
    TESS_TRY(job_reserve(group, call));
    memset(group->up_given, 0, sizeof(group->up_given));
    memset(group->up_taken, 0, sizeof(group->up_taken));
    memset(group->down_given, 0, sizeof(group->down_given));
    memset(group->down_taken, 0, sizeof(group->down_taken));
    return TESS_OK;
}

/* ---- a row begins ---------------------------------------------------------------------------- */

/* Where receive `k` of a job puts what comes: a leaf of 16 bits at the end of its chunk, so that
 * the f32 sum can be written from the beginning. */
static char *job_place(const struct net_group *group, const struct tess_comm_call *call,
                       const struct net_job *job, int32_t k)
{
    const bool half = job_is_half(call);
    char *chunk = job->scratch + (size_t)k * group->chunk * job_size(call, half);

    return half && job->lane->come_leaf[k] ? chunk + job->count * sizeof(uint16_t) : chunk;
}

static enum tess_status job_begin_up(struct net_group *group, const struct tess_comm_call *call,
                                     struct net_job *job)
{
    const struct net_lane *lane = job->lane;

    for (int32_t k = 0; k < lane->come_count; k++) {
        const size_t size = job_size(call, job_is_half(call) && !lane->come_leaf[k]);
        TESS_TRY(tess__net_begin(group, false, lane->come[k],
                                 tess__net_tag(group, NET_UP, group->hash),
                                 job_place(group, call, job, k), job->count * size, &job->come[k]));
    }
    if (lane->to >= 0)
        job->up_turn = group->up_given[lane->to]++;
    return TESS_OK;
}

static enum tess_status job_begin_down(struct net_group *group, const struct tess_comm_call *call,
                                       struct net_job *job)
{
    const struct net_lane *lane = job->lane;
    const size_t size = tess_dtype_bytes(call->dtype);

    if (lane->from >= 0)
        TESS_TRY(tess__net_begin(
            group, false, lane->from, tess__net_tag(group, NET_DOWN, group->hash),
            job_at(call->target, lane->target_at, job, size), job->count * size, &job->from));
    for (int32_t k = 0; k < lane->down_count; k++)
        job->down_turn[k] = group->down_given[lane->down[k]]++;
    return TESS_OK;
}

static void job_clear(struct net_job *job)
{
    job->up = job->from = NET_NO_REQUEST;
    for (int32_t k = 0; k < NET_COME_MAX; k++)
        job->come[k] = job->down[k] = NET_NO_REQUEST;
}

static enum tess_status job_begin_row(struct net_group *group, const struct tess_comm_call *call)
{
    const struct net_plan *plan = group->plan;
    const size_t begin = group->row_next * group->chunk, size = tess_dtype_bytes(call->dtype);
    struct net_row *row = &group->row[group->row_next++ % NET_ROWS];
    char *scratch = row->scratch;

    row->left = 0;
    for (int32_t l = 0; l < plan->lane_count; l++) {
        const struct net_lane *lane = &plan->lane[l];
        const size_t left = lane->length > begin ? lane->length - begin : 0;
        struct net_job *job = &row->job[l];
        *job = (struct net_job){.lane = lane,
                                .begin = begin,
                                .count = left < group->chunk ? left : group->chunk,
                                .scratch = scratch,
                                .over = left == 0};
        job_clear(job);
        job->value = job_at(call->source, lane->source_at, job, size);
        if (lane->come_count > 0)
            scratch += (size_t)lane->come_count * group->chunk * job_size(call, job_is_half(call));
        row->left += job->over ? 0 : 1;
    }
    for (int32_t l = 0; l < plan->lane_count; l++)
        if (!row->job[plan->up_order[l]].over)
            TESS_TRY(job_begin_up(group, call, &row->job[plan->up_order[l]]));
    for (int32_t l = 0; l < plan->lane_count; l++)
        if (!row->job[plan->down_order[l]].over)
            TESS_TRY(job_begin_down(group, call, &row->job[plan->down_order[l]]));
    return TESS_OK;
}

/* ---- a job goes on --------------------------------------------------------------------------- */

/* Add what has come. The owner's last sum is the whole. */
static enum tess_status job_take(struct net_group *group, const struct tess_comm_call *call,
                                 struct net_job *job, bool *moved_out)
{
    const struct net_lane *lane = job->lane;
    const bool half = job_is_half(call);

    while (job->come_done < lane->come_count) {
        const int32_t k = job->come_done;
        bool done;
        TESS_TRY(tess__net_done(group, &job->come[k], &done));
        if (!done)
            return TESS_OK;
        const char *comes = job_place(group, call, job, k);
        const bool whole = lane->to < 0 && k + 1 == lane->come_count;
        const bool leaf = half && lane->come_leaf[k], own_leaf = half && !job->wide;
        char *out = job->scratch + (size_t)k * group->chunk * job_size(call, half);
        if (whole && lane->target_at != SIZE_MAX)
            out = job_at(call->target, lane->target_at, job, tess_dtype_bytes(call->dtype));
        group->comm.stats.received_bytes += job->count * job_size(call, half && !leaf);
        if (lane->come_left[k])
            tess__net_sum(call->dtype, call->reduce, comes, leaf, job->value, own_leaf, out, whole,
                          job->count);
        else
            tess__net_sum(call->dtype, call->reduce, job->value, own_leaf, comes, leaf, out, whole,
                          job->count);
        job->value = out;
        job->wide = half && !whole;
        job->come_done++;
        *moved_out = true;
    }
    job->whole = job->whole || (lane->to < 0 && lane->come_count > 0);
    return TESS_OK;
}

static enum tess_status job_give_up(struct net_group *group, const struct tess_comm_call *call,
                                    struct net_job *job, bool *moved_out)
{
    const struct net_lane *lane = job->lane;

    if (lane->to < 0 || job->up_begun || job->come_done < lane->come_count ||
        group->up_taken[lane->to] != job->up_turn)
        return TESS_OK;
    const size_t bytes = job->count * job_size(call, job->wide);
    TESS_TRY(tess__net_begin(group, true, lane->to, tess__net_tag(group, NET_UP, group->hash),
                             job->value, bytes, &job->up));
    group->comm.stats.sent_bytes += bytes;
    group->up_taken[lane->to]++;
    job->up_begun = true;
    *moved_out = true;
    return TESS_OK;
}

/* What an owner begins with, or what comes from above. */
static enum tess_status job_have_whole(struct net_group *group, const struct tess_comm_call *call,
                                       struct net_job *job, bool *moved_out)
{
    const struct net_lane *lane = job->lane;
    const size_t size = tess_dtype_bytes(call->dtype);
    char *target = job_at(call->target, lane->target_at, job, size);
    bool done;

    if (job->whole)
        return TESS_OK;
    if (lane->has_source) {
        if (target != NULL && target != job->value)
            memcpy(target, job->value, job->count * size);
        job->whole = true;
    } else if (lane->from >= 0) {
        TESS_TRY(tess__net_done(group, &job->from, &done));
        if (!done)
            return TESS_OK;
        job->value = target;
        job->whole = true;
        group->comm.stats.received_bytes += job->count * size;
    }
    *moved_out = *moved_out || job->whole;
    return TESS_OK;
}

static enum tess_status job_give_down(struct net_group *group, const struct tess_comm_call *call,
                                      struct net_job *job, bool *moved_out)
{
    const struct net_lane *lane = job->lane;
    const size_t bytes = job->count * tess_dtype_bytes(call->dtype);

    while (job->whole && job->down_begun < lane->down_count) {
        const int32_t k = job->down_begun, peer = lane->down[k];
        if (group->down_taken[peer] != job->down_turn[k])
            return TESS_OK;
        TESS_TRY(tess__net_begin(group, true, peer, tess__net_tag(group, NET_DOWN, group->hash),
                                 job->value, bytes, &job->down[k]));
        group->comm.stats.sent_bytes += bytes;
        group->down_taken[peer]++;
        job->down_begun++;
        *moved_out = true;
    }
    return TESS_OK;
}

/* Nothing is to be begun any more: has all ended? */
static enum tess_status job_end(struct net_group *group, struct net_job *job, bool *moved_out)
{
    const struct net_lane *lane = job->lane;
    bool done = true;

    if (job->come_done < lane->come_count || (lane->to >= 0 && !job->up_begun) ||
        (!job->whole && (lane->from >= 0 || lane->to < 0)) || job->down_begun < lane->down_count)
        return TESS_OK;
    TESS_TRY(tess__net_done(group, &job->up, &done));
    for (int32_t k = 0; k < lane->down_count && done; k++)
        TESS_TRY(tess__net_done(group, &job->down[k], &done));
    job->over = done;
    *moved_out = *moved_out || done;
    return TESS_OK;
}

static enum tess_status job_run(struct net_group *group, const struct tess_comm_call *call,
                                struct net_job *job, bool *moved_out)
{
    TESS_TRY(job_take(group, call, job, moved_out));
    TESS_TRY(job_give_up(group, call, job, moved_out));
    TESS_TRY(job_have_whole(group, call, job, moved_out));
    TESS_TRY(job_give_down(group, call, job, moved_out));
    return job_end(group, job, moved_out);
}

static enum tess_status job_begin_rows(struct net_group *group, const struct tess_comm_call *call,
                                       bool *moved_out)
{
    while (group->row_next < group->row_count && group->row_next - group->row_done < NET_ROWS) {
        TESS_TRY(job_begin_row(group, call));
        *moved_out = true;
    }
    return TESS_OK;
}

enum tess_status tess__net_jobs_begin(struct net_group *group, const struct tess_comm_call *call)
{
    bool moved = false;

    TESS_TRY(job_begin_rows(group, call, &moved));
    for (size_t r = group->row_done; r < group->row_next; r++)
        for (int32_t l = 0; l < group->plan->lane_count; l++) {
            struct net_job *job = &group->row[r % NET_ROWS].job[group->plan->up_order[l]];
            if (job->over || job->lane->come_count > 0)
                continue;
            TESS_TRY(job_give_up(group, call, job, &moved));
            if (job->lane->has_source)
                TESS_TRY(job_have_whole(group, call, job, &moved));
            TESS_TRY(job_give_down(group, call, job, &moved));
        }
    return TESS_OK;
}

enum tess_status tess__net_jobs_run(struct net_group *group, const struct tess_comm_call *call,
                                    bool *moved_out, bool *done_out)
{
    TESS_TRY(job_begin_rows(group, call, moved_out));
    for (size_t r = group->row_done; r < group->row_next; r++) {
        struct net_row *row = &group->row[r % NET_ROWS];
        for (int32_t l = 0; l < group->plan->lane_count && row->left > 0; l++) {
            struct net_job *job = &row->job[group->plan->up_order[l]];
            if (job->over)
                continue;
            TESS_TRY(job_run(group, call, job, moved_out));
            row->left -= job->over ? 1 : 0;
        }
    }
    while (group->row_done < group->row_next && group->row[group->row_done % NET_ROWS].left == 0) {
        group->row_done++;
        *moved_out = true;
    }
    *done_out = group->row_done == group->row_count;
    return TESS_OK;
}

bool tess__net_jobs_want(const struct net_group *group, int32_t peer)
{
    for (size_t r = group->row_done; r < group->row_next; r++) {
        const struct net_row *row = &group->row[r % NET_ROWS];
        for (int32_t l = 0; l < group->plan->lane_count; l++) {
            const struct net_job *job = &row->job[l];
            if (job->over)
                continue;
            for (int32_t k = 0; k < job->lane->come_count; k++)
                if (job->come[k] != NET_NO_REQUEST && job->lane->come[k] == peer)
                    return true;
            if (job->from != NET_NO_REQUEST && job->lane->from == peer)
                return true;
        }
    }
    return false;
}
