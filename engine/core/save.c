/*
 * Writing the weights of a training engine into a file. The ranks hand their parts of a chunk to
 * rank 0, which writes it: nobody ever holds more of the model than it trains with, and a chunk.
 */
#include "core/state.h"

#include "base/file.h"
#include "core/weights.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Elements that are gathered and written at a time: 1 MiB. */
#define SAVE_CHUNK (INT64_C(1) << 18)

/* This rank's part of elements [from, from + count) of a parameter, zeros elsewhere. */
static void save_fill(const struct tess_engine *engine, int32_t param, int64_t from, int64_t count,
                      float *chunk)
{
    memset(chunk, 0, (size_t)count * sizeof *chunk);
    if (!tess__engine_counts(engine)) /* another rank holds the same and hands it in */
        return;
    engine->kernel->ops->access(engine->kernel, true);
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        int64_t begin = piece->param_begin > from ? piece->param_begin : from;
        int64_t end = piece->param_begin + piece->count < from + count
                          ? piece->param_begin + piece->count
                          : from + count;
        if (piece->param != param || begin >= end)
            continue;
        float *target = chunk + (begin - from);
        const float *values =
            tess__engine_values(engine, piece, begin - piece->param_begin, end - begin, target);
        if (values != target)
            memcpy(target, values, (size_t)(end - begin) * sizeof *target);
    }
    engine->kernel->ops->access(engine->kernel, false);
}

/*
 * Every element comes from one rank and is 0 on the others: added as whole numbers, bits arrive as
 * they are, a minus zero too. Rank 0 goes on after a failed write, or the others would wait.
 */
static enum tess_status save_values(struct tess_engine *engine, int fd, float *chunk, int *error)
{
    const struct tess_declare *declare = &engine->declare;
    const bool writes = engine->plan.rank == 0;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const int64_t whole = tess_shape_count(&declare->param[p].shape);
        for (int64_t from = 0; from < whole; from += SAVE_CHUNK) {
            const int64_t count = whole - from < SAVE_CHUNK ? whole - from : SAVE_CHUNK;
            save_fill(engine, p, from, count, chunk);
            TESS_TRY(tess_comm_reduce(engine->comm, chunk, writes ? chunk : NULL, (size_t)count,
                                      TESS_I32, TESS_REDUCE_SUM, 0, NULL));
            if (writes && *error == 0)
                *error = tess_file_append(fd, chunk, (size_t)count * sizeof *chunk);
        }
    }
    return TESS_OK;
}

static enum tess_status save_header(const struct tess_engine *engine, const char *path,
                                    struct tess_file_writer *writer, int *error)
{
    size_t bytes;
    char *header = tess_weights_header(&engine->declare, &bytes);
    if (header == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    enum tess_status status = tess_file_create(path, writer);
    if (status == TESS_OK)
        *error = tess_file_append(writer->fd, header, bytes);
    free(header);
    return status;
}

enum tess_status tess_engine_save(struct tess_engine *engine, const char *path)
{
    struct tess_file_writer writer = {.fd = -1};
    enum tess_status status = TESS_OK, sent;
    int error = 0;
    float *chunk = malloc(SAVE_CHUNK * sizeof *chunk);
    if (chunk == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the weights");
    if (engine->plan.rank == 0)
        status = save_header(engine, path, &writer, &error);
    if (writer.fd < 0)
        error = error != 0 ? error : -1; /* nowhere to write to; take part all the same */
    sent = save_values(engine, writer.fd, chunk, &error);
    if (writer.fd >= 0) {
        enum tess_status written = tess_file_commit(&writer, sent == TESS_OK ? error : ECANCELED);
        status = status == TESS_OK ? written : status;
    }
    free(chunk);
    return sent != TESS_OK ? sent : status;
}
