/* Reading flight records: they may be of a run that goes on, truncated, or made by anyone. */
#include "run/status.h"

#include "base/file.h"
#include "comm/flight.h"
#include "config/config.h"
#include "run/run_folder.h"
#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STATUS_PATH       4096
#define STATUS_TIME_MAX_S 1e11

/* ---- checks ---------------------------------------------------------------------------------- */

/* Printable ASCII up to the 0, which must be there. Other characters become '?': the text goes to
 * terminals and into JSON. */
static bool status_clean(char *text, size_t bytes)
{
    if (memchr(text, 0, bytes) == NULL)
        return false;
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
    return true;
}

/* Seconds that a clock could show. */
static bool status_time_is_good(double time_s)
{
    return time_s >= 0 && time_s < STATUS_TIME_MAX_S;
}

static enum tess_status status_check_head(const char *path, int32_t rank,
                                          struct tess_flight_head *head)
{
    if (head->magic != TESS_FLIGHT_MAGIC)
        TESS_FAIL(TESS_ERR_DATA, "%s is not a flight record of this kind of machine", path);
    if (head->version != TESS_FLIGHT_VERSION || head->file_bytes != sizeof(struct tess_flight_file))
        TESS_FAIL(TESS_ERR_DATA,
                  "%s is a flight record of version %u, and this program reads version %u: use the "
                  "program that the run was started with",
                  path, head->version, TESS_FLIGHT_VERSION);
    bool good = head->rank == rank && head->rank_count > rank &&
                head->rank_count <= TESS_RANKS_MAX && head->unit_count >= 0 &&
                head->unit_count <= TESS_FLIGHT_UNITS &&
                fabs(head->clock_offset_s) < STATUS_TIME_MAX_S &&
                status_clean(head->host, sizeof(head->host));
    for (int32_t u = 0; good && u < head->unit_count; u++)
        good = status_clean(head->unit_name[u], TESS_FLIGHT_NAME);
    if (!good)
        TESS_FAIL(TESS_ERR_DATA, "%s is damaged: its head is not that of rank %d", path, (int)rank);
    return TESS_OK;
}

static bool status_group_is_good(const struct tess_flight_group *group)
{
    return group->id == 0 || (group->rank >= 0 && group->rank < group->rank_count &&
                              group->rank_count <= TESS_RANKS_MAX && group->axis >= -1 &&
                              group->axis < TESS_AXIS_COUNT);
}

static enum tess_status status_check_now(const char *path, const struct tess_flight_now *now)
{
    for (int32_t g = 0; g < TESS_FLIGHT_GROUPS; g++)
        if (!status_group_is_good(&now->group[g]))
            TESS_FAIL(TESS_ERR_DATA, "%s is damaged: group %d cannot be", path, (int)g);
    if (now->ended < 0 || !status_time_is_good(now->since_s) ||
        now->board.waits_for >= TESS_RANKS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s is damaged: what the rank does now cannot be", path);
    return TESS_OK;
}

static bool status_call_is_good(struct tess_flight_call *call)
{
    return call->collective < TESS_COLLECTIVE_COUNT && call->dtype < TESS_DTYPE_COUNT &&
           call->group <= TESS_FLIGHT_GROUPS && status_time_is_good(call->begin_s) &&
           status_time_is_good(call->end_s) && status_clean(call->site, sizeof(call->site));
}

/* Calls that are whole, and were when the sequence numbers were read `again`. */
static enum tess_status status_check_calls(const char *path, struct tess__status_rank *rank,
                                           const struct tess_flight_file *again)
{
    for (uint64_t i = 0; i < TESS_FLIGHT_CALLS; i++) {
        struct tess_flight_call *call = &rank->file->call[i];
        const uint64_t sequence = call->sequence;
        if (sequence == 0 || sequence % 2 != 0 || again->call[i].sequence != sequence)
            continue;
        if ((sequence / 2 - 1) % TESS_FLIGHT_CALLS != i || !status_call_is_good(call))
            TESS_FAIL(TESS_ERR_DATA, "%s is damaged: call %" PRIu64 " cannot be", path, i);
        rank->whole[i] = true;
    }
    return TESS_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The whole file into `file`. TESS_ERR_NOT_FOUND, without a message: there is none. */
static enum tess_status status_read_file(const char *path, struct tess_flight_file *file)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return TESS_ERR_NOT_FOUND;
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read the flight record %s: %s", path, strerror(errno));
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        TESS_FAIL(TESS_ERR_DATA, "%s is not a flight record: it is no regular file", path);
    }
    const size_t count = tess_file_read(fd, file, sizeof(*file), 0);
    const int error = errno;
    close(fd);
    if (count == sizeof(*file) && about.st_size == (off_t)sizeof(*file))
        return TESS_OK;
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read the flight record %s: %s", path, strerror(error));
    TESS_FAIL(TESS_ERR_DATA, "%s is no whole flight record: it has %lld bytes, not %zu", path,
              (long long)about.st_size, sizeof(*file));
}

