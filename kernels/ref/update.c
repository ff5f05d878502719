/* The update rules of ref: the loops of rules.h, compiled for the baseline instruction set. */
#include "ref/rules.h"
#include "ref/slots.h"

void tess__ref_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    struct tess_update resolved;
    (void)kernel;
    if (tess__rule_resolve(update, &resolved))
        tess__rule_apply(&resolved);
}

void tess__ref_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    struct tess_update resolved;
    (void)kernel;
    if (tess__rule_resolve(update, &resolved))
        tess__rule_lamb_direction(&resolved, 0, resolved.count);
}

void tess__ref_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                          int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tess_update(kernel, &update[i]);
}
