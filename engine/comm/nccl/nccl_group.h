/*
 * What the files of the NCCL communicator share.
 *
 *     family    one rank's groups that come from one open: lock, thread, failure, memory
 *       group   a communicator of ours: two lanes, staging, scratch
 *         lane  an NCCL communicator and the stream it works on: its calls run one after the other
 *       channel the messages from one rank to another in a group: a lane of two ranks
 *
 * The lock guards NCCL's communicators against the thread that aborts them when something is wrong;
 * it is held for one call of NCCL at a time, none of which waits for other ranks (non-blocking
 * communicators). After a failure they are gone: `failed` is set, then every `comm` is NULL.
 *
 * NCCL works beside the caller and writes its results to the addresses it was given: these are
 * never on a stack.
 */
#ifndef KERNELS_CUDA_NCCL_GROUP_H
#define KERNELS_CUDA_NCCL_GROUP_H

#include "comm/nccl/nccl.h"
#include "comm/net/net_path.h"
#include "cuda/cuda.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#define NCCL_FENCES  64  /* calls of a lane with an end of their own */
#define NCCL_RECORDS 512 /* calls of a group that may wait to be waited for */
#define NCCL_SLOTS   4   /* collectives on host memory that may be under way in a group */
/* Staging of one of them, on the host and on the device. With 8 ranks a piece of a sum is 56 KiB:
 * what goes this way are losses, digests and notes. Of many ranks at least so much for each array
 * of each. */
#define NCCL_SLOT_BYTES ((size_t)512 << 10)
#define NCCL_SLOT_LEAST ((size_t)64)
/* Where one array ends and the next begins in staging and scratch. */
#define NCCL_ALIGN ((size_t)256)

/* Which calls go on together: gathers beside sums. */
enum nccl_way { NCCL_SUMS, NCCL_GATHERS, NCCL_LANES };

struct nccl_lane {
    ncclComm_t comm;
    ncclComm_t made;          /* what is being split off it */
    cudaStream_t own;         /* before there is a queue */
    cudaStream_t stream;      /* the queue's, or `own` */
    struct tess_queue *queue; /* NULL where the group is not attached */
    struct tess_fence *ready; /* the kernels had been given all that the latest call follows */
    struct tess_fence *done[NCCL_FENCES];
    uint64_t given; /* calls on device memory */
    /* For the watch, guarded by the lock: the latest call, and its end where it was not recorded
     * in a graph. */
    cudaEvent_t beat;
    uint64_t beats, beats_seen;
    double seen_s; /* since when it has been seen not to move */
    enum tess_collective doing;
    uint64_t number; /* of that call in its group; 0: none yet */
    char site[48];
};

enum nccl_state { NCCL_DONE, NCCL_ON_DEVICE, NCCL_ON_HOST };

/* A call that has not been waited for. */
struct nccl_record {
    uint64_t ticket; /* 0: a call of our own */
    enum nccl_state state;
    struct nccl_lane *lane;
    uint64_t given;         /* device: its number among the lane's */
    struct nccl_slot *slot; /* host */
};

struct nccl_slot {
    struct nccl_slot *next;     /* of messages: made after it */
    struct nccl_record *record; /* NULL: free */
    struct nccl_lane *lane;
    unsigned char *host, *device; /* [bytes] */
    size_t bytes;
    cudaEvent_t event; /* all has been copied back */
    struct tess_comm_call call;
    size_t first, count; /* the piece of the call that is staged, in elements */
};

/* Memory of ours that is registered with NCCL communicators. */
struct nccl_registration {
    LIST_ENTRY(nccl_registration) link;
    struct nccl_lane *lane;
    ncclWindow_t window; /* or */
    void *handle;
};

struct nccl_block {
    LIST_ENTRY(nccl_block) link;
    struct nccl_group *owner;
    void *memory;
    void *base; /* what cudaMalloc gave, where NCCL has no allocator; else NULL */
    size_t bytes;
    bool symmetric; /* all ranks have the same bytes */
    bool scratch;   /* a group's own */
    LIST_HEAD(nccl_registrations, nccl_registration) registered;
};

/* Of an exchange: what a rank sends to one and gets from one. Several between two ranks are in the
 * same order on both. */
struct nccl_part {
    int32_t to, from;
    const void *source;
    void *target;
    size_t send_bytes, receive_bytes; /* 0: nothing */
};

/* Two halves, filled on the lane, added up on nccl_group.sums. */
struct nccl_room {
    unsigned char *memory;
    size_t bytes;    /* of both */
    bool registered; /* with the lane */
};

