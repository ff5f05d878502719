/*
 * Streams of tokens, for files that open them (data_tokens.c, data_text.c,
 * data_synthetic.c) and that read samples from them (data_stream.c); and the memory of sets of
 * images for files that fill them (data_idx.c, data_synthetic.c).
 */
#ifndef TESSERA_DATA_DATA_TOKENS_H
#define TESSERA_DATA_DATA_TOKENS_H

#include "data/data.h"
#include "data/shard.h"

/* How files keep tokens: one after the other, in the machine's (little endian) order. */
struct tess__token_kind {
    char name[64]; /* for messages: "text" */
    int32_t width; /* bytes of a token: 1, 2 or 4 */
    int32_t vocabulary;
    int32_t magic, version; /* of the header; 0: no header */
    uint64_t tokenizer;     /* hash of its file; 0: it is not known */
};

extern const struct tess__token_kind tess__token_text;

bool tess__token_kind_same(const struct tess__token_kind *a, const struct tess__token_kind *b);

/* Tokens that lie together: a mapped file, or memory. */
struct tess__token_piece {
    char *name;         /* of the file, for messages; owned */
    const void *token;  /* [count], inside the mapping */
    const int64_t *end; /* [ends], likewise: the token after each document's last one, counted in
                           the piece; NULL: the piece is one document, or it is not known */
    int64_t ends;
    const uint8_t *mask; /* [count] bits, likewise: is the token to be learnt? NULL: all are */
    int64_t first;       /* number in the stream of its first token */
    int64_t count;
    void *map; /* owned */
    size_t map_bytes;
};

/*
 * Pieces end to end; a sample may begin in one and end in another:
 *
 *     piece     |      0      |   1   |        2        |
 *     first     0             13      20                37 = count
 */
struct tess_token_stream {
    const struct tess__token_kind *kind; /* &own, or static */
    struct tess__token_kind own;
    int64_t count;
    int32_t piece_count;
    struct tess__token_piece *piece;
    size_t mapped_bytes;
    bool masked;  /* a piece has a mask */
    int64_t *end; /* [ends], for packing: as in pieces, counted in the stream; owned */
    int64_t ends;
};

/*
 * Append a piece; its `first` and name are set here, from `name`, which is copied. Takes over the
 * mapping, also when it fails. TESS_ERR_MEMORY.
 */
enum tess_status tess__stream_append(struct tess_token_stream *stream, const char *name,
                                     struct tess__token_piece piece);

/* NULL is allowed. */
void tess__stream_close(struct tess_token_stream *stream);

/* Zero-filled memory shared by ranks forked later. TESS_ERR_MEMORY. */
enum tess_status tess__stream_map(size_t bytes, uint8_t **memory_out);

/* tess_dataset_labels of tokens. */
int64_t tess__stream_labels(const struct tess_dataset *dataset, const struct tess_split *split,
                            int64_t sample);

/*
 * tess_load_rows of tokens. Each token is read from the mapping once and checked where it was
 * copied to: what a file that changes meanwhile may hold is never used unchecked.
 */
int64_t tess__stream_load_rows(const struct tess_dataset *dataset, const struct tess_split *split,
                               const int64_t *sample, int64_t rows, int32_t *input, int32_t *label);

/* Several sets as one: data_mix.c. */
struct tess_mix {
    int32_t count;
    struct tess_dataset **set;       /* [count], owned */
    struct tess_split *train, *test; /* [count] */
    uint64_t share[TESS_MIX_MAX];    /* of 2^32: set k's of what is left for k, k + 1, ... */
    int64_t first[TESS_MIX_MAX];     /* number of its first training sample */
};
void tess__mix_close(struct tess_mix *mix); /* NULL is allowed */

/* ---- data_format.c: files of other formats ----------------------------------------------------
 */

#define TESS__SHARD_MAGIC_GPT2   TESS__SHARD_MAGIC
#define TESS__SHARD_MAGIC_LLAMA3 20240801

/*
 * TESS_ERR_DATA, with the format's name and the way to convert it, when a file that begins with
 * these `count` bytes is of a format that is known and neither text nor tokens.
 */
enum tess_status tess__format_check_magic(const char *name, const void *bytes, size_t count);
/* The same for a whole file that is to be text, which has no NUL byte either: looked for in its
 * first 64 KiB and in 16 places spread over the rest, so that no time goes into a large file. */
enum tess_status tess__format_check_text(const char *name, const void *bytes, size_t count);
/* TESS_ERR_DATA: a shard begins with none of the magic numbers. */
enum tess_status tess__format_fail_shard(const char *name, int32_t magic);

/* Names of files. Starts zeroed. */
struct tess__names {
    char **name; /* each owned */
    int32_t count;
};

/* Add what `source`, as tess_dataset_open_tokens takes it, stands for. TESS_ERR_NOT_FOUND where a
 * pattern fits nothing; whether the other files are there shows when they are opened. */
enum tess_status tess__names_expand(struct tess__names *names, const char *source);
void tess__names_close(struct tess__names *names);
/* Append a copy of a name; put those from number `first` on in the order of their bytes. */
enum tess_status tess__names_add(struct tess__names *names, const char *name);
void tess__names_sort(struct tess__names *names, int32_t first);

/*
 * A set of samples of `length` tokens from one stream, or two. Takes the streams over, also when it
 * fails: TESS_ERR_DATA when a split would have no sample. `test` NULL: the last `validation` share
 * of `train`.
 */
enum tess_status tess__tokens_split(struct tess_token_stream *train, struct tess_token_stream *test,
                                    double validation, int64_t length, bool packs,
                                    struct tess_dataset **dataset_out);

/*
 * data_pack.c: the samples of length T of a stream, for tess_split.start, [count + 1], and
 * stream->end. *start_out is freed by the caller.
 */
enum tess_status tess__pack(struct tess_token_stream *stream, int64_t length, int64_t **start_out,
                            int64_t *count_out);
/* stream->end and ends, which were not there. TESS_ERR_DATA where a file does not say where
 * documents end, or its ends are damaged. */
enum tess_status tess__stream_find_ends(struct tess_token_stream *stream);

/* Documents [first, end) of the text "text", as one piece: data_text.c. TESS_ERR_MEMORY. */
enum tess_status tess__text_make(int64_t first, int64_t end, struct tess_token_stream *stream);
#define TESS__TEXT_DOCUMENTS 10000
/* Bytes of its first documents, 0 to TESS__TEXT_DOCUMENTS, of which few are made for it. Pure. */
int64_t tess__text_made_bytes(int64_t documents);

/* ---- sets of images, before they are returned -------------------------------------------------
 */

/* Greatest size of a set in memory: that of this machine or of the process's control groups, so
 * that one wrong byte in a header does not make it swap. */
uint64_t tess__dataset_bytes_max(void);
double tess__dataset_gib_max(void); /* the same in GiB */

/* a * b, or UINT64_MAX when that is exceeded. */
uint64_t tess__dataset_product(uint64_t a, uint64_t b);

/* Bytes of both splits in memory, or UINT64_MAX. */
uint64_t tess__dataset_bytes(struct tess_shape row, uint64_t train_count, uint64_t test_count);

/* A set with room for its data, zeroed; sizes were checked with tess__dataset_bytes. */
enum tess_status tess__dataset_new(struct tess_shape row, int32_t class_count, int64_t train_count,
                                   int64_t test_count, struct tess_dataset **dataset_out);

/* All is filled in: compute mean and deviation of the training pixels, from integer sums, and make
 * the pages read-only. */
void tess__dataset_seal(struct tess_dataset *dataset);

#endif
