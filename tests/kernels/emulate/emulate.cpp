/*
 * The scheduler of the emulator: fibers, barriers, operations of a warp, asynchronous copies and
 * guarded memory. What it promises is in emulate.h. One launch at a time.
 */
#include "emulate/emulate.h"
#include "emulate/native.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

#ifndef __has_feature
#define __has_feature(name) 0 /* gcc */
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define EMULATE_ASAN 1
#else
#define EMULATE_ASAN 0
#endif

#define PAGE_BYTES       ((size_t)4096)
#define STACK_BYTES      ((size_t)256 << 10)
#define THREADS_MAX      1024
#define SHARED_BYTES_MAX ((size_t)227 << 10) /* a block on compute capability 9.0 */
#define STATIC_BYTES_MAX ((size_t)48 << 10)  /* of it in arrays; nvcc compiles no more */
#define PARAMETER_BYTES  ((size_t)32764)     /* a launch, since CUDA 12.1 */
#define FILLED           0xff

struct fiber_copy {
    void *target;
    const void *source; /* NULL: zeros */
    int group;
};

/* One thread of a block. `thread` is first: the operations of a warp are given that alone. */
struct fiber {
    emulate_thread thread;
    void *stack, *saved; /* saved: the stack pointer while it does not run */
    void *fake_stack;    /* of the address sanitizer */
    uint32_t mask;       /* while it waits for its warp: who meets, and for what */
    emulate_work *work;
    int line;   /* while it waits for its block */
    int groups; /* of copies, committed so far */
    std::vector<fiber_copy> *copies;
};

/* The state of a warp's threads, a bit for each lane; those with none of them have returned. */
struct warp {
    uint32_t ready, at_warp, at_block;
};

emulate_thread *emulate_now;
uint3 emulate_block_index;
dim3 emulate_block_size, emulate_grid_size;

static fiber fibers[THREADS_MAX];
static warp warps[THREADS_MAX / 32];
static fiber scheduler;
static fiber *running = &scheduler;
static int fiber_count, warp_count;
static bool backwards, by_warp; /* the order of threads: see emulate.h */
static int alive, at_barrier, barrier_sum, barrier_result, barrier_line;
static emulate_call *call;
static unsigned char *shared_start, *shared_end;
static const char *site_file;
static int site_line;
static unsigned launches;

[[noreturn]] void emulate_fail(const char *what)
{
    fprintf(stderr, "emulate: kernel launched at %s:%d, block (%u, %u, %u): %s\n", site_file,
            site_line, emulate_block_index.x, emulate_block_index.y, emulate_block_index.z, what);
    if (running != &scheduler)
        fprintf(stderr, "emulate: by thread (%u, %u, %u)\n", emulate_now->index.x,
                emulate_now->index.y, emulate_now->index.z);
    abort();
}

/* ---- fibers --------------------------------------------------------------------------------- */

/* Keep the registers that a function must keep, and the stack pointer in *saved; go on where
 * `next` was saved (System V ABI of x86-64, section 3.2.1). */
extern "C" void emulate_switch(void **saved, void *next);
asm(R"(
    .text
    .globl emulate_switch
    .type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulate_switch, . - emulate_switch
)");

#if EMULATE_ASAN
static const void *host_stack;
static size_t host_stack_bytes;

static void leaving(fiber *from, fiber *to)
{
    const void *stack = to == &scheduler ? host_stack : to->stack;
    size_t bytes = to == &scheduler ? host_stack_bytes : STACK_BYTES;
    __sanitizer_start_switch_fiber(&from->fake_stack, stack, bytes);
}

/* Each launch may be by another thread of the host. */
static void host_enters()
{
    host_stack = NULL;
}

static void arrived(fiber *here)
{
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(here->fake_stack, &stack, &bytes);
    /* The first arrival at a fiber comes from the host's own stack. */
    if (!host_stack && here != &scheduler) {
        host_stack = stack;
        host_stack_bytes = bytes;
    }
}
#else /* To the thread sanitizer fibers are one thread, whose calls begin and end in an odd order. \
       */
