/*
 * Communicators: collectives over a group of ranks.
 *
 * Every call is queued on the group and returns at once; the data are there when the event has been
 * waited for. All ranks of a group make the same calls in the same order. Between the call and the
 * wait, source and target belong to the communicator. A NULL event means: wait before returning.
 *
 * Sums are taken in one of two orders. TESS_ORDER_CANONICAL adds the ranks' values as one binary
 * tree over the ranks, split at the largest power of two below the count,
 *
 *     n = 6:  ((0 + 1) + (2 + 3)) + (4 + 5)
 *
 * so that the bits do not depend on the backend, on the size of the message or on how it is cut
 * into pieces, and so that a rank which holds a whole subtree may fold it by itself first.
 * TESS_ORDER_FAST leaves the order to the backend. f16 and bf16 are added in f32 and rounded once.
 *
 * Device memory. Where the rank computes on a queue (tessera/queue.h), a call whose source or
 * target is memory of the device runs beside that queue: after what the kernels were given before
 * the call, and before what they are given after the wait, which then does not wait for the data
 * but only orders. Source and target are both of the device, on every rank. Calls on host memory
 * are as above.
 */
#ifndef TESSERA_COMM_H
#define TESSERA_COMM_H

#include "tessera/queue.h"
#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ranks of a job: a bound for numbers that come from outside. Nothing has this size. */
#define TESS_RANKS_MAX 65536

TESS_BEGIN_DECLS

enum tess_order { TESS_ORDER_CANONICAL, TESS_ORDER_FAST };

/* X(enum word, text): what a call does; used by messages, counters and the status board. */
#define TESS_COLLECTIVE_LIST(X)                                                                    \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(REDUCE, "reduce")                                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")                                                                                \
    X(BARRIER, "barrier")

enum tess_collective {
#define TESS_COLLECTIVE_ENUM(word, text) TESS_COLLECTIVE_##word,
    TESS_COLLECTIVE_LIST(TESS_COLLECTIVE_ENUM)
#undef TESS_COLLECTIVE_ENUM
        TESS_COLLECTIVE_COUNT
};

const char *tess_collective_name(enum tess_collective collective);

struct tess_comm;

/* When a call will be complete. A value, nothing to free; {NULL, 0} is complete. */
struct tess_event {
    struct tess_comm *comm;
    uint64_t ticket;
};

/*
 * What a rank does with its slice in tess_comm_share: elements begin .. begin + count - 1 of the
 * arrays source[rank] of all ranks. It runs in a poll or a wait of the rank, and calls no
 * communicator.
 */
struct tess_comm_share {
    void (*run)(void *context, const void *const *source, size_t begin, size_t count);
    void *context;
    size_t given_bytes; /* that it writes into each other rank's memory for an element; counted */
    size_t later_bytes; /* likewise, and counted by the caller when it is used */
};

/* One call, as the backend sees it: checked by the wrappers below. */
struct tess_comm_call {
    enum tess_collective collective;
    enum tess_reduce reduce;
    enum tess_order order;
    enum tess_dtype dtype;
    const void *source;
    void *target;
    size_t count;     /* elements, as documented at each wrapper */
    int32_t peer;     /* root of broadcast and reduce, peer of send and recv; else -1 */
    bool device;      /* source and target are memory of the device of comm->queue */
    const char *site; /* "file.c:123" of the caller, "" where unknown, for messages; never NULL */
    /* ALL_REDUCE: what each rank does with its slice in place of adding it up; NULL: it adds. Only
     * where the backend reaches the data. */
    const struct tess_comm_share *share;
};

/* Counters of one rank in one group since it was opened. */
struct tess_comm_stats {
    uint64_t calls[TESS_COLLECTIVE_COUNT];
    uint64_t sent_bytes; /* payload that left this rank for another one, as moved by the backend */
    uint64_t received_bytes; /* payload that came from another rank */
    /* Exposed: in tess_event_wait, and in synchronous calls once queued. On device memory: as
     * tess_comm_settle counts. */
    double wait_s;
    /* Time during which at least one call that is complete was under way. flight_s - wait_s went on
     * behind computation; it may be a little below 0, as a wait takes longer than its call. */
    double flight_s;
};

/*
 * An observer of every call of one rank in one group, called by the thread that makes the call. Any
 * function may be NULL; none may call the communicator. A ticket names a call of this rank in this
 * group for good. `called` comes before `completed`, each once per call, unless the group is
 * aborted first. Set or removed while no call is under way.
 */
