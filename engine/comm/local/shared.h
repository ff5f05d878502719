/*
 * What the ranks of one host share: the layout of the world's memory, and the interface between the
 * files of the `local` communicator. Private to this room.
 *
 * One mapping, made before the ranks start, so that every address in it is the same for all of
 * them:
 *
 *     world, ranks | members | chunks | pipes | window of rank 0 | window 1 | ...
 *
 * It is sparse: a page that is never touched costs nothing, so the parts can be generous. What is
 * touched grows with the members of the groups that are open and with the pairs of ranks that send
 * each other messages, not with all pairs.
 *
 * A rank has LOCAL_SEATS seats; each has a member, in which it takes part in one group, and chunks.
 * Members of a seat lie side by side for all ranks, so that few pages of page tables map them. A
 * group is wherever its ranks took a seat: they exchange which. Pipes are a rank's too, each taken
 * when it first sends to another rank of a group.
 */
#ifndef TESSERA_COMM_LOCAL_SHARED_H
#define TESSERA_COMM_LOCAL_SHARED_H

#include "comm/call.h"
#include "comm/waiting.h"

#include <sys/queue.h>

/* Groups that a rank may have open at a time: that of the world, one or two along each axis of the
 * mesh, and as many again when calls are compared; seats that others have yet to leave. */
#define LOCAL_SEATS 64

#define LOCAL_RING   256 /* collectives that may be outstanding in a group */
#define LOCAL_FENCES 64  /* the same of collectives on device memory */
/* Of device memory, for each partial sum where a queue does not add up all ranks at once. */
#define LOCAL_PARTIAL_BYTES (256u << 10)
/* Source bytes up to which a call is staged when it is posted; in the largest groups, see
 * tess__local_small_bytes. */
#define LOCAL_SMALL       4096u
#define LOCAL_SMALL_LEAST 64u
/* Most and least room for staged small sources, per member. */
#define LOCAL_STAGE_BYTES (256u << 10)
#define LOCAL_STAGE_LEAST (16u << 10)
/* Piece in which private memory is staged: fits L2 twice. */
#define LOCAL_CHUNK_BYTES (256u << 10)
#define LOCAL_PAIR_RING   32 /* sends that may be outstanding from one rank to another */
#define LOCAL_PAIR_CHUNK  (64u << 10)
#define LOCAL_LINE        64

/*
 * One posted call. `seq` is stored last, with release: a reader that sees the number of the call it
 * looks for may read the rest, which stays until all ranks of the group have run the call.
 */
struct local_desc {
    _Alignas(LOCAL_LINE) _Atomic uint64_t seq; /* number of the call in its sequence, from 1 */
    struct tess__call_key key;
    const void *source; /* address that peers may read; meaningless if not source_shared */
    void *target;       /* likewise to write */
    bool source_shared, target_shared;
};

/* One rank's part of a group, which is set back by the rank when it takes the seat anew. */
struct local_member {
    /* (number of collectives run) << 32 | phase of the one being run. Written by the rank alone. */
    _Alignas(LOCAL_LINE) _Atomic uint64_t progress;
    /* (how often the seat has been taken) << 32 | of the group's first member: how many members
     * have left the group. */
    _Atomic uint64_t left;
    struct local_desc ring[LOCAL_RING];
    /* Of each member of the group: 1 + the pipe in which the rank sends to it, 0: none yet. Then
     * comes the ring of staged small sources, world->stage_bytes. */
    _Atomic uint32_t pipe[];
};

/* What one rank sends to another in a group, which is set back by the sender when it takes it. */
struct local_pipe {
    _Alignas(LOCAL_LINE) _Atomic uint64_t staged;   /* chunks; written by the sender */
    _Alignas(LOCAL_LINE) _Atomic uint64_t received; /* messages; written by the receiver */
    _Atomic uint64_t consumed;                      /* chunks; likewise */
    struct local_desc ring[LOCAL_PAIR_RING];
    unsigned char small[LOCAL_PAIR_RING][LOCAL_SMALL];
    unsigned char chunk[2][LOCAL_PAIR_CHUNK];
};

