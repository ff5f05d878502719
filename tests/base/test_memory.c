/* The memory plan: layout, totals, sealing, refusals; element types and shapes beside it. */
#include "base/arena.h"
#include "tessera/log.h"
#include "tessera/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tess_memory *open_plan(void)
{
    struct tess_memory *memory = NULL;
    assert_int_equal(tess_memory_open(&memory), TESS_OK);
    return memory;
}

static struct tess_block reserve(struct tess_memory *memory, enum tess_memory_kind kind,
                                 uint64_t bytes, const char *owner)
{
    struct tess_block block = {1, 1};
    assert_int_equal(tess_memory_reserve(memory, kind, bytes, owner, &block), TESS_OK);
    return block;
}

static void case_kind_names(void **state)
{
    (void)state;
    assert_string_equal(tess_memory_kind_name(TESS_MEMORY_PARAMETER), "parameter");
    assert_string_equal(tess_memory_kind_name(TESS_MEMORY_INPUT), "input");
    assert_string_equal(tess_memory_kind_name(TESS_MEMORY_KIND_COUNT), "unknown");
}

struct visited {
    struct tess_block block[400];
    enum tess_memory_kind kind[400];
    char owner[400][16];
    int count;
};

static void visit(void *context, enum tess_memory_kind kind, const char *owner,
                  struct tess_block block)
{
    struct visited *visited = context;
    visited->block[visited->count] = block;
    visited->kind[visited->count] = kind;
    snprintf(visited->owner[visited->count++], sizeof(visited->owner[0]), "%s", owner);
}

static void case_blocks_lie_end_to_end(void **state)
{
    (void)state;
    struct tess_memory *memory = open_plan();
    struct tess_block block[300];
    uint64_t kind_bytes[TESS_MEMORY_KIND_COUNT] = {0}, total = 0;
    for (unsigned i = 0; i < 300; i++) {
        char owner[32]; /* overwritten every time: the plan must have its own copy */
        snprintf(owner, sizeof(owner), "block%u", i);
        enum tess_memory_kind kind = (enum tess_memory_kind)(i % TESS_MEMORY_KIND_COUNT);
        uint64_t bytes = i % 7 == 0 ? 0 : (uint64_t)i * 131 % 9000;
        block[i] = reserve(memory, kind, bytes, owner);
        assert_int_equal(block[i].bytes, bytes);
        assert_int_equal(block[i].offset, total);
        assert_int_equal(block[i].offset % TESS_MEMORY_ALIGN, 0);
        assert_null(tess_memory_get(memory, block[i]));
        uint64_t padded =
            bytes + (TESS_MEMORY_ALIGN - bytes % TESS_MEMORY_ALIGN) % TESS_MEMORY_ALIGN;
        total += padded;
        kind_bytes[kind] += padded;
        assert_int_equal(tess_memory_total(memory), total);
    }
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        assert_int_equal(tess_memory_bytes(memory, (enum tess_memory_kind)kind), kind_bytes[kind]);
    assert_int_equal(tess_memory_bytes(memory, TESS_MEMORY_KIND_COUNT), 0);

    struct visited *visited = calloc(1, sizeof(*visited));
    assert_non_null(visited);
    tess_memory_visit(memory, visit, visited);
    assert_int_equal(visited->count, 300);
    for (int i = 0; i < 300; i++) {
        char owner[32];
        snprintf(owner, sizeof(owner), "block%d", i);
        assert_string_equal(visited->owner[i], owner);
        assert_int_equal(visited->kind[i], i % TESS_MEMORY_KIND_COUNT);
        assert_memory_equal(&visited->block[i], &block[i], sizeof(block[i]));
    }
    free(visited);

    char *arena = aligned_alloc(TESS_MEMORY_ALIGN, total);
    assert_non_null(arena);
    assert_int_equal(tess_memory_commit(memory, arena), TESS_OK);
    for (int i = 0; i < 300; i++) {
        char *expected = block[i].bytes > 0 ? arena + block[i].offset : NULL;
        assert_ptr_equal(tess_memory_get(memory, block[i]), expected);
        if (expected)
            memset(expected, i, block[i].bytes); /* inside the arena, or the sanitizer speaks */
    }
    tess_memory_close(memory);
    free(arena);
}

