/* Stands in for conv_cudnn.c and its like where this was built without cuDNN. */
#include "cuda/products/conv_cudnn.h"

#include <stdio.h>

bool tess__cudnn_present(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes,
             "this build has no cuDNN: install version 9 and configure with "
             "-DTESS_CUDNN=ON");
    return false;
}

enum tess_status tess__cudnn_plan_open(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                       enum conv_way way, struct cudnn_plan **plan_out)
{
    (void)kernel, (void)desc, (void)way;
    *plan_out = NULL;
    return TESS_OK;
}

void tess__cudnn_plan_close(struct cudnn_plan *plan)
{
    (void)plan;
}

enum tess_status tess__cudnn_plan_run(struct tess_kernel *kernel, const struct cudnn_plan *plan,
                                      const struct cudnn_operands *operands)
{
    (void)kernel, (void)plan, (void)operands;
    TESS_FAIL(TESS_ERR_INTERNAL, "a plan of cuDNN is run by a build without it");
}

void tess__cudnn_close(struct tess_kernel *kernel)
{
    (void)kernel;
}
