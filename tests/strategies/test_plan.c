/*
 * The plans of every strategy, for every rank of several rank counts, over random lists of
 * parameters: every parameter in one segment, parts disjoint and complete, what is full and what is
 * a part, memory and volumes by formulas written down here a second time.
 */
#include "plan_fixture.h"

#include "base/rng.h"
#include "tessera/log.h"
#include "tessera/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PLAN_RANKS_MAX 8

static const int32_t plan_ranks[] = {1, 2, 3, 4, 8};

struct plan_random {
    struct tess_rng_key key;
    uint64_t next;
};

static uint32_t plan_draw(struct plan_random *random, uint32_t below)
{
    return tess_rng_word(random->key, random->next++, 0) % below;
}

/* Units without parameters, parameters of one element and of many blocks, and stacked ones all
 * occur. */
static void plan_random_params(struct plan_random *random, struct fixture_params *params)
{
    memset(params, 0, sizeof(*params));
    params->unit_count = 1 + (int32_t)plan_draw(random, 7);
    for (int32_t u = 0; u < params->unit_count; u++) {
        int32_t here = (int32_t)plan_draw(random, 4);
        if (u == params->unit_count - 1 && params->count == 0)
            here = 1;
        const bool stack = plan_draw(random, 3) == 0;
        for (int32_t i = 0; i < here; i++) {
            int64_t *elements = &params->elements[params->count];
            *elements = 1 + plan_draw(random, plan_draw(random, 2) ? 5000 : 100);
            if (stack)
                *elements = (*elements + TESS_SUM_BLOCK - 1) / TESS_SUM_BLOCK * TESS_SUM_BLOCK;
            params->stacked[params->count] = stack && i > 0;
            params->unit[params->count++] = u;
        }
    }
}

/* A world of plans, one per rank. */
struct plan_world {
    struct fixture rank[PLAN_RANKS_MAX];
    int32_t rank_count;
};

static void plan_open(struct plan_world *world, const struct fixture_params *params,
                      const char *strategy, const char *option, int32_t rank_count,
                      int32_t accumulate, enum tess_dtype dtype, enum tess_dtype reduce_dtype)
{
    world->rank_count = rank_count;
    for (int32_t r = 0; r < rank_count; r++)
        fixture_open(&world->rank[r], params,
                     &(struct fixture_run){.strategy = strategy,
                                           .option = option,
                                           .rank = r,
                                           .rank_count = rank_count,
                                           .accumulate = accumulate,
                                           .dtype = dtype,
                                           .reduce_dtype = reduce_dtype});
}

static void plan_close(struct plan_world *world)
{
    for (int32_t r = 0; r < world->rank_count; r++)
        fixture_close(&world->rank[r]);
}

/* The same flat space on every rank; each parameter inside its one segment, apart from its
 * neighbours, stacked ones without a gap. */
static void plan_check_flat(const struct plan_world *world)
{
    const struct tess_plan *plan = &world->rank[0].plan;
    int32_t seen = 0;
    int64_t at = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const struct tess_segment *segment = &plan->segment[s];
        assert_int_equal(segment->param_first, seen);
        assert_int_equal(segment->begin, at);
        for (int32_t i = 0; i < segment->param_count; i++, seen++) {
            const struct tess_plan_param *param = &plan->param[seen];
            assert_int_equal(param->segment, s);
            assert_int_equal(param->begin % TESS_SHARD_ALIGN, 0);
            assert_true(param->begin >= at && (!param->stacked || (i > 0 && param->begin == at)));
            at = param->begin + param->count;
            assert_in_range(param->unit, segment->unit_first, segment->unit_last);
        }
        assert_true(at <= segment->begin + segment->count);
        at = segment->begin + segment->count;
    }
    assert_int_equal(seen, plan->param_count);
    assert_int_equal(at, plan->flat_count);
    for (int32_t r = 1; r < world->rank_count; r++) {
        const struct tess_plan *other = &world->rank[r].plan;
        assert_int_equal(other->segment_count, plan->segment_count);
        for (int32_t s = 0; s < plan->segment_count; s++) {
            assert_int_equal(other->segment[s].begin, plan->segment[s].begin);
            assert_int_equal(other->segment[s].count, plan->segment[s].count);
        }
    }
}

