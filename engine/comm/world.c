/*
 * The world of one host: its memory, the abort word and the status board. Knows how the memory of
 * the `local` communicator is laid out, not how it is used.
 */
#include "comm/world.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/pages.h"
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORLD_HUGE ((size_t)2 << 20)

/* How long to wait for a reason that is being written. On an overloaded machine a thread may be
 * without a core for many of the scheduler's slices, which are milliseconds. */
#define WORLD_REASON_S 2.0

static size_t world_round(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Address space of one rank's window: all of the host's memory, within what 47 bits can hold. */
static size_t world_window_bytes(int32_t rank_count)
{
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t most = ((size_t)32 << 40) / (size_t)rank_count;
    return world_round(memory < most ? memory : most, WORLD_HUGE);
}

/* Pipes of a rank: several groups in which it sends to all others, within what 47 bits can hold. */
static int32_t world_pipes(int32_t rank_count)
{
    const size_t wanted = 64 + 16 * (size_t)rank_count;
    const size_t most = ((size_t)16 << 40) / (size_t)rank_count / sizeof(struct local_pipe);
    return (int32_t)(wanted < most ? wanted : most);
}

/* Up to 64 ranks the most; with more, of which each reads all, what takes 16 MiB over all. */
static size_t world_stage_bytes(size_t n)
{
    const size_t room = world_round(((size_t)16 << 20) / n, 4096);
    return room > LOCAL_STAGE_BYTES   ? LOCAL_STAGE_BYTES
           : room < LOCAL_STAGE_LEAST ? LOCAL_STAGE_LEAST
                                      : room;
}

static void world_lay_out(struct tess_world *layout)
{
    const size_t n = (size_t)layout->rank_count, seats = n * LOCAL_SEATS;
    const size_t least_chunk = 16 * n; /* an element of each rank's share, at least */
    layout->stage_offset =
        world_round(sizeof(struct local_member) + n * sizeof(_Atomic uint32_t), LOCAL_LINE);
    layout->stage_bytes = world_stage_bytes(n);
    layout->member_bytes = world_round(layout->stage_offset + layout->stage_bytes, 4096);
    layout->chunk_bytes =
        world_round(least_chunk > LOCAL_CHUNK_BYTES ? least_chunk : LOCAL_CHUNK_BYTES, 4096);
    layout->member_offset = world_round(sizeof(*layout) + n * sizeof(struct world_rank), 4096);
    layout->chunk_offset = layout->member_offset + seats * layout->member_bytes;
    layout->pipe_offset = layout->chunk_offset + seats * 2 * layout->chunk_bytes;
    layout->window_offset = world_round(layout->pipe_offset + n * (size_t)layout->pipe_count *
                                                                  sizeof(struct local_pipe),
                                        WORLD_HUGE);
    layout->map_bytes = layout->window_offset + n * layout->window_bytes;
}

/* A sparse shared mapping, aligned so that huge pages fit the windows. */
static enum tess_status world_map_shared(size_t bytes, char **memory_out)
{
    const int fd = tess_pages_file();
    if (fd < 0)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot create shared memory (memfd_create): %s",
                  strerror(errno));
    char *memory = MAP_FAILED;
    errno = tess_file_resize(fd, bytes);
    if (errno == 0)
        memory = mmap(NULL, bytes + WORLD_HUGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
        char *end = memory + bytes + WORLD_HUGE;
        char *aligned = (char *)world_round((size_t)memory, WORLD_HUGE);
        if (aligned > memory)
            munmap(memory, (size_t)(aligned - memory));
        if (end > aligned + bytes)
            munmap(aligned + bytes, (size_t)(end - aligned - bytes));
        memory = mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (memory == MAP_FAILED)
            munmap(aligned, bytes);
    }
    int error = errno;
    close(fd);
    if (memory == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "cannot map %zu GiB of address space for the ranks' shared memory: %s; "
                  "raise the limits on address space and file size (ulimit -v, -f)",
                  bytes >> 30, strerror(error));
    *memory_out = memory;
    return TESS_OK;
}

