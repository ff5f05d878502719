/*
 * The values of parameters on the host: first ones, reading them, and writing them into a file.
 * Every rank makes the pieces that it owns; values do not depend on the layout.
 */
#include "core/state.h"

#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Elements that are made or read on the host at a time: 4 MiB. */
#define PARAMS_ROOM (INT64_C(1) << 20)
/* The least that ranks make for each other: a message costs more than to make less. */
#define PARAMS_SHARE (INT64_C(1) << 14)

/* ---- first values ---------------------------------------------------------------------------- */

/* Elements [from, from + count) of one parameter, by their numbers in the whole tensor. */
static void params_fill(const struct tess_init *init, struct tess_rng_key key, int64_t from,
                        int64_t count, float *w)
{
    if (init->kind == TESS_INIT_NORMAL)
        tess_rng_normals(key, (uint64_t)from, (uint64_t)count, w);
    if (init->kind == TESS_INIT_UNIFORM)
        tess_rng_uniforms(key, (uint64_t)from, (uint64_t)count, w);
    for (int64_t i = 0; i < count; i++) {
        if (init->kind == TESS_INIT_UNIFORM)
            w[i] = 2.0f * w[i] - 1.0f;
        w[i] = init->kind == TESS_INIT_ZERO  ? 0.0f
               : init->kind == TESS_INIT_ONE ? 1.0f
                                             : init->scale * w[i];
    }
}

/*
 * First values of elements [at, at + count) of a piece. `draw`: normals, by the kernel in its own
 * memory, since for a large model one core of the host, one number after the other, would be the
 * longest part of a run's start.
 * The mean is minus zero, which changes nothing that it is added to, not even a zero's sign: the
 * bits are those of params_fill. Else in memory of the host.
 */
static enum tess_status params_make(const struct tess_engine *engine,
                                    const struct tess_piece *piece, int64_t at, int64_t count,
                                    bool draw, float *w)
{
    const struct tess_rng_key key =
        tess_rng_key((uint64_t)engine->config->run.seed, TESS_RNG_INIT, (uint64_t)piece->param);
    const int64_t used = tess_declare_used(piece->of);
    struct tess_weights *from = engine->adapters != NULL && piece->flags & TESS_PARAM_ADAPTER
                                    ? engine->adapters
                                    : engine->weights;
    from = from != NULL && tess_weights_has(from, piece->param) ? from : NULL;
    for (int64_t end = at + count, run; at < end; at += run, w += run) {
        int64_t whole;
        run = tess_piece_run(piece, &engine->declare.axis, at, end - at, &whole, NULL);
        const int64_t left = used > whole ? used - whole : 0, drawn = left < run ? left : run;
        if (from != NULL) {
            TESS_TRY(tess_weights_read(from, piece->param, whole, run, w));
        } else if (draw) {
            tess_normal(engine->kernel, key.word, (uint64_t)whole, drawn, -0.0f,
                        piece->of->init.scale, w);
            tess_fill(engine->kernel, (run - drawn) * (int64_t)sizeof(*w), 0, w + drawn);
        } else {
            params_fill(&piece->of->init, key, whole, drawn, w);
            memset(w + drawn, 0, (size_t)(run - drawn) * sizeof(*w)); /* padding, zero for ever */
        }
    }
    return TESS_OK;
}

/* The same in memory of the device, through `room` [PARAMS_ROOM]. */
static enum tess_status params_place(const struct tess_engine *engine,
                                     const struct tess_piece *piece, int64_t at, int64_t count,
                                     float *room, float *w)
{
    struct tess_kernel *kernel = engine->kernel;
    if (engine->weights == NULL && piece->of->init.kind == TESS_INIT_NORMAL)
        return params_make(engine, piece, at, count, true, w);
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < PARAMS_ROOM ? count - done : PARAMS_ROOM;
        TESS_TRY(params_make(engine, piece, at + done, now, false, room));
        TESS_TRY(tess_write(kernel, (size_t)now * sizeof(*room), room, w + done));
    }
    return TESS_OK;
}

/* A piece without a master is made in the optimizer's chunk and rounded from there. */
static enum tess_status params_init_piece(struct tess_engine *engine,
                                          const struct tess_piece *piece, int64_t at, int64_t end,
                                          float *room)
{
    const int64_t most = piece->w != NULL ? end - at : engine->optim.chunk_count;
    for (; at < end; at += most) {
        int64_t count = end - at < most ? end - at : most;
        float *w = piece->w != NULL ? piece->w + at : engine->optim.chunk;
        TESS_TRY(params_place(engine, piece, at, count, room, w));
        if (piece->low != NULL)
            tess_cast(engine->kernel, count, TESS_F32, w, engine->plan.dtype,
                      (char *)piece->low + (size_t)at * engine->sizes.dtype_bytes);
    }
    return TESS_OK;
}

