/*
 * The IDX files of MNIST-like sets, plain or gzipped. Every byte is read and checked before
 * anything uses it: a file from outside can make this fail, with a message, and nothing else.
 */
#include "data/data_images.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* Sets of three dimensions with these file names (MNIST, Fashion-MNIST, KMNIST, QMNIST) have ten
 * classes; the files do not have the number. Of four dimensions it is found in the labels. */
#define IDX_CLASS_COUNT 10
#define IDX_CLASSES_MAX 65536 /* a label has 16 bits */

#define IDX_CHANNELS_MAX 4

/* Deflate cannot shrink data by more than this factor (zlib's technical notes). */
#define IDX_DEFLATE_RATIO_MAX 1032

#define IDX_BUFFER_BYTES 65536

/* ---- one IDX file -------------------------------------------------------------------------- */

enum idx_part { IDX_TRAIN_IMAGES, IDX_TRAIN_LABELS, IDX_TEST_IMAGES, IDX_TEST_LABELS, IDX_PARTS };

static const struct {
    const char *name;
    int32_t dim_count;
    const char *channels; /* the name of images that have channels, a dimension more; NULL: none */
} idx_known[IDX_PARTS] = {
    [IDX_TRAIN_IMAGES] = {"train-images-idx3-ubyte", 3, "train-images-idx4-ubyte"},
    [IDX_TRAIN_LABELS] = {"train-labels-idx1-ubyte", 1, NULL},
    [IDX_TEST_IMAGES] = {"t10k-images-idx3-ubyte", 3, "t10k-images-idx4-ubyte"},
    [IDX_TEST_LABELS] = {"t10k-labels-idx1-ubyte", 1, NULL},
};

struct idx_file {
    int fd; /* -1: not open */
    bool gz;
    bool inflating;  /* z is initialised; its totals are of the current gzip member */
    bool any_member; /* one member is complete, its CRC and length checked */
    z_stream z;
    uint64_t file_bytes;
    int32_t dim_count; /* that its name promises */
    uint32_t dim[4];
    uint32_t width; /* bytes of an element, big-endian: 1, of labels also 2 and 4 */
    uint64_t body_bytes;
    uint8_t *body;   /* where the data go */
    uint8_t *labels; /* owned: that of labels */
    enum tess_status status;
    char why[PATH_MAX + 512]; /* set with status: the message for the thread that reports */
    char path[PATH_MAX];
    uint8_t buffer[IDX_BUFFER_BYTES];
};

