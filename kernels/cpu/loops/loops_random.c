/*
 * Own loops that draw random numbers: dropout and stochastic rounding, with Philox for CPU_BLOCK
 * elements at once (philox.h). The bits are those of ref (ref/mask.h, ref/stochastic.h).
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"
#include "cpu/philox.h"
#include "ref/mask.h"
#include "ref/ref.h"
#include "ref/stochastic.h"

/* Whole blocks go to `whole`, and to ref what does not fill a block of Philox, and of lanes. */
static void random_split(const struct cpu_plain *p, cpu_plain_loop *whole, cpu_plain_loop *ref)
{
    int64_t head = (int64_t)(-p->first % 4);
    head = head < p->count ? head : p->count;
    int64_t middle = (p->count - head) / CPU_BLOCK * CPU_BLOCK, tail = head + middle;
    struct cpu_plain before = cpu_plain_piece(p, 0, head),
                     blocks = cpu_plain_piece(p, head, middle);
    struct cpu_plain behind = cpu_plain_piece(p, tail, p->count - tail);
    ref(&before);
    whole(&blocks);
    ref(&behind);
}

CPU_INLINE void random_dropout(enum tess_dtype dtype, const struct cpu_plain *p)
{
    struct tess_rng_key key = tess__mask_key(p->key);
    uint32_t limit = tess__mask_limit(p->number);
    float divisor = 1.0f - p->number;
    for (int64_t done = 0; done < p->count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        float value[CPU_BLOCK];
        cpu_philox(key, (p->first + (uint64_t)done) / 4, word);
        cpu_read(dtype, p->in[0], done, CPU_BLOCK, value);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            value[i] = tess__mask_keeps(word[i], limit) ? value[i] / divisor : 0.0f;
        cpu_write(dtype, p->out[0], done, CPU_BLOCK, value);
    }
}

static void random_dropout_whole(const struct cpu_plain *p)
{
    CPU_BY_DTYPE(p->from, random_dropout, p);
}

static void random_dropout_ref(const struct cpu_plain *p)
{
    tess_kernel_ref.dropout(NULL, p->from, p->count, p->number, p->key, p->first, p->in[0],
                            p->out[0]);
}

void CPU_LOOP(dropout)(const struct cpu_plain *p)
{
    random_split(p, random_dropout_whole, random_dropout_ref);
}

CPU_INLINE void random_round(enum tess_dtype to, const struct cpu_plain *p)
{
    const float *restrict from = p->in[0];
    uint16_t *restrict half = p->out[0];
    struct tess_rng_key key = tess__stochastic_key(p->key);
    int64_t count = p->count;
    for (int64_t done = 0; done < count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        cpu_philox(key, (p->first + (uint64_t)done) / 4, word);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            half[done + i] = to == TESS_BF16 ? tess__stochastic_bf16(from[done + i], word[i])
                                             : tess__stochastic_f16(from[done + i], word[i]);
    }
}

static void random_round_whole(const struct cpu_plain *p)
{
    if (p->to == TESS_BF16)
        random_round(TESS_BF16, p);
    else
        random_round(TESS_F16, p);
}

static void random_round_ref(const struct cpu_plain *p)
{
    tess_kernel_ref.cast_stochastic(NULL, p->count, p->in[0], p->to, p->key, p->first, p->out[0]);
}

void CPU_LOOP(cast_stochastic)(const struct cpu_plain *p)
{
    random_split(p, random_round_whole, random_round_ref);
}
