/* The rest of the backend for slots on the emulator, see slots.h. */
#include "emulate/slots.h"

#include "cuda/slots.h"

#include <stdio.h>
#include <stdlib.h>

static struct tess_queue queue;   /* the stream of NULL */
static int64_t scratch[8] = {-9}; /* slots find another slot's numbers there */
struct tess_kernel emulate_kernel = {.queue = &queue};

struct tess_op emulate_op(const struct tess_op_desc *desc, void *memory)
{
    return (struct tess_op){.desc = *desc, .kernel = &emulate_kernel, .scratch = memory};
}

void *tess__cuda_scratch(const struct tess_kernel *kernel)
{
    (void)kernel;
    return scratch;
}

/* The runtime of the emulator never fails; a launcher that refuses its arguments ends the test. */
void tess__cuda_note(struct tess_kernel *kernel, cudaError_t error, const char *where)
{
    (void)kernel;
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: error %d\n", where, (int)error);
    abort();
}

enum tess_status tess__cuda_fail(cudaError_t error, const char *where)
{
    TESS_FAIL(TESS_ERR_DEVICE, "%s: error %d", where, (int)error);
}
