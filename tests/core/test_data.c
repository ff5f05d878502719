/*
 * Data sets and samples. IDX files are made on the fly, good ones and one of every defect; then the
 * sampler, normalisation and augmentation against plain formulas. `test_data real` reads the
 * installed Fashion-MNIST (exit status 77 where it is not installed).
 */
#include "base/rng.h"
#include "core/data.h"
#include "tessera/log.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#define REAL_FOLDER "/usr/share/datasets/fashion-mnist"

/* ---- files made on the fly ---------------------------------------------------------------------
 */

enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, FILES };
static const char *const file_name[FILES] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                             "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

enum { HEIGHT = 5, WIDTH = 7, PIXELS = HEIGHT * WIDTH, TRAIN = 400, TEST = 23 };

struct blob {
    uint8_t *byte;
    size_t count;
};

/* A whole set as bytes, before compression. */
struct fixture {
    char folder[64];
    struct blob file[FILES];
};

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static struct blob make_images(uint32_t count, uint64_t stream)
{
    struct blob blob = {malloc(16 + (size_t)count * PIXELS), 16 + (size_t)count * PIXELS};
    struct tess_rng_key key = tess_rng_key(5, TESS_RNG_TEST, stream);
    put_u32(blob.byte, 0x803);
    put_u32(blob.byte + 4, count);
    put_u32(blob.byte + 8, HEIGHT);
    put_u32(blob.byte + 12, WIDTH);
    /* Few values, so that gzip has something to do. */
    for (size_t i = 16; i < blob.count; i++)
        blob.byte[i] = (uint8_t)(tess_rng_word(key, i, 0) % 3 * 100 + i % 50);
    return blob;
}

static struct blob make_labels(uint32_t count)
{
    struct blob blob = {malloc(8 + count), 8 + count};
    put_u32(blob.byte, 0x801);
    put_u32(blob.byte + 4, count);
    for (uint32_t i = 0; i < count; i++)
        blob.byte[8 + i] = (uint8_t)(i * 7 % 10);
    return blob;
}

/* gzip framing, as `gzip` makes it. */
static struct blob gzip(struct blob plain)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    const size_t room = deflateBound(&z, plain.count);
    struct blob packed = {malloc(room), 0};
    z.next_in = plain.byte;
    z.avail_in = (uInt)plain.count;
    z.next_out = packed.byte;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    packed.count = room - z.avail_out;
    deflateEnd(&z);
    return packed;
}

static struct blob join(struct blob a, struct blob b)
{
    struct blob both = {malloc(a.count + b.count), a.count + b.count};
    memcpy(both.byte, a.byte, a.count);
    if (b.count > 0)
        memcpy(both.byte + a.count, b.byte, b.count);
    return both;
}

static void path_of(char path[128], const struct fixture *fixture, int file, const char *suffix)
{
    snprintf(path, 128, "%s/%s%s", fixture->folder, file_name[file], suffix);
}

static void write_blob(const struct fixture *fixture, int file, const char *suffix,
                       struct blob blob)
{
    char path[128];
    path_of(path, fixture, file, suffix);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(blob.byte, 1, blob.count, f), blob.count);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const struct fixture *fixture, int file, const char *suffix)
{
    char path[128];
    path_of(path, fixture, file, suffix);
    if (unlink(path) != 0)
        (void)rmdir(path);
}

