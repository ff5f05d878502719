/*
 * Differences between versions of the parameters: hashes, norms and sketches of each, and whether
 * replicas still agree. Every rank works on what it holds; the results do not depend on who holds
 * what. Host code throughout, for a step now and then; writing digests down is not done here.
 */
#include "core/state.h"

#include "base/hash.h"
#include "base/rng.h"
#include "base/team.h"
#include "tessera/check.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements at a time: where the sums of norms and sketches are cut. */
#define DIGEST_CHUNK 1024
/* From how many elements on other threads are started: they take twenty times as long as that. */
#define DIGEST_SHARED (INT64_C(1) << 20)
/* What a thread hashes at a time: a millisecond or less. */
#define DIGEST_PART (INT64_C(256) * DIGEST_CHUNK)
/* Elements of far memory that are read at a time: 4 MiB, enough for the full speed of a copy. */
#define DIGEST_AHEAD (INT64_C(1) << 20)

/*
 * What a rank sends to the others about its parameters: first which elements it owns, by shard,
 * stage and place on the tensor axis (-1: none), then three hashes a parameter of the model: of the
 * elements it owns, which add up over the ranks that own others; of those that another rank of the
 * tensor or stage axis owns too and counts; and of the whole copy that it computes with (0 where it
 * keeps none, or the owned elements are all).
 */
enum digest_hash { DIGEST_OWNED, DIGEST_DUPLICATE, DIGEST_COPY, DIGEST_HASHES };

struct digest_table {
    uint64_t *row; /* [rank_count, width] */
    int32_t width, rank_count;
};

static uint64_t *digest_row(const struct digest_table *table, int32_t rank)
{
    return table->row + (size_t)rank * (size_t)table->width;
}

static uint64_t *digest_of(const struct digest_table *table, int32_t rank, int32_t p,
                           enum digest_hash hash)
{
    return &digest_row(table, rank)[1 + DIGEST_HASHES * p + (int32_t)hash];
}

/* Where the values of parameters are hashed, and by whom. */
struct digest_reader {
    const struct tess_tensor_axis *axis;
    struct tess_values *values;
    struct tess_team *team; /* NULL: the caller alone */
    int hands;
};

/* A piece that is hashed in parts. */
struct digest_piece {
    const struct digest_reader *reader;
    const struct tess_piece *piece;
    _Atomic uint64_t hash; /* a sum: in whatever order */
};

/* Of elements [at, end), by their numbers in the model. */
static enum tess_status digest_hash_run(const struct digest_reader *reader,
                                        struct tess_values *values, const struct tess_piece *piece,
                                        int64_t at, int64_t end, uint64_t *hash)
{
    const float *x;
    for (int64_t now, model; at < end; at += now) {
        const int64_t most = end - at < DIGEST_CHUNK ? end - at : DIGEST_CHUNK;
        now = tess_piece_run(piece, reader->axis, at, most, NULL, &model);
        TESS_TRY(tess__values_get(values, piece, at, now, &x));
        *hash += tess_hash_f32(x, (size_t)now, (uint64_t)model);
    }
    return TESS_OK;
}

static void digest_hash_part(void *context, int64_t part)
{
    struct digest_piece *of = context;
    const int64_t at = part * DIGEST_PART, count = of->piece->count;
    const int64_t end = count - at < DIGEST_PART ? count : at + DIGEST_PART;
    struct tess_values values = {.kernel = of->reader->values->kernel,
                                 .dtype = of->reader->values->dtype};
    uint64_t hash = 0;
    /* The host reaches these values, so that nothing fails. */
    (void)digest_hash_run(of->reader, &values, of->piece, at, end, &hash);
    atomic_fetch_add(&of->hash, hash);
}

/* Add the hash of a piece's elements. */
static enum tess_status digest_hash(const struct digest_reader *reader,
                                    const struct tess_piece *piece, uint64_t *hash)
{
    if (reader->team == NULL)
        return digest_hash_run(reader, reader->values, piece, 0, piece->count, hash);
    struct digest_piece of = {.reader = reader, .piece = piece};
    tess_team_run(reader->team, reader->hands, (piece->count + DIGEST_PART - 1) / DIGEST_PART,
                  digest_hash_part, &of);
    *hash += of.hash;
    return TESS_OK;
}

