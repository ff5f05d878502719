/*
 * A team of threads. One word says whether work is open and how many threads are inside it:
 *
 *     turn (16 bits) | waited for | open | threads inside (14 bits)
 *
 * The caller fills the work in, opens a turn and takes parts like the others. A thread that sees an
 * open turn goes inside by compare-and-swap, takes parts until there are none, and leaves. The
 * caller closes the turn, after which no thread goes in, and waits until all inside have left:
 * those that were never in, because they sleep or have no processor, are not waited for.
 *
 * Waiting is by spinning, since the next turn usually comes within microseconds, then by yielding
 * the processor, then asleep on a futex.
 */
#include "base/team.h"

#include "base/cgroup.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEAM_INSIDE 0x3fffu
#define TEAM_OPEN   0x4000u
#define TEAM_WAITED 0x8000u
#define TEAM_TURN   0x10000u

#define TEAM_MOST 1024 /* threads: the greatest value of --threads */

/* How long a thread looks for work before it sleeps: some times what lies between two operations
 * of a step. Then waking it takes about as long as that. */
#define TEAM_SPIN_NS  20000
#define TEAM_YIELD_NS 150000

/* Parts that follow each other are one thread's as long as it is in time, since what it reads ahead
 * is then its own: every thread begins with a range of them and goes on with those of the others.
 * More threads than ranges share them. */
#define TEAM_RANGES 16

struct team_range {
    _Alignas(64) atomic_int_fast64_t next;
    int64_t end;
};

struct team_thread {
    struct tess_team *team;
    int hand;
    pthread_t thread;
};

struct tess_team {
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint32_t bell; /* futex of those asleep: changes with every turn */
    _Atomic uint32_t asleep;
    atomic_bool end;
    atomic_int begun; /* threads that wait for work */
    void (*begin)(void *context);
    void *begin_context;
    /* Of the open turn. */
    struct team_range range[TEAM_RANGES];
    _Alignas(64) tess_team_part *run;
    void *context;
    int ranges;
    uint32_t most; /* threads inside, without the caller */
    bool crowded;  /* fewer cores than threads: spinning would only keep the others waiting */
    int count;     /* threads started */
    struct team_thread thread[];
};

static _Thread_local int team_hand;

int tess_team_hand(void)
{
    return team_hand;
}

