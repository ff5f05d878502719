/*
 * The inside of the communicator over a transport; for the files net*.c alone.
 *
 * Notes say what a rank calls. They go to all others where they are few, else to the neighbours,
 * and are compared, so that a rank that calls something else is found and one that does not call is
 * named. Tags of all other messages hold a hash of the call and of those before it: what belongs to
 * different calls never meets, and a call that lasts is one whose notes are needed. So a sum or
 * gather, which ends nowhere before all have called it, sends notes once it has lasted NET_LATE_S
 * (net_late.c). Before the call go those of a broadcast or reduce, those over a transport
 * without notices, and those of small calls of few ranks, which are run from the notes alone.
 */
#ifndef TESSERA_COMM_NET_NET_GROUP_H
#define TESSERA_COMM_NET_NET_GROUP_H

#include "comm/call.h"
#include "comm/net/net.h"
#include "comm/net/net_path.h"
#include "comm/waiting.h"

#include <sys/queue.h>

#define NET_RING     256  /* collectives that may be outstanding in a group */
#define NET_AHEAD    4    /* of them, whose notes are on their way */
#define NET_NOTE_ALL 8    /* ranks up to which notes go to all */
#define NET_LATE_S   5e-3 /* after which a call's notes go out, if they have not before */
#define NET_INLINE   176u /* source bytes that fit into a note */
#define NET_INLINE_FEW                                                                             \
    2 /* ranks up to which notes are sent for that, where notices can be sent later */
#define NET_ROWS        3 /* of chunks, under way at a time: one comes, one is added, one goes */
#define NET_ROW_BYTES   ((size_t)2 << 20) /* of one row's scratch memory, about */
#define NET_CHUNK_LEAST ((size_t)16 << 10)
#define NET_CHUNK_MOST  ((size_t)128 << 10)
#define NET_CHUNK_WAYS  ((size_t)24 << 10) /* at most, of lanes that go by ways: see net_job.c, */
#define NET_CHUNK_HALF  ((size_t)8 << 10)  /* and where a rank has two of them */
#define NET_GROUPS      512                /* that a rank may have open at a time */
#define NET_REQUESTS    (TESS_TRANSPORT_REQUESTS / 2) /* up to which further rows begin */
#define NET_PAIR_RING   32    /* messages that may be outstanding from one rank to another */
#define NET_EAGER       4096u /* bytes up to which a message is copied when it is sent */

/* Nothing under way in this place. */
#define NET_NO_REQUEST UINT32_MAX

struct net_note {
    uint64_t number; /* of the call in its group, from 1 */
    struct tess__call_key key;
    char site[56];
    unsigned char data[NET_INLINE];
};

_Static_assert(sizeof(struct net_note) == 256, "what goes over the wire has no holes");

/* What a notice has of a call that lasts. */
struct net_late_note {
    uint64_t birth; /* of the group: none before it with its number had it */
    uint64_t past;  /* a hash of its calls before this one */
    uint64_t number;
    struct tess__call_key key;
    char site[56];
};

_Static_assert(sizeof(struct net_late_note) <= TESS_TRANSPORT_NOTICE_BYTES, "it fits in a notice");

/* [d]: with the rank d + 1 before this one; of many ranks [0] the one before, [1] the one behind.
 */
struct net_late {
    uint64_t birth, past; /* past: of the calls before the one that is run */
    double since_s;       /* when that was first seen to last; 0: it was not */
    bool notified, compared;
    bool asked;                    /* some `answer` is set */
    uint64_t answer[NET_NOTE_ALL]; /* number of the call of a notice from the rank; 0: none */
    struct net_late_note in[NET_NOTE_ALL]; /* the last of each */
};

/* The notes of one call; [d]: to the rank d + 1 behind this one, from the one d + 1 before it. */
struct net_slot {
    struct net_note out;
    struct net_note in[NET_NOTE_ALL];
    uint32_t send[NET_NOTE_ALL], recv[NET_NOTE_ALL];
    int32_t missing; /* notes that have not come */
    bool compared;
};

/* A sum, or a rank's own value. */
struct net_part {
    const char *value;
    bool wide; /* f32 of a 16-bit type */
    bool left; /* of the one that it is kept for, it is the left operand */
};

