/*
 * Sums over the tensor axis: with more parts than ranks, or canonical, one tree over the parts in
 * f32, rounded once, whichever rank computes which part; otherwise the ranks' sum; with sequence
 * parallel each rank's run of it. On 1, 2, 4 and 8 threads.
 */
#include "config/registry.h"
#include "core/state.h"
#include "harness/world.h"
#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PARTS_MAX = 8, COUNT = 1200, ROOM = 4 * COUNT };

static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};

/* Of eight magnitudes, so that sums depend on their order. */
static float value_of(int32_t part, int64_t i)
{
    uint32_t x = (uint32_t)part * 2654435761u + (uint32_t)i * 40503u + 77u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    const float scale = (float)(1 << (x >> 5 & 7));
    return ((float)(x >> 8 & 0xffff) / 32768.0f - 1.0f) * scale;
}

/* Elements [from, from + count) of part `part` in the run's type. */
static void fill(struct tess_kernel *kernel, enum tess_dtype dtype, int32_t part, int64_t from,
                 int64_t count, void *out)
{
    float *wide = calloc((size_t)count, sizeof(*wide));
    for (int64_t i = 0; i < count; i++)
        wide[i] = value_of(part, from + i);
    tess_cast(kernel, count, TESS_F32, wide, dtype, out);
    free(wide);
}

static float read_back(struct tess_kernel *kernel, enum tess_dtype dtype, const void *x, int64_t i)
{
    float value;
    tess_cast(kernel, 1, dtype, (const char *)x + (size_t)i * tess_dtype_bytes(dtype), TESS_F32,
              &value);
    return value;
}

/* The balanced tree over parts [first, first + count) of element i, in f32. */
static float tree(struct tess_kernel *kernel, enum tess_dtype dtype, int32_t first, int32_t count,
                  int64_t i)
{
    if (count == 1) {
        float value = value_of(first, i);
        char low[4];
        tess_cast(kernel, 1, TESS_F32, &value, dtype, low);
        return read_back(kernel, dtype, low, 0);
    }
    const float left = tree(kernel, dtype, first, count / 2, i);
    return left + tree(kernel, dtype, first + count / 2, count / 2, i);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct crossing_case {
    int32_t parts;
    bool canonical, sequence;
};

/* What a pass of one unit has. */
struct place {
    struct tess_kernel *kernel;
    struct tess_strategy strategy;
    struct tess_tensor_axis axis;
    struct tess_tensor_pass crossing;
    struct tess_pass pass;
    char partial[PARTS_MAX * COUNT * 4], y[COUNT * 4];
    float wide[PARTS_MAX * COUNT];
    float room[ROOM];
};

static enum tess_status place_open(const struct crossing_case *wanted, struct tess_comm *comm,
                                   enum tess_dtype dtype, struct place *place)
{
    const struct tess_kernel_ops *ops;
    const int32_t ranks = comm->rank_count;
    TESS_TRY(tess_registry_get_kernel("ref", &ops));
    TESS_TRY(tess_kernel_open(ops, 1, &place->kernel));
    TESS_TRY(tess_registry_get_strategy("tp", &place->strategy.ops));
    place->strategy.comm = comm;
    place->axis = (struct tess_tensor_axis){.parts = wanted->parts,
                                            .first = comm->rank * (wanted->parts / ranks),
                                            .count = wanted->parts / ranks,
                                            .rank = comm->rank,
                                            .rank_count = ranks,
                                            .sequence = wanted->sequence};
    place->crossing = (struct tess_tensor_pass){.strategy = ranks > 1 ? &place->strategy : NULL,
                                                .room = place->room,
                                                .room_count = COUNT,
                                                .canonical = wanted->canonical};
    place->pass = (struct tess_pass){.kernel = place->kernel,
                                     .dtype = dtype,
                                     .axis = &place->axis,
                                     .crossing = &place->crossing};
    return TESS_OK;
}

static void fill_parts(struct place *place, int64_t count)
{
    const size_t bytes = (size_t)count * tess_dtype_bytes(place->pass.dtype);
    for (int32_t p = 0; p < place->axis.count; p++)
        fill(place->kernel, place->pass.dtype, place->axis.first + p, 0, count,
             place->partial + (size_t)p * bytes);
}

/* The tree over all parts, rounded once to the run's type. */
static int check_sum(struct place *place, const void *y, int64_t from, int64_t count)
{
    const enum tess_dtype dtype = place->pass.dtype;
    for (int64_t i = 0; i < count; i++) {
        float wanted = tree(place->kernel, dtype, 0, place->axis.parts, from + i);
        char low[4];
        tess_cast(place->kernel, 1, TESS_F32, &wanted, dtype, low);
        wanted = read_back(place->kernel, dtype, low, 0);
        if (read_back(place->kernel, dtype, y, i) != wanted)
            return world_fail("parts %d, %s: element %d of the sum is %g, expected %g",
                              (int)place->axis.parts, tess_dtype_name(dtype), (int)(from + i),
                              (double)read_back(place->kernel, dtype, y, i), (double)wanted);
    }
    return 0;
}

static int check_pass_sum(struct place *place)
{
    static const int64_t counts[] = {1, 7 * 8, COUNT};
    for (int c = place->axis.sequence ? 1 : 0; c < 3; c++) {
        const int64_t count = counts[c];
        const int64_t own = place->axis.sequence ? count / place->axis.rank_count : count;
        const int64_t from = place->axis.sequence ? place->axis.rank * own : 0;
        fill_parts(place, count);
        WORLD_OK(tess_pass_sum(&place->pass, count, place->partial, place->y));
        WORLD_CHECK(check_sum(place, place->y, from, own) == 0);
        if (place->axis.sequence)
            continue;
        fill_parts(place, count);
        WORLD_OK(tess_pass_sum(&place->pass, count, place->partial, place->partial));
        WORLD_CHECK(check_sum(place, place->partial, 0, count) == 0);
    }
    return 0;
}

/* More sums begun one after the other than there are places for, each of elements of its own. */
static int check_begun(struct place *place)
{
    enum { SUMS = TESS_BEGUN_MAX + 4, EACH = 56 };
    const size_t word = tess_dtype_bytes(place->pass.dtype);
    const int64_t own = place->axis.sequence ? EACH / place->axis.rank_count : EACH;
    const int64_t from = place->axis.sequence ? place->axis.rank * own : 0;
    memset(place->y, 0, sizeof(place->y));
    for (int64_t i = 0; i < SUMS; i++) {
        char *partial = place->partial + (size_t)(i * place->axis.count * EACH) * word;
        for (int32_t p = 0; p < place->axis.count; p++)
            fill(place->kernel, place->pass.dtype, place->axis.first + p, i * EACH, EACH,
                 partial + (size_t)(p * EACH) * word);
        WORLD_OK(
            tess_pass_sum_begin(&place->pass, EACH, partial, place->y + (size_t)(i * own) * word));
    }
    WORLD_OK(tess_pass_sum_end(&place->pass));
    for (int64_t i = 0; i < SUMS; i++)
        WORLD_CHECK(check_sum(place, place->y + (size_t)(i * own) * word, i * EACH + from, own) ==
                    0);
    return 0;
}

static int check_f32(struct place *place)
{
    for (int most = 0; most < 2; most++) {
        for (int32_t p = 0; p < place->axis.count; p++)
            for (int64_t i = 0; i < COUNT; i++)
                place->wide[p * COUNT + i] = value_of(place->axis.first + p, i);
        WORLD_OK(most ? tess_pass_max_f32(&place->pass, COUNT, place->wide)
                      : tess_pass_sum_f32(&place->pass, COUNT, place->wide));
        for (int64_t i = 0; i < COUNT; i++) {
            float wanted = value_of(0, i);
            for (int32_t p = 1; p < place->axis.parts && most; p++)
                wanted = value_of(p, i) > wanted ? value_of(p, i) : wanted;
            if (!most)
                wanted = tree(place->kernel, TESS_F32, 0, place->axis.parts, i);
            WORLD_CHECK(place->wide[i] == wanted);
        }
    }
    return 0;
}

/* Runs of all ranks, one after the other; without sequence parallel what is there already. */
static int check_widen(struct place *place)
{
    const enum tess_dtype dtype = place->pass.dtype;
    const size_t bytes = tess_dtype_bytes(dtype);
    const int64_t own = place->axis.sequence ? COUNT / place->axis.rank_count : COUNT;
    fill(place->kernel, dtype, 0, 0, COUNT, place->partial);
    const char *part = place->partial + (size_t)(place->axis.rank * own) * bytes;
    if (!place->axis.sequence)
        part = place->partial;
    memset(place->y, 0, sizeof(place->y));
    WORLD_OK(tess_pass_widen(&place->pass, COUNT, part, place->y));
    WORLD_CHECK(memcmp(place->y, place->partial, COUNT * bytes) == 0);
    return 0;
}

static int crossing_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        struct place *place = calloc(1, sizeof(*place));
        WORLD_CHECK(place != NULL);
        WORLD_OK(place_open(arg, comm, dtypes[d], place));
        int failed = check_pass_sum(place);
        failed = failed != 0 ? failed : check_begun(place);
        failed = failed != 0 ? failed : check_f32(place);
        failed = failed != 0 ? failed : check_widen(place);
        tess_kernel_close(place->kernel);
        free(place);
        if (failed != 0)
            return failed;
    }
    return 0;
}

