/*
 * A stream of tokens: the mappings it owns, reading samples from them, and the message for a token
 * that the vocabulary does not have. Files are found and opened by data_tokens.c.
 */
#include "data/data_tokens.h"

#include "tessera/check.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const struct tess__token_kind tess__token_text = {.name = "text", .width = 1, .vocabulary = 256};

enum tess_status tess__stream_map(size_t bytes, uint8_t **memory_out)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot map %zu bytes of shared memory for the data set: %s",
                  bytes, strerror(errno));
    *memory_out = memory;
    return TESS_OK;
}

enum tess_status tess__stream_append(struct tess_token_stream *stream, const char *name,
                                     struct tess__token_piece piece)
{
    const size_t pieces = (size_t)stream->piece_count + 1;
    struct tess__token_piece *more = realloc(stream->piece, pieces * sizeof(*more));
    stream->piece = more != NULL ? more : stream->piece;
    piece.name = strdup(name);
    if (more == NULL || piece.name == NULL) {
        munmap(piece.map, piece.map_bytes);
        free(piece.name);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a list of %zu files", pieces);
    }
    piece.first = stream->count;
    stream->piece[stream->piece_count++] = piece;
    stream->count += piece.count;
    stream->mapped_bytes += piece.map_bytes;
    stream->masked = stream->masked || piece.mask != NULL;
    return TESS_OK;
}

void tess__stream_close(struct tess_token_stream *stream)
{
    if (stream == NULL)
        return;
    for (int32_t p = 0; p < stream->piece_count; p++) {
        munmap(stream->piece[p].map, stream->piece[p].map_bytes);
        free(stream->piece[p].name);
    }
    free(stream->piece);
    free(stream->end);
    free(stream);
}

/* ---- reading ------------------------------------------------------------------------------- */

/* The piece that holds token `at`. */
static const struct tess__token_piece *stream_find(const struct tess_token_stream *stream,
                                                   int64_t at)
{
    int32_t low = 0, high = stream->piece_count - 1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (stream->piece[middle].first <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &stream->piece[low];
}

/* Each widens `count` tokens and returns the greatest. Plain loops, to be vectorised. */
static uint32_t stream_widen_u8(const uint8_t *restrict token, int64_t count,
                                int32_t *restrict target)
{
    for (int64_t i = 0; i < count; i++)
        target[i] = token[i];
    return 0; /* every byte is in the vocabulary */
}

static uint32_t stream_widen_u16(const uint16_t *restrict token, int64_t count,
                                 int32_t *restrict target)
{
    uint32_t greatest = 0;
    for (int64_t i = 0; i < count; i++) {
        target[i] = token[i];
        greatest = (uint32_t)target[i] > greatest ? (uint32_t)target[i] : greatest;
    }
    return greatest;
}

static uint32_t stream_widen_u32(const uint32_t *restrict token, int64_t count,
                                 int32_t *restrict target)
{
    uint32_t greatest = 0;
    memcpy(target, token, (size_t)count * sizeof(*token));
    for (int64_t i = 0; i < count; i++)
        greatest = (uint32_t)target[i] > greatest ? (uint32_t)target[i] : greatest;
    return greatest;
}

/* Copy tokens [at, at + count) of the stream; returns the greatest. A function of its own, so that
 * nothing of it is in registers that siglongjmp would restore. */
static uint32_t __attribute__((noinline))
stream_copy(const struct tess_token_stream *stream, int64_t at, int64_t count, int32_t *target)
{
    const struct tess__token_piece *piece = stream_find(stream, at);
    uint32_t greatest = 0;
    while (count > 0) {
        const int64_t skip = at - piece->first;
        const int64_t now = piece->count - skip < count ? piece->count - skip : count;
        uint32_t here;
        if (stream->kind->width == 1)
            here = stream_widen_u8((const uint8_t *)piece->token + skip, now, target);
        else if (stream->kind->width == 2)
            here = stream_widen_u16((const uint16_t *)piece->token + skip, now, target);
        else
            here = stream_widen_u32((const uint32_t *)piece->token + skip, now, target);
        greatest = here > greatest ? here : greatest;
        at += now;
        target += now;
        count -= now;
        piece++;
    }
    return greatest;
}

/* A mapped file that becomes shorter, or whose disk fails, is a SIGBUS where it is read. */
static _Thread_local sigjmp_buf *volatile stream_guard; /* where reading goes on; else NULL */
static struct sigaction stream_former;

static void stream_lost(int number)
{
    if (stream_guard != NULL)
        siglongjmp(*stream_guard, 1);
    (void)sigaction(number, &stream_former, NULL); /* of other memory: again, and as before */
}

static void stream_catch(void)
{
    struct sigaction action = {.sa_handler = stream_lost, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &stream_former);
}

/*
 * Tokens [at, at + count) of the stream that are not to be learnt: their labels become -1, unless
 * label is NULL. Returns how many there are of the others. noinline as above.
 */
static uint32_t __attribute__((noinline))
stream_mask(const struct tess_token_stream *stream, int64_t at, int64_t count, int32_t *label)
{
    const struct tess__token_piece *piece = stream_find(stream, at);
    uint32_t learnt = 0;
    for (int64_t i = 0; i < count; i++) {
        piece += at + i >= piece->first + piece->count;
        const int64_t bit = at + i - piece->first;
        const bool learn = piece->mask == NULL || (piece->mask[bit / 8] >> bit % 8 & 1) != 0;
        learnt += learn;
        if (!learn && label != NULL)
            label[i] = -1;
    }
    return learnt;
}

typedef uint32_t stream_reader(const struct tess_token_stream *stream, int64_t at, int64_t count,
                               int32_t *target);

/* What `reader` returns; UINT32_MAX, which no vocabulary has, where a file's bytes are not there
 * any more. */
static uint32_t stream_guarded(stream_reader *reader, const struct tess_token_stream *stream,
                               int64_t at, int64_t count, int32_t *target)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigjmp_buf guard;
    (void)pthread_once(&once, stream_catch);
    if (sigsetjmp(guard, 0) != 0) {
        stream_guard = NULL;
        return UINT32_MAX;
    }
    stream_guard = &guard;
    atomic_signal_fence(memory_order_seq_cst);
    const uint32_t found = reader(stream, at, count, target);
    atomic_signal_fence(memory_order_seq_cst);
    stream_guard = NULL;
    return found;
}