static void team_sleep(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void team_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void team_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t team_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* One look after the other at a word: false, when it is time to sleep. */
struct team_patience {
    int64_t begin_ns, looks;
};

static bool team_waits(const struct tess_team *team, struct team_patience *patience)
{
    if (patience->looks++ == 0)
        patience->begin_ns = team_now_ns();
    if (patience->looks % 16 != 0) {
        team_pause();
        return true;
    }
    const int64_t waited_ns = team_now_ns() - patience->begin_ns;
    if (team->crowded || waited_ns > TEAM_SPIN_NS)
        sched_yield();
    return waited_ns < (team->crowded ? TEAM_SPIN_NS : TEAM_YIELD_NS);
}

static void team_take_parts(struct tess_team *team)
{
    for (int r = 0; r < team->ranges; r++) {
        struct team_range *range = &team->range[(team_hand + r) % team->ranges];
        for (;;) {
            const int64_t part = atomic_fetch_add_explicit(&range->next, 1, memory_order_relaxed);
            if (part >= range->end)
                break;
            team->run(team->context, part);
        }
    }
}

/* Take part in the open turn, if there is one with room. */
static bool team_join(struct tess_team *team, uint32_t state)
{
    if ((state & TEAM_OPEN) == 0 ||
        !atomic_compare_exchange_strong_explicit(&team->state, &state, state + 1,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return false;
    if ((state & TEAM_INSIDE) < team->most)
        team_take_parts(team);
    state = atomic_fetch_sub_explicit(&team->state, 1, memory_order_acq_rel) - 1;
    if ((state & TEAM_INSIDE) == 0 && (state & TEAM_WAITED) != 0)
        team_wake(&team->state, 1);
    return true;
}

/* Wait for a turn other than `seen`; false: the team ends. */
static bool team_await(struct tess_team *team, uint32_t seen)
{
    struct team_patience patience = {0};
    for (;;) {
        const uint32_t bell = atomic_load(&team->bell);
        if (atomic_load_explicit(&team->end, memory_order_acquire))
            return false;
        if (bell != seen)
            return true;
        if (team_waits(team, &patience))
            continue;
        atomic_fetch_add(&team->asleep, 1);
        team_sleep(&team->bell, bell);
        atomic_fetch_sub(&team->asleep, 1);
        patience.looks = 0;
    }
}

static void *team_thread(void *argument)
{
    const struct team_thread *own = argument;
    struct tess_team *team = own->team;
    team_hand = own->hand;
    if (team->begin != NULL)
        team->begin(team->begin_context);
    atomic_fetch_add(&team->begun, 1);
    for (uint32_t seen = 0; team_await(team, seen);) {
        seen = atomic_load(&team->bell);
        /* The word may change for others who come and go: look again as long as it is open. */
        for (;;) {
            const uint32_t state = atomic_load_explicit(&team->state, memory_order_acquire);
            if ((state & TEAM_OPEN) == 0 || team_join(team, state))
                break;
        }
    }
    return NULL;
}

static bool team_is_crowded(int threads)
{
    return tess_cores() < threads;
}

enum tess_status tess_team_open(int threads, void (*begin)(void *context), void *context,
                                struct tess_team **team_out)
{
    threads = threads < 1 ? 1 : threads > TEAM_MOST ? TEAM_MOST : threads;
    size_t bytes = sizeof(struct tess_team) + (size_t)threads * sizeof(struct team_thread);
    bytes = (bytes + 63) / 64 * 64;
    struct tess_team *team = aligned_alloc(64, bytes);
    if (team == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d threads", threads);
    memset(team, 0, bytes);
    team->crowded = team_is_crowded(threads);
    team->begin = begin;
    team->begin_context = context;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (error == 0 && team->count + 1 < threads) {
        struct team_thread *own = &team->thread[team->count];
        *own = (struct team_thread){.team = team, .hand = team->count + 1};
        error = pthread_create(&own->thread, NULL, team_thread, own);
        if (error == 0)
            (void)pthread_setname_np(own->thread, "tessera-kernel");
        team->count += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* What a thread allocates when it begins is not left to a step. */
    while (begin != NULL && atomic_load(&team->begun) < team->count)
        sched_yield();
    if (error != 0)
        tess_log(TESS_LOG_WARN, "started %d of %d threads for kernels: the system allows no more",
                 team->count + 1, threads);
    *team_out = team;
    return TESS_OK;
}

void tess_team_close(struct tess_team *team)
{
    if (team == NULL)
        return;
    atomic_store_explicit(&team->end, true, memory_order_release);
    atomic_fetch_add(&team->bell, 1);
    team_wake(&team->bell, TEAM_MOST);
    for (int i = 0; i < team->count; i++)
        pthread_join(team->thread[i].thread, NULL);
    free(team);
}

/* No thread comes in any more; those inside leave. */
static void team_close_turn(struct tess_team *team)
{
    struct team_patience patience = {0};
    uint32_t state =
        atomic_fetch_and_explicit(&team->state, ~TEAM_OPEN, memory_order_acq_rel) & ~TEAM_OPEN;
    while ((state & TEAM_INSIDE) != 0) {
        if (!team_waits(team, &patience)) {
            state = atomic_fetch_or(&team->state, TEAM_WAITED) | TEAM_WAITED;
            if ((state & TEAM_INSIDE) != 0)
                team_sleep(&team->state, state);
        }
        state = atomic_load_explicit(&team->state, memory_order_acquire);
    }
}

void tess_team_run(struct tess_team *team, int hands, int64_t parts, tess_team_part *run,
                   void *context)
{
    team->run = run;
    team->context = context;
    team->ranges = hands < TEAM_RANGES ? hands : TEAM_RANGES;
    for (int64_t r = 0; r < team->ranges; r++) {
        struct team_range *range = &team->range[r];
        atomic_store_explicit(&range->next, parts * r / team->ranges, memory_order_relaxed);
        range->end = parts * (r + 1) / team->ranges;
    }
    team->most = (uint32_t)(hands > team->count ? team->count : hands - 1);
    const uint32_t turn = atomic_load_explicit(&team->state, memory_order_relaxed) & ~0xffffu;
    atomic_store_explicit(&team->state, (turn + TEAM_TURN) | TEAM_OPEN, memory_order_release);
    atomic_fetch_add(&team->bell, 1);
    if (team->most > 0 && atomic_load(&team->asleep) > 0)
        team_wake(&team->bell, team->most);
    team_take_parts(team);
    team_close_turn(team);
}
