/*
 * Large collectives: every lane of the plan is cut into chunks, a chunk of all lanes is a row, and
 * a few rows are under way at a time, so that one chunk comes while another is added and a third
 * goes. Rows are begun in order on every rank, and each lane has a tag of its own: so messages
 * meet, none waits for another lane's, and no rank waits for a row that another one has no room
 * for.
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

/* The elements of a job that are among [at, at + count) of its lane: how many, and how many of the
 * job's lie before them. */
static size_t job_part(const struct net_job *job, size_t at, size_t count, size_t *skip_out)
{
    const size_t end = count < SIZE_MAX - at ? at + count : SIZE_MAX,
                 job_end = job->begin + job->count;
    const size_t from = at > job->begin ? at : job->begin, to = end < job_end ? end : job_end;

    *skip_out = to > from ? from - job->begin : 0;
    return to > from ? to - from : 0;
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
    const size_t lanes = (size_t)group->comm.rank_count, width = (size_t)group->plan.width;
    size_t longest = 0, bytes = NET_ROW_BYTES * width / lanes;

    for (int32_t l = 0; l < group->plan.lane_count; l++)
        longest = longest > group->plan.lane[l].length ? longest : group->plan.lane[l].length;
    /* On a ring all links carry the same from the beginning to the end. By ways they carry what
     * comes up first, and not all as much of it: only the rows under way at a time even that out,
     * so that these are short and many, beside which the first and the last of them count little:
     * what a sum takes beyond the bytes of its fullest link is about half a row. Where a rank has
     * two lanes their chunks are shorter, so that rows are not longer. */
    const bool ways = group->plan.by_ways;
    const bool halves = ways && (size_t)group->plan.lane_count > lanes;
    const size_t rows = ways ? 8 : 4;
    const size_t most = halves ? NET_CHUNK_HALF : ways ? NET_CHUNK_WAYS : NET_CHUNK_MOST;
    const size_t least = ways ? NET_CHUNK_LEAST / 2 : NET_CHUNK_LEAST;
    bytes = bytes < longest * size / rows ? bytes : longest * size / rows;
    bytes = bytes > least ? bytes : least;
    bytes = bytes < most ? bytes : most;
    /* Two messages of half the size take longer than one. */
    bytes = longest * size < 4 * NET_CHUNK_LEAST && width > 1 ? longest * size : bytes;
    group->chunk = bytes / size;
    group->row_count = longest > 0 ? (longest + group->chunk - 1) / group->chunk : 0;
    /* Rows of one size: a last one of a few elements costs as much as others. */
    if (group->row_count > 1)
        group->chunk = (longest + group->row_count - 1) / group->row_count;
}

/* Chunks of scratch memory of a lane: one for each sum, and one for a whole of which only a part
 * goes to the target. */
static size_t job_chunks(const struct net_lane *lane)
{
    return (size_t)lane->adds + (lane->own_count > 0 && lane->target_at == SIZE_MAX ? 1 : 0);
}

/* Memory for rows, kept for later calls. */
static enum tess_status job_reserve(struct net_group *group, const struct tess_comm_call *call)
{
    const size_t size = job_size(call, job_is_half(call));
    size_t needed = 0;

    for (int32_t l = 0; l < group->plan.lane_count; l++)
        needed += job_chunks(&group->plan.lane[l]) * group->chunk * size;
    for (int k = 0; k < NET_ROWS && needed > group->scratch_bytes; k++) {
        free(group->row[k].scratch);
        group->row[k].scratch = malloc(needed);
    }
    group->scratch_bytes = needed > group->scratch_bytes ? needed : group->scratch_bytes;
    for (int k = 0; k < NET_ROWS; k++)
        if (needed > 0 && group->row[k].scratch == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the chunks of a communicator of %d ranks",
                      (int)group->comm.rank_count);
    return TESS_OK;
}

enum tess_status tess__net_jobs_open(struct net_group *group)
{
    TESS_TRY(tess__net_plan_open(group->comm.rank_count, &group->plan));
    for (int k = 0; k < NET_ROWS; k++) {
        struct net_row *row = &group->row[k];
        row->job = calloc((size_t)group->plan.lane_room, sizeof(*row->job));
        row->request = calloc((size_t)group->plan.move_room, sizeof(*row->request));
        if (row->job == NULL || row->request == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator of %d ranks",
                      (int)group->comm.rank_count);
    }
    return TESS_OK;
}

void tess__net_jobs_close(struct net_group *group)
{
    for (int k = 0; k < NET_ROWS; k++) {
        free(group->row[k].job);
        free(group->row[k].request);
        free(group->row[k].scratch);
    }
    tess__net_plan_close(&group->plan);
}

