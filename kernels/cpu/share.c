/*
 * An operation's work on several threads: those of the OpenMP runtime that oneDNN brought in, so
 * that there is one set of threads and not two that fight for the same cores. Without such a
 * runtime, or with one thread, parts run one after another.
 */
#include "cpu/prim.h"

#include "tessera/check.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* One call of tess__cpu_share(). */
struct share {
    void (*run)(void *context, int64_t part, void *work);
    void *context;
    int64_t parts;
    atomic_int_fast64_t next;
    int (*number)(void);
    char *work, *extra; /* of thread 0, of the others */
    size_t extra_bytes;
};

/* ISO C has no cast from an object's address to a function's. */
static void share_find(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &symbol, sizeof(symbol));
}

void tess__cpu_share_open(struct cpu_state *state)
{
    share_find("omp_get_max_threads", &state->threads_get);
    share_find("omp_set_num_threads", &state->threads_set);
    share_find("omp_get_thread_num", &state->thread_number);
    share_find("GOMP_parallel", &state->parallel); /* of GCC's runtime; LLVM's has it too */
    if (state->threads_get == NULL)
        state->threads_set = NULL;
    if (state->thread_number == NULL)
        state->parallel = NULL;
}

void tess__cpu_share_close(struct cpu_state *state)
{
    free(state->extra);
    state->extra = NULL;
}

enum tess_status tess__cpu_share_reserve(const struct tess_kernel *kernel, size_t bytes)
{
    struct cpu_state *state = kernel->state;
    bytes = tess__cpu_round_up(bytes);
    if (kernel->threads == 1 || state->parallel == NULL || bytes <= state->extra_bytes)
        return TESS_OK;
    size_t all = bytes * (size_t)(kernel->threads - 1);
    void *extra = aligned_alloc(64, all);
    if (extra == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d threads: %zu bytes", kernel->threads, all);
    free(state->extra);
    state->extra = extra;
    state->extra_bytes = bytes;
    return TESS_OK;
}

static void share_thread(void *argument)
{
    struct share *share = argument;
    int number = share->number();
    void *work = number == 0 ? share->work : NULL;
    if (number > 0 && share->extra != NULL)
        work = share->extra + (size_t)(number - 1) * share->extra_bytes;
    for (;;) {
        int64_t part = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        if (part >= share->parts)
            return;
        share->run(share->context, part, work);
    }
}

void tess__cpu_share(const struct tess_kernel *kernel, int64_t parts,
                     void (*run)(void *context, int64_t part, void *work), void *context,
                     void *work)
{
    const struct cpu_state *state = kernel->state;
    int64_t threads = kernel->threads < parts ? kernel->threads : parts;
    if (threads > 1 && state->parallel != NULL) {
        struct share share = {.run = run,
                              .context = context,
                              .parts = parts,
                              .number = state->thread_number,
                              .work = work,
                              .extra = state->extra,
                              .extra_bytes = state->extra_bytes};
        state->parallel(share_thread, &share, (unsigned)threads, 0);
        return;
    }
    for (int64_t part = 0; part < parts; part++)
        run(context, part, work);
}
