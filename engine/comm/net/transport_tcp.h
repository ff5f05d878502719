/*
 * The inside of the transport over sockets; for the files transport_tcp*.c alone.
 *
 * Ranks are connected when one has its first message for the other, and from the start with their
 * neighbours in a tree, so that the end of a rank is noticed and every rank gets the notice. Each
 * such pair has two connections: `words` for frames of a few bytes, `data` for messages.
 * A receive announces itself to its sender, and only then the message goes, so that nothing
 * comes that has no place yet, no message waits behind another one, and memory is bounded; small
 * messages go early, into room that is kept for them (transport_tcp_early.c):
 *
 *     receiver   READY tag, number, bytes   -- words -->   sender
 *     receiver   <-- data --   tag, number, bytes | payload
 *
 * Between ranks of one host both go through shared memory (transport_tcp_near.c), where the system
 * lets them open each other's; the connections then show that the other rank is there.
 *
 * Words are read whatever happens, so that an abort overtakes data; that they are silent for long
 * means that the host has gone.
 */
#ifndef TESSERA_COMM_NET_TRANSPORT_TCP_H
#define TESSERA_COMM_NET_TRANSPORT_TCP_H

#include "comm/boot/boot_secret.h"
#include "comm/boot/boot_socket.h"
#include "comm/net/net_path.h"
#include "comm/net/transport_tcp_table.h"
#include "tessera/device.h"
#include "tessera/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/uio.h>

#define TCP_MAGIC 0x70637474u /* "ttcp" */

/* Bytes of a message that goes early: at least those of a chunk of a sum by ways, which others wait
 * for (NET_CHUNK_WAYS); and of those to one peer that it has not announced. */
#define TCP_EARLY_MOST (24u << 10)
#define TCP_EARLY_ROOM (256u << 10)
#define TCP_EARLY      UINT32_MAX /* its number: no receive's */
/* What arrives before its receive lies in a buffer of 128 B, 256 B ... 32 KiB. Delivered ones are
 * kept for the next such message, TCP_EARLY_ROOM bytes of all peers at most. */
#define TCP_EARLY_SIZES 9

/* Messages up to this size wait for others to the same peer, for the time in which a rank begins
 * what it can: a write costs as much as some ten KiB. And up to which a read takes several. */
#define TCP_CORK_MOST   (16u << 10)
#define TCP_STAGE_BYTES (16u << 10)

/* The two connections with a peer. */
enum { TCP_WORDS, TCP_DATA, TCP_CONNECTIONS };

/* What goes over `words`: a frame, for NOTICE, ABORT and LOST with `bytes` of text behind it. */
enum tcp_word {
    TCP_READY = 1, /* a receive: tag, number, bytes */
    TCP_LOOK,      /* there is room again in shared memory: of a rank that cannot ring the bell */
    TCP_NOTICE,    /* a message of `bytes` without a request */
    TCP_ABORT,     /* rank `tag` has failed */
    TCP_LOST,      /* the connection to rank `tag` is gone */
    TCP_BYE        /* ended in order; nothing follows */
};

/* `number`: of the receive, at its rank. */
struct tcp_frame {
    uint32_t magic, word, tag, number;
    uint64_t bytes;
};

/* Before each message on `data`. */
struct tcp_head {
    uint32_t magic, tag, number, zero;
    uint64_t bytes;
};

_Static_assert(sizeof(struct tcp_frame) == 24 && sizeof(struct tcp_head) == 24,
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
    struct tcp_request *claimed; /* of a message that arrived before its receive: that */
};

TAILQ_HEAD(tcp_list, tcp_request);

/* A receive of the peer's whose send has not begun here. */
struct tcp_ready {
    uint32_t tag, number;
    uint64_t bytes;
};

/* In order; grows to as many as there ever were. */
struct tcp_readies {
    struct tcp_ready *of; /* [room] */
    int32_t count, room;
};

/* Words of as many requests as there may be, each with the one that its number had before, and of
 * the end. */
#define TCP_OUT_BYTES                                                                              \
    ((2 * TESS_TRANSPORT_REQUESTS + 4) * sizeof(struct tcp_frame) + TESS_TRANSPORT_REASON_BYTES)

#define TCP_CALLERS 64 /* strangers' connections at a time, beside those of ranks */

/* What epoll reports of: a connection by its peer and number, or one of these. */
#define TCP_TAG_CALL   (UINT64_C(1) << 32) /* with the same number */
#define TCP_TAG_CALLER (UINT64_C(1) << 33) /* with the caller's number */
#define TCP_TAG_DOOR   (UINT64_C(1) << 34) /* with the listener's */
#define TCP_TAG_BELL   (UINT64_C(1) << 35)

