/*
 * Writing the weights of a training engine into a file. The ranks hand their parts of a chunk to
 * rank 0, which writes it: no rank holds more of the model than it trains with, and a chunk,
 * or, where device memory is far, what is read ahead of it.
 */
#include "core/state.h"

#include "base/file.h"
#include "state/weights.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Elements that are gathered and written at a time: 1 MiB. */
#define SAVE_CHUNK (INT64_C(1) << 18)
/* Elements that are widened at a time. */
#define SAVE_ROOM 4096
/* Elements of far memory that are read at a time: 64 MiB, which hold most tensors whole. One that
 * is turned round is looked through for each chunk, and is not to be read each time. */
#define SAVE_AHEAD (INT64_C(1) << 24)

/* Elements [from, from + count) of a tensor as the file has it: [rows, columns], of a tensor whose
 * file is transposed [columns, rows] here. */
struct save_window {
    const struct tess_declare_param *param;
    int64_t from, count;
    float *chunk;
};

/* Put `run` elements, whose first is element `whole` of the tensor, where the file has them. */
static void save_put(const struct save_window *window, int64_t whole, int64_t run, const float *x)
{
    const struct tess_shape *shape = &window->param->whole;
    if (!(window->param->flags & TESS_PARAM_TRANSPOSED) || shape->rank != 2) {
        const int64_t begin = whole > window->from ? whole : window->from;
        const int64_t end =
            whole + run < window->from + window->count ? whole + run : window->from + window->count;
        if (begin < end)
            memcpy(window->chunk + (begin - window->from), x + (begin - whole),
                   (size_t)(end - begin) * sizeof(*x));
        return;
    }
    const int64_t out = shape->dim[0], in = shape->dim[1];
    const int64_t first = window->from / out, last = (window->from + window->count - 1) / out;
    for (int64_t i = 0; i < run;) {
        const int64_t row = (whole + i) / in, column = (whole + i) % in;
        const int64_t left = run - i < in - column ? run - i : in - column;
        for (int64_t c = column > first ? column : first; c < column + left && c <= last; c++) {
            const int64_t at = c * out + row - window->from;
            if (at >= 0 && at < window->count)
                window->chunk[at] = x[i + c - column];
        }
        i += left;
    }
}

/* Can a run have elements in the window? */
static bool save_touches(const struct save_window *window, int64_t whole, int64_t run)
{
    return window->param->flags & TESS_PARAM_TRANSPOSED ||
           (whole < window->from + window->count && whole + run > window->from);
}

/* This rank's part of a window, zeros elsewhere. */
static enum tess_status save_fill(const struct tess_engine *engine, struct tess_values *values,
                                  const struct save_window *window)
{
    float room[SAVE_ROOM];
    const float *x;
    memset(window->chunk, 0, (size_t)window->count * sizeof(*window->chunk));
    if (!tess__engine_counts(engine)) /* another rank holds the same and sends it */
        return TESS_OK;
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        if (piece->duplicate || piece->param != window->param->index)
            continue;
        for (int64_t at = 0, run, whole; at < piece->count; at += run) {
            run = tess_piece_run(piece, &engine->declare.axis, at, &whole, NULL);
            run = run < SAVE_ROOM ? run : SAVE_ROOM;
            if (!save_touches(window, whole, run))
                continue;
            TESS_TRY(tess__values_get(values, piece, at, run, room, &x));
            save_put(window, whole, run, x);
        }
    }
    return TESS_OK;
}

/*
 * Every element comes from one rank and is 0 on the others: a sum as integers keeps its bits, minus
 * zero too. Rank 0 continues after a failed write, so that the others do not wait.
 */
