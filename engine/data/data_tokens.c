/*
 * Files of text and of tokens, by their names (data_names.c), as a data set. Headers and sizes are
 * checked here, before they are used; token values when a sample is loaded (data_stream.c), since
 * reading many gigabytes first would delay the start.
 */
#include "data/data_tokens.h"

#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the text "text", 12 MB: what a small model learns from in an hour, made in 0.1 s. */

/* The layouts of llm.c's data scripts: 256 int32 (magic, version, count, zeros), then tokens. */
#define SHARD_HEADER_BYTES 1024

static const struct tess__token_kind tokens_shard[] = {
    {.name = "GPT-2 tokens",
     .width = 2,
     .vocabulary = 50257,
     .magic = TESS__SHARD_MAGIC_GPT2,
     .version = 1},
    {.name = "Llama 3 tokens",
     .width = 4,
     .vocabulary = 128256,
     .magic = TESS__SHARD_MAGIC_LLAMA3,
     .version = 7},
};

/* ---- one file ------------------------------------------------------------------------------ */

/* Map a whole file; `map` stays valid when the file is closed. */
static enum tess_status tokens_map(const char *name, struct tess__token_piece *piece)
{
    struct stat about;
    /* O_NONBLOCK: a FIFO must be refused below, not waited for. */
    const int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        TESS_FAIL(errno == ENOENT || errno == ENOTDIR ? TESS_ERR_NOT_FOUND : TESS_ERR_IO,
                  "cannot open %s: %s", name, strerror(errno));
    enum tess_status status = TESS_OK;
    if (fstat(fd, &about) != 0)
        status = tess_fail(TESS_ERR_IO, "cannot open %s: %s", name, strerror(errno));
    else if (!S_ISREG(about.st_mode))
        status = tess_fail(TESS_ERR_DATA, "%s: not a regular file", name);
    else if (about.st_size == 0)
        status = tess_fail(TESS_ERR_DATA, "%s: the file is empty", name);
    if (status == TESS_OK) {
        piece->map_bytes = (size_t)about.st_size;
        piece->map = mmap(NULL, piece->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (piece->map == MAP_FAILED)
            status = tess_fail(errno == ENOMEM ? TESS_ERR_MEMORY : TESS_ERR_IO,
                               "cannot map %s, %zu bytes, into memory: %s", name, piece->map_bytes,
                               strerror(errno));
    }
    close(fd);
    return status;
}

/* The layout of llm.c whose magic number a shard begins with. */
static enum tess_status shard_kind(const char *name, const int32_t *header, size_t bytes,
                                   struct tess__token_kind *kind_out)
{
    const size_t count = sizeof(tokens_shard) / sizeof(*tokens_shard);
    const struct tess__token_kind *kind = NULL;
    for (size_t k = 0; k < count && bytes >= sizeof(*header); k++)
        if (header[0] == tokens_shard[k].magic)
            kind = &tokens_shard[k];
    if (bytes >= sizeof(*header) && kind == NULL) {
        TESS_TRY(tess__format_check_magic(name, header, bytes));
        return tess__format_fail_shard(name, header[0]);
    }
    if (bytes < SHARD_HEADER_BYTES)
        TESS_FAIL(TESS_ERR_DATA, "%s: truncated: %zu bytes where the header alone has %d", name,
                  bytes, SHARD_HEADER_BYTES);
    *kind_out = *kind;
    return TESS_OK;
}

const char *tess__shard_fault(const struct tess__shard_header *header)
{
    if (header->width != 2 && header->width != 4)
        return "wrong width: a token has 2 or 4 bytes";
    if (header->masked != 0 && header->masked != 1)
        return "wrong mask: there is one, 1, or none, 0";
    if (header->vocabulary < 1 || (header->width == 2 && header->vocabulary > 65536))
        return "wrong vocabulary";
    if (header->tokens < 1 || header->tokens > INT64_MAX / 16)
        return "wrong count of tokens";
    if (header->documents < 0 || header->documents > header->tokens)
        return "wrong count of documents";
    return NULL;
}

/* A file of tessera data prepare. */
static enum tess_status shard_check_prepared(const char *name, struct tess__token_piece *piece,
                                             struct tess__token_kind *kind)
{
    const struct tess__shard_header *header = piece->map;
    const char *fault = tess__shard_fault(header);
    if (fault != NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s: %s", name, fault);
    const uint64_t expected = (uint64_t)tess__shard_bytes(header);
    if (piece->map_bytes != expected)
        TESS_FAIL(TESS_ERR_DATA, "%s: %s: %zu bytes, but the header needs %llu", name,
                  piece->map_bytes < expected ? "truncated" : "trailing bytes", piece->map_bytes,
                  (unsigned long long)expected);
    *kind = (struct tess__token_kind){.magic = header->magic,
                                      .version = header->version,
                                      .width = header->width,
                                      .vocabulary = header->vocabulary,
                                      .tokenizer = header->tokenizer};
    snprintf(kind->name, sizeof(kind->name), "tokens of tokenizer %016" PRIx64, header->tokenizer);
    piece->token = header + 1;
    piece->count = header->tokens;
    piece->ends = header->documents;
    piece->end = (const int64_t *)(const void *)((const char *)piece->token +
                                                 tess__shard_token_bytes(header));
    if (header->masked)
        piece->mask = (const uint8_t *)piece->map + expected - tess__shard_mask_bytes(header);
    return TESS_OK;
}

static enum tess_status shard_check(const char *name, struct tess__token_piece *piece,
                                    struct tess__token_kind *kind)
{
    const int32_t *header = piece->map;
    TESS_TRY(shard_kind(name, header, piece->map_bytes, kind));
    if (header[0] == TESS__SHARD_MAGIC && header[1] == TESS__SHARD_VERSION)
        return shard_check_prepared(name, piece, kind);
    if (header[1] != kind->version)
        TESS_FAIL(TESS_ERR_DATA, "%s: wrong version %d: expected %d for %s", name, (int)header[1],
                  (int)kind->version, kind->name);
    const int32_t count = header[2], width = kind->width;
    if (count < 1)
        TESS_FAIL(TESS_ERR_DATA, "%s: wrong count: the header promises %d tokens", name,
                  (int)count);
    const uint64_t expected = SHARD_HEADER_BYTES + (uint64_t)count * (uint64_t)width;
    if (piece->map_bytes != expected)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: %s: %zu bytes, but the header's count of %d tokens of %d bytes needs %llu",
                  name, piece->map_bytes < expected ? "truncated" : "trailing bytes",
                  piece->map_bytes, (int)count, (int)width, (unsigned long long)expected);
    piece->token = (const char *)piece->map + SHARD_HEADER_BYTES;
    piece->count = count;
    return TESS_OK;
}

bool tess__token_kind_same(const struct tess__token_kind *a, const struct tess__token_kind *b)
{
    return a->width == b->width && a->vocabulary == b->vocabulary && a->magic == b->magic &&
           a->version == b->version && a->tokenizer == b->tokenizer;
}

/* Append one file, of the same kind as those before it. */
static enum tess_status tokens_add_file(struct tess_token_stream *stream, const char *name)
{
    struct tess__token_piece piece = {.map = MAP_FAILED};
    struct tess__token_kind kind = tess__token_text;
    enum tess_status status = tokens_map(name, &piece);
    if (status == TESS_OK && fnmatch("*.bin", name, 0) == 0) {
        status = shard_check(name, &piece, &kind);
    } else if (status == TESS_OK) {
        status = tess__format_check_text(name, piece.map, piece.map_bytes);
        piece.token = piece.map;
        piece.count = (int64_t)piece.map_bytes;
    }
    if (status == TESS_OK && stream->kind != NULL && !tess__token_kind_same(stream->kind, &kind))
        status =
            tess_fail(TESS_ERR_DATA, "%s holds %s, but %s holds %s: one data set is of one kind",
                      stream->piece[0].name, stream->kind->name, name, kind.name);
    if (status != TESS_OK) {
        if (piece.map != MAP_FAILED)
            munmap(piece.map, piece.map_bytes);
        return status;
    }
    stream->own = kind;
    stream->kind = &stream->own;
    return tess__stream_append(stream, name, piece);
}

/* ---- data sets ----------------------------------------------------------------------------- */

static bool tokens_is_text(const char *source)
{
    return strcmp(source, "text") == 0;
}

/* Of the text "text": documents [first, end). */
static enum tess_status tokens_open(const char *source, int64_t first, int64_t end,
                                    struct tess_token_stream **stream_out)
{
    struct tess__names names = {0};
    struct tess_token_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a data set's description");
    enum tess_status status = tokens_is_text(source) ? tess__text_make(first, end, stream)
                                                     : tess__names_expand(&names, source);
    for (int32_t i = 0; i < names.count && status == TESS_OK; i++)
        status = tokens_add_file(stream, names.name[i]);
    tess__names_close(&names);
    if (status != TESS_OK)
        tess__stream_close(stream);
    else
        *stream_out = stream;
    return status;
}

/* Samples of a stream: the last one needs a token after it. */
static int64_t tokens_samples(const struct tess_token_stream *stream, int64_t length)
{
    return (stream->count - 1) / length;
}

/* A stream too short for the `needed` samples of it: 1, or 2 where both splits are in it. */
static enum tess_status tokens_check_length(const struct tess_token_stream *stream, int64_t length,
                                            int64_t needed)
{
    if (tokens_samples(stream, length) >= needed)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_DATA,
              "%s%s: %lld tokens are too few for %s of %lld tokens and the one after them: "
              "expected at least %llu; use a smaller --data.length or more data%s",
              stream->piece[0].name, stream->piece_count > 1 ? " and the files after it" : "",
              (long long)stream->count, needed > 1 ? "two samples" : "a sample", (long long)length,
              (unsigned long long)needed * (unsigned long long)length + 1,
              needed > 1 ? ", or name files of their own with --data.validation-files" : "");
}