static void setup(struct fixture *fixture)
{
    snprintf(fixture->folder, sizeof(fixture->folder), "/tmp/tessera-test-data-XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    fixture->file[TRAIN_IMAGES] = make_images(TRAIN, 0);
    fixture->file[TRAIN_LABELS] = make_labels(TRAIN);
    fixture->file[TEST_IMAGES] = make_images(TEST, 1);
    fixture->file[TEST_LABELS] = make_labels(TEST);
    for (int i = 0; i < FILES; i++)
        write_blob(fixture, i, "", fixture->file[i]);
}

static void teardown(struct fixture *fixture)
{
    for (int i = 0; i < FILES; i++) {
        remove_file(fixture, i, "");
        remove_file(fixture, i, ".gz");
        free(fixture->file[i].byte);
    }
    assert_int_equal(rmdir(fixture->folder), 0);
}

/* Use `blob` (freed here) as the gzipped file in the place of the plain one. */
static void replace_by_gz(const struct fixture *fixture, int file, struct blob blob)
{
    remove_file(fixture, file, "");
    write_blob(fixture, file, ".gz", blob);
    free(blob.byte);
}

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void assert_same_as_fixture(const struct tess_dataset *set, const struct fixture *fixture)
{
    assert_int_equal(set->row.rank, 3);
    assert_int_equal(set->row.dim[0], HEIGHT);
    assert_int_equal(set->row.dim[1], WIDTH);
    assert_int_equal(set->row.dim[2], 1);
    assert_int_equal(set->class_count, 10);
    assert_int_equal(set->train.count, TRAIN);
    assert_int_equal(set->test.count, TEST);
    assert_memory_equal(set->train.image, fixture->file[TRAIN_IMAGES].byte + 16, TRAIN * PIXELS);
    assert_memory_equal(set->train.label, fixture->file[TRAIN_LABELS].byte + 8, TRAIN);
    assert_memory_equal(set->test.image, fixture->file[TEST_IMAGES].byte + 16, TEST * PIXELS);
    assert_memory_equal(set->test.label, fixture->file[TEST_LABELS].byte + 8, TEST);
}

static void case_good_files(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_dataset *set = NULL;
    setup(&fixture);
    assert_int_equal(tess_dataset_open_idx(fixture.folder, &set), TESS_OK);
    assert_same_as_fixture(set, &fixture);

    double sum = 0, squares = 0;
    for (int i = 0; i < TRAIN * PIXELS; i++) {
        const double p = set->train.image[i] / 255.0;
        sum += p;
        squares += p * p;
    }
    const double mean = sum / (TRAIN * PIXELS);
    /* 14,000 terms below 1, each added with a relative error of 2^-53: far below 1e-10. The result
     * is rounded to f32 once: 2^-24 of a number below 1. */
    assert_true(fabs(set->mean - mean) < 1e-7);
    assert_true(fabs(set->deviation - sqrt(squares / (TRAIN * PIXELS) - mean * mean)) < 1e-7);
    tess_dataset_close(set);

    /* Gzipped, one of them as two members that follow each other (as `cat a.gz b.gz` makes). */
    struct blob half[2] = {fixture.file[TRAIN_IMAGES], fixture.file[TRAIN_IMAGES]};
    half[0].count = 1000;
    half[1].byte += 1000;
    half[1].count -= 1000;
    struct blob packed[2] = {gzip(half[0]), gzip(half[1])};
    replace_by_gz(&fixture, TRAIN_IMAGES, join(packed[0], packed[1]));
    free(packed[0].byte);
    free(packed[1].byte);
    for (int i = TRAIN_LABELS; i < FILES; i++)
        replace_by_gz(&fixture, i, gzip(fixture.file[i]));
    assert_int_equal(tess_dataset_open_idx(fixture.folder, &set), TESS_OK);
    assert_same_as_fixture(set, &fixture);
    tess_dataset_close(set);
    tess_dataset_close(NULL);
    teardown(&fixture);
}

/* ---- one of every defect -----------------------------------------------------------------------
 */

static void defect_missing(struct fixture *f)
{
    remove_file(f, TEST_LABELS, "");
}

static void defect_magic_of_labels(struct fixture *f)
{
    put_u32(f->file[TRAIN_IMAGES].byte, 0x801);
    write_blob(f, TRAIN_IMAGES, "", f->file[TRAIN_IMAGES]);
}

static void defect_magic_of_floats(struct fixture *f)
{
    put_u32(f->file[TRAIN_LABELS].byte, 0xd01);
    write_blob(f, TRAIN_LABELS, "", f->file[TRAIN_LABELS]);
}

static void cut(struct fixture *f, int file, size_t count)
{
    struct blob blob = f->file[file];
    blob.count = count;
    write_blob(f, file, "", blob);
}

static void defect_empty(struct fixture *f)
{
    cut(f, TRAIN_IMAGES, 0);
}

static void defect_three_bytes(struct fixture *f)
{
    cut(f, TEST_LABELS, 3);
}

static void defect_half_header(struct fixture *f)
{
    cut(f, TEST_IMAGES, 10);
}

static void defect_truncated(struct fixture *f)
{
    cut(f, TRAIN_IMAGES, f->file[TRAIN_IMAGES].count - 1);
}

static void defect_trailing(struct fixture *f)
{
    uint8_t zero = 0;
    struct blob longer = join(f->file[TRAIN_LABELS], (struct blob){&zero, 1});
    write_blob(f, TRAIN_LABELS, "", longer);
    free(longer.byte);
}

static void defect_zero_dimension(struct fixture *f)
{
    put_u32(f->file[TEST_IMAGES].byte + 12, 0);
    write_blob(f, TEST_IMAGES, "", f->file[TEST_IMAGES]);
}

/* The product is 2^96 - ..., far beyond 64 bits. */
static void defect_oversized(struct fixture *f)
{
    for (int d = 0; d < 3; d++)
        put_u32(f->file[TRAIN_IMAGES].byte + 4 + 4 * d, UINT32_MAX);
    write_blob(f, TRAIN_IMAGES, "", f->file[TRAIN_IMAGES]);
}

/* 2^64 exactly: 0 when the product wraps. */
static void defect_oversized_wraps(struct fixture *f)
{
    put_u32(f->file[TRAIN_IMAGES].byte + 4, 0x80000000u);
    put_u32(f->file[TRAIN_IMAGES].byte + 8, 0x80000000u);
    put_u32(f->file[TRAIN_IMAGES].byte + 12, 4);
    write_blob(f, TRAIN_IMAGES, "", f->file[TRAIN_IMAGES]);
}

static void defect_oversized_gz(struct fixture *f)
{
    put_u32(f->file[TRAIN_IMAGES].byte + 4, 100000000u);
    replace_by_gz(f, TRAIN_IMAGES, gzip(f->file[TRAIN_IMAGES]));
}

static void defect_counts(struct fixture *f)
{
    struct blob fewer = make_labels(TRAIN - 1);
    write_blob(f, TRAIN_LABELS, "", fewer);
    free(fewer.byte);
}

static void defect_sizes(struct fixture *f)
{
    put_u32(f->file[TEST_IMAGES].byte + 8, WIDTH);
    put_u32(f->file[TEST_IMAGES].byte + 12, HEIGHT);
    write_blob(f, TEST_IMAGES, "", f->file[TEST_IMAGES]);
}

static void defect_label(struct fixture *f)
{
    f->file[TRAIN_LABELS].byte[8 + 321] = 10;
    write_blob(f, TRAIN_LABELS, "", f->file[TRAIN_LABELS]);
}

static void defect_label_gz(struct fixture *f)
{
    f->file[TEST_LABELS].byte[8] = 255;
    replace_by_gz(f, TEST_LABELS, gzip(f->file[TEST_LABELS]));
}

static void defect_folder(struct fixture *f)
{
    char path[128];
    path_of(path, f, TRAIN_LABELS, "");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void defect_fifo(struct fixture *f)
{
    char path[128];
    path_of(path, f, TEST_IMAGES, "");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void defect_gz_not_gz(struct fixture *f)
{
    replace_by_gz(f, TRAIN_LABELS, join(f->file[TRAIN_LABELS], (struct blob){NULL, 0}));
}

static void defect_gz_empty(struct fixture *f)
{
    replace_by_gz(f, TRAIN_LABELS, (struct blob){NULL, 0});
}

static void defect_gz_half(struct fixture *f)
{
    struct blob packed = gzip(f->file[TRAIN_IMAGES]);
    packed.count /= 2;
    replace_by_gz(f, TRAIN_IMAGES, packed);
}

/* Only the trailer is cut: all data are there, but their CRC cannot be checked. */
static void defect_gz_no_trailer(struct fixture *f)
{
    struct blob packed = gzip(f->file[TEST_IMAGES]);
    packed.count -= 8;
    replace_by_gz(f, TEST_IMAGES, packed);
}

static void defect_gz_crc(struct fixture *f)
{
    struct blob packed = gzip(f->file[TRAIN_IMAGES]);
    packed.byte[packed.count - 8] ^= 1;
    replace_by_gz(f, TRAIN_IMAGES, packed);
}

static void defect_gz_length(struct fixture *f)
{
    struct blob packed = gzip(f->file[TRAIN_IMAGES]);
    packed.byte[packed.count - 1] ^= 1;
    replace_by_gz(f, TRAIN_IMAGES, packed);
}

static void defect_gz_garbage(struct fixture *f)
{
    struct blob packed = gzip(f->file[TRAIN_LABELS]);
    uint8_t word[5] = "junk";
    replace_by_gz(f, TRAIN_LABELS, join(packed, (struct blob){word, 4}));
    free(packed.byte);
}

/* A second member that has a header and nothing else. */
static void defect_gz_second_cut(struct fixture *f)
{
    struct blob packed = gzip(f->file[TRAIN_LABELS]);
    replace_by_gz(f, TRAIN_LABELS, join(packed, (struct blob){packed.byte, 5}));
    free(packed.byte);
}

static void defect_gz_short(struct fixture *f)
{
    f->file[TEST_IMAGES].count--;
    replace_by_gz(f, TEST_IMAGES, gzip(f->file[TEST_IMAGES]));
}

static void defect_gz_long(struct fixture *f)
{
    uint8_t zero = 0;
    struct blob longer = join(f->file[TRAIN_IMAGES], (struct blob){&zero, 1});
    replace_by_gz(f, TRAIN_IMAGES, gzip(longer));
    free(longer.byte);
}

static const struct defect {
    void (*make)(struct fixture *fixture);
    enum tess_status status;
    int file;            /* whose name the message must have */
    const char *word[2]; /* and what else */
} defect[] = {
    {defect_missing, TESS_ERR_NOT_FOUND, TEST_LABELS, {".gz", "dataset-fashion-mnist"}},
    {defect_magic_of_labels, TESS_ERR_DATA, TRAIN_IMAGES, {"0x00000801", "0x00000803"}},
    {defect_magic_of_floats, TESS_ERR_DATA, TRAIN_LABELS, {"0x00000d01", "0x00000801"}},
    {defect_empty, TESS_ERR_DATA, TRAIN_IMAGES, {"truncated", "0 bytes"}},
    {defect_three_bytes, TESS_ERR_DATA, TEST_LABELS, {"truncated", "3 bytes"}},
    {defect_half_header, TESS_ERR_DATA, TEST_IMAGES, {"truncated", "10 bytes"}},
    {defect_truncated, TESS_ERR_DATA, TRAIN_IMAGES, {"truncated", "14016"}},
    {defect_trailing, TESS_ERR_DATA, TRAIN_LABELS, {"trailing", "409 bytes"}},
    {defect_zero_dimension, TESS_ERR_DATA, TEST_IMAGES, {"dimension 2", "is 0"}},
    {defect_oversized, TESS_ERR_DATA, TRAIN_IMAGES, {"oversized", "4294967295"}},
    {defect_oversized_wraps, TESS_ERR_DATA, TRAIN_IMAGES, {"oversized", "4 GiB"}},
    {defect_oversized_gz, TESS_ERR_DATA, TRAIN_IMAGES, {"oversized", "3500000016"}},
    {defect_counts, TESS_ERR_DATA, TRAIN_LABELS, {"400 images", "399 labels"}},
    {defect_sizes, TESS_ERR_DATA, TEST_IMAGES, {"5 x 7", "7 x 5"}},
    {defect_label, TESS_ERR_DATA, TRAIN_LABELS, {"label 321", "is 10"}},
    {defect_label_gz, TESS_ERR_DATA, TEST_LABELS, {"label 0", "is 255"}},
    {defect_folder, TESS_ERR_DATA, TRAIN_LABELS, {"regular", ""}},
    {defect_fifo, TESS_ERR_DATA, TEST_IMAGES, {"regular", ""}},
    {defect_gz_not_gz, TESS_ERR_DATA, TRAIN_LABELS, {"gzip", "incorrect header"}},
    {defect_gz_empty, TESS_ERR_DATA, TRAIN_LABELS, {"truncated", ".gz"}},
    {defect_gz_half, TESS_ERR_DATA, TRAIN_IMAGES, {"truncated", ".gz"}},
    {defect_gz_no_trailer, TESS_ERR_DATA, TEST_IMAGES, {"truncated", ".gz"}},
    {defect_gz_crc, TESS_ERR_DATA, TRAIN_IMAGES, {"corrupt", "data check"}},
    {defect_gz_length, TESS_ERR_DATA, TRAIN_IMAGES, {"corrupt", "length check"}},
    {defect_gz_garbage, TESS_ERR_DATA, TRAIN_LABELS, {"trailing", ".gz"}},
    {defect_gz_second_cut, TESS_ERR_DATA, TRAIN_LABELS, {"truncated", ".gz"}},
    {defect_gz_short, TESS_ERR_DATA, TEST_IMAGES, {"truncated", "804 bytes"}},
    {defect_gz_long, TESS_ERR_DATA, TRAIN_IMAGES, {"trailing", "14000 bytes"}},
};

static void case_defects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(defect) / sizeof(*defect); i++) {
        struct fixture fixture;
        struct tess_dataset *set = NULL;
        setup(&fixture);
        defect[i].make(&fixture);
        const int before = open_files();
        const enum tess_status status = tess_dataset_open_idx(fixture.folder, &set);
        const char *text = tess_log_last_error();
        if (status != defect[i].status || strstr(text, file_name[defect[i].file]) == NULL ||
            strstr(text, defect[i].word[0]) == NULL || strstr(text, defect[i].word[1]) == NULL)
            fail_msg("defect %zu: status %d, expected %d; message \"%s\" without %s, %s or %s", i,
                     status, defect[i].status, text, file_name[defect[i].file], defect[i].word[0],
                     defect[i].word[1]);
        assert_null(set);
        assert_int_equal(open_files(), before);
        teardown(&fixture);
    }
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_idx("/nonexistent/folder", &set), TESS_ERR_NOT_FOUND);
    assert_int_equal(tess_dataset_open_idx("/dev/null", &set), TESS_ERR_NOT_FOUND);
    char *deep = malloc(6000);
    memset(deep, 'a', 5999);
    deep[5999] = '\0';
    assert_int_equal(tess_dataset_open_idx(deep, &set), TESS_ERR_USAGE);
    free(deep);
}

