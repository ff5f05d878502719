/* The rank's side of a launch: binding, threads, the body, and reporting its end to the launcher.
 */
#include "job/launch.h"

#include "base/cgroup.h"
#include "tessera/check.h"
#include "topology/hwloc/live.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

_Static_assert(TESS__CORES_BYTES >= TESS_BIND_TEXT, "the text of a binding fits");

enum tess_status tess__rank_send(const struct tess__rank *rank, int32_t kind, const void *payload,
                                 size_t bytes)
{
    struct tess__message message = {.rank = rank->rank, .kind = kind};
    ssize_t wrote;

    if (bytes > sizeof(message.payload))
        TESS_FAIL(TESS_ERR_INTERNAL, "a message of %zu bytes does not fit %zu", bytes,
                  sizeof(message.payload));
    memcpy(message.payload, payload, bytes);
    do
        wrote = write(rank->message_fd, &message, sizeof(message));
    while (wrote < 0 && errno == EINTR);
    if (wrote != (ssize_t)sizeof(message))
        TESS_FAIL(TESS_ERR_IO, "cannot reach the launcher: %s", strerror(errno));
    return TESS_OK;
}

/*
 * Where hwloc is not there the allowed cores are dealt out in equal runs, so that a rank's helper
 * threads have room beside it where there is room:
 *
 *     8 cores, 2 ranks   0 1 2 3 | 4 5 6 7          3 cores, 2 ranks   0 | 1
 */
static void rank_bind_run(int32_t at, int32_t places, const cpu_set_t *allowed,
                          char text[TESS__CORES_BYTES])
{
    const int32_t width = CPU_COUNT(allowed) / places;
    int32_t place = 0, first = -1, last = -1;
    cpu_set_t cores;

    CPU_ZERO(&cores);
    for (int32_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, allowed))
            continue;
        if (place / width == at) {
            CPU_SET(core, &cores);
            first = first < 0 ? core : first;
            last = core;
        }
        place++;
    }
    /* Binding is a matter of speed: where it is refused the rank runs unbound. */
    if (sched_setaffinity(0, sizeof(cores), &cores) != 0)
        snprintf(text, TESS__CORES_BYTES, "any core");
    else if (first == last)
        snprintf(text, TESS__CORES_BYTES, "core %d", first);
    else
        snprintf(text, TESS__CORES_BYTES, "cores %d-%d", first, last);
}

/* Ranks that this host has. */
static int32_t rank_places(const struct tess__launch *launch)
{
    return launch->peers != NULL ? launch->slot_count : launch->rank_count;
}

/* Has each of them cores of its own? */
static bool rank_is_bound(const struct tess__launch *launch, cpu_set_t *allowed_out)
{
    const int32_t places = rank_places(launch);

    return launch->bind && places >= 1 &&
           sched_getaffinity(0, sizeof(*allowed_out), allowed_out) == 0 && places <= tess_cores();
}

static void rank_bind(const struct tess__launch *launch, int32_t rank, char text[TESS__CORES_BYTES])
{
    const int32_t at = launch->peers != NULL ? launch->slot : rank;
    const int32_t places = rank_places(launch);
    char bound[TESS_BIND_TEXT];
    cpu_set_t allowed;

    snprintf(text, TESS__CORES_BYTES, "any core");
    if (!rank_is_bound(launch, &allowed))
        return;
    if (tess_bind_place(at, places, launch->bus, bound))
        snprintf(text, TESS__CORES_BYTES, "%s", bound);
    else
        rank_bind_run(at, places, &allowed, text);
}

struct rank_cores {
    const struct tess__launch *launch;
    int32_t rank;
    char *text;
};

static void *rank_cores_thread(void *context)
{
    const struct rank_cores *cores = context;

    rank_bind(cores->launch, cores->rank, cores->text);
    return NULL;
}

