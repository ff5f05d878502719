/*
 * The binary version of CIFAR-10 and CIFAR-100: records of one label (of CIFAR-100 two, of which
 * the fine one counts) and 32 x 32 pixels, all red ones first, then all green and all blue ones.
 */
#include "data/data_images.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CIFAR_SIDE   32
#define CIFAR_PIXELS (CIFAR_SIDE * CIFAR_SIDE)
#define CIFAR_FILES  6

/* The last file is for validation. */
static const struct cifar_kind {
    const char *file[CIFAR_FILES]; /* the others before it are NULL where there are fewer */
    size_t labels;                 /* bytes of a record before the pixels; the last one counts */
    int32_t class_count;
} cifar_known[] = {
    {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin", "test_batch.bin"},
     1,
     10},
    {{"train.bin", NULL, NULL, NULL, NULL, "test.bin"}, 2, 100},
};

enum { CIFAR_KINDS = sizeof(cifar_known) / sizeof(*cifar_known) };

struct cifar {
    const struct cifar_kind *kind;
    struct tess__image_file file[CIFAR_FILES];
    char path[CIFAR_FILES][PATH_MAX];
};

static size_t cifar_record(const struct cifar_kind *kind)
{
    return kind->labels + 3 * CIFAR_PIXELS;
}

/* The kind that some file of the folder belongs to; NULL: none. */
static const struct cifar_kind *cifar_find(const char *folder)
{
    char path[PATH_MAX];
    struct stat about;
    for (int k = 0; k < CIFAR_KINDS; k++)
        for (int f = 0; f < CIFAR_FILES; f++)
            if (cifar_known[k].file[f] != NULL &&
                snprintf(path, sizeof(path), "%s/%s", folder, cifar_known[k].file[f]) < PATH_MAX &&
                lstat(path, &about) == 0)
                return &cifar_known[k];
    return NULL;
}

bool tess__cifar_is_there(const char *folder)
{
    return cifar_find(folder) != NULL;
}

static enum tess_status cifar_read(struct cifar *cifar, const char *folder, int f)
{
    const struct cifar_kind *kind = cifar->kind;
    struct tess__image_file *file = &cifar->file[f];
    char why[TESS__IMAGE_WHY];
    if (snprintf(cifar->path[f], PATH_MAX, "%s/%s", folder, kind->file[f]) >= PATH_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "the path of the data folder is too long");
    const enum tess_status status =
        tess__image_file_read(file, cifar->path[f], (size_t)tess__dataset_bytes_max(), why);
    if (status != TESS_OK)
        TESS_FAIL(status, "%s", why);
    const size_t record = cifar_record(kind);
    if (file->count == 0 || file->count % record != 0)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: %zu bytes, which is not a whole number of CIFAR's records of %zu bytes: "
                  "truncated; fetch the file again",
                  cifar->path[f], file->count, record);
    for (size_t i = 0; i < file->count / record; i++) {
        const uint8_t label = file->byte[i * record + kind->labels - 1];
        if (label >= kind->class_count)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: label out of range: label %zu (counted from 0) is %d, expected 0 to %d",
                      cifar->path[f], i, label, kind->class_count - 1);
    }
    return TESS_OK;
}

/* Records to pixels whose channels lie together. */
static void cifar_copy(const struct cifar *cifar, int f, struct tess_split *split, int64_t at)
{
    const struct tess__image_file *file = &cifar->file[f];
    const size_t record = cifar_record(cifar->kind);
    for (size_t i = 0; i < file->count / record; i++) {
        const uint8_t *pixel = file->byte + i * record + cifar->kind->labels;
        uint8_t *image = split->image + (at + (int64_t)i) * 3 * CIFAR_PIXELS;
        split->label[at + (int64_t)i] = pixel[-1];
        for (int p = 0; p < CIFAR_PIXELS; p++)
            for (int c = 0; c < 3; c++)
                image[3 * p + c] = pixel[c * CIFAR_PIXELS + p];
    }
}

static enum tess_status cifar_load(struct cifar *cifar, const char *folder,
                                   struct tess_dataset **dataset_out)
{
    const int last = CIFAR_FILES - 1;
    const struct tess_shape row = tess_shape3(CIFAR_SIDE, CIFAR_SIDE, 3);
    int64_t count[2] = {0, 0}, at = 0; /* for training, for validation */
    for (int f = 0; f < CIFAR_FILES; f++) {
        if (cifar->kind->file[f] == NULL)
            continue;
        TESS_TRY(cifar_read(cifar, folder, f));
        count[f == last] += (int64_t)(cifar->file[f].count / cifar_record(cifar->kind));
    }
    if (tess__dataset_bytes(row, (uint64_t)count[0], (uint64_t)count[1]) >
        tess__dataset_bytes_max())
        TESS_FAIL(TESS_ERR_DATA, "the files in %s are more than this machine's %llu GiB of memory",
                  folder, (unsigned long long)(tess__dataset_bytes_max() >> 30));
    TESS_TRY(tess__dataset_new(row, cifar->kind->class_count, count[0], count[1], dataset_out));
    for (int f = 0; f < last; f++) {
        cifar_copy(cifar, f, &(*dataset_out)->train, at);
        at += (int64_t)(cifar->file[f].count / cifar_record(cifar->kind));
    }
    cifar_copy(cifar, last, &(*dataset_out)->test, 0);
    tess__dataset_seal(*dataset_out);
    return TESS_OK;
}

enum tess_status tess__cifar_open(const char *folder, struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset = NULL;
    struct cifar *cifar = calloc(1, sizeof(*cifar));
    if (cifar == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read the data set");
    cifar->kind = cifar_find(folder);
    const enum tess_status status = cifar_load(cifar, folder, &dataset);
    for (int f = 0; f < CIFAR_FILES; f++)
        free(cifar->file[f].byte);
    free(cifar);
    if (status != TESS_OK)
        tess_dataset_close(dataset);
    else
        *dataset_out = dataset;
    return status;
}