/* Any byte of a gzipped file may be wrong, and any part missing: an error, or the same data (gzip's
 * header has fields that mean nothing). */
static void case_random_damage(void **state)
{
    (void)state;
    const struct tess_rng_key key = tess_rng_key(9, TESS_RNG_TEST, 0);
    struct fixture fixture;
    setup(&fixture);
    remove_file(&fixture, TEST_IMAGES, "");
    int survived = 0;
    for (uint64_t i = 0; i < 300; i++) {
        struct tess_dataset *set = NULL;
        struct blob packed = gzip(fixture.file[TEST_IMAGES]);
        const uint32_t at = tess_rng_word(key, i, 0) % (uint32_t)packed.count;
        if (i % 3 == 0)
            packed.count = at;
        else
            packed.byte[i % 3 == 1 ? at : at % 24] ^= (uint8_t)(1 + tess_rng_word(key, i, 1) % 255);
        write_blob(&fixture, TEST_IMAGES, ".gz", packed);
        free(packed.byte);
        if (tess_dataset_open_idx(fixture.folder, &set) == TESS_OK) {
            assert_same_as_fixture(set, &fixture);
            survived++;
        }
        tess_dataset_close(set);
    }
    assert_true(survived > 0 && survived < 100);
    teardown(&fixture);
}