/* For which events a sleeping rank is woken: no rank waits for others to run a small call, except
 * one that needs its descriptor or its staging room. */
enum world_sleep { WORLD_AWAKE, WORLD_SLEEPS, WORLD_SLEEPS_FOR_ROOM };

/* One rank's place in the world. */
struct world_rank {
    struct tess_board own_board, *board;            /* board: own_board or elsewhere */
    _Alignas(LOCAL_LINE) _Atomic uint32_t bell;     /* futex: changes when the rank should look */
    _Alignas(LOCAL_LINE) _Atomic uint32_t sleeping; /* enum world_sleep */
};

struct tess_world {
    enum tess_rank_mode mode;
    int32_t rank_count;
    int32_t core_count; /* cores that the launcher may run on */
    int32_t pipe_count; /* of each rank */
    size_t map_bytes;
    size_t member_offset, member_bytes, stage_offset, stage_bytes; /* stage_offset: in a member */
    size_t chunk_offset, chunk_bytes;
    size_t pipe_offset;
    size_t window_offset, window_bytes; /* bytes: of one rank; 0 with threads */
    _Atomic uint32_t abort_state;       /* 0: running, 1: reason being written, 2: written */
    int32_t abort_rank;
    _Atomic uint32_t request; /* enum tess_world_request */
    char abort_reason[1024];
    struct world_rank rank[];
};

/* Where things are: by rank of the world. A member has two chunks, one after the other. */
struct local_member *tess__world_member(struct tess_world *world, int32_t rank, int32_t seat);
unsigned char *tess__world_chunks(struct tess_world *world, int32_t rank, int32_t seat);
struct local_pipe *tess__world_pipe(struct tess_world *world, int32_t rank, uint32_t pipe);

/* True when every rank can reach [memory, memory + bytes) at this address. */
bool tess__world_reaches(const struct tess_world *world, const void *memory, size_t bytes);

/* A message in either direction: one outstanding send or receive. */
enum local_way { LOCAL_EAGER, LOCAL_DIRECT, LOCAL_CHUNKED };
struct local_message {
    enum local_way way;
    struct tess_comm_call call;
    size_t bytes, offset;
};

/* All before `reported` are complete and reported; between that and `finished`, what has a
 * way other than LOCAL_DIRECT. Receives are complete when finished. */
struct local_queue {
    uint64_t posted, finished, reported;
    struct local_message message[LOCAL_PAIR_RING];
};

/* A rank's memory from alloc, in order of address (windows) or of allocation (threads). */
struct local_block {
    struct local_block *next;
    struct local_group *owner;
    char *memory;
    size_t bytes;
    char *mapping; /* threads: what to unmap */
    size_t mapping_bytes;
};

/* A rank's own record of a seat. Free again when all members have left the group: until then a peer
 * may still read what is there. */
struct local_seat {
    bool taken;
    int32_t pipe;               /* the first of its pipes; -1: none */
    struct local_member *first; /* of the group; NULL: the group was not opened */
    uint32_t round;             /* that it was taken for, of the first member */
    int32_t member_count;
    uint64_t posted; /* when the rank left */
};

/* The same of a pipe. */
struct local_pipe_use {
    int32_t next; /* of its seat, or free; -1: the last */
    int32_t peer; /* in the group */
};

/* State of one rank; shared by all its communicators, touched by its thread only. */
struct local_rank {
    struct tess_world *world;
    int32_t rank;
    double timeout_s;
    LIST_HEAD(local_groups, local_group) groups; /* open: while waiting in one, all are advanced */
    struct local_block *blocks;
    bool notified;   /* the abort of the world has been logged */
    bool wants_room; /* waits for descriptors or staging room: wake it for small calls too */
    int32_t pipes_used, pipe_free; /* pipes that were ever taken; the first free one of these */
    struct local_seat seat[LOCAL_SEATS];
    struct local_pipe_use pipe[]; /* [world->pipe_count] */
};

