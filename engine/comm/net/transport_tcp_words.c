/*
 * The transport over sockets: what is said to peers beside messages, and how a job ends. Words wait
 * in memory while a connection does not take them.
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

#define WORDS_OUT_LEAST 512 /* bytes for words, at first */

struct tcp_request *tess__tcp_take(struct tcp_list *list, uint32_t tag)
{
    struct tcp_request *request = TAILQ_FIRST(list);

    while (request != NULL && request->head.tag != tag)
        request = TAILQ_NEXT(request, link);
    if (request != NULL)
        TAILQ_REMOVE(list, request, link);
    return request;
}

/* ---- endings --------------------------------------------------------------------------------- */

void tess__tcp_say_end(struct tcp *tcp, int32_t r)
{
    const struct tcp_frame frame = {
        .word = tcp->end_word, .tag = (uint32_t)tcp->end_who, .bytes = strlen(tcp->end_text)};

    tess__tcp_say(tcp, r, &frame, tcp->end_text);
}

void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text)
{
    const struct tess_transport *transport = &tcp->transport;

    if (tcp->status != TESS_OK)
        return;
    snprintf(tcp->end_text, sizeof(tcp->end_text), "%s", text);
    tcp->end_word = word;
    tcp->end_who = who;
    tcp->status = word == TCP_LOST ? TESS_ERR_COMM : TESS_ERR_ABORTED;
    if (word == TCP_LOST)
        snprintf(tcp->reason, sizeof(tcp->reason), "rank %d (%s) has gone: %s", (int)who,
                 tess__tcp_host_name(transport, who), tcp->end_text);
    else
        snprintf(tcp->reason, sizeof(tcp->reason), "stopped because rank %d (%s) failed: %s",
                 (int)who, tess__tcp_host_name(transport, who), tcp->end_text);
    /* Receivers pass it on, so that it arrives before the end of the connection does, and at ranks
     * that have none with this one. Those that connect later get it then. */
    for (int32_t r = 0; r < transport->rank_count; r++)
        if (tess__tcp_at(tcp, r) != NULL && tess__tcp_at(tcp, r)->met[TCP_WORDS])
            tess__tcp_say_end(tcp, r);
}

void tess__tcp_close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The peer's words have ended: in order, or it has gone. */
void tess__tcp_words_end(struct tcp *tcp, int32_t r, int error)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    tess__tcp_close_fd(&peer->fd[TCP_WORDS]);
    peer->out_used = 0;
    if (peer->bye)
        return;
    tess__tcp_close_fd(&peer->fd[TCP_DATA]);
    tess__tcp_end(tcp, TCP_LOST, r,
                  error == 0 ? "it closed the connection without a word" : strerror(error));
}

void tess__tcp_stranger(struct tcp *tcp, int32_t r, const char *what)
{
    /* The peer gets the reason too; otherwise it would report that this rank has gone. */
    tess__tcp_end(tcp, TCP_LOST, r, what);
    tess__tcp_close_fd(&tess__tcp_at(tcp, r)->fd[TCP_DATA]);
}

void tess__tcp_differ(struct tcp *tcp, int32_t r, bool theirs, uint64_t expected, uint64_t bytes)
{
    const int rank = (int)tcp->transport.rank;
    char what[160], sides[80];

    if (theirs)
        snprintf(sides, sizeof(sides), "expects %llu bytes where rank %d sends %llu",
                 (unsigned long long)expected, rank, (unsigned long long)bytes);
    else
        snprintf(sides, sizeof(sides), "sends %llu bytes where rank %d expects %llu",
                 (unsigned long long)bytes, rank, (unsigned long long)expected);
    snprintf(what, sizeof(what), "it %s: every rank must make the same calls in the same order",
             sides);
    tess__tcp_stranger(tcp, r, what);
}

/* ---- what is watched ------------------------------------------------------------------------- */

void tess__tcp_watch(struct tcp *tcp, int32_t r, int which, bool blocked)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0u),
                                .data.u64 = (uint64_t)r * TCP_CONNECTIONS + (uint64_t)which};

    if (peer->blocked[which] == blocked || peer->fd[which] < 0)
        return;
    peer->blocked[which] = blocked;
    if (!tess__tcp_near_gives(peer))
        (void)epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, peer->fd[which], &event); /* it is watched */
}

