/*
 * The transport over sockets, at work: words and messages in and out, as far as sockets take and
 * give them. Input is not trusted: data that is no valid frame, or that no request expects, ends
 * the connection and with it the job.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"
#include "tessera/check.h"

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

#define MOVE_LATE_S 4e-3 /* for which words wait for others */

/* The receive of which nothing has come; NULL: there is none. */
static struct tcp_request *move_receive(struct tcp *tcp, int32_t r, uint32_t tag, uint32_t number)
{
    struct tcp_request *request = number < tcp->request_count ? &tcp->request[number] : NULL;

    return request != NULL && request->state == TCP_WAITS && !request->send && request->peer == r &&
                   request->head.tag == tag
               ? request
               : NULL;
}

/* Of shared memory. A peer whose bell this rank cannot ring gets word that there is room. */
static ssize_t move_take(struct tcp *tcp, struct tcp_peer *peer, int which, struct iovec *part,
                         int parts)
{
    const struct tcp_frame look = {.word = TCP_LOOK};
    const ssize_t got = tess__tcp_near_take(peer, which, part, parts);
    const int error = errno;

    if (peer->look) {
        peer->look = false;
        tess__tcp_say(tcp, peer->rank, &look, NULL);
    }
    errno = error;
    return got;
}

/* `all`: of the connection too, after what is in memory: it ends last. */
static ssize_t move_read(struct tcp *tcp, struct tcp_peer *peer, int which, bool all,
                         struct iovec *part, int parts)
{
    struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};
    ssize_t got = move_take(tcp, peer, which, part, parts);

    if (got >= 0 || !tess__tcp_again(errno) || !all)
        return got;
    got = recvmsg(peer->fd[which], &message, MSG_DONTWAIT);
    if (got > 0 || peer->boxes == NULL || !tess__tcp_near_comes(peer, which))
        return got;
    return move_take(tcp, peer, which, part, parts);
}

static void words_pull(struct tcp *tcp, int32_t r, bool all);

/* ---- messages out ---------------------------------------------------------------------------- */

static void data_sent(struct tcp *tcp, struct tcp_peer *peer, size_t count)
{
    for (struct tcp_request *request; count > 0; tcp->moved = true) {
        request = TAILQ_FIRST(&peer->sending);
        const size_t left = sizeof(request->head) + request->head.bytes - request->moved;
        const size_t part = count < left ? count : left;

        request->moved += part;
        count -= part;
        if (part < left)
            return;
        TAILQ_REMOVE(&peer->sending, request, link);
        request->state = TCP_DONE;
    }
}

static int data_gather(struct tcp_peer *peer, struct iovec part[2 * MOVE_BATCH], size_t *bytes_out)
{
    int count = 0;

    *bytes_out = 0;
    for (struct tcp_request *request = TAILQ_FIRST(&peer->sending);
         request != NULL && count + 2 <= 2 * MOVE_BATCH; request = TAILQ_NEXT(request, link)) {
        const size_t head = sizeof(request->head), skip = request->moved;
        const size_t bytes = request->head.bytes, from = skip > head ? skip - head : 0;

        if (skip < head)
            part[count++] = (struct iovec){(char *)&request->head + skip, head - skip};
        if (bytes > from)
            part[count++] = (struct iovec){request->data + from, bytes - from};
        *bytes_out += head + bytes - skip;
    }
    return count;
}

static void data_push(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    if (peer->corked)
        LIST_REMOVE(peer, corked_link);
    peer->corked = false;
    if (peer->blocked[TCP_DATA] || tcp->status != TESS_OK)
        return;
    while (peer->fd[TCP_DATA] >= 0 && !TAILQ_EMPTY(&peer->sending)) {
        struct iovec part[2 * MOVE_BATCH];
        size_t bytes;
        const int parts = data_gather(peer, part, &bytes);
        const ssize_t sent = tess__tcp_write(peer, TCP_DATA, part, parts);
        if (sent < 0 && !tess__tcp_again(errno)) {
            const int error = errno;
            words_pull(tcp, r, true); /* the reason may be there */
            if (peer->fd[TCP_WORDS] >= 0)
                tess__tcp_words_end(tcp, r, error);
            return;
        }
        if (sent > 0)
            data_sent(tcp, peer, (size_t)sent);
        if (sent < 0 || (size_t)sent < bytes) {
            tess__tcp_watch(tcp, r, TCP_DATA, true);
            return;
        }
    }
}