/* Messages with one other member of a group; made at the first. */
struct local_peer {
    int32_t member;
    bool active;                 /* in the group's list */
    LIST_ENTRY(local_peer) link; /* of those with messages under way */
    struct local_pipe *out, *in; /* to it and from it; NULL: none yet */
    struct local_queue send, receive;
};

/* A member of the group, as this rank sees it. */
struct local_other {
    struct local_member *member;
    unsigned char *chunks;
    struct local_peer *peer; /* NULL: no message yet */
};

/* Large; its pages are taken from the system as they are first used. */
struct local_group {
    struct tess_comm comm;
    struct tess__waiting waiting;
    struct local_rank *rank;
    LIST_ENTRY(local_group) link;
    int32_t seat;

    /* Collectives: numbers of the next to post, and to run; all before `retired` have been run by
     * all ranks, so that their descriptors and staged sources are free. All before `reported` are
     * complete and reported; between that and next_call, what does not wait for all. */
    uint64_t posted, next_call, retired, reported;
    struct tess_comm_call call[LOCAL_RING]; /* own calls, as asked */
    bool waits_for_all[LOCAL_RING];         /* complete only when all have run it */
    uint64_t stage_begin[LOCAL_RING];       /* bytes ever staged before the call */
    uint64_t stage_end;                     /* bytes ever staged */
    uint64_t stage_free;                    /* bytes ever freed */

    /* How many of the first members have posted call `posted_of`, and run call `run_of`: those are
     * not looked at again. */
    uint64_t posted_of, run_of;
    int32_t posted_members, run_members;

    /* The call being run: planned once all have posted it. */
    bool planned, small, chunked;
    uint64_t chunk, chunk_count;
    size_t chunk_elements; /* of one piece */
    size_t summed_bytes;   /* of slices, by this rank */

    LIST_HEAD(local_peers, local_peer) peers; /* with messages under way */

    /* Queue and fences for device memory, and the members' own; NULL: none. */
    struct local_device *device, **device_of;

    /* By member, cut from the same block. */
    int32_t *world_rank;
    const void **source; /* while a call is run */
    void **target;
    struct local_other other[];
};

static inline struct local_member *tess__local_own(const struct local_group *group)
{
    return group->other[group->comm.rank].member;
}

/* Source bytes up to which a call is staged: each rank reads all of them, so that in large groups
 * more is added up in slices. */
static inline size_t tess__local_small_bytes(const struct local_group *group)
{
    const size_t n = (size_t)group->comm.rank_count, most = 64 * (size_t)LOCAL_SMALL / n;
    return most > LOCAL_SMALL ? LOCAL_SMALL : most < LOCAL_SMALL_LEAST ? LOCAL_SMALL_LEAST : most;
}

/* local_seat.c: a rank's seats. Take one, -1: there is none; give one back whose group was not
 * opened. */
int32_t tess__local_seat_take(struct local_rank *rank);
void tess__local_seat_drop(struct local_rank *rank, int32_t seat);
/* The group is open in its seat; this rank has left it. */
void tess__local_seat_enter(struct local_group *group);
void tess__local_seat_leave(struct local_group *group);
/* A pipe for messages to a member of the group, which its rank finds. */
enum tess_status tess__local_pipe_take(struct local_group *group, int32_t member,
                                       struct local_pipe **pipe_out);
/* The one in which the member sends to this rank; NULL: it has not sent. */
struct local_pipe *tess__local_pipe_from(const struct local_group *group, int32_t member);

/* local_run.c: number of collectives that every rank of the group has run, and whether all have run
 * number `t` (from 0). */
uint64_t tess__local_run_by_all(const struct local_group *group);
bool tess__local_is_run(struct local_group *group, uint64_t t);
/* True when every rank that a call needs before it can be run has posted call number `t`. */
bool tess__local_is_posted(struct local_group *group, uint64_t t);
/* Advance the group's calls as far as possible without blocking. *moved_out is set when
 * something was done, else left. */
