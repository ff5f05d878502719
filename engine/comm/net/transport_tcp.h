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

#include "comm/net/net_path.h"
#include "tessera/device.h"
#include "tessera/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/uio.h>

#define TCP_MAGIC         0x70637474u /* "ttcp" */
#define TCP_HOST_BYTES    80
#define TCP_ADDRESS_BYTES 96

/* The two connections with a peer. */
enum { TCP_WORDS, TCP_DATA, TCP_CONNECTIONS };

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

/* TCP_MOVES: a send that its receiver is ready for, a receive whose message comes. */
enum tcp_state { TCP_FREE, TCP_WAITS, TCP_MOVES, TCP_DONE };

/* A send or a receive; in one list of its peer at a time, or in that of free ones. */
struct tcp_request {
    TAILQ_ENTRY(tcp_request) link;
    enum tcp_state state;
    bool send;
    int32_t peer;
    char *data;
    size_t moved; /* of the payload; of a send, with the head */
    struct tcp_head head;
};

TAILQ_HEAD(tcp_list, tcp_request);

/* A receive of the peer's whose send has not begun here. */
struct tcp_ready {
    uint32_t tag;
    uint64_t bytes;
};

/* Words of as many receives as there may be, and of the end. */
#define TCP_OUT_BYTES                                                                              \
    ((TESS_TRANSPORT_REQUESTS + 4) * sizeof(struct tcp_frame) + TESS_TRANSPORT_REASON_BYTES)

/* A rank that this one is connected with. Few receives are announced at a time: `ready` and `out`
 * grow to as much as was ever needed. */
struct tcp_peer {
    int fd[TCP_CONNECTIONS];       /* -1: none, or closed */
    bool blocked[TCP_CONNECTIONS]; /* the socket takes nothing: watched for that */
    bool bye;                      /* it has ended in order */
    struct tcp_list sends;         /* whose receive has not been announced */
    struct tcp_list sending;       /* the first in part */
    struct tcp_list receives;      /* of which nothing has come */
    struct tcp_ready *ready;       /* [ready_room] in order; TESS_TRANSPORT_REQUESTS at most */
    int32_t ready_count, ready_room;
    char *out; /* [out_room] words that are to be sent; TCP_OUT_BYTES at most */
    size_t out_used, out_room;
    unsigned char in[sizeof(struct tcp_frame) + TESS_TRANSPORT_REASON_BYTES];
    size_t in_used;
    struct tcp_head head; /* of the message that comes */
    size_t head_used;
    struct tcp_request *receiving; /* the one it is for, NULL before the head is there */
};

/* Where ranks are reached: one address of one host. */
struct tcp_place {
    char address[TCP_ADDRESS_BYTES];
    char text[TCP_HOST_BYTES]; /* for messages */
};

struct tcp {
    struct tess_transport transport;
    int epoll, bell; /* bell: rung by abort of other threads */
    pthread_t owner;
    struct tcp_peer **peer; /* [rank_count] NULL: not connected; of this rank always */
    struct tcp_request request[TESS_TRANSPORT_REQUESTS];
    uint32_t request_count;  /* that were ever in use */
    struct tcp_list free;    /* of them, those that are not */
    bool moved;              /* a request was done since the last wait began */
    double looked_s;         /* when the network was last polled */
    enum tess_status status; /* OK, or why nothing goes on */
    char reason[TESS_TRANSPORT_REASON_BYTES + 160];
    _Atomic int abort_state; /* of other threads: 0, 1 being written, 2 wanted */
    char abort_text[TESS_TRANSPORT_REASON_BYTES];
    int32_t *host;           /* [rank_count] */
    const char **host_name;  /* [rank_count] */
    struct tcp_place *place; /* where ranks are, each place once */
    int32_t *place_of;       /* [rank_count] */
    uint16_t *port;          /* [rank_count] */
    double timeout_s;
};

/* transport_tcp_move.c: read and write what sockets take and give, after waiting for it up to
 * timeout_ms (0: not at all). What fails is noted in tcp->status. */
void tess__tcp_move(struct tcp *tcp, int timeout_ms);
/* A frame on the words to a peer. */
void tess__tcp_say(struct tcp *tcp, int32_t peer, enum tcp_word word, uint32_t tag, uint64_t bytes,
                   const char *text);
/* The receiver of this send is ready. */
void tess__tcp_send(struct tcp *tcp, struct tcp_request *request);
/* A receive of the peer's and its send here are of different sizes. */
void tess__tcp_differ(struct tcp *tcp, int32_t peer, uint64_t expected, uint64_t bytes);
/* The job fails: keep the first reason and send it to all. `who`: as in enum tcp_word. */
void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text);

/* transport_tcp_meet.c: connect all pairs. */
enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot);

void tess__tcp_close(struct tess_transport *transport);

/* transport_tcp_link.c: tess_transport_ops.link. */
bool tess__tcp_link(struct tess_transport *transport, int32_t peer,
                    struct tess_transport_link *link_out);

#endif