void tess__rank_cores(const struct tess__launch *launch, int32_t rank, char text[TESS__CORES_BYTES])
{
    struct rank_cores cores = {launch, rank, text};
    pthread_t thread;
    cpu_set_t allowed;

    snprintf(text, TESS__CORES_BYTES, "any core");
    if (rank_is_bound(launch, &allowed) &&
        pthread_create(&thread, NULL, rank_cores_thread, &cores) == 0)
        pthread_join(thread, NULL);
}

struct rank_start {
    const struct tess__launch *launch;
    struct tess__rank rank;
    enum tess_status status; /* set by rank_run */
    pthread_t thread;        /* where ranks are threads */
};

void tess__rank_enter(const struct tess__launch *launch, int32_t rank)
{
    char text[TESS__CORES_BYTES];

    snprintf(text, sizeof(text), TESS__RANK_THREAD_NAME, rank);
    prctl(PR_SET_NAME, text);
    rank_bind(launch, rank, text);
}

static void rank_run(struct rank_start *start)
{
    const struct tess__launch *launch = start->launch;
    struct tess__rank *rank = &start->rank;
    struct tess_board *board = tess_world_board(rank->world, rank->rank);
    struct tess__ended ended = {0};

    tess_log_set_rank(launch->rank_count > 1 ? rank->rank : -1);
    atomic_store_explicit(&board->pid, (int32_t)getpid(), memory_order_relaxed);
    tess__rank_enter(launch, rank->rank);
    start->status = launch->body(launch->context, rank);
    if (start->status != TESS_OK) {
        const char *reason = tess_log_last_error();
        if (start->status != TESS_ERR_ABORTED)
            tess_world_abort(rank->world, rank->rank,
                             reason[0] != '\0' ? reason : tess_status_text(start->status));
        snprintf(ended.why, sizeof(ended.why), "%.*s", (int)sizeof(ended.why) - 1, reason);
    } else {
        atomic_store_explicit(&board->doing, TESS_DOING_ENDED, memory_order_relaxed);
    }
    tess_flight_end(launch->flight, rank->rank, start->status);
    ended.status = start->status;
    TESS_KEEP(start->status, tess__rank_send(rank, TESS__MESSAGE_ENDED, &ended, sizeof(ended)));
}

static void *rank_thread(void *start)
{
    rank_run(start);
    return NULL;
}

static enum tess_status rank_threads(const struct tess__launch *launch, struct tess_world *world,
                                     int message_fd)
{
    const int32_t count = launch->rank_count;
    struct rank_start *start = calloc((size_t)count, sizeof(*start));
    enum tess_status status = TESS_OK;
    int32_t started = 0;

    if (start == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the threads of %d ranks", count);
    for (int32_t r = 0; r < count; r++)
        start[r] = (struct rank_start){.launch = launch, .rank = {r, count, world, message_fd}};
    for (; started < count; started++) {
        int error = pthread_create(&start[started].thread, NULL, rank_thread, &start[started]);
        if (error != 0) {
            status = tess_fail(TESS_ERR_MEMORY, "cannot start a thread for rank %d: %s", started,
                               strerror(error));
            tess_world_abort(world, started, tess_log_last_error());
            break;
        }
    }
    for (int32_t r = 0; r < started; r++) {
        pthread_join(start[r].thread, NULL);
        if (status == TESS_OK || status == TESS_ERR_ABORTED)
            status = start[r].status != TESS_OK ? start[r].status : status;
    }
    free(start);
    return status;
}

int tess__rank_process(const struct tess__launch *launch, struct tess_world *world, int32_t first,
                       int message_fd)
{
    struct rank_start start = {.launch = launch,
                               .rank = {first, launch->rank_count, world, message_fd}};

    if (launch->mode == TESS_RANKS_THREADS) {
        prctl(PR_SET_NAME, TESS__RANK_PROCESS_NAME);
        return tess_status_exit_code(rank_threads(launch, world, message_fd));
    }
    rank_run(&start);
    return tess_status_exit_code(start.status);
}