/* All rows of one round of the plan. */
static enum tess_status job_round(struct net_group *group, int32_t round)
{
    const struct tess_comm_call *call = &group->run;

    group->round = round;
    tess__net_plan(&group->shape, call, round, &group->plan);
    job_cut(group, call);
    group->row_next = group->row_done = 0;
    for (int32_t k = 0; k < group->plan.move_count; k++)
        group->flight[group->plan.move[k].peer] = (struct net_flight){0};
    return job_reserve(group, call);
}

enum tess_status tess__net_jobs_start(struct net_group *group)
{
    return job_round(group, 0);
}

/* ---- a row begins ---------------------------------------------------------------------------- */

static char *job_target(const struct tess_comm_call *call, const struct net_job *job)
{
    return job_at(call->target, job->lane->target_at, job, tess_dtype_bytes(call->dtype));
}

/* Chunk `k` of the scratch. */
static char *job_chunk(const struct net_group *group, const struct tess_comm_call *call,
                       const struct net_job *job, int32_t k)
{
    return job->scratch + (size_t)k * group->chunk * job_size(call, job_is_half(call));
}

/* Where the whole goes. */
static char *job_whole(const struct net_group *group, const struct tess_comm_call *call,
                       const struct net_job *job)
{
    return job->lane->target_at != SIZE_MAX ? job_target(call, job)
                                            : job_chunk(group, call, job, job->lane->adds);
}

/* Where move `k` puts what comes: the whole at its target; a leaf of 16 bits at the end of its
 * chunk, so that the f32 sum can be written from the beginning. */
static char *job_place(const struct net_group *group, const struct tess_comm_call *call,
                       const struct net_job *job, int32_t k)
{
    const struct net_move *move = &job->lane->move[k];
    size_t skip;

    if (!move->adds) {
        (void)job_part(job, move->at, move->count, &skip);
        return job_whole(group, call, job) + skip * tess_dtype_bytes(call->dtype);
    }
    const bool half_leaf = job_is_half(call) && move->leaf;
    return job_chunk(group, call, job, k) + (half_leaf ? job->count * sizeof(uint16_t) : 0);
}

static size_t job_comes(const struct tess_comm_call *call, const struct net_job *job, int32_t k)
{
    const struct net_move *move = &job->lane->move[k];
    size_t skip;

    return job_part(job, move->at, move->count, &skip) *
           job_size(call, job_is_half(call) && !move->leaf);
}

/* This rank's own part of a shared lane: `gives` it to a gather, or takes it of a sum. */
static void job_own(const struct tess_comm_call *call, const struct net_job *job, bool gives)
{
    const struct net_lane *lane = job->lane;
    const size_t size = tess_dtype_bytes(call->dtype);
    size_t skip;
    const size_t count = job_part(job, lane->own_at, lane->own_count, &skip);
    const size_t at = (job->begin + skip - lane->own_at) * size;

    if (count == 0)
        return;
    char *lies = (char *)job->value + skip * size;
    const char *from = gives ? (const char *)call->source + at : lies;
    char *to = gives ? lies : (char *)call->target + at;
    if (from != to)
        memmove(to, from, count * size);
}

static uint32_t job_tag(const struct net_group *group, const struct net_job *job,
                        const struct net_move *move)
{
    return tess__net_tag(group, (enum net_kind)move->kind, group->hash + (uint32_t)job->lane->name);
}

static enum tess_status job_receive(struct net_group *group, const struct tess_comm_call *call,
                                    struct net_job *job, int32_t k)
{
    const struct net_move *move = &job->lane->move[k];

    TESS_TRY(tess__net_begin(group, false, move->peer, job_tag(group, job, move),
                             job_place(group, call, job, k), job_comes(call, job, k),
                             &job->request[k]));
    group->flight[move->peer].receives++;
    group->receives++;
    return TESS_OK;
}

/* All receives of a job begin; of its sends those up are counted. */
static enum tess_status job_begin(struct net_group *group, const struct tess_comm_call *call,
                                  struct net_job *job)
{
    for (int32_t k = 0; k < job->lane->move_count && !job->over; k++) {
        const struct net_move *move = &job->lane->move[k];
        if (!move->sends)
            TESS_TRY(job_receive(group, call, job, k));
        else if (move->kind == NET_UP)
            job->row->ups++;
    }
    return TESS_OK;
}

static enum tess_status job_begin_row(struct net_group *group, const struct tess_comm_call *call)
{
    const struct net_plan *plan = &group->plan;
    const size_t begin = group->row_next * group->chunk, size = tess_dtype_bytes(call->dtype);
    struct net_row *row = &group->row[group->row_next++ % NET_ROWS];
    char *scratch = row->scratch;