enum tess_status tess_world_open(int32_t rank_count, enum tess_rank_mode mode,
                                 struct tess_world **world_out)
{
    if (rank_count < 1 || rank_count > TESS_RANKS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "cannot run %d ranks on one host: use 1 to %d", (int)rank_count,
                  TESS_RANKS_MAX);
    struct tess_world layout = {.mode = mode,
                                .rank_count = rank_count,
                                .core_count = tess_cores(),
                                .pipe_count = world_pipes(rank_count)};
    bool processes = mode == TESS_RANKS_PROCESSES;
    layout.window_bytes = processes ? world_window_bytes(rank_count) : 0;
    world_lay_out(&layout);

    char *memory = NULL;
    if (processes) {
        TESS_TRY(world_map_shared(layout.map_bytes, &memory));
    } else {
        /* Shared, because the launcher reads boards and aborts from outside the ranks' process. */
        memory = mmap(NULL, layout.map_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            TESS_FAIL(TESS_ERR_MEMORY,
                      "cannot map %zu GiB of address space for the ranks' shared state: %s; raise "
                      "the limit on address space (ulimit -v) and allow overcommit "
                      "(vm.overcommit_memory 0 or 1)",
                      layout.map_bytes >> 30, strerror(errno));
    }
    struct tess_world *world = (struct tess_world *)memory;
    memcpy(world, &layout, offsetof(struct tess_world, abort_state));
    for (int32_t r = 0; r < rank_count; r++) {
        tess__world_move_board(world, r, &world->rank[r].own_board);
    }
    *world_out = world;
    return TESS_OK;
}

void tess_world_close(struct tess_world *world)
{
    if (world != NULL)
        munmap(world, world->map_bytes);
}

int32_t tess_world_rank_count(const struct tess_world *world)
{
    return world->rank_count;
}

static size_t world_seat(const struct tess_world *world, int32_t rank, int32_t seat)
{
    return (size_t)seat * (size_t)world->rank_count + (size_t)rank;
}

struct local_member *tess__world_member(struct tess_world *world, int32_t rank, int32_t seat)
{
    return (struct local_member *)(void *)((char *)world + world->member_offset +
                                           world_seat(world, rank, seat) * world->member_bytes);
}

unsigned char *tess__world_chunks(struct tess_world *world, int32_t rank, int32_t seat)
{
    return (unsigned char *)world + world->chunk_offset +
           world_seat(world, rank, seat) * 2 * world->chunk_bytes;
}

struct local_pipe *tess__world_pipe(struct tess_world *world, int32_t rank, uint32_t pipe)
{
    return (struct local_pipe *)(void *)((char *)world + world->pipe_offset) +
           (size_t)rank * (size_t)world->pipe_count + pipe;
}

bool tess__world_reaches(const struct tess_world *world, const void *memory, size_t bytes)
{
    if (world->mode == TESS_RANKS_THREADS)
        return true;
    size_t first = (size_t)world + world->window_offset;
    size_t end = (size_t)world + world->map_bytes;
    size_t at = (size_t)memory;
    return at >= first && at <= end && bytes <= end - at;
}

struct tess_board *tess_world_board(struct tess_world *world, int32_t rank)
{
    return world->rank[rank].board;
}

void tess__world_move_board(struct tess_world *world, int32_t rank, struct tess_board *board)
{
    atomic_store_explicit(&board->unit, -1, memory_order_relaxed);
    atomic_store_explicit(&board->collective, -1, memory_order_relaxed);
    atomic_store_explicit(&board->waits_for, -1, memory_order_relaxed);
    world->rank[rank].board = board;
}

static const char *const world_doing_text[] = {
#define WORLD_DOING_TEXT(word, text) text,
    TESS_DOING_LIST(WORLD_DOING_TEXT)
#undef WORLD_DOING_TEXT
};

void tess_board_describe(const struct tess_board *board, const char *const *unit_name,
                         int32_t unit_count, char *text, size_t text_bytes)
{
    int32_t doing = atomic_load_explicit(&board->doing, memory_order_relaxed);
    int32_t unit = atomic_load_explicit(&board->unit, memory_order_relaxed);
    int64_t step = atomic_load_explicit(&board->step, memory_order_relaxed);
    int32_t collective = atomic_load_explicit(&board->collective, memory_order_relaxed);
    uint64_t number = atomic_load_explicit(&board->call_number, memory_order_relaxed);

    char of_unit[96] = "", at_step[48] = "", waiting[80] = "";
    if (unit >= 0 && unit_name != NULL && unit < unit_count)
        snprintf(of_unit, sizeof(of_unit), " of unit %d (%s)", (int)unit, unit_name[unit]);
    else if (unit >= 0)
        snprintf(of_unit, sizeof(of_unit), " of unit %d", (int)unit);
    if (step > 0)
        snprintf(at_step, sizeof(at_step), ", step %lld", (long long)step);
    if (collective >= 0 && collective < TESS_COLLECTIVE_COUNT)
        snprintf(waiting, sizeof(waiting), ", waiting in %s %llu",
                 tess_collective_name((enum tess_collective)collective),
                 (unsigned long long)number);
    const char *what = doing >= 0 && doing < TESS_DOING_COUNT ? world_doing_text[doing] : "lost";
    snprintf(text, text_bytes, "%s%s%s%s", what, of_unit, at_step, waiting);
}

void tess_world_abort(struct tess_world *world, int32_t rank, const char *reason)
{
    uint32_t running = 0;
    if (atomic_compare_exchange_strong(&world->abort_state, &running, 1)) {
        /* By hand, because it may run in a signal handler. */
        size_t i = 0;
        for (; reason[i] != '\0' && i + 1 < sizeof(world->abort_reason); i++)
            world->abort_reason[i] = reason[i];
        world->abort_reason[i] = '\0';
        world->abort_rank = rank;
        atomic_store(&world->abort_state, 2);
    }
    for (int32_t r = 0; r < world->rank_count; r++) {
        atomic_fetch_add(&world->rank[r].bell, 1);
        syscall(SYS_futex, &world->rank[r].bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

bool tess_world_aborted(const struct tess_world *world, int32_t *rank_out, char *reason,
                        size_t reason_bytes)
{
    uint32_t state = atomic_load(&world->abort_state);
    if (state == 0)
        return false;
    /* The writer of the reason needs a moment, or longer if it has lost its core in the middle; it
     * may also have been killed there. */
    for (double start = tess_clock_s(); state == 1 && tess_clock_s() - start < WORLD_REASON_S;) {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        state = atomic_load(&world->abort_state);
    }
    if (rank_out != NULL)
        *rank_out = state == 2 ? world->abort_rank : -1;
    if (reason != NULL && reason_bytes > 0)
        snprintf(reason, reason_bytes, "%s", state == 2 ? world->abort_reason : "reason unknown");
    return true;
}

/* Ranks that one message has room for at most. */
#define WORLD_CAUSES 32

static bool world_is_named(const int32_t *named, int32_t count, int32_t rank)
{
    for (int32_t i = 0; i < count; i++)
        if (named[i] == rank)
            return true;
    return false;
}

void tess__world_causes(struct tess_world *world, int32_t rank, char *text, size_t text_bytes)
{
    int32_t named[WORLD_CAUSES], count = 0;
    for (size_t used = 0; rank >= 0 && count < WORLD_CAUSES;) {
        char doing[160];
        const int32_t next =
            atomic_load_explicit(&world->rank[rank].board->waits_for, memory_order_relaxed);
        named[count++] = rank;
        if (next < 0 || world_is_named(named, count, next))
            return;
        tess_board_describe(tess_world_board(world, next), NULL, 0, doing, sizeof(doing));
        const int length =
            snprintf(text + used, text_bytes - used, "; rank %d waits for rank %d (%s)", (int)rank,
                     (int)next, doing);
        if (length < 0 || (size_t)length >= text_bytes - used) {
            text[used] = '\0';
            return;
        }
        used += (size_t)length;
        rank = next;
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

void tess_world_request(struct tess_world *world, enum tess_world_request request)
{
    uint32_t before = atomic_load(&world->request);
    while (before < (uint32_t)request &&
           !atomic_compare_exchange_weak(&world->request, &before, (uint32_t)request))
        ;
}

enum tess_world_request tess_world_requested(const struct tess_world *world)
{
    return world == NULL ? TESS_WORLD_GO_ON : (enum tess_world_request)atomic_load(&world->request);
}

void tess_world_answer(struct tess_world *world)
{
    uint32_t save = TESS_WORLD_SAVE;
    if (world != NULL)
        (void)atomic_compare_exchange_strong(&world->request, &save, TESS_WORLD_GO_ON);
}