/*
 * Where ranks own the same and reach each other's memory, each makes 1 / rank_count of every piece
 * that is large enough, and gets the rest from the others: a copy takes a fraction of the time of
 * drawing or reading. Else NULL.
 */
static struct tess_comm *params_sharing(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    struct tess_comm *comm = engine->strategy.comm;
    const bool alike = plan->replicated && plan->optim_extent == TESS_EXTENT_FULL;
    return alike && comm->rank_count > 1 && !engine->kernel->ops->far_memory &&
                   tess_comm_reaches(comm, engine->arena.start, tess_memory_total(engine->memory))
               ? comm
               : NULL;
}

/* Elements of a piece that each rank makes; 0: all make all. Whole cache lines. */
static int64_t params_share(const struct tess_comm *comm, const struct tess_piece *piece)
{
    const int64_t share = comm != NULL ? piece->count / comm->rank_count : 0;
    return share < PARAMS_SHARE ? 0 : share / 32 * 32;
}

/* Of every rank's share, one copy on every rank. */
static enum tess_status params_gather(struct tess_engine *engine, struct tess_comm *comm,
                                      const struct tess_piece *piece)
{
    const size_t share = (size_t)params_share(comm, piece);
    if (share == 0)
        return TESS_OK;
    const size_t mine = (size_t)comm->rank * share, bytes = engine->sizes.dtype_bytes;
    if (piece->w != NULL)
        TESS_TRY(tess_comm_all_gather(comm, piece->w + mine, piece->w, share, TESS_F32, NULL));
    if (piece->low != NULL)
        TESS_TRY(tess_comm_all_gather(comm, (char *)piece->low + mine * bytes, piece->low, share,
                                      engine->plan.dtype, NULL));
    return TESS_OK;
}

enum tess_status tess__engine_refresh(struct tess_engine *engine)
{
    engine->strategy.refresh_frozen = true;
    const enum tess_status status = engine->strategy.ops->params_refresh(&engine->strategy);
    engine->strategy.refresh_frozen = false;
    return status;
}