/* ---- made-up images ----------------------------------------------------------------------------
 */

static void case_synthetic(void **state)
{
    (void)state;
    enum { CLASSES = 7, ROW = 8 * 6 * 3 };
    struct tess_dataset *set = NULL, *again = NULL;
    const struct tess_shape row = tess_shape3(8, 6, 3);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 3, &set), TESS_OK);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 3, &again), TESS_OK);
    assert_int_equal(set->class_count, CLASSES);
    assert_int_equal(set->train.count, 1000);
    assert_int_equal(set->test.count, 200);
    assert_memory_equal(set->train.image, again->train.image, 1000 * ROW);
    assert_memory_equal(set->test.label, again->test.label, 200);
    tess_dataset_close(again);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 4, &again), TESS_OK);
    assert_true(memcmp(set->train.image, again->train.image, 1000 * ROW) != 0);
    tess_dataset_close(again);

    /* Learnable: the nearest mean of a training class is right for nearly all test images, which
     * differ from the training images. */
    double mean[CLASSES][ROW] = {{0}}, count[CLASSES] = {0};
    for (int i = 0; i < 1000; i++) {
        const int c = set->train.label[i];
        assert_in_range(c, 0, CLASSES - 1);
        count[c]++;
        for (int p = 0; p < ROW; p++)
            mean[c][p] += set->train.image[i * ROW + p];
    }
    int right = 0;
    for (int i = 0; i < 200; i++) {
        int best = -1;
        double best_distance = INFINITY;
        for (int c = 0; c < CLASSES; c++) {
            double distance = 0;
            for (int p = 0; p < ROW; p++)
                distance += pow(set->test.image[i * ROW + p] - mean[c][p] / count[c], 2);
            if (distance < best_distance) {
                best = c;
                best_distance = distance;
            }
        }
        right += best == set->test.label[i];
    }
    assert_true(right >= 190);
    tess_dataset_close(set);

    const enum tess_status usage = TESS_ERR_USAGE;
    assert_int_equal(tess_dataset_open_synthetic(tess_shape2(8, 6), 7, 10, 1, 0, &set), usage);
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(8, 0, 1), 7, 10, 1, 0, &set), usage);
    assert_int_equal(tess_dataset_open_synthetic(row, 0, 10, 1, 0, &set), usage);
    assert_int_equal(tess_dataset_open_synthetic(row, 257, 10, 1, 0, &set), usage);
    assert_int_equal(tess_dataset_open_synthetic(row, 7, 0, 1, 0, &set), usage);
    assert_int_equal(tess_dataset_open_synthetic(row, 7, INT64_MAX, 1, 0, &set), usage);
}

