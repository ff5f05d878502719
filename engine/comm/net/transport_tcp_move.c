/*
 * The transport over sockets, at work: words and messages in and out, as far as sockets take and
 * give them. Input is not trusted: data that is no valid frame, or that no request expects, ends
 * the connection and with it the job.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOVE_EVENTS 64
#define MOVE_BATCH  8                 /* messages in one write */
#define MOVE_FAIR   ((size_t)1 << 20) /* bytes of one peer before others have their turn */

int32_t tess__tcp_list_take(struct tcp *tcp, struct tcp_list *list, uint32_t tag)
{
    int32_t before = TCP_NONE;

    for (int32_t at = list->first; at != TCP_NONE; before = at, at = tcp->request[at].next) {
        if (tcp->request[at].tag != tag)
            continue;
        const int32_t next = tcp->request[at].next;
        if (before == TCP_NONE)
            list->first = next;
        else
            tcp->request[before].next = next;
        if (list->last == at)
            list->last = before;
        return at;
    }
    return TCP_NONE;
}

/* ---- endings --------------------------------------------------------------------------------- */

void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text)
{
    const struct tess_transport *transport = &tcp->transport;
    char told[TESS_TRANSPORT_REASON_BYTES];

    if (tcp->status != TESS_OK)
        return;
    snprintf(told, sizeof(told), "%s", text);
    tcp->status = word == TCP_LOST ? TESS_ERR_COMM : TESS_ERR_ABORTED;
    if (word == TCP_LOST)
        snprintf(tcp->reason, sizeof(tcp->reason), "rank %d (%s) has gone: %s", (int)who,
                 transport->host_name[who], told);
    else
        snprintf(tcp->reason, sizeof(tcp->reason), "stopped because rank %d (%s) failed: %s",
                 (int)who, transport->host_name[who], told);
    /* Receivers pass it on, so that it arrives before the end of the connection does. */
    for (int32_t r = 0; r < transport->rank_count; r++)
        if (r != transport->rank)
            tess__tcp_say(tcp, r, word, (uint32_t)who, strlen(told), told);
}

static void move_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The peer's words have ended: in order, or it has gone. */
static void move_words_end(struct tcp *tcp, int32_t r, int error)
{
    struct tcp_peer *peer = &tcp->peer[r];

    move_close(&peer->words);
    peer->out_used = 0;
    if (peer->bye)
        return;
    move_close(&peer->data);
    tess__tcp_end(tcp, TCP_LOST, r,
                  error == 0 ? "it closed the connection without a word" : strerror(error));
}

static void move_stranger(struct tcp *tcp, int32_t r, const char *what)
{
    /* The peer gets the reason too; otherwise it would report that this rank has gone. */
    tess__tcp_end(tcp, TCP_LOST, r, what);
    move_close(&tcp->peer[r].data);
}

void tess__tcp_differ(struct tcp *tcp, int32_t r, uint64_t expected, size_t bytes)
{
    char what[160];

    snprintf(
        what, sizeof(what),
        "it expects %llu bytes where rank %d sends %zu: every rank must make the same calls in "
        "the same order",
        (unsigned long long)expected, (int)tcp->transport.rank, bytes);
    move_stranger(tcp, r, what);
}

/* ---- what is watched ------------------------------------------------------------------------- */

static void move_watch(struct tcp *tcp, int32_t r, int which, bool blocked)
{
    struct tcp_peer *peer = &tcp->peer[r];
    bool *known = which == 0 ? &peer->words_blocked : &peer->data_blocked;
    const int fd = which == 0 ? peer->words : peer->data;
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0u),
                                .data.u64 = (uint64_t)r * 2 + (uint64_t)which};

    if (*known == blocked || fd < 0)
        return;
    *known = blocked;
    (void)epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, fd, &event); /* the descriptor is in it */
}

