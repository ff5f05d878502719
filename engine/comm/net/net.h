/*
 * The communicator over a transport: ranks that share no memory. Collectives are schedules of
 * messages, advanced when a rank polls or waits; memory of the device is not taken.
 *
 * Canonical order (TESS_ORDER_CANONICAL): the tree of tessera/comm.h is walked by the ranks
 * themselves, nearest first (halving of vectors, doubling of distances: Rabenseifner 2004, with the
 * distances in the order of the tree), so that each link between far hosts carries the least:
 *
 *     8 ranks, of a sum of S bytes each rank sends   to its neighbour             S/2
 *                                                    between 01 and 23 (45, 67)   S/4
 *                                                    between 0123 and 4567        S/8
 *
 * So it goes within each host first, then between hosts, in the bytes of a ring over hosts, where
 * each host's ranks are a block of the tree: net_path.h.
 *
 * Fast order: rings over the ranks in their order, pipelined in chunks; where hosts have several
 * ranks each and their ranks are consecutive, within the hosts first, then one ring over hosts for
 * each place in a host. Small arrays, and those of more than 128 ranks, go along the tree.
 *
 * So ranks are to be numbered as the network is built: neighbours first.
 */
#ifndef TESSERA_COMM_NET_NET_H
#define TESSERA_COMM_NET_NET_H

#include "comm/world.h"
#include "tessera/transport.h"

struct tess_boot;

/*
 * Sockets between the ranks of a boot (engine/comm/boot/boot.h), all connected at once. Collective
 * over boot, which may be closed afterwards. timeout_s limits set-up alone.
 */
enum tess_status tess_transport_tcp_open(const struct tess_boot *boot, double timeout_s,
                                         struct tess_transport **transport_out);

/*
 * From here on collectives of this group, and of those that are split from it, are the transport's
 * own where it has them (transport_native.h); small ones, sums that it lacks, sends and
 * receives stay ours. Collective; before the first call, right after opening. TESS_ERR_UNSUPPORTED
 * where the transport has none, TESS_ERR_USAGE in canonical order, which no library keeps.
 */
enum tess_status tess_comm_net_native(struct tess_comm *comm);

/* What has gone to rank `peer` of the job: `comm` is what was opened, not split off. False where
 * nobody counts it: over shared memory, MPI and NCCL. Not collective. */
bool tess_comm_net_link(const struct tess_comm *comm, int32_t peer,
                        struct tess_transport_link *link_out);

#endif
