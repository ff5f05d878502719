/*
 * Reading safetensors files, which may be anything: every length and offset is checked against the
 * file before it is used. Which files there are is weights_open.c's; what the tensors are to a
 * model is weights_model.c's.
 */
#include "state/weights_file.h"

#include "base/array.h"
#include "base/file.h"
#include "base/half.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Values are read and written as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little endian");

#define WEIGHTS_HEADER_MAX (UINT64_C(100) << 20) /* the format's own limit */
#define WEIGHTS_LENGTH     ((int)sizeof(uint64_t))
#define WEIGHTS_CHUNK      4096 /* 16-bit elements that are widened at a time */

/* ---- the header ------------------------------------------------------------------------------ */

static enum tess_status weights_read_header(struct tess__weights_file *file)
{
    struct stat about;
    uint64_t bytes;
    json_error_t error;
    char *text;
    if (fstat(file->fd, &about) != 0 || !S_ISREG(about.st_mode))
        TESS_FAIL(TESS_ERR_IO, "%s is not a regular file", file->path);
    if (about.st_size < WEIGHTS_LENGTH ||
        tess_file_read(file->fd, &bytes, sizeof(bytes), 0) < sizeof(bytes))
        TESS_FAIL(TESS_ERR_DATA, "%s: too short for a safetensors file", file->path);
    if (bytes < 2 || bytes > WEIGHTS_HEADER_MAX || bytes > (uint64_t)about.st_size - WEIGHTS_LENGTH)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: a header of %" PRIu64
                  " bytes in a file of %lld: not a safetensors file, or cut short",
                  file->path, bytes, (long long)about.st_size);
    text = malloc(bytes);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", file->path);
    if (tess_file_read(file->fd, text, bytes, WEIGHTS_LENGTH) < bytes) {
        free(text);
        TESS_FAIL(TESS_ERR_IO, "cannot read the header of %s", file->path);
    }
    file->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(file->header))
        TESS_FAIL(TESS_ERR_DATA, "%s: the header is no JSON object: %s (byte %d)", file->path,
                  error.text, error.position);
    file->value_begin = WEIGHTS_LENGTH + bytes;
    file->value_bytes = (uint64_t)about.st_size - file->value_begin;
    return TESS_OK;
}

/* Bytes of an element by its name in the format; those that are not read may be in tensors that are
 * left out. */
static size_t weights_dtype(const char *text, enum tess_dtype *dtype_out)
{
    static const struct {
        const char *name;
        size_t bytes;
        enum tess_dtype dtype;
    } known[] = {{"F32", 4, TESS_F32},
                 {"BF16", 2, TESS_BF16},
                 {"F16", 2, TESS_F16},
                 {"F64", 8, TESS_DTYPE_COUNT},
                 {"I64", 8, TESS_DTYPE_COUNT},
                 {"U64", 8, TESS_DTYPE_COUNT},
                 {"I32", 4, TESS_DTYPE_COUNT},
                 {"U32", 4, TESS_DTYPE_COUNT},
                 {"I16", 2, TESS_DTYPE_COUNT},
                 {"U16", 2, TESS_DTYPE_COUNT},
                 {"I8", 1, TESS_DTYPE_COUNT},
                 {"U8", 1, TESS_DTYPE_COUNT},
                 {"BOOL", 1, TESS_DTYPE_COUNT},
                 {"F8_E4M3", 1, TESS_DTYPE_COUNT},
                 {"F8_E5M2", 1, TESS_DTYPE_COUNT}};

    for (size_t i = 0; text != NULL && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, text) == 0) {
            *dtype_out = known[i].dtype;
            return known[i].bytes;
        }
    return 0;
}

/* Elements of a shape, or -1 when it is none or they are more than a file can hold. */
static int64_t weights_count(const json_t *shape)
{
    int64_t count = 1;
    if (!json_is_array(shape))
        return -1;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *dim = json_array_get(shape, i);
        int64_t value = json_integer_value(dim);
        if (!json_is_integer(dim) || value < 0 || (value > 0 && count > (INT64_MAX / 8) / value))
            return -1;
        count *= value;
    }
    return count;
}

static enum tess_status weights_take_tensor(const struct tess__weights_file *file, const char *name,
                                            json_t *entry, struct tess__weights_tensor *tensor)
{
    json_int_t begin, end;
    tensor->name = name;
    tensor->dtype_text = json_string_value(json_object_get(entry, "dtype"));
    tensor->shape = json_object_get(entry, "shape");
    const size_t bytes = weights_dtype(tensor->dtype_text, &tensor->dtype);
    const int64_t count = weights_count(tensor->shape);
    if (bytes == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' has dtype %.20s; F32, BF16 and F16 are read",
                  file->path, name, tensor->dtype_text != NULL ? tensor->dtype_text : "nothing");
    if (count < 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' has no shape that can be", file->path, name);
    if (json_unpack(entry, "{s:[I,I!]}", "data_offsets", &begin, &end) != 0 || begin < 0 ||
        end < begin)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' has no data_offsets that can be", file->path,
                  name);
    tensor->begin = (uint64_t)begin;
    tensor->end = (uint64_t)end;
    if (tensor->end - tensor->begin != (uint64_t)count * bytes)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: tensor '%.80s' takes %" PRIu64 " bytes, which its shape and dtype do not",
                  file->path, name, tensor->end - tensor->begin);
    return TESS_OK;
}