/* Every element is updated by exactly `owners` ranks. */
static void plan_check_owners(const struct plan_world *world, int32_t owners)
{
    const struct tess_plan *plan = &world->rank[0].plan;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const int64_t begin = plan->segment[s].begin, end = begin + plan->segment[s].count;
        for (int64_t at = begin; at < end; at += TESS_SHARD_ALIGN) {
            int32_t found = 0;
            for (int32_t r = 0; r < world->rank_count; r++) {
                const struct tess_plan *mine = &world->rank[r].plan;
                int64_t own = tess_plan_own_begin(mine, s, mine->optim_extent);
                int64_t own_end = own + tess_plan_own_count(mine, s, mine->optim_extent);
                assert_true(own >= begin && own_end <= end);
                assert_int_equal((own - begin) % TESS_SHARD_ALIGN, 0);
                found += at >= own && at < own_end;
            }
            assert_int_equal(found, owners);
        }
    }
}

static uint64_t plan_bytes(const struct fixture *fixture, enum tess_memory_kind kind)
{
    return tess_memory_bytes(fixture->memory, kind);
}

static uint64_t plan_sent(const struct fixture *fixture)
{
    return fixture->strategy.ops->sent_bytes(&fixture->strategy);
}

/* Bytes of an element of the gradients on its way: with one rank none is. */
static uint64_t plan_grad_bytes(const struct plan_world *world)
{
    const struct tess_plan *plan = &world->rank[0].plan;
    return plan->rank_count == 1 ? sizeof(float) : tess_dtype_bytes(plan->reduce_dtype);
}

static uint64_t plan_round_up(uint64_t bytes)
{
    return (bytes + TESS_MEMORY_ALIGN - 1) / TESS_MEMORY_ALIGN * TESS_MEMORY_ALIGN;
}

/* Copies of so many elements in the type in which they travel; none in f32. */
static uint64_t plan_copy_bytes(const struct plan_world *world, uint64_t elements)
{
    const uint64_t bytes = plan_grad_bytes(world);
    return bytes == sizeof(float) ? 0 : plan_round_up(elements * bytes);
}

/* Run `check` over random lists, rank counts, micro-batches and precisions. */
static void plan_for_all(const char *strategy, const char *option,
                         void (*check)(const struct plan_world *world, uint64_t flat,
                                       uint64_t dtype_bytes, uint64_t micros))
{
    struct plan_random random = {tess_rng_key(7, TESS_RNG_TEST, 0), 0};
    for (int round = 0; round < 40; round++) {
        struct fixture_params params;
        struct plan_world world;
        plan_random_params(&random, &params);
        for (size_t i = 0; i < sizeof(plan_ranks) / sizeof(plan_ranks[0]); i++) {
            int32_t micros = 1 + (int32_t)plan_draw(&random, 3);
            enum tess_dtype dtype = plan_draw(&random, 2) ? TESS_F32 : TESS_BF16;
            const enum tess_dtype reduce[] = {TESS_F32, TESS_BF16, TESS_F16};
            plan_open(&world, &params, strategy, option, plan_ranks[i], micros, dtype,
                      reduce[plan_draw(&random, 3)]);
            plan_check_flat(&world);
            check(&world, (uint64_t)world.rank[0].plan.flat_count, tess_dtype_bytes(dtype),
                  (uint64_t)micros);
            plan_close(&world);
        }
    }
}

static void plan_check_extents(const struct fixture *fixture, enum tess_extent param,
                               enum tess_extent grad, enum tess_extent optim,
                               enum tess_leaf_order order)
{
    assert_int_equal(fixture->plan.param_extent, param);
    assert_int_equal(fixture->plan.grad_extent, grad);
    assert_int_equal(fixture->plan.optim_extent, optim);
    assert_int_equal(fixture->plan.leaf_order, order);
}

