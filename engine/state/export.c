/* See export.h. What becomes of each tensor is in the first half, files are in the second. */
#include "state/export.h"

#include "base/file.h"
#include "base/half.h"
#include "state/adapter_folder.h"
#include "state/checkpoint_file.h"
#include "state/weights_file.h"
#include "tessera/check.h"
#include "tessera/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT_ROOM (INT64_C(1) << 20) /* elements that are written at a time */
#define EXPORT_NAME 256

static const char export_a[] = ".lora_A.weight", export_b[] = ".lora_B.weight";

/* ---- which tensors --------------------------------------------------------------------------- */

static bool export_ends(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length > tail && strcmp(name + length - tail, end) == 0;
}

static bool export_is_adapter(const char *name)
{
    return export_ends(name, export_a) || export_ends(name, export_b);
}

/* The tensor "<layer><end>" of weight "<layer>.weight"; -1: there is none. */
static int32_t export_find(const struct tess_weights *weights, const char *name, const char *end)
{
    static const char weight[] = ".weight";
    char wanted[EXPORT_NAME];
    if (!export_ends(name, weight))
        return -1;
    snprintf(wanted, sizeof(wanted), "%.*s%s", (int)(strlen(name) - strlen(weight)), name, end);
    for (int32_t t = 0; t < weights->tensor_count; t++)
        if (strcmp(weights->tensor[t].name, wanted) == 0)
            return t;
    return -1;
}

static int64_t export_dim(const struct tess_weights *weights, int32_t tensor, size_t dim)
{
    return json_integer_value(json_array_get(weights->tensor[tensor].shape, dim));
}

static enum tess_status export_describe(const struct tess_weights *weights,
                                        const struct tess_export *export, int32_t index,
                                        struct tess_export_tensor *tensor)
{
    const struct tess__weights_tensor *from = &weights->tensor[index];
    *tensor = (struct tess_export_tensor){
        .name = from->name, .index = index, .a = -1, .b = -1, .rows = 1, .line = 1};
    tensor->rank = (int32_t)json_array_size(from->shape);
    if (from->dtype == TESS_DTYPE_COUNT || tensor->rank < 1 || tensor->rank > 4)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' is of a type or shape that is not exported",
                  tess__weights_path(weights, index), from->name);
    for (int32_t d = 0; d < tensor->rank; d++) {
        tensor->dim[d] = export_dim(weights, index, (size_t)d);
        if (d > 0)
            tensor->line *= tensor->dim[d];
    }
    tensor->rows = tensor->dim[0];
    if (export->images && tensor->rank == 4) {
        const int64_t height = tensor->dim[1], width = tensor->dim[2];
        tensor->channels = tensor->dim[3];
        tensor->dim[1] = tensor->channels;
        tensor->dim[2] = height;
        tensor->dim[3] = width;
    }
    if (export->adapters)
        return TESS_OK;
    tensor->a = export_find(weights, from->name, export_a);
    tensor->b = export_find(weights, from->name, export_b);
    if (tensor->a < 0 && tensor->b < 0)
        return TESS_OK;
    const int32_t in = export->gpt2 ? 0 : 1, out = 1 - in;
    if (tensor->a < 0 || tensor->b < 0 || tensor->rank != 2 ||
        export_dim(weights, tensor->a, 1) != tensor->dim[in] ||
        export_dim(weights, tensor->b, 0) != tensor->dim[out] ||
        export_dim(weights, tensor->b, 1) != export_dim(weights, tensor->a, 0))
        TESS_FAIL(TESS_ERR_DATA, "%s: the adapter of '%.80s' does not fit it",
                  tess__weights_path(weights, index), from->name);
    return TESS_OK;
}

/* The layer behind the last convolution reads its image: [places, channels] in a row. */
static void export_find_image(struct tess_export_list *list)
{
    int64_t channels = 0;
    for (int32_t i = 0; i < list->count; i++) {
        struct tess_export_tensor *tensor = &list->tensor[i];
        if (tensor->rank == 4)
            channels = tensor->rows;
        if (tensor->rank == 2 && channels > 0 && tensor->line % channels == 0) {
            tensor->channels = channels;
            return;
        }
    }
}