static enum tess_status status_check(const char *path, int32_t number,
                                     struct tess__status_rank *rank)
{
    struct tess_flight_file *again = malloc(sizeof(*again));
    if (again == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    enum tess_status status = status_check_head(path, number, &rank->file->head);
    if (status == TESS_OK)
        status = status_check_now(path, &rank->file->now);
    if (status == TESS_OK)
        status = status_read_file(path, again);
    if (status == TESS_OK)
        status = status_check_calls(path, rank, again);
    free(again);
    return status;
}

static enum tess_status status_read_rank(const char *run, int32_t number,
                                         struct tess__status_rank *rank)
{
    char path[STATUS_PATH];
    if (!tess_flight_path(run, number, path, sizeof(path)))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is too long");
    rank->file = malloc(sizeof(*rank->file));
    if (rank->file == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    enum tess_status status = status_read_file(path, rank->file);
    if (status == TESS_OK)
        status = status_check(path, number, rank);
    if (status == TESS_OK)
        return TESS_OK;
    free(rank->file);
    *rank = (struct tess__status_rank){.file = NULL};
    return status == TESS_ERR_NOT_FOUND ? TESS_OK : status;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* 'R', 'S', 'T' and so on of a process of this host that is a rank; 0: it has gone. */
static char status_process(int32_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    const size_t count = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[count] = '\0';
    const char *name = strchr(text, '('), *end = strrchr(text, ')');
    /* Another process may have its number by now. */
    if (name == NULL || end == NULL || strncmp(name, "(tessera", 8) != 0 || strlen(end) < 3)
        return 0;
    return end[2] == 'Z' || end[2] == 'X' ? 0 : end[2];
}

static enum tess__status_life status_life(const struct tess_flight_file *file, bool live,
                                          const char *host)
{
    const int32_t ended = file->now.ended, pid = file->now.board.pid;
    if (ended != 0)
        return ended == 1                      ? TESS__LIFE_ENDED
               : ended == 1 - TESS_ERR_ABORTED ? TESS__LIFE_ABORTED
                                               : TESS__LIFE_FAILED;
    if (strcmp(file->head.host, host) != 0)
        return live ? TESS__LIFE_DISTANT : TESS__LIFE_DEAD;
    /* A rank that has not started yet has no number. */
    const char state = pid > 0 ? status_process(pid) : live ? 'S' : 0;
    return state == 0 ? TESS__LIFE_DEAD : state == 'T' ? TESS__LIFE_STOPPED : TESS__LIFE_RUNNING;
}

/* One more than the highest rank whose record there may be, by the names of files. */
static int32_t status_file_count(const char *run)
{
    char folder[STATUS_PATH];
    int32_t count = 0;
    if (!tess_flight_path(run, 0, folder, sizeof(folder)))
        return 0;
    *strrchr(folder, '/') = '\0';
    DIR *entries = opendir(folder);
    for (const struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        int rank = -1, end = 0;
        if (sscanf(entry->d_name, "rank-%5d%n", &rank, &end) == 1 && entry->d_name[end] == '\0' &&
            rank >= count && rank < TESS_RANKS_MAX)
            count = rank + 1;
    }
    if (entries != NULL)
        closedir(entries);
    return count;
}

/* Ranks without a record are there, too. */
static enum tess_status status_make_room(struct tess__status *status, int32_t count)
{
    const size_t ranks = count > 0 ? (size_t)count : 1;
    struct tess__status_rank *rank = realloc(status->rank, ranks * sizeof(*rank));
    bool *in = calloc(ranks, sizeof(*in));
    status->rank = rank != NULL ? rank : status->rank;
    if (rank == NULL || in == NULL) {
        free(in);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the records of %d ranks", (int)count);
    }
    for (int32_t r = status->rank_count; r < count; r++)
        rank[r] = (struct tess__status_rank){.file = NULL};
    free(status->in);
    status->in = in;
    status->rank_count = count;
    return TESS_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

enum tess_status tess__status_read(const char *run, struct tess__status *status)
{
    char host[TESS_FLIGHT_HOST] = "";
    struct timespec now;
    enum tess_status result = TESS_OK;

    *status = (struct tess__status){.run = run, .late = -1};
    (void)gethostname(host, sizeof(host) - 1);
    TESS_TRY(tess__run_folder_owner(run, status->owner, sizeof(status->owner), &status->life));
    status->live = status->life != TESS__FOLDER_LEFT;
    (void)status_clean(status->owner, sizeof(status->owner));
    const int32_t files = status_file_count(run);
    TESS_TRY(status_make_room(status, files));
    int32_t ranks = 0;
    for (int32_t r = 0; r < files; r++) {
        struct tess__status_rank *rank = &status->rank[r];
        TESS_KEEP(result, status_read_rank(run, r, rank));
        if (rank->file == NULL)
            continue;
        rank->life = status_life(rank->file, status->live, host);
        ranks = rank->file->head.rank_count > ranks ? rank->file->head.rank_count : ranks;
    }
    if (ranks > files)
        TESS_TRY(status_make_room(status, ranks));
    status->rank_count = ranks;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    status->now_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (status->rank_count == 0 && result == TESS_OK)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "%s has no flight record: give the folder of a run, which train --run DIR writes",
                  run);
    return result;
}

void tess__status_close(struct tess__status *status)
{
    for (int32_t r = 0; r < status->rank_count; r++)
        free(status->rank[r].file);
    for (int32_t s = 0; s < status->set_count; s++)
        free(status->set[s]);
    free(status->rank);
    free(status->in);
    free(status->group);
    free(status->set);
    free(status->differs.of);
    *status = (struct tess__status){.late = -1};
}