void tess__tcp_send(struct tcp *tcp, struct tcp_request *request, uint32_t number)
{
    request->state = TCP_MOVES;
    request->head.number = number;
    struct tcp_peer *peer = tess__tcp_at(tcp, request->peer);

    TAILQ_INSERT_TAIL(&peer->sending, request, link);
    if (request->head.bytes > TCP_CORK_MOST)
        data_push(tcp, request->peer);
    else if (!peer->corked)
        LIST_INSERT_HEAD(&tcp->corked, peer, corked_link);
    peer->corked = peer->corked || request->head.bytes <= TCP_CORK_MOST;
}

void tess__tcp_flush(struct tcp *tcp)
{
    while (!LIST_EMPTY(&tcp->corked))
        data_push(tcp, LIST_FIRST(&tcp->corked)->rank);
}

/* The socket takes something again. It stays watched while it does not take all. */
static void data_unblock(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    peer->blocked[TCP_DATA] = false;
    data_push(tcp, r);
    if (peer->blocked[TCP_DATA] || tcp->status != TESS_OK)
        return;
    peer->blocked[TCP_DATA] = true;
    tess__tcp_watch(tcp, r, TCP_DATA, false);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The peer has announced the receive of a message that went early: there is room again. */
static void words_early(struct tcp *tcp, int32_t r, const struct tcp_ready *early,
                        const struct tcp_ready *ready)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    peer->early_bytes -= tess__tcp_early_cost(early->bytes);
    if (early->bytes != ready->bytes) {
        tess__tcp_differ(tcp, r, true, ready->bytes, early->bytes);
        return;
    }
    for (struct tcp_request *request; (request = TAILQ_FIRST(&peer->sends)) != NULL;) {
        TAILQ_REMOVE(&peer->sends, request, link);
        if (!tess__tcp_early_goes(peer, request->head.tag, request->head.bytes)) {
            TAILQ_INSERT_HEAD(&peer->sends, request, link);
            return;
        }
        tess__tcp_send(tcp, request, TCP_EARLY);
    }
}

/* A receive of the peer's: its send goes, or is remembered to go when it begins. */
static void words_ready(struct tcp *tcp, int32_t r, const struct tcp_ready *ready)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    struct tcp_ready early;

    if (tess__tcp_readies_take(&peer->early, ready->tag, &early)) {
        words_early(tcp, r, &early, ready);
        return;
    }
    struct tcp_request *request = tess__tcp_take(&peer->sends, ready->tag);
    if (request != NULL && request->head.bytes != ready->bytes)
        tess__tcp_differ(tcp, r, true, ready->bytes, request->head.bytes);
    else if (request != NULL)
        tess__tcp_send(tcp, request, ready->number);
    else if (peer->ready.count == TESS_TRANSPORT_REQUESTS)
        tess__tcp_stranger(tcp, r, "it begins more receives than there may be");
    else if (!tess__tcp_readies_add(&peer->ready, ready))
        tess__tcp_stranger(tcp, r, "there is no memory for the receives that it begins");
}

/* The first frame of what has come; bytes that it took, 0: not all of it is there. */
static size_t words_take(struct tcp *tcp, int32_t r, const unsigned char *in, size_t count)
{
    struct tcp_frame frame;
    char text[TESS_TRANSPORT_REASON_BYTES];

    if (count < sizeof(frame))
        return 0;
    memcpy(&frame, in, sizeof(frame));
    const bool ends = frame.word == TCP_ABORT || frame.word == TCP_LOST;
    const size_t rest = ends || frame.word == TCP_NOTICE ? (size_t)frame.bytes : 0;
    if (frame.magic != TCP_MAGIC || frame.word < TCP_READY || frame.word > TCP_BYE ||
        rest >= sizeof(text) || (ends && frame.tag >= (uint32_t)tcp->transport.rank_count)) {
        tess__tcp_stranger(tcp, r, "what comes from it is not of this program");
        return 0;
    }
    if (count < sizeof(frame) + rest)
        return 0;
    memcpy(text, in + sizeof(frame), rest);
    text[rest] = '\0';
    if (ends)
        tess__tcp_end(tcp, (enum tcp_word)frame.word, (int32_t)frame.tag, text);
    else if (frame.word == TCP_NOTICE && tcp->transport.on_notice != NULL)
        tcp->transport.on_notice(tcp->transport.notice_user, r, frame.tag, text, rest);
    else if (frame.word == TCP_BYE)
        tess__tcp_at(tcp, r)->bye = true;
    else if (frame.word == TCP_READY)
        words_ready(tcp, r, &(struct tcp_ready){frame.tag, frame.number, frame.bytes});
    return sizeof(frame) + rest;
}

