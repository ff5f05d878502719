/*
 * A library's own collectives, of a transport that has some (transport.h); for --comm.mpi.native.
 * The library chooses algorithms and the order of sums: bits may change with its version, with
 * sizes and with the number of ranks, so this is for TESS_ORDER_FAST alone.
 */
#ifndef TESSERA_COMM_NET_TRANSPORT_NATIVE_H
#define TESSERA_COMM_NET_TRANSPORT_NATIVE_H

#include "tessera/comm.h"
#include "tessera/transport.h"

struct tess_transport_native {
    /* Has the library this call? Depends on what all ranks of a group give alike, so they all get
     * the same answer. Not: sums of types that it lacks (f16, bf16), send and recv, more
     * elements than it can count. Pure. */
    bool (*can)(const struct tess_transport *transport, const struct tess_comm_call *call);
    /* A group of these of the transport's ranks, in this order. Collective over them; blocks until
     * all are there. */
    enum tess_status (*group_open)(struct tess_transport *transport, const int32_t *rank,
                                   int32_t count, int32_t *group_out);
    /* Not collective; no call of it is under way. */
    void (*group_close)(struct tess_transport *transport, int32_t group);
    /* Begin a call that can() takes, with ranks of the group in call->peer; source, target and
     * count as the wrappers in tessera/comm.h say. The request is one of test(). All ranks of a
     * group begin the same calls in the same order. Never blocks. */
    enum tess_status (*begin)(struct tess_transport *transport, int32_t group,
                              const struct tess_comm_call *call, uint32_t *request_out);
};

#endif
