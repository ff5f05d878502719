/*
 * Safetensors files as a model's: which tensor is which parameter, and which of its elements are
 * which. Whose elements are read or written, and what becomes of them, is params.c's.
 */
#include "state/weights_file.h"

#include "state/adapter_folder.h"
#include "tessera/check.h"
#include "tessera/memory.h"
#include "tessera/version.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_COMPARE 4096               /* elements that are compared at a time */
#define MODEL_TILE    (INT64_C(1) << 22) /* elements that are turned round at a time: 16 MiB */
#define MODEL_LINE    16                 /* elements of a cache line */

/* ---- names ----------------------------------------------------------------------------------- */

/* GPT-2's files in the wild have their names with and without the name of the whole before them;
 * files of adapters have PEFT's before those of the model. */
static const char *model_bare(const char *name)
{
    static const char whole[] = "transformer.", peft[] = TESS_ADAPTER_PREFIX;
    if (strncmp(name, peft, strlen(peft)) == 0)
        name += strlen(peft);
    return strncmp(name, whole, strlen(whole)) == 0 ? name + strlen(whole) : name;
}

static int32_t model_find(const struct tess_weights *weights, const char *name)
{
    for (int32_t i = 0; i < weights->tensor_count; i++)
        if (strcmp(model_bare(weights->tensor[i].name), model_bare(name)) == 0)
            return i;
    return -1;
}

/* In older files, and not parameters: "h.0.attn.bias" and "h.0.attn.masked_bias", the causal
 * mask, and "model.layers.0.self_attn.rotary_emb.inv_freq". */
static bool model_is_mask(const char *name)
{
    const char *bare = model_bare(name);
    return fnmatch("??*.rotary_emb.inv_freq", bare, 0) == 0 ||
           fnmatch("h.+([0-9]).attn.@(bias|masked_bias)", bare, FNM_EXTMATCH) == 0;
}

/* ---- images ----------------------------------------------------------------------------------
 * Convolutions are [out, height, width, in] here and in a run's files, and [out, in, height, width]
 * in PyTorch's; the inputs of the layer behind the last one follow.
 */

/* A convolution's shape as PyTorch has it. */
static struct tess_shape model_first_shape(struct tess_shape shape)
{
    if (shape.rank == 4)
        shape = tess_shape4(shape.dim[0], shape.dim[3], shape.dim[1], shape.dim[2]);
    return shape;
}

static bool model_has_shape(const json_t *found, const struct tess_shape *shape)
{
    bool same = json_array_size(found) == (size_t)shape->rank;
    for (int32_t i = 0; same && i < shape->rank; i++)
        same = json_integer_value(json_array_get(found, (size_t)i)) == shape->dim[i];
    return same;
}

/* Do the files have channels first: by what they say, else by the first shape that differs. */
static bool model_is_first(const struct tess_weights *weights, const struct tess_declare *declare)
{
    const json_t *about = json_object_get(weights->file[0].header, "__metadata__");
    const char *said = json_string_value(json_object_get(about, "channels"));
    if (said != NULL)
        return strcmp(said, "first") == 0;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_shape last = declare->param[p].whole, first = model_first_shape(last);
        const int32_t tensor = last.rank == 4 ? model_find(weights, declare->param[p].name) : -1;
        if (tensor < 0 || model_has_shape(weights->tensor[tensor].shape, &last))
            continue;
        return model_has_shape(weights->tensor[tensor].shape, &first);
    }
    return false;
}

/* Where the files have channels first: of each parameter's rows. */
static void model_find_channels(struct tess_weights *weights, const struct tess_declare *declare)
{
    int64_t last = 0;
    if (!model_is_first(weights, declare))
        return;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_shape *shape = &declare->param[p].whole;
        const bool reads = shape->rank == 2 && last > 0 && shape->dim[1] % last == 0;
        if (shape->rank == 4 || reads)
            weights->param[p].channels = reads ? last : shape->dim[3];
        last = reads ? 0 : shape->rank == 4 ? shape->dim[0] : last;
    }
}

/* ---- matching -------------------------------------------------------------------------------- */

