/*
 * Sets of images in files: folders of classes with PNG and JPEG files of every kind, CIFAR's binary
 * files, IDX files with channels; one of every defect, whose message must name the file; damage at
 * random; and runs on a folder, whose result does not depend on the layout.
 */
#include "base/rng.h"
#include "data/data.h"
#include "data/data_images.h"
#include "harness/work_folder.h"
#include "tessera/log.h"

#include <dirent.h>
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
#include <jpeglib.h>
#include <png.h>

enum { WIDTH = 8, HEIGHT = 6, PIXELS = WIDTH * HEIGHT };

/* ---- files ----------------------------------------------------------------------------------- */

static void make_folders(const char *path)
{
    char part[256];
    for (const char *at = path; at != NULL;) {
        at = strchr(at + 1, '/');
        snprintf(part, sizeof(part), "%.*s", (int)(at != NULL ? at - path : 255), path);
        (void)mkdir(part, 0700);
    }
}

static void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* `line` bytes of each row of `rows`. */
static void write_png(const char *path, int width, int height, int colour, int depth, int interlace,
                      const uint8_t *rows, size_t line)
{
    static png_color palette[4] = {{1, 2, 3}, {40, 50, 60}, {70, 80, 90}, {200, 210, 220}};
    FILE *file = fopen(path, "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_bytep row[256];
    assert_non_null(file);
    for (int y = 0; y < height; y++)
        row[y] = (png_bytep)(uintptr_t)rows + (size_t)y * line;
    png_init_io(png, file);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, depth, colour, interlace,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (colour == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(png, info, palette, 4);
    png_write_info(png, info);
    png_write_image(png, row);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    assert_int_equal(fclose(file), 0);
}

static void write_grey(const char *path, int width, int height, uint8_t value)
{
    uint8_t rows[64 * 64];
    memset(rows, value, sizeof(rows));
    write_png(path, width, height, PNG_COLOR_TYPE_GRAY, 8, PNG_INTERLACE_NONE, rows, 64);
}

static void write_jpeg(const char *path, int channels, const uint8_t *rows, bool progressive)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr error;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    jpeg.err = jpeg_std_error(&error);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = WIDTH;
    jpeg.image_height = HEIGHT;
    jpeg.input_components = channels;
    jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    if (progressive)
        jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < HEIGHT; y++) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)rows + y * WIDTH * channels;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    assert_int_equal(fclose(file), 0);
}