static bool move_again(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static void words_pull(struct tcp *tcp, int32_t r);

/* ---- messages out ---------------------------------------------------------------------------- */

static void data_sent(struct tcp *tcp, struct tcp_peer *peer, size_t count)
{
    while (peer->sending.first != TCP_NONE) {
        struct tcp_request *request = &tcp->request[peer->sending.first];
        const size_t left = sizeof(request->head) + request->bytes - request->moved;
        const size_t part = count < left ? count : left;

        request->moved += part;
        count -= part;
        if (part < left)
            return;
        peer->sending.first = request->next;
        if (peer->sending.first == TCP_NONE)
            peer->sending.last = TCP_NONE;
        request->state = TCP_DONE;
        tcp->moved = true;
        if (count == 0)
            return;
    }
}

static int data_gather(const struct tcp *tcp, const struct tcp_peer *peer,
                       struct iovec part[2 * MOVE_BATCH], size_t *bytes_out)
{
    int count = 0;

    *bytes_out = 0;
    for (int32_t at = peer->sending.first; at != TCP_NONE && count + 2 <= 2 * MOVE_BATCH;
         at = tcp->request[at].next) {
        const struct tcp_request *request = &tcp->request[at];
        const size_t head = sizeof(request->head), skip = request->moved;

        if (skip < head)
            part[count++] = (struct iovec){(char *)&request->head + skip, head - skip};
        const size_t from = skip > head ? skip - head : 0;
        if (request->bytes > from)
            part[count++] = (struct iovec){request->data + from, request->bytes - from};
        *bytes_out += head + request->bytes - skip;
    }
    return count;
}

static void data_push(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];

    if (peer->data_blocked || tcp->status != TESS_OK)
        return;
    while (peer->data >= 0 && peer->sending.first != TCP_NONE) {
        struct iovec part[2 * MOVE_BATCH];
        size_t bytes;
        struct msghdr message = {.msg_iov = part};

        message.msg_iovlen = (size_t)data_gather(tcp, peer, part, &bytes);
        const ssize_t sent = sendmsg(peer->data, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && move_again(errno)) {
            move_watch(tcp, r, 1, true);
            return;
        }
        if (sent < 0) {
            const int error = errno;
            words_pull(tcp, r); /* the reason may be there */
            if (peer->words >= 0)
                move_words_end(tcp, r, error);
            return;
        }
        data_sent(tcp, peer, (size_t)sent);
        if ((size_t)sent < bytes) {
            move_watch(tcp, r, 1, true);
            return;
        }
    }
}

void tess__tcp_send(struct tcp *tcp, int32_t number)
{
    struct tcp_request *request = &tcp->request[number];

    request->state = TCP_MOVES;
    tcp_list_add(tcp, &tcp->peer[request->peer].sending, number);
    data_push(tcp, request->peer);
}

/* The socket takes something again. It stays watched while it does not take all. */
static void data_unblock(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];

    peer->data_blocked = false;
    data_push(tcp, r);
    if (peer->data_blocked || tcp->status != TESS_OK)
        return;
    peer->data_blocked = true;
    move_watch(tcp, r, 1, false);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void words_push(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];
    size_t done = 0;

    while (peer->words >= 0 && done < peer->out_used) {
        const ssize_t sent =
            send(peer->words, peer->out + done, peer->out_used - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && move_again(errno))
            break;
        if (sent < 0) { /* reading gives the reason: a last word may be there */
            peer->out_used = done = 0;
            break;
        }
        done += (size_t)sent;
    }
    peer->out_used -= done;
    memmove(peer->out, peer->out + done, peer->out_used);
    move_watch(tcp, r, 0, peer->out_used > 0);
}

void tess__tcp_say(struct tcp *tcp, int32_t r, enum tcp_word word, uint32_t tag, uint64_t bytes,
                   const char *text)
{
    struct tcp_peer *peer = &tcp->peer[r];
    const struct tcp_frame frame = {TCP_MAGIC, word, tag, 0, bytes};
    const size_t text_bytes = text != NULL ? (size_t)bytes : 0;
    const size_t needed = peer->out_used + sizeof(frame) + text_bytes;

    if (peer->words < 0)
        return;
    if (needed > peer->out_room) {
        const size_t room = needed * 2;
        char *out = realloc(peer->out, room);
        if (out == NULL) {
            if (tcp->status == TESS_OK) {
                tcp->status = TESS_ERR_MEMORY;
                snprintf(tcp->reason, sizeof(tcp->reason), "no memory for words to rank %d",
                         (int)r);
            }
            return;
        }
        peer->out = out;
        peer->out_room = room;
    }
    memcpy(peer->out + peer->out_used, &frame, sizeof(frame));
    if (text_bytes > 0)
        memcpy(peer->out + peer->out_used + sizeof(frame), text, text_bytes);
    peer->out_used = needed;
    if (!peer->words_blocked)
        words_push(tcp, r);
}