static void leaving(fiber *, fiber *)
{
}

static void host_enters()
{
}

static void arrived(fiber *)
{
}
#endif

static void go(fiber *to)
{
    fiber *from = running;
    running = to;
    emulate_now = &to->thread;
    leaving(from, to);
    emulate_switch(&from->saved, to->saved);
    arrived(from);
}

/* Which runs after this thread: in turn, every thread once, or every warp as far as it comes
 * without the others. The scheduler where none can. */
static fiber *next_of(int thread)
{
    int w = thread / 32;
    const uint32_t before = (1u << thread % 32) - 1, to_me = before << 1 | 1;
    uint32_t ready = warps[w].ready & (backwards ? before : ~to_me);
    if (ready == 0 && by_warp)
        ready = warps[w].ready;
    for (int k = 0; ready == 0 && k < warp_count; k++) {
        w = backwards ? (w > 0 ? w : warp_count) - 1 : w + 1 < warp_count ? w + 1 : 0;
        ready = warps[w].ready;
    }
    if (ready == 0)
        return &scheduler;
    return fibers + 32 * w + (backwards ? 31 - __builtin_clz(ready) : __builtin_ctz(ready));
}

/* This thread cannot go on: the next one does. */
static void yield_to_next(const fiber *me)
{
    go(next_of((int)(me - fibers)));
}

static void finished(fiber *me);

static void fiber_main()
{
    arrived(running);
    for (;;) {
        fiber *me = running;
        call->run();
        finished(me);
        yield_to_next(me);
    }
}

/* Stacks are kept for all launches; pages of them that are never touched cost nothing. */
static void fiber_make(fiber *f)
{
    char *memory = (char *)mmap(NULL, PAGE_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE_BYTES, PROT_NONE) != 0)
        emulate_fail("no memory for the stack of a thread");
    f->stack = memory + PAGE_BYTES;
    f->copies = new std::vector<fiber_copy>;
    /* As if emulate_switch had been called by fiber_main's caller: six registers, where to go, and
       a return address that is never used, which also aligns the stack as a call does. */
    void **top = (void **)(memory + PAGE_BYTES + STACK_BYTES) - 2;
    top[0] = (void *)fiber_main;
    top[1] = NULL;
    f->saved = top - 6;
}

/* ---- meetings ------------------------------------------------------------------------------- */

/* Are all there that f waits for? Then do it, and all may go on. */
static bool warp_try(const fiber *f)
{
    const int w = (int)(f - fibers) / 32;
    warp *here = &warps[w];
    const uint32_t wanted = f->mask & (here->ready | here->at_warp | here->at_block);
    if (wanted & ~here->at_warp)
        return false;
    emulate_thread *there[32] = {};
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        fiber *lane = fibers + 32 * w + __builtin_ctz(left);
        if (lane->mask != f->mask || lane->work != f->work)
            return false;
        there[lane->thread.lane] = &lane->thread;
    }
    f->work(there);
    here->at_warp &= ~wanted;
    here->ready |= wanted;
    return true;
}

void emulate_warp(uint32_t mask, emulate_work *work)
{
    fiber *me = running;
    warp *here = &warps[(me - fibers) / 32];
    const uint32_t bit = 1u << me->thread.lane;
    if (!(mask & bit))
        emulate_fail("an operation of the warp by a lane that its mask does not name");
    here->ready &= ~bit;
    here->at_warp |= bit;
    me->mask = mask;
    me->work = work;
    if (!warp_try(me))
        yield_to_next(me);
}

/* True: all are there, and may go on. */
static bool barrier_try()
{
    if (at_barrier == 0 || at_barrier < alive)
        return false;
    for (int w = 0; w < warp_count; w++) {
        warps[w].ready |= warps[w].at_block;
        warps[w].at_block = 0;
    }
    barrier_result = barrier_sum;
    at_barrier = barrier_sum = 0;
    return true;
}

