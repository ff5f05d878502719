/*
 * state.json: what a run needs beside its tensors, and the checks by which a byte that has changed
 * is found. The file has a check of itself; of every other file its length and a check of its
 * header; of every tensor the check of its values.
 */
#include "state/checkpoint_file.h"

#include "base/hash.h"
#include "state/weights_file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_NAME      "state.json"
#define STATE_BYTES_MAX ((size_t)64 << 20)
#define STATE_ROOM      (INT64_C(1) << 18) /* elements that are checked at a time */
#define STATE_STEPS_MAX INT64_C(1000000000000)
#define STATE_BATCH_MAX (1 << 24)

enum tess_status tess__checkpoint_join(const char *folder, const char *name,
                                       char path[TESS_CHECKPOINT_PATH])
{
    const int length = snprintf(path, TESS_CHECKPOINT_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= TESS_CHECKPOINT_PATH)
        TESS_FAIL(TESS_ERR_USAGE, "%s/%s: the name is too long", folder, name);
    return TESS_OK;
}

void tess_checkpoint_state_fini(struct tess_checkpoint_state *state)
{
    free(state->options);
    free(state->model);
    free(state->layout);
    free(state->check);
    free(state->param_updates);
    free(state->tensor_state);
    *state = (struct tess_checkpoint_state){.step = 0};
}

