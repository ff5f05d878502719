/*
 * Where a training's state lies in files, and moving blocks of it. Which rank owns what, and when
 * it is written, is core's.
 */
#include "state/store.h"

#include "base/file.h"
#include "base/hash.h"
#include "tessera/check.h"
#include "tessera/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const tess_store_array_name[TESS_STORE_ARRAYS_MAX] = {"m", "v"};

#define STORE_NAME_MAX (TESS_NAME_MAX + 8)

/* ---- planning -------------------------------------------------------------------------------- */

/* Files under construction: of the values, or of the optimizer's arrays. */
struct store_group {
    const char *stem;
    uint64_t file_most, used, total; /* bytes of values: in the latest file, in all */
    int32_t first, count;            /* of its files */
    json_t *header;                  /* of the latest file */
    json_t *map;                     /* file of each tensor, by number */
};

static struct tess_store_tensor *store_at(const struct tess_store *store, int32_t param,
                                          int32_t array)
{
    return &store->tensor[(array + 1) * store->param_count + param];
}

const struct tess_store_tensor *tess_store_find(const struct tess_store *store, int32_t param,
                                                int32_t array)
{
    return store_at(store, param, array);
}

static void store_name(int32_t array, const struct tess_declare_param *param,
                       char name[STORE_NAME_MAX])
{
    snprintf(name, STORE_NAME_MAX, "%s%s%s", array >= 0 ? tess_store_array_name[array] : "",
             array >= 0 ? "." : "", param->name);
}

/* The header as the file has it: its length, its text and blanks, so that values begin at a
 * multiple of 8. */
static bool store_finish_header(const json_t *header, struct tess_store_file *file)
{
    const size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    const uint64_t padded = tess_round_up(length, 8);
    file->header = length > 0 ? malloc(sizeof(padded) + padded) : NULL;
    if (file->header == NULL)
        return false;
    memcpy(file->header, &padded, sizeof(padded));
    memset(file->header + sizeof(padded), ' ', padded);
    json_dumpb(header, file->header + sizeof(padded), length, JSON_COMPACT);
    file->header_bytes = sizeof(padded) + padded;
    return true;
}

static bool store_end_file(struct tess_store *store, struct store_group *group)
{
    if (group->header == NULL)
        return true;
    struct tess_store_file *file = &store->file[group->first + group->count - 1];
    const bool done = store_finish_header(group->header, file);
    file->bytes = file->header_bytes + group->used;
    group->total += group->used;
    json_decref(group->header);
    group->header = NULL;
    return done;
}

static bool store_begin_file(struct tess_store *store, struct store_group *group)
{
    if (!store_end_file(store, group))
        return false;
    void *more = realloc(store->file, (size_t)(store->file_count + 1) * sizeof(*store->file));
    if (more == NULL)
        return false;
    store->file = more;
    store->file[store->file_count++] = (struct tess_store_file){.header = NULL};
    group->count++;
    group->used = 0;
    group->header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    return group->header != NULL;
}

static bool store_add(struct tess_store *store, struct store_group *group, int32_t p,
                      const struct tess_declare_param *param, int32_t array)
{
    struct tess_declare_param plain = *param;
    plain.flags &= array < 0 ? ~0u : ~(uint32_t)TESS_PARAM_TRANSPOSED;
    const struct tess_shape shape = tess_declare_file_shape(&plain);
    const bool turned = tess_declare_turned(&plain);
    const int64_t count = tess_shape_count(&shape);
    const uint64_t bytes = (uint64_t)count * sizeof(float);
    char name[STORE_NAME_MAX];
    if ((group->count == 0 || (group->used > 0 && group->used + bytes > group->file_most)) &&
        !store_begin_file(store, group))
        return false;
    json_t *dims = json_array();
    for (int32_t i = 0; i < shape.rank; i++)
        json_array_append_new(dims, json_integer(shape.dim[i]));
    store_name(array, param, name);
    *store_at(store, p, array) =
        (struct tess_store_tensor){.file = group->first + group->count - 1,
                                   .begin = group->used,
                                   .count = count,
                                   .rows = turned ? shape.dim[1] : 0,
                                   .line = turned ? param->whole.dim[1] : 0};
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", dims, "data_offsets",
                              (json_int_t)group->used, (json_int_t)(group->used + bytes));
    group->used += bytes;
    return json_object_set_new(group->header, name, entry) == 0 &&
           json_object_set_new(group->map, name, json_integer(group->count - 1)) == 0;
}

