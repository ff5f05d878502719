/* Stands in for the files of cuDNN where this was built without it. */
#include "cuda/cudnn/present.h"

#include <stdio.h>

bool tess__cudnn_present(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes,
             "this build has no cuDNN: install version 9 and configure with "
             "-DTESS_CUDNN=ON");
    return false;
}

void tess__cudnn_close(struct tess_kernel *kernel)
{
    (void)kernel;
}
