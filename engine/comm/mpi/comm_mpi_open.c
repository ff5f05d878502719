/*
 * Starting and ending MPI, and the module's table. MPI is started once in a process, by the first
 * transport, and ended with the last one. What needs to be forked is forked before: a rank's own
 * process starts MPI, not its launcher, which keeps mpirun's pipe to itself otherwise.
 *
 * MPI_Abort is used nowhere: it would end other ranks before they have logged the reason, and
 * the starters of the ranks end them all the same (mpirun when one process fails, our launchers by
 * their own connections).
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/boot/boot_find.h"
#include "comm/mpi/comm_mpi_room.h"
#include "comm/net/net_hosts.h"
#include "tessera/check.h"
#include "tessera/device.h"
#include "tessera/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OPEN_LOOK_NS  200000
#define OPEN_DRAIN_S  5.0
#define OPEN_NOTIFY_S 1.0 /* in which the ranks that are alive learn that this one failed */

/* Bytes of a host's name that are gathered; longer ones are cut. */

static int open_count; /* transports of this process */

/*
 * No message may arrive before a rank has started MPI: Open MPI 4.1 then calls a handler that it
 * has not set yet. The barrier in MPI_Init does not ensure it: that of Slurm's PMIx plugin (21.08
 * and later) does nothing in jobs of fewer hosts than Slurm's TreeWidth. So the boot is one.
 */
static enum tess_status open_barrier(const struct tess_boot *boot)
{
    char *all = calloc((size_t)boot->rank_count, 1);
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the start of %d ranks", (int)boot->rank_count);
    const enum tess_status status = boot->gather(boot->context, "", 1, all);
    free(all);
    return status;
}

static enum tess_status open_start(const struct tess_boot *boot)
{
    int ready = 0, ended = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&ready);
    MPI_Finalized(&ended);
    if (ended)
        TESS_FAIL(TESS_ERR_INTERNAL, "MPI has been ended in this process and cannot start again");
    if (ready)
        return TESS_OK;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (error != MPI_SUCCESS)
        TESS_FAIL(TESS_ERR_COMM, "MPI cannot start: error %d", error);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN); /* of calls without one, in MPI 4 */
    if (level < MPI_THREAD_FUNNELED)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "this MPI is not made for programs with threads");
    return boot != NULL ? open_barrier(boot) : TESS_OK;
}

/* Wait for a call of set-up or of the end, which MPI itself would wait for without limit. False: it
 * is not there in time, failed, or a word came first (`word`; NULL: none is looked for). */
static bool open_wait(MPI_Request *request, MPI_Request *word, double limit_s, int *error_out)
{
    int done = 0, stop = 0;
    *error_out = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    while (*error_out == MPI_SUCCESS && !done && tess_clock_s() < limit_s) {
        if (word != NULL)
            *error_out = MPI_Test(word, &stop, MPI_STATUS_IGNORE);
        if (*error_out != MPI_SUCCESS || stop)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = OPEN_LOOK_NS}, NULL);
        *error_out = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    }
    return *error_out == MPI_SUCCESS && done;
}

static enum tess_status open_reserve(struct mpi_room *room, int count)
{
    const size_t n = (size_t)count;
    room->host = calloc(n, sizeof(*room->host));
    room->notice = calloc(n, sizeof(*room->notice));
    if (room->host == NULL || room->notice == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d ranks over MPI", count);
    room->head.rank_count = count;
    for (size_t r = 0; r < n; r++)
        room->notice[r] = MPI_REQUEST_NULL;
    return TESS_OK;
}

/* The ranks as the boot numbers them, which need not be MPI's numbers. */
static enum tess_status open_ranks(struct mpi_room *room, const struct tess_boot *boot)
{
    int rank = 0, count = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (boot != NULL && boot->rank_count != count)
        TESS_FAIL(TESS_ERR_COMM,
                  "the job has %d ranks and MPI has %d: this MPI is not that of the mpirun "
                  "(or srun) which started them; --comm.mpi.library names the other one",
                  (int)boot->rank_count, count);
    if (count > TESS_RANKS_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%d ranks over MPI: there may be up to %d", count,
                  TESS_RANKS_MAX);
    if (boot != NULL)
        rank = boot->rank;
    int error = MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &room->comm);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_dup(room->comm, &room->control);
    if (error != MPI_SUCCESS)
        return tess__mpi_fail(room, error, "cannot make the group of all ranks", -1);
    MPI_Comm_rank(room->comm, &room->head.rank);
    TESS_TRY(open_reserve(room, count));
    if (room->head.rank != rank)
        TESS_FAIL(TESS_ERR_INTERNAL, "rank %d came out as rank %d: two ranks have one number", rank,
                  (int)room->head.rank);
    return TESS_OK;
}