static void words_pull(struct tcp *tcp, int32_t r, bool all)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    while (peer->fd[TCP_WORDS] >= 0) {
        const size_t room = sizeof(peer->in) - peer->in_used;
        struct iovec part = {peer->in + peer->in_used, room};
        const ssize_t got = move_read(tcp, peer, TCP_WORDS, all, &part, 1);
        size_t used = 0, taken = 1;

        if (got < 0 && tess__tcp_again(errno))
            return;
        if (got <= 0) {
            tess__tcp_words_end(tcp, r, got == 0 ? 0 : errno);
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
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    struct tcp_request *request = NULL;

    if (peer->head.magic == TCP_MAGIC && peer->head.number == TCP_EARLY) {
        peer->receiving = tess__tcp_early_begin(tcp, r);
        return peer->receiving != NULL;
    }
    if (peer->head.magic == TCP_MAGIC)
        request = move_receive(tcp, r, peer->head.tag, peer->head.number);
    if (request == NULL || request->head.bytes != peer->head.bytes) {
        tess__tcp_stranger(tcp, r, "what comes from it is no message that was requested");
        return false;
    }
    if (tess__tcp_early_is(request->head.bytes))
        TAILQ_REMOVE(&peer->expects, request, link);
    request->state = TCP_MOVES;
    peer->receiving = request;
    return true;
}

/* So many bytes of the payload that is being received are there. */
static void data_account(struct tcp *tcp, struct tcp_peer *peer, size_t count)
{
    struct tcp_request *request = peer->receiving;

    request->moved += count;
    if (request->moved < request->head.bytes)
        return;
    peer->receiving = NULL;
    peer->head_used = 0;
    tcp->moved = true;
    tess__tcp_early_end(tcp, request);
}

/* The first `count` bytes of the stage: heads and payloads. */
static bool data_take(struct tcp *tcp, int32_t r, size_t count)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    for (size_t at = 0; at < count;) {
        struct tcp_request *request = peer->receiving;
        const size_t used = request != NULL ? request->moved : peer->head_used;
        const size_t whole = request != NULL ? request->head.bytes : sizeof(peer->head);
        const size_t part = count - at < whole - used ? count - at : whole - used;
        memcpy(request != NULL ? request->data + used : (char *)&peer->head + used, tcp->stage + at,
               part);
        at += part;
        if (request != NULL) {
            data_account(tcp, peer, part);
            continue;
        }
        peer->head_used += part;
        if (peer->head_used < sizeof(peer->head))
            return true;
        if (!data_begin(tcp, r))
            return false;
        if (peer->receiving->head.bytes == 0)
            data_account(tcp, peer, 0);
    }
    return true;
}

/* The rest of a payload and the head behind it come in one read; between messages all that fits
 * into the stage, mostly several small ones. */
static void data_pull(struct tcp *tcp, int32_t r, bool all)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    size_t total = 0;

    while (peer->fd[TCP_DATA] >= 0 && total < MOVE_FAIR && tcp->status == TESS_OK) {
        const struct tcp_request *request = peer->receiving;
        const size_t left = request != NULL ? request->head.bytes - request->moved : 0;
        struct iovec part[2] = {
            {request != NULL ? request->data + request->moved : NULL, left},
            {tcp->stage, request != NULL ? sizeof(peer->head) : sizeof(tcp->stage)},
        };
        const size_t wanted = left + part[1].iov_len;
        const ssize_t got = move_read(tcp, peer, TCP_DATA, all, part, 2);
        if (got < 0 && tess__tcp_again(errno))
            return;
        if (got <= 0) {
            const int error = got == 0 ? 0 : errno;
            const bool between = request == NULL && peer->head_used == 0;
            words_pull(tcp, r, true);
            tess__tcp_close_fd(&peer->fd[TCP_DATA]);
            /* Otherwise its words have the reason. */
            if (peer->fd[TCP_WORDS] >= 0 && (!between || error != 0))
                tess__tcp_words_end(tcp, r, error);
            return;
        }
        total += (size_t)got;
        const size_t direct = (size_t)got < left ? (size_t)got : left;
        if (direct > 0)
            data_account(tcp, peer, direct);
        if (!data_take(tcp, r, (size_t)got - direct) || (size_t)got < wanted)
            return;
    }
}

/* ---- memory shared with others --------------------------------------------------------------- */