enum tess_status tess_export_list(const struct tess_weights *weights,
                                  const struct tess_export *export, struct tess_export_list *list)
{
    int64_t room = 0, line = 0;
    *list = (struct tess_export_list){.room_of = -1};
    list->tensor = calloc((size_t)weights->tensor_count + 1, sizeof(*list->tensor));
    if (list->tensor == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to export %d tensors", weights->tensor_count);
    for (int32_t t = 0; t < weights->tensor_count; t++) {
        struct tess_export_tensor *tensor = &list->tensor[list->count];
        if (export_is_adapter(weights->tensor[t].name) != export->adapters)
            continue;
        TESS_TRY(export_describe(weights, export, t, tensor));
        list->count++;
        if (tensor->a >= 0) {
            const int64_t count =
                export_dim(weights, tensor->a, 0) * (tensor->dim[0] + tensor->dim[1]);
            room = count > room ? count : room;
        }
        line = tensor->line > line ? tensor->line : line;
    }
    if (list->count == 0)
        TESS_FAIL(TESS_ERR_DATA, "there are no %s to export",
                  export->adapters ? "adapters" : "weights");
    if (export->images)
        export_find_image(list);
    list->room = malloc(((size_t)room + 1) * sizeof(float));
    list->turn = malloc(((size_t)line + 1) * sizeof(float));
    if (list->room == NULL || list->turn == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to export %d tensors", list->count);
    return TESS_OK;
}

void tess_export_list_fini(struct tess_export_list *list)
{
    free(list->tensor);
    free(list->room);
    free(list->turn);
    *list = (struct tess_export_list){.tensor = NULL};
}

/* ---- what becomes of them -------------------------------------------------------------------- */

/* w [count, line] += scale B A, or its transpose: the sum over r in order, in f32. */
static enum tess_status export_merge(const struct tess_weights *weights,
                                     const struct tess_export *export,
                                     struct tess_export_list *list,
                                     const struct tess_export_tensor *tensor, int64_t first,
                                     int64_t count, float *w)
{
    const int64_t r = export_dim(weights, tensor->a, 0), in = export_dim(weights, tensor->a, 1);
    const int64_t out = export_dim(weights, tensor->b, 0);
    float *a = list->room, *b = list->room + r * in;
    if (list->room_of != tensor->index) {
        list->room_of = -1;
        TESS_TRY(tess__weights_values(weights, tensor->a, 0, r * in, a));
        TESS_TRY(tess__weights_values(weights, tensor->b, 0, out * r, b));
        list->room_of = tensor->index;
    }
    for (int64_t i = 0; i < count; i++) {
        float *row = w + i * tensor->line;
        memset(list->turn, 0, (size_t)tensor->line * sizeof(float));
        for (int64_t k = 0; k < r; k++) {
            /* A row of W is B's row by A; of its transpose, A's column by B's transpose. */
            const float factor = export->gpt2 ? a[k * in + first + i] : b[(first + i) * r + k];
            const float *other = export->gpt2 ? b + k : a + k * in;
            const int64_t step = export->gpt2 ? r : 1;
            for (int64_t j = 0; j < tensor->line; j++)
                list->turn[j] += factor * other[j * step];
        }
        for (int64_t j = 0; j < tensor->line; j++)
            row[j] += (float)export->scale * list->turn[j];
    }
    return TESS_OK;
}

/* Rows [places, channels] become [channels, places]. */
static void export_turn(struct tess_export_list *list, const struct tess_export_tensor *tensor,
                        int64_t count, float *w)
{
    const int64_t channels = tensor->channels, places = tensor->line / channels;
    for (int64_t i = 0; i < count; i++, w += tensor->line) {
        memcpy(list->turn, w, (size_t)tensor->line * sizeof(*w));
        for (int64_t p = 0; p < places; p++)
            for (int64_t c = 0; c < channels; c++)
                w[c * places + p] = list->turn[p * channels + c];
    }
}

enum tess_status tess_export_rows(const struct tess_weights *weights,
                                  const struct tess_export *export, struct tess_export_list *list,
                                  const struct tess_export_tensor *tensor, int64_t first,
                                  int64_t count, float *w)
{
    TESS_TRY(tess__weights_values(weights, tensor->index, first * tensor->line,
                                  count * tensor->line, w));
    if (tensor->a >= 0)
        TESS_TRY(export_merge(weights, export, list, tensor, first, count, w));
    if (tensor->channels > 0)
        export_turn(list, tensor, count, w);
    return TESS_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void export_name(const struct tess_export *export, const struct tess_export_tensor *tensor,
                        char name[EXPORT_NAME])
{
    snprintf(name, EXPORT_NAME, "%s%s%s", export->adapters ? TESS_ADAPTER_PREFIX : "",
             export->adapters && export->gpt2 ? "transformer." : "", tensor->name);
}

static uint64_t export_bytes(const struct tess_export *export,
                             const struct tess_export_tensor *tensor)
{
    return (uint64_t)(tensor->rows * tensor->line) * tess_dtype_bytes(export->dtype);
}

/* The first tensor behind the file that begins with `first`. */
static int32_t export_file_end(const struct tess_export *export,
                               const struct tess_export_list *list, int32_t first)
{
    uint64_t used = 0;
    int32_t end = first;
    while (end < list->count &&
           (end == first || export->adapters ||
            used + export_bytes(export, &list->tensor[end]) <= export->file_most))
        used += export_bytes(export, &list->tensor[end++]);
    return end;
}

static char *export_header(const struct tess_export *export, const struct tess_export_list *list,
                           int32_t first, int32_t end, size_t *bytes_out)
{
    static const char *const type[] = {
        [TESS_F32] = "F32", [TESS_BF16] = "BF16", [TESS_F16] = "F16"};
    json_t *header =
        json_pack("{s:{s:s, s:s*}}", "__metadata__", "format", "pt", "channels",
                  export->images ? "first" : NULL); /* where shapes alone are not enough */
    uint64_t at = 0;
    int failed = header == NULL;
    char *text = NULL;
    for (int32_t t = first; t < end && !failed; t++) {
        const struct tess_export_tensor *tensor = &list->tensor[t];
        const uint64_t next = at + export_bytes(export, tensor);
        json_t *shape = json_array();
        char name[EXPORT_NAME];
        for (int32_t d = 0; d < tensor->rank; d++)
            failed |= json_array_append_new(shape, json_integer(tensor->dim[d]));
        export_name(export, tensor, name);
        failed |= json_object_set_new(header, name,
                                      json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                                type[export->dtype], "shape", shape, "data_offsets",
                                                (json_int_t)at, (json_int_t)next));
        at = next;
    }
    const size_t length = failed ? 0 : json_dumpb(header, NULL, 0, JSON_COMPACT);
    const uint64_t padded = tess_round_up(length, 8);
    if (length > 0)
        text = malloc(sizeof(padded) + padded);
    if (text != NULL) {
        memcpy(text, &padded, sizeof(padded));
        memset(text + sizeof(padded), ' ', padded);
        json_dumpb(header, text + sizeof(padded), length, JSON_COMPACT);
        *bytes_out = sizeof(padded) + padded;
    }
    json_decref(header);
    return text;
}

/* In place: a narrower type's elements come before those that are still to be read. */
static const void *export_round(enum tess_dtype dtype, int64_t count, float *w)
{
    uint16_t *low = (uint16_t *)(void *)w;
    for (int64_t i = 0; dtype != TESS_F32 && i < count; i++) {
        const float x = w[i];
        const uint16_t rounded = dtype == TESS_F16 ? tess__f16_of_f32(x) : tess__bf16_of_f32(x);
        memcpy(&low[i], &rounded, sizeof(rounded));
    }
    return w;
}

static enum tess_status export_tensor(const struct tess_weights *weights,
                                      const struct tess_export *export,
                                      struct tess_export_list *list, int32_t t, float *room, int fd,
                                      int *error)
{
    const struct tess_export_tensor *tensor = &list->tensor[t];
    const int64_t most = EXPORT_ROOM / tensor->line > 0 ? EXPORT_ROOM / tensor->line : 1;
    for (int64_t row = 0, now; row < tensor->rows && *error == 0; row += now) {
        now = tensor->rows - row < most ? tensor->rows - row : most;
        TESS_TRY(tess_export_rows(weights, export, list, tensor, row, now, room));
        const int64_t count = now * tensor->line;
        *error = tess_file_append(fd, export_round(export->dtype, count, room),
                                  (size_t)count * tess_dtype_bytes(export->dtype));
    }
    return TESS_OK;
}

static enum tess_status export_file(const struct tess_weights *weights,
                                    const struct tess_export *export, struct tess_export_list *list,
                                    int32_t first, int32_t end, const char *name, float *room)
{
    char path[TESS_CHECKPOINT_PATH];
    struct tess_file_writer writer;
    size_t bytes = 0;
    TESS_TRY(tess__checkpoint_join(export->out, name, path));
    char *header = export_header(export, list, first, end, &bytes);
    if (header == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    enum tess_status status = tess_file_create(path, &writer);
    if (status != TESS_OK) {
        free(header);
        return status;
    }
    int error = tess_file_append(writer.fd, header, bytes);
    free(header);
    for (int32_t t = first; t < end && status == TESS_OK; t++)
        status = export_tensor(weights, export, list, t, room, writer.fd, &error);
    TESS_KEEP(status, tess_file_commit(&writer, status != TESS_OK ? ECANCELED : error));
    return status;
}

static void export_file_name(int32_t number, int32_t count, char name[64])
{
    snprintf(name, 64, "model-%05d-of-%05d.safetensors", (int)number, (int)count);
}

static enum tess_status export_index(const struct tess_export *export,
                                     const struct tess_export_list *list, int32_t files)
{
    char path[TESS_CHECKPOINT_PATH], file[64];
    json_t *map = json_object();
    uint64_t total = 0;
    for (int32_t first = 0, end, number = 1; first < list->count; first = end, number++) {
        end = export_file_end(export, list, first);
        export_file_name(number, files, file);
        for (int32_t t = first; t < end; t++) {
            total += export_bytes(export, &list->tensor[t]);
            json_object_set_new(map, list->tensor[t].name, json_string(file));
        }
    }
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = index != NULL ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the index of %s", export->out);
    enum tess_status status = tess__checkpoint_join(export->out, TESS__CHECKPOINT_INDEX, path);
    if (status == TESS_OK)
        status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}

static enum tess_status export_files(const struct tess_weights *weights,
                                     const struct tess_export *export,
                                     struct tess_export_list *list, float *room)
{
    int32_t files = 0;
    for (int32_t first = 0; first < list->count; files++)
        first = export_file_end(export, list, first);
    for (int32_t first = 0, end, number = 1; first < list->count; first = end, number++) {
        char name[64] = TESS_ADAPTER_WEIGHTS;
        end = export_file_end(export, list, first);
        if (!export->adapters)
            export_file_name(number, files, name);
        TESS_TRY(export_file(weights, export, list, first, end, name, room));
    }
    return export->adapters ? TESS_OK : export_index(export, list, files);
}

enum tess_status tess_export_write(const struct tess_weights *weights,
                                   const struct tess_export *export)
{
    struct tess_export_list list;
    int64_t most = EXPORT_ROOM;
    enum tess_status status = tess_export_list(weights, export, &list);
    for (int32_t t = 0; status == TESS_OK && t < list.count; t++)
        most = list.tensor[t].line > most ? list.tensor[t].line : most;
    float *room = status == TESS_OK ? malloc((size_t)most * sizeof(*room)) : NULL;
    if (status == TESS_OK && room == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to export the weights");
    if (status == TESS_OK)
        status = export_files(weights, export, &list, room);
    free(room);
    tess_export_list_fini(&list);
    return status;
}