enum tess_status tess__local_run(struct local_group *group, bool *moved_out);
/* Report the collectives that others have completed; called wherever their counters were read. */
void tess__local_report(struct local_group *group);

/* local_message.c: the same for sends and receives; the number (from 0) of the next one, and
 * posting it, where there is room. */
uint64_t tess__local_message_next(const struct local_group *group,
                                  const struct tess_comm_call *call);
bool tess__local_message_has_room(const struct local_group *group, bool send, int32_t peer);
enum tess_status tess__local_message_run(struct local_group *group, bool *moved_out);
enum tess_status tess__local_message_post(struct local_group *group,
                                          const struct tess_comm_call *call);
bool tess__local_message_complete(const struct local_group *group, bool send, int32_t peer,
                                  uint64_t seq);
/* What messages in one direction need that is not there yet; and freeing it. */
enum tess_status tess__local_message_meet(struct local_group *group, bool send, int32_t peer);
void tess__local_message_close(struct local_group *group);

/* One that is under way, or was the latest in its place. */
struct tess_comm_call tess__local_message_call(const struct local_group *group, bool send,
                                               int32_t peer, uint64_t seq);
/* As tess__local_report, of the sends to `peer`. */
void tess__local_message_report(struct local_group *group, int32_t peer);

/* local_memory.c */
enum tess_status tess__local_alloc(struct tess_comm *comm, size_t bytes, void **memory_out);
void tess__local_release(struct tess_comm *comm, void *memory);
void tess__local_release_all(struct local_group *group);

/* local_device.c: calls on device memory. Opening and closing what they need; ops->attach. */
enum tess_status tess__local_attach(struct tess_comm *comm, struct tess_queue *queue);
/* The fences of messages with the other rank. */
enum tess_status tess__local_device_meet(struct local_group *group, int32_t peer);
/* TESS_ERR_UNSUPPORTED where the ranks cannot reach each other's. */
enum tess_status tess__local_device_check(const struct local_group *group,
                                          const struct tess_comm_call *call);
/* Before collective `t` is posted; before and after this rank's share of it is given; and when it
 * is waited for, by all members' fences or this rank's alone. */
enum tess_status tess__local_device_post(struct local_group *group, uint64_t t);
enum tess_status tess__local_device_begin(struct local_group *group, uint64_t t);
enum tess_status tess__local_device_end(struct local_group *group, uint64_t t);
enum tess_status tess__local_device_join(struct local_group *group, uint64_t t, bool all);
/* The queue that runs this rank's share. */
const struct tess__call_queue *tess__local_device_queue(const struct local_group *group);
/* The same for messages: before one is posted, to run a receive, and when one is waited for. */
enum tess_status tess__local_device_post_message(struct local_group *group, bool send, int32_t peer,
                                                 uint64_t seq);
enum tess_status tess__local_device_pull(struct local_group *group, int32_t peer, uint64_t seq,
                                         void *target, const void *source, size_t bytes);
enum tess_status tess__local_device_join_message(struct local_group *group, bool send, int32_t peer,
                                                 uint64_t seq);

/* local_wait.c: set group->waiting; advance all groups of its rank without blocking. */
void tess__local_wait_open(struct local_group *group);
enum tess_status tess__local_advance(void *group, bool *moved_out);
/* TESS_ERR_ABORTED, logged the first time, when the world is aborted. */
enum tess_status tess__local_check(struct local_rank *rank);
/* Stop all ranks of the world, log the reason and return `status`. */
enum tess_status tess__local_fail(void *group, enum tess_status status, const char *reason);
/* Wake the ranks of the group that sleep (at least as deep as `least`), or one of them. */
void tess__local_ring(struct local_group *group, enum world_sleep least);
void tess__local_ring_one(struct local_group *group, int32_t peer);

#endif