/* Samples of both splits, packed or not, as if each had its stream for itself. */
static enum tess_status tokens_count(struct tess_dataset *dataset, bool own_files)
{
    const int64_t length = dataset->row.dim[0];
    struct tess_split *train = &dataset->train, *test = &dataset->test;
    if (!dataset->packs) {
        TESS_TRY(tokens_check_length(train->stream, length, own_files ? 1 : 2));
        TESS_TRY(tokens_check_length(test->stream, length, 1));
        train->count = tokens_samples(train->stream, length);
        test->count = tokens_samples(test->stream, length);
        return TESS_OK;
    }
    TESS_TRY(tess__pack(train->stream, length, &dataset->packed[0], &train->count));
    train->start = test->start = dataset->packed[0];
    test->count = train->count;
    if (own_files)
        TESS_TRY(tess__pack(test->stream, length, &dataset->packed[1], &test->count));
    if (own_files)
        test->start = dataset->packed[1];
    return TESS_OK;
}

static enum tess_status tokens_divide(struct tess_dataset *dataset, bool own_files,
                                      double validation)
{
    const int64_t length = dataset->row.dim[0];
    struct tess_split *train = &dataset->train, *test = &dataset->test;
    TESS_TRY(tokens_count(dataset, own_files));
    if (own_files)
        return TESS_OK;
    const int64_t all = train->count;
    test->count = (int64_t)((double)all * validation);
    if (test->count < 1)
        test->count = 1;
    if (test->count >= all)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: a validation share of %g leaves none of %lld samples for training: use a "
                  "smaller --data.validation",
                  train->stream->piece[0].name, validation, (long long)all);
    train->count = all - test->count;
    test->first = train->count * length;
    if (dataset->packs)
        test->start += train->count;
    return TESS_OK;
}