uint64_t tess_checkpoint_model_id(const struct tess_declare *model)
{
    uint64_t id = 0;
    for (int32_t p = 0; p < model->param_count; p++) {
        const struct tess_declare_param *param = &model->param[p];
        const struct tess_shape shape = tess_declare_file_shape(param);
        id = tess_hash_mix(id + tess_hash_bytes(param->name, strlen(param->name)));
        id = tess_hash_mix(id + param->flags);
        for (int32_t d = 0; d < shape.rank; d++)
            id = tess_hash_mix(id + (uint64_t)shape.dim[d]);
    }
    return id;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Numbers of 64 bits as text: readers of JSON may round them. */
static json_t *state_hex(uint64_t value)
{
    return json_sprintf("%016" PRIx64, value);
}

/* The limbs of the sums, one after the other: exact sums stay so. */
static json_t *state_epoch_loss(const struct tess_sum loss[2])
{
    json_t *limbs = json_array();
    for (int i = 0; i < 2 * TESS_SUM_LIMBS; i++)
        json_array_append_new(
            limbs, state_hex((uint64_t)loss[i / TESS_SUM_LIMBS].limb[i % TESS_SUM_LIMBS]));
    return limbs;
}

static void state_add_file(json_t *files, const char *name, uint64_t bytes, const void *head,
                           size_t head_bytes)
{
    json_object_set_new(files, name,
                        json_pack("{s:I, s:o}", "bytes", (json_int_t)bytes, "header",
                                  state_hex(tess_hash_bytes(head, head_bytes))));
}

static json_t *state_files(const struct tess_store *store, const char *options)
{
    json_t *files = json_object();
    for (int32_t f = 0; f < store->file_count; f++)
        state_add_file(files, store->file[f].name, store->file[f].bytes, store->file[f].header,
                       store->file[f].header_bytes);
    state_add_file(files, TESS__CHECKPOINT_INDEX, strlen(store->index), store->index,
                   strlen(store->index));
    state_add_file(files, TESS__CHECKPOINT_OPTIONS, strlen(options), options, strlen(options));
    return files;
}

static void state_tensor_name(const struct tess_declare *model, int32_t param, int32_t array,
                              char name[TESS_NAME_MAX + 8])
{
    snprintf(name, TESS_NAME_MAX + 8, "%s%s%s", array >= 0 ? tess_store_array_name[array] : "",
             array >= 0 ? "." : "", model->param[param].name);
}

/* A tensor that its file has transposed is checked in the order of the model: "line" is the length
 * of a row there. */
static json_t *state_tensors(const struct tess_store *store, const struct tess_declare *model,
                             const struct tess_checkpoint_state *state)
{
    json_t *tensors = json_object();
    for (int32_t a = -1; a < store->arrays; a++) {
        for (int32_t p = 0; p < model->param_count; p++) {
            const struct tess_store_tensor *tensor = tess_store_find(store, p, a);
            char name[TESS_NAME_MAX + 8];
            if (tensor->file < 0)
                continue;
            json_t *entry = json_pack("{s:o}", "check",
                                      state_hex(state->check[(a + 1) * model->param_count + p]));
            if (tensor->line > 0)
                json_object_set_new(entry, "line", json_integer(tensor->line));
            state_tensor_name(model, p, a, name);
            json_object_set_new(tensors, name, entry);
        }
    }
    return tensors;
}

static json_t *state_parameters(const struct tess_declare *model,
                                const struct tess_checkpoint_state *state)
{
    json_t *params = json_object();
    for (int32_t p = 0; p < model->param_count; p++) {
        json_t *entry = json_object();
        if (state->param_updates != NULL)
            json_object_set_new(entry, "updates", json_integer(state->param_updates[p]));
        if (state->tensor_state != NULL)
            json_object_set_new(entry, "moment", json_real((double)state->tensor_state[p]));
        json_object_set_new(params, model->param[p].name, entry);
    }
    return params;
}

static json_t *state_pack(const struct tess_store *store, const struct tess_checkpoint_state *state,
                          const struct tess_declare *model)
{
    json_t *object = json_pack(
        "{s:i, s:I, s:I, s:{s:I, s:I, s:f, s:f}, s:{s:f, s:I, s:I}, s:o, s:s, s:o, s:o, s:s, s:o, "
        "s:o}",
        "version", TESS_CHECKPOINT_VERSION, "step", (json_int_t)state->step, "updates",
        (json_int_t)state->updates, "resolved", "batch_size", (json_int_t)state->batch_size, "grid",
        (json_int_t)state->grid, "learning_rate", state->learning_rate, "warmup_start",
        state->warmup_start, "loss_scale", "value", state->loss_scale, "good",
        (json_int_t)state->scale_good, "skipped", (json_int_t)state->skipped, "epoch_loss",
        state_epoch_loss(state->epoch_loss), "model", state->model, "model_id",
        state_hex(state->model_id), "data_id", state_hex(state->data_id), "layout", state->layout,
        "files", state_files(store, state->options), "tensors", state_tensors(store, model, state));
    if (object != NULL && (state->param_updates != NULL || state->tensor_state != NULL))
        json_object_set_new(object, "parameters", state_parameters(model, state));
    return object;
}

/* The check of the object without its own check. */
static uint64_t state_own_check(const json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);
    const uint64_t check = text != NULL ? tess_hash_bytes(text, strlen(text)) : 0;
    free(text);
    return check;
}

enum tess_status tess__checkpoint_write_state(const char *folder, const struct tess_store *store,
                                              const struct tess_checkpoint_state *state,
                                              const struct tess_declare *model)
{
    char path[TESS_CHECKPOINT_PATH], *text = NULL;
    TESS_TRY(tess__checkpoint_join(folder, STATE_NAME, path));
    json_t *object = state_pack(store, state, model);
    if (object != NULL &&
        json_object_set_new(object, "check", state_hex(state_own_check(object))) == 0)
        text = json_dumps(object, JSON_INDENT(2));
    json_decref(object);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %s", path);
    enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    TESS_TRY(status);
    TESS_TRY(tess__checkpoint_join(folder, TESS__CHECKPOINT_OPTIONS, path));
    return tess_file_write(path, state->options, strlen(state->options));
}

/* ---- reading --------------------------------------------------------------------------------- */

