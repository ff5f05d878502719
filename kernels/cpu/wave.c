/*
 * Gradients of a convolution's parameters as sums over units, equal parts of the leaves' images.
 * What changes bits, the size of a unit among it, depends on the layer's shape alone: some units
 * are summed at a time, each by one thread in a place of its own, then added in order by pieces.
 */
#include "cpu/wave.h"

#include <string.h>

#define WAVE_PIECE 2048 /* elements that a thread adds at a time, of all units */

/* Multiplications of a unit at least, some tens of microseconds: many times what starting the
 * threads costs. */
#define WAVE_WORK 3e6

int64_t tess__cpu_wave_images(int64_t rows, double work, double least, int64_t most)
{
    const int64_t fits = (int64_t)((double)rows * work / least);
    const int64_t units = tess__cpu_min(fits > 1 ? fits : 1, most);
    int64_t images = (rows + units - 1) / units;
    while (rows % images != 0)
        images++;
    return images;
}

double tess__cpu_wave_work(const struct tess_op_desc *desc, int64_t pixels)
{
    const double work = (double)pixels * (double)tess__cpu_sizes(desc).w;
    return work > WAVE_WORK ? work : WAVE_WORK;
}

/* Where a unit's sum goes: the wave's first one, if it is a leaf's, to the leaf at once. */
static float *wave_sum(const struct cpu_wave *wave, int64_t unit)
{
    if (unit == 0 && wave->first % wave->in_leaf == 0)
        return tess__fold_leaf(&wave->fold);
    return (float *)(void *)(wave->sums + (size_t)unit * wave->sum_bytes);
}

static void wave_part(void *context, int64_t part, void *work)
{
    const struct cpu_wave *wave = context;
    const int64_t unit = part % wave->count;
    wave->run(wave->context, wave->first + unit, part / wave->count, wave_sum(wave, unit), work);
}

static void wave_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct cpu_wave *wave = context;
    const struct cpu_loops *loops = tess__cpu_loops(wave->op->kernel);
    const int64_t first = part * WAVE_PIECE;
    const int64_t count = tess__cpu_min(wave->fold.count - first, WAVE_PIECE);
    struct tess_fold piece = tess__fold_piece(&wave->fold, first, count);
    for (int64_t u = 0; u < wave->count; u++) {
        const int64_t in_leaf = (wave->first + u) % wave->in_leaf;
        const float *sum = wave_sum(wave, u) + first;
        if (sum == tess__fold_leaf(&piece))
            ;
        else if (in_leaf == 0)
            memcpy(tess__fold_leaf(&piece), sum, (size_t)count * sizeof(float));
        else
            loops->plain_add(count, sum, tess__fold_leaf(&piece));
        if (in_leaf == wave->in_leaf - 1)
            tess__fold_push(&piece);
    }
}

void tess__cpu_wave_run(struct cpu_wave *wave, int64_t units)
{
    const struct tess_kernel *kernel = wave->op->kernel;
    const int64_t most = kernel->threads > 1 ? wave->together : 1;
    for (wave->first = 0; wave->first < units; wave->first += wave->count) {
        wave->count = tess__cpu_min(units - wave->first, most);
        tess__cpu_share(kernel, wave->count * wave->blocks, wave_part, wave, wave->work);
        tess__cpu_share(kernel, (wave->fold.count + WAVE_PIECE - 1) / WAVE_PIECE, wave_piece, wave,
                        NULL);
        for (int64_t u = wave->first; u < wave->first + wave->count; u++)
            if (u % wave->in_leaf == wave->in_leaf - 1)
                tess__fold_pushed(&wave->fold);
    }
    tess__fold_finish(&wave->fold);
}
