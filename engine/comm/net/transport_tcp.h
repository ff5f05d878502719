/*
 * The inside of the transport over sockets; for the files transport_tcp*.c alone.
 *
 * Ranks are connected when one has its first message for the other, and from the start with their
 * neighbours in a tree, so that the end of a rank is noticed and every rank gets the notice. Each
 * such pair has two connections: `words` for frames of a few bytes, `data` for messages.
 * A receive announces itself to its sender, and only then the message goes, so that nothing
 * comes that has no place yet, no message waits behind another one, and memory is bounded:
 *
 *     receiver   READY tag, number, bytes   -- words -->   sender
 *     receiver   <-- data --   tag, number, bytes | payload
 *
 * Of a rank on the same host a receiver copies large messages itself, out of the sender's memory
 * (transport_tcp_near.c), where the system lets it:
 *
 *     receiver   NEAR tag, number, bytes   -- words -->   sender
 *     receiver   <-- words --   OFFER tag, number, address
 *     receiver   TAKEN tag, number   -- words -->   sender
 *
 * Nobody writes into the memory of another rank, so what a receiver gives up when all ends is its
 * own again at once. A sender holds what it has offered until TAKEN comes, or until it ends: then
 * it first clears a mark, and a receiver that does not find the mark after its copy has received
 * nothing. So no message is complete that was read from memory in other use, whatever the moment
 * in which a rank fails, aborts, closes or dies. Words then bring the reason.
 *
 * Words are read whatever happens, so that an abort overtakes data; that they are silent for long
 * means that the host has gone.
 */
#ifndef TESSERA_COMM_NET_TRANSPORT_TCP_H
#define TESSERA_COMM_NET_TRANSPORT_TCP_H

#include "comm/boot/boot_secret.h"
#include "comm/boot/boot_socket.h"
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
/* Messages from this size on are copied from memory to memory, measured: that TAKEN wakes the
 * sender costs what the second copy of some 128 KiB does. Chunks of sums and gathers
 * (NET_CHUNK_MOST) are smaller, and stay on the socket. */
#define TCP_NEAR_LEAST ((size_t)256 << 10)

/* The two connections with a peer. */
enum { TCP_WORDS, TCP_DATA, TCP_CONNECTIONS };

