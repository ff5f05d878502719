/*
 * What a model declares, cut along the tensor axis and into stages: where every element of a cut
 * parameter lies, against all of them one by one; what is left of a model when some units are kept;
 * sizes as files have them; what is refused.
 */
#include "state/declare.h"

#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct tess_init zero = {TESS_INIT_ZERO, 0};

static uint32_t declare_random(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

static struct tess_tensor_axis axis_of(int32_t parts, int32_t rank, int32_t rank_count)
{
    return (struct tess_tensor_axis){.parts = parts,
                                     .first = rank * (parts / rank_count),
                                     .count = parts / rank_count,
                                     .rank = rank,
                                     .rank_count = rank_count};
}

/* ---- cut parameters -------------------------------------------------------------------------- */

struct cut {
    struct tess_shape whole;
    struct tess_slice slice;
};

/* Up to four dimensions, of which the cut one is blocks x parts x 1 .. 3 long. */
static struct cut cut_random(uint32_t *seed, int32_t parts)
{
    struct cut cut = {.whole = {.rank = 1 + (int32_t)declare_random(seed, 4)}};
    cut.slice.axis = (int32_t)declare_random(seed, (uint32_t)cut.whole.rank + 1) - 1;
    cut.slice.blocks = 1 + (int32_t)declare_random(seed, 3);
    for (int32_t d = 0; d < cut.whole.rank; d++)
        cut.whole.dim[d] = 1 + declare_random(seed, 4);
    if (cut.slice.axis >= 0)
        cut.whole.dim[cut.slice.axis] =
            (int64_t)cut.slice.blocks * parts * (1 + declare_random(seed, 3));
    return cut;
}

/*
 * The numbers in the whole tensor of the elements that a rank holds, in order, by the words of
 * tess_slice: its parts one after the other, each a tensor [..., dim / parts, ...] whose index is
 * the block's number and the place in the part's run of the block.
 */
static int64_t cut_list(const struct cut *cut, const struct tess_tensor_axis *axis, int64_t *list)
{
    const struct tess_shape *whole = &cut->whole;
    const bool is_cut = cut->slice.axis >= 0 && axis->parts > 1;
    const int32_t parts = is_cut ? axis->count : 1;
    int64_t held = 0;
    for (int32_t part = 0; part < parts; part++) {
        struct tess_shape mine = *whole;
        if (is_cut)
            mine.dim[cut->slice.axis] /= axis->parts;
        for (int64_t i = 0; i < tess_shape_count(&mine); i++) {
            int64_t index[TESS_DIM_MAX] = {0}, left = i, number = 0;
            for (int32_t d = mine.rank - 1; d >= 0; left /= mine.dim[d], d--)
                index[d] = left % mine.dim[d];
            if (is_cut) {
                const int64_t run = mine.dim[cut->slice.axis] / cut->slice.blocks;
                const int64_t block = index[cut->slice.axis] / run;
                index[cut->slice.axis] =
                    (block * axis->parts + axis->first + part) * run + index[cut->slice.axis] % run;
            }
            for (int32_t d = 0; d < whole->rank; d++)
                number = number * whole->dim[d] + index[d];
            list[held++] = number;
        }
    }
    return held;
}

/* Every element of one rank, and the runs they come in. */
static int64_t check_rank(const struct cut *cut, const struct tess_tensor_axis *axis, int32_t *seen)
{
    static int64_t list[1 << 16];
    struct tess_declare declare = {.axis = *axis};
    tess_declare_unit(&declare, "unit", tess_shape1(1));
    const int32_t p = tess_declare_sliced(&declare, "p", cut->whole, zero, 0, cut->slice);
    assert_int_equal(declare.status, TESS_OK);
    const struct tess_declare_param *param = &declare.param[p];
    const int64_t held = cut_list(cut, axis, list);
    const bool is_cut = cut->slice.axis >= 0 && axis->parts > 1;
    const int64_t part = is_cut ? held / axis->count : held;
    assert_int_equal(tess_shape_count(&param->shape), held);
    assert_int_equal(tess_shape_count(&param->whole), tess_shape_count(&cut->whole));
    assert_int_equal(declare.element_count, tess_shape_count(&cut->whole));
    for (int64_t at = 0; at < held; at++) {
        int64_t first, run = tess_declare_run(param, axis, at, &first);
        assert_in_range(run, 1, held - at);
        for (int64_t i = 0; i < run; i++)
            assert_int_equal(list[at + i], first + i);
        /* As long as can be within a part: copies go by runs. */
        if (is_cut && (at + run) % part != 0)
            assert_int_not_equal(list[at + run], first + run);
        seen[list[at]]++;
    }
    tess_declare_fini(&declare);
    return held;
}

static void case_slices(void **state)
{
    static int32_t seen[1 << 16];
    static const int32_t parts_of[] = {1, 2, 3, 4, 6, 8};
    uint32_t seed = 1;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        const int32_t parts = parts_of[declare_random(&seed, 6)];
        int32_t ranks = 1 + (int32_t)declare_random(&seed, (uint32_t)parts);
        const struct cut cut = cut_random(&seed, parts);
        while (parts % ranks != 0)
            ranks--;
        const int64_t count = tess_shape_count(&cut.whole);
        memset(seen, 0, sizeof(seen));
        for (int32_t r = 0; r < ranks; r++) {
            const struct tess_tensor_axis axis = axis_of(parts, r, ranks);
            check_rank(&cut, &axis, seen);
        }
        /* Cut: once among all ranks; whole: once on each. */
        for (int64_t e = 0; e < count; e++)
            assert_int_equal(seen[e], cut.slice.axis >= 0 ? 1 : ranks);
    }
}

