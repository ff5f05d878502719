/* What a step usually takes; see usual.h. */
#include "job/usual.h"

#include "tessera/check.h"

#include <stdlib.h>

enum tess_status tess__usual_open(struct tess__usual *usual)
{
    usual->count = 0;
    usual->step = calloc(TESS__USUAL_STEPS, sizeof(*usual->step));
    if (usual->step == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of %d steps", TESS__USUAL_STEPS);
    return TESS_OK;
}

void tess__usual_add(struct tess__usual *usual, const struct tess_times *step)
{
    usual->step[usual->count++ % TESS__USUAL_STEPS] = *step;
}

static int usual_order(const void *a, const void *b)
{
    const struct tess_times *x = a, *y = b;
    return (x->total_s > y->total_s) - (x->total_s < y->total_s);
}

struct tess_times tess__usual_take(struct tess__usual *usual)
{
    const int64_t count = usual->count < TESS__USUAL_STEPS ? usual->count : TESS__USUAL_STEPS;
    const int64_t first = count / 4, end = count - first;
    struct tess_times mean = {0};
    qsort(usual->step, (size_t)count, sizeof(*usual->step), usual_order);
    for (int64_t i = first; i < end; i++)
        tess_times_add(&mean, &usual->step[i], 1 / (double)(end - first));
    return mean;
}

void tess__usual_close(struct tess__usual *usual)
{
    free(usual->step);
    *usual = (struct tess__usual){NULL, 0};
}
