/*
 * Messages over MPI point to point: a transport (transport.h). Requests of MPI lie in one array
 * that MPI_Testsome looks through, together with a receive for words of ranks that give up. Not
 * here: starting and ending MPI (comm_mpi_open.c), its collectives (comm_mpi_native.c).
 *
 * Waiting. MPI has no call that sleeps until something comes: MPI_Wait spins, in both libraries,
 * and there is no descriptor to poll. So a wait looks, and naps between looks: not at all for the
 * first 50 us, then for 1/64 of the time for which nothing has moved, at least 20 us and at most
 * 1 ms. That costs a message at most 2 % more than it took anyway and a kernel's timer slack
 * (50 us), and a core that waits for long is 95 % and more free for the ranks that compute.
 */
#include "comm/mpi/comm_mpi_room.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define WAIT_SPIN_S  50e-6
#define WAIT_NAP_S   20e-6
#define WAIT_MOST_S  1e-3
#define WAIT_PORTION (1.0 / 64)
#define WAIT_AWAY_S  3e-3 /* longer than a nap */

const char *tess__mpi_host_name(const struct tess_transport *transport, int32_t rank)
{
    const struct mpi_room *room = (const struct mpi_room *)transport;
    return room->names != NULL ? room->names + (size_t)room->host[rank] * MPI_ROOM_NAME_BYTES : "?";
}

enum tess_status tess__mpi_fail(struct mpi_room *room, int error, const char *what, int32_t peer)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", error);
    text[strcspn(text, "\n")] = '\0';
    room->broken = true;
    if (room->reason[0] != '\0')
        return TESS_ERR_COMM;
    if (peer >= 0)
        snprintf(room->reason, sizeof(room->reason), "%s rank %d on host %s: MPI reports: %.200s",
                 what, (int)peer, tess__mpi_host_name(&room->head, peer), text);
    else
        snprintf(room->reason, sizeof(room->reason), "%s: MPI reports: %.200s", what, text);
    return TESS_ERR_COMM;
}

/* ---- words ----------------------------------------------------------------------------------- */

enum tess_status tess__mpi_listen(struct mpi_room *room)
{
    int error = MPI_Irecv(&room->received, sizeof(room->received), MPI_BYTE, MPI_ANY_SOURCE, 0,
                          room->control, &room->request[0]);
    if (error != MPI_SUCCESS)
        return tess__mpi_fail(room, error, "cannot listen for other ranks' failures", -1);
    return TESS_OK;
}

/* A word has come. The first one stays. */
static enum tess_status room_word(struct mpi_room *room, int32_t from)
{
    room->received.rank = from; /* not the number in the message */
    room->received.reason[sizeof(room->received.reason) - 1] = '\0';
    pthread_mutex_lock(&room->lock);
    if (atomic_load(&room->aborted) == MPI_ROOM_GOES_ON) {
        room->word = room->received;
        atomic_store(&room->aborted, MPI_ROOM_ABORTED);
    }
    pthread_mutex_unlock(&room->lock);
    return tess__mpi_listen(room);
}

static void room_notify(struct mpi_room *room)
{
    atomic_store(&room->aborted, MPI_ROOM_ABORTED);
    for (int32_t r = 0; r < room->head.rank_count; r++)
        if (r != room->head.rank && MPI_Isend(&room->word, sizeof(room->word), MPI_BYTE, r, 0,
                                              room->control, &room->notice[r]) != MPI_SUCCESS)
            room->notice[r] = MPI_REQUEST_NULL; /* a dead rank needs no reason */
}

enum tess_status tess__mpi_check(struct mpi_room *room)
{
    int state = atomic_load(&room->aborted);
    if (state == MPI_ROOM_GOES_ON)
        return TESS_OK;
    if (state == MPI_ROOM_TO_NOTIFY)
        room_notify(room);
    if (room->reason[0] == '\0')
        snprintf(room->reason, sizeof(room->reason),
                 "stopped because rank %d on host %s failed: %s", (int)room->word.rank,
                 tess__mpi_host_name(&room->head, room->word.rank), room->word.reason);
    return TESS_ERR_ABORTED;
}

void tess__mpi_abort(struct tess_transport *transport, const char *reason)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    pthread_mutex_lock(&room->lock);
    if (atomic_load(&room->aborted) == MPI_ROOM_GOES_ON) {
        room->word.rank = transport->rank;
        snprintf(room->word.reason, sizeof(room->word.reason), "%s", reason);
        atomic_store(&room->aborted, MPI_ROOM_TO_NOTIFY);
    }
    pthread_mutex_unlock(&room->lock);
    /* Another thread leaves the sending to the next test or wait, or to close. */
    if (pthread_equal(pthread_self(), room->thread) &&
        atomic_load(&room->aborted) == MPI_ROOM_TO_NOTIFY)
        room_notify(room);
}

/* ---- requests -------------------------------------------------------------------------------- */

enum tess_status tess__mpi_slot(struct mpi_room *room, uint32_t parts, uint32_t *slot_out)
{
    if (room->free_count == 0 || room->active + parts > 1 + MPI_ROOM_PARTS)
        TESS_FAIL(TESS_ERR_INTERNAL, "more than %d messages are under way",
                  TESS_TRANSPORT_REQUESTS);
    uint32_t slot = room->free_slot[--room->free_count];
    room->slot[slot].peer = -1;
    room->slot[slot].left = parts;
    *slot_out = slot;
    return TESS_OK;
}