struct nccl_group {
    struct tess_comm comm;
    struct nccl_family *family;
    LIST_ENTRY(nccl_group) link;
    uint64_t id;            /* the same on all members, another one in other groups */
    uint64_t splits;        /* into groups, one at least of several ranks */
    uint64_t calls, polled; /* all calls up to `polled` are done */
    struct net_shape shape; /* for sums on two levels; one host: on one level */
    /* [rank_count], allocated with the group: */
    int32_t *member;        /* in the family */
    int32_t *host;          /* as in the family, by member */
    struct nccl_part *part; /* of the exchange that is being given to NCCL, `parts` of them */
    const void **source;    /* of the sum that is being given to a queue, or taken by the host */
    int32_t parts;
    struct nccl_lane lane[NCCL_LANES];
    struct nccl_record record[NCCL_RECORDS];
    struct nccl_slot slot[NCCL_SLOTS]; /* of slot_bytes each */
    size_t slot_bytes;
    struct nccl_slot *message_slot; /* of messages, as many as were under way at a time */
    /* Sums in canonical order come here: where NCCL has registered their source it is to `shared`,
     * which is registered as well, else to `plain`. NULL: not yet. */
    struct nccl_room plain;
    struct nccl_block *shared;
    struct tess_queue *sums;
    struct tess_fence *full[2], *taken[2];
};

enum nccl_channel_state { NCCL_WANTED, NCCL_ASKED, NCCL_STARTING, NCCL_GREETING, NCCL_READY };

struct nccl_channel {
    struct nccl_channel *next;
    uint64_t group;
    int32_t from, to; /* in the family */
    enum nccl_channel_state state;
    bool has_id;
    ncclUniqueId id;
    uint64_t free_before;
    struct nccl_lane lane;
    bool met; /* both ranks have it: made by tess_comm_meet */
};

struct nccl_post; /* nccl_post.c: how ranks reach each other's threads */

struct nccl_family {
    struct tess_world *world; /* of all ranks, or of this one; NULL: none */
    int32_t place;            /* this rank's in it */
    int32_t rank, rank_count;
    int32_t *host; /* [rank_count], of each rank: the number of its host's first rank */
    int device;    /* as CUDA numbers it */
    int version;
    bool registers; /* NCCL registers memory for a rank by itself, on all of them */
    struct tess_comm_choices choices;
    double timeout_s;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a channel is ready, or something failed */
    pthread_t thread;
    bool threaded;
    LIST_HEAD(nccl_groups, nccl_group) groups; /* latest first; the last is the root */
    struct nccl_channel *channels;
    LIST_HEAD(nccl_blocks, nccl_block) blocks; /* latest first */
    struct nccl_post *post;
    bool hasty; /* while closing: a peer did not come, so wait for none any more */
    _Atomic bool failed, ends;
    bool aborted;            /* after a failure: NCCL has let go of everything */
    bool stuck;              /* it did not in time */
    enum tess_status status; /* why, once failed */
    char reason[800];
    bool logged;             /* it has been */
    unsigned char *greeting; /* [2] on the device: what channels send and receive at first */
};

/* ---- nccl_family.c: failure, and waiting for NCCL itself ------------------------------------- */

/* The family fails, first reason kept: it is sent to the others unless it is theirs (`status`
 * ABORTED), and the thread aborts all of NCCL. Any thread, lock not held. */
void tess__nccl_break(struct nccl_family *family, enum tess_status status, const char *reason);
/* After a failure, before anything is freed that NCCL may still use: until it is aborted. False
 * where that does not end. */
bool tess__nccl_wait_aborted(struct nccl_family *family);
/* Lock held; lets go of it until something has `changed`, for a moment at most. */
void tess__nccl_wait_changed(struct nccl_family *family);
/* A failure of the world is one of the family. Not logged. */
void tess__nccl_check_world(struct nccl_family *family);
/* Abort all communicators at once; the failure has been set. Lock not held: see nccl_family.c. */
void tess__nccl_abort_all(struct nccl_family *family);
/* Log an error that nothing is to be done about. */
void tess__nccl_say(ncclResult_t result, const char *what);
/* Send the reason to the other ranks. */
void tess__nccl_notify(struct nccl_family *family, const char *reason);
/* TESS_OK, or the failure, logged the first time. */
enum tess_status tess__nccl_check(struct nccl_family *family);

/* "all_reduce 35 at fit.c:87", and what the other ranks of this host are doing. `lane` may be
 * NULL. */
void tess__nccl_describe(const struct nccl_family *family, const struct nccl_lane *lane, char *text,
                         size_t text_bytes);
/* NCCL met an error in `what`; NULL: beside all calls. `lane` may be NULL. */
void tess__nccl_explain(const struct nccl_family *family, ncclResult_t result, const char *what,
                        const struct nccl_lane *lane, char *text, size_t text_bytes);

/*
 * The result of NCCL for a call on `comm`, lock held; lets go of it while it waits for NCCL to have
 * taken the call. `what` and `lane` (may be NULL) are for the message. Lock held on return.
 */
