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

enum fiber_state { FIBER_READY, FIBER_WARP, FIBER_BLOCK, FIBER_DONE };

struct fiber_copy {
    void *target;
    const void *source; /* NULL: zeros */
    int group;
};

/* One thread of a block. `thread` is first: the operations of a warp are given that alone. */
struct fiber {
    emulate_thread thread;
    enum fiber_state state;
    void *stack, *saved; /* saved: the stack pointer while it does not run */
    void *fake_stack;    /* of the address sanitizer */
    uint32_t mask;       /* FIBER_WARP: who meets, and for what */
    emulate_work *work;
    int value, line; /* FIBER_BLOCK */
    int groups;      /* of copies, committed so far */
    std::vector<fiber_copy> *copies;
};

emulate_thread *emulate_now;
uint3 emulate_block_index;
dim3 emulate_block_size, emulate_grid_size;

static fiber fibers[THREADS_MAX];
static fiber scheduler;
static fiber *running = &scheduler;
static int fiber_count;
static int alive, at_barrier, barrier_sum, barrier_line;
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

static void finished(fiber *me);

static void fiber_main()
{
    arrived(running);
    for (;;) {
        fiber *me = running;
        call->run();
        finished(me);
        go(&scheduler);
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

static fiber *warp_of(const fiber *f)
{
    return fibers + (f - fibers) / 32 * 32;
}

/* Does f wait for lane l, which is not there yet? */
static bool lane_missing(const fiber *warp, int l, const fiber *f)
{
    return f->mask >> l & 1 && warp[l].state != FIBER_DONE &&
           (warp[l].state != FIBER_WARP || warp[l].mask != f->mask || warp[l].work != f->work);
}

/* Are all there that f waits for? Then do it, and all may go on. */
static bool warp_try(fiber *f)
{
    fiber *warp = warp_of(f);
    int me = f->thread.lane;
    int lanes = fiber_count - (int)(warp - fibers) < 32 ? fiber_count - (int)(warp - fibers) : 32;
    /* Lanes run in order or in reverse: most often a neighbour is missing. */
    if ((me + 1 < lanes && lane_missing(warp, me + 1, f)) ||
        (me > 0 && lane_missing(warp, me - 1, f)))
        return false;
    emulate_thread *there[32] = {};
    for (int l = 0; l < lanes; l++) {
        if (lane_missing(warp, l, f))
            return false;
        if (f->mask >> l & 1 && warp[l].state != FIBER_DONE)
            there[l] = &warp[l].thread;
    }
    f->work(there);
    for (int l = 0; l < lanes; l++)
        if (there[l])
            warp[l].state = FIBER_READY;
    return true;
}

void emulate_warp(uint32_t mask, emulate_work *work)
{
    fiber *me = running;
    if (!(mask >> me->thread.lane & 1))
        emulate_fail("an operation of the warp by a lane that its mask does not name");
    me->state = FIBER_WARP;
    me->mask = mask;
    me->work = work;
    if (!warp_try(me))
        go(&scheduler);
}

static void barrier_try()
{
    if (at_barrier == 0 || at_barrier < alive)
        return;
    for (int t = 0; t < fiber_count; t++) {
        if (fibers[t].state == FIBER_BLOCK) {
            fibers[t].state = FIBER_READY;
            fibers[t].value = barrier_sum;
        }
    }
    at_barrier = barrier_sum = 0;
}

int emulate_sync(int value, int line)
{
    fiber *me = running;
    if (at_barrier > 0 && line != barrier_line) {
        fprintf(stderr, "emulate: __syncthreads() of lines %d and %d meet\n", barrier_line, line);
        emulate_fail("threads of a block at different barriers");
    }
    me->state = FIBER_BLOCK;
    me->line = barrier_line = line;
    at_barrier++;
    barrier_sum += value;
    barrier_try();
    if (me->state == FIBER_BLOCK)
        go(&scheduler);
    return me->value;
}

/* A thread has returned: no other waits for it any more. */
static void finished(fiber *me)
{
    me->state = FIBER_DONE;
    alive--;
    fiber *warp = warp_of(me);
    for (int l = 0; l < 32 && warp + l < fibers + fiber_count; l++)
        if (warp[l].state == FIBER_WARP)
            warp_try(warp + l);
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

static void describe(const fiber *f)
{
    fprintf(stderr, "emulate: thread (%u, %u, %u) ", f->thread.index.x, f->thread.index.y,
            f->thread.index.z);
    if (f->state == FIBER_BLOCK)
        fprintf(stderr, "waits at __syncthreads() of line %d\n", f->line);
    else
        fprintf(stderr, "waits for lanes %08x of its warp\n", f->mask);
}

/* Run one thread if it can run. */
static bool step(fiber *f)
{
    if (f->state != FIBER_READY)
        return false;
    go(f);
    return true;
}

/* Every thread once, forwards or backwards. */
static bool turn_of_threads(bool back)
{
    bool any = false;
    for (int k = 0; k < fiber_count; k++)
        any |= step(fibers + (back ? fiber_count - 1 - k : k));
    return any;
}

/* Every warp as far as it comes without the others. */
static bool turn_of_warps(bool back)
{
    bool any = false;
    int warps = (fiber_count + 31) / 32;
    for (int k = 0; k < warps; k++) {
        int first = 32 * (back ? warps - 1 - k : k);
        int lanes = fiber_count - first < 32 ? fiber_count - first : 32;
        for (bool more = true; more;) {
            more = false;
            for (int l = 0; l < lanes; l++)
                more |= step(fibers + first + (back ? lanes - 1 - l : l));
            any |= more;
        }
    }
    return any;
}

/* Until all threads have returned. `way` chooses in which order: see emulate.h. */
static void run_block(unsigned way)
{
    alive = fiber_count;
    at_barrier = barrier_sum = 0;
    for (int t = 0; t < fiber_count; t++) {
        fibers[t].state = FIBER_READY;
        fibers[t].groups = 0;
        fibers[t].copies->clear();
    }
    while (alive > 0) {
        bool back = way & 1;
        if (way & 2 ? turn_of_warps(back) : turn_of_threads(back))
            continue;
        for (int t = 0, printed = 0; t < fiber_count && printed < 64; t++)
            if (fibers[t].state != FIBER_DONE && ++printed)
                describe(fibers + t);
        emulate_fail("threads wait for each other for ever");
    }
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