static void check_ddp_times(const struct plan_world *world, uint64_t flat, uint64_t times,
                            enum tess_leaf_order order)
{
    const uint64_t n = (uint64_t)world->rank_count;
    plan_check_owners(world, world->rank_count);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        plan_check_extents(rank, TESS_EXTENT_FULL, TESS_EXTENT_FULL, TESS_EXTENT_FULL, order);
        assert_true(rank->plan.replicated);
        assert_int_equal(tess_memory_total(rank->memory), plan_copy_bytes(world, flat));
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_copy_bytes(world, flat));
        /* 2(N-1)/N of all gradients; each bucket's share may round down by less than one byte. */
        uint64_t exact = times * 2 * (n - 1) * flat * plan_grad_bytes(world);
        uint64_t rounded = exact > 0 ? times * n * (uint64_t)rank->plan.segment_count : 0;
        assert_in_range(plan_sent(rank) * n, exact - rounded, exact);
    }
}

static void check_ddp(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                      uint64_t micros)
{
    (void)dtype_bytes, (void)micros;
    check_ddp_times(world, flat, 1, TESS_LEAVES_RANK_FIRST);
}

static void check_ddp_every(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                            uint64_t micros)
{
    (void)dtype_bytes;
    check_ddp_times(world, flat, micros, TESS_LEAVES_MICRO_FIRST);
}

static void check_zero1(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                        uint64_t micros)
{
    const uint64_t n = (uint64_t)world->rank_count;
    (void)micros;
    plan_check_owners(world, 1);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        plan_check_extents(rank, TESS_EXTENT_FULL, TESS_EXTENT_FULL, TESS_EXTENT_SHARD,
                           TESS_LEAVES_RANK_FIRST);
        assert_int_equal(tess_memory_total(rank->memory), plan_copy_bytes(world, flat));
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_copy_bytes(world, flat));
        assert_int_equal(plan_sent(rank) * n,
                         (n - 1) * flat * (plan_grad_bytes(world) + dtype_bytes));
    }
}

/* Buffers: the segments that one unit writes at a time, and one more if there are more. */
static uint64_t plan_scatter_bytes(const struct plan_world *world)
{
    const struct tess_plan *plan = &world->rank[0].plan;
    int64_t elements = 0;
    int32_t most = 0;
    for (int32_t u = 0; u < plan->unit_count; u++) {
        int32_t here = 0;
        for (int32_t p = 0, last = -1; p < plan->param_count; p++) {
            /* A segment that holds parameters on both sides of a unit without any counts too. */
            const struct tess_segment *segment = &plan->segment[plan->param[p].segment];
            if (plan->param[p].segment != last && segment->unit_first <= u &&
                u <= segment->unit_last)
                here++;
            last = plan->param[p].segment;
        }
        most = here > most ? here : most;
    }
    most += most < plan->segment_count;
    /* Segments take the buffers in turn; a buffer is as large as the largest that ever uses it. */
    for (int32_t b = 0; b < most; b++) {
        int64_t largest = 0;
        for (int32_t s = 0; s < plan->segment_count; s++)
            if (s % most == b && plan->segment[s].count > largest)
                largest = plan->segment[s].count;
        elements += largest;
    }
    return plan_round_up((uint64_t)elements * sizeof(float)) +
           plan_copy_bytes(world, (uint64_t)elements);
}

static void check_zero2(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                        uint64_t micros)
{
    const uint64_t n = (uint64_t)world->rank_count;
    plan_check_owners(world, 1);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        plan_check_extents(rank, TESS_EXTENT_FULL, TESS_EXTENT_SHARD, TESS_EXTENT_SHARD,
                           TESS_LEAVES_MICRO_FIRST);
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_scatter_bytes(world));
        assert_int_equal(plan_sent(rank) * n,
                         (n - 1) * flat * (micros * plan_grad_bytes(world) + dtype_bytes));
    }
}

/*
 * Elements gathered in one step, by playing it through: a unit that runs needs itself and the next
 * one, and goes when it has run unless it is one of the `keep` last on their way to backward. There
 * must never be more than two.
 */