enum tess_status tess__nccl_taken(struct nccl_family *family, ncclComm_t *comm, ncclResult_t result,
                                  const char *what, const struct nccl_lane *lane);
void tess__nccl_config(const struct nccl_family *family, ncclConfig_t *config_out);
/* Block the host until the event has come. */
enum tess_status tess__nccl_await(struct nccl_family *family, cudaEvent_t event,
                                  const struct nccl_lane *lane);

/* ---- nccl_watch.c: the thread that watches, answers the post and makes channels -------------- */

enum tess_status tess__nccl_watch(struct nccl_family *family);
void tess__nccl_unwatch(struct nccl_family *family);

/* ---- nccl_lane.c ----------------------------------------------------------------------------- */

enum tess_status tess__nccl_lane_open(struct nccl_lane *lane);
/* Work on a queue of the kernels' backend from here on. */
enum tess_status tess__nccl_lane_attach(struct nccl_lane *lane, struct tess_queue *kernels);
/* Back on its own stream; nothing is under way. */
void tess__nccl_lane_detach(struct nccl_lane *lane);
/* Wait a moment for its calls to end, or end them by force: what is left of a rank that failed. */
void tess__nccl_lane_quiet(struct nccl_family *family, struct nccl_lane *lane);
/* *fence may be NULL, and is afterwards. */
void tess__nccl_fence_close(struct tess_fence **fence);
/* What the kernels have recorded is gone: NCCL does not end before graphs that it is part of. */
void tess__nccl_forget_graphs(struct nccl_group *group);
/* End its NCCL communicator, in time or by force, then the lane. Lock not held. */
void tess__nccl_lane_close(struct nccl_family *family, struct nccl_lane *lane);
/* All of this call is on the stream. */
enum tess_status tess__nccl_lane_note(struct nccl_family *family, struct nccl_lane *lane,
                                      const struct tess_comm_call *call, uint64_t number);
/* Split `lane`'s communicator: those of one color, ordered by key; a negative color takes part and
 * gets none. What it gives is to be given to a lane. */
enum tess_status tess__nccl_lane_split(struct nccl_family *family, struct nccl_lane *lane,
                                       int color, int key, ncclComm_t *comm_out);
/* From here on `comm` is the lane's, and aborted with it. */
enum tess_status tess__nccl_lane_take(struct nccl_family *family, struct nccl_lane *lane,
                                      ncclComm_t comm);

/* ---- nccl_group.c ---------------------------------------------------------------------------- */

/* tess__nccl_lane_attach for all of a group, and what sums need; ops->attach. Detaching waits as
 * tess__nccl_lane_quiet does. */
enum tess_status tess__nccl_group_attach(struct nccl_group *group, struct tess_queue *kernels);
void tess__nccl_group_detach(struct nccl_group *group);
/* How its members lie on nodes: group->shape, for sums. Once they are known. */
void tess__nccl_group_shape(struct nccl_group *group);

/* ---- nccl_exchange.c, nccl_sum.c, nccl_run.c: what NCCL does for a call on device memory ------
 */

ncclDataType_t tess__nccl_dtype(enum tess_dtype dtype);
enum tess_status tess__nccl_run(struct nccl_group *group, struct nccl_lane *lane,
                                const struct tess_comm_call *call);
/* One call of NCCL, in an order of its own. */
enum tess_status tess__nccl_run_direct(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call);
/* Add to the group's exchange, unless there is nothing to send or receive. */
void tess__nccl_part(struct nccl_group *group, const struct nccl_part *part);
/* All of it at once, whatever the order. */
enum tess_status tess__nccl_run_parts(struct nccl_group *group, struct nccl_lane *lane);
/* Is there one call for the following? The same on all ranks. */
bool tess__nccl_has_all_to_all(const struct nccl_group *group);
/* Rank r's `bytes` number s of source go to rank s, as those number r of target. */
enum tess_status tess__nccl_all_to_all(struct nccl_group *group, struct nccl_lane *lane,
                                       const void *source, void *target, size_t bytes);
/*
 * Is the memory registered with the lane? NCCL takes messages from registered memory to registered
 * memory, or from any other to any other (2.28, addP2pToPlan): from the one to the other, the two
 * ranks would wait for different steps.
 */
bool tess__nccl_is_registered(const struct nccl_family *family, const struct nccl_lane *lane,
                              const void *memory, size_t bytes);
/* Scratch in which the lane can receive what is sent from `source` [bytes]. */
struct nccl_room tess__nccl_room(const struct nccl_group *group, const struct nccl_lane *lane,
                                 const void *source, size_t bytes);
/* An all-reduce, reduce-scatter or reduce in canonical order. */
enum tess_status tess__nccl_sum(struct nccl_group *group, struct nccl_lane *lane,
                                const struct tess_comm_call *call);