    row->left = row->ups = 0;
    for (int32_t l = 0; l < plan->lane_count; l++) {
        const struct net_lane *lane = &plan->lane[l];
        const size_t left = lane->length > begin ? lane->length - begin : 0;
        struct net_job *job = &row->job[l];
        const ptrdiff_t first = lane->move - plan->move;
        *job = (struct net_job){.lane = lane,
                                .begin = begin,
                                .count = left < group->chunk ? left : group->chunk,
                                .scratch = scratch,
                                .over = left == 0,
                                .request = row->request + first,
                                .row = row};
        for (int32_t k = 0; k < lane->move_count; k++)
            job->request[k] = NET_NO_REQUEST;
        job->value = job_at(call->source, lane->source_at, job, size);
        if (scratch != NULL)
            scratch += job_chunks(lane) * group->chunk * job_size(call, job_is_half(call));
        if (lane->own_count > 0 && lane->target_at != SIZE_MAX && !job->over) {
            job->value = job_target(call, job);
            job_own(call, job, true);
        }
        if (lane->copied && !job->over && job_target(call, job) != job->value)
            memcpy(job_target(call, job), job->value, job->count * size);
        row->left += job->over ? 0 : 1;
    }
    for (int32_t l = 0; l < plan->lane_count; l++)
        TESS_TRY(job_begin(group, call, &row->job[l]));
    return TESS_OK;
}

/* ---- a job goes on --------------------------------------------------------------------------- */

/* What a barrier adds up is not the user's; shared lanes are counted in net_run.c. */
static bool job_counts(const struct net_group *group)
{
    return group->run.source != &group->nothing && group->plan.width == 1;
}

/* Add another part to what there is, for move `k`. */
static void job_add(const struct net_group *group, const struct tess_comm_call *call,
                    struct net_job *job, const struct net_part *other, int32_t k, bool whole)
{
    const bool half = job_is_half(call);
    const struct net_part own = {.value = job->value, .wide = job->wide};
    const struct net_part *left = other->left ? other : &own, *right = other->left ? &own : other;
    char *out = whole && job->lane->target_at != SIZE_MAX ? job_target(call, job)
                                                          : job_chunk(group, call, job, k);

    tess__net_sum(call->dtype, call->reduce, left->value, half && !left->wide, right->value,
                  half && !right->wide, out, whole, job->count);
    job->value = out;
    job->wide = half && !whole;
}

/* What move `k` has brought: the whole, or a part that is added. The owner's last sum is the whole.
 */
static void job_take(struct net_group *group, const struct tess_comm_call *call,
                     struct net_job *job, int32_t k)
{
    const struct net_lane *lane = job->lane;
    const struct net_move *move = &lane->move[k];
    const struct net_part comes = {.value = job_place(group, call, job, k),
                                   .wide = job_is_half(call) && !move->leaf,
                                   .left = move->left};
    const bool last = k + 1 == lane->move_count || lane->move[k + 1].kind == NET_DOWN;

    group->comm.stats.received_bytes += job_counts(group) ? job_comes(call, job, k) : 0;
    if (!move->adds) {
        job->value = job_whole(group, call, job);
        job->wide = false;
        return;
    }
    if (move->starts) {
        job->kept[job->kept_count++] = (struct net_part){job->value, job->wide, move->keeps_left};
        job->value = comes.value;
        job->wide = comes.wide;
        return;
    }
    job_add(group, call, job, &comes, k, last && move->joins == 0);
    for (int join = 1; join <= move->joins; join++)
        job_add(group, call, job, &job->kept[--job->kept_count], k, last && join == move->joins);
}

/* Is nothing of move `k` under way? */
static enum tess_status job_done(struct net_group *group, struct net_job *job, int32_t k,
                                 bool *done_out)
{
    const struct net_move *move = &job->lane->move[k];
    struct net_flight *flight = &group->flight[move->peer];

    *done_out = true;
    if (job->request[k] == NET_NO_REQUEST)
        return TESS_OK;
    TESS_TRY(tess__net_done(group, &job->request[k], done_out));
    const uint32_t one = *done_out ? 1 : 0;
    flight->sends -= move->sends ? one : 0;
    flight->receives -= move->sends ? 0 : one;
    group->receives -= move->sends ? 0 : one;
    return TESS_OK;
}

/* May move `k` send? Chunks of a lane go in the order of rows, since they have one tag. A rank
 * gives what goes up of a row after all that goes up of those before: links take what comes first,
 * and so the rows that are furthest behind do not wait for those that have just begun. */
