/*
 * Own loops over plain arrays: add, casts, accumulate, sums of squares, search, updates. The
 * arithmetic is that of ref (half.h, rules.h, square.h), and so are the bits.
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"
#include "ref/ref.h"
#include "ref/rules.h"
#include "ref/square.h"

CPU_INLINE void plain_add_block(enum tess_dtype dtype, int64_t first, int64_t count,
                                const struct cpu_plain *p)
{
    float left[CPU_BLOCK], right[CPU_BLOCK];
    cpu_read(dtype, p->in[0], first, count, left);
    cpu_read(dtype, p->in[1], first, count, right);
    for (int64_t i = 0; i < count; i++)
        left[i] = left[i] + right[i];
    cpu_write(dtype, p->out[0], first, count, left);
}

void CPU_LOOP(add)(const struct cpu_plain *p)
{
    CPU_BLOCKS_BY_DTYPE(p->from, p->count, plain_add_block, p);
}

CPU_INLINE void plain_cast(enum tess_dtype from, int64_t first, int64_t count, enum tess_dtype to,
                           const struct cpu_plain *p)
{
    float copy[CPU_BLOCK];
    cpu_read(from, p->in[0], first, count, copy);
    cpu_write(to, p->out[0], first, count, copy);
}

/* f64 is for tests and reports only: ref's loop will do. */
void CPU_LOOP(cast)(const struct cpu_plain *p)
{
    if (p->from == TESS_F32 && p->to == TESS_BF16)
        CPU_BLOCKS(TESS_F32, p->count, plain_cast, TESS_BF16, p);
    else if (p->from == TESS_BF16 && p->to == TESS_F32)
        CPU_BLOCKS(TESS_BF16, p->count, plain_cast, TESS_F32, p);
    else if (p->from == TESS_F32 && p->to == TESS_F16)
        CPU_BLOCKS(TESS_F32, p->count, plain_cast, TESS_F16, p);
    else if (p->from == TESS_F16 && p->to == TESS_F32)
        CPU_BLOCKS(TESS_F16, p->count, plain_cast, TESS_F32, p);
    else
        tess_kernel_ref.cast(NULL, p->count, p->from, p->in[0], p->to, p->out[0]);
}

void CPU_LOOP(plain_add)(int64_t count, const float *x, float *y)
{
    const float *restrict from = x;
    float *restrict to = y;
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

void CPU_LOOP(accumulate)(const struct cpu_plain *p)
{
    const float *restrict from = p->in[0];
    float *restrict to = p->out[0];
    float scale = p->number;
    int64_t count = p->count;
    if (scale == 1.0f) { /* the same bits without the product */
        CPU_LOOP(plain_add)(count, from, to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] += scale * from[i];
}

void CPU_LOOP(square_sum)(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                          const float *x, struct tess_sum *sum)
{
    (void)kernel;
    tess__square_sum(count, block, scale, x, sum);
}

/* Blocks large enough that the loop over them has no exit to wait for; ref finds the place in one.
 */
#define PLAIN_SEARCH 1024

CPU_INLINE bool plain_has_nonfinite(enum tess_dtype dtype, int64_t first, const void *x)
{
    const uint32_t *whole = (const uint32_t *)x + (dtype == TESS_F32 ? first : 0);
    const uint16_t *half = (const uint16_t *)x + (dtype == TESS_F32 ? 0 : first);
    if (dtype == TESS_F32) {
        uint32_t found = 0;
        for (int64_t i = 0; i < PLAIN_SEARCH; i++)
            found |= (whole[i] & 0x7f800000u) == 0x7f800000u;
        return found != 0;
    }
    uint16_t found = 0, exponent = dtype == TESS_BF16 ? 0x7f80u : 0x7c00u;
    for (int64_t i = 0; i < PLAIN_SEARCH; i++)
        found |= (half[i] & exponent) == exponent;
    return found != 0;
}

/* The elements of the blocks before the first that is not finite throughout. */
CPU_INLINE int64_t plain_finite(enum tess_dtype dtype, int64_t count, const void *x)
{
    int64_t first = 0;
    while (first + PLAIN_SEARCH <= count && !plain_has_nonfinite(dtype, first, x))
        first += PLAIN_SEARCH;
    return first;
}

int64_t CPU_LOOP(find_nonfinite)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x)
{
    bool vectors = dtype == TESS_F32 || dtype == TESS_BF16 || dtype == TESS_F16;
    int64_t first = vectors ? CPU_BY_DTYPE(dtype, plain_finite, count, x) : 0;
    const char *rest = (const char *)x + (size_t)first * tess_dtype_bytes(dtype);
    int64_t found = tess_kernel_ref.find_nonfinite(kernel, dtype, count - first, rest);
    return found < 0 ? -1 : first + found;
}

/* Of a block: the count fits the elements' own width, which keeps the vectors full. */
CPU_INLINE int64_t plain_zeros(enum tess_dtype dtype, int64_t first, int64_t count, const void *x)
{
    const uint32_t *whole = (const uint32_t *)x + (dtype == TESS_F32 ? first : 0);
    const uint16_t *half = (const uint16_t *)x + (dtype == TESS_F32 ? 0 : first);
    uint32_t zeros = 0;
    uint16_t zeros_half = 0;
    if (dtype == TESS_F32)
        for (int64_t i = 0; i < count; i++)
            zeros += (whole[i] & 0x7fffffffu) == 0;
    else
        for (int64_t i = 0; i < count; i++)
            zeros_half += (half[i] & 0x7fffu) == 0;
    return zeros + zeros_half;
}

CPU_INLINE int64_t plain_count_zeros(enum tess_dtype dtype, int64_t count, const void *x)
{
    int64_t zeros = 0, first = 0;
    for (; first + PLAIN_SEARCH <= count; first += PLAIN_SEARCH)
        zeros += plain_zeros(dtype, first, PLAIN_SEARCH, x);
    return zeros + plain_zeros(dtype, first, count - first, x);
}

void CPU_LOOP(count_zeros)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, double *sum)
{
    (void)kernel;
    *sum += (double)(dtype == TESS_F32
                         ? plain_count_zeros(TESS_F32, count, x)
                         : plain_count_zeros(TESS_BF16, count, x)); /* and f16: sign bit only */
}

#if defined(__AVX2__) && !defined(__AVX512F__)

static void plain_rule(const struct tess_update *update)
{
    tess__rule_apply(update);
}

/* As tess__rule_apply() does it, but the compute copy by instructions: without masks what compilers
 * make of its rounding takes as long as the update. */
void CPU_LOOP(update)(const struct tess_update *update)
{
    struct cpu_update whole = {.run = plain_rule, .update = *update};
    whole.update.param_low = NULL;
    for (int64_t first = 0; first < update->count; first += TESS__RULE_CHUNK) {
        const int64_t count = tess__cpu_min(update->count - first, TESS__RULE_CHUNK);
        tess__cpu_update_piece(&whole, first, count, update->g != NULL ? update->g + first : NULL);
        if (update->param_low != NULL)
            CPU_BY_DTYPE(update->low, cpu_write, update->param_low, first, count,
                         update->w + first);
    }
}

#else

void CPU_LOOP(update)(const struct tess_update *update)
{
    tess__rule_apply(update);
}

#endif

void CPU_LOOP(lamb_direction)(const struct tess_update *update)
{
    tess__rule_lamb_direction(update, 0, update->count);
}
