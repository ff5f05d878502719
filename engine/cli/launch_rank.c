/* The rank's side of a launch: binding, threads, the body, and telling the launcher how it ended.
 */
#include "cli/launch.h"

#include "cli/top.h"
#include "tessera/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum tess_status tess__rank_send(const struct tess__rank *rank, int32_t kind, const void *payload,
                                 size_t bytes)
{
    struct tess__message message = {.rank = rank->rank, .kind = kind};
    ssize_t wrote;

    if (bytes > sizeof message.payload)
        TESS_FAIL(TESS_ERR_INTERNAL, "a message of %zu bytes does not fit %zu", bytes,
                  sizeof message.payload);
    memcpy(message.payload, payload, bytes);
    do
        wrote = write(rank->message_fd, &message, sizeof message);
    while (wrote < 0 && errno == EINTR);
    if (wrote != (ssize_t)sizeof message)
        TESS_FAIL(TESS_ERR_IO, "cannot reach the launcher: %s", strerror(errno));
    return TESS_OK;
}

/*
 * The allowed cores are dealt out in equal runs, so that a rank's helper threads have room beside
 * it where there is room:
 *
 *     8 cores, 2 ranks   0 1 2 3 | 4 5 6 7          3 cores, 2 ranks   0 | 1
 */
bool tess__rank_cores(const struct tess__launch *launch, int32_t rank, cpu_set_t *cores,
                      char text[32])
{
    cpu_set_t allowed;
    int32_t count, width, place = 0, first = -1, last = -1;

    snprintf(text, 32, "any");
    if (!launch->bind || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    count = CPU_COUNT(&allowed);
    if (launch->rank_count > count)
        return false;
    width = count / launch->rank_count;
    CPU_ZERO(cores);
    for (int32_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed))
            continue;
        if (place / width == rank) {
            CPU_SET(core, cores);
            first = first < 0 ? core : first;
            last = core;
        }
        place++;
    }
    if (first == last)
        snprintf(text, 32, "%d", first);
    else
        snprintf(text, 32, "%d-%d", first, last);
    return true;
}

struct rank_start {
    const struct tess__launch *launch;
    struct tess__rank rank;
    cpu_set_t cores;
    bool bound;
    enum tess_status status;
};

static void rank_prepare(struct rank_start *start, const struct tess__launch *launch,
                         struct tess_world *world, int32_t rank, int message_fd)
{
    char text[32];

    start->launch = launch;
    start->rank = (struct tess__rank){rank, launch->rank_count, world, message_fd};
    start->status = TESS_ERR_INTERNAL;
    start->bound = tess__rank_cores(launch, rank, &start->cores, text);
}

static void rank_run(struct rank_start *start)
{
    const struct tess__launch *launch = start->launch;
    struct tess__rank *rank = &start->rank;
    struct tess_board *board = tess_world_board(rank->world, rank->rank);
    int32_t ended;
    char name[32];

    /* For tessera top, and for debuggers. */
    snprintf(name, sizeof name, TESS__RANK_THREAD_NAME, rank->rank);
    prctl(PR_SET_NAME, name);
    tess_log_set_rank(launch->rank_count > 1 ? rank->rank : -1);
    atomic_store_explicit(&board->pid, (int32_t)getpid(), memory_order_relaxed);
    /* Binding is a matter of speed: where it is refused the rank runs unbound. */
    if (start->bound)
        (void)sched_setaffinity(0, sizeof start->cores, &start->cores);

    start->status = launch->body(launch->context, rank);
    if (start->status != TESS_OK && start->status != TESS_ERR_ABORTED) {
        const char *reason = tess_log_last_error();
        tess_world_abort(rank->world, rank->rank,
                         reason[0] != '\0' ? reason : tess_status_text(start->status));
    } else if (start->status == TESS_OK) {
        atomic_store_explicit(&board->doing, TESS_DOING_ENDED, memory_order_relaxed);
    }
    ended = start->status;
    TESS_KEEP(start->status, tess__rank_send(rank, TESS__MESSAGE_ENDED, &ended, sizeof ended));
}

static void *rank_thread(void *start)
{
    rank_run(start);
    return NULL;
}

static enum tess_status rank_threads(const struct tess__launch *launch, struct tess_world *world,
                                     int message_fd)
{
    struct rank_start *start = calloc((size_t)launch->rank_count, sizeof *start);
    pthread_t thread[TESS_WORLD_RANKS_MAX];
    enum tess_status status = TESS_OK;
    int32_t started = 0;

    if (start == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to start %d threads", launch->rank_count);
    for (int32_t r = 0; r < launch->rank_count; r++)
        rank_prepare(&start[r], launch, world, r, message_fd);
    for (; started < launch->rank_count; started++) {
        int error = pthread_create(&thread[started], NULL, rank_thread, &start[started]);
        if (error != 0) {
            status = tess_fail(TESS_ERR_MEMORY, "cannot start a thread for rank %d: %s", started,
                               strerror(error));
            tess_world_abort(world, started, tess_log_last_error());
            break;
        }
    }
    for (int32_t r = 0; r < started; r++) {
        pthread_join(thread[r], NULL);
        if (status == TESS_OK || status == TESS_ERR_ABORTED)
            status = start[r].status != TESS_OK ? start[r].status : status;
    }
    free(start);
    return status;
}

int tess__rank_process(const struct tess__launch *launch, struct tess_world *world, int32_t first,
                       int message_fd)
{
    struct rank_start start;

    if (launch->mode == TESS_RANKS_THREADS) {
        prctl(PR_SET_NAME, TESS__RANK_PROCESS_NAME);
        return tess_status_exit_code(rank_threads(launch, world, message_fd));
    }
    rank_prepare(&start, launch, world, first, message_fd);
    rank_run(&start);
    return tess_status_exit_code(start.status);
}