/* The drawing in tessera/model.h: three blocks, two parts; part 1 is q1 k1 v1. */
static void case_blocks(void **state)
{
    const struct cut cut = {tess_shape2(12, 2), {0, 3, 0}};
    const struct tess_tensor_axis axis = axis_of(2, 1, 2);
    static const int64_t rows[] = {2, 3, 6, 7, 10, 11};
    struct tess_declare declare = {.axis = axis};
    (void)state;
    tess_declare_unit(&declare, "unit", tess_shape1(1));
    tess_declare_sliced(&declare, "qkv", cut.whole, zero, 0, cut.slice);
    for (int64_t i = 0; i < 12; i++) {
        int64_t whole;
        assert_int_equal(tess_declare_run(declare.param, &axis, i, &whole), 4 - i % 4);
        assert_int_equal(whole, rows[i / 2] * 2 + i % 2);
    }
    tess_declare_fini(&declare);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A padded, transposed, tied and counted model: [in files: [in, out] of what is [out, in] here]. */
static void case_file_shapes(void **state)
{
    struct tess_declare declare = {.axis = axis_of(1, 0, 1)};
    (void)state;
    tess_declare_unit(&declare, "table", tess_shape1(8));
    const int32_t table = tess_declare_sliced(&declare, "table", tess_shape2(384, 8), zero, 0,
                                              (struct tess_slice){0, 1, 300});
    tess_declare_unit(&declare, "layer", tess_shape1(8));
    tess_declare_sliced(&declare, "layer.weight", tess_shape2(6, 8), zero, TESS_PARAM_TRANSPOSED,
                        (struct tess_slice){0, 1, 0});
    tess_declare_buffer(&declare, "mean", tess_shape1(5), zero, 0.1f);
    tess_declare_unit(&declare, "head", tess_shape1(8));
    const int32_t head = tess_declare_tied(&declare, "head", table);
    assert_int_equal(declare.status, TESS_OK);
    const struct tess_shape file = tess_declare_file_shape(&declare.param[0]);
    assert_int_equal(file.dim[0], 300);
    assert_int_equal(file.dim[1], 8);
    assert_int_equal(tess_declare_used(&declare.param[0]), 300 * 8);
    const struct tess_shape layer = tess_declare_file_shape(&declare.param[1]);
    assert_int_equal(layer.dim[0], 8);
    assert_int_equal(layer.dim[1], 6);
    assert_int_equal(tess_declare_used(&declare.param[1]), 6 * 8);
    assert_int_equal(tess_declare_size(&declare), 300 * 8 + 6 * 8);
    /* Whole tensors, buffers too, tied ones where their source is. */
    assert_int_equal(declare.element_count, 384 * 8 + 6 * 8 + 5);
    assert_int_equal(declare.param[head].model_begin, 0);
    assert_int_equal(declare.param[1].model_begin, 384 * 8);
    assert_int_equal(declare.param[2].model_begin, 384 * 8 + 6 * 8);
    assert_int_equal(tess_declare_source(&declare.param[head]), table);
    assert_int_equal(tess_declare_source(&declare.param[table]), -1);
    assert_int_equal(declare.param[head].slice.used, 300);
    tess_declare_fini(&declare);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A model of `units` units, each of which has 0 to 2 of everything. */
static void select_declare(struct tess_declare *declare, int32_t units, uint32_t *seed)
{
    const struct tess_op_desc op = {.kind = TESS_OP_LINEAR, .in = 4, .out = 4};
    char name[32];
    memset(declare, 0, sizeof(*declare));
    declare->axis = axis_of(1, 0, 1);
    declare->rows = declare->leaf_rows = 2;
    for (int32_t u = 0; u < units; u++) {
        snprintf(name, sizeof(name), "unit%d", (int)u);
        tess_declare_unit(declare, name, tess_shape1(3 + u));
        for (uint32_t i = declare_random(seed, 3); i > 0; i--) {
            snprintf(name, sizeof(name), "p%d.%d", (int)u, (int)i);
            tess_declare_param(declare, name, tess_shape1(1 + declare_random(seed, 9)), zero, 0);
        }
        for (uint32_t i = declare_random(seed, 3); i > 0; i--)
            tess_declare_tensor(declare, "t", TESS_F32, tess_shape1(1 + declare_random(seed, 9)),
                                TESS_LIFE_SAVED);
        for (uint32_t i = declare_random(seed, 3); i > 0; i--)
            tess_declare_op(declare, &op, false);
        tess_declare_crossing(declare, TESS_CALL_BACKWARD, TESS_CALL_SUM, 100 + u);
    }
    assert_int_equal(declare->status, TESS_OK);
}

/* Of what is declared in one unit: all of it and nothing else, in order, with its old number. */
#define CHECK_KEPT(model, part, keep, array, array_count)                                          \
    do {                                                                                           \
        int32_t next = 0;                                                                          \
        for (int32_t i = 0; i < (model)->array_count; i++) {                                       \
            if (!(keep)[(model)->array[i].unit])                                                   \
                continue;                                                                          \
            assert_true(next < (part)->array_count);                                               \
            assert_int_equal((part)->array[next].index, i);                                        \
            assert_string_equal((part)->unit[(part)->array[next].unit].name,                       \
                                (model)->unit[(model)->array[i].unit].name);                       \
            next++;                                                                                \
        }                                                                                          \
        assert_int_equal(next, (part)->array_count);                                               \
    } while (0)

static void case_select(void **state)
{
    uint32_t seed = 2;
    (void)state;
    for (int run = 0; run < 500; run++) {
        struct tess_declare model, part;
        bool keep[12];
        const int32_t units = 1 + (int32_t)declare_random(&seed, 12);
        int32_t place = 0;
        select_declare(&model, units, &seed);
        for (int32_t u = 0; u < units; u++)
            keep[u] = declare_random(&seed, 2) == 1;
        assert_int_equal(tess_declare_select(&model, keep, &part), TESS_OK);
        for (int32_t u = 0; u < units; u++) {
            if (!keep[u])
                continue;
            assert_int_equal(part.unit[place].index, u);
            assert_int_equal(part.unit[place].output_count, 3 + u);
            assert_int_equal(part.unit[place].crossing[TESS_CALL_BACKWARD][TESS_CALL_SUM], 100 + u);
            assert_int_equal(part.unit[place].crossing[TESS_CALL_FORWARD][TESS_CALL_SUM], 0);
            place++;
        }
        assert_int_equal(part.unit_count, place);
        CHECK_KEPT(&model, &part, keep, param, param_count);
        CHECK_KEPT(&model, &part, keep, tensor, tensor_count);
        CHECK_KEPT(&model, &part, keep, op, op_count);
        for (int32_t p = 0; p < part.param_count; p++)
            assert_int_equal(part.param[p].model_begin,
                             model.param[part.param[p].index].model_begin);
        assert_int_equal(part.element_count, model.element_count);
        tess_declare_fini(&part);
        tess_declare_fini(&model);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* What to declare wrongly. */
static int wrong;

static enum tess_status wrong_declare(void *state, const void *options,
                                      const struct tess_model_input *input,
                                      struct tess_declare *declare)
{
    const struct tess_slice rows = {0, 1, 0};
    (void)state, (void)options, (void)input;
    if (wrong == 0) {
        tess_declare_crossing(declare, TESS_CALL_FORWARD, TESS_CALL_SUM, 1);
        return TESS_OK;
    }
    tess_declare_unit(declare, "one", tess_shape1(4));
    const int32_t table = tess_declare_sliced(declare, "table", tess_shape2(8, 2), zero, 0, rows);
    if (wrong == 1)
        tess_declare_sliced(declare, "odd", tess_shape2(6, 2), zero, 0, rows);
    if (wrong == 2)
        tess_declare_sliced(declare, "blocks", tess_shape2(8, 2), zero, 0,
                            (struct tess_slice){0, 3, 0});
    if (wrong == 3)
        tess_declare_sliced(declare, "no axis", tess_shape1(8), zero, 0,
                            (struct tess_slice){1, 1, 0});
    if (wrong == 4)
        tess_declare_sliced(declare, "padded", tess_shape2(8, 4), zero, 0,
                            (struct tess_slice){1, 1, 3});
    if (wrong == 5)
        tess_declare_sliced(declare, "padded", tess_shape2(8, 4), zero, 0,
                            (struct tess_slice){0, 1, 9});
    tess_declare_unit(declare, "two", tess_shape1(4));
    if (wrong == 6)
        tess_declare_tied(declare, "tied", 7);
    if (wrong == 7 || wrong == 8)
        tess_declare_tied(declare, "tied", table);
    if (wrong == 7)
        tess_declare_param(declare, "beside", tess_shape1(2), zero, 0);
    if (wrong == 9) {
        tess_declare_tied(declare, "tied", table);
        tess_declare_unit(declare, "three", tess_shape1(4));
        tess_declare_param(declare, "table", tess_shape1(2), zero, 0);
    }
    return TESS_OK;
}

static void case_refused(void **state)
{
    static const char *const why[] = {
        "'crossing' is declared before the first unit",
        "dimension 0 of 'odd', 6 long, cannot be cut into 4 equal parts",
        "dimension 0 of 'blocks', 8 long, cannot be cut into 4 equal parts",
        "dimension 1 of 'no axis', 0 long, cannot be cut",
        "only the first dimension of a parameter may be padded, 'padded' is otherwise",
        "only the first dimension of a parameter may be padded, 'padded' is otherwise",
        "'tied' is tied to no parameter",
        "'tied' is tied, or tied to, and shares its unit with 'beside'",
        NULL,
        "two parameters are named 'table'",
    };
    const struct tess_model_input input = {.class_count = 4, .axis = axis_of(4, 1, 2)};
    (void)state;
    for (wrong = 0; wrong < (int)(sizeof(why) / sizeof(why[0])); wrong++) {
        const struct tess_model_ops model = {
            .name = "wrong", .tensor = true, .declare = wrong_declare};
        struct tess_declare declare = {.rows = 2, .leaf_rows = 2};
        const enum tess_status status = tess_declare_model(&declare, &model, NULL, NULL, &input);
        assert_int_equal(status == TESS_OK, why[wrong] == NULL);
        if (why[wrong] != NULL && strstr(tess_log_last_error(), why[wrong]) == NULL)
            fail_msg("expected '%s' in: %s", why[wrong], tess_log_last_error());
        tess_declare_fini(&declare);
    }
    /* A model that ignores the axis. */
    wrong = 8;
    const struct tess_model_ops model = {.name = "plain", .declare = wrong_declare};
    struct tess_declare declare = {.rows = 2, .leaf_rows = 2};
    assert_int_equal(tess_declare_model(&declare, &model, NULL, NULL, &input), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "'plain' cannot be cut along the tensor axis"));
    tess_declare_fini(&declare);
}

/* Weights to be stacked; two in the last of which a unit begins. */
static const struct stack {
    struct cut cut[2];
    bool units, fits;
} stacks[] = {
    {{{{2, {8, 64}}, {0, 1, 0}}, {{2, {4, 64}}, {0, 1, 0}}}, false, true},
    {{{{2, {4, 16}}, {-1, 1, 0}}, {{2, {8, 16}}, {-1, 1, 0}}}, false, true},
    {{{{2, {8, 32}}, {0, 1, 0}}, {{2, {4, 32}}, {0, 1, 0}}}, false, false},   /* 32 in a part */
    {{{{2, {8, 64}}, {0, 1, 0}}, {{2, {8, 128}}, {0, 1, 0}}}, false, false},  /* other rows */
    {{{{2, {8, 128}}, {1, 1, 0}}, {{2, {8, 128}}, {1, 1, 0}}}, false, false}, /* columns cut */
    {{{{2, {8, 64}}, {0, 1, 0}}, {{2, {4, 64}}, {0, 1, 0}}}, true, false},
};

static void case_stacked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stacks) / sizeof(stacks[0]); i++) {
        const struct stack *stack = &stacks[i];
        struct tess_declare declare = {.axis = axis_of(4, 1, 2)};
        for (int w = 0; w < 2; w++) {
            if (w == 0 || stack->units)
                tess_declare_unit(&declare, "unit", tess_shape1(1));
            tess_declare_sliced(&declare, w == 0 ? "a" : "b", stack->cut[w].whole, zero, 0,
                                stack->cut[w].slice);
        }
        tess_declare_stacked(&declare, 0, 2);
        assert_int_equal(declare.status, stack->fits ? TESS_OK : TESS_ERR_USAGE);
        if (stack->fits)
            assert_true(!declare.param[0].stacked && declare.param[1].stacked);
        else
            assert_non_null(strstr(tess_log_last_error(), "parameters 0 to 1 cannot be stacked"));
        tess_declare_fini(&declare);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_slices),      cmocka_unit_test(case_blocks),
        cmocka_unit_test(case_file_shapes), cmocka_unit_test(case_select),
        cmocka_unit_test(case_refused),     cmocka_unit_test(case_stacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