static size_t read_bytes(const char *path, uint8_t *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
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

static void remove_all(const char *path)
{
    assert_int_equal(spawn_remove(path), 0);
}

static struct tess_dataset *open_set(const char *folder, int32_t size)
{
    struct tess_dataset *set = NULL;
    if (tess_dataset_open_images(folder, size, &set) != TESS_OK)
        fail_msg("%s", tess_log_last_error());
    return set;
}

static void check_refused(const char *folder, int32_t size, enum tess_status wanted,
                          const char *name, const char *phrase)
{
    struct tess_dataset *set = NULL;
    const int files = open_files();
    const enum tess_status status = tess_dataset_open_images(folder, size, &set);
    const char *message = tess_log_last_error();
    if (status != wanted || strstr(message, name) == NULL || strstr(message, phrase) == NULL)
        fail_msg("status %d, expected %d; \"%s\" without \"%s\" or \"%s\"", status, wanted, message,
                 name, phrase);
    assert_null(set);
    assert_int_equal(open_files(), files);
}

/* ---- good ones ------------------------------------------------------------------------------- */

/* Files of every kind, all of the same image, and what is read of them. */
static void case_kinds(void **state)
{
    uint8_t rgb[3 * PIXELS], rgba[4 * PIXELS], deep[6 * PIXELS], index[PIXELS], grey[2 * PIXELS];
    static const uint8_t palette[4][3] = {{1, 2, 3}, {40, 50, 60}, {70, 80, 90}, {200, 210, 220}};
    (void)state;
    make_folders("kinds/train/a");
    make_folders("kinds/val/a");
    for (int i = 0; i < PIXELS; i++) {
        index[i] = (uint8_t)(i * 7 % 4);
        for (int c = 0; c < 3; c++) {
            rgb[3 * i + c] = rgba[4 * i + c] = palette[index[i]][c];
            deep[6 * i + 2 * c] = deep[6 * i + 2 * c + 1] = palette[index[i]][c];
        }
        rgba[4 * i + 3] = (uint8_t)(i * 5);
        grey[2 * i] = (uint8_t)(i * 3);
        grey[2 * i + 1] = (uint8_t)i;
    }
    write_png("kinds/train/a/0.png", WIDTH, HEIGHT, PNG_COLOR_TYPE_RGB, 8, 0, rgb, 3 * WIDTH);
    write_png("kinds/train/a/1.PNG", WIDTH, HEIGHT, PNG_COLOR_TYPE_RGB, 8, 1, rgb, 3 * WIDTH);
    write_png("kinds/train/a/2.png", WIDTH, HEIGHT, PNG_COLOR_TYPE_RGBA, 8, 0, rgba, 4 * WIDTH);
    write_png("kinds/train/a/3.png", WIDTH, HEIGHT, PNG_COLOR_TYPE_RGB, 16, 0, deep, 6 * WIDTH);
    write_png("kinds/train/a/4.jpg", WIDTH, HEIGHT, PNG_COLOR_TYPE_PALETTE, 8, 1, index, WIDTH);
    write_png("kinds/val/a/0.png", WIDTH, HEIGHT, PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0, grey, 2 * WIDTH);
    struct tess_dataset *set = open_set("kinds", 0);
    assert_int_equal(set->row.dim[0], HEIGHT);
    assert_int_equal(set->row.dim[1], WIDTH);
    assert_int_equal(set->row.dim[2], 3);
    assert_int_equal(set->train.count, 5);
    for (int i = 0; i < 5; i++)
        assert_memory_equal(set->train.image + i * 3 * PIXELS, rgb, sizeof(rgb));
    for (int i = 0; i < 3 * PIXELS; i++)
        assert_int_equal(set->test.image[i], grey[i / 3 * 2]);
    tess_dataset_close(set);
    remove_all("kinds");
}

/* JPEG is not exact: what one colour becomes is close to it. */
static void case_jpeg(void **state)
{
    static const uint8_t colour[3] = {200, 100, 30};
    uint8_t rgb[3 * PIXELS], grey[PIXELS];
    (void)state;
    make_folders("jpeg/train/a");
    make_folders("jpeg/test/a");
    memset(grey, 77, sizeof(grey));
    for (int i = 0; i < 3 * PIXELS; i++)
        rgb[i] = colour[i % 3];
    write_jpeg("jpeg/train/a/0.jpg", 3, rgb, false);
    write_jpeg("jpeg/train/a/1.jpeg", 3, rgb, true);
    write_jpeg("jpeg/test/a/0.JPEG", 1, grey, false);
    struct tess_dataset *set = open_set("jpeg", 0);
    assert_int_equal(set->row.dim[2], 3);
    for (int i = 0; i < 2 * 3 * PIXELS; i++)
        assert_in_range(set->train.image[i], colour[i % 3] - 2, colour[i % 3] + 2);
    for (int i = 0; i < 3 * PIXELS; i++)
        assert_in_range(set->test.image[i], 76, 78);
    tess_dataset_close(set);
    remove_all("jpeg");
}

/* Which class and which split each image has, by the bytes of names; other files are left out. */
static void case_folders(void **state)
{
    char path[64];
    (void)state;
    make_folders("plain/b");
    make_folders("plain/a/deeper");
    make_folders("plain/.hidden");
    write_bytes("plain/b/labels.txt", "b", 1);
    write_bytes("plain/b/.png", "b", 1);
    write_bytes("plain/README", "b", 1);
    for (int i = 0; i < 20; i++) {
        snprintf(path, sizeof(path), "plain/a/%s%02d.png", i < 15 ? "deeper/" : "", i);
        write_grey(path, WIDTH, HEIGHT, (uint8_t)(100 + i)); /* "00" is before "deeper" */
        snprintf(path, sizeof(path), "plain/b/%02d.png", i);
        if (i < 12)
            write_grey(path, WIDTH, HEIGHT, (uint8_t)(200 + i));
    }
    struct tess_dataset *set = open_set("plain", 0);
    static const uint8_t train[] = {115, 116, 117, 118, 119, 100, 101, 102, 103, 105,
                                    106, 107, 108, 109, 110, 111, 112, 113, 200, 201,
                                    202, 203, 204, 205, 206, 207, 208, 210, 211};
    static const uint8_t test[] = {104, 114, 209};
    assert_int_equal(set->row.dim[2], 1); /* all are grey */
    assert_int_equal(set->class_count, 2);
    assert_int_equal(set->train.count, sizeof(train));
    assert_int_equal(set->test.count, sizeof(test));
    for (size_t i = 0; i < sizeof(train); i++) {
        assert_int_equal(set->train.image[i * PIXELS], train[i]);
        assert_int_equal(set->train.label[i], train[i] >= 200);
    }
    for (size_t i = 0; i < sizeof(test); i++)
        assert_int_equal(set->test.image[i * PIXELS], test[i]);
    const uint64_t id = tess_dataset_id(set, &set->train);
    tess_dataset_close(set);
    write_grey("plain/a/deeper/03.png", WIDTH, HEIGHT, 99);
    set = open_set("plain", 0);
    assert_true(tess_dataset_id(set, &set->train) != id);
    tess_dataset_close(set);
    remove_all("plain");
    for (int c = 0; c < 600; c++) { /* a label is more than a byte */
        snprintf(path, sizeof(path), "plain/%s/%03d", c < 300 ? "train" : "val", c % 300);
        make_folders(path);
        write_grey(strcat(path, "/0.png"), WIDTH, HEIGHT, (uint8_t)c);
    }
    set = open_set("plain", 0);
    assert_int_equal(set->train.label[299] + set->test.label[298], 597);
    tess_dataset_close(set);
    remove_all("plain");
}

/* What Pillow makes of the picture by resize((12, 9), BILINEAR).crop((2, 0, 11, 9)), and so on:
 * torchvision's Resize and CenterCrop. */
static void case_scale(void **state)
{
#include "data/scaled.h"
    uint8_t pixel[40 * 30 * 3], target[9 * 9 * 3];
    char why[TESS__IMAGE_WHY];
    (void)state;
    for (size_t s = 0; s < sizeof(scaled) / sizeof(*scaled); s++) {
        const struct tess__picture picture = {scaled[s].height, scaled[s].width, 3};
        const int count = 3 * scaled[s].height * scaled[s].width;
        for (int i = 0; i < count; i++)
            pixel[i] = (uint8_t)(i * i * 31 / 7 + i * 3);
        assert_int_equal(tess__picture_scale(&picture, pixel, scaled[s].size, target, why),
                         TESS_OK);
        for (int i = 0; i < 3 * scaled[s].size * scaled[s].size; i++)
            if (target[i] != scaled[s].pixel[i])
                fail_msg("picture %zu: byte %d is %d, expected %d", s, i, target[i],
                         scaled[s].pixel[i]);
    }
    make_folders("scale/train/a");
    make_folders("scale/val/a");
    write_grey("scale/train/a/0.png", 20, 10, 10);
    write_grey("scale/train/a/1.png", 7, 33, 20);
    write_grey("scale/val/a/0.png", 5, 5, 30);
    struct tess_dataset *set = open_set("scale", 5);
    assert_int_equal(set->row.dim[0], 5);
    assert_int_equal(set->row.dim[1], 5);
    for (int i = 0; i < 50; i++)
        assert_int_equal(set->train.image[i], i < 25 ? 10 : 20);
    tess_dataset_close(set);
    check_refused("scale", 0, TESS_ERR_DATA, "scale/train/a/1.png has 7 x 33 pixels",
                  "--data.size N");
    remove_all("scale");
}

/* ---- CIFAR and IDX with channels ------------------------------------------------------------- */

static void write_cifar(const char *path, int labels, int records, uint8_t first)
{
    static uint8_t record[2 + 3072];
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int r = 0; r < records; r++) {
        record[0] = 9;
        record[labels - 1] = (uint8_t)(first + r);
        for (int i = 0; i < 3072; i++)
            record[labels + i] = (uint8_t)(i / 1024 * 80 + i % 1024 % 79 + r);
        assert_int_equal(fwrite(record, (size_t)labels + 3072, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static void check_cifar(const char *folder, int32_t classes, int64_t train, int64_t test)
{
    struct tess_dataset *set = open_set(folder, 0);
    assert_int_equal(set->class_count, classes);
    assert_int_equal(set->train.count, train);
    assert_int_equal(set->test.count, test);
    assert_int_equal(set->row.dim[2], 3);
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++)
            assert_int_equal(set->train.image[3072 + 3 * p + c], (uint8_t)(c * 80 + p % 79 + 1));
    assert_int_equal(set->train.label[1], set->train.label[0] + 1);
    tess_dataset_close(set);
}

static void case_cifar(void **state)
{
    char path[64];
    (void)state;
    make_folders("cifar10");
    make_folders("cifar100");
    for (int i = 1; i <= 5; i++) {
        snprintf(path, sizeof(path), "cifar10/data_batch_%d.bin", i);
        write_cifar(path, 1, i + 1, (uint8_t)(i - 1));
    }
    write_cifar("cifar10/test_batch.bin", 1, 3, 7);
    check_cifar("cifar10", 10, 20, 3);
    write_cifar("cifar100/train.bin", 2, 4, 93);
    write_cifar("cifar100/test.bin", 2, 2, 98);
    check_cifar("cifar100", 100, 4, 2);
    check_refused("cifar100", 8, TESS_ERR_USAGE, "cifar100", "--data.size");
    write_cifar("cifar100/test.bin", 2, 3, 98);
    check_refused("cifar100", 0, TESS_ERR_DATA, "cifar100/test.bin", "label 2 (counted from 0)");
    assert_int_equal(truncate("cifar10/data_batch_3.bin", 3073 * 3 + 100), 0);
    check_refused("cifar10", 0, TESS_ERR_DATA, "data_batch_3.bin", "truncated");
    assert_int_equal(unlink("cifar10/data_batch_3.bin"), 0);
    check_refused("cifar10", 0, TESS_ERR_IO, "data_batch_3.bin", "cannot open");
    assert_int_equal(mkfifo("cifar10/data_batch_3.bin", 0600), 0);
    check_refused("cifar10", 0, TESS_ERR_DATA, "data_batch_3.bin", "not a regular file");
    remove_all("cifar10");
    remove_all("cifar100");
}

static void write_idx(const char *path, const uint32_t *dim, int dims, uint8_t most)
{
    FILE *file = fopen(path, "wb");
    const uint8_t magic[4] = {0, 0, 8, (uint8_t)dims};
    size_t count = 1;
    assert_non_null(file);
    fwrite(magic, 1, 4, file);
    for (int d = 0; d < dims; d++) {
        const uint8_t big[4] = {0, 0, (uint8_t)(dim[d] >> 8), (uint8_t)dim[d]};
        fwrite(big, 1, 4, file);
        count *= dim[d];
    }
    for (size_t i = 0; i < count; i++)
        fputc((int)(i % (most + 1U)), file);
    assert_int_equal(fclose(file), 0);
}

static void case_idx4(void **state)
{
    const uint32_t train[] = {30, 4, 5, 3}, test[] = {7, 4, 5, 3}, first[] = {7, 3, 4, 5};
    (void)state;
    make_folders("idx");
    write_idx("idx/train-images-idx4-ubyte", train, 4, 250);
    write_idx("idx/t10k-images-idx4-ubyte", test, 4, 250);
    write_idx("idx/train-labels-idx1-ubyte", train, 1, 16);
    write_idx("idx/t10k-labels-idx1-ubyte", test, 1, 5);
    struct tess_dataset *set = open_set("idx", 0);
    assert_int_equal(set->class_count, 17);
    assert_int_equal(set->row.dim[0], 4);
    assert_int_equal(set->row.dim[2], 3);
    for (int i = 0; i < 30 * 60; i++)
        assert_int_equal(set->train.image[i], i % 251);
    tess_dataset_close(set);
    write_idx("idx/train-labels-idx1-ubyte", train, 1, 4);
    check_refused("idx", 0, TESS_ERR_DATA, "idx/t10k-labels", "label 5 (counted from 0) is 5");
    write_idx("idx/t10k-images-idx4-ubyte", first, 4, 250);
    check_refused("idx", 0, TESS_ERR_DATA, "idx/t10k-images-idx4-ubyte", "3 x 4 x 5");
    write_idx("idx/train-images-idx4-ubyte", first, 4, 250);
    write_idx("idx/train-labels-idx1-ubyte", first, 1, 5);
    check_refused("idx", 0, TESS_ERR_DATA, "idx/train-images", "1 to 4 channels");
    remove_all("idx");
}

/* ---- one of every defect --------------------------------------------------------------------- */

#define BAD "bad/train/a/5.png"

static void make_bad(void)
{
    char path[64];
    make_folders("bad/train/a");
    make_folders("bad/train/b");
    make_folders("bad/val/a");
    for (int i = 0; i < 10; i++) {
        snprintf(path, sizeof(path), "bad/train/%c/%d.png", i % 2 ? 'a' : 'b', i);
        write_grey(path, WIDTH, HEIGHT, (uint8_t)(i * 20));
    }
    write_grey("bad/val/a/0.png", WIDTH, HEIGHT, 3);
}

/* The picture with its bytes [at, at + 4) changed, and the checksum of its head made right. */
static void change_head(size_t at, uint32_t value)
{
    uint8_t bytes[4096];
    const size_t count = read_bytes(BAD, bytes, sizeof(bytes));
    for (int i = 0; i < 4; i++)
        bytes[at + (size_t)i] = (uint8_t)(value >> (24 - 8 * i));
    const uint32_t crc = (uint32_t)crc32(0, bytes + 12, 17);
    for (int i = 0; i < 4; i++)
        bytes[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
    write_bytes(BAD, bytes, count);
}

static void bad_truncated(void)
{
    assert_int_equal(truncate(BAD, 60), 0);
}

static void bad_no_end(void)
{
    struct stat about;
    assert_int_equal(stat(BAD, &about), 0);
    assert_int_equal(truncate(BAD, about.st_size - 12), 0);
}

static void bad_checksum(void)
{
    uint8_t bytes[4096];
    const size_t count = read_bytes(BAD, bytes, sizeof(bytes));
    bytes[count - 14] ^= 1; /* of IDAT, before the 12 bytes of IEND */
    write_bytes(BAD, bytes, count);
}

static void bad_huge(void)
{
    change_head(16, 0x7fffffff);
}

static void bad_wide(void)
{
    change_head(16, 100000);
}

static void bad_many(void)
{
    change_head(16, 16384);
    change_head(20, 16384);
}

static void bad_zero(void)
{
    change_head(20, 0);
}

static void bad_tall(void)
{
    change_head(20, HEIGHT + 1);
}

static void bad_empty(void)
{
    write_bytes(BAD, "", 0);
}

static void bad_text(void)
{
    write_bytes(BAD, "GIF89a and more", 15);
}

static void bad_fifo(void)
{
    assert_int_equal(unlink(BAD), 0);
    assert_int_equal(mkfifo(BAD, 0600), 0);
}

static void bad_link(void)
{
    assert_int_equal(unlink(BAD), 0);
    assert_int_equal(symlink("nowhere", BAD), 0);
}

static void bad_link_to_itself(void)
{
    assert_int_equal(unlink(BAD), 0);
    assert_int_equal(symlink("5.png", BAD), 0);
}

static void bad_link_above(void)
{
    assert_int_equal(symlink("..", "bad/train/a/up"), 0);
}

static void bad_format(void)
{
    assert_int_equal(rename(BAD, "bad/train/a/5.bmp"), 0);
}

static void bad_cmyk(void)
{
    static const uint8_t rows[4 * PIXELS];
    write_jpeg(BAD, 4, rows, false);
}

static void bad_jpeg_cut(void)
{
    static uint8_t rows[3 * PIXELS];
    struct stat about;
    for (int i = 0; i < 3 * PIXELS; i++)
        rows[i] = (uint8_t)(i * i);
    write_jpeg(BAD, 3, rows, false);
    assert_int_equal(stat(BAD, &about), 0);
    assert_int_equal(truncate(BAD, about.st_size - 40), 0);
}

static void bad_jpeg_head(void)
{
    write_bytes(BAD, "\xff\xd8\xff\xe0\x00\x10JFIF", 10);
}

static void bad_empty_class(void)
{
    make_folders("bad/train/c");
}

static void bad_new_class(void)
{
    make_folders("bad/val/c");
    write_grey("bad/val/c/0.png", WIDTH, HEIGHT, 3);
}

static void bad_few(void)
{
    remove_all("bad/val");
}

static void bad_no_classes(void)
{
    remove_all("bad/val/a");
}

static void case_bad(void **state)
{
    static const struct {
        void (*make)(void);
        enum tess_status status;
        const char *name, *phrase;
    } bad[] = {
        {bad_truncated, TESS_ERR_DATA, BAD, "truncated"},
        {bad_no_end, TESS_ERR_DATA, BAD, "truncated"},
        {bad_checksum, TESS_ERR_DATA, BAD, "CRC error"},
        {bad_huge, TESS_ERR_DATA, BAD, "2147483647 x 6 pixels: at most 16384 on a side"},
        {bad_wide, TESS_ERR_DATA, BAD, "100000 x 6 pixels"},
        {bad_many, TESS_ERR_DATA, BAD, "16384 x 16384 pixels"},
        {bad_zero, TESS_ERR_DATA, BAD, "not a whole PNG"},
        {bad_tall, TESS_ERR_DATA, BAD, "has 8 x 7 pixels, but bad/train/a/1.png has 8 x 6"},
        {bad_empty, TESS_ERR_DATA, BAD, "an empty file"},
        {bad_text, TESS_ERR_DATA, BAD, "neither PNG nor JPEG"},
        {bad_fifo, TESS_ERR_DATA, BAD, "not a regular file"},
        {bad_link, TESS_ERR_IO, BAD, "No such file"},
        {bad_link_to_itself, TESS_ERR_IO, BAD, "symbolic links"},
        {bad_link_above, TESS_ERR_DATA, "bad/train/a/up/a/up", "a link to one above"},
        {bad_format, TESS_ERR_UNSUPPORTED, "bad/train/a/5.bmp", "convert it"},
        {bad_cmyk, TESS_ERR_DATA, BAD, "CMYK"},
        {bad_jpeg_cut, TESS_ERR_DATA, BAD, "not a whole JPEG"},
        {bad_jpeg_head, TESS_ERR_DATA, BAD, "not a whole JPEG"},
        {bad_empty_class, TESS_ERR_DATA, "bad/train/c", "no PNG or JPEG images"},
        {bad_new_class, TESS_ERR_DATA, "bad/val/c", "a class that the training images do not"},
        {bad_few, TESS_ERR_DATA, "bad/train", "give images for validation"},
        {bad_no_classes, TESS_ERR_DATA, "bad/val", "no folders of classes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        make_bad();
        bad[i].make();
        check_refused("bad", 0, bad[i].status, bad[i].name, bad[i].phrase);
        remove_all("bad");
    }
    /* Of several bad ones the first is named, whichever thread is first. */
    make_bad();
    for (int i = 0; i < 200; i++) {
        char path[64];
        snprintf(path, sizeof(path), "bad/train/b/%03d.png", i);
        if (i < 60)
            write_grey(path, WIDTH, HEIGHT, 7);
        else
            write_bytes(path, "", 0);
    }
    check_refused("bad", 0, TESS_ERR_DATA, "bad/train/b/060.png", "an empty file");
    remove_all("bad");
    check_refused("nowhere", 0, TESS_ERR_NOT_FOUND, "nowhere", "no such folder");
    check_refused("nowhere", 8, TESS_ERR_NOT_FOUND, "nowhere", "no such folder");
}

/* Cut anywhere and with any byte changed, a picture is read or refused, with its name. */
static void case_damage(void **state)
{
    static uint8_t bytes[8192], rgb[3 * PIXELS];
    const char *const name[] = {"damage/train/a/0.png", "damage/train/a/0.jpg"};
    struct tess_rng_key key = tess_rng_key(3, TESS_RNG_TEST, 0);
    (void)state;
    make_folders("damage/train/a");
    make_folders("damage/val/a");
    write_grey("damage/val/a/0.png", WIDTH, HEIGHT, 3);
    for (int i = 0; i < 3 * PIXELS; i++)
        rgb[i] = (uint8_t)(i * i * 7);
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0)
            write_png(name[0], WIDTH, HEIGHT, PNG_COLOR_TYPE_RGB, 8, 1, rgb, 3 * WIDTH);
        else
            write_jpeg(name[1], 3, rgb, true);
        const size_t count = read_bytes(name[kind], bytes, sizeof(bytes));
        for (uint32_t i = 0; i < 400 / TESTS_DIVISOR; i++) {
            struct tess_dataset *set = NULL;
            const size_t at = tess_rng_word(key, i, 0) % count;
            const uint8_t before = bytes[at];
            bytes[at] ^= (uint8_t)(1 + tess_rng_word(key, i, 1) % 255);
            write_bytes(name[kind], bytes, i % 2 ? at : count);
            bytes[at] = before;
            const enum tess_status status = tess_dataset_open_images("damage", i % 4 / 2 * 5, &set);
            if (status != TESS_OK && strstr(tess_log_last_error(), "damage/") == NULL)
                fail_msg("no name in: %s", tess_log_last_error());
            if (i % 2 == 1) /* no picture that is cut is taken for a whole one */
                assert_int_not_equal(status, TESS_OK);
            tess_dataset_close(set);
        }
        assert_int_equal(unlink(name[kind]), 0);
    }
    remove_all("damage");
}

/* ---- runs ------------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "train --model cnn --data images --data.size 8 --batch-size 8 --grid 4 --epochs 2 "            \
    "--device cpu "

static void case_layouts(void **state)
{
    static const char *const layout[] = {"--strategy single", "--strategy fsdp --ranks 4",
                                         "--strategy ddp --ranks 2 --data.workers 2"};
    static struct spawn spawn;
    char path[64], hash[3][64] = {"", "", ""};
    (void)state;
    make_folders("images/dark");
    make_folders("images/light");
    for (int i = 0; i < 24; i++) {
        snprintf(path, sizeof(path), "images/%s/%02d.png", i % 2 ? "dark" : "light", i);
        write_grey(path, 8 + i % 3, 9 + i % 5, (uint8_t)((i % 2 ? 10 : 150) + 3 * i));
    }
    for (int i = 0; i < 3; i++) {
        char words[256];
        snprintf(words, sizeof(words), RUN "%s", layout[i]);
        if (spawn_words(&spawn, words) != 0)
            fail_msg("%s", spawn.err);
        const char *at = strstr(spawn.out, "hash of all parameters ");
        assert_non_null(at);
        snprintf(hash[i], sizeof(hash[i]), "%.39s", at);
        assert_non_null(strstr(spawn.out, "22 images"));
        assert_string_equal(hash[i], hash[0]);
    }
    assert_int_equal(spawn_words(&spawn, "train --model mlp --data synthetic --data.size 8"), 2);
    assert_non_null(strstr(spawn.err, "--data.size"));
    remove_all("images");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_kinds), cmocka_unit_test(case_jpeg),   cmocka_unit_test(case_folders),
        cmocka_unit_test(case_scale), cmocka_unit_test(case_cifar),  cmocka_unit_test(case_idx4),
        cmocka_unit_test(case_bad),   cmocka_unit_test(case_damage), cmocka_unit_test(case_layouts),
    };
    return cmocka_run_group_tests_name("images", cases, work_folder_make, work_folder_remove);
}