int emulate_sync(int value, int line)
{
    fiber *me = running;
    warp *here = &warps[(me - fibers) / 32];
    const uint32_t bit = 1u << me->thread.lane;
    if (at_barrier > 0 && line != barrier_line) {
        fprintf(stderr, "emulate: __syncthreads() of lines %d and %d meet\n", barrier_line, line);
        emulate_fail("threads of a block at different barriers");
    }
    here->ready &= ~bit;
    here->at_block |= bit;
    me->line = barrier_line = line;
    at_barrier++;
    barrier_sum += value;
    if (!barrier_try())
        yield_to_next(me);
    return barrier_result; /* no other barrier ends before this thread comes to it */
}

/* A thread has returned: no other waits for it any more. */
static void finished(fiber *me)
{
    const int w = (int)(me - fibers) / 32;
    warps[w].ready &= ~(1u << me->thread.lane);
    alive--;
    for (uint32_t left = warps[w].at_warp; left != 0; left &= left - 1)
        if (warps[w].at_warp & left & -left)
            warp_try(fibers + 32 * w + __builtin_ctz(left));
    barrier_try();
}

static void ballot_work(emulate_thread *const thread[32])
{
    uint32_t votes = 0;
    for (int l = 0; l < 32; l++)
        if (thread[l])
            votes |= (uint32_t)(thread[l]->in[0] != 0) << l;
    for (int l = 0; l < 32; l++)
        if (thread[l])
            memcpy(thread[l]->out, &votes, sizeof(votes));
}

uint32_t emulate_ballot(uint32_t mask, int value)
{
    emulate_thread *me = emulate_now;
    me->in[0] = value != 0;
    emulate_warp(mask, ballot_work);
    uint32_t votes;
    memcpy(&votes, me->out, sizeof(votes));
    return votes;
}

static void shuffle_work(emulate_thread *const thread[32])
{
    for (int l = 0; l < 32; l++) {
        if (!thread[l])
            continue;
        int from = thread[l]->in[8];
        if (from < 32 && thread[from])
            memcpy(thread[l]->out, thread[from]->in, 8);
        else
            memset(thread[l]->out, FILLED, 8);
    }
}

void emulate_shuffle(uint32_t mask, const void *value, void *result, size_t bytes, int from)
{
    emulate_thread *me = emulate_now;
    memcpy(me->in, value, bytes);
    me->in[8] = (unsigned char)from;
    emulate_warp(mask, shuffle_work);
    memcpy(result, me->out, bytes);
}

/* ---- launches ------------------------------------------------------------------------------- */

/* What a thread waits for; false: for nothing, it has returned. */
static bool describe(const fiber *f)
{
    const warp *here = &warps[(f - fibers) / 32];
    const uint32_t bit = 1u << f->thread.lane;
    if (!((here->at_block | here->at_warp) & bit))
        return false;
    fprintf(stderr, "emulate: thread (%u, %u, %u) ", f->thread.index.x, f->thread.index.y,
            f->thread.index.z);
    if (here->at_block & bit)
        fprintf(stderr, "waits at __syncthreads() of line %d\n", f->line);
    else
        fprintf(stderr, "waits for lanes %08x of its warp\n", f->mask);
    return true;
}

/* Until all threads have returned. `way` chooses in which order: see emulate.h. */
static void run_block(unsigned way)
{
    alive = fiber_count;
    at_barrier = barrier_sum = 0;
    backwards = way & 1;
    by_warp = way & 2;
    for (int w = 0; w < warp_count; w++) {
        const int lanes = fiber_count - 32 * w;
        warps[w] = {lanes < 32 ? (1u << lanes) - 1 : ~0u, 0, 0};
    }
    for (int t = 0; t < fiber_count; t++) {
        fibers[t].groups = 0;
        fibers[t].copies->clear();
    }
    go(fibers + (backwards ? fiber_count - 1 : 0));
    if (alive == 0)
        return;
    for (int t = 0, printed = 0; t < fiber_count && printed < 64; t++)
        printed += describe(fibers + t);
    emulate_fail("threads wait for each other for ever");
}

