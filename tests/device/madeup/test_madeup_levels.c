/*
 * Sums in canonical order over NCCL, on made-up devices of several hosts (madeup.h):
 * `test_madeup_levels HOSTS PLACES`. Ranks are threads with a device each, or processes. Bytes that
 * cross between hosts, counted by the made-up NCCL; bits, against the tree computed one by one, in
 * groups of all sizes; a recorded sum; calls of NCCL; and choices that reach it.
 */
#include "comm/cases.h"

#include "base/log_sink.h"
#include "comm/boot/boot.h"
#include "device/madeup/nccl_madeup.h"
#include "harness/need_device.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_S 600 /* a machine that is shared may stand still for a while */

/* Small, so that a piece of a slice is: several of them are under way. */
enum { SCRATCH = 64 << 10 };

static struct {
    int32_t hosts, places;
    struct tess_comm_choices choices;
    const struct tess_module *module;
    const struct tess_kernel_ops *kernel;
    const struct madeup_nccl_facts *facts;
    enum tess_order order;
    int32_t lines; /* rank 0 has logged why sums go rank by rank */
} levels;

/* The elements of a rank's slice, where ranks share a piece. */
static size_t levels_piece(int32_t ranks, size_t size)
{
    const size_t cell = SCRATCH / 2 / (size_t)ranks / 256 * 256;
    return (cell > 256 ? cell : 256) / size;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void levels_line(void *context, enum tess_log_level level, const char *text)
{
    (void)context, (void)level;
    levels.lines += strstr(text, "the node of rank 0 is not one of equal nodes") != NULL;
}

/* More ranks than a process has devices: processes, whose hosts have names of their own. */
static bool levels_processes(void)
{
    return levels.hosts * levels.places > TESS_DEVICE_MAX;
}

static int levels_rank(struct tess_comm *local, struct tess_world *world, void *arg)
{
    static const struct tess__log_sink sink = {levels_line, NULL};
    int (*const run)(struct tess_comm *, struct tess_comm *) =
        *(int (**)(struct tess_comm *, struct tess_comm *))arg;
    struct tess_boot *boot;
    struct tess_comm *comm;
    struct tess_kernel *kernel;
    if (levels_processes()) {
        char host[24];
        snprintf(host, sizeof(host), "host%d", (int)(local->rank / levels.places));
        WORLD_CHECK(setenv("NCCL_HOSTID", host, 1) == 0);
    }
    WORLD_OK(levels.module->device_select(
        levels_processes() ? local->rank % levels.places : local->rank, true));
    WORLD_OK(tess_boot_over(local, LIMIT_S, &boot));
    const struct tess__log_sink *before = local->rank == 0 ? tess__log_redirect(&sink) : NULL;
    const enum tess_status status =
        levels.module->comm_open(boot, world, local->order, LIMIT_S, &levels.choices, &comm);
    if (local->rank == 0)
        (void)tess__log_redirect(before);
    tess_boot_close(boot);
    WORLD_OK(status);
    WORLD_OK(tess_kernel_open(levels.kernel, 1, &kernel));
    WORLD_OK(tess_comm_attach(comm, kernel->queue));
    const int failed = run(comm, local);
    if (failed != 0)
        return failed; /* peers may still use what closing would free */
    WORLD_OK(tess_comm_attach(comm, NULL));
    tess_kernel_close(kernel);
    tess_comm_close(comm);
    return 0;
}

static void levels_run(int (*run)(struct tess_comm *, struct tess_comm *))
{
    static struct world_report report;
    const struct world_setup setup = {.ranks = levels.hosts * levels.places,
                                      .mode = levels_processes() ? TESS_RANKS_PROCESSES
                                                                 : TESS_RANKS_THREADS,
                                      .order = levels.order,
                                      .timeout_s = LIMIT_S,
                                      .limit_s = LIMIT_S};
    const int failed = world_run_setup(&setup, levels_rank, &run, &report);
    world_print(&report);
    assert_int_equal(failed, 0);
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct levels_sum {
    enum tess_collective collective;
    enum tess_dtype dtype;
    enum tess_reduce reduce;
    size_t count;
    bool in_place;
    int32_t root;
    uint64_t seed;
};

static size_t levels_sources(const struct tess_comm *comm, const struct levels_sum *sum)
{
    const bool scatters = sum->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    return sum->count * (scatters ? (size_t)comm->rank_count : 1);
}

static enum tess_status levels_call(struct tess_comm *comm, const struct levels_sum *sum,
                                    const void *source, void *target)
{
    switch (sum->collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        return tess_comm_all_reduce(comm, source, target, sum->count, sum->dtype, sum->reduce,
                                    NULL);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return tess_comm_reduce_scatter(comm, source, target, sum->count, sum->dtype, sum->reduce,
                                        NULL);
    default:
        return tess_comm_reduce(comm, source, target, sum->count, sum->dtype, sum->reduce,
                                sum->root, NULL);
    }
}

/* Is what has come to `host` the tree over the sources? Each rank looks at its share. */
static int levels_check(const struct tess_comm *comm, const struct levels_sum *sum,
                        const char *host)
{
    const bool scatters = sum->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    const size_t n = (size_t)comm->rank_count, rank = (size_t)comm->rank;
    const size_t stride = scatters || sum->collective == TESS_COLLECTIVE_REDUCE ? 1 : n;
    if (sum->collective == TESS_COLLECTIVE_REDUCE && comm->rank != sum->root)
        return 0;
    for (size_t i = stride > 1 ? rank : 0; i < sum->count; i += stride)
        if (!value_is_reduced(sum->dtype, sum->reduce, TESS_ORDER_CANONICAL, sum->seed,
                              comm->rank_count, scatters ? rank * sum->count + i : i,
                              host + i * tess_dtype_bytes(sum->dtype)))
            return world_fail("%s of %zu %s (reduce %d) over %zu ranks: element %zu is wrong",
                              tess_collective_name(sum->collective), sum->count,
                              tess_dtype_name(sum->dtype), (int)sum->reduce, n, i);
    return 0;
}

static int levels_sum(struct tess_comm *comm, const struct levels_sum *sum,
                      const struct place *from, const struct place *to)
{
    const size_t size = tess_dtype_bytes(sum->dtype), count = levels_sources(comm, sum);
    const bool scatters = sum->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    const struct place *at = sum->in_place ? from : to;
    char *target =
        at->host + (sum->in_place && scatters ? (size_t)comm->rank * sum->count * size : 0);
    value_fill(sum->dtype, sum->seed, comm->rank, count, from->host);
    WORLD_OK(place_put(from, from->host, count * size));
    WORLD_OK(levels_call(comm, sum, from->at, place_at(at, target)));
    WORLD_OK(place_get(at, target, sum->count * size));
    return levels_check(comm, sum, target);
}

/* ---- what crosses ---------------------------------------------------------------------------- */

/* Bytes that have left this rank's host since the call before. All ranks have made their calls. */
static int levels_crossed(struct tess_comm *local, uint64_t *before, uint64_t *bytes_out)
{
    uint64_t now = 0;
    WORLD_OK(tess_comm_barrier(local));
    for (int32_t p = 0; p < levels.places; p++)
        now += levels.facts->crossed[local->rank / levels.places * levels.places + p];
    WORLD_OK(tess_comm_barrier(local));
    *bytes_out = now - *before;
    *before = now;
    return 0;
}

/* Those of a sum of the size S: (H - 1) / H S in two levels, and as many in the gather; rank by
 * rank, PLACES times as many. */
static int levels_counted_one(struct tess_comm *comm, struct tess_comm *local,
                              const struct levels_sum *sum, const struct place *from,
                              const struct place *to)
{
    const bool scatters = sum->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    const bool halves = sum->dtype == TESS_BF16 && levels.places != 3; /* f32 on the way */
    const size_t size = tess_dtype_bytes(sum->dtype), n = (size_t)comm->rank_count;
    const size_t total = levels_sources(comm, sum), slice = (total + n - 1) / n;
    const size_t first = (size_t)(comm->rank / levels.places * levels.places) * slice;
    size_t own = (size_t)levels.places * slice; /* elements of this host's slices */
    own = first >= total ? 0 : total - first < own ? total - first : own;
    const size_t times = levels.places == 3 ? 3 : 1;
    uint64_t before = 0, crossed;
    if (levels_crossed(local, &before, &crossed) != 0 || levels_sum(comm, sum, from, to) != 0 ||
        levels_crossed(local, &before, &crossed) != 0)
        return 1;
    uint64_t expected = times * (total - own) * size * (halves ? 2 : 1);
    if (!scatters)
        expected += times * (uint64_t)(levels.hosts - 1) * own * size;
    if (total % n == 0 && expected != (uint64_t)(scatters ? 1 : 2) * times * total * size *
                                          (halves ? 2 : 1) / (uint64_t)levels.hosts *
                                          (uint64_t)(levels.hosts - 1))
        return world_fail("the formula is not that of the plan");
    if (crossed != expected)
        return world_fail("%s of %zu %s: %llu bytes left the host, and not %llu",
                          tess_collective_name(sum->collective), sum->count,
                          tess_dtype_name(sum->dtype), (unsigned long long)crossed,
                          (unsigned long long)expected);
    return 0;
}

static int levels_counted(struct tess_comm *comm, struct tess_comm *local)
{
    const size_t n = (size_t)comm->rank_count, room = n * 2500 * 4;
    struct place from, to;
    WORLD_OK(place_open(comm, room, false, &from));
    WORLD_OK(place_open(comm, room, false, &to));
    /* Gathers of equal slices are NCCL's own, so slices are unequal where all have the sum. */
    const struct levels_sum sums[] = {
        {TESS_COLLECTIVE_REDUCE_SCATTER, TESS_F32, TESS_REDUCE_SUM, 1001, false, 0, 1},
        {TESS_COLLECTIVE_ALL_REDUCE, TESS_F32, TESS_REDUCE_SUM, n * 2401 - 1, true, 0, 2},
        {TESS_COLLECTIVE_REDUCE_SCATTER, TESS_BF16, TESS_REDUCE_SUM, 2000, true, 0, 3},
        {TESS_COLLECTIVE_ALL_REDUCE, TESS_I64, TESS_REDUCE_MAX, n + 1, false, 0, 4},
    };
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        if (levels_counted_one(comm, local, &sums[i], &from, &to) != 0)
            return 1;
    place_close(&from);
    place_close(&to);
    return 0;
}

static void case_counted(void **state)
{
    (void)state;
    tess_log_set_level(TESS_LOG_DEBUG);
    levels_run(levels_counted);
    tess_log_set_level(TESS_LOG_INFO);
    assert_int_equal(levels.lines, levels.places == 3 ? 1 : 0);
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* All types; fewer elements than ranks, as many, and more than a piece of each slice. Not `all`:
 * types beside f32 (.ci/full: and bf16) take turns over the counts. */
static int levels_group(struct tess_comm *comm, bool all)
{
    static const enum tess_collective kinds[] = {
        TESS_COLLECTIVE_ALL_REDUCE, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_COLLECTIVE_REDUCE};
    const size_t n = (size_t)comm->rank_count, piece = levels_piece(comm->rank_count, 4);
    const size_t counts[] = {1, n - 1, n, n + 1, 3 * piece + 5, n * piece * 5 / 2 + 1};
    const size_t room = 8 * (n * (3 * piece + 5) + n * piece * 5 / 2 + 64);
    struct place from, to;
    WORLD_OK(place_open(comm, room, false, &from));
    WORLD_OK(place_open(comm, room, false, &to));
    for (uint64_t k = 0; k < TESS_DTYPE_COUNT * 6; k++) {
        struct levels_sum sum = {.dtype = (enum tess_dtype)(k / 6),
                                 .count = counts[k % 6],
                                 .collective = kinds[(k + n) % 3],
                                 .reduce = k % 5 == 4 ? TESS_REDUCE_MAX : TESS_REDUCE_SUM,
                                 .in_place = (k + n / 3) % 2 == 0,
                                 .root = (int32_t)(k % n),
                                 .seed = 100 * n + k};
        if (k % 6 == 5 && sum.collective == TESS_COLLECTIVE_REDUCE_SCATTER)
            sum.collective = TESS_COLLECTIVE_ALL_REDUCE; /* it is n times as large */
        if (!all && sum.dtype > (TESTS_FULL ? TESS_BF16 : TESS_F32) && k % 6 != k / 6 % 6)
            continue;
        if (sum.count > 0 && levels_sum(comm, &sum, &from, &to) != 0)
            return 1;
    }
    place_close(&from);
    place_close(&to);
    return 0;
}

/* In groups of the first ranks, from those of one host on. */
static int levels_bits(struct tess_comm *comm, struct tess_comm *local)
{
    (void)local;
    for (int32_t n = levels.places; n <= comm->rank_count; n++) {
        struct tess_comm *child;
        WORLD_OK(tess_comm_split(comm, comm->rank < n ? 0 : 1, comm->rank, &child));
        if (comm->rank < n && levels_group(child, true) != 0)
            return 1;
        tess_comm_close(child);
    }
    return 0;
}

static void case_bits(void **state)
{
    (void)state;
    levels_run(levels_bits);
}

/* Of all ranks, which are more than a queue adds up at once: in several turns, whatever the type.
 */
static int levels_many(struct tess_comm *comm, struct tess_comm *local)
{
    (void)local;
    return levels_group(comm, false);
}

static void case_many(void **state)
{
    (void)state;
    if (levels.hosts * levels.places <= TESS_QUEUE_PEERS_MAX)
        skip();
    levels_run(levels_many);
}

/* ---- a recorded sum -------------------------------------------------------------------------- */

static int levels_graph(struct tess_comm *comm, struct tess_comm *local)
{
    (void)local;
    struct tess_kernel *kernel = comm->queue->kernel;
    const size_t n = (size_t)comm->rank_count;
    struct levels_sum sum = {.collective = TESS_COLLECTIVE_ALL_REDUCE,
                             .dtype = TESS_BF16,
                             .count = n * levels_piece(comm->rank_count, 4) * 3 + 1};
    const size_t bytes = sum.count * tess_dtype_bytes(sum.dtype);
    struct place from, to;
    struct tess_event event;
    WORLD_OK(place_open(comm, bytes, false, &from));
    WORLD_OK(place_open(comm, bytes, false, &to));
    WORLD_OK(kernel->ops->graph_begin(kernel));
    WORLD_OK(tess_comm_all_reduce(comm, from.at, to.at, sum.count, sum.dtype, sum.reduce, &event));
    WORLD_OK(tess_event_wait(&event));
    WORLD_OK(kernel->ops->graph_end(kernel, 0));
    for (sum.seed = 7; sum.seed < 10; sum.seed++) {
        value_fill(sum.dtype, sum.seed, comm->rank, sum.count, from.host);
        WORLD_OK(place_put(&from, from.host, bytes));
        WORLD_OK(kernel->ops->graph_play(kernel, 0));
        WORLD_OK(place_get(&to, to.host, bytes));
        if (levels_check(comm, &sum, to.host) != 0)
            return 1;
    }
    place_close(&from);
    place_close(&to);
    return 0;
}

static void case_graph(void **state)
{
    (void)state;
    levels_run(levels_graph);
}

/* ---- registered memory ----------------------------------------------------------------------- */

/* All to all of `count` words for each rank. */
static int levels_exchange(struct tess_comm *comm, size_t count, const struct place *from,
                           const struct place *to)
{
    const size_t n = (size_t)comm->rank_count, rank = (size_t)comm->rank;
    int32_t *source = (int32_t *)from->host, *target = (int32_t *)to->host;
    for (size_t i = 0; i < n * count; i++)
        source[i] = (int32_t)(rank * 1000000 + i);
    WORLD_OK(place_put(from, source, n * count * sizeof(*source)));
    WORLD_OK(tess_comm_all_to_all(comm, from->at, to->at, count, TESS_I32, NULL));
    WORLD_OK(place_get(to, target, n * count * sizeof(*target)));
    for (size_t i = 0; i < n * count; i++)
        WORLD_CHECK(target[i] == (int32_t)(i / count * 1000000 + rank * count + i % count));
    return 0;
}

/* From one place to another: sums of 16 bits, in any order by our tree, of equal slices and of
 * others; and an exchange, larger than the scratch. */
static int levels_from_to(struct tess_comm *comm, const struct place *from, const struct place *to)
{
    const size_t n = (size_t)comm->rank_count;
    for (size_t i = 0; i < 4; i++) {
        const struct levels_sum sum = {.collective = i % 2 == 0 ? TESS_COLLECTIVE_ALL_REDUCE
                                                                : TESS_COLLECTIVE_REDUCE,
                                       .dtype = TESS_BF16,
                                       .count = i < 2 ? 500 * n : 2001,
                                       .root = comm->rank_count - 1,
                                       .seed = 3};
        if (levels_sum(comm, &sum, from, to) != 0)
            return 1;
    }
    return levels_exchange(comm, SCRATCH / 3, from, to);
}

/* NCCL takes a message from registered memory to registered memory, or from other to other. */
static int levels_registered(struct tess_comm *comm, struct tess_comm *local)
{
    (void)local;
    const size_t half = (size_t)comm->rank_count * SCRATCH * 2;
    struct tess_kernel *kernel = comm->queue->kernel;
    struct place from, to;
    void *memory;
    WORLD_OK(place_open(comm, half, false, &from));
    WORLD_OK(place_open(comm, half, false, &to));
    WORLD_OK(tess_comm_alloc(comm, 2 * half, &memory));
    WORLD_OK(kernel->ops->adopt(kernel, memory, 2 * half));
    const struct place known_from = {.comm = comm, .at = memory, .host = from.host};
    const struct place known_to = {.comm = comm, .at = (char *)memory + half, .host = to.host};
    for (int i = 0; i < 4; i++)
        if (levels_from_to(comm, i % 2 == 0 ? &from : &known_from, i < 2 ? &to : &known_to) != 0)
            return 1;
    place_close(&from);
    place_close(&to);
    kernel->ops->disown(kernel, memory, 2 * half);
    tess_comm_release(comm, memory);
    return 0;
}

static void case_registered_sums(void **state)
{
    (void)state;
    setenv("MADEUP_NCCL_REGISTERED", "all", 1);
    levels.order = TESS_ORDER_FAST;
    levels_run(levels_registered);
    levels.order = TESS_ORDER_CANONICAL;
    levels_run(levels_registered);
    unsetenv("MADEUP_NCCL_REGISTERED");
}

/* ---- calls of NCCL --------------------------------------------------------------------------- */

static int levels_called(const struct tess_comm *comm, uint64_t *before, const char *what,
                         uint64_t expected)
{
    const uint64_t now = levels.facts->calls[comm->rank];
    if (now - *before != expected)
        return world_fail("%s took %llu calls of NCCL, and not %llu", what,
                          (unsigned long long)(now - *before), (unsigned long long)expected);
    *before = now;
    return 0;
}

/* Of sums on one host. An exchange is one call where slices are equal and NCCL has such a call,
 * else a send and a receive for each peer. */
static int levels_calls(struct tess_comm *comm, struct tess_comm *local)
{
    (void)local;
    const size_t n = (size_t)comm->rank_count, slice = 64;
    const uint64_t peers = n - 1, one = getenv("MADEUP_NCCL_VERSION") != NULL ? 2 * peers : 1;
    const uint64_t exchange = one == 1 ? 1 : 2 * n, gather = 1;
    struct place from, to;
    WORLD_OK(place_open(comm, n * slice * 4, false, &from));
    WORLD_OK(place_open(comm, n * slice * 4, false, &to));
    const struct {
        struct levels_sum sum;
        uint64_t calls;
    } way[] = {
        {{TESS_COLLECTIVE_ALL_REDUCE, TESS_F32, TESS_REDUCE_SUM, n * slice, true, 0, 1},
         one + gather},
        {{TESS_COLLECTIVE_REDUCE_SCATTER, TESS_BF16, TESS_REDUCE_SUM, slice, false, 0, 2}, one},
        {{TESS_COLLECTIVE_REDUCE, TESS_F64, TESS_REDUCE_MAX, n * slice / 2, false, 0, 3},
         one + (comm->rank == 0 ? peers : 1)},
    };
    const struct levels_sum odd = {
        TESS_COLLECTIVE_ALL_REDUCE, TESS_F32, TESS_REDUCE_SUM, n * slice - 1, false, 0, 4};
    uint64_t before = levels.facts->calls[comm->rank];
    for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++)
        if (levels_sum(comm, &way[i].sum, &from, &to) != 0 ||
            levels_called(comm, &before, tess_collective_name(way[i].sum.collective),
                          way[i].calls) != 0)
            return 1;
    if (levels_sum(comm, &odd, &from, &to) != 0 ||
        levels_called(comm, &before, "a sum of unequal slices", 4 * peers) != 0 ||
        levels_exchange(comm, slice, &from, &to) != 0 ||
        levels_called(comm, &before, "an exchange", exchange) != 0)
        return 1;
    place_close(&from);
    place_close(&to);
    return 0;
}

static void case_calls(void **state)
{
    (void)state;
    if (levels.hosts > 1)
        skip();
    levels_run(levels_calls);
    setenv("MADEUP_NCCL_VERSION", "22707", 1);
    levels_run(levels_calls);
    unsetenv("MADEUP_NCCL_VERSION");
}

/* ---- choices --------------------------------------------------------------------------------- */

static int levels_nothing(struct tess_comm *comm, struct tess_comm *local)
{
    (void)comm;
    WORLD_OK(tess_comm_barrier(local));
    WORLD_CHECK(levels.facts->max_ctas == (int)levels.choices.max_ctas);
    WORLD_CHECK(levels.facts->cta_policy == levels.choices.cta_policy);
    return 0;
}

static void case_choices(void **state)
{
    (void)state;
    levels.choices.max_ctas = 8;
    levels.choices.cta_policy = NCCL_CTA_POLICY_ZERO;
    levels_run(levels_nothing);
    levels.choices = (struct tess_comm_choices){.scratch_bytes = SCRATCH};
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_counted),
                                       cmocka_unit_test(case_bits),
                                       cmocka_unit_test(case_many),
                                       cmocka_unit_test(case_graph),
                                       cmocka_unit_test(case_registered_sums),
                                       cmocka_unit_test(case_calls),
                                       cmocka_unit_test(case_choices)};
    char text[16];
    if (argc < 3)
        return 2;
    levels.hosts = atoi(argv[1]);
    levels.places = atoi(argv[2]);
    levels.choices.scratch_bytes = SCRATCH;
    levels.order = TESS_ORDER_CANONICAL;
    snprintf(text, sizeof(text), "%d",
             (int)(levels_processes() ? levels.places : levels.hosts * levels.places));
    setenv("MADEUP_DEVICES", text, 1);
    setenv("MADEUP_PLACES", argv[2], 1);
    setenv("MADEUP_LATE", "0.2", 0); /* what is not ordered by fences comes too late */
    setenv("TESSERA_MODULE_PATH", MADEUP_FOLDER, 1);
    levels.module = need_device("cuda");
    void *library = dlopen(MADEUP_FOLDER "/libtessera_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    const struct madeup_nccl_facts *(*facts)(void) = NULL;
    if (library != NULL)
        *(void **)&facts = dlsym(library, "madeup_nccl_facts");
    if (facts == NULL || tess_registry_get_kernel("cuda", &levels.kernel) != TESS_OK)
        return 1;
    levels.facts = facts();
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
