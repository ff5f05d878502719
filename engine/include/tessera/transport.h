/*
 * A transport carries messages between the processes of a job. tess_comm_net_open builds
 * collectives from them.
 *
 * Messages of one pair of ranks and one tag arrive in the order in which they were begun; others
 * in any order. Sender and receiver give the same number of bytes. A send may wait for its receive,
 * so callers begin both before they wait for either. One thread at a time.
 */
#ifndef TESSERA_TRANSPORT_H
#define TESSERA_TRANSPORT_H

#include "tessera/comm.h"

TESS_BEGIN_DECLS

#define TESS_TRANSPORT_REASON_BYTES 256
#define TESS_TRANSPORT_REQUESTS     4096 /* may be under way at once, per rank; not per peer */
#define TESS_TRANSPORT_NOTICE_BYTES 128

struct tess_transport;
struct tess_transport_native; /* engine/comm/net/transport_native.h */

/* What a rank has sent to a peer since the beginning. */
struct tess_transport_link {
    uint64_t sent_bytes; /* that have arrived */
    double busy_s;       /* in which bytes were under way that the receiver had room for; may be
                            counted in ticks of some ms */
};

struct tess_transport_ops {
    const char *name; /* "tcp", "mpi" */
    /* Begin; `data` and the number *request_out are the transport's until the request is seen to be
     * done. `tag` 0 .. 2^24 - 1. Never blocks. */
    enum tess_status (*send)(struct tess_transport *transport, int32_t peer, uint32_t tag,
                             const void *data, size_t bytes, uint32_t *request_out);
    enum tess_status (*recv)(struct tess_transport *transport, int32_t peer, uint32_t tag,
                             void *data, size_t bytes, uint32_t *request_out);
    /* Is it done? Reads from the network too; never blocks. TESS_ERR_COMM where the peer is gone,
     * TESS_ERR_ABORTED once aborted: the message is the first reason and names rank and host. */
    enum tess_status (*test)(struct tess_transport *transport, uint32_t request, bool *done_out);
    /* Return when something may have moved, at the latest after timeout_s (which may be 0). Spins
     * for 50 us at most; a core that waits is free for others. Errors as test. */
    enum tess_status (*wait)(struct tess_transport *transport, double timeout_s);
    /* Send the reason to all ranks; the first one is kept. Any thread. */
    void (*abort)(struct tess_transport *transport, const char *reason);
    /* Accepts a half-opened one. What is still under way is lost. */
    void (*close)(struct tess_transport *transport);
    /* The host of a rank, for messages; valid until close. */
    const char *(*host_name)(const struct tess_transport *transport, int32_t rank);
    /* OPTIONAL (NULL): the library's own collectives, for --comm.mpi.native. */
    const struct tess_transport_native *native;
    /* OPTIONAL (NULL: nobody counts it): false where it is not known. Never blocks. */
    bool (*link)(struct tess_transport *transport, int32_t peer,
                 struct tess_transport_link *link_out);
    /* OPTIONAL (NULL: sends go at once): sends that were begun and wait for others go; those that
     * wait go in test and wait too. Never blocks; errors as test. */
    enum tess_status (*flush)(struct tess_transport *transport);
    /* OPTIONAL (NULL: what a rank calls goes to others before each call, as messages): up to
     * TESS_TRANSPORT_NOTICE_BYTES that the peer gets without a request, by its transport's
     * on_notice; those of one pair of ranks in order. Copied. For what is rare: memory for it is
     * short. Never blocks; errors as test. */
    enum tess_status (*notify)(struct tess_transport *transport, int32_t peer, uint32_t tag,
                               const void *data, size_t bytes);
};

/* The public head; transports embed it first. */
struct tess_transport {
    const struct tess_transport_ops *ops;
    int32_t rank, rank_count;
    const int32_t *host; /* [rank_count] number of each rank's host, from 0 in the order in which
                            they first appear; the transport's */
    int32_t rack_hosts;  /* OPTIONAL (0: not known): hosts of a rack, by number one rack after the
                            other; the same on all ranks */
    /* OPTIONAL (NULL): why nothing proceeds, "" while it does. A transport that has it does not
     * log it: its user may have a better reason. */
    const char *reason;
    /* Set by the user of a transport that has notify; called in test or wait, and may call nothing
     * of the transport. */
    void (*on_notice)(void *user, int32_t from, uint32_t tag, const void *data, size_t bytes);
    void *notice_user;
};

struct tess_world;

/*
 * The communicator over a transport (engine/comm/net): collectives as schedules of messages, in
 * host memory. Collective. Takes the transport over: closed with the communicator, also on failure.
 * world: as tess_comm_request has it, or NULL. timeout_s: for how long nothing may move in a wait
 * before it fails and names the ranks that did not come, with their hosts.
 */
enum tess_status tess_comm_net_open(struct tess_transport *transport, struct tess_world *world,
                                    enum tess_order order, double timeout_s,
                                    struct tess_comm **comm_out);

TESS_END_DECLS
#endif