static json_t *model_shape_json(const struct tess_declare_param *param, bool first)
{
    const struct tess_shape last = tess_declare_file_shape(param);
    const struct tess_shape shape = first ? model_first_shape(last) : last;
    json_t *array = json_array();
    for (int32_t i = 0; i < shape.rank; i++)
        json_array_append_new(array, json_integer(shape.dim[i]));
    return array;
}

static enum tess_status model_check_shape(const struct tess_weights *weights, int32_t tensor,
                                          const struct tess_declare_param *param, bool first)
{
    const struct tess__weights_tensor *found = &weights->tensor[tensor];
    if (found->dtype == TESS_DTYPE_COUNT)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' has dtype %.20s; F32, BF16 and F16 are read",
                  tess__weights_path(weights, tensor), found->name, found->dtype_text);
    json_t *wanted = model_shape_json(param, first);
    enum tess_status status = TESS_OK;
    if (!json_equal(found->shape, wanted)) {
        char *is = json_dumps(found->shape, 0), *should = json_dumps(wanted, 0);
        status = tess_fail(TESS_ERR_DATA, "%s: tensor '%.80s' has shape %.96s, the model's has %s",
                           tess__weights_path(weights, tensor), found->name, is != NULL ? is : "?",
                           should != NULL ? should : "?");
        free(is);
        free(should);
    }
    json_decref(wanted);
    return status;
}

/* A file of a model whose two tensors are not one would be misread without a word. */
static enum tess_status model_check_copy(const struct tess_weights *weights, int32_t copy,
                                         const struct tess__weights_param *source)
{
    float a[MODEL_COMPARE], b[MODEL_COMPARE];
    const struct tess_shape shape = tess_declare_file_shape(&source->declared);
    const int64_t count = tess_shape_count(&shape);
    TESS_TRY(model_check_shape(weights, copy, &source->declared, false));
    for (int64_t at = 0; at < count; at += MODEL_COMPARE) {
        const int64_t now = count - at < MODEL_COMPARE ? count - at : MODEL_COMPARE;
        TESS_TRY(tess__weights_values(weights, copy, at, now, a));
        TESS_TRY(tess__weights_values(weights, source->tensor, at, now, b));
        if (memcmp(a, b, (size_t)now * sizeof(*a)) != 0)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: tensors '%.80s' and '%.80s' are one in the model and differ in the "
                      "file: weights of a model that does not tie them",
                      tess__weights_path(weights, copy), weights->tensor[copy].name,
                      weights->tensor[source->tensor].name);
    }
    return TESS_OK;
}

/* A tensor that is no parameter of the model. */
static enum tess_status model_leave_out(struct tess_weights *weights,
                                        const struct tess_declare *declare, int32_t tensor)
{
    const char *name = weights->tensor[tensor].name;
    bool known = model_is_mask(name);
    for (int32_t p = 0; p < declare->param_count && !known; p++) {
        const struct tess_declare_param *param = &declare->param[p];
        if ((param->flags & TESS_PARAM_TIED) == 0 || weights->param[param->source].tensor < 0 ||
            strcmp(model_bare(param->name), model_bare(name)) != 0)
            continue;
        TESS_TRY(model_check_copy(weights, tensor, &weights->param[param->source]));
        known = true;
    }
    if (!known)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' is none of the model's: other weights?",
                  tess__weights_path(weights, tensor), name);
    weights->left_out++;
    return TESS_OK;
}

/* May the files be without this parameter? Adapters are all there or none of them. */
static bool model_may_lack(const struct tess_weights *weights, const struct tess_declare *declare,
                           int32_t p, bool adapters)
{
    const bool adapter = (declare->param[p].flags & TESS_PARAM_ADAPTER) != 0;
    for (int32_t q = 0; q < declare->param_count && adapter && !adapters; q++)
        if (declare->param[q].flags & TESS_PARAM_ADAPTER &&
            model_find(weights, declare->param[q].name) >= 0)
            return false;
    return adapter != adapters;
}