static int weights_by_begin(const void *a, const void *b)
{
    const struct tess__weights_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty ones first */
}

/* tensor [count]: those of one file lie end to end and fill it. */
static enum tess_status weights_check_places(const struct tess__weights_file *file,
                                             const struct tess__weights_tensor *tensor,
                                             int32_t count)
{
    uint64_t at = 0;
    for (int32_t i = 0; i < count; at = tensor[i++].end)
        if (tensor[i].begin != at)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: tensor '%.80s' begins at byte %" PRIu64 " of the values, not at %" PRIu64
                      ", where the one before it ends",
                      file->path, tensor[i].name, tensor[i].begin, at);
    if (at != file->value_bytes)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: the tensors take %" PRIu64 " bytes, the file has %" PRIu64
                  " for them: cut short?",
                  file->path, at, file->value_bytes);
    return TESS_OK;
}

static enum tess_status weights_read_tensors(struct tess_weights *weights, int32_t f)
{
    const struct tess__weights_file *file = &weights->file[f];
    const int32_t first = weights->tensor_count;
    const size_t most = (size_t)first + json_object_size(file->header) + 1;
    struct tess__weights_tensor *more =
        most < INT32_MAX ? realloc(weights->tensor, most * sizeof(*more)) : NULL;
    const char *name;
    json_t *entry;
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the tensors of %s", file->path);
    weights->tensor = more;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct tess__weights_tensor *tensor = &weights->tensor[weights->tensor_count++];
        *tensor = (struct tess__weights_tensor){.file = f};
        TESS_TRY(weights_take_tensor(file, name, entry, tensor));
    }
    const int32_t count = weights->tensor_count - first;
    qsort(weights->tensor + first, (size_t)count, sizeof(*weights->tensor), weights_by_begin);
    return weights_check_places(file, weights->tensor + first, count);
}

struct tess_weights *tess__weights_new(const char *path)
{
    struct tess_weights *weights = calloc(1, sizeof(*weights));
    if (weights == NULL || (weights->path = strdup(path)) == NULL) {
        free(weights);
        return NULL;
    }
    return weights;
}

enum tess_status tess__weights_add(struct tess_weights *weights, const char *path)
{
    struct tess__weights_file *file =
        tess__array_grow(weights->file, (size_t)weights->file_count, sizeof(*file));
    if (file == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    weights->file = file;
    file += weights->file_count;
    *file = (struct tess__weights_file){.path = strdup(path)};
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int error = errno;
    weights->file_count++;
    if (file->path == NULL || file->fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open the weights %s: %s", path, strerror(error));
    TESS_TRY(weights_read_header(file));
    return weights_read_tensors(weights, weights->file_count - 1);
}

void tess_weights_close(struct tess_weights *weights)
{
    if (weights == NULL)
        return;
    for (int32_t f = 0; f < weights->file_count; f++) {
        if (weights->file[f].fd >= 0)
            close(weights->file[f].fd);
        json_decref(weights->file[f].header);
        free(weights->file[f].path);
    }
    free(weights->file);
    free(weights->tensor);
    free(weights->param);
    free(weights->tile);
    free(weights->path);
    free(weights);
}

/* ---- values ---------------------------------------------------------------------------------- */

enum tess_status tess__weights_values(const struct tess_weights *weights, int32_t tensor,
                                      int64_t from, int64_t count, float *w)
{
    const struct tess__weights_tensor *source = &weights->tensor[tensor];
    const struct tess__weights_file *file = &weights->file[source->file];
    const size_t bytes = tess_dtype_bytes(source->dtype);
    const bool wide = source->dtype == TESS_F32;
    uint16_t half[WEIGHTS_CHUNK];
    for (int64_t at = 0; at < count;) {
        const int64_t left = count - at, now = wide || left < WEIGHTS_CHUNK ? left : WEIGHTS_CHUNK;
        const uint64_t place = file->value_begin + source->begin + (uint64_t)(from + at) * bytes;
        const size_t wanted = (size_t)now * bytes;
        if (tess_file_read(file->fd, wide ? (void *)(w + at) : half, wanted, (int64_t)place) <
            wanted)
            TESS_FAIL(TESS_ERR_IO, "cannot read tensor '%.80s' of %s: has the file changed?",
                      source->name, file->path);
        for (int64_t i = 0; !wide && i < now; i++)
            w[at + i] =
                source->dtype == TESS_F16 ? tess__f32_of_f16(half[i]) : tess__f32_of_bf16(half[i]);
        at += now;
    }
    return TESS_OK;
}