static uint64_t plan_gathered(const struct tess_plan *plan, uint64_t micros, int32_t keep)
{
    const int32_t count = plan->segment_count;
    bool there[64] = {false};
    uint64_t elements = 0;
    for (uint64_t step = 0; step < 2 * micros; step++) {
        const bool forward = step % 2 == 0;
        for (int32_t i = 0; i < count; i++) {
            int32_t alive = 0;
            for (int32_t at = i; at <= i + 1 && at < count; at++) {
                int32_t s = forward ? at : count - 1 - at;
                elements += there[s] ? 0 : (uint64_t)plan->segment[s].count;
                there[s] = true;
            }
            for (int32_t s = 0; s < count; s++)
                alive += there[s];
            assert_true(alive <= 2);
            if (forward)
                there[i] = i >= count - keep;
            else
                there[count - 1 - i] = false;
        }
    }
    return elements;
}

static void check_fsdp_dropped(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                               uint64_t micros, int32_t keep)
{
    const uint64_t n = (uint64_t)world->rank_count;
    plan_check_owners(world, 1);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        const struct tess_plan *plan = &rank->plan;
        plan_check_extents(rank, TESS_EXTENT_SHARD, TESS_EXTENT_SHARD, TESS_EXTENT_SHARD,
                           TESS_LEAVES_MICRO_FIRST);
        for (int32_t s = 0; s < plan->segment_count; s++) {
            assert_int_equal(plan->segment[s].unit_first, plan->segment[s].unit_last);
            assert_true(s == 0 || plan->segment[s].unit_first > plan->segment[s - 1].unit_first);
        }
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_scatter_bytes(world));
        int64_t largest[2] = {0, 0};
        for (int32_t s = 0; s < plan->segment_count; s++)
            if (plan->segment[s].count > largest[s % 2])
                largest[s % 2] = plan->segment[s].count;
        uint64_t gathered = (uint64_t)(largest[0] + largest[1]) * dtype_bytes;
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_GATHERED), plan_round_up(gathered));
        uint64_t played = plan_gathered(plan, micros, keep), kept = 0;
        assert_int_equal(plan_sent(rank) * n,
                         (n - 1) * (micros * flat * plan_grad_bytes(world) + played * dtype_bytes));
        /* In f32 the textbook's 3(N-1)/N P, less what is kept from forward to backward. */
        for (int32_t s = 0; s < plan->segment_count; s++)
            kept += s >= plan->segment_count - keep ? (uint64_t)plan->segment[s].count : 0;
        if (plan->dtype == TESS_F32 && plan_grad_bytes(world) == sizeof(float))
            assert_int_equal(plan_sent(rank) * n,
                             (n - 1) * micros * (3 * flat - kept) * sizeof(float));
    }
}

static void check_fsdp(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                       uint64_t micros)
{
    check_fsdp_dropped(world, flat, dtype_bytes, micros, 1);
}

static void check_fsdp_two(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                           uint64_t micros)
{
    check_fsdp_dropped(world, flat, dtype_bytes, micros, 2);
}

static void check_fsdp_kept(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                            uint64_t micros)
{
    const uint64_t n = (uint64_t)world->rank_count;
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_GATHERED), plan_round_up(flat * dtype_bytes));
        assert_int_equal(plan_sent(rank) * n,
                         (n - 1) * flat * (micros * plan_grad_bytes(world) + dtype_bytes));
    }
}

static void check_hsdp(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                       uint64_t micros)
{
    const uint64_t n = (uint64_t)world->rank_count;
    const uint64_t width = n == 4 ? 2 : n == 8 ? 4 : n;
    const uint64_t replicas = n / width;
    plan_check_owners(world, (int32_t)replicas);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        assert_int_equal(rank->plan.shard_count, width);
        assert_int_equal(rank->plan.shard_index, (uint64_t)r % width);
        /* Inside the group by its width; 2(R-1)/R of the part between replicas. */
        uint64_t inside = (width - 1) * (flat * plan_grad_bytes(world) * micros +
                                         plan_gathered(&rank->plan, micros, 2) * dtype_bytes);
        uint64_t between = micros * 2 * (replicas - 1) * flat * plan_grad_bytes(world);
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_scatter_bytes(world));
        assert_int_equal(plan_sent(rank) * width * replicas, inside * replicas + between);
    }
}

