/*
 * A table by pairs of ranks, of those pairs alone that something is known of: of N ranks few of the
 * N^2 pairs exchange anything. An item is a struct that begins with a struct tess__pair.
 */
#ifndef TESSERA_RUN_PAIRS_H
#define TESSERA_RUN_PAIRS_H

#include <stddef.h>
#include <stdint.h>

struct tess__pair {
    int32_t from, to;
};

struct tess__pairs {
    size_t item_bytes; /* set by its owner, the rest zeroed */
    int32_t count, room;
    unsigned char *item; /* [count] */
    int32_t *slot;       /* [2 * room] a hash table: 1 + the item's number, 0: free */
    int32_t *order;      /* [room] by tess__pairs_sort */
    float *scratch;      /* [2 * room] its owner's */
};

void tess__pairs_close(struct tess__pairs *pairs);

/* NULL: there is none. */
void *tess__pairs_find(const struct tess__pairs *pairs, int32_t from, int32_t to);
/* The item, a new one with zeros where there was none; NULL without memory. Moves the others. */
void *tess__pairs_get(struct tess__pairs *pairs, int32_t from, int32_t to);

static inline void *tess__pairs_at(const struct tess__pairs *pairs, int32_t number)
{
    return pairs->item + (size_t)number * pairs->item_bytes;
}

/* pairs->order: the items' numbers by `from`, then `to`. */
void tess__pairs_sort(struct tess__pairs *pairs);

#endif