enum tess_status tess__checkpoint_read_text(const char *path, char **text_out, size_t *bytes_out)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum tess_status status = TESS_OK;
    char *text = NULL;
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        status = tess_fail(TESS_ERR_IO, "%s is not a regular file", path);
    else if ((uint64_t)about.st_size > STATE_BYTES_MAX)
        status = tess_fail(TESS_ERR_DATA, "%s has %lld bytes: too many for what it should be", path,
                           (long long)about.st_size);
    else if ((text = malloc((size_t)about.st_size + 1)) == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to read %s", path);
    else if (tess_file_read(fd, text, (size_t)about.st_size, 0) < (size_t)about.st_size)
        status = tess_fail(TESS_ERR_IO, "cannot read %s: has it changed?", path);
    close(fd);
    if (status != TESS_OK) {
        free(text);
        return status;
    }
    text[about.st_size] = '\0';
    *text_out = text;
    *bytes_out = (size_t)about.st_size;
    return TESS_OK;
}

static bool state_take_word(const json_t *word, uint64_t *value)
{
    const char *text = json_string_value(word);
    char *end;
    if (text == NULL || strlen(text) != 16)
        return false;
    *value = strtoull(text, &end, 16);
    return *end == '\0';
}

static bool state_take_hex(const json_t *object, const char *key, uint64_t *value)
{
    return state_take_word(json_object_get(object, key), value);
}

static bool state_take_epoch_loss(const json_t *object, struct tess_sum loss[2])
{
    const json_t *limbs = json_object_get(object, "epoch_loss");
    uint64_t word;
    for (int i = 0; i < 2 * TESS_SUM_LIMBS; i++) {
        if (!state_take_word(json_array_get(limbs, (size_t)i), &word) ||
            word >> 62 != 0) /* what is added to it later must fit, too */
            return false;
        loss[i / TESS_SUM_LIMBS].limb[i % TESS_SUM_LIMBS] = (int64_t)word;
    }
    return true;
}

static enum tess_status state_load(const char *path, json_t **object_out)
{
    json_error_t error;
    uint64_t check = 0;
    char *text;
    size_t bytes;
    TESS_TRY(tess__checkpoint_read_text(path, &text, &bytes));
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    enum tess_status status = TESS_OK;
    if (!json_is_object(object))
        status = tess_fail(TESS_ERR_DATA, "%s:%d: %s", path, error.line,
                           object == NULL ? error.text : "not an object");
    else if (json_integer_value(json_object_get(object, "version")) > TESS_CHECKPOINT_VERSION)
        status = tess_fail(TESS_ERR_DATA,
                           "%s is of version %" JSON_INTEGER_FORMAT
                           ", this program reads %d: a newer Tessera wrote it",
                           path, json_integer_value(json_object_get(object, "version")),
                           TESS_CHECKPOINT_VERSION);
    else if (json_integer_value(json_object_get(object, "version")) < 1 ||
             !state_take_hex(object, "check", &check))
        status = tess_fail(TESS_ERR_DATA, "%s has no version or check: not of a checkpoint", path);
    if (status == TESS_OK) {
        json_object_del(object, "check");
        if (state_own_check(object) != check)
            status = tess_fail(TESS_ERR_DATA, "%s is damaged: its check differs", path);
    }
    if (status != TESS_OK)
        json_decref(object);
    else
        *object_out = object;
    return status;
}

/* A folder that is named by a step has the state after it. */
static bool state_fits_folder(const char *folder, int64_t step)
{
    const char *slash = strrchr(folder, '/');
    int64_t named;
    return sscanf(slash != NULL ? slash + 1 : folder, "step-%" SCNd64, &named) != 1 ||
           named == step;
}