/* ---- samples -----------------------------------------------------------------------------------
 */

static void case_sampler(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 7, 64, 1000, 60000};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        const int64_t n = counts[i];
        uint8_t *seen = calloc((size_t)n, 1);
        int64_t in_place = 0, as_before = 0;
        for (int64_t p = 0; p < n; p++) {
            const int64_t sample = tess_sample_at(11, 3, n, p, true);
            assert_in_range(sample, 0, n - 1);
            assert_int_equal(seen[sample], 0);
            seen[sample] = 1;
            in_place += sample == p;
            as_before += sample == tess_sample_at(11, 2, n, p, true);
            assert_int_equal(tess_sample_at(11, 3, n, p, false), p);
        }
        /* A random permutation has one fixed point on average, 20 or more with probability 1e-19.
         */
        assert_true(n < 64 || (in_place < 20 && as_before < 20));
        assert_int_equal(tess_sample_at(11, 3, n, n, true), -1);
        assert_int_equal(tess_sample_at(11, 3, n, -1, false), -1);
        free(seen);
    }
}

static float bf16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void case_normalisation(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL;
    const struct tess_loader_options plain = {.shuffle = true};
    const int64_t sample[3] = {5, -1, 0};
    enum { ROW = 9 * 5 * 2 };
    float value[3 * ROW];
    uint16_t half[3 * ROW];
    int32_t label[3], label_half[3];
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(9, 5, 2), 4, 20, 3, 8, &set), TESS_OK);
    memset(value, 0xff, sizeof(value));
    tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, 3, TESS_F32, value, label);
    tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, 3, TESS_BF16, half, label_half);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(label[r], sample[r] < 0 ? -1 : set->train.label[sample[r]]);
        assert_int_equal(label_half[r], label[r]);
        for (int i = 0; i < ROW; i++) {
            const float got = value[r * ROW + i], got_half = bf16_value(half[r * ROW + i]);
            if (sample[r] < 0) {
                assert_true(got == 0 && got_half == 0);
                continue;
            }
            const double p = set->train.image[sample[r] * ROW + i] / 255.0;
            const double expected = (p - (double)set->mean) / (double)set->deviation;
            /* Scale, product, shift and sum are each rounded to 2^-24 of at most 1/deviation. */
            assert_true(fabs(got - expected) <= 4 * 0x1p-24 / (double)set->deviation);
            /* bf16 has 8 significant bits, so the nearest is within 2^-8 of the value, and its
             * neighbours are no nearer. */
            assert_true(fabsf(got_half - got) <= fabsf(got) * 0x1p-8f);
            const float up = bf16_value((uint16_t)(half[r * ROW + i] + 1));
            const float down = bf16_value((uint16_t)(half[r * ROW + i] - 1));
            assert_true(fabsf(got_half - got) <= fabsf(up - got));
            assert_true(fabsf(got_half - got) <= fabsf(down - got));
        }
    }
    tess_dataset_close(set);
}

