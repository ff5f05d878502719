/*
 * Samples that are filled with whole documents: where each begins, and which documents it has.
 *
 *     documents     a a a | b b | c c c c c c | d | e e e e
 *     T = 4         a a a   b b   c c c c  c c d    e e e e
 *     sample        0       1     2        3        4
 *
 * They follow each other in the stream without gaps, so that a sample is known by its first token.
 */
#include "data/data_tokens.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* The ends in a piece, behind one another and the last one at its end. A text is one document. */
static enum tess_status pack_ends(const struct tess__token_piece *piece, bool text, int64_t *end)
{
    int64_t before = 0;
    if (piece->end == NULL && !text)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s does not say where documents end, as --data.packing needs: make it with "
                  "tessera data prepare",
                  piece->name);
    if (piece->end == NULL) {
        *end = piece->first + piece->count;
        return TESS_OK;
    }
    for (int64_t d = 0; d < piece->ends; d++) {
        if (piece->end[d] < before || piece->end[d] > piece->count)
            TESS_FAIL(TESS_ERR_DATA, "%s: damaged: document %lld ends at token %lld", piece->name,
                      (long long)d, (long long)piece->end[d]);
        before = piece->end[d];
        end[d] = piece->first + before;
    }
    if (before != piece->count)
        TESS_FAIL(TESS_ERR_DATA, "%s: damaged: the last document ends at token %lld of %lld",
                  piece->name, (long long)before, (long long)piece->count);
    return TESS_OK;
}

enum tess_status tess__stream_find_ends(struct tess_token_stream *stream)
{
    const bool text = stream->kind->magic == 0;
    int64_t count = 0;
    for (int32_t p = 0; p < stream->piece_count; p++)
        count += stream->piece[p].end != NULL ? stream->piece[p].ends : 1;
    stream->end = malloc((size_t)count * sizeof(*stream->end) + 1);
    if (stream->end == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the ends of %lld documents", (long long)count);
    for (int32_t p = 0; p < stream->piece_count; p++) {
        const struct tess__token_piece *piece = &stream->piece[p];
        TESS_TRY(pack_ends(piece, text, stream->end + stream->ends));
        stream->ends += piece->end != NULL ? piece->ends : 1;
    }
    return TESS_OK;
}

/* Where samples begin; with start NULL they are counted alone. */
static int64_t pack_fill(const struct tess_token_stream *stream, int64_t length, int64_t *start)
{
    int64_t samples = 0, begin = 0, at = 0; /* of the sample that is being filled; of its end */
    for (int64_t d = 0; d < stream->ends; d++) {
        while (stream->end[d] - begin > length) {
            /* The document goes on in a sample of its own, unless it is alone already. */
            const int64_t next = at > begin ? at : begin + length;
            if (start != NULL)
                start[samples] = begin;
            samples++;
            begin = at = next;
        }
        at = stream->end[d];
    }
    if (at > begin) {
        if (start != NULL)
            start[samples] = begin;
        samples++;
    }
    if (start != NULL)
        start[samples] = stream->count;
    return samples;
}

enum tess_status tess__pack(struct tess_token_stream *stream, int64_t length, int64_t **start_out,
                            int64_t *count_out)
{
    TESS_TRY(tess__stream_find_ends(stream));
    *count_out = pack_fill(stream, length, NULL);
    *start_out = malloc(((size_t)*count_out + 1) * sizeof(**start_out));
    if (*start_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld samples", (long long)*count_out);
    (void)pack_fill(stream, length, *start_out);
    return TESS_OK;
}