/* Tags 0 .. 2^24 - 1 are promised. */
static enum tess_status open_tags(void)
{
    int *most = NULL, found = 0;
    int error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    if (error != MPI_SUCCESS || !found || *most < (1 << 24) - 1)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "this MPI has tags up to %d alone, and %d are needed",
                  error == MPI_SUCCESS && found ? *most : 0, (1 << 24) - 1);
    return TESS_OK;
}

/* Hosts by their names, which are kept once each. */
static enum tess_status open_number_hosts(struct mpi_room *room, char (*all)[MPI_ROOM_NAME_BYTES],
                                          uint64_t *key, int32_t *first)
{
    const int32_t count = room->head.rank_count;
    int32_t hosts = 0;
    for (int32_t r = 0; r < count; r++) {
        all[r][MPI_ROOM_NAME_BYTES - 1] = '\0';
        key[r] = tess_hash_bytes(all[r], strlen(all[r]));
    }
    TESS_TRY(tess__net_firsts(count, key, first));
    for (int32_t r = 0; r < count; r++)
        room->host[r] = first[r] == r ? hosts++ : room->host[first[r]];
    room->names = malloc((size_t)hosts * MPI_ROOM_NAME_BYTES);
    if (room->names == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of %d hosts", (int)hosts);
    for (int32_t r = 0; r < count; r++)
        if (first[r] == r)
            memcpy(room->names + (size_t)room->host[r] * MPI_ROOM_NAME_BYTES, all[r],
                   MPI_ROOM_NAME_BYTES);
    return TESS_OK;
}

static enum tess_status open_gather_hosts(struct mpi_room *room, double limit_s,
                                          char (*all)[MPI_ROOM_NAME_BYTES])
{
    char *own = all[room->head.rank];
    int error;
    MPI_Request request;
    if (gethostname(own, MPI_ROOM_NAME_BYTES - 1) != 0)
        snprintf(own, MPI_ROOM_NAME_BYTES, "?");
    error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_CHAR, all, MPI_ROOM_NAME_BYTES, MPI_CHAR,
                           room->comm, &request);
    if (error == MPI_SUCCESS && !open_wait(&request, NULL, limit_s, &error) && error == MPI_SUCCESS)
        TESS_FAIL(TESS_ERR_TIMEOUT, "the ranks have not all met by MPI in time");
    if (error != MPI_SUCCESS)
        return tess__mpi_fail(room, error, "cannot gather the names of the hosts", -1);
    return TESS_OK;
}