/* Names of the files are known when their number is. */
static bool store_finish(struct tess_store *store, struct store_group *group, char **index)
{
    const char *name;
    json_t *number;
    if (!store_end_file(store, group))
        return false;
    for (int32_t f = 0; f < group->count; f++)
        snprintf(store->file[group->first + f].name, sizeof(store->file->name),
                 "%s-%05d-of-%05d.safetensors", group->stem, (int)f + 1, (int)group->count);
    if (index == NULL)
        return true;
    json_t *map = json_object();
    json_object_foreach(group->map, name, number)
    {
        const int32_t f = group->first + (int32_t)json_integer_value(number);
        json_object_set_new(map, name, json_string(store->file[f].name));
    }
    json_t *text = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)group->total,
                             "weight_map", map);
    *index = text != NULL ? json_dumps(text, JSON_INDENT(2)) : NULL;
    json_decref(text);
    return *index != NULL;
}

/* All tensors of one group, array by array within a parameter. */
static bool store_plan_group(struct tess_store *store, const struct tess_declare *model,
                             const char *stem, uint64_t file_most, int32_t first_array,
                             int32_t end_array, char **index)
{
    struct store_group group = {
        .stem = stem, .file_most = file_most, .first = store->file_count, .map = json_object()};
    bool good = group.map != NULL;
    for (int32_t p = 0; p < model->param_count; p++) {
        const struct tess_declare_param *param = &model->param[p];
        if (param->flags & TESS_PARAM_TIED ||
            (first_array >= 0 && param->flags & (TESS_PARAM_BUFFER | TESS_PARAM_FROZEN)))
            continue;
        for (int32_t a = first_array; a < end_array && good; a++)
            good = store_add(store, &group, p, param, a);
    }
    good = good && store_finish(store, &group, index);
    json_decref(group.header);
    json_decref(group.map);
    return good;
}

