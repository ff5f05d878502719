/* Processes as contexts and virtual time; see crowd.h. What they call is in crowd_socket.c. */
#include "job/crowd_room.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define STACK_BYTES ((size_t)128 << 10)
#define STACK_FIRST ((size_t)1 << 20)   /* of participant 0 */
#define ROOM_BYTES  ((size_t)256 << 30) /* addresses of what they allocate */

struct crowd crowd = {.current = -1};

void *crowd_grown(void *memory, int count, int *room, size_t each)
{
    if (count < *room)
        return memory;
    *room = 2 * *room + 8;
    memory = realloc(memory, (size_t)*room * each);
    if (memory == NULL)
        abort();
    return memory;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->number < b->number);
}

void crowd_post(struct event event)
{
    event.number = crowd.number++;
    if (crowd.events == crowd.room) {
        crowd.room = 2 * crowd.room + 1024;
        crowd.heap = realloc(crowd.heap, crowd.room * sizeof(*crowd.heap));
        if (crowd.heap == NULL)
            abort();
    }
    size_t at = crowd.events++;
    for (; at > 0 && is_before(&event, &crowd.heap[(at - 1) / 2]); at = (at - 1) / 2)
        crowd.heap[at] = crowd.heap[(at - 1) / 2];
    crowd.heap[at] = event;
}

static struct event take(void)
{
    const struct event first = crowd.heap[0], last = crowd.heap[--crowd.events];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < crowd.events; at = child) {
        if (child + 1 < crowd.events && is_before(&crowd.heap[child + 1], &crowd.heap[child]))
            child++;
        if (!is_before(&crowd.heap[child], &last))
            break;
        crowd.heap[at] = crowd.heap[child];
    }
    crowd.heap[at] = last;
    return first;
}

static void post_wake(int32_t who, double at_s)
{
    crowd_post((struct event){
        .at_s = at_s, .what = HAPPENS_WAKE, .who = who, .life = ++crowd.member[who].turn});
}

/* Something has come for a member that may wait for it. */
void crowd_stir(int32_t who, double at_s)
{
    if (crowd.member[who].waits) {
        crowd.member[who].waits = false;
        post_wake(who, at_s);
    }
}

/* ---- members --------------------------------------------------------------------------------- */

static double processor_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* From the code that runs into this file; NULL: it is no participant's. */
struct member *crowd_enter(void)
{
    if (crowd.current < 0 || crowd.inside)
        return NULL;
    struct member *member = &crowd.member[crowd.current];
    const double took_s = processor_s() - crowd.processor_s;
    crowd.inside = true;
    member->processor_s += took_s;
    member->now_s += CROWD_CALL_S + (crowd.setup.processor ? took_s : 0);
    return member;
}

void crowd_leave(const struct member *member)
{
    crowd.clock_s = member->now_s;
    crowd.inside = false;
    crowd.processor_s = processor_s();
}

/* Run others until at_s, where `waits` until something comes for this one. */
void crowd_pause(struct member *member, double at_s, bool waits)
{
    member->waits = waits;
    if (isfinite(at_s))
        post_wake(crowd.current, at_s);
    swapcontext(&member->context, &crowd.main);
    member->waits = false;
}

/* Before it looks whether something has come: all that has. */
void crowd_catch_up(struct member *member)
{
    if (crowd.events > 0 && crowd.heap[0].at_s <= member->now_s)
        crowd_pause(member, member->now_s, false);
}

static void resume(int32_t who, double at_s)
{
    struct member *member = &crowd.member[who];
    if (at_s > member->now_s)
        member->now_s = at_s;
    crowd.current = who;
    swapcontext(&crowd.main, &member->context);
    crowd.current = -1;
}

static void run_member(void)
{
    struct member *member = &crowd.member[crowd.current];
    crowd_leave(member);
    crowd.body(crowd.context, crowd.current);
    crowd_mark();
    (void)crowd_enter();
    member->over = true;
    swapcontext(&member->context, &crowd.main);
}