/* A receive of the peer's: its send goes, or is remembered to go when it begins. */
static void words_ready(struct tcp *tcp, int32_t r, uint32_t tag, uint64_t bytes)
{
    struct tcp_peer *peer = &tcp->peer[r];
    const int32_t number = tess__tcp_list_take(tcp, &peer->sends, tag);

    if (number != TCP_NONE && tcp->request[number].bytes != bytes) {
        tess__tcp_differ(tcp, r, bytes, tcp->request[number].bytes);
        return;
    }
    if (number != TCP_NONE) {
        tess__tcp_send(tcp, number);
        return;
    }
    if (peer->ready_count == TESS_TRANSPORT_REQUESTS) {
        move_stranger(tcp, r, "it begins more receives than there may be");
        return;
    }
    if (peer->ready_count == peer->ready_room) {
        const int32_t room = peer->ready_room * 2;
        struct tcp_ready *ready = realloc(peer->ready, (size_t)room * sizeof(*ready));
        if (ready == NULL) {
            move_stranger(tcp, r, "there is no memory for what it expects");
            return;
        }
        peer->ready = ready;
        peer->ready_room = room;
    }
    peer->ready[peer->ready_count++] = (struct tcp_ready){tag, bytes};
}

/* The first frame of what has come; bytes that it took, 0: not all of it is there. */
static size_t words_take(struct tcp *tcp, int32_t r, const unsigned char *in, size_t count)
{
    struct tcp_peer *peer = &tcp->peer[r];
    struct tcp_frame frame;
    char text[TESS_TRANSPORT_REASON_BYTES];

    if (count < sizeof(frame))
        return 0;
    memcpy(&frame, in, sizeof(frame));
    const bool ends = frame.word == TCP_ABORT || frame.word == TCP_LOST;
    if (frame.magic != TCP_MAGIC || frame.word < TCP_READY || frame.word > TCP_BYE ||
        (ends &&
         (frame.bytes >= sizeof(text) || frame.tag >= (uint32_t)tcp->transport.rank_count))) {
        move_stranger(tcp, r, "what comes from it is not of this program");
        return 0;
    }
    if (ends && count < sizeof(frame) + frame.bytes)
        return 0;
    if (ends) {
        memcpy(text, in + sizeof(frame), (size_t)frame.bytes);
        text[frame.bytes] = '\0';
        tess__tcp_end(tcp, (enum tcp_word)frame.word, (int32_t)frame.tag, text);
        return sizeof(frame) + (size_t)frame.bytes;
    }
    if (frame.word == TCP_BYE)
        peer->bye = true;
    else
        words_ready(tcp, r, frame.tag, frame.bytes);
    return sizeof(frame);
}

static void words_pull(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];

    while (peer->words >= 0) {
        const size_t room = sizeof(peer->in) - peer->in_used;
        const ssize_t got = recv(peer->words, peer->in + peer->in_used, room, MSG_DONTWAIT);
        size_t used = 0, taken = 1;

        if (got < 0 && move_again(errno))
            return;
        if (got <= 0) {
            move_words_end(tcp, r, got == 0 ? 0 : errno);
            return;
        }
        peer->in_used += (size_t)got;
        while (taken > 0 && tcp->status == TESS_OK) {
            taken = words_take(tcp, r, peer->in + used, peer->in_used - used);
            used += taken;
        }
        /* Once all is over nothing that comes matters, but it is taken, so that the end is seen. */
        peer->in_used = tcp->status == TESS_OK ? peer->in_used - used : 0;
        memmove(peer->in, peer->in + used, peer->in_used);
        if ((size_t)got < room)
            return;
    }
}

/* ---- messages in ----------------------------------------------------------------------------- */

