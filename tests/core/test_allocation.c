/*
 * A step allocates nothing: every call of malloc, calloc and realloc that any rank makes in a step
 * is noted with its caller, under every strategy. The sanitizers own the allocator, so there it is
 * skipped.
 */
#include "comm/world.h"
#include "config/config.h"
#include "config/registry.h"
#include "core/engine.h"
#include "harness/world.h"
#include "tessera/tessera.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- counting allocations -------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTING 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTING 0
#endif
#endif
#ifndef COUNTING
#define COUNTING 1
#endif

static atomic_bool counting;
static atomic_int caller_count;
static void *caller[1 << 16]; /* oneDNN's calls too: thousands where it computes all products */

#if COUNTING
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
__attribute__((noinline)) void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);

static void note(void *address)
{
    if (!atomic_load(&counting))
        return;
    int at = atomic_fetch_add(&caller_count, 1);
    if (at < (int)(sizeof(caller) / sizeof(*caller)))
        caller[at] = address;
}

void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}
#endif

/* Allocations noted, but for those that oneDNN makes inside its own execute call and cmocka in its
 * assertions (its C API copies the arguments into a C++ map; there is no way round it). */
static int own_allocations(void)
{
    int own = 0, noted = atomic_load(&caller_count);
    assert_true(noted < (int)(sizeof(caller) / sizeof(*caller)));
    for (int i = 0; i < noted; i++) {
        Dl_info info = {0};
        if (dladdr(caller[i], &info) && info.dli_fname &&
            (strstr(info.dli_fname, "libdnnl") || strstr(info.dli_fname, "libstdc++")))
            continue;
        printf("an allocation in a step, from %s\n", info.dli_fname ? info.dli_fname : "?");
        own++;
    }
    return own;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct job {
    const struct tess_config *config;
    const struct tess_dataset *dataset;
};

/* Steps with and without the loss, so that all a training loop asks for is covered. */
static int job_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct job *job = arg;
    struct tess_engine *engine;
    struct tess_step_result result;
    WORLD_OK(tess_engine_open(job->config, job->dataset, comm, world, &engine));
    WORLD_OK(tess_engine_step(engine, true, &result));
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0)
        atomic_store(&counting, true);
    WORLD_OK(tess_comm_barrier(comm));
    for (int i = 0; i < 3; i++)
        WORLD_OK(tess_engine_step(engine, i != 1, &result));
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0)
        atomic_store(&counting, false);
    WORLD_OK(tess_comm_barrier(comm));
    tess_engine_close(engine);
    return 0;
}

static void check_steps(int argc, char **argv, const struct tess_dataset *dataset)
{
    struct tess_config *config;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &config), TESS_OK);
    struct job job = {config, dataset};
    atomic_store(&caller_count, 0);
    assert_int_equal(world_run((int32_t)config->run.ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL,
                               job_rank, &job),
                     0);
    assert_int_equal(own_allocations(), 0);
    tess_config_close(config);
}

/* `low`: parameters in bf16 alone, with loss scaling, so that all of that is run through. */
static void check_run(const char *strategy, const char *kernel, const char *optimizer, bool low)
{
    bool single = strcmp(strategy, "single") == 0;
    char *argv[] = {"--strategy",       (char *)strategy,
                    "--kernel",         (char *)kernel,
                    "--ranks",          single ? "1" : "4",
                    "--grid",           "8",
                    "--accumulate",     "2",
                    "--model",          "cnn",
                    "--cnn.channels",   "4,8",
                    "--cnn.batch-norm", "on",
                    "--cnn.dropout",    "0.1",
                    "--optimizer",      (char *)optimizer,
                    "--clip",           "1",
                    "--batch-size",     "32",
                    "--data",           "synthetic",
                    "--precision",      low ? "bf16" : "f32",
                    "--master-weights", low ? "off" : "on",
                    "--rounding",       low ? "stochastic" : "nearest",
                    "--loss-scale",     low ? "dynamic" : "off"};
    struct tess_dataset *dataset;
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(12, 12, 1), 10, 256, 40, 5, &dataset),
                     TESS_OK);
    check_steps((int)(sizeof(argv) / sizeof(*argv)), argv, dataset);
    tess_dataset_close(dataset);
}

/* Language models on a mesh of all three axes: crossings, stages, ties, recompute. */
static void check_mesh(const char *strategy, const char *mesh, const char *schedule,
                       const char *kernel, const char *option)
{
    char *argv[] = {"--strategy",      (char *)strategy,
                    "--mesh",          (char *)mesh,
                    "--kernel",        (char *)kernel,
                    "--pp.schedule",   (char *)schedule,
                    "--model",         "gpt",
                    "--gpt.layers",    "6",
                    "--gpt.width",     "16",
                    "--gpt.vocab",     "300",
                    "--gpt.dropout",   "0.1",
                    "--data.length",   "8",
                    "--grid",          "8",
                    "--batch-size",    "16",
                    "--optimizer",     "adamw",
                    "--clip",          "1",
                    "--loss-scale",    "dynamic",
                    "--data",          "synthetic",
                    "--learning-rate", "0.01",
                    (char *)option};
    struct tess_dataset *dataset;
    assert_int_equal(tess_dataset_open_synthetic_tokens(8, 128, 16, 5, &dataset), TESS_OK);
    check_steps((int)(sizeof(argv) / sizeof(*argv)), argv, dataset);
    tess_dataset_close(dataset);
}

static void case_the_counter_counts(void **state)
{
    (void)state;
    if (!COUNTING)
        skip();
    atomic_store(&caller_count, 0);
    atomic_store(&counting, true);
    void *volatile counted = malloc(1); /* volatile, or the pair is removed */
    free(counted);
    atomic_store(&counting, false);
    assert_int_equal(own_allocations(), 1);
}

static void case_no_strategy_allocates(void **state)
{
    (void)state;
    if (!COUNTING)
        skip();
    int strategies, kernels;
    const char *const *strategy = tess_registry_names(TESS_REGISTRY_STRATEGY, &strategies);
    const char *const *kernel = tess_registry_names(TESS_REGISTRY_KERNEL, &kernels);
    for (int k = 0; k < kernels; k++) {
        if (strcmp(kernel[k], "guard") == 0)
            continue; /* thread ranks read each other's memory, which guard forbids */
        for (int s = 0; s < strategies; s++) {
            const struct tess_strategy_ops *ops;
            assert_int_equal(tess_registry_get_strategy(strategy[s], &ops), TESS_OK);
            if (ops->axis == TESS_AXIS_DATA)
                check_run(strategy[s], kernel[k], s % 2 ? "lamb" : "novograd", s % 3 == 1);
        }
    }
}

static void case_no_mesh_allocates(void **state)
{
    static const char *const all = "data=2,tensor=2,stage=2";
    int kernels;
    const char *const *kernel = tess_registry_names(TESS_REGISTRY_KERNEL, &kernels);
    (void)state;
    if (!COUNTING)
        skip();
    for (int k = 0; k < kernels; k++) {
        if (strcmp(kernel[k], "guard") == 0)
            continue;
        check_mesh("fsdp+tp+pp", all, "1f1b", kernel[k], "--tensor.canonical=4");
        check_mesh("zero2+tp+pp", all, "interleaved", kernel[k], "--recompute=full");
        check_mesh("ddp+tp+pp", all, "gpipe", kernel[k], "--tensor.sequence-parallel=on");
        check_mesh("hsdp+pp", "data=4,stage=2", "1f1b", kernel[k], "--recompute=selective");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_the_counter_counts),
        cmocka_unit_test(case_no_strategy_allocates),
        cmocka_unit_test(case_no_mesh_allocates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
