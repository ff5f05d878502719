/*
 * Modules to be found, or refused, by test_module.c; what is wrong with one is chosen when it is
 * compiled:
 *
 *   (nothing)     a module with a kernel that can be registered, not used
 *   FAKE_ABI      its ABI number is another one
 *   FAKE_HIDDEN   it exports no tess_module
 *   FAKE_CALLS    the name of a function that does not exist
 */
#include "tessera/device.h"
#include "tessera/version.h"

#ifndef FAKE_ABI
#define FAKE_ABI TESS_ABI
#endif
#ifdef FAKE_HIDDEN
#define FAKE_MODULE tess_module_of_another_name
#else
#define FAKE_MODULE tess_module
#endif

static enum tess_status fake_open(struct tess_kernel *kernel)
{
    (void)kernel;
    return TESS_ERR_UNSUPPORTED;
}

static void fake_close(struct tess_kernel *kernel)
{
    (void)kernel;
}

static enum tess_status fake_needs(const struct tess_op_desc *desc, struct tess_op_needs *needs_out)
{
    (void)desc;
    *needs_out = (struct tess_op_needs){0};
    return TESS_OK;
}

static enum tess_status fake_op_open(struct tess_op *op)
{
    (void)op;
    return TESS_ERR_UNSUPPORTED;
}

static void fake_op_close(struct tess_op *op)
{
    (void)op;
}

static enum tess_status fake_linear(struct tess_op *op, const void *x, const void *w,
                                    const void *bias, void *y)
{
    (void)op, (void)x, (void)w, (void)bias, (void)y;
    return TESS_ERR_UNSUPPORTED;
}

static void fake_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    (void)kernel, (void)update;
}

static const struct tess_kernel_ops fake_kernel = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "a kernel that can be found",
    .open = fake_open,
    .close = fake_close,
    .op_needs = fake_needs,
    .op_open = fake_op_open,
    .op_close = fake_op_close,
    .linear_forward = fake_linear,
    .update = fake_update,
};

#ifdef FAKE_CALLS
extern int FAKE_CALLS(void);
int fake_call(void);
int fake_call(void)
{
    return FAKE_CALLS();
}
#endif

extern const struct tess_module FAKE_MODULE;
const struct tess_module FAKE_MODULE = {
    .abi = FAKE_ABI,
    .name = "fake",
    .summary = "a module that can be found",
    .kernel = &fake_kernel,
};