struct tess_comm_observer {
    void *context;
    /* Queued. */
    void (*called)(void *context, const struct tess_comm *comm, const struct tess_comm_call *call,
                   uint64_t ticket);
    /* Seen to be complete, in a poll or a wait. Calls may complete in another order. */
    void (*completed)(void *context, const struct tess_comm *comm, uint64_t ticket);
    /* The rank begins (true) and ends to wait for a call. A wait that fails does not end. */
    void (*waiting)(void *context, const struct tess_comm *comm, uint64_t ticket, bool on);
};

/* A backend, whose own struct begins with struct tess_comm. Call order: open by its own means, then
 * any of alloc, call, poll, wait, split, then close. */
struct tess_comm_ops {
    /* REQUIRED. Queue one call, *ticket_out, and report tess_comm_called(). Must not block. */
    enum tess_status (*call)(struct tess_comm *comm, const struct tess_comm_call *call,
                             uint64_t *ticket_out);
    /* REQUIRED. Block until `ticket` is complete, the group is aborted or its time limit passed. */
    enum tess_status (*wait)(struct tess_comm *comm, uint64_t ticket);
    /* OPTIONAL, default: nothing to do. Advance what can be advanced without blocking. */
    enum tess_status (*poll)(struct tess_comm *comm);
    /* OPTIONAL, default: nothing to do. comm->queue is `queue`, or about to be NULL. Collective. */
    enum tess_status (*attach)(struct tess_comm *comm, struct tess_queue *queue);
    /* OPTIONAL, default: nothing to do. See tess_comm_meet. */
    enum tess_status (*meet)(struct tess_comm *comm, int32_t from, int32_t to);
    /* REQUIRED. See tess_comm_alloc. */
    enum tess_status (*alloc)(struct tess_comm *comm, size_t bytes, void **memory_out);
    /* REQUIRED. Free what alloc gave; only on the communicator that gave it. */
    void (*release)(struct tess_comm *comm, void *memory);
    /* REQUIRED. See tess_comm_split. */
    enum tess_status (*split)(struct tess_comm *comm, int32_t color, int32_t key,
                              struct tess_comm **child_out);
    /* OPTIONAL, default: never. See tess_comm_reaches. */
    bool (*reaches)(const struct tess_comm *comm, const void *memory, size_t bytes);
    /* REQUIRED. See tess_comm_abort. */
    void (*abort)(struct tess_comm *comm, const char *reason);
    /* REQUIRED. Free the communicator itself. Accepts a half-opened one. */
    void (*close)(struct tess_comm *comm);
};

#define TESS_COMM_PHASES 8

/* The public head of every communicator; backends embed it first. Read-only for users. */
struct tess_comm {
    const struct tess_comm_ops *ops;
    int32_t rank;
    int32_t rank_count;
    enum tess_order order; /* of every sum in this group; set at open, inherited by split */
    struct tess_comm_stats stats;
    /* Called with true before and false after a backend touches source or target; may be NULL. */
    void (*access)(void *context, bool on);
    void *access_context;
    struct tess_queue *queue; /* of the rank's kernels, borrowed, inherited by split; NULL: none */
    bool device_memory;       /* alloc gives memory of the device, not of the host */
    const struct tess_comm_observer *observer; /* borrowed, inherited by split; NULL: none */
    /* For comm.c alone: calls under way, and since when there are any. While `quiet`, calls are
     * the communicator's own: not counted, not observed. */
    uint64_t flight_count;
    double flight_since_s, called_s; /* called_s: when the latest call was queued */
    bool quiet;
    uint64_t quiet_ticket;
    /* The group that this one was split from, at the root of all splits; NULL: itself. The root
     * counts the calls of the whole family. */
    struct tess_comm *root;
    uint64_t family_count;
    double family_since_s, family_s;
    struct comm_marks *marks; /* of calls on device memory; the root's, shared by the family */
    struct comm_debug *debug; /* compares calls over the ranks; NULL: they are not compared */
    double settled_s;         /* while settling: how far flight_s has been counted */
    /* The root's: wait_s of the whole family by what the rank was at, see tess_comm_phase. */
    int32_t phase;
    double phase_wait_s[TESS_COMM_PHASES];
};

/* Seconds during which any call of this rank was under way in this group's family, all groups with
 * one root: flight_s, each moment once. */
double tess_comm_family_flight_s(const struct tess_comm *comm);

/* Where a collective was called from, by the macros at the end of this header. Per thread. */
extern __thread const char *tess_comm_site;

/*
 * The rank computes on `queue` from here on, and calls may be made on its device's memory; NULL:
 * no longer, before the queue is closed. Sets comm->queue and makes what such calls need. No call
 * may be under way, no child open: children inherit it when they are split off. Collective.
 */
