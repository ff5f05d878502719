/*
 * IDX files, made on the fly: good ones, plain and gzipped, and one of every defect, whose message
 * must name the file and what is wrong; then damage at random. `test_idx real` reads the installed
 * Fashion-MNIST (exit status 77 where it is not installed).
 */
#include "base/rng.h"
#include "data/data.h"
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

/* ---- files made on the fly ------------------------------------------------------------------- */

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
    if (blob.count > 0)
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
    snprintf(fixture->folder, sizeof(fixture->folder), "/tmp/tessera-test-idx-XXXXXX");
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
    for (int i = 0; i < TRAIN; i++)
        assert_int_equal(set->train.label[i], fixture->file[TRAIN_LABELS].byte[8 + i]);
    assert_memory_equal(set->test.image, fixture->file[TEST_IMAGES].byte + 16, TEST * PIXELS);
    for (int i = 0; i < TEST; i++)
        assert_int_equal(set->test.label[i], fixture->file[TEST_LABELS].byte[8 + i]);
}

/* The same labels times 100, in elements of `width` bytes; label 3 is `odd`. */
static struct blob widen_labels(struct blob labels, size_t width, int32_t odd)
{
    const size_t count = labels.count - 8;
    struct blob blob = {malloc(8 + width * count), 8 + width * count};
    memcpy(blob.byte, labels.byte, 8);
    blob.byte[2] = width == 2 ? 0x0b : 0x0c;
    for (size_t i = 0; i < count; i++) {
        const uint32_t label = i == 3 ? (uint32_t)odd : 100u * labels.byte[8 + i];
        for (size_t b = 0; b < width; b++)
            blob.byte[8 + width * i + b] = (uint8_t)(label >> 8 * (width - 1 - b));
    }
    return blob;
}

/* Labels of 16 and 32 bits: more than 256 classes; what is none is refused. */
static void case_wide_labels(void **state)
{
    (void)state;
    static const int32_t odd[] = {2500, -1, 70000};
    for (size_t width = 2; width <= 4; width += 2)
        for (size_t i = 0; i < 3; i++) {
            struct fixture fixture;
            struct tess_dataset *set = NULL;
            setup(&fixture);
            for (int file = TRAIN_LABELS; file < FILES; file += TEST_LABELS - TRAIN_LABELS) {
                struct blob wide =
                    widen_labels(fixture.file[file], width, file == TRAIN_LABELS ? odd[i] : 0);
                write_blob(&fixture, file, "", wide);
                free(wide.byte);
            }
            const enum tess_status status = tess_dataset_open_idx(fixture.folder, &set);
            if (width == 2 && i == 2) { /* its lower half is a label */
                assert_int_equal(set->class_count, 70000 - 65536 + 1);
            } else if (i > 0) {
                assert_int_equal(status, TESS_ERR_DATA);
                assert_non_null(strstr(tess_log_last_error(), "label 3 (counted from 0) is "));
            } else {
                assert_int_equal(set->class_count, 2501);
                assert_int_equal(set->train.label[3], 2500);
                assert_int_equal(set->train.label[1], 700);
                assert_int_equal(set->test.label[1], 700);
            }
            tess_dataset_close(set);
            teardown(&fixture);
        }
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

/* ---- one of every defect --------------------------------------------------------------------- */

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
    {defect_oversized_wraps, TESS_ERR_DATA, TRAIN_IMAGES, {"oversized", "GiB of memory"}},
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

/* ---- the installed data ---------------------------------------------------------------------- */

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
        cmocka_unit_test(case_good_files),
        cmocka_unit_test(case_wide_labels),
        cmocka_unit_test(case_defects),
        cmocka_unit_test(case_random_damage),
    };
    const struct CMUnitTest real[] = {cmocka_unit_test(case_real)};
    if (argc > 1 && strcmp(argv[1], "real") == 0) {
        if (access(REAL_FOLDER, R_OK) != 0) {
            printf("skipped: %s is not installed\n", REAL_FOLDER);
            return 77;
        }
        return cmocka_run_group_tests_name("idx, installed", real, NULL, NULL);
    }
    return cmocka_run_group_tests_name("idx", cases, NULL, NULL);
}