/* Scratch that any sum of the group needs: a cell of NCCL_ALIGN for each array in it. */
size_t tess__nccl_sum_least(const struct nccl_group *group);
/* A sum of 16 bits: by our tree in any order, in f32, and rounded once. */
bool tess__nccl_is_narrow(const struct tess_comm_call *call);
/* Connect all lanes of a group that is attached, ahead of its calls on such memory. Collective. */
enum tess_status tess__nccl_run_first(struct nccl_group *group, const struct nccl_room *room);
/* Elements of each rank's slice where `count` of them are dealt out; the last may have fewer. */
size_t tess__nccl_slice(size_t count, int32_t rank_count);
/* Payload that leaves and reaches this rank. */
void tess__nccl_count(struct nccl_group *group, const struct tess_comm_call *call);

/* ---- nccl_host.c: calls on host memory ------------------------------------------------------- */

enum tess_status tess__nccl_host_open(struct nccl_group *group);
void tess__nccl_host_close(struct nccl_group *group);
/* Room for a small message more, so that it need not be taken while calls are under way. */
enum tess_status tess__nccl_host_meet(struct nccl_group *group);
/* Start the call; its last piece is under way in record->slot when this returns. */
enum tess_status tess__nccl_host_start(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call,
                                       struct nccl_record *record);
/* Has all come that the slot waits for? */
enum tess_status tess__nccl_host_reached(const struct nccl_slot *slot, bool *reached_out);
/* Its end: what came goes to the target; the record is done. */
enum tess_status tess__nccl_host_finish(struct nccl_group *group, struct nccl_slot *slot);
/* All ranks' `bytes`, at set-up: neither counted nor observed. Collective over the group. */
enum tess_status tess__nccl_host_gather(struct nccl_group *group, const void *mine, size_t bytes,
                                        void *all);

/* ---- nccl_memory.c --------------------------------------------------------------------------- */

enum tess_status tess__nccl_alloc(struct tess_comm *comm, size_t bytes, void **memory_out);
void tess__nccl_release(struct tess_comm *comm, void *memory);
void tess__nccl_release_all(struct nccl_group *group);
/* Registers the family's memory with a group that has new lanes; collective over the group. */
enum tess_status tess__nccl_register_all(struct nccl_group *group);
/* The same with a channel that has been made ahead. */
enum tess_status tess__nccl_register_channel(struct nccl_family *family,
                                             struct nccl_channel *channel);
/* Scratch of a group that is attached; connects its lanes. Collective. */
enum tess_status tess__nccl_scratch_open(struct nccl_group *group);
/* The lane is about to be closed. */
void tess__nccl_unregister(struct nccl_family *family, const struct nccl_lane *lane);

/* ---- nccl_channel.c, nccl_post.c ------------------------------------------------------------- */

/* That of messages from one member of the group to another, made at its first use. With `device`
 * its lane is on the group's queue. */
enum tess_status tess__nccl_channel_get(struct nccl_group *group, int32_t from, int32_t to,
                                        bool device, struct nccl_channel **channel_out);
/* ops->meet: both ranks' lane is made before it is used. */
enum tess_status tess__nccl_meet(struct tess_comm *comm, int32_t from, int32_t to);
/* Do what can be done for channels that are being made; the thread's, lock not held. True while
 * there are any. */
bool tess__nccl_channels_advance(struct nccl_family *family);
/* The group's next channel; the thread may be adding others in front. NULL: the first; the last. */
struct nccl_channel *tess__nccl_channel_next(const struct nccl_group *group,
                                             const struct nccl_channel *after);
/* NULL: those of all groups. */
void tess__nccl_channels_close(struct nccl_family *family, const struct nccl_group *group);

enum nccl_letter_kind { NCCL_REQUEST, NCCL_INVITE, NCCL_FAILED };

/* What a rank sends to another one. */
struct nccl_letter {
    uint64_t group;
    int32_t kind, from, to, sender;
    union {
        ncclUniqueId id;
        char reason[NCCL_UNIQUE_ID_BYTES];
    } with;
};

/* Learn the others' addresses. Collective over boot. */
enum tess_status tess__nccl_post_open(struct nccl_family *family, const struct tess_boot *boot);
void tess__nccl_post_close(struct nccl_family *family);
/* False, logged as a warning: it could not be brought there. */
bool tess__nccl_post_send(struct nccl_family *family, int32_t to, const struct nccl_letter *letter);
/* Wait at most that long for a letter, or for tess__nccl_post_wake. */
bool tess__nccl_post_take(struct nccl_family *family, double wait_s,
                          struct nccl_letter *letter_out);
void tess__nccl_post_wake(struct nccl_family *family);
/* A request or an invitation has come; the thread's, lock not held. */
void tess__nccl_channel_take(struct nccl_family *family, const struct nccl_letter *letter);

#endif
