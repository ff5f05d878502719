/* Stands in for attention_cudnn.c where this was built without cuDNN. */
#include "cuda/attention/attention_choice.h"

enum tess_status tess__cudnn_attention_open(struct tess_op *op)
{
    op->data = NULL;
    return TESS_OK;
}

void tess__cudnn_attention_close(struct tess_op *op)
{
    (void)op;
}
