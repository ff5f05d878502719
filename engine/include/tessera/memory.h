/*
 * The memory plan. All that a rank needs is reserved, by kind, before step 0; then the plan is
 * committed to one arena and sealed. A plan that is not committed predicts what a rank allocates.
 */
#ifndef TESSERA_MEMORY_H
#define TESSERA_MEMORY_H

#include "tessera/status.h"

#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

/*
 * X(name, text)
 *
 *   parameter    compute copy that a rank keeps, in the run's precision
 *   master       f32 copy beside a low-precision parameter
 *   gradient     f32, kept until the optimizer has used it
 *   optimizer    momenta, variances
 *   activation   saved tensors and the gradients that flow back
 *   gathered     parameters that live on another rank
 *   bucket       gradients on their way to another rank
 *   workspace    kernels' scratch and packed weights
 *   input        batches and labels
 *   staging      state on its way to a checkpoint: memory of the host, beside the arena
 *   redundancy   copies of the state that outlive the ranks: likewise
 */
#define TESS_MEMORY_LIST(X)                                                                        \
    X(TESS_MEMORY_PARAMETER, "parameter")                                                          \
    X(TESS_MEMORY_MASTER, "master")                                                                \
    X(TESS_MEMORY_GRADIENT, "gradient")                                                            \
    X(TESS_MEMORY_OPTIMIZER, "optimizer")                                                          \
    X(TESS_MEMORY_ACTIVATION, "activation")                                                        \
    X(TESS_MEMORY_GATHERED, "gathered")                                                            \
    X(TESS_MEMORY_BUCKET, "bucket")                                                                \
    X(TESS_MEMORY_WORKSPACE, "workspace")                                                          \
    X(TESS_MEMORY_INPUT, "input")                                                                  \
    X(TESS_MEMORY_STAGING, "staging")                                                              \
    X(TESS_MEMORY_REDUNDANCY, "redundancy")

enum tess_memory_kind {
#define TESS_MEMORY_ENUM(name, text) name,
    TESS_MEMORY_LIST(TESS_MEMORY_ENUM)
#undef TESS_MEMORY_ENUM
        TESS_MEMORY_KIND_COUNT
};

const char *tess_memory_kind_name(enum tess_memory_kind kind);

/* The least multiple of `unit` that is not below `bytes`. */
static inline uint64_t tess_round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

struct tess_memory; /* one rank's plan and, once committed, its arena */

/* A reserved piece. Offsets are from the arena's start and multiples of TESS_MEMORY_ALIGN. */
struct tess_block {
    uint64_t offset;
    uint64_t bytes;
};

#define TESS_MEMORY_ALIGN 4096u

/* Reserve `bytes` (0 takes no room) for `owner`, a short name for --explain, which is copied.
 * TESS_ERR_INTERNAL once the plan is committed. */
enum tess_status tess_memory_reserve(struct tess_memory *memory, enum tess_memory_kind kind,
                                     uint64_t bytes, const char *owner,
                                     struct tess_block *block_out);

/* Address of a block; NULL before commit and for an empty block. Never allocates. */
void *tess_memory_get(const struct tess_memory *memory, struct tess_block block);

/* Bytes reserved for one kind, alignment padding included. */
uint64_t tess_memory_bytes(const struct tess_memory *memory, enum tess_memory_kind kind);

/* Bytes of the whole arena: the sum over all kinds but staging and redundancy. */
uint64_t tess_memory_total(const struct tess_memory *memory);

TESS_END_DECLS
#endif