/* One chunk of one lane. */
struct net_job {
    const struct net_lane *lane;
    size_t begin, count; /* within the lane, elements */
    const char *value;   /* what has been added up so far, then the whole */
    char *scratch;       /* [lane->adds] chunks */
    int32_t step;        /* moves that have been made; a send ends later */
    bool wide;           /* value is f32 of a 16-bit type */
    bool over;
    int kept_count;
    struct net_part kept[NET_KEPT]; /* the latest last */
    uint32_t *request;              /* [lane->move_count] of the row's */
    struct net_row *row, *before;   /* before: the row before, NULL: it is over */
};

struct net_row {
    struct net_job *job; /* [plan.lane_room] in the order of lanes */
    uint32_t *request;   /* [plan.move_room] */
    char *scratch;
    int32_t left; /* jobs that are not over */
    int32_t ups;  /* sends up that have not begun */
};

/* Of the call that is run, with one peer: what is under way. */
struct net_flight {
    uint32_t sends, receives;
};

/* Sends to one peer, or receives, in order. */
struct net_message {
    struct tess_comm_call call;
    struct net_note note, theirs; /* theirs: of a receive */
    uint32_t note_request, data_request;
    bool compared;
    char *copy; /* of a small one that is sent: [NET_EAGER] of the lane */
};

struct net_pair {
    SLIST_ENTRY(net_pair) link;
    bool send;
    int32_t peer;
    uint64_t posted, completed, finished; /* finished: its place may be used again */
    struct net_message message[NET_PAIR_RING];
    char copy[]; /* of sends: [NET_PAIR_RING][NET_EAGER] */
};

/* The first page of what is allocated; the user's memory follows it. */
struct net_block {
    LIST_ENTRY(net_block) link;
    size_t bytes;
};

struct net_group {
    struct tess_comm comm;
    struct tess__waiting waiting;
    struct net_rank *rank;
    LIST_ENTRY(net_group) link;
    int32_t id;
    void *block;                       /* of these, [comm.rank_count] each: */
    struct net_pair **send, **receive; /* NULL: none yet */
    struct net_flight *flight;
    int32_t *member; /* rank of the transport */
    struct net_shape shape;
    LIST_HEAD(net_blocks, net_block) blocks;

    /* Collectives: number of the next to post, of the next whose notes go out, and of the one that
     * is run. */
    uint64_t posted, noted, current;
    struct tess_comm_call call[NET_RING];
    struct net_slot slot[NET_AHEAD];
    struct net_late late;

    /* The one that is run. */
    bool started;
    struct tess_comm_call run; /* what is sent of it: net_run.c */
    struct net_plan plan;
    int32_t round; /* of the plan's */
    struct net_row row[NET_ROWS];
    size_t row_count, row_next, row_done, chunk; /* chunk: elements */
    size_t scratch_bytes;                        /* of each row */
    uint32_t receives;                           /* under way, with all peers */
    uint32_t hash;
    unsigned char nothing; /* what a barrier of many ranks adds up */

    /* The transport's own collectives: its number of this group, -1: they are not used; is the one
     * that is run one of them, and its request. */
    int32_t native;
    bool native_runs;
    uint32_t native_request;

    SLIST_HEAD(net_pairs, net_pair) pairs;
    int32_t message_count; /* not finished */
};

/* State of one rank; shared by its groups, touched by its thread only. */
struct net_rank {
    struct tess_transport *transport;
    struct tess_world *world; /* NULL: none */
    double timeout_s;
    LIST_HEAD(net_groups, net_group) groups;
    struct net_groups grave; /* closed while something was under way in their memory */
    uint64_t used[NET_GROUPS / 64];
    int32_t requests;        /* of the transport, under way */
    enum tess_status status; /* of the failure that ended all, or OK */
};

static inline uint32_t tess__net_tag(const struct net_group *group, enum net_kind kind,
                                     uint32_t hash)
{
    return (uint32_t)kind << 21 | (uint32_t)group->id << 12 | (hash & 0xfffu);
}