void crowd_mark(void)
{
    struct member *member = crowd_enter();
    assert_non_null(member);
    assert_true(member->stage < CROWD_STAGES);
    member->counts.at_s = member->now_s - CROWD_START_S;
    member->counts.processor_s = member->processor_s;
    member->counts.memory_end = member->live;
    crowd.stage_out[member->stage++ * crowd.setup.count + crowd.current] = member->counts;
    member->counts =
        (struct crowd_stage){.memory = member->live, .connections = member->connections};
    member->processor_s = 0;
    crowd_leave(member);
}

in_addr_t crowd_address_of(int32_t p)
{
    return htonl(0x0a000001u + (uint32_t)(p / crowd.setup.each));
}

void crowd_address(int32_t p, char text[16])
{
    const in_addr_t address = crowd_address_of(p);
    inet_ntop(AF_INET, &address, text, 16);
}

size_t crowd_stack(void)
{
    return crowd.stack_most;
}

static void happen(const struct event *event)
{
    if (event->what != HAPPENS_WAKE)
        crowd_happen(event);
    else if (crowd.member[event->who].turn == event->life)
        resume(event->who, event->at_s);
}

/* ---- all ------------------------------------------------------------------------------------- */

static size_t stack_bytes(int32_t p)
{
    return p == 0 ? STACK_FIRST : STACK_BYTES;
}

static void open_members(char *stack)
{
    const int32_t count = crowd.setup.count;
    for (int32_t p = 0; p < count; p++) {
        struct member *member = &crowd.member[p];
        *member = (struct member){.stack = stack, .now_s = CROWD_START_S};
        stack += stack_bytes(p);
        getcontext(&member->context);
        member->context.uc_stack.ss_sp = member->stack;
        member->context.uc_stack.ss_size = stack_bytes(p);
        makecontext(&member->context, run_member, 0);
        post_wake(p, CROWD_START_S);
    }
}

/* Their memory was zero; the last eighth of each must not have been reached. */
static void check_stacks(void)
{
    crowd.stack_most = 0;
    for (int32_t p = 0; p < crowd.setup.count; p++) {
        const struct member *member = &crowd.member[p];
        size_t at = stack_bytes(p) / 8;
        while (at < stack_bytes(p) && member->stack[at] == 0)
            at++;
        assert_true(at > stack_bytes(p) / 8);
        if (p > 0 && stack_bytes(p) - at > crowd.stack_most)
            crowd.stack_most = stack_bytes(p) - at;
    }
}

void crowd_run(const struct crowd_setup *setup, void (*body)(void *context, int32_t p),
               void *context, struct crowd_stage *stage_out)
{
    const size_t count = (size_t)setup->count, hosts = count / (size_t)setup->each + 1;
    const size_t bytes = STACK_FIRST + (count - 1) * STACK_BYTES;
    char *stack = crowd_reserve(bytes);
    int32_t over = 0;
    crowd.setup = *setup;
    crowd.body = body;
    crowd.context = context;
    crowd.stage_out = stage_out;
    crowd.member = calloc(count, sizeof(*crowd.member));
    crowd.listeners = malloc(hosts * sizeof(int));
    crowd.port = malloc(hosts * sizeof(*crowd.port));
    if (!crowd_memory_open(ROOM_BYTES) || !stack || !crowd.member || !crowd.listeners ||
        !crowd.port)
        fail_msg("no memory for %d participants", (int)setup->count);
    for (size_t h = 0; h < hosts; h++) {
        crowd.listeners[h] = -1;
        crowd.port[h] = 30000;
    }
    crowd.inside = true;
    crowd.clock_s = CROWD_START_S;
    tess_clock_own(&crowd.clock_s);
    open_members(stack);
    while (crowd.events > 0) {
        const struct event event = take();
        happen(&event);
    }
    for (int32_t p = 0; p < setup->count; p++)
        over += crowd.member[p].over;
    crowd.inside = false;
    assert_int_equal(over, setup->count);
    check_stacks();
    crowd_close_all();
    free(crowd.member);
    free(crowd.listeners);
    free(crowd.port);
    munmap(stack, bytes);
    tess_clock_own(NULL);
}