/* The last words of a listener to a caller. */
struct tcp_welcome {
    uint32_t which; /* with TCP_BUSY: this call is dropped */
    int32_t rank;
    unsigned char proof[TESS_SECRET_PROOF_BYTES];
};

_Static_assert(sizeof(struct tcp_welcome) == 40, "what goes over the wire has no holes");

/* How far a call is: it connects, it waits for the challenge, for the welcome. */
enum tcp_step { TCP_CONNECTS, TCP_CHALLENGED, TCP_WELCOMED };

/* Connections that this rank has begun and the peer has not answered. */
struct tcp_call {
    struct addrinfo *found;
    int tries;
    struct tcp_calling {
        struct addrinfo *at;
        int fd; /* -1: answered, or given up */
        enum tcp_step step;
        size_t got; /* of what is waited for */
        struct tess_secret_challenge challenge;
        struct tess_secret_answer answer;
        struct tcp_welcome welcome;
    } of[TCP_CONNECTIONS];
};

/* A connection of which not all of the answer has come; fd -1: none. */
struct tcp_caller {
    int fd;
    double since_s;
    size_t got;
    struct tess_secret_challenge challenge;
    struct tess_secret_answer answer;
};

/* A rank that this one exchanges messages with. `out` grows to as much as was ever needed. */
struct tcp_peer {
    int fd[TCP_CONNECTIONS];       /* -1: none yet, or closed */
    bool met[TCP_CONNECTIONS];     /* it has been there */
    bool calls;                    /* the peer does, so this side need not */
    struct tcp_call *call;         /* NULL: none under way */
    bool blocked[TCP_CONNECTIONS]; /* the socket or ring takes nothing: watched for that */
    bool bye;                      /* it has ended in order */
    bool look;                     /* it waits for room and has no bell here: TCP_LOOK is due */
    int32_t rank;
    struct tcp_boxes *boxes; /* what is shared with it; NULL: nothing */
    LIST_ENTRY(tcp_peer) near_link;
    struct tcp_list sends;   /* whose receive has not been announced */
    struct tcp_list sending; /* the first in part */
    LIST_ENTRY(tcp_peer) corked_link;
    bool corked;              /* some of `sending` may wait for more */
    struct tcp_readies ready; /* TESS_TRANSPORT_REQUESTS at most */
    struct tcp_readies early; /* sends that went early, which it has not announced */
    size_t early_bytes;       /* their costs */
    struct tcp_list expects;  /* small receives for which nothing has come */
    struct tcp_list arrived;  /* small messages for which there is no receive yet */
    size_t arrived_bytes;     /* their costs */
    uint32_t large_tag;       /* of the last receive that was not small: behind its message small
                                 ones of this tag go as late as others */
    LIST_ENTRY(tcp_peer) late_link;
    bool late;         /* some of `out` may wait for more */
    size_t late_bytes; /* costs of the receives that it announces */
    char *out;         /* [out_room] words that are to be sent; TCP_OUT_BYTES at most */
    size_t out_used, out_room;
    unsigned char in[sizeof(struct tcp_frame) + TESS_TRANSPORT_REASON_BYTES];
    size_t in_used;
    struct tcp_head head; /* of the message that comes */
    size_t head_used;
    struct tcp_request *receiving; /* the one it is for, NULL before the head is there */
};

/* What goes to such a rank in the place of a connection. `written` and `wants_room` are the
 * sender's, `taken` is the receiver's. */
struct tcp_ring {
    _Alignas(64) _Atomic uint64_t written; /* bytes, ever */
    _Atomic uint32_t wants_room;           /* the sender waits */
    _Alignas(64) _Atomic uint64_t taken;   /* likewise */
};

