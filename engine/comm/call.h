/* What communicators share of calls and groups: sizes, messages, and the order of a split. */
#ifndef TESSERA_COMM_CALL_H
#define TESSERA_COMM_CALL_H

#include "tessera/comm.h"

/* Arrays of `count` elements in a rank's source and target. */
static inline size_t tess__call_source_parts(const struct tess_comm *comm,
                                             enum tess_collective collective)
{
    return collective == TESS_COLLECTIVE_REDUCE_SCATTER || collective == TESS_COLLECTIVE_ALL_TO_ALL
               ? (size_t)comm->rank_count
               : 1;
}

static inline size_t tess__call_source_bytes(const struct tess_comm *comm,
                                             const struct tess_comm_call *call)
{
    return tess__call_source_parts(comm, call->collective) * call->count *
           tess_dtype_bytes(call->dtype);
}

static inline bool tess__call_is_message(const struct tess_comm_call *call)
{
    return call->collective == TESS_COLLECTIVE_SEND || call->collective == TESS_COLLECTIVE_RECV;
}

/* Room for the sums of subtrees: `stride` bytes for each of tess__call_partials(n) arrays; those of
 * 16 bits are f32 there. */
struct tess__partials {
    unsigned char *memory; /* on the device */
    size_t stride;
    const void **source; /* [n], for tess__call_reduce_pieces */
};

/* A queue of the device, and room for sums of more ranks than it adds up at once, if there are. */
struct tess__call_queue {
    struct tess_queue *queue;
    struct tess__partials partials;
};

/* In place nothing is copied. By the host, or on a queue of the device (not NULL). */
enum tess_status tess__call_copy(struct tess_queue *queue, void *target, const void *source,
                                 size_t bytes);
/* Add up arrays of all ranks into `m` targets, at most as many; target [m] is used up. */
enum tess_status tess__call_reduce(const struct tess_comm *comm, const struct tess_comm_call *call,
                                   const struct tess__call_queue *queue, const void *const *source,
                                   int32_t m, void **target, size_t count);

int32_t tess__call_partials(int32_t n);
/* tess_queue_ops.reduce of any number of sources and targets. `source` [n] is used up. */
enum tess_status tess__call_reduce_many(struct tess_queue *queue, enum tess_dtype dtype,
                                        enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                                        const void **source, int32_t m, void *const *target,
                                        size_t count, const struct tess__partials *partials);
/* The same of arrays that may be longer than a partial sum. `target` [m <= n] is used up. */
enum tess_status tess__call_reduce_pieces(struct tess_queue *queue, enum tess_dtype dtype,
                                          enum tess_reduce reduce, int32_t n,
                                          const void *const *source, int32_t m, void **target,
                                          size_t count, const struct tess__partials *partials);

/*
 * Take this rank's part of elements [begin, begin + count) of the call's result out of the ranks'
 * sources. source[r] points at element `begin` of rank r's first piece; its pieces are `stride`
 * elements apart. The pointers are used up.
 */
enum tess_status tess__call_take(const struct tess_comm *comm, const struct tess_comm_call *call,
                                 const struct tess__call_queue *queue, const void **source,
                                 size_t stride, size_t begin, size_t count);

/* Of ranks that reach each other's arrays: slice `r` of `count` elements begins here; whole cache
 * lines where possible. */
static inline size_t tess__call_slice(size_t count, int32_t r, int32_t rank_count)
{
    return r == rank_count ? count : count / (size_t)rank_count * (size_t)r / 64 * 64;
}

/*
 * Count payload. Every rank gives `bytes` to each other one, but for a broadcast's root and for
 * messages; or, of a sum, each adds up a slice of all sources, this rank's of slice_bytes, and
 * hands it to the others or to the root; or does with its slice of so many elements what
 * tess_comm_share says.
 */
void tess__call_count(struct tess_comm *comm, const struct tess_comm_call *call, size_t bytes);
void tess__call_count_slice(struct tess_comm *comm, const struct tess_comm_call *call,
                            size_t slice_bytes);
void tess__call_count_share(struct tess_comm *comm, const struct tess_comm_call *call,
                            size_t slice_count);

/* A ticket names the sequence, the peer (of 22 bits) and the number (from 0): complete or not is
 * then a matter of counters. */
enum tess__sequence { TESS__COLLECTIVE, TESS__SEND, TESS__RECEIVE };

struct tess__ticket {
    enum tess__sequence sequence;
    int32_t peer; /* of a message; else 0 */
    uint64_t number;
};

static inline uint64_t tess__ticket(enum tess__sequence sequence, int32_t peer, uint64_t number)
{
    return number << 24 | (uint64_t)peer << 2 | (uint64_t)sequence;
}

static inline struct tess__ticket tess__ticket_read(uint64_t ticket)
{
    return (struct tess__ticket){(enum tess__sequence)(ticket & 3),
                                 (int32_t)(ticket >> 2 & 0x3fffff), ticket >> 24};
}

/* "all_reduce at fit.c:87"; without a site "all_reduce". */
void tess__call_name(const struct tess_comm_call *call, char *text, size_t text_bytes);

/* What ranks compare of a call; shared and sent as bytes. */
struct tess__call_key {
    uint64_t count;
    int32_t peer;
    uint8_t collective, reduce, dtype;
    uint8_t way; /* enum tess_order, and TESS__ON_DEVICE, TESS__SHARED */
};
#define TESS__ON_DEVICE 2
#define TESS__SHARED    4
_Static_assert(sizeof(struct tess__call_key) == 16, "what ranks compare has no holes");

static inline struct tess__call_key tess__call_key(const struct tess_comm_call *call)
{
    return (struct tess__call_key){
        .count = call->count,
        .peer = call->peer,
        .collective = (uint8_t)call->collective,
        .reduce = (uint8_t)call->reduce,
        .dtype = (uint8_t)call->dtype,
        .way = (uint8_t)(call->order + (call->device ? TESS__ON_DEVICE : 0) +
                         (call->share != NULL ? TESS__SHARED : 0)),
    };
}

/* "reduce of 4096 f32 (sum) with root 2 at fit.c:87". */
void tess__call_describe(const struct tess__call_key *key, const char *site, char *text,
                         size_t text_bytes);

/* One rank's call, for messages; its site may be "". */
struct tess__call_end {
    int32_t rank;
    const struct tess__call_key *key;
    const char *site;
};
/* The errors of ranks that make different calls, and of a message whose two ends differ. */
void tess__call_differs(uint64_t number, struct tess__call_end own, struct tess__call_end theirs,
                        char *text, size_t text_bytes);
void tess__message_differs(uint64_t number, struct tess__call_end send, struct tess__call_end recv,
                           char *text, size_t text_bytes);

/* What a rank gives in a split. */
struct tess__split {
    int32_t color, key;
};
/* The ranks [rank_count] of `rank`'s color, ordered by (key, rank); returns how many, and at
 * index_out which of them is `rank`. */
int32_t tess__split_members(const struct tess__split *all, int32_t rank_count, int32_t rank,
                            int32_t *member_out, int32_t *index_out);

/* Gather `bytes` of every rank that are not the user's traffic. Collective. */
enum tess_status tess__call_exchange(struct tess_comm *comm, const void *mine, size_t bytes,
                                     void *all);

/* "2, 4-6, 9": the ranks of [0, rank_count) that `in` holds true for; cut with "..." when too
 * long. For any number of ranks. */
void tess__name_ranks(const bool *in, int32_t rank_count, char *text, size_t text_bytes);

#endif
