/*
 * Sums of more arrays than a queue adds up at once (tess__call_reduce_many): the bits of the tree
 * over all of them, for every type, with as little room as is promised.
 */
#include "comm/cases.h"

#include "comm/call.h"
#include "guard/guard.h"
#include "kernel_open.h"

#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal((call), TESS_OK)

enum { COUNT = 5, STRIDE = 64 /* of an array and of a partial sum, which holds COUNT f64 */ };

static struct {
    struct tess_kernel *kernel;
    unsigned char *sources, *partials, *target;
    const void **source;
} many;

static void many_open(int32_t n)
{
    void *memory[3] = {NULL, NULL, NULL};
    const size_t bytes[3] = {(size_t)n * STRIDE, (size_t)tess__call_partials(n) * STRIDE + 1,
                             STRIDE};
    OK(tess_kernel_open(&tess_kernel_guard_queue, 1, &many.kernel));
    for (int i = 0; i < 3; i++)
        OK(many.kernel->ops->alloc(many.kernel, bytes[i], &memory[i]));
    many.sources = memory[0];
    many.partials = memory[1];
    many.target = memory[2];
    many.source = calloc((size_t)n, sizeof(*many.source));
    assert_non_null(many.source);
}

static void many_close(void)
{
    free(many.source);
    tess_kernel_close(many.kernel); /* with its memory */
}

static void many_fill(enum tess_dtype dtype, uint64_t seed, int32_t n)
{
    unsigned char *host = calloc((size_t)n, STRIDE);
    assert_non_null(host);
    for (int32_t r = 0; r < n; r++)
        value_fill(dtype, seed, r, COUNT, host + (size_t)r * STRIDE);
    OK(tess_write(many.kernel, (size_t)n * STRIDE, host, many.sources));
    free(host);
}

static void many_reduce(enum tess_dtype dtype, enum tess_dtype to, enum tess_reduce reduce,
                        int32_t n, const unsigned char *first, void *target)
{
    const struct tess__partials partials = {.memory = many.partials, .stride = STRIDE};
    for (int32_t r = 0; r < n; r++)
        many.source[r] = first + (size_t)r * STRIDE;
    OK(tess__call_reduce_many(many.kernel->queue, dtype, to, reduce, n, many.source, 1, &target,
                              COUNT, &partials));
}

static void many_check(enum tess_dtype dtype, enum tess_reduce reduce, uint64_t seed, int32_t n)
{
    unsigned char result[STRIDE];
    OK(tess_read(many.kernel, STRIDE, many.target, result));
    for (size_t i = 0; i < COUNT; i++)
        if (!value_is_reduced(dtype, reduce, TESS_ORDER_CANONICAL, seed, n, i,
                              result + i * tess_dtype_bytes(dtype)))
            fail_msg("%s, reduce %d, %d arrays: element %zu is wrong", tess_dtype_name(dtype),
                     (int)reduce, (int)n, i);
}

static void case_counts(void **state)
{
    (void)state;
    static const int32_t counts[] = {1, 64, 65, 127, 128, 129, 200, 1000, 4096, 4097, 5000};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const int32_t n = counts[c];
        many_open(n);
        for (int k = 0; k < TESS_DTYPE_COUNT * 2; k++) {
            const enum tess_dtype dtype = (enum tess_dtype)(k / 2);
            const enum tess_reduce reduce = k % 2 ? TESS_REDUCE_MIN : TESS_REDUCE_SUM;
            many_fill(dtype, (uint64_t)k, n);
            many_reduce(dtype, dtype, reduce, n, many.sources, many.target);
            many_check(dtype, reduce, (uint64_t)k, n);
        }
        many_close();
    }
}

/* Sums of 16 bits in two turns, in f32 between them: rounded once. */
static void case_turns(void **state)
{
    (void)state;
    enum { INNER = 128, OUTER = 70, ALL = INNER * OUTER };
    static const enum tess_dtype dtype[] = {TESS_BF16, TESS_F16};
    for (uint64_t d = 0; d < 2; d++) {
        void *between;
        many_open(ALL);
        OK(many.kernel->ops->alloc(many.kernel, OUTER * STRIDE, &between));
        many_fill(dtype[d], d, ALL);
        for (size_t h = 0; h < OUTER; h++)
            many_reduce(dtype[d], TESS_F32, TESS_REDUCE_SUM, INNER,
                        many.sources + h * INNER * STRIDE, (char *)between + h * STRIDE);
        many_reduce(TESS_F32, dtype[d], TESS_REDUCE_SUM, OUTER, between, many.target);
        many_check(dtype[d], TESS_REDUCE_SUM, d, ALL);
        many_close();
    }
}

/* Arrays longer than a partial sum, into more targets than a queue has at once. */
static void case_pieces(void **state)
{
    (void)state;
    enum { MANY = 70, LONG = 2 * STRIDE + 3 }; /* elements */
    const struct tess_kernel_ops *ops = &tess_kernel_guard_queue;
    for (int k = 0; k < TESS_DTYPE_COUNT; k++) {
        const enum tess_dtype dtype = (enum tess_dtype)k;
        const size_t bytes = LONG * tess_dtype_bytes(dtype);
        const void *source[MANY], *left[MANY];
        void *target[MANY], *memory, *room, *host = malloc(bytes);
        struct tess_kernel *kernel;
        assert_non_null(host);
        OK(tess_kernel_open(ops, 1, &kernel));
        OK(ops->alloc(kernel, 2 * STRIDE, &room));
        OK(ops->alloc(kernel, MANY * bytes, &memory));
        const struct tess__partials partials = {room, STRIDE, left};
        for (int32_t r = 0; r < MANY; r++) {
            source[r] = target[r] = (char *)memory + (size_t)r * bytes; /* in place */
            value_fill(dtype, 7, r, LONG, host);
            OK(tess_write(kernel, bytes, host, target[r]));
        }
        OK(tess__call_reduce_pieces(kernel->queue, dtype, TESS_REDUCE_SUM, MANY, source, MANY,
                                    target, LONG, &partials));
        for (int32_t r = 0; r < MANY; r++) {
            OK(tess_read(kernel, bytes, source[r], host));
            for (size_t i = 0; i < LONG; i++)
                assert_true(value_is_reduced(dtype, TESS_REDUCE_SUM, TESS_ORDER_CANONICAL, 7, MANY,
                                             i, (char *)host + i * tess_dtype_bytes(dtype)));
        }
        free(host);
        tess_kernel_close(kernel); /* with its memory */
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_counts), cmocka_unit_test(case_turns),
                                       cmocka_unit_test(case_pieces)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