/* Ties go to even: scale 1 and shift 256 give 256 .. 511, of which bf16 has every second number. */
static void case_bf16_ties(void **state)
{
    (void)state;
    uint8_t pixel[256];
    const uint8_t class_of = 0;
    /* The f32 below 1/255 is the nearer one to it: 1 / (255 deviation) rounds to 1. */
    const float deviation = nextafterf(1.0f / 255, 0);
    const struct tess_dataset set = {
        .row = tess_shape3(16, 16, 1),
        .class_count = 1,
        .train = {.count = 1, .image = pixel, .label = &class_of},
        .mean = -256 * deviation,
        .deviation = deviation,
    };
    const struct tess_loader_options plain = {0};
    const int64_t first = 0;
    uint16_t half[256];
    float value[256];
    int32_t label;
    for (int p = 0; p < 256; p++)
        pixel[p] = (uint8_t)p;
    tess_load_rows(&set, &set.train, &plain, 1, 0, false, &first, 1, TESS_F32, value, &label);
    tess_load_rows(&set, &set.train, &plain, 1, 0, false, &first, 1, TESS_BF16, half, &label);
    for (int p = 0; p < 256; p++) {
        assert_true(value[p] == (float)(256 + p));
        assert_true(bf16_value(half[p]) == 2 * nearbyintf((float)(256 + p) / 2));
    }
}