/* The head is there: which receive is it for? */
static bool data_begin(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];
    int32_t number = TCP_NONE;

    if (peer->head.magic == TCP_MAGIC)
        number = tess__tcp_list_take(tcp, &peer->receives, peer->head.tag);
    if (number == TCP_NONE || tcp->request[number].bytes != peer->head.bytes) {
        move_stranger(tcp, r, "what comes from it is no message that was asked for");
        return false;
    }
    tcp->request[number].state = TCP_MOVES;
    peer->receiving = number;
    return true;
}

/* Account for `got` bytes: of the payload that is being received, then of the next head. */
static bool data_account(struct tcp *tcp, int32_t r, size_t got)
{
    struct tcp_peer *peer = &tcp->peer[r];

    if (peer->receiving != TCP_NONE) {
        struct tcp_request *request = &tcp->request[peer->receiving];
        const size_t left = request->bytes - request->moved, part = got < left ? got : left;
        request->moved += part;
        got -= part;
        if (request->moved < request->bytes)
            return true;
        request->state = TCP_DONE;
        tcp->moved = true;
        peer->receiving = TCP_NONE;
        peer->head_used = 0;
    }
    peer->head_used += got;
    if (peer->head_used < sizeof(peer->head))
        return true;
    if (!data_begin(tcp, r))
        return false;
    return tcp->request[peer->receiving].bytes > 0 || data_account(tcp, r, 0);
}

/* The rest of a payload and the head behind it come in one read. The head's buffer is free
 * meanwhile: the request has its contents. */
static void data_pull(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = &tcp->peer[r];
    size_t total = 0;

    while (peer->data >= 0 && total < MOVE_FAIR && tcp->status == TESS_OK) {
        struct iovec part[2];
        size_t wanted = 0;
        int count = 0;

        if (peer->receiving != TCP_NONE) {
            const struct tcp_request *request = &tcp->request[peer->receiving];
            part[count++] =
                (struct iovec){request->data + request->moved, request->bytes - request->moved};
            part[count++] = (struct iovec){&peer->head, sizeof(peer->head)};
        } else {
            part[count++] = (struct iovec){(char *)&peer->head + peer->head_used,
                                           sizeof(peer->head) - peer->head_used};
        }
        for (int i = 0; i < count; i++)
            wanted += part[i].iov_len;
        const ssize_t got = readv(peer->data, part, count);
        if (got < 0 && move_again(errno))
            return;
        if (got <= 0) {
            const int error = got == 0 ? 0 : errno;
            const bool between = peer->receiving == TCP_NONE && peer->head_used == 0;
            words_pull(tcp, r);
            move_close(&peer->data);
            /* Otherwise its words have the reason. */
            if (peer->words >= 0 && (!between || error != 0))
                move_words_end(tcp, r, error);
            return;
        }
        total += (size_t)got;
        if (!data_account(tcp, r, (size_t)got) || (size_t)got < wanted)
            return;
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

static void move_event(struct tcp *tcp, const struct epoll_event *event)
{
    const int32_t r = (int32_t)(event->data.u64 / 2);
    const bool words = event->data.u64 % 2 == 0;

    if (event->data.u64 == UINT64_MAX) {
        uint64_t rung;
        const ssize_t got = read(tcp->bell, &rung, sizeof(rung)); /* it rings no more */
        (void)got;
        return;
    }
    if (words && (event->events & EPOLLOUT) != 0)
        words_push(tcp, r);
    if (words && (event->events & ~(uint32_t)EPOLLOUT) != 0)
        words_pull(tcp, r);
    if (!words && (event->events & EPOLLOUT) != 0) {
        data_unblock(tcp, r);
    }
    if (!words && (event->events & ~(uint32_t)EPOLLOUT) != 0)
        data_pull(tcp, r);
}

void tess__tcp_move(struct tcp *tcp, int timeout_ms)
{
    struct epoll_event event[MOVE_EVENTS];
    const int count = epoll_wait(tcp->epoll, event, MOVE_EVENTS, timeout_ms);

    for (int i = 0; i < count; i++)
        move_event(tcp, &event[i]);
    if (atomic_load_explicit(&tcp->abort_state, memory_order_acquire) == 2)
        tess__tcp_end(tcp, TCP_ABORT, tcp->transport.rank, tcp->abort_text);
    tcp->looked_s = tess_clock_s();
}
