/*
 * TensorBoard event files: events packed by protobuf-c, framed as TFRecords. Responsible for the
 * frames and for the file being whole up to its last event; the caller
 * chooses the curves.
 *
 *     | length u64 | masked crc of length u32 | event, length bytes | masked crc of event u32 |
 *
 * all little endian. The crc is CRC-32C (Castagnoli; RFC 3720, appendix B.4), masked as
 * TensorFlow's record format requires: rotated right by 15 bits, plus 0xa282ead8.
 */
#include "run/tensorboard.h"

#include "base/file.h"

#include "tessera/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tensorboard.pb-c.h>

#define SCALARS_MAX   16
#define RECORD_BYTES  4096 /* far above SCALARS_MAX tags of TAG_BYTES_MAX */
#define TAG_BYTES_MAX 128
#define HEAD_BYTES    12
#define TAIL_BYTES    4

struct tess_tensorboard {
    struct tess_file_log log; /* its status is also that of events that could not be made */
    uint8_t record[RECORD_BYTES];
};

static uint32_t board_masked_crc(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0); /* the polynomial, reflected */
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void board_put(uint8_t *target, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        target[i] = (uint8_t)(value >> (8 * i));
}

static enum tess_status board_write_event(struct tess_tensorboard *board,
                                          const Tess__Tensorboard__Event *event)
{
    size_t length = tess__tensorboard__event__get_packed_size(event);
    size_t whole = HEAD_BYTES + length + TAIL_BYTES;
    uint8_t *record = board->record;
    if (whole > sizeof(board->record))
        TESS_FAIL(TESS_ERR_INTERNAL, "%s: an event of %zu bytes is too long", board->log.path,
                  length);
    board_put(record, length, 8);
    board_put(record + 8, board_masked_crc(record, 8), 4);
    tess__tensorboard__event__pack(event, record + HEAD_BYTES);
    board_put(record + HEAD_BYTES + length, board_masked_crc(record + HEAD_BYTES, length), 4);
    return tess_file_log_append(&board->log, record, whole);
}

static double board_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum tess_status board_open_file(struct tess_tensorboard *board, const char *folder)
{
    char host[64] = "host";
    Tess__Tensorboard__Event first = TESS__TENSORBOARD__EVENT__INIT;
    (void)gethostname(host, sizeof(host) - 1);
    TESS_TRY(tess_file_make_folders(folder, "the folder of --tensorboard"));
    const int used =
        snprintf(board->log.path, sizeof(board->log.path), "%s/events.out.tfevents.%lld.%s.%ld",
                 folder, (long long)time(NULL), host, (long)getpid());
    if ((size_t)used >= sizeof(board->log.path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the folder of --tensorboard is too long");
    TESS_TRY(tess_file_log_open(&board->log, 0));
    first.wall_time = board_now_s();
    first.what_case = TESS__TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    first.file_version = (char[]){"brain.Event:2"};
    return board_write_event(board, &first);
}

enum tess_status tess_tensorboard_open(const char *folder, struct tess_tensorboard **board_out)
{
    struct tess_tensorboard *board = calloc(1, sizeof(*board));
    if (!board)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the writer of --tensorboard");
    board->log = (struct tess_file_log){
        .fd = -1, .part = "events", .within = "an event", .option = "--tensorboard"};
    const enum tess_status status = board_open_file(board, folder);
    if (status == TESS_OK) {
        *board_out = board;
        return TESS_OK;
    }
    if (board->log.fd >= 0)
        (void)tess_file_log_close(&board->log);
    free(board);
    return status;
}

enum tess_status tess_tensorboard_write(struct tess_tensorboard *board, int64_t step,
                                        const struct tess_scalar *scalar, int32_t count)
{
    Tess__Tensorboard__Summary__Value value[SCALARS_MAX], *pointer[SCALARS_MAX];
    Tess__Tensorboard__Summary summary = TESS__TENSORBOARD__SUMMARY__INIT;
    Tess__Tensorboard__Event event = TESS__TENSORBOARD__EVENT__INIT;
    if (!board || board->log.status != TESS_OK)
        return board ? board->log.status : TESS_OK;
    if (count > SCALARS_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "%d scalars in an event of --tensorboard", count);
    summary.value = pointer;
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(scalar[i].value) || strlen(scalar[i].tag) > TAG_BYTES_MAX)
            continue;
        pointer[summary.n_value] = &value[summary.n_value];
        tess__tensorboard__summary__value__init(pointer[summary.n_value]);
        pointer[summary.n_value]->tag = (char *)scalar[i].tag; /* read only by the packer */
        pointer[summary.n_value++]->simple_value = (float)scalar[i].value;
    }
    event.wall_time = board_now_s();
    event.step = step;
    event.what_case = TESS__TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    board->log.status = board_write_event(board, &event);
    return board->log.status;
}

enum tess_status tess_tensorboard_close(struct tess_tensorboard *board)
{
    if (!board)
        return TESS_OK;
    const enum tess_status status = tess_file_log_close(&board->log);
    free(board);
    return status;
}