static void crossing_run(int32_t ranks, struct crossing_case wanted)
{
    assert_int_equal(
        world_run(ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, crossing_rank, &wanted), 0);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* As many parts, whatever the ranks: the same tree. */
static void case_canonical(void **state)
{
    (void)state;
    for (int32_t parts = 2; parts <= PARTS_MAX; parts *= 2)
        for (int32_t ranks = 1; ranks <= parts; ranks *= 2)
            crossing_run(ranks, (struct crossing_case){.parts = parts, .canonical = true});
}

/* One part a rank, added by the communicator: in f32 and rounded once, as it promises. */
static void case_ranks(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 8; ranks *= 2)
        crossing_run(ranks, (struct crossing_case){.parts = ranks});
}

static void case_sequence(void **state)
{
    (void)state;
    for (int32_t ranks = 2; ranks <= 8; ranks *= 2)
        crossing_run(ranks, (struct crossing_case){.parts = ranks, .sequence = true});
}

/* A model that sums more than it has declared fails before anything is overwritten. */
static int small_room_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    static struct place place;
    (void)world;
    WORLD_OK(place_open(arg, comm, TESS_F32, &place));
    place.crossing.room_count = COUNT - 1;
    WORLD_CHECK(tess_pass_sum(&place.pass, COUNT, place.partial, place.y) == TESS_ERR_INTERNAL);
    WORLD_CHECK(strstr(tess_log_last_error(), "more than it declared") != NULL);
    tess_kernel_close(place.kernel);
    return 0;
}

static void case_small_room(void **state)
{
    struct crossing_case wanted = {.parts = 4, .canonical = true};
    (void)state;
    assert_int_equal(
        world_run(1, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, small_room_rank, &wanted), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_canonical),
        cmocka_unit_test(case_ranks),
        cmocka_unit_test(case_sequence),
        cmocka_unit_test(case_small_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