enum tess_status tess__engine_init_params(struct tess_engine *engine)
{
    enum tess_status status = TESS_OK;
    float *room = malloc((size_t)PARAMS_ROOM * sizeof(*room));
    if (room == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the first values of parameters");
    struct tess_comm *comm = params_sharing(engine);
    const int32_t rank = comm != NULL ? comm->rank : 0, ranks = comm != NULL ? comm->rank_count : 1;
    for (int32_t i = 0; status == TESS_OK && i < engine->piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        const int64_t share = params_share(comm, piece);
        status = params_init_piece(engine, piece, rank * share, (rank + 1) * share, room);
        if (status == TESS_OK) /* what is left over, or all: every rank makes it */
            status = params_init_piece(engine, piece, ranks * share, piece->count, room);
    }
    free(room);
    TESS_TRY(status);
    for (int32_t i = 0; comm != NULL && i < engine->piece_count; i++)
        TESS_TRY(params_gather(engine, comm, &engine->piece[i]));
    TESS_TRY(engine->kernel->ops->failed(engine->kernel));
    return tess__engine_refresh(engine);
}

/* ---- reading on the host --------------------------------------------------------------------- */

enum tess_status tess__values_open(const struct tess_engine *engine, int64_t ahead,
                                   struct tess_values *values_out)
{
    struct tess_kernel *kernel = engine->kernel;
    *values_out =
        (struct tess_values){.kernel = kernel, .dtype = engine->plan.dtype, .ahead_max = ahead};
    if (!kernel->ops->far_memory) {
        kernel->ops->access(kernel, true);
        return TESS_OK;
    }
    values_out->ahead = malloc((size_t)ahead * sizeof(float));
    if (values_out->ahead == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read parameters into");
    return TESS_OK;
}

void tess__values_close(struct tess_values *values)
{
    if (values->ahead == NULL)
        values->kernel->ops->access(values->kernel, false);
    free(values->ahead);
}

/* Where the host finds elements [from, from + count) of a piece whose elements take `bytes` each
 * and begin at `first`. */
static enum tess_status values_reach(struct tess_values *values, const struct tess_piece *piece,
                                     const void *first, size_t bytes, int64_t from, int64_t count,
                                     const void **found_out)
{
    if (values->ahead == NULL) {
        *found_out = (const char *)first + (size_t)from * bytes;
        return TESS_OK;
    }
    if (values->ahead_of != first || from < values->ahead_from ||
        from + count > values->ahead_end) {
        const int64_t left = piece->count - from;
        const int64_t now = left < values->ahead_max ? left : values->ahead_max;
        values->ahead_of = NULL;
        TESS_TRY(tess_read(values->kernel, (size_t)now * bytes,
                           (const char *)first + (size_t)from * bytes, values->ahead));
        values->ahead_of = first;
        values->ahead_from = from;
        values->ahead_end = from + now;
    }
    *found_out = (const char *)values->ahead + (size_t)(from - values->ahead_from) * bytes;
    return TESS_OK;
}

enum tess_status tess__values_get(struct tess_values *values, const struct tess_piece *piece,
                                  int64_t from, int64_t count, const float **x_out)
{
    const void *found;
    if (piece->w != NULL) {
        TESS_TRY(values_reach(values, piece, piece->w, sizeof(*piece->w), from, count, &found));
        *x_out = found;
        return TESS_OK;
    }
    TESS_TRY(values_reach(values, piece, piece->low, sizeof(uint16_t), from, count, &found));
    const uint16_t *low = found;
    const bool f16 = values->dtype == TESS_F16;
    for (int64_t i = 0; i < count; i++)
        values->room[i] = f16 ? tess__f32_of_f16(low[i]) : tess__f32_of_bf16(low[i]);
    *x_out = values->room;
    return TESS_OK;
}

/* ---- files -----------------------------------------------------------------------------------
 * The ranks hand their parts of a chunk to rank 0, which writes it: no rank holds more of the model
 * than it trains with, and a chunk, or, where device memory is far, what is read ahead of it.
 */

/* Elements that are gathered and written at a time: 1 MiB. */
#define SAVE_CHUNK (INT64_C(1) << 18)
/* Elements of far memory that are read at a time: 64 MiB, which hold most tensors whole. One that
 * is turned round is looked through for each chunk, and is not to be read each time. */
#define SAVE_AHEAD (INT64_C(1) << 24)

/* Where the values of parameters go: into a file on rank 0, or to every rank. */
struct save {
    struct tess_engine *engine;
    struct tess_values values;
    struct tess_file_writer writer;
    bool to_all;
    int error;     /* errno of the file, 0: none so far */
    float *target; /* to_all: the whole parameter as files have it; NULL where it is not needed */