/* The pixel that stands at (y, x) after mirroring and moving, -1 for black from outside. */
static int64_t moved_from(int64_t y, int64_t x, int64_t h, int64_t w, bool flip, int64_t down,
                          int64_t right)
{
    const int64_t fy = y - down, fx = x - right;
    if (fy < 0 || fy >= h || fx < 0 || fx >= w)
        return -1;
    return fy * w + (flip ? w - 1 - fx : fx);
}

static bool is_change(const float *got, const float *image, float black,
                      const struct tess_shape *row, bool flip, int64_t down, int64_t right)
{
    const int64_t h = row->dim[0], w = row->dim[1], channels = row->dim[2];
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++)
            for (int64_t c = 0; c < channels; c++) {
                const int64_t from = moved_from(y, x, h, w, flip, down, right);
                const float expected = from < 0 ? black : image[from * channels + c];
                if (got[(y * w + x) * channels + c] != expected)
                    return false;
            }
    return true;
}

/* Which mirroring and moving makes `got` of `image`: (flip, down, right) as one number, or -1. */
static int find_change(const float *got, const float *image, float black,
                       const struct tess_shape *row, int shift)
{
    const int side = 2 * shift + 1;
    for (int i = 0; i < 2 * side * side; i++) {
        if (is_change(got, image, black, row, i % 2 != 0, i / 2 % side - shift,
                      i / 2 / side - shift))
            return i;
    }
    return -1;
}

/* Every changed image is the plain one mirrored and moved in one of the ways there are; all occur.
 */