static enum tess_status save_values(const struct tess_engine *engine, struct tess_values *values,
                                    int fd, float *chunk, int *error)
{
    const struct tess_declare *model = &engine->model;
    const bool writes = engine->plan.mesh.rank == 0;
    for (int32_t p = 0; p < model->param_count; p++) {
        const struct tess_shape shape = tess_declare_file_shape(&model->param[p]);
        const int64_t whole =
            tess_declare_source(&model->param[p]) >= 0 ? 0 : tess_shape_count(&shape);
        for (int64_t from = 0; from < whole; from += SAVE_CHUNK) {
            const int64_t count = whole - from < SAVE_CHUNK ? whole - from : SAVE_CHUNK;
            TESS_TRY(save_fill(
                engine, values,
                &(struct save_window){
                    .param = &model->param[p], .from = from, .count = count, .chunk = chunk}));
            TESS_TRY(tess_comm_reduce(engine->comm, chunk, writes ? chunk : NULL, (size_t)count,
                                      TESS_I32, TESS_REDUCE_SUM, 0, NULL));
            if (writes && *error == 0)
                *error = tess_file_append(fd, chunk, (size_t)count * sizeof(*chunk));
        }
    }
    return TESS_OK;
}

static enum tess_status save_header(const struct tess_engine *engine, const char *path,
                                    struct tess_file_writer *writer, int *error)
{
    size_t bytes;
    char *header = tess_weights_header(&engine->model, &bytes);
    if (header == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    enum tess_status status = tess_file_create(path, writer);
    if (status == TESS_OK)
        *error = tess_file_append(writer->fd, header, bytes);
    free(header);
    return status;
}

static enum tess_status save_all(struct tess_engine *engine, int fd, float *chunk, int *error)
{
    struct tess_values values;
    TESS_TRY(tess__values_open(engine->kernel, engine->plan.dtype, SAVE_AHEAD, &values));
    const enum tess_status status = save_values(engine, &values, fd, chunk, error);
    tess__values_close(&values);
    return status;
}

enum tess_status tess_engine_save(struct tess_engine *engine, const char *path)
{
    struct tess_file_writer writer = {.fd = -1};
    enum tess_status status = TESS_OK, sent;
    int error = 0;
    float *chunk = malloc(SAVE_CHUNK * sizeof(*chunk));
    if (chunk == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the weights");
    if (engine->plan.mesh.rank == 0)
        status = save_header(engine, path, &writer, &error);
    if (writer.fd < 0)
        error = error != 0 ? error : -1; /* no file; take part in the collectives all the same */
    sent = save_all(engine, writer.fd, chunk, &error);
    if (writer.fd >= 0) {
        enum tess_status written = tess_file_commit(&writer, sent == TESS_OK ? error : ECANCELED);
        status = status == TESS_OK ? written : status;
    }
    free(chunk);
    return sent != TESS_OK ? sent : status;
}

static enum tess_status save_read(const struct tess_engine *engine, struct tess_values *values,
                                  int32_t index, float *chunk, float *target)
{
    const struct tess_declare_param *param = &engine->model.param[index];
    const struct tess_shape shape = tess_declare_file_shape(param);
    const int64_t whole = tess_shape_count(&shape);
    for (int64_t from = 0; from < whole; from += SAVE_CHUNK) {
        const int64_t count = whole - from < SAVE_CHUNK ? whole - from : SAVE_CHUNK;
        TESS_TRY(save_fill(
            engine, values,
            &(struct save_window){.param = param, .from = from, .count = count, .chunk = chunk}));
        TESS_TRY(tess_comm_all_reduce(engine->comm, chunk, chunk, (size_t)count, TESS_I32,
                                      TESS_REDUCE_SUM, NULL));
        if (target != NULL)
            memcpy(target + from, chunk, (size_t)count * sizeof *chunk);
    }
    return TESS_OK;
}

enum tess_status tess_engine_read(struct tess_engine *engine, int32_t index, float *target)
{
    struct tess_values values = {.kernel = NULL};
    const int32_t source = tess_declare_source(&engine->model.param[index]);
    float *chunk = malloc(SAVE_CHUNK * sizeof *chunk);
    if (chunk == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read a parameter");
    enum tess_status status =
        tess__values_open(engine->kernel, engine->plan.dtype, SAVE_AHEAD, &values);
    if (status == TESS_OK)
        status = save_read(engine, &values, source >= 0 ? source : index, chunk, target);
    tess__values_close(&values);
    free(chunk);
    return status;
}