/* What goes over `words`: a frame, for ABORT and LOST with `bytes` of text behind it. */
enum tcp_word {
    TCP_READY = 1, /* a receive: tag, number, bytes */
    TCP_NEAR,      /* the same, and the receiver can read the sender's memory */
    TCP_OFFER,     /* a send, for such a receive; in `bytes` its address */
    TCP_TAKEN,     /* what was offered for this number has been copied */
    TCP_REFUSED,   /* it could not be: it is to come over `data` */
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

/* TCP_MOVES: a send that its receiver is ready for, a receive whose message comes or is offered. */
enum tcp_state { TCP_FREE, TCP_WAITS, TCP_MOVES, TCP_DONE };

/* A send or a receive; in one list of its peer at a time, or in that of free ones. */
struct tcp_request {
    TAILQ_ENTRY(tcp_request) link;
    enum tcp_state state;
    bool send;
    int32_t peer;
    char *data;
    size_t moved;     /* of the payload; of a send, with the head */
    uint64_t offered; /* to a receive: where the sender has it */
    struct tcp_head head;
};

TAILQ_HEAD(tcp_list, tcp_request);

/* A receive of the peer's whose send has not begun here. */
struct tcp_ready {
    uint32_t tag, number;
    bool near;
    uint64_t bytes;
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

/* A rank that this one exchanges messages with. Few receives are announced at a time: `ready` and
 * `out` grow to as much as was ever needed. */
struct tcp_peer {
    int fd[TCP_CONNECTIONS];       /* -1: none yet, or closed */
    bool met[TCP_CONNECTIONS];     /* it has been there */
    bool calls;                    /* the peer does, so this side need not */
    struct tcp_call *call;         /* NULL: none under way */
    bool blocked[TCP_CONNECTIONS]; /* the socket takes nothing: watched for that */
    bool bye;                      /* it has ended in order */
    bool near;                     /* its memory can be read here */
    struct tcp_list sends;         /* whose receive has not been announced */
    struct tcp_list sending;       /* the first in part */
    struct tcp_list offers;        /* that the peer has not taken yet */
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

/* A rank of this host and PID namespace, by what it says; pid 0: another one. */
struct tcp_near {
    uint64_t address, mark; /* where it has its mark, and what that is */
    int32_t pid, zero;
};

struct tcp {
    struct tess_transport transport;
    _Atomic uint64_t mark; /* what was offered is still there; 0: no longer */
    int epoll, bell;       /* bell: rung by abort of other threads */
    pthread_t owner;
    struct tcp_peer **peer; /* [rank_count] NULL: nothing was exchanged yet */
    struct boot_listener listener;
    struct tcp_caller *caller;                /* [caller_room] as many as there were at a time */
    int caller_room, caller_count, strangers; /* strangers: connections that were turned away */
    struct tess_secret secret;                /* of the job and this meeting */
    struct tcp_request request[TESS_TRANSPORT_REQUESTS];
    uint32_t request_count;  /* that were ever in use */
    struct tcp_list free;    /* of them, those that are not */
    struct tcp_list taking;  /* receives from memory of others */
    bool moved;              /* a request was done since the last wait began */
    double looked_s;         /* when the network was last polled */
    enum tess_status status; /* OK, or why nothing goes on */
    char reason[TESS_TRANSPORT_REASON_BYTES + 160];
    enum tcp_word end_word; /* what all are sent of it */
    int32_t end_who;
    char end_text[TESS_TRANSPORT_REASON_BYTES];
    _Atomic int abort_state; /* of other threads: 0, 1 being written, 2 wanted */
    char abort_text[TESS_TRANSPORT_REASON_BYTES];
    int32_t *host;           /* [rank_count] */
    const char **host_name;  /* [rank_count] */
    struct tcp_place *place; /* where ranks are, each place once */
    int32_t *place_of;       /* [rank_count] */
    uint16_t *port;          /* [rank_count] */
    struct tcp_near *near;   /* [rank_count] */
    double timeout_s;
};

/* transport_tcp_move.c: read and write what sockets take and give, after waiting for it up to
 * timeout_ms (0: not at all). What fails is noted in tcp->status. */
void tess__tcp_move(struct tcp *tcp, int timeout_ms);
/* A frame on the words to a peer, with `bytes` of text where that is not NULL. */
void tess__tcp_say(struct tcp *tcp, int32_t peer, const struct tcp_frame *frame, const char *text);
/* The receiver of this send is ready. */
void tess__tcp_send(struct tcp *tcp, struct tcp_request *request, const struct tcp_ready *ready);
/* A receive of the peer's and its send here are of different sizes. */
void tess__tcp_differ(struct tcp *tcp, int32_t peer, uint64_t expected, uint64_t bytes);
/* The job fails: keep the first reason and send it to all. `who`: as in enum tcp_word. */
void tess__tcp_end(struct tcp *tcp, enum tcp_word word, int32_t who, const char *text);

/* Connect to a rank, unless that is done or under way. TESS_ERR_MEMORY, or tcp->status. */
enum tess_status tess__tcp_reach(struct tcp *tcp, int32_t r);

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

void tess__tcp_close(struct tess_transport *transport);

/* transport_tcp_near.c: draw the mark, and let other ranks read this one's memory. */
bool tess__tcp_near_open(struct tcp *tcp);
/* The same for all ranks that may see each other's memory. */
uint64_t tess__tcp_near_space(const char *kernel);
/* Can this rank read the other one's memory? */
bool tess__tcp_near_reads(struct tcp *tcp, int32_t r);
/* From here on nothing counts that others read here. Any thread. */
void tess__tcp_near_end(struct tcp *tcp);

/* What became of an offer. LOST: the sender holds it no more, words bring the reason. */
enum tcp_near_copy { TCP_COPY_PART, TCP_COPY_DONE, TCP_COPY_REFUSED, TCP_COPY_LOST };

/* Copy up to *room bytes more of it, and take them off *room. */
enum tcp_near_copy tess__tcp_near_copy(const struct tcp *tcp, struct tcp_request *request,
                                       size_t *room);

/* transport_tcp_link.c: tess_transport_ops.link. */
bool tess__tcp_link(struct tess_transport *transport, int32_t peer,
                    struct tess_transport_link *link_out);

#endif