static void check_augmentation(struct tess_shape row, int shift, bool flip, int images)
{
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_synthetic(row, 3, images, 1, 8, &set), TESS_OK);
    const int64_t count = tess_shape_count(&row);
    const struct tess_loader_options none = {0}, some = {.flip = flip, .shift = shift};
    const float black = -set->mean / set->deviation;
    float *plain = malloc((size_t)count * sizeof(float));
    float *got = malloc((size_t)count * sizeof(float));
    float *other = malloc((size_t)count * sizeof(float));
    int seen[2 * 9 * 9] = {0}, kinds = 0, same_next_epoch = 0;
    int32_t label;
    for (int64_t i = 0; i < images; i++) {
        tess_load_rows(set, &set->train, &none, 1, 0, true, &i, 1, TESS_F32, plain, &label);
        tess_load_rows(set, &set->train, &some, 1, 0, true, &i, 1, TESS_F32, got, &label);
        tess_load_rows(set, &set->train, &some, 1, 0, false, &i, 1, TESS_F32, other, &label);
        assert_memory_equal(other, plain, (size_t)count * sizeof(float));
        const int change = find_change(got, plain, black, &row, shift);
        assert_true(change >= 0 && (flip || change % 2 == 0));
        kinds += seen[change]++ == 0;
        tess_load_rows(set, &set->train, &some, 1, 1, true, &i, 1, TESS_F32, other, &label);
        same_next_epoch += memcmp(got, other, (size_t)count * sizeof(float)) == 0;
    }
    /* Each of K kinds is missed by n images with probability (1 - 1/K)^n; n >= 20 K: 2e-9 each. */
    const int all = (flip ? 2 : 1) * (2 * shift + 1) * (2 * shift + 1);
    assert_int_equal(kinds, images >= 20 * all ? all : kinds);
    assert_true(all == 1 || same_next_epoch < images);
    free(plain);
    free(got);
    free(other);
    tess_dataset_close(set);
}

static void case_augmentation(void **state)
{
    (void)state;
    check_augmentation(tess_shape3(7, 6, 1), 2, true, 1000);
    check_augmentation(tess_shape3(7, 6, 3), 1, true, 400);
    check_augmentation(tess_shape3(6, 7, 1), 2, false, 500);
    check_augmentation(tess_shape3(6, 7, 1), 0, true, 40);
    check_augmentation(tess_shape3(1, 1, 1), 3, true, 50);
    check_augmentation(tess_shape3(2, 1500, 1), 1, true, 20);
    check_augmentation(tess_shape3(2, 3, 1500), 1, true, 20);
}

/* ---- the installed data ------------------------------------------------------------------------
 */

static void case_real(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_idx(REAL_FOLDER, &set), TESS_OK);
    assert_int_equal(set->row.dim[0], 28);
    assert_int_equal(set->row.dim[1], 28);
    assert_int_equal(set->train.count, 60000);
    assert_int_equal(set->test.count, 10000);
    int train[10] = {0}, test[10] = {0};
    for (int i = 0; i < 60000; i++)
        train[set->train.label[i]]++;
    for (int i = 0; i < 10000; i++)
        test[set->test.label[i]]++;
    /* Xiao et al. 2017: 6,000 training and 1,000 test images of each class. */
    for (int c = 0; c < 10; c++) {
        assert_int_equal(train[c], 6000);
        assert_int_equal(test[c], 1000);
    }
    /* The figures that everybody normalises this set with, to the four digits they are given in. */
    assert_true(fabs((double)set->mean - 0.2860) <= 0.5e-4);
    assert_true(fabs((double)set->deviation - 0.3530) <= 0.5e-4);
    tess_dataset_close(set);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_good_files),    cmocka_unit_test(case_defects),
        cmocka_unit_test(case_random_damage), cmocka_unit_test(case_synthetic),
        cmocka_unit_test(case_sampler),       cmocka_unit_test(case_normalisation),
        cmocka_unit_test(case_bf16_ties),     cmocka_unit_test(case_augmentation),
    };
    const struct CMUnitTest real[] = {cmocka_unit_test(case_real)};
    if (argc > 1 && strcmp(argv[1], "real") == 0) {
        if (access(REAL_FOLDER, R_OK) != 0) {
            printf("skipped: %s is not installed\n", REAL_FOLDER);
            return 77;
        }
        return cmocka_run_group_tests_name("data, installed", real, NULL, NULL);
    }
    return cmocka_run_group_tests_name("data", cases, NULL, NULL);
}
