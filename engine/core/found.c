/* What a step or an evaluation found out, read from the device. */
#include "core/state.h"

enum tess_status tess__engine_find(struct tess_engine *engine, int64_t sums)
{
    return tess_read(engine->kernel, TESS_FOUND_SUMS + (size_t)sums * sizeof(*engine->found.sums),
                     engine->found.verdict, engine->found.host);
}

const double *tess__engine_sums(const struct tess_engine *engine)
{
    return (const double *)(const void *)((const char *)engine->found.host + TESS_FOUND_SUMS);
}

void tess__engine_means(const struct tess_engine *engine, int64_t leaves, int64_t labels,
                        double *loss_out, double *accuracy_out)
{
    const double *sum = tess__engine_sums(engine);
    double loss = 0, correct = 0;
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        loss += sum[2 * leaf];
        correct += sum[2 * leaf + 1];
    }
    *loss_out = labels > 0 ? loss / (double)labels : 0;
    *accuracy_out = labels > 0 ? correct / (double)labels : 0;
}
