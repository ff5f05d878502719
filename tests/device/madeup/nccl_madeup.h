/*
 * What the files of the made-up NCCL share. It follows NCCL 2.28:
 *
 *   nccl_segment.c  ranks of a communicator meet in shared memory, and exchange words
 *   nccl_comm.c     communicators: their states, jobs, set-up, splits and ends
 *   nccl_call.c     calls and groups of them, connections at the first one
 *   nccl_kernel.c   what runs on a stream: moves data between ranks
 *   nccl_sum.c      sums, maxima and minima, added along a ring
 *   nccl_memory.c   allocation and registration
 *
 * A call on a non-blocking communicator is handed to a job, a thread that moves its state on:
 * success -> in progress -> success or an error. Ranks wait for each other in jobs (set-up, splits,
 * connections) and in kernels, never in a call, except in those that end a communicator.
 */
#ifndef TESTS_DEVICE_MADEUP_NCCL_H
#define TESTS_DEVICE_MADEUP_NCCL_H

#include "device/madeup/madeup.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#define MADEUP_RANKS       96
#define MADEUP_CHUNK       ((size_t)16 << 10)
#define MADEUP_CHUNKS      2 /* that a sender may be ahead of its receiver */
#define MADEUP_HELLO_BYTES 192
#define MADEUP_WINDOWS     1024

/* ---- nccl_segment.c -------------------------------------------------------------------------- */

enum madeup_kind {
    MADEUP_ALL_REDUCE,
    MADEUP_REDUCE_SCATTER,
    MADEUP_REDUCE,
    MADEUP_ALL_GATHER,
    MADEUP_BROADCAST,
    MADEUP_MESSAGES
};

/* What ranks compare of a call: of a collective, all; of a message, all but the number. */
struct madeup_sign {
    uint64_t number; /* of the collective in its communicator */
    int32_t kind, dtype;
    int32_t op; /* of a message: 1, it is a part of ncclAlltoAll */
    int32_t root;
    uint64_t count;
    int32_t window; /* symmetric memory of the communicator, from 1; 0: other memory; of a message,
                       whether its memory is registered */
    int32_t reserved;
    uint64_t offset[2]; /* in it, of source and target, as far as all ranks need the same */
};

struct madeup_seat { /* of one rank */
    _Atomic uint32_t taken, connected;
    _Atomic uint64_t exchanged, posted;
    unsigned char hello[2][MADEUP_HELLO_BYTES];
    struct madeup_sign sign[2]; /* of collectives */
};

struct madeup_box {                   /* messages from one rank to another */
    _Atomic uint32_t sends, receives; /* the rank has made a first call of that kind */
    _Atomic uint64_t head, tail;      /* chunks written, read */
    struct madeup_sign sign[MADEUP_CHUNKS];
    uint64_t bytes[MADEUP_CHUNKS];
    unsigned char data[MADEUP_CHUNKS][MADEUP_CHUNK];
};

struct madeup_head {
    _Atomic uint64_t key;
    _Atomic uint32_t count, arrived, bell;
};

struct madeup_segment {
    struct madeup_head *head;
    struct madeup_seat *seat; /* [count] */
    struct madeup_box *box;   /* [count, count]: from, to */
    size_t bytes;
    int count;
};

ncclResult_t madeup_segment_id(ncclUniqueId *id_out);
ncclResult_t madeup_segment_open(const ncclUniqueId *id, int count, struct madeup_segment *segment);
/* All ranks have opened it: no other needs what the id names. */
void madeup_segment_hide(const ncclUniqueId *id);
void madeup_segment_close(struct madeup_segment *segment);
/* Wake all that wait in madeup_segment_wait. */
void madeup_segment_ring(struct madeup_segment *segment);
/* Sleep until somebody has rung since the bell read `bell`, or for a millisecond. */
uint32_t madeup_segment_bell(struct madeup_segment *segment);
void madeup_segment_wait(struct madeup_segment *segment, uint32_t bell);

/* ---- nccl_comm.c ----------------------------------------------------------------------------- */

struct madeup_window {
    bool used;
    char *memory;
    size_t bytes;
};

struct madeup_job;

