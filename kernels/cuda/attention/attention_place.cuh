/*
 * Where a block of an attention kernel is: its tile of a head of a sequence, or of a document where
 * the positions are divided into such. What is computed of a document does not depend on where it
 * lies: its tiles begin with it.
 */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_PLACE_CUH
#define KERNELS_CUDA_ATTENTION_ATTENTION_PLACE_CUH

#include "cuda/attention/launch_attention.h"
#include "cuda/launch.cuh"

/* What a kernel is compiled for, so that none costs the others registers. */
enum attention_mode {
    ATTENTION_WHOLE,
    ATTENTION_MASKED, /* there are documents or a window */
    ATTENTION_DROPS,  /* dropout; there may be documents and a window */
    ATTENTION_KEPT, /* forward of queries behind positions that were kept; there may be a window */
};

struct attention_place {
    int64_t start; /* its first position */
    int length;    /* positions of the sequence */
    int tile, tiles;
    int head;
};

/* The shape as a kernel has it: the call's, or its own, whose length is that of its document. The
 * compiler keeps the call's out of registers. */
template <bool MASKED> struct attention_shape_of {
    typedef const struct cuda_attention_shape &type;
};
template <> struct attention_shape_of<true> {
    typedef struct cuda_attention_shape type;
};

/* The document that `at` of `from` is in, ascending numbers of documents' beginnings. */
static __device__ __forceinline__ int attention_document(const int32_t *from, int count, int at)
{
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (from[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Block `at` of a grid: tiles of `rows` positions fastest, then `heads`, then sequences. MASKED:
 * there may be documents. */
template <bool MASKED>
static __device__ __forceinline__ struct attention_place attention_place_of(
    const struct cuda_attention_shape &s, const struct cuda_attention_documents &documents,
    int heads, int rows, int64_t at)
{
    struct attention_place place;
    if (MASKED && documents.count > 0) {
        const int all = documents.tile[documents.count];
        const int tile = (int)(at % all);
        const int d = attention_document(documents.tile, documents.count, tile);
        place.head = (int)(at / all);
        place.start = documents.begin[d];
        place.length = documents.begin[d + 1] - documents.begin[d];
        place.tile = tile - documents.tile[d];
        place.tiles = documents.tile[d + 1] - documents.tile[d];
    } else {
        place.length = s.length;
        place.tiles = (int)(((int64_t)s.length + rows - 1) / rows);
        place.tile = (int)(at % place.tiles);
        at /= place.tiles;
        place.head = (int)(at % heads);
        place.start = at / heads * s.length;
    }
    return place;
}

/* Where its numbers begin in lse and product, of query head `head`. */
static __device__ __forceinline__ int64_t attention_row(const struct cuda_attention_shape &s,
                                                        const struct attention_place &place,
                                                        int head)
{
    return place.start * s.heads + (int64_t)head * place.length;
}

/* The documents with their tiles of `rows` positions. */
static inline struct cuda_attention_documents attention_tiles(
    const struct cuda_attention_documents *documents, int rows)
{
    struct cuda_attention_documents d = *documents;
    d.tile[0] = 0;
    for (int i = 0; i < d.count; i++)
        d.tile[i + 1] = d.tile[i] + (d.begin[i + 1] - d.begin[i] + rows - 1) / rows;
    return d;
}

/* Tiles of `rows` positions of a head of all sequences. */
static inline int64_t attention_tile_count(const struct cuda_attention_shape &s,
                                           const struct cuda_attention_documents &documents,
                                           int rows)
{
    return documents.count > 0 ? documents.tile[documents.count]
                               : s.batch * (((int64_t)s.length + rows - 1) / rows);
}

#endif
