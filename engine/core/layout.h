/* The flat space of parameters: where everything lies, by the strategy's plan. */
#ifndef TESSERA_CORE_LAYOUT_H
#define TESSERA_CORE_LAYOUT_H

#include "optim/optim.h"
#include "state/declare.h"
#include "tessera/strategy.h"

/*
 * Fill plan->param, unit_name and counts from what this rank keeps (`declare`) of the model. The
 * arrays belong to the plan until tess_layout_fini. The plan is zeroed by the caller.
 */
enum tess_status tess_layout_begin(struct tess_plan *plan, const struct tess_declare *model,
                                   const struct tess_declare *declare);

/* After the strategy's plan(): check the segments, give every parameter its place. */
enum tess_status tess_layout_finish(struct tess_plan *plan, const struct tess_declare *declare);

void tess_layout_fini(struct tess_plan *plan);

/* Elements this rank owns under an extent, over all segments, or of gradients and of the
 * optimizer's state over those that are trained; of values and state, those that a segment shares
 * with another one are counted once. */
enum tess_layout_of { TESS_LAYOUT_GRADS, TESS_LAYOUT_VALUES, TESS_LAYOUT_STATE };
int64_t tess_layout_own_total(const struct tess_plan *plan, enum tess_extent extent,
                              enum tess_layout_of of);

/* Elements of parameter `p` that this rank updates. */
int64_t tess_layout_own_of(const struct tess_plan *plan, int32_t p);

/* Number of pieces of tess_layout_pieces, and of the first of them, which are trained. */
int32_t tess_layout_piece_count(const struct tess_plan *plan, const struct tess_declare *declare,
                                int32_t *trained_out);

/* Elements of all pieces but those that another rank of the tensor or stage axis counts; likewise.
 */
int64_t tess_layout_counted(const struct tess_plan *plan, const struct tess_declare *declare,
                            int64_t *trained_out);

/*
 * The runs of parameters that this rank owns (optim_extent): updates, or, behind those, keeps as
 * they are. In flat order, cut where the parts of the tensor axis begin; pointers into master,
 * compute copy and gradient come from the segments, which are bound already.
 */
void tess_layout_pieces(const struct tess_plan *plan, const struct tess_declare *declare,
                        struct tess_piece *piece);

/*
 * open.c: the memory of a plan, which is committed to it: the communicator's, or without one this
 * process's own, or the kernel's where that is far and the communicator has none of the device.
 * Collective over `comm`. close accepts a zeroed one.
 */
struct tess_arena {
    void *start;
    bool adopted; /* by the kernel */
};
enum tess_status tess__arena_open(struct tess_kernel *kernel, struct tess_memory *memory,
                                  struct tess_comm *comm, struct tess_arena *arena);
void tess__arena_close(struct tess_kernel *kernel, struct tess_memory *memory,
                       struct tess_comm *comm, struct tess_arena *arena);

/* Memory that a declared operation needs (declared.c); TESS_ERR_UNSUPPORTED, with its unit, if the
 * kernel cannot run it. */
enum tess_status tess__op_needs(const struct tess_kernel *kernel,
                                const struct tess_declare *declare, int32_t op,
                                struct tess_op_needs *needs_out);

/* First leaf of a rank's micro-batch, in the canonical order of the step's leaves. */
int64_t tess_layout_first_leaf(const struct tess_plan *plan, int32_t rank, int32_t micro);

#endif