/* net_run.c: collectives. Queue one (its notes may go out at once); advance those of the group. */
enum tess_status tess__net_post(struct net_group *group, const struct tess_comm_call *call);
enum tess_status tess__net_run(struct net_group *group, bool *moved_out);
/* Have all notes of calls that have ended gone? */
enum tess_status tess__net_notes_gone(struct net_group *group, bool *gone_out);
/* As struct tess__waiting has it. */
bool tess__net_is_missing(void *group, uint64_t number, int32_t peer, bool *called_out);

/* net_late.c: calls of the group last; its current call has not ended yet, or has. */
void tess__net_late_open(struct tess_transport *transport, struct net_rank *rank);
enum tess_status tess__net_late_run(struct net_group *group);
void tess__net_late_next(struct net_group *group);
/* Is a rank waiting for this one in the call with this number, from 1? */
bool tess__net_late_waits(const struct net_group *group, uint64_t number);
/* Would it be known if the peer had called what is run, and it has not? */
bool tess__net_late_silent(const struct net_group *group, int32_t peer);
/* Send what others have requested of calls that have ended here. */
enum tess_status tess__net_late_answer(struct net_group *group);

/* net_job.c: the large ones, chunk by chunk: group->run. */
enum tess_status tess__net_jobs_open(struct net_group *group);
void tess__net_jobs_close(struct net_group *group);
enum tess_status tess__net_jobs_start(struct net_group *group);
/* Begin what can be begun; asks the network for nothing, so that no call ends in it. */
enum tess_status tess__net_jobs_begin(struct net_group *group);
enum tess_status tess__net_jobs_run(struct net_group *group, bool *moved_out, bool *done_out);
/* Does the rank wait for what the peer sends, or, when all has come, for the peer to take what is
 * sent to it? Of peers of earlier calls nothing is under way. */
bool tess__net_jobs_want(const struct net_group *group, int32_t peer);

/* The transport's own collectives: open them for a group; close them where they are open. */
enum tess_status tess__net_native_open(struct net_group *group);
void tess__net_native_close(struct net_group *group);

/* net_sum.c: out = left op right over `count` elements of dtype. f16 and bf16: a side that is no
 * leaf is f32, as is `out` unless it is the whole; `out` may be where a side is, or before a leaf
 * that ends where f32 would. */
void tess__net_sum(enum tess_dtype dtype, enum tess_reduce reduce, const void *left, bool left_leaf,
                   const void *right, bool right_leaf, void *out, bool whole, size_t count);

/* net_message.c: sends and receives. */
bool tess__net_message_has_room(const struct net_group *group, bool send, int32_t peer);
enum tess_status tess__net_message_post(struct net_group *group, const struct tess_comm_call *call,
                                        uint64_t *ticket_out);
enum tess_status tess__net_message_run(struct net_group *group, bool *moved_out);
bool tess__net_message_complete(const struct net_group *group, bool send, int32_t peer,
                                uint64_t number);
struct tess_comm_call tess__net_message_call(const struct net_group *group, bool send, int32_t peer,
                                             uint64_t number);

/* net_wait.c: set group->waiting; advance all groups of the rank of `group` without blocking. */
void tess__net_wait_open(struct net_group *group);
enum tess_status tess__net_advance(void *group, bool *moved_out);
/* Let what lingers in the group go; false: it does not. */
bool tess__net_settle(struct net_group *group);

/* net_link.c: not OK once the job has been ended, by any rank or launcher. */
enum tess_status tess__net_check(struct net_rank *rank);
/* The transport failed with this status; OK: it did not. Waits for a better reason and logs it. */
enum tess_status tess__net_lost(struct net_rank *rank, enum tess_status status);
/* Ranks disagree or the like: stop all ranks, log the reason and return `status`. */
enum tess_status tess__net_fail(void *group, enum tess_status status, const char *reason);
/* Messages that were begun go. */
enum tess_status tess__net_flush(struct net_rank *rank);
/* Messages over the transport, with ranks of the group. *request: NET_NO_REQUEST once done. */
enum tess_status tess__net_begin(struct net_group *group, bool send, int32_t peer, uint32_t tag,
                                 const void *data, size_t bytes, uint32_t *request);
enum tess_status tess__net_done(struct net_group *group, uint32_t *request, bool *done_out);
void tess__net_note_fill(const struct tess_comm_call *call, uint64_t number, struct net_note *note);
uint32_t tess__net_note_hash(const struct net_note *note);

#endif