struct tcp {
    struct tess_transport transport;
    int epoll, bell[2]; /* bell: a pipe; abort of other threads, and ranks of this host, ring it */
    int inbox_fd;       /* -1: nothing is shared */
    struct tcp_inbox *inbox;
    LIST_HEAD(tcp_near_list, tcp_peer) near_peers;
    LIST_HEAD(tcp_late_list, tcp_peer) late; /* since late_s */
    double late_s;
    LIST_HEAD(tcp_corked_list, tcp_peer) corked;
    char stage[TCP_STAGE_BYTES]; /* what comes of messages before their receives are found */
    pthread_t owner;
    struct tcp_peer ***page; /* [rank_count / TCP_PAGE, rounded up][TCP_PAGE]: tess__tcp_at */
    struct boot_listener listener;
    struct tcp_caller *caller;                /* [caller_room] as many as there were at a time */
    int caller_room, caller_count, strangers; /* strangers: connections that were turned away */
    struct tess_secret secret;                /* of the job and this meeting */
    struct tcp_request request[TESS_TRANSPORT_REQUESTS];
    uint32_t request_count;                 /* that were ever in use */
    struct tcp_list free;                   /* of them, those that are not */
    struct tcp_list spare[TCP_EARLY_SIZES]; /* buffers of early messages, by size */
    size_t spare_bytes;
    bool moved;              /* a request was done since the last wait began */
    bool leaves;             /* it ends in order, and takes no more data */
    bool sleeps;             /* the last wait was longer than a spin: the next one does not spin */
    double looked_s;         /* when the network was last polled */
    enum tess_status status; /* OK, or why nothing goes on */
    char reason[TESS_TRANSPORT_REASON_BYTES + 160];
    enum tcp_word end_word; /* what all are sent of it */
    int32_t end_who;
    char end_text[TESS_TRANSPORT_REASON_BYTES];
    _Atomic int abort_state; /* of other threads: 0, 1 being written, 2 wanted */
    char abort_text[TESS_TRANSPORT_REASON_BYTES];
    const struct tcp_table *table; /* where ranks are; NULL: it has not come yet */
    bool table_shared;             /* it is that of the host's first rank */
    int table_tries;               /* to use that, which may not be there yet */
    int table_fd;                  /* on the host's first rank, for the others; -1: none */
    struct tcp_near *near; /* [near_count] this host's ranks that share memory, in their order */
    int32_t near_count;
    double timeout_s;
};

#define TCP_PAGE 64 /* ranks; those that a rank exchanges messages with are few, or neighbours */

/* NULL: nothing was exchanged with it yet. */
static inline struct tcp_peer *tess__tcp_at(const struct tcp *tcp, int32_t r)
{
    struct tcp_peer **page = tcp->page[r / TCP_PAGE];

    return page != NULL ? page[r % TCP_PAGE] : NULL;
}

const char *tess__tcp_host_name(const struct tess_transport *transport, int32_t rank);

/* transport_tcp_move.c: read and write what sockets take and give, after waiting for it up to
 * timeout_ms (0: not at all). What fails is noted in tcp->status. */
void tess__tcp_move(struct tcp *tcp, int timeout_ms);
/* The receiver of this send is ready; `number`: of the receive. It may wait for tess__tcp_flush. */
void tess__tcp_send(struct tcp *tcp, struct tcp_request *request, uint32_t number);
void tess__tcp_flush(struct tcp *tcp);
/* Connect to a rank, unless that is done or under way. TESS_ERR_MEMORY, or tcp->status. */
enum tess_status tess__tcp_reach(struct tcp *tcp, int32_t r);

/* transport_tcp_words.c: a frame on the words to a peer, with `bytes` of text where that is not
 * NULL. */
void tess__tcp_say(struct tcp *tcp, int32_t peer, const struct tcp_frame *frame, const void *text);
/* The announcement of a small receive: it may wait for others, and goes soon. */
void tess__tcp_say_later(struct tcp *tcp, int32_t peer, const struct tcp_frame *ready);
/* Take the first with the tag; NULL: there is none. */
struct tcp_request *tess__tcp_take(struct tcp_list *list, uint32_t tag);
/* A receive and its send are of different sizes; `theirs`: the receive is the peer's. */
void tess__tcp_differ(struct tcp *tcp, int32_t peer, bool theirs, uint64_t expected,
                      uint64_t bytes);
/* What the peer does is none of this program's. */
void tess__tcp_stranger(struct tcp *tcp, int32_t peer, const char *what);
/* The job fails: keep the first reason and send it to all. `who`: as in enum tcp_word. */
void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text);
/* Send a peer, once more, how the job has ended. */
void tess__tcp_say_end(struct tcp *tcp, int32_t r);
/* Send what is in `out`, as far as the connection takes it; of all peers whose words wait. */
void tess__tcp_words_push(struct tcp *tcp, int32_t r);
void tess__tcp_words_push_late(struct tcp *tcp);
/* The words of a peer have ended, with an errno or 0: in order, or it has gone. */
void tess__tcp_words_end(struct tcp *tcp, int32_t r, int error);
/* Without waiting, by memory or the connection, as sendmsg. */
ssize_t tess__tcp_write(struct tcp_peer *peer, int which, struct iovec *part, int parts);
/* Watch a connection, also for room where it took nothing. */
void tess__tcp_watch(struct tcp *tcp, int32_t r, int which, bool blocked);
void tess__tcp_close_fd(int *fd);

