/*
 * The folder of a checkpoint: made, named when it is complete, listed, removed. What is in
 * state.json is checkpoint_state.c's; which rank writes what is core's.
 */
#include "state/checkpoint.h"

#include "base/array.h"
#include "base/hash.h"
#include "state/checkpoint_file.h"
#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKPOINT_FOLDER "checkpoints"
#define CHECKPOINT_STEP   "step-%08" PRId64
#define CHECKPOINT_PART   ".part"

/* ---- names ----------------------------------------------------------------------------------- */

enum tess_status tess_checkpoint_path(const char *run, int64_t step, bool part,
                                      char path[TESS_CHECKPOINT_PATH])
{
    char name[64];
    snprintf(name, sizeof(name), CHECKPOINT_FOLDER "/" CHECKPOINT_STEP "%s", step,
             part ? CHECKPOINT_PART : "");
    return tess__checkpoint_join(run, name, path);
}

/* "step-00000100": 100; -1: another name. *part: it ends with ".part". */
static int64_t checkpoint_step_of(const char *name, bool *part)
{
    char again[64];
    int64_t step = -1;
    int end = 0;
    if (sscanf(name, "step-%" SCNd64 "%n", &step, &end) != 1 || step < 0)
        return -1;
    *part = strcmp(name + end, CHECKPOINT_PART) == 0;
    snprintf(again, sizeof(again), CHECKPOINT_STEP "%s", step, *part ? CHECKPOINT_PART : "");
    return strcmp(again, name) == 0 ? step : -1;
}

bool tess_checkpoint_is_part(const char *folder)
{
    char name[64];
    bool part = false;
    size_t end = strlen(folder);
    while (end > 0 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    if (end - begin >= sizeof(name))
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)(end - begin), folder + begin);
    return checkpoint_step_of(name, &part) >= 0 && part;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Everything in a folder, which has no folders in it, and the folder. Returns errno or 0. */
static int checkpoint_delete(const char *folder)
{
    DIR *open = opendir(folder);
    if (open == NULL)
        return errno == ENOENT ? 0 : errno;
    int error = 0;
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(open), entry->d_name, 0) != 0 && error == 0)
            error = errno;
    closedir(open);
    return rmdir(folder) != 0 && error == 0 ? errno : error;
}

static int checkpoint_by_step(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Steps of the folders of one kind. */
static enum tess_status checkpoint_find(const char *run, bool parts, int64_t **step_out,
                                        int32_t *count_out)
{
    char path[TESS_CHECKPOINT_PATH];
    enum tess_status status = TESS_OK;
    int64_t *step = NULL;
    int32_t count = 0;
    *step_out = NULL;
    *count_out = 0;
    TESS_TRY(tess__checkpoint_join(run, CHECKPOINT_FOLDER, path));
    DIR *open = opendir(path);
    if (open == NULL && errno == ENOENT)
        return TESS_OK;
    if (open == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(open)) != NULL && status == TESS_OK;) {
        bool part = false;
        const int64_t found = checkpoint_step_of(entry->d_name, &part);
        if (found < 0 || part != parts)
            continue;
        int64_t *more = realloc(step, (size_t)(count + 1) * sizeof(*step));
        if (more == NULL) {
            status = tess_fail(TESS_ERR_MEMORY, "no memory for the list of checkpoints");
            break;
        }
        step = more;
        step[count++] = found;
    }
    closedir(open);
    if (status != TESS_OK) {
        free(step);
        return status;
    }
    if (count > 0)
        qsort(step, (size_t)count, sizeof(*step), checkpoint_by_step);
    *step_out = step;
    *count_out = count;
    return TESS_OK;
}

enum tess_status tess_checkpoint_list(const char *run, int64_t **step_out, int32_t *count_out)
{
    return checkpoint_find(run, false, step_out, count_out);
}

void tess_checkpoint_drop(const char *run, int64_t step)
{
    char path[TESS_CHECKPOINT_PATH];
    if (tess_checkpoint_path(run, step, true, path) == TESS_OK)
        (void)checkpoint_delete(path);
}

