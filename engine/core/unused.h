/*
 * Parameters that a step leaves without a gradient: which ones, on which ranks, and what follows.
 * optim.c leaves them out of the update; the model decides which branches it takes.
 *
 * An unused parameter's gradient is zero where it is not used, so every reduction has all its parts
 * and no rank waits. Zeros do not show whether any rank used it: a parameter that no rank used must
 * keep its momentum and its weights, not decay. So the ranks of a conditional model exchange one
 * byte a parameter between reduction and update, once a step (Li et al., "PyTorch Distributed",
 * VLDB 2020, sections 3.2.3 and 4.2: their bitmap of globally unused parameters).
 */
#ifndef TESSERA_CORE_UNUSED_H
#define TESSERA_CORE_UNUSED_H

#include "config/config.h"
#include "core/tables.h"
#include "state/declare.h"

struct tess_unused {
    /* Borrowed. */
    const struct tess_config *config;
    const struct tess_plan *plan;
    const struct tess_declare *model;   /* all of it */
    const struct tess_declare *declare; /* what this rank keeps */
    const struct tess_tables *tables;
    struct tess_kernel *kernel;
    struct tess_comm *comm; /* all ranks */

    /* By a parameter's number in the model; host memory. */
    bool *pass;    /* [params] for the model's backward: tess_pass.used */
    uint8_t *used; /* [ranks of the mesh, params] in any micro-batch of the step; in a conditional
                      model the rows of other ranks are valid from finish to the next step */
    uint8_t *skip; /* [params] used by no rank; conditional models only, else NULL */
    int64_t *updates; /* [params] updates done, likewise */
};

/* The borrowed fields are set. close accepts a half-opened one. */
enum tess_status tess__unused_open(struct tess_unused *unused);
void tess__unused_close(struct tess_unused *unused);
void tess__unused_begin(struct tess_unused *unused); /* of a step */
/* Around each unit's backward; leave gives unused parameters a gradient of zero. */
void tess__unused_enter(struct tess_unused *unused, int32_t unit);
enum tess_status tess__unused_leave(struct tess_unused *unused, int32_t unit);
/*
 * After the reduction and before the update: exchange the entries of a conditional model (then
 * collective), and refuse the step (a number from 1) without --find-unused: TESS_ERR_USAGE on rank
 * 0, with the reason, TESS_ERR_ABORTED on the others.
 */
enum tess_status tess__unused_finish(struct tess_unused *unused, int64_t step);

#endif