static enum tess_status state_take(json_t *object, const char *folder, const char *path,
                                   struct tess_checkpoint_state *state)
{
    json_int_t step, updates, batch, grid, good, skipped;
    const char *model, *layout;
    if (json_unpack(object, "{s:I, s:I, s:{s:I, s:I, s:F, s:F}, s:{s:F, s:I, s:I}, s:s, s:s}",
                    "step", &step, "updates", &updates, "resolved", "batch_size", &batch, "grid",
                    &grid, "learning_rate", &state->learning_rate, "warmup_start",
                    &state->warmup_start, "loss_scale", "value", &state->loss_scale, "good", &good,
                    "skipped", &skipped, "model", &model, "layout", &layout) != 0 ||
        step < 0 || step > STATE_STEPS_MAX || updates < 0 || updates > step || batch < 1 ||
        batch > STATE_BATCH_MAX || grid < 1 || grid > batch || good < 0 || good > step ||
        skipped < 0 || skipped > step || !(state->learning_rate >= 0) ||
        !(state->warmup_start >= 0) || !(state->loss_scale > 0) ||
        !state_take_hex(object, "model_id", &state->model_id) ||
        !state_take_hex(object, "data_id", &state->data_id) ||
        !state_take_epoch_loss(object, state->epoch_loss))
        TESS_FAIL(TESS_ERR_DATA, "%s lacks a field, or has one that cannot be", path);
    if (!state_fits_folder(folder, step))
        TESS_FAIL(TESS_ERR_DATA,
                  "%s has the state after step %" JSON_INTEGER_FORMAT ", which is not the folder's",
                  path, step);
    state->step = step;
    state->updates = updates;
    state->batch_size = batch;
    state->grid = grid;
    state->scale_good = good;
    state->skipped = skipped;
    state->model = strdup(model);
    state->layout = strdup(layout);
    if (state->model == NULL || state->layout == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    return TESS_OK;
}

/* The check of every tensor. */
static enum tess_status state_take_checks(const json_t *object, const char *path,
                                          const struct tess_declare *model,
                                          const struct tess_store *store,
                                          struct tess_checkpoint_state *state)
{
    const json_t *tensors = json_object_get(object, "tensors");
    for (int32_t a = -1; a < store->arrays; a++) {
        for (int32_t p = 0; p < model->param_count; p++) {
            char name[TESS_NAME_MAX + 8];
            if (tess_store_find(store, p, a)->file < 0)
                continue;
            state_tensor_name(model, p, a, name);
            if (!state_take_hex(json_object_get(tensors, name), "check",
                                &state->check[(a + 1) * model->param_count + p]))
                TESS_FAIL(TESS_ERR_DATA, "%s has no check of tensor '%s'", path, name);
        }
    }
    return TESS_OK;
}

/* What there is of each parameter, and the checks of its tensors. */
static enum tess_status state_take_params(const json_t *object, const char *path,
                                          const struct tess_declare *model,
                                          const struct tess_store *store,
                                          struct tess_checkpoint_state *state)
{
    const json_t *params = json_object_get(object, "parameters");
    const size_t count = (size_t)model->param_count;
    state->check = calloc((size_t)(1 + store->arrays) * count + 1, sizeof(*state->check));
    state->param_updates = calloc(count + 1, sizeof(*state->param_updates));
    state->tensor_state = calloc(count + 1, sizeof(*state->tensor_state));
    if (state->check == NULL || state->param_updates == NULL || state->tensor_state == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    if (state->model_id != tess_checkpoint_model_id(model))
        TESS_FAIL(TESS_ERR_DATA,
                  "%s is of a model '%s' with other parameters: give the options of its model, or "
                  "another checkpoint",
                  path, state->model);
    for (int32_t p = 0; params != NULL && p < model->param_count; p++) {
        const json_t *entry = json_object_get(params, model->param[p].name);
        if (!json_is_object(entry))
            TESS_FAIL(TESS_ERR_DATA, "%s has nothing about parameter '%s'", path,
                      model->param[p].name);
        const json_int_t updates = json_integer_value(json_object_get(entry, "updates"));
        const double moment = json_number_value(json_object_get(entry, "moment"));
        if (updates < 0 || updates > state->updates || !(fabs(moment) <= FLT_MAX))
            TESS_FAIL(TESS_ERR_DATA, "%s: parameter '%s' has a number that cannot be", path,
                      model->param[p].name);
        state->param_updates[p] = updates;
        state->tensor_state[p] = (float)moment;
    }
    return state_take_checks(object, path, model, store, state);
}

enum tess_status tess__checkpoint_read_state(const char *folder, const struct tess_declare *model,
                                             const struct tess_store *store,
                                             struct tess_checkpoint_state *state_out)
{
    char path[TESS_CHECKPOINT_PATH];
    json_t *object;
    TESS_TRY(tess__checkpoint_join(folder, STATE_NAME, path));
    TESS_TRY(state_load(path, &object));
    enum tess_status status = state_take(object, folder, path, state_out);
    if (status == TESS_OK && model != NULL)
        status = state_take_params(object, path, model, store, state_out);
    json_decref(object);
    return status;
}

enum tess_status tess_checkpoint_read_state(const char *folder,
                                            struct tess_checkpoint_state *state_out)
{
    *state_out = (struct tess_checkpoint_state){.step = 0};
    const enum tess_status status = tess__checkpoint_read_state(folder, NULL, NULL, state_out);
    if (status != TESS_OK)
        tess_checkpoint_state_fini(state_out);
    return status;
}

/* ---- verifying ------------------------------------------------------------------------------- */

/* Values of one tensor against its check. */
static enum tess_status verify_tensor(const struct tess_weights *weights, int32_t t,
                                      const json_t *entry, float *room)
{
    const struct tess__weights_tensor *tensor = &weights->tensor[t];
    const int64_t count = (int64_t)((tensor->end - tensor->begin) / sizeof(float));
    const int64_t line = json_integer_value(json_object_get(entry, "line"));
    uint64_t check = 0, is = 0;
    if (!state_take_hex(entry, "check", &check) || tensor->dtype != TESS_F32 ||
        (line > 0 && count % line != 0))
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' is not the one that was saved",
                  tess__weights_path(weights, t), tensor->name);
    for (int64_t at = 0, now; at < count; at += now) {
        now = count - at < STATE_ROOM ? count - at : STATE_ROOM;
        TESS_TRY(tess__weights_values(weights, t, at, now, room));
        if (line == 0)
            is += tess_hash_f32(room, (size_t)now, (uint64_t)at);
        for (int64_t i = 0; line > 0 && i < now; i++) { /* a column of the model's is a row here */
            const int64_t rows = count / line, place = at + i;
            is += tess_hash_f32(room + i, 1, (uint64_t)(place % rows * line + place / rows));
        }
    }
    if (is != check)
        TESS_FAIL(TESS_ERR_DATA, "%s: tensor '%.80s' is damaged: its check differs",
                  tess__weights_path(weights, t), tensor->name);
    return TESS_OK;
}

/* *found: tensors of the file, added. */
static enum tess_status verify_weights(const char *path, const json_t *tensors, float *room,
                                       size_t *found)
{
    struct tess_weights *weights = tess__weights_new(path);
    if (weights == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    enum tess_status status = tess__weights_add(weights, path);
    for (int32_t t = 0; t < weights->tensor_count && status == TESS_OK; t++)
        status = verify_tensor(weights, t, json_object_get(tensors, weights->tensor[t].name), room);
    *found += (size_t)weights->tensor_count;
    tess_weights_close(weights);
    return status;
}

/* A file's length, and its header, or all of a file without tensors. */
static enum tess_status verify_file(const char *path, bool tensors, const json_t *entry,
                                    uint64_t *bytes_out)
{
    struct stat about;
    uint64_t check = 0, head = 0;
    const int64_t bytes = json_integer_value(json_object_get(entry, "bytes"));
    if (!state_take_hex(entry, "header", &check) || bytes <= 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: what state.json says of it cannot be", path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    enum tess_status status = TESS_OK;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size != bytes)
        status = tess_fail(TESS_ERR_DATA, "%s has %lld bytes, %lld were saved: cut short?", path,
                           (long long)about.st_size, (long long)bytes);
    else if (tensors && tess_file_read(fd, &head, sizeof(head), 0) < sizeof(head))
        status = tess_fail(TESS_ERR_IO, "cannot read %s", path);
    if (tensors)
        head = head < STATE_BYTES_MAX ? head + sizeof(head) : UINT64_MAX;
    else
        head = (uint64_t)bytes;
    char *text = NULL;
    if (status == TESS_OK && (head > (uint64_t)bytes || head > STATE_BYTES_MAX))
        status = tess_fail(TESS_ERR_DATA, "%s: its header is damaged", path);
    if (status == TESS_OK && (text = malloc(head)) == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to read %s", path);
    if (status == TESS_OK &&
        (tess_file_read(fd, text, head, 0) < head || tess_hash_bytes(text, head) != check))
        status = tess_fail(TESS_ERR_DATA, "%s: its header is damaged", path);
    free(text);
    close(fd);
    *bytes_out += (uint64_t)bytes;
    return status;
}

/* One file that state.json names. */
static enum tess_status verify_entry(const char *folder, const char *name, const json_t *entry,
                                     const json_t *tensors, float *room, uint64_t *bytes,
                                     size_t *found)
{
    const bool has_tensors = strstr(name, ".json") == NULL && strstr(name, ".yaml") == NULL;
    char path[TESS_CHECKPOINT_PATH];
    if (strchr(name, '/') != NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s/%s names a file elsewhere: %.80s", folder, STATE_NAME, name);
    TESS_TRY(tess__checkpoint_join(folder, name, path));
    TESS_TRY(verify_file(path, has_tensors, entry, bytes));
    return has_tensors ? verify_weights(path, tensors, room, found) : TESS_OK;
}

/* All files that state.json, which is `object`, names; and these are all that it should name. */
static enum tess_status verify_files(const char *folder, const json_t *object, uint64_t *bytes)
{
    json_t *files = json_object_get(object, "files"), *entry;
    const json_t *tensors = json_object_get(object, "tensors");
    const char *name;
    size_t found = 0;
    if (json_object_get(files, TESS__CHECKPOINT_OPTIONS) == NULL ||
        json_object_get(files, TESS__CHECKPOINT_INDEX) == NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s/%s does not name all files", folder, STATE_NAME);
    float *room = malloc((size_t)STATE_ROOM * sizeof(*room));
    if (room == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to verify %s", folder);
    enum tess_status status = TESS_OK;
    json_object_foreach(files, name, entry)
    {
        if (status == TESS_OK)
            status = verify_entry(folder, name, entry, tensors, room, bytes, &found);
    }
    free(room);
    TESS_TRY(status);
    if (found == 0 || found != json_object_size(tensors))
        TESS_FAIL(TESS_ERR_DATA, "%s has %zu tensors, %zu were saved", folder, found,
                  json_object_size(tensors));
    return TESS_OK;
}

enum tess_status tess_checkpoint_verify(const char *folder, uint64_t *bytes_out)
{
    char path[TESS_CHECKPOINT_PATH];
    struct tess_checkpoint_state state = {.step = 0};
    json_t *object;
    *bytes_out = 0;
    TESS_TRY(tess__checkpoint_join(folder, STATE_NAME, path));
    TESS_TRY(state_load(path, &object));
    enum tess_status status = state_take(object, folder, path, &state);
    if (status == TESS_OK)
        status = verify_files(folder, object, bytes_out);
    tess_checkpoint_state_fini(&state);
    json_decref(object);
    return status;
}

enum tess_status tess_checkpoint_check_options(const char *folder)
{
    char path[TESS_CHECKPOINT_PATH];
    uint64_t bytes = 0;
    json_t *object;
    TESS_TRY(tess__checkpoint_join(folder, STATE_NAME, path));
    TESS_TRY(state_load(path, &object));
    const json_t *files = json_object_get(object, "files");
    enum tess_status status = tess__checkpoint_join(folder, TESS__CHECKPOINT_OPTIONS, path);
    if (status == TESS_OK)
        status = verify_file(path, false, json_object_get(files, TESS__CHECKPOINT_OPTIONS), &bytes);
    json_decref(object);
    return status;
}