enum tess_status tess_checkpoint_remove(const char *run, int64_t step)
{
    char path[TESS_CHECKPOINT_PATH], part[TESS_CHECKPOINT_PATH];
    TESS_TRY(tess_checkpoint_path(run, step, false, path));
    TESS_TRY(tess_checkpoint_path(run, step, true, part));
    (void)checkpoint_delete(part);
    if (rename(path, part) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    const int error = checkpoint_delete(part);
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot remove %s: %s", part, strerror(error));
    return TESS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum tess_status tess_checkpoint_clear(const char *run)
{
    int64_t *step;
    int32_t count;
    TESS_TRY(checkpoint_find(run, true, &step, &count));
    for (int32_t i = 0; i < count; i++)
        tess_checkpoint_drop(run, step[i]);
    free(step);
    return TESS_OK;
}

static enum tess_status checkpoint_make_file(const char *folder, const struct tess_store_file *file)
{
    char path[TESS_CHECKPOINT_PATH];
    TESS_TRY(tess__checkpoint_join(folder, file->name, path));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int error = fd < 0 ? errno : tess_file_write_at(fd, file->header, file->header_bytes, 0);
    if (error == 0)
        error = tess_file_resize(fd, file->bytes);
    /* The ranks that write it flush it: a step waits for this here. */
    if (fd >= 0 && close(fd) != 0 && error == 0)
        error = errno;
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, strerror(error));
    return TESS_OK;
}

enum tess_status tess_checkpoint_begin(const char *run, int64_t step,
                                       const struct tess_store *store)
{
    char path[TESS_CHECKPOINT_PATH];
    TESS_TRY(tess_checkpoint_clear(run));
    TESS_TRY(tess_checkpoint_path(run, step, true, path));
    TESS_TRY(tess_file_make_folders(path, "the checkpoint"));
    enum tess_status status = TESS_OK;
    for (int32_t f = 0; f < store->file_count && status == TESS_OK; f++)
        status = checkpoint_make_file(path, &store->file[f]);
    if (status != TESS_OK)
        (void)checkpoint_delete(path);
    return status;
}

/* fd [files of the store]; -1 in all after a failure. */
static enum tess_status checkpoint_open_in(const char *folder, const struct tess_store *store,
                                           int flags, int *fd)
{
    char path[TESS_CHECKPOINT_PATH];
    enum tess_status status = TESS_OK;
    int error = 0;
    for (int32_t f = 0; f < store->file_count; f++)
        fd[f] = -1;
    for (int32_t f = 0; f < store->file_count && status == TESS_OK; f++) {
        status = tess__checkpoint_join(folder, store->file[f].name, path);
        if (status == TESS_OK)
            fd[f] = open(path, flags | O_CLOEXEC | O_NONBLOCK);
        if (status == TESS_OK && fd[f] < 0) {
            error = errno;
            status = tess_fail(TESS_ERR_IO, "cannot open %s: %s", path, strerror(error));
        }
    }
    for (int32_t f = 0; f < store->file_count && status != TESS_OK; f++) {
        if (fd[f] >= 0)
            close(fd[f]);
        fd[f] = -1;
    }
    errno = error;
    return status;
}

enum tess_status tess_checkpoint_open_files(const char *run, int64_t step,
                                            const struct tess_store *store, int *fd)
{
    char path[TESS_CHECKPOINT_PATH];
    TESS_TRY(tess_checkpoint_path(run, step, true, path));
    return checkpoint_open_in(path, store, O_WRONLY, fd);
}

enum tess_status tess_checkpoint_prune(const char *run, int64_t keep)
{
    int64_t *step;
    int32_t count;
    enum tess_status status = TESS_OK;
    if (keep == 0)
        return TESS_OK;
    TESS_TRY(tess_checkpoint_list(run, &step, &count));
    for (int32_t i = 0; i < count - keep; i++)
        TESS_KEEP(status, tess_checkpoint_remove(run, step[i]));
    free(step);
    return status;
}

enum tess_status tess_checkpoint_end(const char *run, const struct tess_store *store,
                                     const struct tess_checkpoint_state *state,
                                     const struct tess_declare *model)
{
    char part[TESS_CHECKPOINT_PATH], path[TESS_CHECKPOINT_PATH], parent[TESS_CHECKPOINT_PATH];
    char index[TESS_CHECKPOINT_PATH];
    TESS_TRY(tess_checkpoint_path(run, state->step, true, part));
    TESS_TRY(tess_checkpoint_path(run, state->step, false, path));
    TESS_TRY(tess__checkpoint_join(run, CHECKPOINT_FOLDER, parent));
    TESS_TRY(tess__checkpoint_join(part, TESS__CHECKPOINT_INDEX, index));
    TESS_TRY(tess_file_write(index, store->index, strlen(store->index)));
    TESS_TRY(tess__checkpoint_write_state(part, store, state, model));
    int error = tess_file_sync_folder(part);
    if (error == 0 && rename(part, path) != 0)
        error = errno;
    if (error == 0)
        error = tess_file_sync_folder(parent);
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot finish %s: %s", path, strerror(error));
    return TESS_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct tess_checkpoint {
    char folder[TESS_CHECKPOINT_PATH];
    struct tess_checkpoint_state state;
    struct tess_store store;
    const struct tess_declare *model; /* borrowed */
    int *fd;                          /* [store.file_count] */
};

static enum tess_status checkpoint_match(struct tess_checkpoint *checkpoint, int32_t arrays)
{
    char path[TESS_CHECKPOINT_PATH];
    struct tess_store *store = &checkpoint->store;
    TESS_TRY(tess_store_plan(checkpoint->model, arrays, TESS_CHECKPOINT_FILE_MOST, store));
    TESS_TRY(tess__checkpoint_read_state(checkpoint->folder, checkpoint->model, store,
                                         &checkpoint->state));
    checkpoint->fd = malloc((size_t)store->file_count * sizeof(*checkpoint->fd));
    if (checkpoint->fd == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the files of a checkpoint");
    TESS_TRY(checkpoint_open_in(checkpoint->folder, store, O_RDONLY, checkpoint->fd));
    for (int32_t f = 0; f < store->file_count; f++) {
        TESS_TRY(tess__checkpoint_join(checkpoint->folder, store->file[f].name, path));
        TESS_TRY(tess_store_match(&store->file[f], checkpoint->fd[f], path));
    }
    return TESS_OK;
}

enum tess_status tess_checkpoint_open(const char *folder, const struct tess_declare *model,
                                      int32_t arrays, struct tess_checkpoint **checkpoint_out)
{
    struct tess_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (checkpoint == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", folder);
    checkpoint->model = model;
    enum tess_status status = TESS_OK;
    if (snprintf(checkpoint->folder, sizeof(checkpoint->folder), "%s", folder) >=
        (int)sizeof(checkpoint->folder))
        status = tess_fail(TESS_ERR_USAGE, "%s: the name is too long", folder);
    if (status == TESS_OK)
        status = checkpoint_match(checkpoint, arrays);
    if (status != TESS_OK)
        tess_checkpoint_close(checkpoint);
    else
        *checkpoint_out = checkpoint;
    return status;
}

void tess_checkpoint_close(struct tess_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (int32_t f = 0; checkpoint->fd != NULL && f < checkpoint->store.file_count; f++)
        if (checkpoint->fd[f] >= 0)
            close(checkpoint->fd[f]);
    free(checkpoint->fd);
    tess_store_fini(&checkpoint->store);
    tess_checkpoint_state_fini(&checkpoint->state);
    free(checkpoint);
}

const struct tess_checkpoint_state *tess_checkpoint_state_of(
    const struct tess_checkpoint *checkpoint)
{
    return &checkpoint->state;
}

enum tess_status tess_checkpoint_read(const struct tess_checkpoint *checkpoint, int32_t param,
                                      int32_t array, const struct tess_store_block *block, float *x,
                                      float *room)
{
    const struct tess_store_tensor *tensor = tess_store_find(&checkpoint->store, param, array);
    const int error = tess_store_read(checkpoint->fd[tensor->file], tensor, block, x, room);
    if (error == 0)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_IO, "cannot read '%s%s%s' in %s/%s: %s",
              array >= 0 ? tess_store_array_name[array] : "", array >= 0 ? "." : "",
              checkpoint->model->param[param].name, checkpoint->folder,
              checkpoint->store.file[tensor->file].name,
              error > 0 ? strerror(error) : "it has become shorter");
}

enum tess_status tess_checkpoint_compare(const struct tess_checkpoint *checkpoint,
                                         const uint64_t *check, uint64_t times)
{
    const struct tess_store *store = &checkpoint->store;
    for (int32_t a = -1; a < store->arrays; a++)
        for (int32_t p = 0; p < store->param_count; p++) {
            const int32_t at = (a + 1) * store->param_count + p;
            const int32_t file = tess_store_find(store, p, a)->file;
            if (file >= 0 && check[at] != times * checkpoint->state.check[at])
                TESS_FAIL(TESS_ERR_DATA,
                          "%s/%s: tensor '%s%s%s' is damaged: its check differs; remove the "
                          "checkpoint to continue from the one before",
                          checkpoint->folder, store->file[file].name,
                          a >= 0 ? tess_store_array_name[a] : "", a >= 0 ? "." : "",
                          checkpoint->model->param[p].name);
        }
    return TESS_OK;
}

/* ---- all files of a folder ------------------------------------------------------------------- */

/* visit each file; the first failure ends it. */
static enum tess_status checkpoint_each(const char *folder, const char *context, uint64_t *bytes,
                                        enum tess_status (*visit)(const char *folder,
                                                                  const char *name,
                                                                  const char *context,
                                                                  uint64_t *bytes))
{
    DIR *open = opendir(folder);
    enum tess_status status = TESS_OK;
    if (open == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(open)) != NULL && status == TESS_OK;)
        if (entry->d_name[0] != '.')
            status = visit(folder, entry->d_name, context, bytes);
    closedir(open);
    return status;
}

static enum tess_status checkpoint_add_bytes(const char *folder, const char *name,
                                             const char *context, uint64_t *bytes)
{
    char path[TESS_CHECKPOINT_PATH];
    struct stat about;
    (void)context;
    TESS_TRY(tess__checkpoint_join(folder, name, path));
    if (stat(path, &about) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    *bytes += (uint64_t)about.st_size;
    return TESS_OK;
}

enum tess_status tess_checkpoint_bytes(const char *folder, uint64_t *bytes_out)
{
    *bytes_out = 0;
    return checkpoint_each(folder, NULL, bytes_out, checkpoint_add_bytes);
}