/* Without waiting: of the memory that is shared with the peer, else of the connection. */
ssize_t tess__tcp_write(struct tcp_peer *peer, int which, struct iovec *part, int parts)
{
    const struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};

    return tess__tcp_near_gives(peer)
               ? tess__tcp_near_give(peer, which, part, parts)
               : sendmsg(peer->fd[which], &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- words ----------------------------------------------------------------------------------- */

void tess__tcp_words_push(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    size_t done = 0;

    if (peer->late)
        LIST_REMOVE(peer, late_link);
    peer->late = false;
    peer->late_bytes = 0;

    while (peer->fd[TCP_WORDS] >= 0 && done < peer->out_used) {
        struct iovec part = {peer->out + done, peer->out_used - done};
        const ssize_t sent = tess__tcp_write(peer, TCP_WORDS, &part, 1);
        if (sent < 0 && tess__tcp_again(errno))
            break;
        if (sent < 0) { /* reading gives the reason: a last word may be there */
            peer->out_used = done = 0;
            break;
        }
        done += (size_t)sent;
    }
    peer->out_used -= done;
    if (done > 0 && peer->out_used > 0)
        memmove(peer->out, peer->out + done, peer->out_used);
    tess__tcp_watch(tcp, r, TCP_WORDS, peer->out_used > 0);
}

/* Memory for so many bytes of words. */
static bool words_room(struct tcp_peer *peer, size_t bytes)
{
    const size_t room = bytes < 2 * peer->out_room ? 2 * peer->out_room : bytes + WORDS_OUT_LEAST;
    char *out = bytes > peer->out_room ? realloc(peer->out, room) : peer->out;

    if (out != NULL && bytes > peer->out_room)
        peer->out_room = room;
    peer->out = out != NULL ? out : peer->out;
    return out != NULL;
}

/* True: it is to be sent. */
static bool words_add(struct tcp *tcp, int32_t r, const struct tcp_frame *frame, const void *text)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    struct tcp_frame out = *frame;
    const size_t text_bytes = text != NULL ? (size_t)frame->bytes : 0;
    const size_t needed = peer->out_used + sizeof(out) + text_bytes;

    if (peer->fd[TCP_WORDS] < 0 && peer->met[TCP_WORDS])
        return false;
    if (needed > TCP_OUT_BYTES ||
        !words_room(peer, needed)) { /* it has sent messages without waiting for their words */
        tess__tcp_close_fd(&peer->fd[TCP_WORDS]);
        tess__tcp_end(tcp, TCP_LOST, r, "it does not read what it is sent");
        return false;
    }
    out.magic = TCP_MAGIC;
    memcpy(peer->out + peer->out_used, &out, sizeof(out));
    if (text_bytes > 0)
        memcpy(peer->out + peer->out_used + sizeof(out), text, text_bytes);
    peer->out_used = needed;
    return !peer->blocked[TCP_WORDS];
}

void tess__tcp_say(struct tcp *tcp, int32_t r, const struct tcp_frame *frame, const void *text)
{
    if (words_add(tcp, r, frame, text))
        tess__tcp_words_push(tcp, r);
}

/* Half of the room that the sender has, at most. */
void tess__tcp_say_later(struct tcp *tcp, int32_t r, const struct tcp_frame *ready)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);

    if (!words_add(tcp, r, ready, NULL))
        return;
    peer->late_bytes += tess__tcp_early_cost(ready->bytes);
    if (peer->late_bytes >= TCP_EARLY_ROOM / 2) {
        tess__tcp_words_push(tcp, r);
        return;
    }
    if (LIST_EMPTY(&tcp->late))
        tcp->late_s = tess_clock_s();
    if (!peer->late)
        LIST_INSERT_HEAD(&tcp->late, peer, late_link);
    peer->late = true;
}

void tess__tcp_words_push_late(struct tcp *tcp)
{
    while (!LIST_EMPTY(&tcp->late))
        tess__tcp_words_push(tcp, LIST_FIRST(&tcp->late)->rank);
}