static uint32_t stream_read(const struct tess_token_stream *stream, int64_t at, int64_t count,
                            int32_t *target)
{
    return stream_guarded(stream_copy, stream, at, count, target);
}

/* The part of a mix that has a sample, whose number becomes that in the part. */
static const struct tess_split *stream_part(const struct tess_split *split, int64_t *sample)
{
    const struct tess_split *part = split->part;
    for (; part != NULL && *sample >= part->count; part++)
        *sample -= part->count;
    return part != NULL ? part : split;
}

/* Tokens [at, at + count) are the sample's; `more`: the label of the last one is there. */
struct stream_place {
    const struct tess_split *split;
    int64_t at, count;
    bool more;
};

static struct stream_place stream_place(const struct tess_split *split, int64_t length,
                                        int64_t sample)
{
    struct stream_place place = {.split = stream_part(split, &sample)};
    const int64_t *start = place.split->start;
    place.at = start != NULL ? start[sample] : place.split->first + sample * length;
    place.count = start != NULL ? start[sample + 1] - place.at : length;
    place.more = place.at + place.count < place.split->stream->count;
    return place;
}

/* The number of the first end of a document behind token `at`. */
static int64_t stream_find_end(const struct tess_token_stream *stream, int64_t at)
{
    int64_t low = 0, high = stream->ends;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (stream->end[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int32_t tess_dataset_documents(const struct tess_dataset *dataset, const struct tess_split *split,
                               int64_t sample, int32_t *begin_out)
{
    int32_t count = 0;
    begin_out[count++] = 0;
    if (sample < 0 || !dataset->packs)
        return count;
    const int64_t length = dataset->row.dim[0];
    const struct stream_place place = stream_place(split, length, sample & ~TESS_SAMPLE_IGNORED);
    const struct tess_token_stream *stream = place.split->stream;
    for (int64_t d = stream_find_end(stream, place.at);
         d < stream->ends && stream->end[d] < place.at + place.count; d++)
        if (stream->end[d] - place.at > begin_out[count - 1]) /* a document may be empty */
            begin_out[count++] = (int32_t)(stream->end[d] - place.at);
    if (place.count < length)
        begin_out[count++] = (int32_t)place.count;
    return count;
}

/* Labels of a packed sample's tokens; `label` NULL: they are counted alone. Returns how many count:
 * not the last one of a document, nor what is not to be learnt. */
static int64_t stream_pack_labels(const struct stream_place *place, int32_t *label)
{
    const struct tess_token_stream *stream = place->split->stream;
    const int64_t labels = place->count - !place->more;
    const uint32_t learnt = stream_guarded(stream_mask, stream, place->at + 1, labels, label);
    int64_t count = learnt, before = -1;
    if (learnt == UINT32_MAX)
        return 0;
    if (label != NULL && !place->more)
        label[labels] = -1;
    for (int64_t d = stream_find_end(stream, place->at);
         d < stream->ends && stream->end[d] <= place->at + labels; d++) {
        const int64_t last = stream->end[d] - place->at - 1;
        if (last == before)
            continue;
        count -= stream_guarded(stream_mask, stream, stream->end[d], 1, NULL);
        before = last;
        if (label != NULL)
            label[last] = -1;
    }
    return count;
}

/* A packed sample: its tokens, zeros, and labels, -1 behind its tokens. Returns the greatest. */
static uint32_t stream_load_packed(const struct stream_place *place, int64_t length, int32_t *input,
                                   int32_t *label)
{
    const struct tess_token_stream *stream = place->split->stream;
    const size_t empty = (size_t)(length - place->count) * sizeof(*input);
    uint32_t greatest = stream_read(stream, place->at, place->count, input);
    memset(input + place->count, 0, empty);
    memset(label + place->count, 0xff, empty);
    memcpy(label, input + 1, (size_t)(place->count - 1) * sizeof(*label));
    if (place->more) {
        const uint32_t last =
            stream_read(stream, place->at + place->count, 1, label + place->count - 1);
        greatest = last > greatest ? last : greatest;
    }
    if (greatest < UINT32_MAX)
        (void)stream_pack_labels(place, label);
    return greatest;
}

int64_t tess__stream_labels(const struct tess_dataset *dataset, const struct tess_split *split,
                            int64_t sample)
{
    const int64_t length = dataset->row.dim[0];
    const struct stream_place place = stream_place(split, length, sample);
    const struct tess_split *part = place.split;
    const int64_t at = place.at;
    if (dataset->packs)
        return stream_pack_labels(&place, NULL);
    const uint32_t learnt = stream_guarded(stream_mask, part->stream, at + 1, length, NULL);
    return learnt == UINT32_MAX ? 0 : (int64_t)learnt; /* then it cannot be loaded either */
}

int64_t tess__stream_load_rows(const struct tess_dataset *dataset, const struct tess_split *split,
                               const int64_t *sample, int64_t rows, int32_t *input, int32_t *label)
{
    const int64_t length = dataset->row.dim[0];
    const uint32_t vocabulary = (uint32_t)dataset->class_count;
    const size_t row_bytes = (size_t)length * sizeof(*input);
    for (int64_t r = 0; r < rows; r++, input += length, label += length) {
        if (sample[r] < 0) {
            memset(input, 0, row_bytes);
            memset(label, 0xff, row_bytes); /* every label -1 */
            continue;
        }
        const struct stream_place place =
            stream_place(split, length, sample[r] & ~TESS_SAMPLE_IGNORED);
        const struct tess_split *part = place.split;
        const int64_t at = place.at;
        if (dataset->packs) {
            if (stream_load_packed(&place, length, input, label) >= vocabulary)
                return r;
            if (sample[r] & TESS_SAMPLE_IGNORED)
                memset(label, 0xff, row_bytes);
            continue;
        }
        const uint32_t greatest = stream_read(part->stream, at, length, input);
        const uint32_t last = stream_read(part->stream, at + length, 1, label + length - 1);
        if (greatest >= vocabulary || last >= vocabulary)
            return r;
        if (sample[r] & TESS_SAMPLE_IGNORED)
            memset(label, 0xff, row_bytes);
        else
            memcpy(label, input + 1, row_bytes - sizeof(*input));
        if (dataset->masked && (sample[r] & TESS_SAMPLE_IGNORED) == 0 &&
            stream_guarded(stream_mask, part->stream, at + 1, length, label) == UINT32_MAX)
            return r;
    }
    return rows;
}

enum tess_status tess_load_report(const struct tess_dataset *dataset,
                                  const struct tess_split *split, int64_t sample)
{
    const struct stream_place place =
        stream_place(split, dataset->row.dim[0], sample & ~TESS_SAMPLE_IGNORED);
    const struct tess_token_stream *stream = place.split->stream;
    const int64_t at = place.at;
    for (int64_t i = at; i < at + place.count + place.more; i++) {
        int32_t token = 0;
        const struct tess__token_piece *piece = stream_find(stream, i);
        const uint32_t found = stream_read(stream, i, 1, &token);
        if (found == UINT32_MAX && token == 0) /* nothing was copied */
            TESS_FAIL(TESS_ERR_IO,
                      "%s: cannot be read any more: it was cut short while it was in use, or its "
                      "disk fails",
                      piece->name);
        if (found >= (uint32_t)stream->kind->vocabulary)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: token out of range: token %lld (counted from 0) is %u, expected 0 to %d "
                      "(%s); make the file again with that tokenizer",
                      piece->name, (long long)(i - piece->first), (unsigned)token,
                      (int)stream->kind->vocabulary - 1, stream->kind->name);
    }
    TESS_FAIL(TESS_ERR_DATA,
              "%s: changed while it was read: a token was out of range and is not any more",
              stream_find(stream, at)->name);
}
