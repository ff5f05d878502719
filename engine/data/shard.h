/*
 * The header of a file of tokens that tessera data prepare writes: llm.c's, whose version 1 has 16
 * bits and GPT-2's vocabulary, at version 2:
 *
 *     1024 bytes   this header
 *     tokens       `width` bytes each; then zeros up to a multiple of 8 bytes
 *     documents    int64: the number of the token after each document's last one
 *     mask         where `masked` is 1: a bit for each token, the lowest of a byte first, 1 where
 *                  the token is to be learnt; then zeros up to a multiple of 8 bytes
 */
#ifndef TESSERA_DATA_SHARD_H
#define TESSERA_DATA_SHARD_H

#include <stdint.h>

#define TESS__SHARD_MAGIC   20240520
#define TESS__SHARD_VERSION 2

struct tess__shard_header {
    int32_t magic, version;
    int32_t masked, width; /* 0 or 1; 2 or 4 bytes of a token */
    int64_t tokens, documents;
    int32_t vocabulary, end; /* the token at the end of each document; -1: none */
    uint64_t tokenizer;      /* hash of the tokenizer.json */
    uint64_t plan;           /* hash of what was to be prepared: files and options */
    int64_t text_bytes;      /* that were read for it */
    uint64_t id;             /* hash of the tokens and of the documents' ends */
    int32_t rest[238];
};

_Static_assert(sizeof(struct tess__shard_header) == 1024, "256 int32, as in llm.c");

/* Bytes of tokens with the zeros behind them. */
static inline int64_t tess__shard_token_bytes(const struct tess__shard_header *header)
{
    return (header->tokens * header->width + 7) / 8 * 8;
}

static inline int64_t tess__shard_mask_bytes(const struct tess__shard_header *header)
{
    return header->masked ? (header->tokens + 63) / 64 * 8 : 0;
}

/* Bytes of the whole file. */
static inline int64_t tess__shard_bytes(const struct tess__shard_header *header)
{
    return (int64_t)sizeof(*header) + tess__shard_token_bytes(header) + 8 * header->documents +
           tess__shard_mask_bytes(header);
}

/* What is wrong with a header, or NULL. */
const char *tess__shard_fault(const struct tess__shard_header *header);

#endif