struct ncclComm {
    uint64_t magic;
    int rank, count, device;
    bool blocking;
    bool copies; /* CTAPolicy: by copy engines where it can be */
    _Atomic int state;
    _Atomic bool aborted;
    bool finalized;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* no more work */
    int work;            /* on streams and in graphs */
    bool busy;           /* a kernel is running */
    pthread_t thread;    /* of the latest job */
    bool threaded;
    ncclUniqueId id;
    uint64_t host; /* which ranks of one machine have in common */
    uint64_t hosts[MADEUP_RANKS];
    struct madeup_segment segment;
    uint64_t exchanged;   /* jobs: exchanges so far */
    uint64_t collectives; /* kernels: collectives so far */
    struct madeup_window window[MADEUP_WINDOWS];
    int windows, registered;
};

struct madeup_job {
    ncclResult_t (*run)(struct ncclComm *comm, struct madeup_job *job);
    struct ncclComm *comm;
    void *argument;
    int color, key;
    struct ncclComm **child;
    ncclWindow_t *window;
    void *memory;
    size_t bytes;
};

/* Start a job; the result is what the call returns. It is copied. */
ncclResult_t madeup_job_start(struct ncclComm *comm, const struct madeup_job *job);
/* A call on it begins: what MADEUP_FAIL wants of `function`; ncclSuccess where it may be made. */
ncclResult_t madeup_comm_check(struct ncclComm *comm, const char *function);
/* All ranks' words, at most MADEUP_HELLO_BYTES; jobs only. */
ncclResult_t madeup_comm_exchange(struct ncclComm *comm, const void *mine, size_t bytes, void *all);
/* Keep the last words of this process; returns `result`. */
ncclResult_t madeup_nccl_say(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What NCCL was given in this process; the module exports it for tests. */
struct madeup_nccl_facts {
    _Atomic uint64_t crossed[MADEUP_DEVICES_MAX]; /* bytes of messages from it to other hosts */
    _Atomic uint64_t calls[MADEUP_DEVICES_MAX];   /* that move data, or are parts of a group */
    _Atomic int max_ctas, cta_policy;             /* of the latest configuration */
};
__attribute__((visibility("default"))) const struct madeup_nccl_facts *madeup_nccl_facts(void);
extern struct madeup_nccl_facts madeup_facts;

/* Groups: at the end of one, its aborted communicators are freed. True: noted, for later. */
bool madeup_group_ends(struct ncclComm *comm);
void madeup_comm_free(struct ncclComm *comm);
bool madeup_group_is_open(void);
/* Its code: MADEUP_NCCL_VERSION, or that of nccl.h. */
int madeup_nccl_version(void);

/* ---- nccl_kernel.c, nccl_sum.c --------------------------------------------------------------- */

struct madeup_part { /* a message, or a collective's */
    bool sends;
    int peer;
    char *at;
    size_t count;
    ncclDataType_t dtype;
    bool registered; /* NCCL wants it of both ends, or of none */
};

struct madeup_kernel {
    struct ncclComm *comm;
    cudaStream_t stream;
    struct madeup_sign sign;
    const char *name;
    const char *source;
    char *target;
    bool copied; /* by copy engines */
    int parts;
    struct madeup_part part[]; /* of MADEUP_MESSAGES */
};

size_t madeup_dtype_bytes(ncclDataType_t dtype);
cudaError_t madeup_kernel_submit(struct madeup_kernel *kernel);
/* target[i] = op(target[i], source[i]), rounded to the type each time. */
void madeup_sum(ncclDataType_t dtype, ncclRedOp_t op, size_t count, const void *source,
                void *target);

/* ---- nccl_memory.c --------------------------------------------------------------------------- */

/* The window that holds the range, counted from 1, and where in it; 0: none. */
int madeup_window_find(struct ncclComm *comm, const void *memory, size_t bytes,
                       uint64_t *offset_out);
/* Ends the program where MADEUP_NCCL_REGISTERED wants it and memory of ncclMemAlloc has not been
 * registered with the communicator. */
bool madeup_is_registered(struct ncclComm *comm, const void *memory, size_t bytes);
void madeup_registered_check(struct ncclComm *comm, const char *name, bool message,
                             const void *memory, size_t bytes);

#endif