static inline bool tess__tcp_again(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* transport_tcp_call.c: what came of an event; nothing, unless one of these is set. */
struct tcp_news {
    bool open;   /* the connection `which` with `peer` */
    bool failed; /* and why; `gone`: the peer has, else this rank cannot go on */
    bool gone;
    int32_t peer;
    int which;
    char why[TESS_TRANSPORT_REASON_BYTES];
};

/* NULL: no memory. */
struct tcp_peer *tess__tcp_peer(struct tcp *tcp, int32_t r);
/* Begin to connect. */
void tess__tcp_call(struct tcp *tcp, int32_t r, struct tcp_news *news);
void tess__tcp_call_event(struct tcp *tcp, int32_t r, int which, struct tcp_news *news);
void tess__tcp_door_event(struct tcp *tcp, int door, struct tcp_news *news);
void tess__tcp_caller_event(struct tcp *tcp, int number, struct tcp_news *news);
/* Close those that have said nothing for long. */
void tess__tcp_callers_late(struct tcp *tcp);
/* Close everything that is not open yet, and listen no more. */
void tess__tcp_calls_close(struct tcp *tcp);

/* transport_tcp_meet.c: exchange addresses, connect the neighbours of the tree. */
enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot);

/* transport_tcp_near.c: make the inbox; by near_out others open it. */
void tess__tcp_near_open(struct tcp *tcp, struct tcp_near *near_out);
/* The host's first rank: let the others of the host use its table. The others: use that in place of
 * this one, where it is there and the same. */
void tess__tcp_near_give_table(struct tcp *tcp);
void tess__tcp_near_take_table(struct tcp *tcp);
void tess__tcp_table_drop(struct tcp *tcp);
void tess__tcp_near_close(struct tcp *tcp);
/* Share memory with a peer, where both can; else peer->boxes stays NULL. */
void tess__tcp_near_meet(struct tcp *tcp, struct tcp_peer *peer);
/* Does what goes to the peer go by memory? */
bool tess__tcp_near_gives(const struct tcp_peer *peer);
/* As readv and writev without waiting. EAGAIN; EPROTO: the peer is none of this program. */
ssize_t tess__tcp_near_take(struct tcp_peer *peer, int which, const struct iovec *part, int parts);
ssize_t tess__tcp_near_give(struct tcp_peer *peer, int which, const struct iovec *part, int parts);
/* Of one of near_peers: is there something to take; can what was blocked go on? */
bool tess__tcp_near_comes(const struct tcp_peer *peer, int which);
bool tess__tcp_near_goes(const struct tcp_peer *peer, int which);
/* From here on the bell is rung when there is something to do; false: there is already. */
bool tess__tcp_near_sleep(struct tcp *tcp);
void tess__tcp_near_wake_up(struct tcp *tcp);

/* transport_tcp_early.c: may a message of this size go early; what it costs of the room. */
bool tess__tcp_early_is(uint64_t bytes);
static inline size_t tess__tcp_early_cost(uint64_t bytes)
{
    return (size_t)bytes + 64;
}
/* False: no memory. */
bool tess__tcp_readies_add(struct tcp_readies *readies, const struct tcp_ready *ready);
/* The first with the tag; false: there is none. */
bool tess__tcp_readies_take(struct tcp_readies *readies, uint32_t tag, struct tcp_ready *ready_out);
/* A send that begins: does it go early? Then it is noted. */
bool tess__tcp_early_goes(struct tcp_peer *peer, uint32_t tag, uint64_t bytes);
/* A small receive begins: its message may be there. False: the job has failed. */
bool tess__tcp_early_claim(struct tcp *tcp, struct tcp_request *receive);
/* An early message begins: where it goes; NULL: the job has failed. And it is there. */
struct tcp_request *tess__tcp_early_begin(struct tcp *tcp, int32_t r);
void tess__tcp_early_end(struct tcp *tcp, struct tcp_request *request);
void tess__tcp_early_open(struct tcp *tcp);
void tess__tcp_early_free(struct tcp_peer *peer);
void tess__tcp_early_close(struct tcp *tcp); /* what is kept */

/* transport_tcp_link.c: tess_transport_ops.link. */
bool tess__tcp_link(struct tess_transport *transport, int32_t peer,
                    struct tess_transport_link *link_out);

#endif