    /* Elements [from, from + count) of a tensor as the file has it: [rows, columns], of a tensor
     * whose file is transposed [columns, rows] here. */
    const struct tess_declare_param *param;
    int64_t from, count;
    float *chunk; /* [SAVE_CHUNK] */
};

/* Put `run` elements, whose first is element `whole` of the tensor, where the file has them. */
static void save_put(const struct save *save, int64_t whole, int64_t run, const float *x)
{
    const struct tess_shape *shape = &save->param->whole;
    const int64_t from = save->from, count = save->count;
    if (!tess_declare_turned(save->param)) {
        const int64_t begin = whole > from ? whole : from;
        const int64_t end = whole + run < from + count ? whole + run : from + count;
        if (begin < end)
            memcpy(save->chunk + (begin - from), x + (begin - whole),
                   (size_t)(end - begin) * sizeof(*x));
        return;
    }
    const int64_t out = shape->dim[0], in = shape->dim[1];
    const int64_t first = from / out, last = (from + count - 1) / out;
    for (int64_t i = 0; i < run;) {
        const int64_t row = (whole + i) / in, column = (whole + i) % in;
        const int64_t left = run - i < in - column ? run - i : in - column;
        for (int64_t c = column > first ? column : first; c < column + left && c <= last; c++) {
            const int64_t at = c * out + row - from;
            if (at >= 0 && at < count)
                save->chunk[at] = x[i + c - column];
        }
        i += left;
    }
}

/* This rank's part of the chunk, zeros elsewhere. */
static enum tess_status save_fill(struct save *save)
{
    const struct tess_engine *engine = save->engine;
    const bool turned = tess_declare_turned(save->param);
    const int64_t end = save->from + save->count;
    const float *x;
    memset(save->chunk, 0, (size_t)save->count * sizeof(*save->chunk));
    if (!tess__engine_counts(engine)) /* another rank holds the same and sends it */
        return TESS_OK;
    for (int32_t i = 0; i < engine->piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        if (piece->duplicate || piece->param != save->param->index)
            continue;
        for (int64_t at = 0, run, whole; at < piece->count; at += run) {
            run = tess_piece_run(piece, &engine->declare.axis, at, TESS_VALUES_ROOM, &whole, NULL);
            if (!turned && (whole >= end || whole + run <= save->from))
                continue;
            TESS_TRY(tess__values_get(&save->values, piece, at, run, &x));
            save_put(save, whole, run, x);
        }
    }
    return TESS_OK;
}

/*
 * Every element comes from one rank and is 0 on the others: a sum as integers keeps its bits, minus
 * zero too. Rank 0 continues after a failed write, so that the others do not wait.
 */
static enum tess_status save_param(struct save *save, int32_t p)
{
    struct tess_comm *comm = save->engine->comm;
    const bool writes = save->engine->plan.mesh.rank == 0;
    save->param = &save->engine->model.param[p];
    const struct tess_shape shape = tess_declare_file_shape(save->param);
    const int64_t whole = tess_shape_count(&shape);
    for (save->from = 0; save->from < whole; save->from += SAVE_CHUNK) {
        save->count = whole - save->from < SAVE_CHUNK ? whole - save->from : SAVE_CHUNK;
        const size_t count = (size_t)save->count, bytes = count * sizeof(*save->chunk);
        TESS_TRY(save_fill(save));
        if (save->to_all)
            TESS_TRY(tess_comm_all_reduce(comm, save->chunk, save->chunk, count, TESS_I32,
                                          TESS_REDUCE_SUM, NULL));
        else
            TESS_TRY(tess_comm_reduce(comm, save->chunk, writes ? save->chunk : NULL, count,
                                      TESS_I32, TESS_REDUCE_SUM, 0, NULL));
        if (save->target != NULL)
            memcpy(save->target + save->from, save->chunk, bytes);
        if (!save->to_all && writes && save->error == 0)
            save->error = tess_file_append(save->writer.fd, save->chunk, bytes);
    }
    return TESS_OK;
}

static enum tess_status save_header(struct save *save, const char *path)
{
    size_t bytes;
    char *header = tess_weights_header(&save->engine->model, &bytes);
    if (header == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    enum tess_status status = tess_file_create(path, &save->writer);
    if (status == TESS_OK)
        save->error = tess_file_append(save->writer.fd, header, bytes);
    free(header);
    return status;
}

static enum tess_status save_open(struct save *save)
{
    save->writer.fd = -1;
    TESS_TRY(tess__shared_settle(save->engine, false));
    save->chunk = malloc(SAVE_CHUNK * sizeof(*save->chunk));
    if (save->chunk == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to gather the weights");
    enum tess_status status = tess__values_open(save->engine, SAVE_AHEAD, &save->values);
    if (status != TESS_OK)
        free(save->chunk);
    return status;
}

static void save_close(struct save *save)
{
    tess__values_close(&save->values);
    free(save->chunk);
}

enum tess_status tess_engine_save(struct tess_engine *engine, const char *path)
{
    struct save save = {.engine = engine};
    enum tess_status status = TESS_OK, sent = TESS_OK;
    TESS_TRY(save_open(&save));
    if (engine->plan.mesh.rank == 0)
        status = save_header(&save, path);
    if (save.writer.fd < 0)
        save.error = -1; /* no file; take part in the collectives all the same */
    for (int32_t p = 0; sent == TESS_OK && p < engine->model.param_count; p++)
        if (tess_declare_source(&engine->model.param[p]) < 0)
            sent = save_param(&save, p);
    save_close(&save);
    if (save.writer.fd >= 0)
        TESS_KEEP(status, tess_file_commit(&save.writer, sent == TESS_OK ? save.error : ECANCELED));
    return sent != TESS_OK ? sent : status;
}

enum tess_status tess_engine_read(struct tess_engine *engine, int32_t index, float *target)
{
    struct save save = {.engine = engine, .to_all = true, .target = target};
    const int32_t source = tess_declare_source(&engine->model.param[index]);
    TESS_TRY(save_open(&save));
    const enum tess_status status = save_param(&save, source >= 0 ? source : index);
    save_close(&save);
    return status;
}
