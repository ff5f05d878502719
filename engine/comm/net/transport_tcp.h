/*
 * The inside of the transport over sockets; for the files transport_tcp*.c alone.
 *
 * Each pair of ranks has two connections: `words` for frames of a few bytes, `data` for messages.
 * A receive announces itself to its sender, and only then the message goes, so that nothing
 * comes that has no place yet, no message waits behind another one, and memory is bounded:
 *
 *     receiver   READY tag, bytes   -- words -->   sender
 *     receiver   <-- data --   tag, bytes | payload
 *
 * Words are read whatever happens, so that an abort overtakes data; that they are silent for long
 * means that the host has gone.
 */
#ifndef TESSERA_COMM_NET_TRANSPORT_TCP_H
#define TESSERA_COMM_NET_TRANSPORT_TCP_H

#include "tessera/device.h"
#include "tessera/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define TCP_MAGIC      0x70637474u /* "ttcp" */
#define TCP_NONE       (-1)
#define TCP_HOST_BYTES 80

/* What goes over `words`: a frame, for ABORT and LOST with `bytes` of text behind it. */
enum tcp_word {
    TCP_READY = 1, /* a receive: tag, bytes */
    TCP_ABORT,     /* rank `tag` has failed */
    TCP_LOST,      /* the connection to rank `tag` is gone */
    TCP_BYE        /* ended in order; nothing follows */
};

struct tcp_frame {
    uint32_t magic, word, tag, zero;
    uint64_t bytes;
};

/* Before each message on `data`. */
struct tcp_head {
    uint32_t magic, tag;
    uint64_t bytes;
};

_Static_assert(sizeof(struct tcp_frame) == 24 && sizeof(struct tcp_head) == 16,
               "what goes over the wire has no holes");

/* TCP_MOVES: a send that was asked for, a receive whose message comes. */
enum tcp_state { TCP_FREE, TCP_WAITS, TCP_MOVES, TCP_DONE };

/* A send or a receive; in one list of its peer at a time, by number. */
struct tcp_request {
    enum tcp_state state;
    bool send;
    int32_t peer, next;
    uint32_t tag;
    char *data;
    size_t bytes, moved; /* moved: with the head */
    struct tcp_head head;
};

struct tcp_list {
    int32_t first, last;
};

/* A receive of the peer's whose send has not begun here. */
struct tcp_ready {
    uint32_t tag;
    uint64_t bytes;
};

struct tcp_peer {
    int words, data;                  /* -1: none, or closed */
    bool words_blocked, data_blocked; /* the socket takes nothing: watched for that */
    bool bye;                         /* it has ended in order */
    struct tcp_list sends;            /* not yet asked for */
    struct tcp_list sending;          /* the first in part */
    struct tcp_list receives;         /* of which nothing has come */
    struct tcp_ready *ready;          /* [ready_room] in order */
    int32_t ready_count, ready_room;
    char *out; /* words that are to be sent: [out_used] of [out_room] */
    size_t out_used, out_room;
    unsigned char in[sizeof(struct tcp_frame) + TESS_TRANSPORT_REASON_BYTES];
    size_t in_used;
    struct tcp_head head; /* of the message that comes */
    size_t head_used;
    int32_t receiving; /* the request it is for, TCP_NONE before the head is there */
};

struct tcp {
    struct tess_transport transport;
    int epoll, bell; /* bell: rung by abort of other threads */
    pthread_t owner;
    struct tcp_peer *peer;       /* [rank_count]; of this rank unused */
    struct tcp_request *request; /* [TESS_TRANSPORT_REQUESTS] */
    int32_t free;
    bool moved;              /* a request was done since the last wait began */
    double looked_s;         /* when the network was asked last */
    enum tess_status status; /* OK, or why nothing goes on */
    char reason[TESS_TRANSPORT_REASON_BYTES + 160];
    _Atomic int abort_state; /* of other threads: 0, 1 being written, 2 wanted */
    char abort_text[TESS_TRANSPORT_REASON_BYTES];
    int32_t *host;
    char (*host_text)[TCP_HOST_BYTES]; /* [rank_count] */
    const char **host_name;
    double timeout_s;
};

static inline void tcp_list_add(struct tcp *tcp, struct tcp_list *list, int32_t request)
{
    tcp->request[request].next = TCP_NONE;
    if (list->first == TCP_NONE)
        list->first = request;
    else
        tcp->request[list->last].next = request;
    list->last = request;
}

/* Take the first with the tag; TCP_NONE. */
int32_t tess__tcp_list_take(struct tcp *tcp, struct tcp_list *list, uint32_t tag);

/* transport_tcp_move.c: read and write what sockets take and give, after waiting for it up to
 * timeout_ms (0: not at all). What fails is noted in tcp->status. */
void tess__tcp_move(struct tcp *tcp, int timeout_ms);
/* A frame on the words to a peer. */
void tess__tcp_say(struct tcp *tcp, int32_t peer, enum tcp_word word, uint32_t tag, uint64_t bytes,
                   const char *text);
/* A request to send has been asked for. */
void tess__tcp_send(struct tcp *tcp, int32_t request);
/* A receive of the peer's and its send here are of different sizes. */
void tess__tcp_differ(struct tcp *tcp, int32_t peer, uint64_t expected, size_t bytes);
/* The job fails: keep the first reason and send it to all. `who`: as in enum tcp_word. */
void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text);

/* transport_tcp_meet.c: connect all pairs. */
enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot, double timeout_s);

void tess__tcp_close(struct tess_transport *transport);

#endif
