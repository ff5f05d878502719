/*
 * Which files hold the weights that a path names: a file; or a folder, which is a run's, a
 * checkpoint's, or one with model.safetensors or model.safetensors.index.json, as Hugging Face's
 * libraries write them. The index may be anything: what it says is compared with what the files
 * have.
 */
#include "state/checkpoint_file.h"
#include "state/weights_file.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OPEN_ONE "model.safetensors"
#define OPEN_RUN "weights.safetensors"

/* ---- an index -------------------------------------------------------------------------------- */

/* Open the files that the index names, each once: "weight_map" has one for each tensor. `number`
 * becomes the number of each file by its name. */
static enum tess_status open_index_files(struct tess_weights *weights, const char *folder,
                                         const char *index, json_t *map, json_t *number)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        char path[TESS_CHECKPOINT_PATH];
        const char *name = json_string_value(value);
        if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: tensor '%.80s' lies in '%.80s': expected the name of a file beside it",
                      index, tensor, name != NULL ? name : "");
        if (json_object_get(number, name) != NULL)
            continue;
        TESS_TRY(tess__checkpoint_join(folder, name, path));
        TESS_TRY(tess__weights_add(weights, path));
        if (json_object_set_new(number, name, json_integer(weights->file_count - 1)) != 0)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", index);
    }
    return TESS_OK;
}

/* Has each file the tensors that the index names there, and no other? */
static enum tess_status open_check_index(const struct tess_weights *weights, const char *index,
                                         const json_t *map, const json_t *number)
{
    const char *name;
    const json_t *value;
    for (int32_t t = 0; t < weights->tensor_count; t++) {
        const struct tess__weights_tensor *tensor = &weights->tensor[t];
        const char *place = json_string_value(json_object_get(map, tensor->name));
        if (place == NULL ||
            json_integer_value(json_object_get(number, place)) != (json_int_t)tensor->file)
            TESS_FAIL(TESS_ERR_DATA, "%s has tensor '%.80s', for which %s names %.80s",
                      weights->file[tensor->file].path, tensor->name, index,
                      place != NULL ? place : "no file");
    }
    json_object_foreach((json_t *)map, name, value)
    {
        const json_t *f = json_object_get(number, json_string_value(value));
        const struct tess__weights_file *file = &weights->file[json_integer_value(f)];
        if (strcmp(name, "__metadata__") == 0 || json_object_get(file->header, name) == NULL)
            TESS_FAIL(TESS_ERR_DATA, "%s has no tensor '%.80s', which %s names there", file->path,
                      name, index);
    }
    return TESS_OK;
}

static enum tess_status open_index(struct tess_weights *weights, const char *folder,
                                   const char *index)
{
    json_error_t error;
    char *text;
    size_t bytes;
    TESS_TRY(tess__checkpoint_read_text(index, &text, &bytes));
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error), *number = NULL;
    json_t *map = json_object_get(object, "weight_map");
    free(text);
    enum tess_status status = TESS_OK;
    if (object == NULL)
        status = tess_fail(TESS_ERR_DATA, "%s:%d: %s", index, error.line, error.text);
    else if (!json_is_object(map) || json_object_size(map) == 0)
        status = tess_fail(TESS_ERR_DATA, "%s has no weight_map: not an index of tensors", index);
    else if ((number = json_object()) == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to read %s", index);
    if (status == TESS_OK)
        status = open_index_files(weights, folder, index, map, number);
    if (status == TESS_OK)
        status = open_check_index(weights, index, map, number);
    json_decref(number);
    json_decref(object);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

static bool open_is_file(const char *folder, const char *name, char path[TESS_CHECKPOINT_PATH])
{
    struct stat about;
    return tess__checkpoint_join(folder, name, path) == TESS_OK && stat(path, &about) == 0 &&
           !S_ISDIR(about.st_mode);
}

/* The newest checkpoint of a run; else the folder itself. */
static enum tess_status open_find(const char *folder, char found[TESS_CHECKPOINT_PATH])
{
    int64_t *step;
    int32_t count;
    TESS_TRY(tess_checkpoint_list(folder, &step, &count));
    const int64_t newest = count > 0 ? step[count - 1] : 0;
    free(step);
    if (count > 0)
        return tess_checkpoint_path(folder, newest, false, found);
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    if (length >= TESS_CHECKPOINT_PATH)
        TESS_FAIL(TESS_ERR_USAGE, "%s: the name is too long", folder);
    snprintf(found, TESS_CHECKPOINT_PATH, "%.*s", (int)length, folder);
    return TESS_OK;
}

static enum tess_status open_folder(struct tess_weights *weights, const char *given)
{
    char folder[TESS_CHECKPOINT_PATH], path[TESS_CHECKPOINT_PATH];
    TESS_TRY(open_find(given, folder));
    if (tess_checkpoint_is_part(given))
        TESS_FAIL(TESS_ERR_DATA,
                  "%s is a checkpoint that is not complete: give another one, or "
                  "the run's folder for the newest",
                  given);
    if (open_is_file(folder, OPEN_ONE, path))
        return tess__weights_add(weights, path);
    if (open_is_file(folder, TESS__CHECKPOINT_INDEX, path))
        return open_index(weights, folder, path);
    if (open_is_file(folder, OPEN_RUN, path))
        return tess__weights_add(weights, path);
    TESS_FAIL(TESS_ERR_NOT_FOUND,
              "%s has no weights: neither a complete checkpoint nor " OPEN_ONE
              ", " TESS__CHECKPOINT_INDEX " or " OPEN_RUN,
              given);
}

/* An index that is given itself, with the files beside it. */
static bool open_is_index(const char *path)
{
    static const char end[] = ".safetensors.index.json";
    const size_t length = strlen(path);
    return length >= strlen(end) && strcmp(path + length - strlen(end), end) == 0;
}

static enum tess_status open_given_index(struct tess_weights *weights, const char *path)
{
    const char *name = strrchr(path, '/');
    char folder[TESS_CHECKPOINT_PATH];
    if (strlen(path) >= sizeof(folder))
        TESS_FAIL(TESS_ERR_USAGE, "%s: the name is too long", path);
    snprintf(folder, sizeof(folder), "%.*s", name != NULL ? (int)(name - path) : 1,
             name != NULL ? path : ".");
    return open_index(weights, folder[0] != '\0' ? folder : "/", path);
}

enum tess_status tess_weights_open(const char *path, struct tess_weights **weights_out)
{
    struct stat about;
    struct tess_weights *weights = tess__weights_new(path);
    if (weights == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    const bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    const enum tess_status status = folder                ? open_folder(weights, path)
                                    : open_is_index(path) ? open_given_index(weights, path)
                                                          : tess__weights_add(weights, path);
    if (status != TESS_OK)
        tess_weights_close(weights);
    else
        *weights_out = weights;
    return status;
}
