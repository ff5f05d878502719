/*
 * An operation's work on several threads. All of them are the backend's own: oneDNN's primitives
 * are run by one thread each, because it splits sums between threads, and chooses how by their
 * number.
 */
#include "cpu/prim.h"

#include "base/pages.h"
#include "tessera/check.h"

#include <dlfcn.h>
#include <string.h>

/* One call of tess__cpu_share(). */
struct share {
    void (*run)(void *context, int64_t part, void *work);
    void *context;
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
    if (state->threads_get == NULL)
        state->threads_set = NULL;
}

/* The OpenMP runtime allocates when a thread first sets its number of threads. */
static void share_begin(void *state)
{
    tess__cpu_threads(state, 1);
}

enum tess_status tess__cpu_share_start(const struct tess_kernel *kernel)
{
    struct cpu_state *state = kernel->state;
    return kernel->threads == 1 || state->team != NULL
               ? TESS_OK
               : tess_team_open(kernel->threads, share_begin, state, &state->team);
}

void tess__cpu_share_close(struct cpu_state *state)
{
    tess_team_close(state->team);
    state->team = NULL;
}

void tess__cpu_share_use(const struct tess_op *op)
{
    struct cpu_state *state = tess__cpu_state(op);
    state->extra = op->thread_scratch;
    state->extra_bytes = op->thread_bytes;
}

bool tess__cpu_share_helps(const struct tess_kernel *kernel)
{
    const struct cpu_state *state = kernel->state;
    return state->team != NULL && state->extra != NULL;
}

static void share_part(void *context, int64_t part)
{
    const struct share *share = context;
    const int hand = tess_team_hand();
    char *work = share->work;
    if (work != NULL && hand > 0)
        work = share->extra + (size_t)(hand - 1) * share->extra_bytes;
    share->run(share->context, part, work);
}

void tess__cpu_share(const struct tess_kernel *kernel, int64_t parts,
                     void (*run)(void *context, int64_t part, void *work), void *context,
                     void *work)
{
    const struct cpu_state *state = kernel->state;
    const int64_t hands = kernel->threads < parts ? kernel->threads : parts;
    if (hands > 1 && state->team != NULL && (work == NULL || state->extra != NULL)) {
        struct share share = {.run = run,
                              .context = context,
                              .work = work,
                              .extra = state->extra,
                              .extra_bytes = state->extra_bytes};
        tess_team_run(state->team, (int)hands, parts, share_part, &share);
        return;
    }
    for (int64_t part = 0; part < parts; part++)
        run(context, part, work);
}

/* Whole huge pages: of two threads that touch one first, both clear it. */
#define SHARE_PAGES ((size_t)32 << 20)

struct share_pages {
    char *memory;
    size_t bytes;
};

static void share_make_pages(void *context, int64_t part, void *work)
{
    (void)work;
    const struct share_pages *pages = context;
    const size_t first = (size_t)part * SHARE_PAGES, left = pages->bytes - first;
    tess_pages_make(pages->memory + first, left < SHARE_PAGES ? left : SHARE_PAGES);
}

enum tess_status tess__cpu_adopt(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    struct share_pages pages = {.memory = memory, .bytes = bytes};
    TESS_TRY(tess__cpu_share_start(kernel));
    tess__cpu_share(kernel, (int64_t)((bytes + SHARE_PAGES - 1) / SHARE_PAGES), share_make_pages,
                    &pages, NULL);
    return TESS_OK;
}
