/*
 * A set of PNG and JPEG files: their heads are read first, which give its shape, then all of them
 * are decoded into it, by several threads. Each takes the next picture, so every one before a bad
 * one is looked at, and which one is reported does not depend on how many threads there are.
 */
#include "data/data_images.h"

#include "base/cgroup.h"
#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PICTURE_THREADS_MAX 16
#define PICTURE_FEW         32 /* pictures of a thread at least: what it takes to start one */
#define PICTURE_BYTES_MAX   ((size_t)256 << 20)

/* ---- a file ---------------------------------------------------------------------------------- */

static enum tess_status picture_read_all(struct tess__image_file *file, int fd, const char *path,
                                         char why[TESS__IMAGE_WHY])
{
    file->count = tess_file_read(fd, file->byte, file->room, -1);
    if (file->count < file->room && errno != 0) {
        snprintf(why, TESS__IMAGE_WHY, "%s: cannot read: %s", path, strerror(errno));
        return TESS_ERR_IO;
    }
    return TESS_OK;
}

enum tess_status tess__image_file_read(struct tess__image_file *file, const char *path,
                                       size_t bytes_max, char why[TESS__IMAGE_WHY])
{
    struct stat about;
    enum tess_status status = TESS_OK;
    /* O_NONBLOCK: a FIFO must be refused below, not waited for. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) {
        snprintf(why, TESS__IMAGE_WHY, "%s: cannot open: %s", path, strerror(errno));
        status = TESS_ERR_IO;
    } else if (!S_ISREG(about.st_mode)) {
        snprintf(why, TESS__IMAGE_WHY, "%s: not a regular file", path);
        status = TESS_ERR_DATA;
    } else if ((uint64_t)about.st_size > bytes_max) {
        snprintf(why, TESS__IMAGE_WHY, "%s: %lld bytes, more than the %zu MiB that are read of one",
                 path, (long long)about.st_size, bytes_max >> 20);
        status = TESS_ERR_DATA;
    } else {
        free(file->byte);
        file->room = (size_t)about.st_size;
        file->byte = malloc(file->room + 1);
        if (file->byte == NULL) {
            snprintf(why, TESS__IMAGE_WHY, "%s: no memory for %zu bytes", path, file->room);
            status = TESS_ERR_MEMORY;
        } else {
            status = picture_read_all(file, fd, path, why);
        }
    }
    if (fd >= 0)
        close(fd);
    return status;
}

/* `why` without the name. */
static enum tess_status picture_decode(const struct tess__image_file *file,
                                       struct tess__picture *picture, uint8_t *pixel,
                                       char why[TESS__IMAGE_WHY])
{
    if (file->count >= 8 && memcmp(file->byte, "\x89PNG\r\n\x1a\n", 8) == 0)
        return tess__png_read(file->byte, file->count, picture, pixel, why);
    if (file->count >= 3 && memcmp(file->byte, "\xff\xd8\xff", 3) == 0)
        return tess__jpeg_read(file->byte, file->count, picture, pixel, why);
    snprintf(why, TESS__IMAGE_WHY, "%s",
             file->count == 0 ? "an empty file" : "neither PNG nor JPEG by its first bytes");
    return TESS_ERR_DATA;
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct picture_load {
    const struct tess__picture_name *name;
    int64_t count, train_count;
    int32_t size;
    struct tess__picture *picture; /* [count] heads */
    struct tess_dataset *dataset;  /* NULL: only heads are read */
    atomic_llong next;
    atomic_llong failed; /* number of the first bad one; count: none */
    pthread_mutex_t lock;
    enum tess_status status; /* of `failed`, as `why`; guarded by lock */
    char why[TESS__IMAGE_WHY];
};

/* What a thread works in. */
struct picture_room {
    struct tess__image_file file;
    uint8_t *pixel; /* a picture that is to be scaled */
    size_t pixel_bytes;
    char why[TESS__IMAGE_WHY];
};

static enum tess_status picture_check_head(const struct tess__picture *picture,
                                           char why[TESS__IMAGE_WHY])
{
    const int64_t height = picture->height, width = picture->width;
    if (height >= 1 && width >= 1 && height <= TESS__PICTURE_SIDE_MAX &&
        width <= TESS__PICTURE_SIDE_MAX && height * width <= TESS__PICTURE_PIXELS_MAX)
        return TESS_OK;
    snprintf(why, TESS__IMAGE_WHY,
             "its head says %lld x %lld pixels: at most %d on a side and %lld in all are read",
             (long long)width, (long long)height, TESS__PICTURE_SIDE_MAX,
             (long long)TESS__PICTURE_PIXELS_MAX);
    return TESS_ERR_DATA;
}

static enum tess_status picture_load_scaled(const struct picture_load *load, int64_t i,
                                            struct picture_room *room, uint8_t *target)
{
    struct tess__picture whole = load->picture[i];
    whole.channels = (int32_t)load->dataset->row.dim[2];
    const size_t bytes = (size_t)whole.height * (size_t)whole.width * (size_t)whole.channels;
    if (bytes > room->pixel_bytes) {
        free(room->pixel);
        room->pixel = malloc(bytes);
        room->pixel_bytes = room->pixel != NULL ? bytes : 0;
    }
    if (room->pixel == NULL) {
        snprintf(room->why, sizeof(room->why), "no memory for its %zu bytes", bytes);
        return TESS_ERR_MEMORY;
    }
    const enum tess_status status = picture_decode(&room->file, &whole, room->pixel, room->why);
    return status == TESS_OK
               ? tess__picture_scale(&whole, room->pixel, load->size, target, room->why)
               : status;
}

static enum tess_status picture_load_pixels(const struct picture_load *load, int64_t i,
                                            struct picture_room *room)
{
    const struct tess_dataset *dataset = load->dataset;
    const bool train = i < load->train_count;
    const struct tess_split *split = train ? &dataset->train : &dataset->test;
    const int64_t at = train ? i : i - load->train_count;
    uint8_t *target = split->image + at * tess_shape_count(&dataset->row);
    struct tess__picture picture = load->picture[i];
    picture.channels = (int32_t)dataset->row.dim[2];
    split->label[at] = load->name[i].label;
    return load->size > 0 ? picture_load_scaled(load, i, room, target)
                          : picture_decode(&room->file, &picture, target, room->why);
}

/* Sets room->why, with the name. */
static enum tess_status picture_load_one(const struct picture_load *load, int64_t i,
                                         struct picture_room *room)
{
    const char *path = load->name[i].path;
    TESS_TRY(tess__image_file_read(&room->file, path, PICTURE_BYTES_MAX, room->why));
    enum tess_status status;
    if (load->dataset != NULL) {
        status = picture_load_pixels(load, i, room);
    } else {
        status = picture_decode(&room->file, &load->picture[i], NULL, room->why);
        if (status == TESS_OK)
            status = picture_check_head(&load->picture[i], room->why);
    }
    if (status != TESS_OK) {
        char reason[512];
        snprintf(reason, sizeof(reason), "%.511s", room->why);
        snprintf(room->why, sizeof(room->why), "%s: %s", path, reason);
    }
    return status;
}

static void picture_note(struct picture_load *load, int64_t i, enum tess_status status,
                         const char *why)
{
    pthread_mutex_lock(&load->lock);
    if (i < atomic_load(&load->failed)) {
        atomic_store(&load->failed, i);
        load->status = status;
        snprintf(load->why, sizeof(load->why), "%s", why);
    }
    pthread_mutex_unlock(&load->lock);
}

static void *picture_work(void *argument)
{
    struct picture_load *load = argument;
    struct picture_room *room = calloc(1, sizeof(*room));
    int64_t i = 0;
    if (room == NULL)
        picture_note(load, 0, TESS_ERR_MEMORY, "no memory to decode pictures");
    while (room != NULL && (i = atomic_fetch_add(&load->next, 1)) < atomic_load(&load->failed)) {
        const enum tess_status status = picture_load_one(load, i, room);
        if (status != TESS_OK)
            picture_note(load, i, status, room->why);
    }
    if (room != NULL) {
        free(room->file.byte);
        free(room->pixel);
    }
    free(room);
    return NULL;
}

/* This thread and others, fewer if the system refuses. */
static enum tess_status picture_load_all(struct picture_load *load)
{
    pthread_t thread[PICTURE_THREADS_MAX];
    int32_t started = 0;
    sigset_t all, before;
    int64_t wanted = tess_cores() - 1;
    if (wanted > load->count / PICTURE_FEW)
        wanted = load->count / PICTURE_FEW;
    atomic_store(&load->next, 0);
    atomic_store(&load->failed, load->count);
    sigfillset(&all); /* signals are for the caller's own thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < wanted && started < PICTURE_THREADS_MAX &&
           pthread_create(&thread[started], NULL, picture_work, load) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    picture_work(load);
    for (int32_t t = 0; t < started; t++)
        pthread_join(thread[t], NULL);
    if (atomic_load(&load->failed) < load->count)
        TESS_FAIL(load->status, "%s", load->why);
    return TESS_OK;
}

/* The shape of the set, from all heads. */
static enum tess_status picture_shape(const struct picture_load *load, struct tess_shape *row_out)
{
    const struct tess__picture *first = &load->picture[0];
    int32_t channels = 1;
    for (int64_t i = 0; i < load->count; i++) {
        const struct tess__picture *picture = &load->picture[i];
        channels = picture->channels > channels ? picture->channels : channels;
        if (load->size == 0 && (picture->height != first->height || picture->width != first->width))
            TESS_FAIL(TESS_ERR_DATA,
                      "%s has %d x %d pixels, but %s has %d x %d: all images of a set have one "
                      "size; --data.size N scales and cuts them to N x N",
                      load->name[i].path, picture->width, picture->height, load->name[0].path,
                      first->width, first->height);
    }
    *row_out = load->size > 0 ? tess_shape3(load->size, load->size, channels)
                              : tess_shape3(first->height, first->width, channels);
    const uint64_t test_count = (uint64_t)(load->count - load->train_count);
    if (tess__dataset_bytes(*row_out, (uint64_t)load->train_count, test_count) >
        tess__dataset_bytes_max())
        TESS_FAIL(TESS_ERR_DATA,
                  "%s and %lld others of %lld x %lld pixels are more than the %.1f GiB of "
                  "memory that this process may use; --data.size N makes them smaller",
                  load->name[0].path, (long long)load->count - 1, (long long)row_out->dim[1],
                  (long long)row_out->dim[0], tess__dataset_gib_max());
    return TESS_OK;
}

static enum tess_status picture_fill(struct picture_load *load, int32_t class_count)
{
    struct tess_shape row;
    TESS_TRY(picture_load_all(load));
    TESS_TRY(picture_shape(load, &row));
    TESS_TRY(tess__dataset_new(row, class_count, load->train_count, load->count - load->train_count,
                               &load->dataset));
    TESS_TRY(picture_load_all(load));
    tess__dataset_seal(load->dataset);
    return TESS_OK;
}

enum tess_status tess__pictures_open(const struct tess__picture_name *name, int64_t train_count,
                                     int64_t test_count, int32_t class_count, int32_t size,
                                     struct tess_dataset **dataset_out)
{
    struct picture_load *load = calloc(1, sizeof(*load));
    const int64_t count = train_count + test_count;
    if (load == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read pictures");
    load->name = name;
    load->count = count;
    load->train_count = train_count;
    load->size = size;
    load->picture = calloc((size_t)count, sizeof(*load->picture));
    pthread_mutex_init(&load->lock, NULL);
    const enum tess_status status =
        load->picture != NULL
            ? picture_fill(load, class_count)
            : tess_fail(TESS_ERR_MEMORY, "no memory for the sizes of %lld pictures",
                        (long long)count);
    if (status == TESS_OK)
        *dataset_out = load->dataset;
    else
        tess_dataset_close(load->dataset);
    pthread_mutex_destroy(&load->lock);
    free(load->picture);
    free(load);
    return status;
}
