/* The baseline of the bench in a build without oneDNN: there is none. */
#include "cpu/best.h"

#include "tessera/check.h"

bool tess__best_is_there(void)
{
    return false;
}

enum tess_status tess__best_open(const struct tess_op_desc *desc, enum tess_best_what what,
                                 int number, int threads, struct tess_best **best_out)
{
    (void)desc, (void)what, (void)number, (void)threads, (void)best_out;
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "there is no oneDNN to compare with: install libdnnl-dev and configure with "
              "-DTESS_ONEDNN=ON");
}

void tess__best_close(struct tess_best *best)
{
    (void)best;
}

const char *tess__best_name(const struct tess_best *best)
{
    (void)best;
    return "";
}

enum tess_status tess__best_run(struct tess_best *best)
{
    (void)best;
    return TESS_ERR_UNSUPPORTED;
}

void tess__best_use(struct tess_best *best, int arg, void *memory, size_t bytes)
{
    (void)best, (void)arg, (void)memory, (void)bytes;
}

void tess__best_add(int64_t count, const float *x, float *y)
{
    const float *restrict from = x;
    float *restrict to = y;
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

void tess__best_softmax(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    (void)dtype, (void)length, (void)scale, (void)s;
}

void tess__best_softmax_grad(enum tess_dtype dtype, int64_t length, float scale, const void *p,
                             void *dp)
{
    (void)dtype, (void)length, (void)scale, (void)p, (void)dp;
}
