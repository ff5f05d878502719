/* The memory plan: which bytes a rank needs, by kind and owner, laid end to end. */
#include "base/arena.h"

#include "base/array.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct arena_piece {
    struct tess_block block;
    enum tess_memory_kind kind;
    size_t owner; /* where it begins in owners */
};

struct tess_memory {
    struct arena_piece *piece;
    size_t piece_count;
    char *owners; /* [owners_room] texts, one after the other with their ends */
    size_t owners_bytes, owners_room;
    uint64_t kind_bytes[TESS_MEMORY_KIND_COUNT];
    uint64_t total, beside; /* of the arena; of other memory */
    bool unlisted;          /* pieces are not kept */
    bool sealed;
    char *arena; /* borrowed; NULL until committed */
};

static const char *const arena_kind_name[] = {
#define ARENA_NAME(name, text) [name] = text,
    TESS_MEMORY_LIST(ARENA_NAME)
#undef ARENA_NAME
};

const char *tess_memory_kind_name(enum tess_memory_kind kind)
{
    return (unsigned)kind < TESS_MEMORY_KIND_COUNT ? arena_kind_name[kind] : "unknown";
}

enum tess_status tess_memory_open(struct tess_memory **memory_out)
{
    struct tess_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a memory plan");
    *memory_out = memory;
    return TESS_OK;
}

void tess_memory_unlisted(struct tess_memory *memory)
{
    memory->unlisted = true;
}

void tess_memory_unreserve(struct tess_memory *memory, enum tess_memory_kind kind, uint64_t bytes)
{
    memory->kind_bytes[kind] -= bytes;
    memory->total -= bytes;
}

void tess_memory_close(struct tess_memory *memory)
{
    if (memory == NULL)
        return;
    free(memory->owners);
    free(memory->piece);
    free(memory);
}

/* Keep a copy of the owner's name behind those before it. */
static bool arena_keep_owner(struct tess_memory *memory, const char *owner)
{
    const size_t bytes = strlen(owner) + 1;
    if (memory->owners_room - memory->owners_bytes < bytes) {
        const size_t room = 2 * memory->owners_room + bytes + 256;
        char *more = realloc(memory->owners, room);
        if (more == NULL)
            return false;
        memory->owners = more;
        memory->owners_room = room;
    }
    memcpy(memory->owners + memory->owners_bytes, owner, bytes);
    memory->owners_bytes += bytes;
    return true;
}

/* In the list that tess_memory_visit goes through. */
static bool arena_keep(struct tess_memory *memory, enum tess_memory_kind kind,
                       struct tess_block block, const char *owner)
{
    const size_t name = memory->owners_bytes;
    struct arena_piece *piece =
        tess__array_grow(memory->piece, memory->piece_count, sizeof(*piece));
    if (piece != NULL)
        memory->piece = piece;
    if (piece == NULL || !arena_keep_owner(memory, owner))
        return false;
    piece[memory->piece_count++] =
        (struct arena_piece){.block = block, .kind = kind, .owner = name};
    return true;
}

/* *total: of the memory in which the bytes lie. */
static enum tess_status arena_reserve(struct tess_memory *memory, enum tess_memory_kind kind,
                                      uint64_t bytes, const char *owner, uint64_t *total,
                                      struct tess_block *block_out)
{
    if (memory->sealed)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: %" PRIu64 " bytes reserved after the memory plan was sealed", owner, bytes);
    if ((unsigned)kind >= TESS_MEMORY_KIND_COUNT)
        TESS_FAIL(TESS_ERR_INTERNAL, "%s: memory kind %d does not exist", owner, (int)kind);
    /* Half the address space is far more than any arena; sums below cannot overflow. */
    if (bytes > INT64_MAX - TESS_MEMORY_ALIGN || *total > INT64_MAX - TESS_MEMORY_ALIGN - bytes)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "%s: %" PRIu64
                  " bytes of %s memory cannot be addressed: use a smaller model or batch",
                  owner, bytes, tess_memory_kind_name(kind));
    const struct tess_block block = {.offset = *total, .bytes = bytes};
    if (!memory->unlisted && !arena_keep(memory, kind, block, owner))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a memory plan of %zu blocks",
                  memory->piece_count + 1);
    const uint64_t padded = tess_round_up(bytes, TESS_MEMORY_ALIGN);
    memory->kind_bytes[kind] += padded;
    *total += padded;
    *block_out = block;
    return TESS_OK;
}