/* Room for `bytes`, ended by a page that cannot be touched; `end` of it 128-byte aligned. */
static void shared_open(size_t bytes)
{
    static unsigned char *memory;
    const size_t room = (SHARED_BYTES_MAX + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (!memory) {
        memory = (unsigned char *)mmap(NULL, room + PAGE_BYTES, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory + room, PAGE_BYTES, PROT_NONE) != 0)
            emulate_fail("no memory for shared memory");
    }
    shared_end = memory + room;
    shared_start = shared_end - (bytes + 127) / 128 * 128;
}

static void check_launch(const emulate_kernel &launch)
{
    const dim3 grid = launch.grid, block = launch.block;
    const size_t threads = (size_t)block.x * block.y * block.z;
    const size_t static_bytes = emulate_static_bytes(launch.kernel);
    if (running != &scheduler)
        emulate_fail("a launch inside a kernel");
    if (threads == 0 || threads > THREADS_MAX || block.z > 64)
        emulate_fail("a block has 1 to 1024 threads");
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        emulate_fail("a grid has at most 2^31 - 1, 65535 and 65535 blocks");
    if (static_bytes > STATIC_BYTES_MAX)
        emulate_fail("a kernel has at most 48 KiB of static shared memory");
    if (launch.shared_bytes + static_bytes > SHARED_BYTES_MAX)
        emulate_fail("a block has at most 227 KiB of shared memory, static and dynamic");
    if (launch.parameter_bytes > PARAMETER_BYTES)
        emulate_fail("a launch has at most 32764 bytes of parameters");
}

void emulate_run(const emulate_kernel &launch)
{
    const dim3 grid = launch.grid, block = launch.block;
    site_file = launch.file;
    site_line = launch.line;
    check_launch(launch);
    host_enters();
    call = launch.call;
    emulate_block_size = block;
    emulate_grid_size = grid;
    fiber_count = (int)(block.x * block.y * block.z);
    warp_count = (fiber_count + 31) / 32;
    for (int t = 0; t < fiber_count; t++) {
        if (!fibers[t].stack)
            fiber_make(fibers + t);
        unsigned u = (unsigned)t;
        fibers[t].thread.index = {u % block.x, u / block.x % block.y, u / block.x / block.y};
        fibers[t].thread.lane = t % 32;
    }
    shared_open(launch.shared_bytes);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t k = 0; k < blocks; k++) {
        uint64_t b = launches % 2 ? blocks - 1 - k : k;
        emulate_block_index = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                               (unsigned)(b / grid.x / grid.y)};
        memset(shared_start, FILLED, (size_t)(shared_end - shared_start));
        run_block((unsigned)k + launches);
        for (unsigned char *slack = shared_start + launch.shared_bytes; slack < shared_end; slack++)
            if (*slack != FILLED)
                emulate_fail("a write beyond the dynamic shared memory");
    }
    launches++;
}

void *emulate_shared()
{
    return shared_start;
}

/* ---- asynchronous copies -------------------------------------------------------------------- */

void cuda_copy_async16(void *shared, const void *global, bool valid)
{
    if ((uintptr_t)shared % 16 != 0 || (valid && (uintptr_t)global % 16 != 0))
        emulate_fail("an asynchronous copy that is not 16-byte aligned");
    memset(shared, FILLED, 16);
    running->copies->push_back({shared, valid ? global : NULL, running->groups});
}

void cuda_copy_commit()
{
    running->groups++;
}

void emulate_copy_wait(int groups)
{
    std::vector<fiber_copy> &copies = *running->copies;
    size_t kept = 0;
    for (const fiber_copy &copy : copies) {
        if (copy.group >= running->groups - groups)
            copies[kept++] = copy; /* not committed, or among the latest */
        else if (copy.source)
            memcpy(copy.target, copy.source, 16);
        else
            memset(copy.target, 0, 16);
    }
    copies.resize(kept);
}