enum tess_status tess_store_plan(const struct tess_declare *model, int32_t arrays,
                                 uint64_t file_most, struct tess_store *store)
{
    const size_t tensors = (size_t)(1 + arrays) * (size_t)model->param_count;
    store->param_count = model->param_count;
    store->arrays = arrays;
    store->tensor = malloc((tensors + 1) * sizeof(*store->tensor));
    if (store->tensor == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the tensors of a checkpoint");
    for (size_t i = 0; i < tensors; i++)
        store->tensor[i] = (struct tess_store_tensor){.file = -1};
    if (!store_plan_group(store, model, "model", file_most, -1, 0, &store->index) ||
        (arrays > 0 && !store_plan_group(store, model, "optimizer", file_most, 0, arrays, NULL)))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the tensors of a checkpoint");
    for (size_t i = 0; i < tensors; i++)
        if (store->tensor[i].file >= 0)
            store->tensor[i].begin += store->file[store->tensor[i].file].header_bytes;
    return TESS_OK;
}

void tess_store_fini(struct tess_store *store)
{
    for (int32_t f = 0; f < store->file_count; f++)
        free(store->file[f].header);
    free(store->file);
    free(store->tensor);
    free(store->index);
    *store = (struct tess_store){.file = NULL};
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Elements from `at` on that lie together in the whole tensor. */
static int64_t store_run(const struct tess_declare_param *param,
                         const struct tess_tensor_axis *axis, int64_t at, int64_t most,
                         int64_t *whole_out)
{
    const int64_t run = tess_declare_run(param, axis, at, whole_out);
    return run < most ? run : most;
}

struct tess_store_block tess_store_block_at(const struct tess_declare_param *param,
                                            const struct tess_tensor_axis *axis, int64_t at,
                                            int64_t most)
{
    const int64_t used = tess_declare_used(param), held = tess_shape_count(&param->shape);
    struct tess_store_block block = {.rows = 1};
    most = most < held - at ? most : held - at;
    block.columns = store_run(param, axis, at, most, &block.whole);
    if (block.whole >= used) {
        block.rows = 0;
        return block;
    }
    if (block.columns > used - block.whole)
        block.columns = used - block.whole;
    if (!tess_declare_turned(param))
        return block;
    const int64_t line = param->whole.dim[1], left = line - block.whole % line;
    if (block.columns > left || block.columns == line) { /* several rows, from part of one on */
        block.rows = left == line ? block.columns / line : 1;
        block.columns = left;
        return block;
    }
    /* Part of a row; below it the same part of the next ones, where the tensor is cut that way. */
    for (int64_t whole; (block.rows + 1) * block.columns <= most; block.rows++) {
        const int64_t run = store_run(param, axis, at + block.rows * block.columns,
                                      most - block.rows * block.columns, &whole);
        if (whole != block.whole + block.rows * line || run < block.columns || whole >= used)
            break;
    }
    return block;
}

/* Byte of its file where element `at` of a tensor begins. */
static int64_t store_byte(const struct tess_store_tensor *tensor, int64_t at)
{
    return (int64_t)tensor->begin + at * (int64_t)sizeof(float);
}

/* Where column c of a block begins in a file that has it as part of a row. */
static int64_t store_column(const struct tess_store_tensor *tensor,
                            const struct tess_store_block *block, int64_t c)
{
    const int64_t row = block->whole / tensor->line, column = block->whole % tensor->line;
    return store_byte(tensor, (column + c) * tensor->rows + row);
}

static int store_read_at(int fd, float *x, int64_t count, int64_t byte)
{
    const size_t bytes = (size_t)count * sizeof(*x);
    if (tess_file_read(fd, x, bytes, byte) == bytes)
        return 0;
    return errno != 0 ? errno : -1;
}

int tess_store_write(int fd, const struct tess_store_tensor *tensor,
                     const struct tess_store_block *block, const float *x, float *room)
{
    const int64_t rows = block->rows, columns = block->columns;
    if (tensor->line == 0)
        return tess_file_write_at(fd, x, (size_t)(rows * columns) * sizeof(*x),
                                  store_byte(tensor, block->whole));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            room[c * rows + r] = x[r * columns + c];
    int error = 0;
    for (int64_t c = 0; c < columns && error == 0; c++)
        error = tess_file_write_at(fd, room + c * rows, (size_t)rows * sizeof(*x),
                                   store_column(tensor, block, c));
    return error;
}

int tess_store_read(int fd, const struct tess_store_tensor *tensor,
                    const struct tess_store_block *block, float *x, float *room)
{
    const int64_t rows = block->rows, columns = block->columns;
    if (tensor->line == 0)
        return store_read_at(fd, x, rows * columns, store_byte(tensor, block->whole));
    int error = 0;
    for (int64_t c = 0; c < columns && error == 0; c++)
        error = store_read_at(fd, room + c * rows, rows, store_column(tensor, block, c));
    for (int64_t r = 0; r < rows && error == 0; r++)
        for (int64_t c = 0; c < columns; c++)
            x[r * columns + c] = room[c * rows + r];
    return error;
}

uint64_t tess_store_check(const struct tess_declare_param *param,
                          const struct tess_store_block *block, const float *x)
{
    const int64_t line = block->rows > 1 ? param->whole.dim[1] : 0;
    uint64_t check = 0;
    for (int64_t r = 0; r < block->rows; r++)
        check += tess_hash_f32(x + r * block->columns, (size_t)block->columns,
                               (uint64_t)(block->whole + r * line));
    return check;
}

/* ---- matching -------------------------------------------------------------------------------- */

/* The first tensor of a header that is not as planned. */
static enum tess_status store_name_difference(const struct tess_store_file *file, const char *text,
                                              const char *path)
{
    const size_t bytes = file->header_bytes - sizeof(uint64_t);
    json_t *planned = json_loadb(file->header + sizeof(uint64_t), bytes, 0, NULL);
    json_t *found = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *name, *differs = NULL;
    json_t *entry;
    json_object_foreach(planned, name, entry)
    {
        if (differs == NULL && !json_equal(entry, json_object_get(found, name)))
            differs = name;
    }
    enum tess_status status =
        found == NULL ? tess_fail(TESS_ERR_DATA, "%s: its header is damaged", path)
        : differs != NULL
            ? tess_fail(TESS_ERR_DATA,
                        "%s: tensor '%.80s' is not the one of this model and optimizer", path,
                        differs)
            : tess_fail(TESS_ERR_DATA, "%s has tensors that this model and optimizer lack", path);
    json_decref(planned);
    json_decref(found);
    return status;
}

enum tess_status tess_store_match(const struct tess_store_file *file, int fd, const char *path)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        TESS_FAIL(TESS_ERR_IO, "%s is not a regular file", path);
    if ((uint64_t)about.st_size < file->header_bytes)
        TESS_FAIL(TESS_ERR_DATA, "%s has %lld bytes, its header alone should have %zu: cut short?",
                  path, (long long)about.st_size, file->header_bytes);
    char *header = malloc(file->header_bytes);
    if (header == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    enum tess_status status = TESS_OK;
    if (tess_file_read(fd, header, file->header_bytes, 0) < file->header_bytes)
        status = tess_fail(TESS_ERR_IO, "cannot read the header of %s", path);
    else if (memcmp(header, file->header, file->header_bytes) != 0)
        status = store_name_difference(file, header + sizeof(uint64_t), path);
    else if ((uint64_t)about.st_size != file->bytes)
        status = tess_fail(TESS_ERR_DATA, "%s has %lld bytes, its tensors need %" PRIu64 ": %s",
                           path, (long long)about.st_size, file->bytes,
                           (uint64_t)about.st_size < file->bytes ? "cut short?" : "what follows?");
    free(header);
    return status;
}
