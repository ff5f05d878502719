/* See pool.h. */
#include "topology/machine/pool.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

struct tess__pool_block {
    struct tess__pool_block *before;
    _Alignas(max_align_t) unsigned char data[];
};

void *tess__pool_array(struct tess__pool *pool, size_t count, size_t bytes)
{
    /* One element more than requested, so that no array is empty. */
    struct tess__pool_block *block = calloc(1, sizeof(*block) + (count + 1) * bytes);
    if (!block) {
        pool->failed = true;
        return NULL;
    }
    block->before = pool->last;
    pool->last = block;
    return block->data;
}

void tess__pool_release(struct tess__pool *pool)
{
    for (struct tess__pool_block *block = pool->last, *before; block; block = before) {
        before = block->before;
        free(block);
    }
    *pool = (struct tess__pool){0};
}

enum tess_status tess__no_memory(const char *what)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory left for %s", what);
}

enum tess_status tess__grow(void *pointer, int32_t count, size_t bytes, const char *what)
{
    void *array;
    if ((count & (count - 1)) != 0)
        return TESS_OK; /* full at powers of two only */
    memcpy(&array, pointer, sizeof(array));
    array = realloc(array, (count < 16 ? 32 : 2 * (size_t)count) * bytes);
    if (array == NULL)
        return tess__no_memory(what);
    memcpy(pointer, &array, sizeof(array));
    return TESS_OK;
}

void tess__sort_by_key(int32_t items, int32_t keys, const int32_t *key, int32_t *first,
                       int32_t *list)
{
    memset(first, 0, ((size_t)keys + 2) * sizeof(*first));
    for (int32_t i = 0; i < items; i++)
        first[key[i] + 2] += key[i] >= 0;
    for (int32_t k = 0; k < keys; k++)
        first[k + 2] += first[k + 1];
    for (int32_t i = 0; i < items; i++) {
        if (key[i] >= 0)
            list[first[key[i] + 1]++] = i;
    }
}

int tess__compare(const int64_t *a, const int64_t *b, int count)
{
    while (count > 1 && *a == *b)
        a++, b++, count--;
    return (*a > *b) - (*a < *b);
}

enum tess_status tess__text_close(FILE *out, char **text_inout)
{
    bool failed = !out || ferror(out) != 0;
    if (out && fclose(out) != 0)
        failed = true;
    if (!failed)
        return TESS_OK;
    free(*text_inout);
    *text_inout = NULL;
    return tess__no_memory("the text");
}
