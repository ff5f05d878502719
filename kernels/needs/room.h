/* Scratch of the CUDA backend's operations, handed out piece by piece: one layout serves what
 * planning asks for and what calls use. */
#ifndef KERNELS_NEEDS_ROOM_H
#define KERNELS_NEEDS_ROOM_H

#include "tessera/tensor.h"

#include <stddef.h>

/* Pieces are 256-byte aligned if the base is. With base NULL it only measures. */
struct cuda_room {
    char *base;
    size_t used;
};

static inline void *tess__cuda_take(struct cuda_room *room, size_t bytes)
{
    char *piece = room->base ? room->base + room->used : NULL;
    room->used += tess_round_up(bytes, 256);
    return piece;
}

#endif
