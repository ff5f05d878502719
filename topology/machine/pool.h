/* Arrays that are released together, and sets that are joined: what the searches have in common. */
#ifndef TOPOLOGY_POOL_H
#define TOPOLOGY_POOL_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Zeroed: empty. After a failed allocation `failed` stays set, so that one check follows several
 * arrays. */
struct tess__pool {
    struct tess__pool_block *last;
    bool failed;
};

/* `count` zeroed elements of `bytes` each; NULL and pool->failed without memory. */
void *tess__pool_array(struct tess__pool *pool, size_t count, size_t bytes);
void tess__pool_release(struct tess__pool *pool); /* leaves it empty */

/* TESS_ERR_MEMORY, "no memory left for <what>". */
enum tess_status tess__no_memory(const char *what);

/* Room for one element more in the malloc'd array that `pointer` points to, which is replaced; it
 * has grown by this function alone, element by element, to `count`. */
enum tess_status tess__grow(void *pointer, int32_t count, size_t bytes, const char *what);

/* Ends a text of open_memstream; out may be NULL. TESS_ERR_MEMORY, and *text_inout freed and NULL,
 * where a part of it is missing. */
enum tess_status tess__text_close(FILE *out, char **text_inout);

/* Items with key 0 .. keys - 1 in their order: list[first[key] .. first[key + 1]); first [keys +
 * 2]. Key -1: left out. */
void tess__sort_by_key(int32_t items, int32_t keys, const int32_t *key, int32_t *first,
                       int32_t *list);

/* For qsort: compares two lists of `count` numbers in the order of a dictionary. */
int tess__compare(const int64_t *a, const int64_t *b, int count);

/* The root of element i in a forest of sets, parent[root] == root; halves the path to it. */
static inline int32_t tess__root(int32_t *parent, int32_t i)
{
    for (; parent[i] != i; i = parent[i])
        parent[i] = parent[parent[i]];
    return i;
}

#endif