enum tess_status tess_comm_attach(struct tess_comm *comm, struct tess_queue *queue);

/*
 * For backends, each once per queued call: its ticket, within ops->call; and that it is complete,
 * as soon as this rank sees it and before wait() for it returns, which may be within ops->call.
 */
void tess_comm_called(struct tess_comm *comm, const struct tess_comm_call *call, uint64_t ticket);
void tess_comm_completed(struct tess_comm *comm, uint64_t ticket);
/* Of a call on device memory: all that this rank does for it has been given to `queue`. OPTIONAL:
 * where it is not reported, the call is taken to end with its wait. */
void tess_comm_given(struct tess_comm *comm, uint64_t ticket, struct tess_queue *queue);

/* target[i] = sum over ranks of source[i]. In place when target == source. Collective. */
enum tess_status tess_comm_all_reduce(struct tess_comm *comm, const void *source, void *target,
                                      size_t count, enum tess_dtype dtype, enum tess_reduce reduce,
                                      struct tess_event *event_out);

/*
 * A sum that is used where it is made: once all ranks have called, each runs share->run on a slice
 * of all ranks' arrays, where they lie, and may write what follows from it into the memory of any
 * rank. Complete when all have run theirs. `count` elements are cut into slices in order of the
 * ranks, of whole cache lines and even where they allow it. `data` lies in memory that the
 * communicator reaches; `share` stays until the event has been waited for. Collective.
 */
enum tess_status tess_comm_share(struct tess_comm *comm, const void *data, size_t count,
                                 enum tess_dtype dtype, const struct tess_comm_share *share,
                                 struct tess_event *event_out);
/* Can every rank of the group read and write [memory, memory + bytes) of this rank at the same
 * address? The answer for all memory of tess_comm_alloc on a communicator is the same. */
bool tess_comm_reaches(const struct tess_comm *comm, const void *memory, size_t bytes);

/*
 * Sum over all ranks and leave rank r's share in `target`.
 *
 *   source  [N * count]  N = rank_count; rank r's share starts at r * count; left unchanged
 *   target  [count]      may be source + rank * count (in place), must not overlap otherwise
 *
 * Collective.
 */
enum tess_status tess_comm_reduce_scatter(struct tess_comm *comm, const void *source, void *target,
                                          size_t count, enum tess_dtype dtype,
                                          enum tess_reduce reduce, struct tess_event *event_out);

/*
 * Concatenate the ranks' shares in rank order on every rank.
 *
 *   source  [count]      may be target + rank * count (in place), must not overlap otherwise
 *   target  [N * count]
 *
 * Collective.
 */
enum tess_status tess_comm_all_gather(struct tess_comm *comm, const void *source, void *target,
                                      size_t count, enum tess_dtype dtype,
                                      struct tess_event *event_out);

/* Copy root's `data` [count] to `data` of every other rank. Collective. */
enum tess_status tess_comm_broadcast(struct tess_comm *comm, void *data, size_t count,
                                     enum tess_dtype dtype, int32_t root,
                                     struct tess_event *event_out);

/* As all_reduce, but only root's target is written; target may be NULL elsewhere. Collective. */
enum tess_status tess_comm_reduce(struct tess_comm *comm, const void *source, void *target,
                                  size_t count, enum tess_dtype dtype, enum tess_reduce reduce,
                                  int32_t root, struct tess_event *event_out);

/* Rank r's piece s goes to rank s as its piece r; both [N * count], distinct. Collective. */
enum tess_status tess_comm_all_to_all(struct tess_comm *comm, const void *source, void *target,
                                      size_t count, enum tess_dtype dtype,
                                      struct tess_event *event_out);

/* Point to point, matched in order per (sender, receiver), who alone take part and give the same
 * count and dtype. A send may complete before it is received. */
enum tess_status tess_comm_send(struct tess_comm *comm, const void *source, size_t count,
                                enum tess_dtype dtype, int32_t peer, struct tess_event *event_out);
enum tess_status tess_comm_recv(struct tess_comm *comm, void *target, size_t count,
                                enum tess_dtype dtype, int32_t peer, struct tess_event *event_out);

/*
 * There will be messages from `from` to `to`, this rank being one of them: make what they need.
 * Both call it, in any order with others, and wait for each other; no call is under way in any
 * group of either. OPTIONAL: the first message between two ranks does the same, and on a device
 * may then wait for calls that are under way, which the peer may not have made yet. So it does, on
 * communicators between devices, at a message of more bytes of host memory than there is room for.
 */
#define TESS_COMM_MEET_BYTES ((size_t)65536)
enum tess_status tess_comm_meet(struct tess_comm *comm, int32_t from, int32_t to);