static bool job_may_send(const struct net_group *group, const struct net_job *job, int32_t k)
{
    if (job->before == NULL)
        return true;
    const struct net_job *before = &job->before->job[job->lane - group->plan.lane];
    return (before->over || before->step > k) &&
           (job->lane->move[k].kind != NET_UP || job->before->ups == 0);
}

/* Make move `k`, if what it takes has come, or if it may send. */
static enum tess_status job_move(struct net_group *group, const struct tess_comm_call *call,
                                 struct net_job *job, int32_t k, bool *made_out)
{
    const struct net_move *move = &job->lane->move[k];

    if (!move->sends) {
        *made_out = true;
        /* The sum may be put where what is sent lies. */
        for (int32_t sent = 0; sent < k && job->lane->exchanged && *made_out; sent++)
            TESS_TRY(job_done(group, job, sent, made_out));
        if (!*made_out)
            return TESS_OK;
        TESS_TRY(job_done(group, job, k, made_out));
        if (*made_out)
            job_take(group, call, job, k);
        return TESS_OK;
    }
    *made_out = job_may_send(group, job, k);
    if (!*made_out)
        return TESS_OK;
    const size_t size = job_size(call, job->wide);
    size_t skip;
    const size_t bytes = job_part(job, move->at, move->count, &skip) * size;
    TESS_TRY(tess__net_begin(group, true, move->peer, job_tag(group, job, move),
                             job->value + skip * size, bytes, &job->request[k]));
    group->comm.stats.sent_bytes += job_counts(group) ? bytes : 0;
    job->row->ups -= move->kind == NET_UP ? 1 : 0;
    group->flight[move->peer].sends++;
    return TESS_OK;
}

/* `ask`: look for what has come and gone; else only sends begin. */
static enum tess_status job_run(struct net_group *group, const struct tess_comm_call *call,
                                struct net_job *job, bool ask, bool *moved_out)
{
    const struct net_lane *lane = job->lane;
    bool done = true;

    while (job->step < lane->move_count && (ask || lane->move[job->step].sends)) {
        TESS_TRY(job_move(group, call, job, job->step, &done));
        if (!done)
            return TESS_OK;
        job->step++;
        *moved_out = true;
    }
    if (!ask)
        return TESS_OK;
    for (int32_t k = 0; k < lane->move_count && done; k++)
        TESS_TRY(job_done(group, job, k, &done));
    if (done && lane->own_count > 0 && lane->target_at == SIZE_MAX)
        job_own(call, job, false);
    job->over = done;
    *moved_out = *moved_out || done;
    return TESS_OK;
}

/* May the next row begin? One is always under way, more where the transport has requests left for
 * the rank's other groups: a row that begins later on one rank than on others keeps none of them.
 */
static bool job_has_room(const struct net_group *group)
{
    const size_t rows = group->row_next - group->row_done;

    return group->row_next < group->row_count && rows < NET_ROWS &&
           (rows == 0 || group->rank->requests + group->plan.move_count < NET_REQUESTS);
}

static enum tess_status job_run_rows(struct net_group *group, const struct tess_comm_call *call,
                                     bool ask, bool *moved_out)
{
    while (job_has_room(group)) {
        TESS_TRY(job_begin_row(group, call));
        *moved_out = true;
    }
    for (size_t r = group->row_done; r < group->row_next; r++) {
        struct net_row *row = &group->row[r % NET_ROWS];
        for (int32_t l = 0; l < group->plan.lane_count && row->left > 0; l++) {
            struct net_job *job = &row->job[l];
            if (job->over)
                continue;
            job->before = r > group->row_done ? &group->row[(r - 1) % NET_ROWS] : NULL;
            TESS_TRY(job_run(group, call, job, ask, moved_out));
            row->left -= job->over ? 1 : 0;
        }
    }
    return TESS_OK;
}

enum tess_status tess__net_jobs_begin(struct net_group *group)
{
    bool moved = false;

    return job_run_rows(group, &group->run, false, &moved);
}

enum tess_status tess__net_jobs_run(struct net_group *group, bool *moved_out, bool *done_out)
{
    TESS_TRY(job_run_rows(group, &group->run, true, moved_out));
    while (group->row_done < group->row_next && group->row[group->row_done % NET_ROWS].left == 0) {
        group->row_done++;
        *moved_out = true;
    }
    *done_out = false;
    if (group->row_done < group->row_count)
        return TESS_OK;
    if (group->round + 1 < group->plan.round_count) {
        *moved_out = true;
        return job_round(group, group->round + 1);
    }
    *done_out = true;
    return TESS_OK;
}

bool tess__net_jobs_want(const struct net_group *group, int32_t peer)
{
    const struct net_flight *flight = &group->flight[peer];

    return group->receives > 0 ? flight->receives > 0 : flight->sends > 0;
}