static void near_move(struct tcp *tcp)
{
    struct tcp_peer *peer;

    LIST_FOREACH(peer, &tcp->near_peers, near_link)
    {
        if (tess__tcp_near_goes(peer, TCP_WORDS))
            tess__tcp_words_push(tcp, peer->rank);
        if (tess__tcp_near_comes(peer, TCP_WORDS))
            words_pull(tcp, peer->rank, false);
        if (tess__tcp_near_goes(peer, TCP_DATA))
            data_unblock(tcp, peer->rank);
        if (tess__tcp_near_comes(peer, TCP_DATA))
            data_pull(tcp, peer->rank, false);
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Does a message with the peer wait, or only words that are sent to it? */
static bool move_waits(const struct tcp *tcp, int32_t r)
{
    for (uint32_t k = 0; k < tcp->request_count; k++) {
        const struct tcp_request *request = &tcp->request[k];
        if (request->peer == r && (request->state == TCP_WAITS || request->state == TCP_MOVES))
            return true;
    }
    return false;
}

/* A connection is there: what waits for it goes. Or there is none: a rank that gets only notices
 * may have ended in order before it answered. */
static void move_news(struct tcp *tcp, const struct tcp_news *news)
{
    if (news->open && news->which == TCP_WORDS && tcp->status != TESS_OK)
        tess__tcp_say_end(tcp, news->peer);
    if (news->open) {
        tess__tcp_words_push(tcp, news->peer);
        data_push(tcp, news->peer);
    }
    if (news->gone && !move_waits(tcp, news->peer))
        tess__tcp_at(tcp, news->peer)->out_used = 0;
    else if (news->failed)
        tess__tcp_end(tcp, news->gone ? TCP_LOST : TCP_ABORT,
                      news->gone ? news->peer : tcp->transport.rank, news->why);
}

enum tess_status tess__tcp_reach(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_peer(tcp, r);
    struct tcp_news news = {.peer = r};

    if (peer == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for messages with rank %d", (int)r);
    if (tcp->status != TESS_OK || peer->call != NULL || peer->calls || peer->met[TCP_WORDS] ||
        peer->met[TCP_DATA])
        return tcp->status;
    tess__tcp_call(tcp, r, &news);
    move_news(tcp, &news);
    return tcp->status;
}

static void move_event(struct tcp *tcp, const struct epoll_event *event)
{
    const uint64_t tag = event->data.u64;
    const uint32_t number = (uint32_t)tag;
    const int32_t r = (int32_t)(number / TCP_CONNECTIONS);
    const int which = (int)(number % TCP_CONNECTIONS);
    struct tcp_news news = {.peer = r};

    if (tag >= TCP_TAG_BELL) {
        char rung[64];
        const ssize_t got = read(tcp->bell[0], rung, sizeof(rung));
        (void)got; /* where there is more epoll says so again */
    } else if (tag >= TCP_TAG_DOOR) {
        tess__tcp_door_event(tcp, (int)number, &news);
    } else if (tag >= TCP_TAG_CALLER) {
        tess__tcp_caller_event(tcp, (int)number, &news);
    } else if (tag >= TCP_TAG_CALL) {
        tess__tcp_call_event(tcp, r, which, &news);
    } else {
        if ((event->events & EPOLLOUT) != 0)
            (which == TCP_WORDS ? tess__tcp_words_push : data_unblock)(tcp, r);
        if ((event->events & ~(uint32_t)EPOLLOUT) != 0)
            (which == TCP_WORDS ? words_pull : data_pull)(tcp, r, true);
    }
    move_news(tcp, &news);
}

void tess__tcp_move(struct tcp *tcp, int timeout_ms)
{
    struct epoll_event event[MOVE_EVENTS];
    bool moved = tcp->moved;

    near_move(tcp);
    tess__tcp_flush(tcp);
    if (timeout_ms != 0 && ((tcp->moved && !moved) || !tess__tcp_near_sleep(tcp)))
        timeout_ms = 0;
    if (!LIST_EMPTY(&tcp->late) && (timeout_ms < 0 || timeout_ms > MOVE_LATE_S * 1e3))
        timeout_ms = (int)(MOVE_LATE_S * 1e3);
    const int count = epoll_wait(tcp->epoll, event, MOVE_EVENTS, timeout_ms);
    tess__tcp_near_wake_up(tcp);
    for (int i = 0; i < count; i++)
        move_event(tcp, &event[i]);
    near_move(tcp);
    if (tcp->caller_count > 0)
        tess__tcp_callers_late(tcp);
    if (atomic_load_explicit(&tcp->abort_state, memory_order_acquire) == 2)
        tess__tcp_end(tcp, TCP_ABORT, tcp->transport.rank, tcp->abort_text);
    tcp->looked_s = tess_clock_s();
    if (!LIST_EMPTY(&tcp->late) && tcp->looked_s - tcp->late_s > MOVE_LATE_S)
        tess__tcp_words_push_late(tcp);
    tess__tcp_flush(tcp);
}
