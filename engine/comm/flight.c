/* Writing flight records; see flight.h. */
#include "comm/flight.h"

#include "base/clock.h"
#include "base/file.h"
#include "comm/flight_file.h"
#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A call under way. */
struct flight_open {
    const struct tess_comm *comm;
    uint64_t ticket, number; /* of the rank's calls, from 1 */
};

/* What a rank needs to write its record; its own, apart from those of others. */
struct flight_lane {
    _Alignas(64) struct tess_comm_observer observer;
    const struct tess_comm_observer *next; /* NULL: none */
    struct tess_flight_file *file;
    uint64_t call_count;
    int32_t group_count, group_latest, open_count;
    const struct tess_comm *comm[TESS_FLIGHT_GROUPS];
    uint32_t split_count[TESS_FLIGHT_GROUPS];
    struct flight_open open[TESS_FLIGHT_CALLS];
};

struct tess_flight {
    int32_t first, end;
    struct flight_lane *lane; /* [end - first] */
};

/* ---- groups ---------------------------------------------------------------------------------- */

/* Its place among the groups; TESS_FLIGHT_GROUPS: it has none. */
static int32_t flight_group(struct flight_lane *lane, const struct tess_comm *comm)
{
    if (lane->group_count > 0 && lane->comm[lane->group_latest] == comm)
        return lane->group_latest;
    for (int32_t g = lane->group_count - 1; g >= 0; g--)
        if (lane->comm[g] == comm)
            return lane->group_latest = g;
    return TESS_FLIGHT_GROUPS;
}

static void flight_add_group(struct flight_lane *lane, const struct tess_comm *comm, uint32_t id,
                             int32_t axis)
{
    const int32_t known = flight_group(lane, comm); /* of a group that was closed */
    if (known < TESS_FLIGHT_GROUPS)
        lane->comm[known] = NULL;
    if (lane->group_count == TESS_FLIGHT_GROUPS)
        return;
    struct tess_flight_group *group = &lane->file->now.group[lane->group_count];
    lane->comm[lane->group_count++] = comm;
    group->axis = axis;
    group->rank = comm->rank;
    group->rank_count = comm->rank_count;
    group->id = id;
}

/* All ranks of a group split it in the same order, and those of one color make a group. */
static uint32_t flight_child_id(uint32_t parent, uint32_t split, int32_t color)
{
    uint64_t hash = ((uint64_t)parent << 32 | split) ^ UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 2; i++) {
        hash = (hash ^ hash >> 32) * UINT64_C(0xd6e8feb86659fd93);
        hash = (hash ^ hash >> 32) + (uint64_t)(uint32_t)color;
    }
    return (uint32_t)(hash >> 16) | 1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The end of a path: "step.c:99". */
static void flight_copy_site(char *site, const char *path)
{
    const size_t length = strlen(path);
    const size_t cut = length < TESS_FLIGHT_SITE ? 0 : length - (TESS_FLIGHT_SITE - 1);
    memcpy(site, path + cut, length - cut + 1);
}

static struct tess_flight_call *flight_call(struct flight_lane *lane, uint64_t number)
{
    return &lane->file->call[(number - 1) % TESS_FLIGHT_CALLS];
}

