/* The update rules of ref: the loops of rules.h, compiled for the baseline instruction set. */
#include "ref/rules.h"
#include "ref/slots.h"

void tess__ref_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    (void)kernel;
    tess__rule_apply(update);
}

void tess__ref_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    (void)kernel;
    tess__rule_lamb_direction(update, 0, update->count);
}