/* Files are read by several threads and messages belong to a thread: keep it for the caller's. */
static enum tess_status TESS_PRINTF(3, 4)
    idx_fail(struct idx_file *file, enum tess_status status, const char *format, ...)
{
    const int length = snprintf(file->why, sizeof(file->why), "%s: ", file->path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(file->why + length, sizeof(file->why) - (size_t)length, format, arguments);
    va_end(arguments);
    return file->status = status;
}

static void idx_close(struct idx_file *file)
{
    free(file->labels);
    if (file->inflating)
        inflateEnd(&file->z);
    if (file->fd >= 0)
        close(file->fd);
}

/* Open folder/name.suffix; *found_out: is there such a file? */
static enum tess_status idx_open_path(struct idx_file *file, const char *folder, const char *name,
                                      const char *suffix, bool *found_out)
{
    struct stat about;
    const int length = snprintf(file->path, sizeof(file->path), "%s/%s%s", folder, name, suffix);
    *found_out = false;
    if (length < 0 || (size_t)length >= sizeof(file->path))
        return idx_fail(file, TESS_ERR_USAGE, "the path of the data folder is too long");
    /* O_NONBLOCK: a FIFO must be refused below, not waited for. */
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return TESS_OK;
    *found_out = true;
    if (file->fd < 0 || fstat(file->fd, &about) != 0)
        return idx_fail(file, TESS_ERR_IO, "cannot open: %s", strerror(errno));
    if (!S_ISREG(about.st_mode))
        return idx_fail(file, TESS_ERR_DATA, "not a regular file");
    file->file_bytes = (uint64_t)about.st_size;
    return TESS_OK;
}

/* Plain, or else gzipped. */
static enum tess_status idx_open_name(struct idx_file *file, const char *folder, const char *name,
                                      bool *found_out)
{
    TESS_TRY(idx_open_path(file, folder, name, "", found_out));
    if (*found_out)
        return TESS_OK;
    TESS_TRY(idx_open_path(file, folder, name, ".gz", found_out));
    file->gz = *found_out;
    return TESS_OK;
}

static enum tess_status idx_open(struct idx_file *file, const char *folder, enum idx_part part)
{
    const char *name = idx_known[part].name;
    bool found;
    file->dim_count = idx_known[part].dim_count;
    TESS_TRY(idx_open_name(file, folder, name, &found));
    if (!found && idx_known[part].channels != NULL) {
        file->dim_count++;
        TESS_TRY(idx_open_name(file, folder, idx_known[part].channels, &found));
    }
    if (!found) {
        file->status = TESS_ERR_NOT_FOUND;
        static const char help[] =
            "give the folder with --data (Debian's package dataset-fashion-mnist puts files into "
            "/usr/share/datasets/fashion-mnist), or use --data synthetic";
        if (access(folder, F_OK) != 0)
            snprintf(file->why, sizeof(file->why), "no data set in %s: there is no such folder; %s",
                     folder, help);
        else
            snprintf(file->why, sizeof(file->why),
                     "no data set in %s: neither %s nor %s.gz is there, nor CIFAR's .bin files, "
                     "nor folders of classes with images; %s",
                     folder, name, name, help);
        return file->status;
    }
    if (!file->gz)
        return TESS_OK;
    if (inflateInit2(&file->z, 15 + 16) != Z_OK) /* greatest window; gzip framing with its CRC */
        return idx_fail(file, TESS_ERR_MEMORY, "no memory to decompress");
    file->inflating = true;
    return TESS_OK;
}

static enum tess_status idx_read_raw(struct idx_file *file, uint8_t *target, size_t bytes,
                                     size_t *got_out)
{
    *got_out = tess_file_read(file->fd, target, bytes, -1);
    if (*got_out < bytes && errno != 0)
        return idx_fail(file, TESS_ERR_IO, "cannot read: %s", strerror(errno));
    return TESS_OK;
}

static enum tess_status idx_fail_inflate(struct idx_file *file, int code)
{
    if (code == Z_MEM_ERROR)
        return idx_fail(file, TESS_ERR_MEMORY, "no memory to decompress");
    if (file->any_member && file->z.total_out == 0)
        return idx_fail(file, TESS_ERR_DATA,
                        "trailing bytes after the end of the gzip data: fetch the file again");
    return idx_fail(file, TESS_ERR_DATA, "corrupt gzip data (%s): fetch the file again",
                    file->z.msg != NULL ? file->z.msg : "not in gzip format");
}

/* Decompress into `target`. Members that follow each other are one stream, as for gunzip. */
static enum tess_status idx_read_gz(struct idx_file *file, uint8_t *target, size_t bytes,
                                    size_t *got_out)
{
    z_stream *z = &file->z;
    size_t got = 0;
    while (got < bytes) {
        if (z->avail_in == 0) {
            size_t filled = 0;
            TESS_TRY(idx_read_raw(file, file->buffer, sizeof(file->buffer), &filled));
            if (filled == 0 && file->any_member && z->total_in == 0)
                break;
            if (filled == 0)
                return idx_fail(file, TESS_ERR_DATA,
                                "truncated: the gzip data end too early; fetch the file again");
            z->next_in = file->buffer;
            z->avail_in = (uInt)filled;
        }
        const size_t room = bytes - got < INT_MAX ? bytes - got : INT_MAX;
        z->next_out = target + got;
        z->avail_out = (uInt)room;
        const int code = inflate(z, Z_NO_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return idx_fail_inflate(file, code);
        got += room - z->avail_out;
        if (code == Z_STREAM_END) {
            file->any_member = true;
            inflateReset(z);
        }
    }
    *got_out = got;
    return TESS_OK;
}

/* Read `bytes`, or fewer at the end of the data. */
static enum tess_status idx_read(struct idx_file *file, uint8_t *target, size_t bytes,
                                 size_t *got_out)
{
    return file->gz ? idx_read_gz(file, target, bytes, got_out)
                    : idx_read_raw(file, target, bytes, got_out);
}

static uint32_t idx_big_endian(const uint8_t *byte)
{
    return (uint32_t)byte[0] << 24 | (uint32_t)byte[1] << 16 | (uint32_t)byte[2] << 8 | byte[3];
}

/* Read and check the header: two zero bytes, type 8 (unsigned byte), dimensions, their sizes. */
static enum tess_status idx_read_header(struct idx_file *file)
{
    uint8_t header[20];
    const int32_t dim_count = file->dim_count;
    const size_t header_bytes = 4 + 4 * (size_t)dim_count;
    const uint32_t magic = 0x0800u | (uint32_t)dim_count;
    const uint32_t magic16 = 0x0b00u | magic, magic32 = 0x0c00u | (uint32_t)dim_count;
    size_t got;
    TESS_TRY(idx_read(file, header, header_bytes, &got));
    const uint32_t found = got >= 4 ? idx_big_endian(header) : magic;
    file->width = dim_count > 1 ? 1 : found == magic16 ? 2 : found == magic32 ? 4 : 1;
    if (found != magic && file->width == 1)
        return idx_fail(
            file, TESS_ERR_DATA,
            "wrong magic number 0x%08x: expected 0x%08x (IDX, unsigned bytes, %d dimension%s)",
            found, magic, (int)dim_count, dim_count == 1 ? "" : "s");
    if (got < header_bytes)
        return idx_fail(file, TESS_ERR_DATA,
                        "truncated: %zu bytes where the IDX header alone has %zu", got,
                        header_bytes);
    file->body_bytes = file->width;
    for (int32_t d = 0; d < dim_count; d++) {
        file->dim[d] = idx_big_endian(header + 4 + 4 * d);
        if (file->dim[d] == 0)
            return idx_fail(file, TESS_ERR_DATA, "dimension %d of the IDX header is 0", (int)d);
        file->body_bytes = tess__dataset_product(file->body_bytes, file->dim[d]);
        if (file->body_bytes > tess__dataset_bytes_max())
            return idx_fail(file, TESS_ERR_DATA,
                            "the IDX header is oversized: dimension %d is %u, which makes more "
                            "than the %.1f GiB of memory that this process may use",
                            (int)d, file->dim[d], tess__dataset_gib_max());
    }
    const uint64_t expected = header_bytes + file->body_bytes;
    if (!file->gz && file->file_bytes != expected)
        return idx_fail(file, TESS_ERR_DATA, "%s: %llu bytes, but the IDX header needs %llu",
                        file->file_bytes < expected ? "truncated" : "trailing bytes",
                        (unsigned long long)file->file_bytes, (unsigned long long)expected);
    if (file->gz && file->body_bytes / IDX_DEFLATE_RATIO_MAX > file->file_bytes)
        return idx_fail(file, TESS_ERR_DATA,
                        "truncated or oversized: the IDX header needs %llu bytes, more than %llu "
                        "bytes of gzip can hold",
                        (unsigned long long)expected, (unsigned long long)file->file_bytes);
    return TESS_OK;
}

/* Read what follows the header, all of it and nothing more; sets file->status. */
static enum tess_status idx_read_body(struct idx_file *file)
{
    uint8_t extra;
    size_t got;
    TESS_TRY(idx_read(file, file->body, (size_t)file->body_bytes, &got));
    if (got < file->body_bytes)
        return idx_fail(file, TESS_ERR_DATA,
                        "truncated: %zu bytes of data, but the IDX header needs %llu", got,
                        (unsigned long long)file->body_bytes);
    /* For gzip this also reads the trailer and so checks CRC and length. */
    TESS_TRY(idx_read(file, &extra, 1, &got));
    if (got != 0)
        return idx_fail(
            file, TESS_ERR_DATA,
            "trailing bytes: the data go on after the %llu bytes that the IDX header needs",
            (unsigned long long)file->body_bytes);
    return TESS_OK;
}

/* ---- the four files of a set --------------------------------------------------------------- */

static enum tess_status idx_check_counts(struct idx_file *file, enum idx_part image,
                                         enum idx_part label)
{
    if (file[image].dim[0] != file[label].dim[0])
        TESS_FAIL(TESS_ERR_DATA, "%s has %u images, but %s has %u labels", file[image].path,
                  file[image].dim[0], file[label].path, file[label].dim[0]);
    return TESS_OK;
}

/* Do the four headers fit each other? Then allocate the set. */
static enum tess_status idx_allocate(struct idx_file *file, struct tess_dataset **dataset_out)
{
    const struct idx_file *train = &file[IDX_TRAIN_IMAGES], *test = &file[IDX_TEST_IMAGES];
    TESS_TRY(idx_check_counts(file, IDX_TRAIN_IMAGES, IDX_TRAIN_LABELS));
    TESS_TRY(idx_check_counts(file, IDX_TEST_IMAGES, IDX_TEST_LABELS));
    const uint32_t channels = train->dim_count == 4 ? train->dim[3] : 1;
    const uint32_t test_channels = test->dim_count == 4 ? test->dim[3] : 1;
    if (train->dim[1] != test->dim[1] || train->dim[2] != test->dim[2] || channels != test_channels)
        TESS_FAIL(TESS_ERR_DATA, "%s has images of %u x %u x %u, but %s has %u x %u x %u",
                  train->path, train->dim[1], train->dim[2], channels, test->path, test->dim[1],
                  test->dim[2], test_channels);
    if (channels > IDX_CHANNELS_MAX)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: the last dimension of the IDX header is %u: expected 1 to %d channels, the "
                  "dimensions are images, height, width, channels",
                  train->path, channels, IDX_CHANNELS_MAX);
    const struct tess_shape row = tess_shape3(train->dim[1], train->dim[2], channels);
    if (tess__dataset_bytes(row, train->dim[0], test->dim[0]) > tess__dataset_bytes_max())
        TESS_FAIL(TESS_ERR_DATA,
                  "%s and %s together are oversized: more than the %.1f GiB of memory that "
                  "this process may use",
                  train->path, test->path, tess__dataset_gib_max());
    TESS_TRY(tess__dataset_new(row, IDX_CLASS_COUNT, train->dim[0], test->dim[0], dataset_out));
    file[IDX_TRAIN_IMAGES].body = (*dataset_out)->train.image;
    file[IDX_TEST_IMAGES].body = (*dataset_out)->test.image;
    for (int32_t part = IDX_TRAIN_LABELS; part < IDX_PARTS;
         part += IDX_TEST_LABELS - IDX_TRAIN_LABELS) {
        file[part].body = file[part].labels = malloc((size_t)file[part].body_bytes);
        if (file[part].labels == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the labels of %s", file[part].path);
    }
    return TESS_OK;
}

static void *idx_body_thread(void *file)
{
    (void)idx_read_body(file); /* its status and message are in the file */
    return NULL;
}

/*
 * The training images are nearly all of the bytes: one thread inflates them while this one reads
 * the other files. A gzip stream cannot be cut further.
 */
static void idx_read_bodies(struct idx_file *file)
{
    pthread_t thread;
    const bool threaded =
        pthread_create(&thread, NULL, idx_body_thread, &file[IDX_TRAIN_IMAGES]) == 0;
    for (int32_t part = threaded ? IDX_TRAIN_LABELS : 0; part < IDX_PARTS; part++)
        (void)idx_read_body(&file[part]);
    if (threaded)
        pthread_join(thread, NULL);
}

/* Of label i, as it is in the file: what is negative is a very great one. */
static uint32_t idx_label(const struct idx_file *file, uint32_t i)
{
    const uint8_t *byte = file->body + (size_t)i * file->width;
    return file->width == 4   ? idx_big_endian(byte)
           : file->width == 2 ? (uint32_t)(int16_t)(byte[0] << 8 | byte[1])
                              : byte[0];
}

/* Classes are numbered from 0: the greatest training label is the last one. */
static int32_t idx_class_count(const struct idx_file *image, const struct idx_file *label)
{
    const bool counts = image->dim_count == 4 || label->width > 1;
    int32_t count = counts ? 1 : IDX_CLASS_COUNT;
    for (uint32_t i = 0; i < label->dim[0] && counts; i++) {
        const uint32_t at = idx_label(label, i);
        count = at < IDX_CLASSES_MAX && (int32_t)at >= count ? (int32_t)at + 1 : count;
    }
    return count;
}

/* To the split. */
static enum tess_status idx_take_labels(struct idx_file *file, int32_t class_count,
                                        struct tess_split *split)
{
    for (uint32_t i = 0; i < file->dim[0]; i++) {
        const uint32_t label = idx_label(file, i);
        if (label >= (uint32_t)class_count)
            return idx_fail(file, TESS_ERR_DATA,
                            "label out of range: label %u (counted from 0) is %d, expected 0 to %d",
                            i, (int32_t)label, class_count - 1);
        split->label[i] = (uint16_t)label;
    }
    return TESS_OK;
}

static enum tess_status idx_report(const struct idx_file *file)
{
    for (int32_t part = 0; part < IDX_PARTS; part++) {
        if (file[part].status != TESS_OK)
            TESS_FAIL(file[part].status, "%s", file[part].why);
    }
    return TESS_OK;
}

static enum tess_status idx_load(const char *folder, struct idx_file *file,
                                 struct tess_dataset **dataset_out)
{
    for (int32_t part = 0; part < IDX_PARTS; part++) {
        if (idx_open(&file[part], folder, part) != TESS_OK ||
            idx_read_header(&file[part]) != TESS_OK)
            return idx_report(file);
    }
    TESS_TRY(idx_allocate(file, dataset_out));
    idx_read_bodies(file);
    TESS_TRY(idx_report(file));
    const int32_t classes = idx_class_count(&file[IDX_TRAIN_IMAGES], &file[IDX_TRAIN_LABELS]);
    (*dataset_out)->class_count = classes;
    if (idx_take_labels(&file[IDX_TRAIN_LABELS], classes, &(*dataset_out)->train) != TESS_OK ||
        idx_take_labels(&file[IDX_TEST_LABELS], classes, &(*dataset_out)->test) != TESS_OK)
        return idx_report(file);
    tess__dataset_seal(*dataset_out);
    return TESS_OK;
}

enum tess_status tess_dataset_open_idx(const char *folder, struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset = NULL;
    struct idx_file *file = calloc(IDX_PARTS, sizeof(*file));
    if (file == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate %zu bytes to read the data set",
                  IDX_PARTS * sizeof(*file));
    for (int32_t part = 0; part < IDX_PARTS; part++)
        file[part].fd = -1;
    const enum tess_status status = idx_load(folder[0] != '\0' ? folder : ".", file, &dataset);
    for (int32_t part = 0; part < IDX_PARTS; part++)
        idx_close(&file[part]);
    free(file);
    if (status != TESS_OK)
        tess_dataset_close(dataset);
    else
        *dataset_out = dataset;
    return status;
}

bool tess__idx_is_there(const char *folder)
{
    char path[PATH_MAX];
    struct stat about;
    bool found = false;
    for (int32_t part = 0; part < IDX_PARTS && !found; part++)
        for (int i = 0; i < 4 && !found; i++) {
            const char *name = i < 2 ? idx_known[part].name : idx_known[part].channels;
            found = name != NULL &&
                    snprintf(path, sizeof(path), "%s/%s%s", folder, name, i % 2 ? ".gz" : "") <
                        PATH_MAX &&
                    lstat(path, &about) == 0;
        }
    return found;
}