static void check_dp(const struct plan_world *world, uint64_t flat, uint64_t dtype_bytes,
                     uint64_t micros)
{
    const uint64_t n = (uint64_t)world->rank_count;
    (void)micros;
    plan_check_owners(world, 1);
    for (int32_t r = 0; r < world->rank_count; r++) {
        const struct fixture *rank = &world->rank[r];
        const struct tess_plan *plan = &rank->plan;
        assert_int_equal(plan->holds_input, r == 0);
        assert_int_equal(plan->holds_loss, r == 0);
        assert_int_equal(plan->skips_input, r != 0);
        assert_int_equal(plan->skips_loss, r != 0);
        assert_int_equal(plan->grad_extent, TESS_EXTENT_FULL);
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_GATHERED) == 0, r == 0);
        assert_int_equal(plan_bytes(rank, TESS_MEMORY_BUCKET), plan_copy_bytes(world, flat));
        /* Rank 0: a replica for each, and its share of the gradients' sum; the others: gradients.
         */
        uint64_t grads = flat * plan_grad_bytes(world);
        uint64_t holder = (n - 1) * flat * dtype_bytes + (n - 1) * grads / n;
        assert_int_equal(plan_sent(rank), r == 0 ? holder : grads);
    }
}

static void test_ddp(void **state)
{
    (void)state;
    plan_for_all("ddp", NULL, check_ddp);
    plan_for_all("ddp", "--ddp.bucket-mib=0.004", check_ddp);
    plan_for_all("ddp", "--ddp.bucket-mib=0.004 --ddp.sync-every-micro-batch", check_ddp_every);
}

static void test_zero1(void **state)
{
    (void)state;
    plan_for_all("zero1", NULL, check_zero1);
    plan_for_all("zero1", "--zero1.first-bucket-mib=0.002", check_zero1);
}

static void test_zero2(void **state)
{
    (void)state;
    plan_for_all("zero2", NULL, check_zero2);
    plan_for_all("zero2", "--zero2.first-bucket-mib=0", check_zero2);
}

static void test_fsdp(void **state)
{
    (void)state;
    plan_for_all("fsdp", NULL, check_fsdp_two);
    plan_for_all("fsdp", "--fsdp.keep-last=1", check_fsdp);
    plan_for_all("fsdp", "--fsdp.reshard-after-forward=off", check_fsdp_kept);
}

static void test_hsdp(void **state)
{
    (void)state;
    plan_for_all("hsdp", NULL, check_hsdp);
}

static void test_dp(void **state)
{
    (void)state;
    plan_for_all("dp", NULL, check_dp);
}

static void test_single(void **state)
{
    const struct fixture_params params = {
        .unit_count = 2, .count = 2, .elements = {5, 70}, .unit = {0, 1}};
    struct plan_world world;
    (void)state;
    plan_open(&world, &params, "single", NULL, 1, 3, TESS_F32, TESS_BF16);
    plan_check_flat(&world);
    plan_check_owners(&world, 1);
    assert_int_equal(tess_memory_total(world.rank[0].memory), 0);
    assert_int_equal(plan_sent(&world.rank[0]), 0);
    const struct tess_strategy_ops *ops = world.rank[0].strategy.ops;
    assert_int_equal(ops->check(world.rank[0].strategy.options, 2, 1), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "--ranks 1"));
    plan_close(&world);
}

/* Groups that are no subtrees are refused, and the message lists those that are. */
static void test_hsdp_refuses(void **state)
{
    const struct tess_strategy_ops *ops;
    struct {
        int32_t reshard;
        int64_t shard_ranks, keep_last;
    } options = {0, 3, 1};
    (void)state;
    assert_int_equal(tess_registry_get_strategy("hsdp", &ops), TESS_OK);
    assert_int_equal(ops->options_size, sizeof(options));
    assert_int_equal(ops->check(&options, 6, 1), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "1, 2 or 6"));
    options.shard_ranks = 5;
    assert_int_equal(ops->check(&options, 8, 1), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "1, 2, 4 or 8"));
    options.shard_ranks = 4;
    assert_int_equal(ops->check(&options, 8, 1), TESS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single), cmocka_unit_test(test_dp),
        cmocka_unit_test(test_ddp),    cmocka_unit_test(test_zero1),
        cmocka_unit_test(test_zero2),  cmocka_unit_test(test_fsdp),
        cmocka_unit_test(test_hsdp),   cmocka_unit_test(test_hsdp_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
