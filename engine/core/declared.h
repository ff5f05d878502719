/*
 * What a model declares for an input, and declarations that are kept: engines that are planned one
 * after the other, to compare layouts, share those whose input is the same.
 */
#ifndef TESSERA_CORE_DECLARED_H
#define TESSERA_CORE_DECLARED_H

#include "config/config.h"
#include "state/declare.h"

/* Declarations of one model with one set of options, for kernels of as many threads. Several
 * threads may plan with them at once. */
struct tess_declared;

enum tess_status tess_declared_open(struct tess_declared **declared_out);
/* After all engines that share them. NULL is allowed. */
void tess_declared_close(struct tess_declared *declared);
/* So many were made; the others were shared. */
int64_t tess_declared_count(const struct tess_declared *declared);

/*
 * The configuration's model for an input, and its state: both of config->declared, which keeps
 * them, or, where that is NULL, the caller's to free, also after a failure: tess_declare_fini, and
 * tess__declare_free for the state. *model_out and *state_out are zeroed by the caller.
 */
enum tess_status tess__declare(const struct tess_config *config,
                               const struct tess_model_input *input, struct tess_declare *model_out,
                               void **state_out);
void tess__declare_free(struct tess_declare *model, void *state);

/* Where the stage strategy cuts the model into so many virtual stages: first_out [virtual_count +
 * 1]. Kept too: engines of one pipeline, and of many layouts, are cut in the same way. */
enum tess_status tess__declared_cut(const struct tess_config *config,
                                    const struct tess_declare *model, int32_t virtual_count,
                                    int32_t *first_out);

/* What a kernel's operations need, which takes long to find out for some. Where the declaration is
 * one that config->declared keeps, it keeps these as well, by operation: else NULL. */
struct tess_declared_need;
struct tess_declared_need *tess__declared_needs(const struct tess_declare *model);
/* Of operation `op` of a part of that model. */
enum tess_status tess__declared_find_needs(const struct tess_config *config,
                                           const struct tess_kernel *kernel,
                                           const struct tess_declare *declare, int32_t op,
                                           struct tess_declared_need *need,
                                           struct tess_op_needs *needs_out);

#endif
