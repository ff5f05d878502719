/* Stands in for conv_cudnn.c where this was built without cuDNN. */
#include "cuda/products/conv_cudnn.h"

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