/* Memory beside the arena is counted by its kind and takes no room in the arena. */
static void case_beside(void **state)
{
    (void)state;
    struct tess_memory *memory = open_plan();
    struct tess_block beside, block;
    assert_int_equal(
        tess_memory_reserve_beside(memory, TESS_MEMORY_STAGING, 5000, "checkpoint", &beside),
        TESS_OK);
    assert_int_equal(beside.bytes, 5000);
    assert_int_equal(tess_memory_total(memory), 0);
    block = reserve(memory, TESS_MEMORY_INPUT, 100, "input");
    assert_int_equal(block.offset, 0);
    assert_int_equal(tess_memory_total(memory), TESS_MEMORY_ALIGN);
    assert_int_equal(tess_memory_beside(memory), 2 * TESS_MEMORY_ALIGN);
    assert_int_equal(tess_memory_bytes(memory, TESS_MEMORY_STAGING), 2 * TESS_MEMORY_ALIGN);
    assert_int_equal(tess_memory_bytes(memory, TESS_MEMORY_INPUT), TESS_MEMORY_ALIGN);
    tess_memory_close(memory);
}

static void case_sealed_after_commit(void **state)
{
    (void)state;
    char arena[1];
    struct tess_memory *memory = open_plan();
    struct tess_block block = reserve(memory, TESS_MEMORY_BUCKET, 100, "bucket");
    assert_int_equal(tess_memory_commit(memory, NULL), TESS_ERR_INTERNAL);
    assert_int_equal(tess_memory_commit(memory, arena), TESS_OK);
    assert_int_equal(tess_memory_commit(memory, arena), TESS_ERR_INTERNAL);
    assert_ptr_equal(tess_memory_get(memory, block), arena);
    assert_int_equal(tess_memory_reserve(memory, TESS_MEMORY_INPUT, 1, "late", &block),
                     TESS_ERR_INTERNAL);
    assert_non_null(strstr(tess_log_last_error(), "late"));
    assert_int_equal(block.bytes, 100); /* outputs are written on success only */
    assert_int_equal(tess_memory_total(memory), TESS_MEMORY_ALIGN);
    tess_memory_close(memory);
}

static void case_empty_plan(void **state)
{
    (void)state;
    struct tess_memory *memory = open_plan();
    assert_int_equal(tess_memory_total(memory), 0);
    assert_int_equal(tess_memory_commit(memory, NULL), TESS_OK);
    assert_int_equal(tess_memory_commit(memory, NULL), TESS_ERR_INTERNAL);
    tess_memory_close(memory);
    tess_memory_close(NULL);
}

static void case_absurd_sizes_are_refused(void **state)
{
    (void)state;
    struct tess_memory *memory = open_plan();
    struct tess_block block = {7, 7};
    static const uint64_t absurd[] = {UINT64_MAX, UINT64_MAX - 4095, (uint64_t)1 << 63,
                                      INT64_MAX - 100};
    reserve(memory, TESS_MEMORY_INPUT, 5000, "input");
    for (size_t i = 0; i < sizeof(absurd) / sizeof(absurd[0]); i++)
        assert_int_equal(
            tess_memory_reserve(memory, TESS_MEMORY_PARAMETER, absurd[i], "weights", &block),
            TESS_ERR_MEMORY);
    /* Each fits alone, together they do not. */
    reserve(memory, TESS_MEMORY_PARAMETER, (uint64_t)1 << 62, "half");
    assert_int_equal(
        tess_memory_reserve(memory, TESS_MEMORY_PARAMETER, (uint64_t)1 << 62, "other", &block),
        TESS_ERR_MEMORY);
    assert_int_equal(tess_memory_reserve(memory, TESS_MEMORY_KIND_COUNT, 1, "nothing", &block),
                     TESS_ERR_INTERNAL);
    assert_int_equal(block.bytes, 7);
    assert_int_equal(tess_memory_total(memory), 8192 + ((uint64_t)1 << 62));
    tess_memory_close(memory);
}

/* Several at once are as one after the other, listed or not; those that are too much are refused.
 */