static void flight_called(void *context, const struct tess_comm *comm,
                          const struct tess_comm_call *call, uint64_t ticket)
{
    struct flight_lane *lane = context;
    const struct tess_board *board = &lane->file->now.board;
    const int32_t g = flight_group(lane, comm);
    const bool message =
        call->collective == TESS_COLLECTIVE_SEND || call->collective == TESS_COLLECTIVE_RECV;
    const uint64_t number = ++lane->call_count;
    struct tess_flight_call *record = flight_call(lane, number);

    atomic_store_explicit(&record->sequence, 2 * number - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    record->number = 0;
    if (!message && g < TESS_FLIGHT_GROUPS) {
        struct tess_flight_group *group = &lane->file->now.group[g];
        record->number = group->called + 1;
        atomic_store_explicit(&group->called, record->number, memory_order_relaxed);
    }
    record->bytes = call->count * tess_dtype_bytes(call->dtype);
    record->step = atomic_load_explicit(&board->step, memory_order_relaxed);
    record->begin_s = comm->called_s;
    atomic_store_explicit(&record->end_s, 0, memory_order_relaxed);
    record->unit = atomic_load_explicit(&board->unit, memory_order_relaxed);
    record->peer = call->peer;
    record->collective = (uint8_t)call->collective;
    record->dtype = (uint8_t)call->dtype;
    record->doing = (uint8_t)atomic_load_explicit(&board->doing, memory_order_relaxed);
    record->group = (uint8_t)g;
    flight_copy_site(record->site, call->site);
    atomic_store_explicit(&record->sequence, 2 * number, memory_order_release);

    if (lane->open_count < TESS_FLIGHT_CALLS)
        lane->open[lane->open_count++] = (struct flight_open){comm, ticket, number};
    if (lane->next != NULL && lane->next->called != NULL)
        lane->next->called(lane->next->context, comm, call, ticket);
}

static struct flight_open *flight_find(struct flight_lane *lane, const struct tess_comm *comm,
                                       uint64_t ticket)
{
    for (int32_t i = lane->open_count - 1; i >= 0; i--)
        if (lane->open[i].ticket == ticket && lane->open[i].comm == comm)
            return &lane->open[i];
    return NULL;
}

static void flight_completed(void *context, const struct tess_comm *comm, uint64_t ticket)
{
    struct flight_lane *lane = context;
    struct flight_open *open = flight_find(lane, comm, ticket);
    if (open != NULL) {
        struct tess_flight_call *record = flight_call(lane, open->number);
        if (record->sequence == 2 * open->number) /* else later calls have taken its place */
            atomic_store_explicit(&record->end_s, tess_clock_s(), memory_order_relaxed);
        *open = lane->open[--lane->open_count];
    }
    if (lane->next != NULL && lane->next->completed != NULL)
        lane->next->completed(lane->next->context, comm, ticket);
}

static void flight_waiting(void *context, const struct tess_comm *comm, uint64_t ticket, bool on)
{
    struct flight_lane *lane = context;
    struct tess_flight_now *now = &lane->file->now;
    const struct flight_open *open = on ? flight_find(lane, comm, ticket) : NULL;
    if (open != NULL)
        atomic_store_explicit(&now->since_s, tess_clock_s(), memory_order_relaxed);
    atomic_store_explicit(&now->waiting, open != NULL ? open->number : 0, memory_order_release);
    if (lane->next != NULL && lane->next->waiting != NULL)
        lane->next->waiting(lane->next->context, comm, ticket, on);
}

/* The record that a communicator writes to; NULL: none. */
static struct flight_lane *flight_lane_of(const struct tess_comm *comm)
{
    const struct tess_comm_observer *observer = comm->observer;
    return observer != NULL && observer->called == flight_called ? observer->context : NULL;
}

void tess__flight_split(const struct tess_comm *parent, const struct tess_comm *child,
                        int32_t color)
{
    struct flight_lane *lane = flight_lane_of(parent);
    const int32_t g = lane != NULL ? flight_group(lane, parent) : TESS_FLIGHT_GROUPS;
    if (g == TESS_FLIGHT_GROUPS)
        return;
    const struct tess_flight_group *group = &lane->file->now.group[g];
    flight_add_group(lane, child, flight_child_id(group->id, ++lane->split_count[g], color),
                     group->axis);
}

void tess_flight_axis(const struct tess_comm *comm, enum tess_axis axis)
{
    struct flight_lane *lane = flight_lane_of(comm);
    const int32_t g = lane != NULL ? flight_group(lane, comm) : TESS_FLIGHT_GROUPS;
    if (g < TESS_FLIGHT_GROUPS)
        lane->file->now.group[g].axis = (int32_t)axis;
}

static struct flight_lane *flight_lane(struct tess_flight *flight, int32_t rank)
{
    return flight != NULL && rank >= flight->first && rank < flight->end
               ? &flight->lane[rank - flight->first]
               : NULL;
}

void tess_flight_watch(struct tess_flight *flight, struct tess_comm *comm)
{
    struct flight_lane *lane = flight_lane(flight, comm->rank);
    if (lane == NULL)
        return;
    lane->next = comm->observer;
    lane->observer =
        (struct tess_comm_observer){lane, flight_called, flight_completed, flight_waiting};
    flight_add_group(lane, comm, 1, -1);
    comm->observer = &lane->observer;
}

void tess_flight_end(struct tess_flight *flight, int32_t rank, enum tess_status status)
{
    struct flight_lane *lane = flight_lane(flight, rank);
    if (lane != NULL)
        atomic_store_explicit(&lane->file->now.ended, 1 - (int32_t)status, memory_order_release);
}

/* ---- files ----------------------------------------------------------------------------------- */

bool tess_flight_path(const char *run, int32_t rank, char *path, size_t path_bytes)
{
    const int length = snprintf(path, path_bytes, "%s/flight/rank-%05d", run, (int)rank);
    return length >= 0 && (size_t)length < path_bytes;
}

static void flight_fill_head(struct tess_flight_head *head, int32_t rank,
                             const struct tess_flight_about *about)
{
    struct timespec real;
    (void)clock_gettime(CLOCK_REALTIME, &real);
    *head = (struct tess_flight_head){
        .magic = TESS_FLIGHT_MAGIC,
        .version = TESS_FLIGHT_VERSION,
        .file_bytes = sizeof(struct tess_flight_file),
        .rank = rank,
        .rank_count = about->rank_count,
        .launcher = (int32_t)getpid(),
        .unit_count = about->unit_count < TESS_FLIGHT_UNITS ? about->unit_count : TESS_FLIGHT_UNITS,
        .clock_offset_s = (double)real.tv_sec + 1e-9 * (double)real.tv_nsec - tess_clock_s(),
    };
    (void)gethostname(head->host, sizeof(head->host) - 1);
    for (int32_t u = 0; u < head->unit_count; u++)
        snprintf(head->unit_name[u], TESS_FLIGHT_NAME, "%s", about->unit_name[u]);
}

/* Map a new file of zeros. Zeros are written, so that a full disk is an error here: it would be a
 * signal when the mapping is used. errno, or 0. */
static int flight_map(const char *path, struct tess_flight_file **file_out)
{
    static const char zero[TESS_FLIGHT_PAGE];
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return errno;
    int error = 0;
    for (size_t at = 0; at < sizeof(struct tess_flight_file) && error == 0; at += sizeof(zero))
        error = tess_file_write_at(fd, zero, sizeof(zero), (int64_t)at);
    void *memory = MAP_FAILED;
    if (error == 0) {
        memory =
            mmap(NULL, sizeof(struct tess_flight_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = memory == MAP_FAILED ? errno : 0;
    }
    close(fd);
    if (error == 0)
        *file_out = memory;
    return error;
}

/* Make the file of a rank under a name of its own, then in the place of an older one. errno, or
 * 0. */
static int flight_make(struct flight_lane *lane, const char *run, int32_t rank,
                       const struct tess_flight_about *about)
{
    char path[4096], temporary[4096 + 8];
    if (!tess_flight_path(run, rank, path, sizeof(path)))
        return ENAMETOOLONG;
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    (void)unlink(temporary); /* of a launcher that was killed here */
    int error = flight_map(temporary, &lane->file);
    if (error == 0) {
        flight_fill_head(&lane->file->head, rank, about);
        error = rename(temporary, path) != 0 ? errno : 0;
    }
    if (error != 0)
        (void)unlink(temporary);
    return error;
}

/* Remove the files of ranks that this run does not have; of those it has, they are replaced. */
static void flight_clear(const char *run, int32_t rank_count)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/flight", run);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int rank, length = 0;
        if (sscanf(entry->d_name, "rank-%d%n", &rank, &length) == 1 && rank >= rank_count &&
            entry->d_name[length] == '\0')
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
}

/* The folders; other hosts may not have them yet. errno, or 0. */
static int flight_folder(const char *run)
{
    char folder[4096];
    if (snprintf(folder, sizeof(folder), "%s/flight", run) >= (int)sizeof(folder))
        return ENAMETOOLONG;
    if ((mkdir(run, 0777) != 0 && errno != EEXIST) || (mkdir(folder, 0777) != 0 && errno != EEXIST))
        return errno;
    return 0;
}

struct tess_flight *tess_flight_open(const char *run, const struct tess_flight_about *about)
{
    const size_t count = (size_t)(about->end - about->first);
    struct tess_flight *flight = calloc(1, sizeof(*flight));
    struct flight_lane *lane =
        aligned_alloc(_Alignof(struct flight_lane), count * sizeof(struct flight_lane));
    int error = flight == NULL || lane == NULL ? ENOMEM : flight_folder(run);
    if (lane != NULL)
        memset(lane, 0, count * sizeof(*lane));
    if (flight != NULL)
        *flight = (struct tess_flight){.first = about->first, .end = about->end, .lane = lane};
    for (int32_t r = about->first; r < about->end && error == 0; r++)
        error = flight_make(&lane[r - about->first], run, r, about);
    if (error != 0) {
        tess_log(TESS_LOG_WARN,
                 "no flight record in %s/flight: %s; the run goes on, but tessera status cannot "
                 "show it",
                 run, strerror(error));
        tess_flight_close(flight);
        return NULL;
    }
    if (about->first == 0)
        flight_clear(run, about->rank_count);
    return flight;
}

void tess_flight_close(struct tess_flight *flight)
{
    if (flight == NULL)
        return;
    for (int32_t r = flight->first; r < flight->end && flight->lane != NULL; r++)
        if (flight_lane(flight, r)->file != NULL)
            munmap(flight_lane(flight, r)->file, sizeof(struct tess_flight_file));
    free(flight->lane);
    free(flight);
}

void tess_flight_boards(struct tess_flight *flight, struct tess_world *world)
{
    for (int32_t r = flight != NULL ? flight->first : 0; flight != NULL && r < flight->end; r++)
        tess__world_move_board(world, r, &flight_lane(flight, r)->file->now.board);
}