/* Does this rank compute with a whole copy beside, or beyond, what it owns? */
static bool digest_has_copy(const struct tess_plan *plan)
{
    return plan->replicated && plan->param_extent == TESS_EXTENT_FULL &&
           (plan->optim_extent != TESS_EXTENT_FULL || plan->dtype != TESS_F32);
}

static enum tess_status digest_own_row(const struct tess_engine *engine,
                                       const struct digest_reader *reader,
                                       struct digest_table *table)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_mesh *mesh = &plan->mesh;
    const int32_t shards = plan->shard_count > 1 ? plan->shard_count : 1;
    const int32_t place =
        mesh->at[TESS_AXIS_STAGE] * mesh->count[TESS_AXIS_TENSOR] + mesh->at[TESS_AXIS_TENSOR];
    const bool owner = plan->optim_extent != TESS_EXTENT_NONE;
    digest_row(table, mesh->rank)[0] =
        owner ? (uint64_t)place * (uint64_t)shards + (uint64_t)plan->shard_index : UINT64_MAX;
    for (int32_t i = 0; i < engine->piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        TESS_TRY(digest_hash(reader, piece,
                             digest_of(table, mesh->rank, piece->param,
                                       piece->duplicate ? DIGEST_DUPLICATE : DIGEST_OWNED)));
    }
    for (int32_t p = 0; digest_has_copy(plan) && p < plan->param_count; p++) {
        const struct tess_segment *segment = &plan->segment[plan->param[p].segment];
        const int64_t at = plan->param[p].begin - segment->begin;
        void *whole = (char *)segment->param + (size_t)at * engine->sizes.dtype_bytes;
        const struct tess_piece copy = {.of = &engine->declare.param[p],
                                        .count = plan->param[p].count,
                                        .w = plan->dtype == TESS_F32 ? whole : NULL,
                                        .low = whole};
        TESS_TRY(digest_hash(reader, &copy,
                             digest_of(table, mesh->rank, plan->param[p].index, DIGEST_COPY)));
    }
    return TESS_OK;
}

/* ---- replicas -------------------------------------------------------------------------------- */

/* The lowest rank that owns the same elements. */
static int32_t digest_first_owner(const struct digest_table *table, int32_t rank)
{
    int32_t first = 0;
    while (digest_row(table, first)[0] != digest_row(table, rank)[0])
        first++;
    return first;
}

/* The first rank that holds the same part of the model. */
static int32_t digest_first_copy(const struct tess_mesh *mesh, int32_t rank)
{
    struct tess_mesh here = tess_mesh_at(mesh, rank);
    here.at[TESS_AXIS_DATA] = 0;
    return tess_mesh_rank(&here, here.at);
}

/* The rank that owns and counts what `rank` has as a duplicate: beside it on the tensor axis, or
 * at its place of another stage. -1: there is none. */
static int32_t digest_counting(const struct tess_mesh *mesh, const struct digest_table *table,
                               int32_t rank, int32_t p)
{
    const struct tess_mesh here = tess_mesh_at(mesh, rank);
    for (int32_t r = 0; r < table->rank_count; r++) {
        const struct tess_mesh there = tess_mesh_at(mesh, r);
        const bool beside = there.at[TESS_AXIS_STAGE] == here.at[TESS_AXIS_STAGE] ||
                            there.at[TESS_AXIS_TENSOR] == here.at[TESS_AXIS_TENSOR];
        if (r != rank && there.at[TESS_AXIS_DATA] == here.at[TESS_AXIS_DATA] && beside &&
            *digest_of(table, r, p, DIGEST_OWNED) != 0)
            return r;
    }
    return -1;
}

/* The rank that `rank` should agree with about parameter p and does not, or -1. */
static int32_t digest_differs_from(const struct tess_mesh *mesh, const struct digest_table *table,
                                   int32_t rank, int32_t p)
{
    const int32_t first = digest_first_owner(table, rank);
    const int32_t copy = digest_first_copy(mesh, rank);
    const uint64_t duplicate = *digest_of(table, rank, p, DIGEST_DUPLICATE);
    if (*digest_of(table, rank, p, DIGEST_OWNED) != *digest_of(table, first, p, DIGEST_OWNED))
        return first;
    if (*digest_of(table, rank, p, DIGEST_COPY) != *digest_of(table, copy, p, DIGEST_COPY))
        return copy;
    const int32_t counting = duplicate != 0 ? digest_counting(mesh, table, rank, p) : -1;
    return counting >= 0 && *digest_of(table, counting, p, DIGEST_OWNED) != duplicate ? counting
                                                                                      : -1;
}