/* Return when every rank has called it. Collective. */
enum tess_status tess_comm_barrier(struct tess_comm *comm);

/*
 * Block until the event's call is complete and clear it; at once if it is clear. TESS_ERR_ABORTED
 * with the failing rank's message when a peer aborted, TESS_ERR_TIMEOUT with the ranks that did not
 * come in time. Never spins for longer than about 50 us.
 */
enum tess_status tess_event_wait(struct tess_event *event);

/* Advance queued calls without blocking. */
enum tess_status tess_comm_poll(struct tess_comm *comm);

/*
 * Count what calls on device memory took, which the host can read only afterwards: wait_s
 * gains the time in which the queue stood still for them, flight_s that in which they were under
 * way. After the queue's work was waited for; between steps.
 */
enum tess_status tess_comm_settle(struct tess_comm *comm);

/* From here on the rank's waits in this group's family are counted in phase_wait_s[phase] of the
 * root, 0 <= phase < TESS_COMM_PHASES; the caller gives phases their meaning. */
void tess_comm_phase(struct tess_comm *comm, int32_t phase);
/* Seconds of exposed waiting in a phase, over the family. */
double tess_comm_phase_wait_s(const struct tess_comm *comm, int32_t phase);

/* While `on`, the queue's work is recorded, not run (tess_kernel_ops.graph_begin): calls of this
 * group and its family have no times. */
void tess_comm_untimed(struct tess_comm *comm, bool on);

/*
 * Memory that peers can reach without a copy (shared memory, registered memory); zeroed, aligned to
 * a page at least. Any other memory may be used in calls too and is staged. Collective; `bytes` may
 * differ between ranks. Freed by release or with the communicator.
 */
enum tess_status tess_comm_alloc(struct tess_comm *comm, size_t bytes, void **memory_out);
void tess_comm_release(struct tess_comm *comm, void *memory);

/* A group of the ranks that gave the same color (>= 0), by (key, rank). Memory of the parent's
 * alloc stays directly reachable. Close children before the parent. Collective. */
enum tess_status tess_comm_split(struct tess_comm *comm, int32_t color, int32_t key,
                                 struct tess_comm **child_out);

/* Send to all ranks of the world why this one failed; their calls and waits return TESS_ERR_ABORTED
 * soon. The first reason is kept. Not collective; any thread. */
void tess_comm_abort(struct tess_comm *comm, const char *reason);

void tess_comm_close(struct tess_comm *comm); /* NULL is allowed */

/* Each call notes where it stands in the caller's source; in parentheses, (tess_comm_send)(...), it
 * does not and has the site that tess_comm_site holds. A call takes the site away with it. */
#define TESS_COMM_SITE_TEXT(line) #line
#define TESS_COMM_SITE_LINE(line) TESS_COMM_SITE_TEXT(line)
#ifdef __FILE_NAME__
#define TESS_COMM_SITE (tess_comm_site = __FILE_NAME__ ":" TESS_COMM_SITE_LINE(__LINE__))
#else
#define TESS_COMM_SITE (tess_comm_site = __FILE__ ":" TESS_COMM_SITE_LINE(__LINE__))
#endif
#define tess_comm_all_reduce(...)     (TESS_COMM_SITE, (tess_comm_all_reduce)(__VA_ARGS__))
#define tess_comm_share(...)          (TESS_COMM_SITE, (tess_comm_share)(__VA_ARGS__))
#define tess_comm_reduce_scatter(...) (TESS_COMM_SITE, (tess_comm_reduce_scatter)(__VA_ARGS__))
#define tess_comm_all_gather(...)     (TESS_COMM_SITE, (tess_comm_all_gather)(__VA_ARGS__))
#define tess_comm_broadcast(...)      (TESS_COMM_SITE, (tess_comm_broadcast)(__VA_ARGS__))
#define tess_comm_reduce(...)         (TESS_COMM_SITE, (tess_comm_reduce)(__VA_ARGS__))
#define tess_comm_all_to_all(...)     (TESS_COMM_SITE, (tess_comm_all_to_all)(__VA_ARGS__))
#define tess_comm_send(...)           (TESS_COMM_SITE, (tess_comm_send)(__VA_ARGS__))
#define tess_comm_recv(...)           (TESS_COMM_SITE, (tess_comm_recv)(__VA_ARGS__))
#define tess_comm_barrier(...)        (TESS_COMM_SITE, (tess_comm_barrier)(__VA_ARGS__))
#define tess_comm_split(...)          (TESS_COMM_SITE, (tess_comm_split)(__VA_ARGS__))

TESS_END_DECLS
#endif