static enum tess_status open_hosts(struct mpi_room *room, double limit_s)
{
    const size_t count = (size_t)room->head.rank_count;
    char(*all)[MPI_ROOM_NAME_BYTES] = calloc(count, sizeof(*all));
    uint64_t *key = calloc(count, sizeof(*key));
    int32_t *first = calloc(count, sizeof(*first));
    enum tess_status status = TESS_OK;
    if (all == NULL || key == NULL || first == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the names of %zu hosts", count);
    if (status == TESS_OK)
        status = open_gather_hosts(room, limit_s, all);
    if (status == TESS_OK)
        status = open_number_hosts(room, all, key, first);
    /* After its time limit MPI may still write the names. */
    if (status == TESS_OK)
        free(all);
    free(key);
    free(first);
    room->head.host = room->host;
    return status;
}

static enum tess_status open_room(struct mpi_room *room, const struct tess_boot *boot,
                                  double timeout_s)
{
    const double limit_s = tess_clock_s() + timeout_s;
    TESS_TRY(open_start(boot));
    TESS_TRY(open_ranks(room, boot));
    TESS_TRY(open_tags());
    TESS_TRY(open_hosts(room, limit_s));
    TESS_TRY(tess__mpi_listen(room));
    room->active = 1;
    return TESS_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The word of this rank's failure leaves it, as far as others take it. */
static void close_notify(struct mpi_room *room)
{
    int error;
    const double limit_s = tess_clock_s() + OPEN_NOTIFY_S;
    (void)tess__mpi_check(room);
    for (int32_t r = 0; r < room->head.rank_count; r++)
        if (room->notice[r] != MPI_REQUEST_NULL)
            (void)open_wait(&room->notice[r], NULL, limit_s, &error);
}

/* All ranks are at their end: then, and only then, can they leave MPI without waiting for one that
 * does not come. False: they are not. */
static bool close_meet(struct mpi_room *room)
{
    MPI_Request request;
    int error = MPI_Ibarrier(room->comm, &request);
    return error == MPI_SUCCESS &&
           open_wait(&request, &room->request[0], tess_clock_s() + room->timeout_s, &error);
}

/* Complete what is under way and not waited for. False: it does not end. */
static bool close_drain(struct mpi_room *room)
{
    const double limit_s = tess_clock_s() + OPEN_DRAIN_S;
    while (room->active > 1 && tess_clock_s() < limit_s && tess__mpi_progress(room) == TESS_OK)
        nanosleep(&(struct timespec){.tv_nsec = OPEN_LOOK_NS}, NULL);
    return room->active == 1;
}

/*
 * MPICH (4.0.2, over UCX) does not always come back from MPI_Finalize between hosts: there a rank
 * waits for its connections to be emptied by others that wait without looking at them, in a barrier
 * of PMI. All have met here, and the process ends soon: so its mpirun only gets the notice that
 * this is no failure.
 */
static void close_end(void)
{
    if (strcmp(TESS_MPI_NAME, "mpich") == 0 && getenv("PMI_FD") != NULL)
        tess__boot_pmi_leave();
    else
        MPI_Finalize();
}

static void close_transport(struct tess_transport *transport)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    bool whole = !room->broken;
    open_count--;
    if (room->comm != MPI_COMM_NULL && atomic_load(&room->aborted) != MPI_ROOM_GOES_ON) {
        close_notify(room);
        whole = false;
    }
    /* Meets in any case: the others wait for it. */
    const bool drained = whole && close_drain(room);
    whole = whole && !room->broken && atomic_load(&room->aborted) == MPI_ROOM_GOES_ON &&
            close_meet(room) && drained;
    if (whole) {
        MPI_Cancel(&room->request[0]);
        MPI_Wait(&room->request[0], MPI_STATUS_IGNORE);
        MPI_Comm_free(&room->control);
        MPI_Comm_free(&room->comm);
    }
    if (whole && open_count == 0)
        close_end();
    /* Otherwise MPI may still write to what is here: it ends with the process. */
    if (!whole)
        return;
    for (int s = 0; s < TESS_TRANSPORT_REQUESTS; s++)
        free(room->slot[s].staged);
    pthread_mutex_destroy(&room->lock);
    free(room->host);
    free(room->names);
    free(room->notice);
    free(room->group);
    free(room);
}

/* ---- the module ------------------------------------------------------------------------------ */

static const struct tess_transport_ops open_ops = {
    .name = "mpi",
    .send = tess__mpi_send,
    .recv = tess__mpi_recv,
    .test = tess__mpi_test,
    .wait = tess__mpi_wait,
    .abort = tess__mpi_abort,
    .close = close_transport,
    .host_name = tess__mpi_host_name,
    .native = &tess__mpi_native,
};

static enum tess_status open_transport(const struct tess_boot *boot, double timeout_s,
                                       struct tess_transport **transport_out)
{
    struct mpi_room *room = calloc(1, sizeof(*room));
    if (room == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for messages over MPI");
    room->head.ops = &open_ops;
    room->head.reason = room->reason;
    room->comm = room->control = MPI_COMM_NULL;
    room->timeout_s = timeout_s;
    room->thread = pthread_self();
    room->request[0] = MPI_REQUEST_NULL;
    pthread_mutex_init(&room->lock, NULL);
    for (uint32_t s = 0; s < TESS_TRANSPORT_REQUESTS; s++)
        room->free_slot[room->free_count++] = TESS_TRANSPORT_REQUESTS - 1 - s;
    open_count++;
    enum tess_status status = open_room(room, boot, timeout_s);
    if (status != TESS_OK) {
        if (room->reason[0] != '\0')
            (void)tess_fail(status, "%s", room->reason);
        room->broken = true;
        close_transport(&room->head);
        return status;
    }
    *transport_out = &room->head;
    return TESS_OK;
}

extern const struct tess_module tess_module;
__attribute__((visibility("default"))) const struct tess_module tess_module = {
    .abi = TESS_ABI,
    .name = "mpi_" TESS_MPI_NAME,
    .summary = TESS_MPI_TEXT,
    .transport_open = open_transport,
};