/* Every rank finds the same: the first parameter in which ranks differ, and from whose. */
static enum tess_status digest_compare(const struct tess_engine *engine,
                                       const struct digest_table *table)
{
    const struct tess_mesh *mesh = &engine->plan.mesh;
    struct tess_rank_list ranks = {0};
    char more[64] = "";
    int32_t first = -1, other = -1, count = 0;
    for (int32_t p = 0; p < engine->model.param_count; p++) {
        int32_t found = -1;
        for (int32_t r = 0; r < mesh->rank_count && found < 0; r++)
            found = digest_differs_from(mesh, table, r, p);
        if (found < 0)
            continue;
        first = first < 0 ? p : first;
        other = first == p ? found : other;
        count++;
    }
    if (first < 0)
        return TESS_OK;
    for (int32_t r = 0; r < mesh->rank_count; r++)
        if (digest_differs_from(mesh, table, r, first) == other)
            tess__rank_list_add(&ranks, r);
    if (count > 1)
        snprintf(more, sizeof(more), "; so do %d more parameter%s", count - 1,
                 count > 2 ? "s" : "");
    TESS_FAIL(TESS_ERR_INTERNAL,
              "after step %lld parameter '%s' of rank%s %s differs from rank %d's%s",
              (long long)engine->progress.step, engine->model.param[first].name,
              ranks.count > 1 ? "s" : "", ranks.text, other, more);
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* As many as the rank has threads, where the host reaches the values and there are enough. */
static enum tess_status digest_gather_hands(const struct tess_engine *engine,
                                            struct digest_reader *reader)
{
    const struct tess_kernel *kernel = engine->kernel;
    int64_t count = 0;
    for (int32_t i = 0; i < engine->piece_count; i++)
        count += engine->piece[i].count;
    reader->hands = kernel->threads;
    if (kernel->ops->far_memory || reader->hands == 1 || count < DIGEST_SHARED)
        return TESS_OK;
    return tess_team_open(reader->hands, NULL, NULL, &reader->team);
}

/* Exchange what every rank holds and compare it; table->row is the caller's to free, always. */
static enum tess_status digest_exchange(struct tess_engine *engine, struct digest_table *table)
{
    const struct tess_mesh *mesh = &engine->plan.mesh;
    table->width = 1 + DIGEST_HASHES * engine->model.param_count;
    table->rank_count = mesh->rank_count;
    table->row = calloc((size_t)table->width * (size_t)table->rank_count, sizeof(*table->row));
    if (table->row == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the hashes of %d parameters",
                  engine->model.param_count);
    struct tess_values values;
    TESS_TRY(tess__shared_settle(engine, false));
    TESS_TRY(tess__values_open(engine, DIGEST_AHEAD, &values));
    struct digest_reader reader = {.axis = &engine->declare.axis, .values = &values};
    enum tess_status status = digest_gather_hands(engine, &reader);
    if (status == TESS_OK)
        status = digest_own_row(engine, &reader, table);
    tess_team_close(reader.team);
    tess__values_close(&values);
    TESS_TRY(status);
    TESS_TRY(tess_comm_all_gather(engine->comm, digest_row(table, mesh->rank), table->row,
                                  (size_t)table->width, TESS_I64, NULL));
    return digest_compare(engine, table);
}

/* Ranks that together own each element once: the first of each shard. */
static bool digest_counts(const struct digest_table *table, int32_t rank)
{
    return digest_row(table, rank)[0] != UINT64_MAX && digest_first_owner(table, rank) == rank;
}

static uint64_t digest_whole(const struct digest_table *table, int32_t p)
{
    uint64_t hash = 0;
    for (int32_t r = 0; r < table->rank_count; r++)
        hash += digest_counts(table, r) ? *digest_of(table, r, p, DIGEST_OWNED) : 0;
    return hash;
}

enum tess_status tess_engine_hash(struct tess_engine *engine, uint64_t *hash_out)
{
    struct digest_table table = {0};
    const enum tess_status status = digest_exchange(engine, &table);
    uint64_t hash = 0;
    for (int32_t p = 0; status == TESS_OK && p < engine->model.param_count; p++)
        hash += digest_whole(&table, p);
    free(table.row);
    *hash_out = hash;
    return status;
}

/* ---- norms and sketches ---------------------------------------------------------------------- */

enum { DIGEST_SUMS = 1 + TESS_DIGEST_SKETCH }; /* the squares, then the sketches */

/*
 * Add x times the signs of one sketch: element i of the parameter has the sign of bit i mod 32 of
 * word i / 32 of the sketch's stream, set for minus. x are the elements from `at` on. The signs are
 * the same in every run, or sketches could not be compared.
 */
static double digest_sketch(const float *x, int64_t at, int64_t count, int32_t p, int32_t sketch)
{
    const struct tess_rng_key key =
        tess_rng_key(0, TESS_RNG_SKETCH, (uint64_t)p * TESS_DIGEST_SKETCH + (uint64_t)sketch);
    uint32_t word[4] = {0};
    int64_t block = -1;
    double sum = 0;
    for (int64_t i = 0, now; i < count; i += now) {
        const int64_t number = (at + i) / 32, bit = (at + i) % 32;
        now = count - i < 32 - bit ? count - i : 32 - bit;
        if (number / 4 != block)
            tess_rng_block(key, (uint64_t)(block = number / 4), 0, word);
        const uint32_t signs = word[number % 4] >> bit;
        for (int64_t b = 0; b < now; b++)
            sum += signs >> b & 1 ? -(double)x[i + b] : (double)x[i + b];
    }
    return sum;
}

static enum tess_status digest_add_piece(const struct tess_tensor_axis *axis,
                                         struct tess_values *values, const struct tess_piece *piece,
                                         double sum[DIGEST_SUMS])
{
    const float *x;
    for (int64_t at = 0, now, whole; at < piece->count; at += now) {
        now = tess_piece_run(piece, axis, at, DIGEST_CHUNK, &whole, NULL);
        TESS_TRY(tess__values_get(values, piece, at, now, &x));
        for (int64_t i = 0; i < now; i++)
            sum[0] += (double)x[i] * (double)x[i];
        for (int32_t s = 0; s < TESS_DIGEST_SKETCH; s++)
            sum[1 + s] += digest_sketch(x, whole, now, piece->param, s);
    }
    return TESS_OK;
}

/* Of what this rank counts. */
static enum tess_status digest_add(struct tess_engine *engine, double (*sum)[DIGEST_SUMS])
{
    struct tess_values values;
    enum tess_status status = TESS_OK;
    TESS_TRY(tess__values_open(engine, DIGEST_AHEAD, &values));
    for (int32_t i = 0; status == TESS_OK && i < engine->piece_count; i++)
        if (!engine->piece[i].duplicate)
            status = digest_add_piece(&engine->declare.axis, &values, &engine->piece[i],
                                      sum[engine->piece[i].param]);
    tess__values_close(&values);
    return status;
}

static enum tess_status digest_fill(struct tess_engine *engine, const struct digest_table *table,
                                    double (*sum)[DIGEST_SUMS], struct tess_digest *digest_out)
{
    const struct tess_plan *plan = &engine->plan;
    const int32_t params = engine->model.param_count;
    if (digest_counts(table, plan->mesh.rank))
        TESS_TRY(digest_add(engine, sum));
    TESS_TRY(tess_comm_all_reduce(engine->comm, sum, sum, (size_t)params * DIGEST_SUMS, TESS_F64,
                                  TESS_REDUCE_SUM, NULL));
    for (int32_t p = 0; p < params; p++) {
        digest_out[p].hash = digest_whole(table, p);
        digest_out[p].norm = sqrt(sum[p][0]);
        memcpy(digest_out[p].sketch, &sum[p][1], sizeof(digest_out[p].sketch));
    }
    return TESS_OK;
}

enum tess_status tess_engine_digest(struct tess_engine *engine, struct tess_digest *digest_out)
{
    struct digest_table table = {0};
    double(*sum)[DIGEST_SUMS] = calloc((size_t)engine->model.param_count + 1, sizeof(*sum));
    enum tess_status status = digest_exchange(engine, &table);
    if (status == TESS_OK && sum == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the sketches of %d parameters",
                           engine->model.param_count);
    if (status == TESS_OK)
        status = digest_fill(engine, &table, sum, digest_out);
    free(table.row);
    free(sum);
    return status;
}