enum tess_status tess__tokens_split(struct tess_token_stream *train, struct tess_token_stream *test,
                                    double validation, int64_t length, bool packs,
                                    struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL) {
        tess__stream_close(train);
        tess__stream_close(test);
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a data set's description");
    }
    dataset->tokens = true;
    dataset->row = tess_shape1(length);
    dataset->labels = length;
    dataset->class_count = train->kind->vocabulary;
    dataset->deviation = 1;
    dataset->train.stream = train;
    dataset->test.stream = test != NULL ? test : train;
    dataset->packs = packs;
    dataset->masked = packs || train->masked || (test != NULL && test->masked);
    dataset->mapped_bytes = train->mapped_bytes + (test != NULL ? test->mapped_bytes : 0);
    const enum tess_status status = tokens_divide(dataset, test != NULL, validation);
    if (status != TESS_OK)
        tess_dataset_close(dataset);
    else
        *dataset_out = dataset;
    return status;
}

/* How many documents of the text "text" are for training: all but a share, and at least one. */
static int64_t tokens_divide_text(double validation)
{
    const int64_t share = (int64_t)(TESS__TEXT_DOCUMENTS * validation);
    return TESS__TEXT_DOCUMENTS - (share < 1 ? 1 : share);
}

void tess_dataset_text_counts(double validation, int64_t length, int64_t *train_out,
                              int64_t *test_out)
{
    const int64_t train = tess__text_made_bytes(tokens_divide_text(validation));
    const int64_t all = tess__text_made_bytes(TESS__TEXT_DOCUMENTS);
    *train_out = (train - 1) / length;
    *test_out = (all - train - 1) / length;
}

static enum tess_status tokens_open_both(const char *source, const char *validation_source,
                                         double validation, int64_t length, bool packs,
                                         struct tess_dataset **dataset_out)
{
    struct tess_token_stream *train = NULL, *test = NULL;
    const int64_t all = TESS__TEXT_DOCUMENTS;
    const bool own_files = validation_source != NULL && validation_source[0] != '\0';
    /* Of text by documents, so that validation has no part of one that training has. */
    const int64_t divide =
        tokens_is_text(source) && !own_files ? tokens_divide_text(validation) : all;
    TESS_TRY(tokens_open(source, 0, divide, &train));
    enum tess_status status = TESS_OK;
    if (own_files || divide < all)
        status = tokens_open(own_files ? validation_source : source, divide % all, all, &test);
    if (status == TESS_OK && test != NULL && !tess__token_kind_same(test->kind, train->kind))
        status = tess_fail(
            TESS_ERR_DATA,
            "%s for validation holds %s, but %s for training holds %s: expected the same kind",
            test->piece[0].name, test->kind->name, train->piece[0].name, train->kind->name);
    if (status != TESS_OK) {
        tess__stream_close(train);
        tess__stream_close(test);
        return status;
    }
    return tess__tokens_split(train, test, validation, length, packs, dataset_out);
}

enum tess_status tess_dataset_open_tokens(const char *source, const char *validation_source,
                                          double validation, int64_t length,
                                          struct tess_dataset **dataset_out)
{
    return tokens_open_both(source, validation_source, validation, length, false, dataset_out);
}

enum tess_status tess_dataset_open_packed(const char *source, const char *validation_source,
                                          double validation, int64_t length,
                                          struct tess_dataset **dataset_out)
{
    return tokens_open_both(source, validation_source, validation, length, true, dataset_out);
}