static void room_done(struct mpi_room *room, uint32_t number)
{
    struct mpi_room_slot *slot = &room->slot[number];
    if (--slot->left > 0)
        return;
    room->news = true;
    if (slot->staged_bytes > 0)
        memcpy(slot->target, slot->staged, slot->staged_bytes);
    slot->staged_bytes = 0;
}

void tess__mpi_slot_add(struct mpi_room *room, uint32_t slot, MPI_Request request)
{
    if (request == MPI_REQUEST_NULL) { /* done on the spot */
        room_done(room, slot);
        return;
    }
    room->owner[room->active] = slot;
    room->request[room->active++] = request;
}

static enum tess_status room_begin(struct mpi_room *room, bool sends, int32_t peer, uint32_t tag,
                                   void *data, size_t bytes, uint32_t *request_out)
{
    TESS_TRY(tess__mpi_check(room));
    uint32_t slot;
    const size_t parts =
        bytes > 0 ? (bytes + MPI_ROOM_PART_BYTES - 1) / MPI_ROOM_PART_BYTES : (size_t)1;
    TESS_TRY(tess__mpi_slot(room, (uint32_t)parts, &slot));
    room->slot[slot].peer = peer;
    room->slot[slot].sends = sends;
    for (size_t part = 0; part < parts; part++) {
        char *at = (char *)data + part * MPI_ROOM_PART_BYTES;
        const size_t left = bytes - part * MPI_ROOM_PART_BYTES;
        const int count = (int)(left < MPI_ROOM_PART_BYTES ? left : MPI_ROOM_PART_BYTES);
        MPI_Request request;
        int error = sends ? MPI_Isend(at, count, MPI_BYTE, peer, (int)tag, room->comm, &request)
                          : MPI_Irecv(at, count, MPI_BYTE, peer, (int)tag, room->comm, &request);
        if (error != MPI_SUCCESS)
            return tess__mpi_fail(room, error, sends ? "cannot send to" : "cannot receive from",
                                  peer);
        tess__mpi_slot_add(room, slot, request);
    }
    *request_out = slot;
    return TESS_OK;
}

enum tess_status tess__mpi_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                const void *data, size_t bytes, uint32_t *request_out)
{
    return room_begin((struct mpi_room *)transport, true, peer, tag, (void *)data, bytes,
                      request_out);
}

enum tess_status tess__mpi_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                void *data, size_t bytes, uint32_t *request_out)
{
    return room_begin((struct mpi_room *)transport, false, peer, tag, data, bytes, request_out);
}

/* The requests that MPI has put an end to leave the array; the rest keeps its order. */
static void room_close_up(struct mpi_room *room)
{
    int kept = 1;
    for (int i = 1; i < room->active; i++) {
        if (room->request[i] == MPI_REQUEST_NULL)
            continue;
        room->request[kept] = room->request[i];
        room->owner[kept++] = room->owner[i];
    }
    room->active = kept;
}

static enum tess_status room_take(struct mpi_room *room, int at, int error, int from)
{
    const uint32_t number = room->owner[at];
    if (error != MPI_SUCCESS) {
        const struct mpi_room_slot *slot = &room->slot[number];
        return tess__mpi_fail(room, error,
                              at == 0          ? "listening for other ranks' failures"
                              : slot->peer < 0 ? "a collective call"
                              : slot->sends    ? "sending to"
                                               : "receiving from",
                              at == 0 ? -1 : slot->peer);
    }
    if (at == 0)
        return room_word(room, from);
    room_done(room, number);
    return TESS_OK;
}

enum tess_status tess__mpi_progress(struct mpi_room *room)
{
    int count = 0;
    TESS_TRY(tess__mpi_check(room));
    int error = MPI_Testsome(room->active, room->request, &count, room->index, room->status);
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS)
        return tess__mpi_fail(room, error, "asking for messages", -1);
    if (count == MPI_UNDEFINED || count <= 0)
        return TESS_OK;
    for (int i = 0; i < count; i++)
        TESS_TRY(room_take(room, room->index[i],
                           error == MPI_ERR_IN_STATUS ? room->status[i].MPI_ERROR : MPI_SUCCESS,
                           room->status[i].MPI_SOURCE));
    room_close_up(room);
    room->moved_s = tess_clock_s();
    return tess__mpi_check(room);
}

enum tess_status tess__mpi_test(struct tess_transport *transport, uint32_t request, bool *done_out)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    if (room->slot[request].left > 0)
        TESS_TRY(tess__mpi_progress(room));
    else
        TESS_TRY(tess__mpi_check(room));
    *done_out = room->slot[request].left == 0;
    if (*done_out)
        room->free_slot[room->free_count++] = request;
    return TESS_OK;
}

enum tess_status tess__mpi_wait(struct tess_transport *transport, double timeout_s)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    double now_s = tess_clock_s();
    const double limit_s = now_s + timeout_s;
    if (now_s - room->looked_s > WAIT_AWAY_S) /* it has computed meanwhile, not waited */
        room->moved_s = now_s;
    for (;;) {
        TESS_TRY(tess__mpi_progress(room));
        room->looked_s = now_s = tess_clock_s();
        const double idle_s = now_s - room->moved_s;
        if (room->news || now_s >= limit_s)
            break;
        if (idle_s < WAIT_SPIN_S)
            continue;
        double nap_s = idle_s * WAIT_PORTION;
        nap_s = nap_s < WAIT_NAP_S ? WAIT_NAP_S : nap_s > WAIT_MOST_S ? WAIT_MOST_S : nap_s;
        nap_s = nap_s < limit_s - now_s ? nap_s : limit_s - now_s;
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap_s * 1e9)}, NULL);
    }
    room->news = false;
    return TESS_OK;
}