static enum tess_status model_match(struct tess_weights *weights,
                                    const struct tess_declare *declare, bool adapters)
{
    enum tess_status status = TESS_OK;
    bool *used = calloc((size_t)weights->tensor_count + 1, sizeof(*used));
    free(weights->param);
    weights->param = calloc((size_t)declare->param_count + 1, sizeof(*weights->param));
    weights->left_out = 0;
    weights->tile_rows = 0;
    if (weights->param == NULL || used == NULL) {
        free(used);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the tensors of %s", weights->path);
    }
    model_find_channels(weights, declare);
    for (int32_t p = 0; p < declare->param_count && status == TESS_OK; p++) {
        const struct tess_declare_param *param = &declare->param[p];
        struct tess__weights_param *found = &weights->param[p];
        found->declared = *param;
        if (param->flags & TESS_PARAM_TIED) {
            found->tensor = weights->param[param->source].tensor;
            continue;
        }
        found->tensor = adapters && (param->flags & TESS_PARAM_ADAPTER) == 0
                            ? -1
                            : model_find(weights, param->name);
        if (found->tensor < 0 && model_may_lack(weights, declare, p, adapters))
            continue;
        if (found->tensor < 0) {
            status = tess_fail(TESS_ERR_DATA,
                               "%s has no tensor '%s', which the model needs: other weights?",
                               weights->path, param->name);
            break;
        }
        used[found->tensor] = true;
        status = model_check_shape(weights, found->tensor, param, found->channels > 0);
    }
    for (int32_t i = 0; i < weights->tensor_count && status == TESS_OK; i++)
        if (!used[i])
            status = model_leave_out(weights, declare, i);
    free(used);
    return status;
}

enum tess_status tess_weights_match(struct tess_weights *weights,
                                    const struct tess_declare *declare)
{
    return model_match(weights, declare, false);
}

enum tess_status tess_weights_match_adapters(struct tess_weights *weights,
                                             const struct tess_declare *declare)
{
    return model_match(weights, declare, true);
}

bool tess_weights_has(const struct tess_weights *weights, int32_t param)
{
    return weights->param[param].tensor >= 0;
}

int32_t tess_weights_left_out(const struct tess_weights *weights)
{
    return weights->left_out;
}