static void case_each(void **state)
{
    enum { COUNT = 5, STRIDE = 3 };
    static const uint64_t bytes[] = {0, 1, 4096, 5000, ((uint64_t)1 << 40) + 1};
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        struct tess_memory *each = open_plan(), *single = open_plan();
        struct tess_block a[COUNT * STRIDE] = {{0, 0}}, b[COUNT * STRIDE] = {{0, 0}};
        if (!listed)
            tess_memory_unlisted(each);
        for (size_t s = 0; s < sizeof(bytes) / sizeof(*bytes); s++) {
            assert_int_equal(tess_memory_reserve_each(each, TESS_MEMORY_INPUT, bytes[s], "each",
                                                      COUNT, STRIDE, a),
                             TESS_OK);
            for (int i = 0; i < COUNT; i++)
                b[i * STRIDE] = reserve(single, TESS_MEMORY_INPUT, bytes[s], "each");
            assert_memory_equal(a, b, sizeof(a));
        }
        assert_int_equal(tess_memory_total(each), tess_memory_total(single));
        assert_int_equal(tess_memory_bytes(each, TESS_MEMORY_INPUT),
                         tess_memory_bytes(single, TESS_MEMORY_INPUT));
        /* Without places: the same sums, and what is given back is gone. */
        const uint64_t before = tess_memory_total(each);
        assert_int_equal(
            tess_memory_reserve_each(each, TESS_MEMORY_INPUT, 4097, "sums", COUNT, 0, a), TESS_OK);
        for (int i = 0; i < COUNT; i++)
            (void)reserve(single, TESS_MEMORY_INPUT, 4097, "sums");
        assert_int_equal(tess_memory_total(each), tess_memory_total(single));
        tess_memory_unreserve(each, TESS_MEMORY_INPUT, tess_memory_total(each) - before);
        assert_int_equal(tess_memory_total(each), before);
        assert_int_equal(tess_memory_bytes(each, TESS_MEMORY_INPUT), before);
        assert_int_equal(tess_memory_reserve_each(each, TESS_MEMORY_INPUT, INT64_MAX / 2, "much",
                                                  COUNT, STRIDE, a),
                         TESS_ERR_MEMORY);
        tess_memory_close(each);
        tess_memory_close(single);
    }
}

static void case_dtypes(void **state)
{
    (void)state;
#define TEST_DTYPE(name, bytes, text)                                                              \
    assert_int_equal(tess_dtype_bytes(name), bytes);                                               \
    assert_string_equal(tess_dtype_name(name), text);
    TESS_DTYPE_LIST(TEST_DTYPE)
#undef TEST_DTYPE
    assert_int_equal(tess_dtype_bytes(TESS_DTYPE_COUNT), 0);
    assert_string_equal(tess_dtype_name((enum tess_dtype) - 1), "unknown");
}

static int64_t count_of(struct tess_shape shape)
{
    return tess_shape_count(&shape);
}

static void case_shapes(void **state)
{
    (void)state;
    assert_int_equal(count_of((struct tess_shape){0}), 1);
    assert_int_equal(count_of(tess_shape1(7)), 7);
    assert_int_equal(count_of(tess_shape2(3, 5)), 15);
    assert_int_equal(count_of(tess_shape3(2, 3, 5)), 30);
    assert_int_equal(count_of(tess_shape4(2, 3, 5, 7)), 210);
    struct tess_shape shape = tess_shape4(2, 3, 5, 7);
    assert_int_equal(shape.rank, 4);
    assert_int_equal(shape.dim[0], 2);
    assert_int_equal(shape.dim[3], 7);
    assert_int_equal(count_of(tess_shape2((int64_t)1 << 62, 2)), INT64_MAX);
    assert_int_equal(count_of(tess_shape2(INT64_MAX, 1)), INT64_MAX);
    assert_int_equal(count_of(tess_shape3((int64_t)1 << 40, (int64_t)1 << 40, 0)), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_kind_names), cmocka_unit_test(case_blocks_lie_end_to_end),
        cmocka_unit_test(case_beside),     cmocka_unit_test(case_sealed_after_commit),
        cmocka_unit_test(case_empty_plan), cmocka_unit_test(case_absurd_sizes_are_refused),
        cmocka_unit_test(case_each),       cmocka_unit_test(case_dtypes),
        cmocka_unit_test(case_shapes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
