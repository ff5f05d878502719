/*
 * Event files for TensorBoard: frames, checksums and fields, read back byte by byte. The reader
 * here shares nothing with the writer: the CRC goes bit by bit, the protocol buffer is taken apart
 * by field numbers.
 */
#include "run/tensorboard.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

struct file {
    uint8_t byte[8192];
    size_t count, at;
};

static uint32_t masked_crc(const uint8_t *byte, size_t count)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)(byte[i / 8] >> (i % 8))) & 1;
        crc = (crc >> 1) ^ (bit ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint64_t little(const uint8_t *byte, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++)
        value |= (uint64_t)byte[i] << (8 * i);
    return value;
}

/* The next event's bytes, its frame checked; NULL at the end. */
static const uint8_t *next_event(struct file *file, size_t *count_out)
{
    const uint8_t *frame = file->byte + file->at;
    if (file->at == file->count)
        return NULL;
    assert_true(file->count - file->at >= 16);
    uint64_t count = little(frame, 8);
    assert_true(count <= file->count - file->at - 16);
    assert_int_equal(little(frame + 8, 4), masked_crc(frame, 8));
    assert_int_equal(little(frame + 12 + count, 4), masked_crc(frame + 12, count));
    file->at += count + 16;
    *count_out = count;
    return frame + 12;
}

static uint64_t varint(const uint8_t **byte)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        value |= (uint64_t)(**byte & 0x7f) << shift;
        if (!(*(*byte)++ & 0x80))
            return value;
    }
}

/* The content of field `number` (wire types 0, 1, 2, 5) in a message, or NULL. */
static const uint8_t *field(const uint8_t *byte, size_t count, uint64_t number, size_t *count_out)
{
    const uint8_t *end = byte + count;
    while (byte < end) {
        uint64_t key = varint(&byte);
        const uint8_t *content = byte;
        size_t length = 0;
        if ((key & 7) == 0)
            varint(&byte);
        else if ((key & 7) == 2) {
            length = varint(&byte);
            content = byte;
            byte += length;
        } else
            byte += (key & 7) == 1 ? 8 : 4;
        if (key >> 3 == number) {
            *count_out = length > 0 ? length : (size_t)(byte - content);
            return content;
        }
    }
    return NULL;
}

static void read_folder(const char *folder, struct file *file)
{
    char path[512] = "";
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
    closedir(entries);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    *file = (struct file){0};
    file->count = fread(file->byte, 1, sizeof(file->byte), stream);
    fclose(stream);
    unlink(path);
    rmdir(folder);
}

static bool open_or_skip(char *folder, struct tess_tensorboard **board)
{
    assert_non_null(mkdtemp(folder));
    enum tess_status status = tess_tensorboard_open(folder, board);
    if (status == TESS_ERR_UNSUPPORTED) {
        rmdir(folder);
        return false;
    }
    assert_int_equal(status, TESS_OK);
    return true;
}

static void case_events(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_tensorboard_XXXXXX";
    struct tess_tensorboard *board = NULL;
    struct file file;
    size_t count, part, inner;
    const struct tess_scalar scalar[] = {
        {"train/loss", 0.5}, {"nothing", (double)NAN}, {"train/rate", 0.125}};
    if (!open_or_skip(folder, &board))
        skip();
    assert_int_equal(tess_tensorboard_write(board, 300, scalar, 3), TESS_OK);
    assert_int_equal(tess_tensorboard_write(board, 301, scalar, 1), TESS_OK);
    assert_int_equal(tess_tensorboard_close(board), TESS_OK);
    read_folder(folder, &file);

    const uint8_t *event = next_event(&file, &count);
    assert_non_null(event);
    assert_memory_equal(field(event, count, 3, &part), "brain.Event:2", 13);

    event = next_event(&file, &count);
    assert_non_null(event);
    const uint8_t *step = field(event, count, 2, &part);
    assert_non_null(step);
    assert_int_equal(varint(&step), 300);
    const uint8_t *summary = field(event, count, 5, &part);
    assert_non_null(summary);
    const uint8_t *value = field(summary, part, 1, &inner);
    assert_non_null(value);
    size_t value_count = inner;
    assert_memory_equal(field(value, value_count, 1, &inner), "train/loss", 10);
    float number;
    memcpy(&number, field(value, value_count, 2, &inner), sizeof(number));
    assert_true(number == 0.5f);
    /* The second value is the rate: what is not finite was left out. */
    const uint8_t *second = value + value_count;
    value = field(second, part - (size_t)(second - summary), 1, &inner);
    assert_non_null(value);
    value_count = inner;
    assert_memory_equal(field(value, value_count, 1, &inner), "train/rate", 10);
    assert_ptr_equal(value + value_count, summary + part);

    assert_non_null(next_event(&file, &count));
    assert_null(next_event(&file, &count));
}

/* A file that may not grow: the events before are whole, the error comes once and stays. */
static void case_full(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_tensorboard_XXXXXX";
    struct tess_tensorboard *board = NULL;
    struct file file;
    struct rlimit before, small;
    const struct tess_scalar scalar = {"train/loss", 1};
    size_t count;
    int written = 0, found = -1; /* the first event is the version's */
    if (!open_or_skip(folder, &board))
        skip();
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){500, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    while (written < 100 && tess_tensorboard_write(board, written, &scalar, 1) == TESS_OK)
        written++;
    assert_int_equal(tess_tensorboard_write(board, 0, &scalar, 1), TESS_ERR_IO);
    assert_int_equal(tess_tensorboard_close(board), TESS_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_in_range(written, 1, 99);
    read_folder(folder, &file);
    while (next_event(&file, &count) != NULL)
        found++;
    assert_int_equal(found, written);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_events), cmocka_unit_test(case_full)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