int64_t tess_weights_dim(const struct tess_weights *weights, const char *name, int32_t dim)
{
    const int32_t tensor = model_find(weights, name);
    if (tensor < 0)
        return 0;
    return json_integer_value(json_array_get(weights->tensor[tensor].shape, (size_t)dim));
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Rows and columns of a tensor as the model has it, without padding. */
static void model_size(const struct tess__weights_param *param, int64_t *rows, int64_t *columns)
{
    const struct tess_shape *whole = &param->declared.whole;
    *columns = tess_shape_count(whole) / whole->dim[0];
    *rows = tess_declare_used(&param->declared) / *columns;
}

/* Rows [first, first + here) of the tile. A row of the model's is a column of the file's, an
 * element here and an element there: pieces of as many of the file's rows are fetched as fill a
 * cache line of the tile. They lie a line apart, so that they are not in one set of the cache. */
static enum tess_status model_fill_turned(struct tess_weights *weights,
                                          const struct tess__weights_param *param, int64_t first,
                                          int64_t here, float *line)
{
    int64_t rows, columns;
    model_size(param, &rows, &columns);
    const int64_t apart = here + MODEL_LINE;
    for (int64_t c = 0; c < columns; c += MODEL_LINE) {
        const int64_t count = columns - c < MODEL_LINE ? columns - c : MODEL_LINE;
        for (int64_t k = 0; k < count; k++)
            TESS_TRY(tess__weights_values(weights, param->tensor, (c + k) * rows + first, here,
                                          line + k * apart));
        for (int64_t r = 0; r < here; r++)
            for (int64_t k = 0; k < count; k++)
                weights->tile[r * columns + c + k] = line[k * apart + r];
    }
    return TESS_OK;
}

/* The same of rows whose channels come first. */
static enum tess_status model_fill_channels(struct tess_weights *weights,
                                            const struct tess__weights_param *param, int64_t first,
                                            int64_t here, float *line)
{
    int64_t rows, columns;
    model_size(param, &rows, &columns);
    const int64_t channels = param->channels, places = columns / channels;
    for (int64_t r = 0; r < here; r++) {
        float *row = weights->tile + r * columns;
        TESS_TRY(
            tess__weights_values(weights, param->tensor, (first + r) * columns, columns, line));
        for (int64_t p = 0; p < places; p++)
            for (int64_t c = 0; c < channels; c++)
                row[p * channels + c] = line[c * places + p];
    }
    return TESS_OK;
}

/* As many rows as a tile holds are turned round at once. */
static enum tess_status model_fill_tile(struct tess_weights *weights,
                                        const struct tess__weights_param *param, int64_t row)
{
    int64_t rows, columns;
    model_size(param, &rows, &columns);
    const int64_t most = columns < MODEL_TILE ? MODEL_TILE / columns : 1;
    const int64_t room = most < rows ? most : rows;
    const int64_t turned = (room + MODEL_LINE) * MODEL_LINE;
    const int64_t line = turned > columns ? turned : columns;
    weights->tile_rows = 0;
    if (room * columns + line > weights->tile_room) {
        free(weights->tile);
        weights->tile_room = room * columns + line;
        weights->tile = malloc((size_t)weights->tile_room * sizeof(*weights->tile));
        if (weights->tile == NULL) {
            weights->tile_room = 0;
            TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", weights->path);
        }
    }
    const int64_t first = row / room * room, here = rows - first < room ? rows - first : room;
    TESS_TRY((param->channels > 0 ? model_fill_channels : model_fill_turned)(
        weights, param, first, here, weights->tile + room * columns));
    weights->tile_tensor = param->tensor;
    weights->tile_first = first;
    weights->tile_rows = here;
    return TESS_OK;
}

/* Elements [from, from + count) of a tensor that is turned round in the file, padding left out. */
static enum tess_status model_read_turned(struct tess_weights *weights,
                                          const struct tess__weights_param *param, int64_t from,
                                          int64_t count, float *w)
{
    int64_t rows, columns;
    model_size(param, &rows, &columns);
    for (int64_t at = 0; at < count;) {
        const int64_t row = (from + at) / columns;
        if (weights->tile_rows == 0 || weights->tile_tensor != param->tensor ||
            row < weights->tile_first || row >= weights->tile_first + weights->tile_rows)
            TESS_TRY(model_fill_tile(weights, param, row));
        const int64_t place = from + at - weights->tile_first * columns;
        const int64_t left = weights->tile_rows * columns - place;
        const int64_t now = count - at < left ? count - at : left;
        memcpy(w + at, weights->tile + place, (size_t)now * sizeof(*w));
        at += now;
    }
    return TESS_OK;
}

enum tess_status tess_weights_read(struct tess_weights *weights, int32_t param, int64_t from,
                                   int64_t count, float *w)
{
    const struct tess__weights_param *source = &weights->param[param];
    const int64_t used = tess_declare_used(&source->declared); /* padding follows */
    int64_t left = used > from ? used - from : 0;
    left = source->tensor < 0 ? 0 : left < count ? left : count;
    memset(w + left, 0, (size_t)(count - left) * sizeof(*w));
    if (left == 0)
        return TESS_OK;
    return tess_declare_turned(&source->declared) || source->channels > 0
               ? model_read_turned(weights, source, from, left, w)
               : tess__weights_values(weights, source->tensor, from, left, w);
}

/* ---- writing --------------------------------------------------------------------------------- */

char *tess_weights_header(const struct tess_declare *declare, size_t *bytes_out)
{
    json_t *header =
        json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "tessera", TESS_VERSION);
    uint64_t at = 0;
    int failed = header == NULL;
    char *file = NULL;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_declare_param *param = &declare->param[p];
        const struct tess_shape shape = tess_declare_file_shape(param);
        const uint64_t end = at + (uint64_t)tess_shape_count(&shape) * sizeof(float);
        if (failed || param->flags & TESS_PARAM_TIED)
            continue;
        failed = json_object_set_new(header, param->name,
                                     json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape",
                                               model_shape_json(param, false), "data_offsets",
                                               (json_int_t)at, (json_int_t)end));
        at = end;
    }
    const size_t length = failed ? 0 : json_dumpb(header, NULL, 0, JSON_COMPACT);
    const uint64_t padded = tess_round_up(length, 8);
    if (length > 0)
        file = malloc(sizeof(padded) + padded);
    if (file != NULL) {
        memcpy(file, &padded, sizeof(padded));
        memset(file + sizeof(padded), ' ', padded);
        json_dumpb(header, file + sizeof(padded), length, JSON_COMPACT);
        *bytes_out = sizeof(padded) + padded;
    }
    json_decref(header);
    return file;
}
