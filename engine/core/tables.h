/* What lies in the arena: the blocks that a rank reserves, and the pointers into them. */
#ifndef TESSERA_CORE_TABLES_H
#define TESSERA_CORE_TABLES_H

#include "tessera/kernel.h"
#include "tessera/memory.h"

/* Blocks of the arena, in the order of enum tess_memory_kind. A slot is the room of one micro-batch
 * under way (struct tess_chunk). */
struct tess_blocks {
    struct tess_block param, master, grad, optim;
    struct tess_block *unit_output; /* [slot_max, unit_count] */
    struct tess_block flow[2];      /* gradients between units: unit u's output gradient in u % 2 */
    struct tess_block *tensor; /* [slot_max, tensor_count]; those that live for a call only share
                                  unit_scratch */
    struct tess_block unit_scratch, remade_output;
    struct tess_block crossing; /* sums over parts of the tensor axis, in f32 */
    struct tess_block tied;     /* gradients of a tied parameter from its other stage */
    struct tess_block all_output, all_output_grad; /* of all ranks, where the plan holds the loss */
    struct tess_block loss, correct;
    struct tess_block found; /* struct tess_verdict and found.sums, one after the other */
    struct tess_block norms; /* see tess_optim_room */
    struct tess_block op_scratch, direction, update_chunk;
    struct tess_block *packed; /* [op_count], or all in packed_shared */
    struct tess_block packed_shared;
};

/* Pointers into the arena and operations, bound when it exists. */
struct tess_tables {
    void **unit_output; /* [slot_max, unit_count] */
    void *flow[2];
    void **tensor;             /* [slot_max, tensors of the model] */
    struct tess_op *op;        /* [op_count] */
    struct tess_op **op_of;    /* [operations of the model] pointers to op, or NULL */
    size_t *packed_bytes;      /* [op_count] */
    bool packed_kept;          /* every operation has its own packed memory */
    const void **param_of;     /* [parameters of the model], NULL where another rank keeps it */
    float **grad_of;           /* likewise */
    int32_t *unit_param_first; /* [unit_count + 1] */
    int32_t *unit_op_first;    /* [unit_count + 1] */
};

#endif