enum tess_status tess_memory_reserve(struct tess_memory *memory, enum tess_memory_kind kind,
                                     uint64_t bytes, const char *owner,
                                     struct tess_block *block_out)
{
    return arena_reserve(memory, kind, bytes, owner, &memory->total, block_out);
}

/* Sums of fewer and smaller ones than these stay far from what is too much. */
#define ARENA_EACH_COUNT (1 << 20)
#define ARENA_EACH_BYTES ((uint64_t)1 << 40)
#define ARENA_EACH_TOTAL ((uint64_t)1 << 61)

enum tess_status tess_memory_reserve_each(struct tess_memory *memory, enum tess_memory_kind kind,
                                          uint64_t bytes, const char *owner, int32_t count,
                                          int32_t stride, struct tess_block *block)
{
    const uint64_t padded = tess_round_up(bytes, TESS_MEMORY_ALIGN);
    const bool plain = memory->unlisted && !memory->sealed &&
                       (unsigned)kind < TESS_MEMORY_KIND_COUNT && count < ARENA_EACH_COUNT &&
                       bytes < ARENA_EACH_BYTES && memory->total < ARENA_EACH_TOTAL;
    for (int32_t i = 0; i < count && !plain; i++)
        TESS_TRY(tess_memory_reserve(memory, kind, bytes, owner, &block[i * stride]));
    if (!plain)
        return TESS_OK;
    for (int32_t i = 0; i < (stride > 0 ? count : 1); i++)
        block[i * stride] =
            (struct tess_block){.offset = memory->total + (uint64_t)i * padded, .bytes = bytes};
    memory->total += (uint64_t)count * padded;
    memory->kind_bytes[kind] += (uint64_t)count * padded;
    return TESS_OK;
}

bool tess_memory_repeat(struct tess_memory *memory, enum tess_memory_kind kind, uint64_t bytes)
{
    if (!memory->unlisted || memory->sealed || bytes >= ARENA_EACH_TOTAL ||
        memory->total >= ARENA_EACH_TOTAL)
        return false;
    memory->total += bytes;
    memory->kind_bytes[kind] += bytes;
    return true;
}

enum tess_status tess_memory_reserve_beside(struct tess_memory *memory, enum tess_memory_kind kind,
                                            uint64_t bytes, const char *owner,
                                            struct tess_block *block_out)
{
    return arena_reserve(memory, kind, bytes, owner, &memory->beside, block_out);
}

uint64_t tess_memory_beside(const struct tess_memory *memory)
{
    return memory->beside;
}

enum tess_status tess_memory_commit(struct tess_memory *memory, void *arena)
{
    if (memory->sealed)
        TESS_FAIL(TESS_ERR_INTERNAL, "a memory plan is committed twice");
    if (arena == NULL && memory->total > 0)
        TESS_FAIL(TESS_ERR_INTERNAL, "a memory plan of %" PRIu64 " bytes is committed to no arena",
                  memory->total);
    memory->arena = arena;
    memory->sealed = true;
    return TESS_OK;
}

void *tess_memory_get(const struct tess_memory *memory, struct tess_block block)
{
    return memory->arena != NULL && block.bytes > 0 ? memory->arena + block.offset : NULL;
}

uint64_t tess_memory_bytes(const struct tess_memory *memory, enum tess_memory_kind kind)
{
    return (unsigned)kind < TESS_MEMORY_KIND_COUNT ? memory->kind_bytes[kind] : 0;
}

uint64_t tess_memory_total(const struct tess_memory *memory)
{
    return memory->total;
}

void tess_memory_visit(const struct tess_memory *memory,
                       void (*visit)(void *context, enum tess_memory_kind kind, const char *owner,
                                     struct tess_block block),
                       void *context)
{
    for (size_t i = 0; i < memory->piece_count; i++)
        visit(context, memory->piece[i].kind, memory->owners + memory->piece[i].owner,
              memory->piece[i].block);
}
