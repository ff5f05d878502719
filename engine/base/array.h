/* Arrays that grow element by element. */
#ifndef TESSERA_BASE_ARRAY_H
#define TESSERA_BASE_ARRAY_H

#include <stddef.h>
#include <stdlib.h>

/* Room for one more element of `bytes` in an array of `count`, which doubles from 16 on; it may
 * have moved. NULL without memory, and then the array stays as it was. */
static inline void *tess__array_grow(void *array, size_t count, size_t bytes)
{
    if (count > 0 && (count < 16 || (count & (count - 1)) != 0))
        return array;
    return realloc(array, (count > 0 ? 2 * count : 16) * bytes);
}

#endif
