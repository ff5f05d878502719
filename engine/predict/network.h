/*
 * How long a call of a communicator takes on a cluster: links and how many ranks share them, in two
 * levels, within a host and between hosts, as comm/nccl sends. Pure arithmetic; measures nothing.
 *
 * A call over k ranks, h of them on each of m hosts, of n bytes of the whole array (for a message
 * its own). B and b are what one rank sends in a second within its host and between hosts while all
 * ranks of its host do the same.
 *
 *     all-gather, reduce-scatter     within  (h-1)/h n / B        between  (m-1)/m n/h / b
 *     all-reduce                     twice that
 *     all-to-all                     within  (h-1)/k n / B        between  (k-h)/k n / b
 *     one rank to all or all to one  n / b, or n / B on one host
 *     message                        n / B, or n / b where the two are on different hosts
 *
 * Of r racks with k/r ranks each, which share c (k/r) of the way up, what crosses that takes its
 * own time beside what the hosts' cards take: of a gather or a scatter (r-1)/r n, in a ring over
 * hosts (m-1)/m n; of an all-to-all (r-1)/r n for each rank; of a message or a root's call n.
 *
 * Ranks of one host that share memory read each other's arrays. Of a sum each adds up and writes
 * its share of all of them, n / S in all, and half of it and its share where one rank gets the
 * result.
 *
 * Both levels work at once in a ring (--reduce fast), one after the other in canonical order;
 * there, where h is no power of two, every rank sends to every other one as in an all-to-all. Each
 * step of a ring, or level of a tree where that is fewer, costs the latency of its link.
 */
#ifndef TESSERA_PREDICT_NETWORK_H
#define TESSERA_PREDICT_NETWORK_H

#include "tessera/comm.h"
#include "tessera/strategy.h"

struct tess_profile;
struct tess_topology;

/* What matters of the machines, whatever the mesh. All bandwidths are bytes/s of one direction. */
struct tess_cluster {
    char source[160];            /* "8 hosts of 8 H100, ...", for people */
    int32_t ranks;               /* places for them, host by host in the natural order */
    int32_t host_ranks;          /* of each host but the last; >= 1 */
    int32_t sm;                  /* of the first device that was described: as in its node */
    int32_t rack_hosts;          /* hosts below a switch; 0: no further level */
    double host_bytes_per_s;     /* of a rank to others of its host */
    double host_net_bytes_per_s; /* of all ranks of a host to other hosts; 0: one host */
    double rank_net_bytes_per_s; /* of one of them at most */
    double rack_share; /* of what its hosts' cards send, what a switch passes on: 0 .. 1 */
    double call_s, host_hop_s, net_hop_s; /* of a call; of each step within and between hosts */
    /* Ranks are processors that copy and add up themselves: no call is under way while they
     * compute. */
    bool busy;
    double sum_bytes_per_s;      /* of busy ranks that reach each other's memory; 0: they do not */
    double scatter_bytes_per_s;  /* the same of sums that end in a share for each */
    double share_bytes_per_s;    /* of tess_network_share_s; > 0 where sum_bytes_per_s is */
    double sent_sum_bytes_per_s; /* of the array that two others add up; 0: as what is sent */
};

/* Hosts as they are sold with this device, "h100-80": eight of them with their links and cards.
 * TESS_ERR_USAGE with the known names. */
enum tess_status tess_cluster_of_device(const char *device, int32_t ranks,
                                        struct tess_cluster *cluster_out);
/* Of a description that was read (topology/machine/topology.h); all of its devices. TESS_ERR_DATA
 * where hosts have different numbers of devices, or do not reach each other. */
enum tess_status tess_cluster_of_topology(const struct tess_topology *topology, const char *name,
                                          struct tess_cluster *cluster_out);
/* The same from a file, in any format of topology/machine/topology.h; with the description, the
 * caller's, for tess_network_order. */
enum tess_status tess_cluster_read(const char *path, struct tess_cluster *cluster_out,
                                   struct tess_topology **topology_out);
void tess_cluster_close(struct tess_topology *topology); /* NULL is allowed */
/* What the description did not say, number `at` from 0 on, in words; false: there are no more.
 * one_host: of a network nothing is wanted. */
#define TESS_CLUSTER_GUESS 400
bool tess_cluster_guess(const struct tess_topology *topology, bool one_host, int32_t at,
                        char text[TESS_CLUSTER_GUESS]);
/* Is tess_cluster.sm one of these? */
bool tess_cluster_guessed_sm(const struct tess_topology *topology);
/* Ranks on the processor of one host, which has this profile: in memory that they share, or over
 * sockets. */
void tess_cluster_of_processor(const struct tess_profile *profile, int32_t ranks, bool sockets,
                               struct tess_cluster *cluster_out);

/* The same of ranks on the processors of several hosts, which are like this one and whose network
 * is described: device r is rank r's place. Ranks communicate over sockets. TESS_ERR_DATA as
 * tess_cluster_of_topology. */
enum tess_status tess_cluster_of_hosts(const struct tess_profile *profile,
                                       const struct tess_topology *topology,
                                       struct tess_cluster *cluster_out);

/* A group of ranks: along an axis of the mesh, or all of them. */
struct tess_network_group {
    int32_t ranks;
    int32_t host_ranks, hosts, racks;         /* members on each host; hosts; racks of these */
    double host_bytes_per_s, net_bytes_per_s; /* B and b above */
    double rack_bytes_per_s;                  /* c above; not read of one rack */
};

/* The groups along each axis, and of all ranks: group number TESS_AXIS_COUNT. */
struct tess_network {
    struct tess_cluster cluster;
    struct tess_network_group group[TESS_AXIS_COUNT + 1];
};

/* Ranks in the mesh's order on the cluster's places. Pure; mesh->count and rank_count are read. */
void tess_network_make(const struct tess_cluster *cluster, const struct tess_mesh *mesh,
                       struct tess_network *network_out);

/*
 * Ranks in the order that topology/map finds for the mesh, as placing does where a run is given the
 * same description: rank 0 stays. Of more than 256 ranks it is found for those of one host, and the
 * same on all; the natural one where they are no part of the mesh. bytes [axes]: what a rank sends
 * along each in a step. chain: the last stage does not send to the first.
 *
 * Of each axis then count the links that its neighbours within a host use, with those that several
 * of them share; hosts are taken to be made alike, as in the cluster. So that the two compare, the
 * natural order is counted in the same way: *natural_out. *device_out [ranks], malloc'd, the
 * caller's: the device of each rank; NULL where the natural order is kept, and then both networks
 * are tess_network_make's.
 */
enum tess_status tess_network_order(const struct tess_cluster *cluster,
                                    const struct tess_topology *topology,
                                    const struct tess_mesh *mesh,
                                    const double bytes[TESS_AXIS_COUNT], bool chain,
                                    struct tess_network *network_out,
                                    struct tess_network *natural_out, int32_t **device_out);

/* Of busy ranks: each has a core for one of `turns`, and calls wait for `all` to have had theirs.
 */
void tess_network_crowd(struct tess_network *network, const struct tess_profile *profile,
                        double turns, double all);

/* Seconds of a call over `ranks` neighbours of a group, bytes as above. Pure; 0 for one rank. */
double tess_network_s(const struct tess_network *network, int32_t group,
                      enum tess_collective collective, enum tess_order order, int32_t ranks,
                      double bytes);

/* The same of tess_comm_share over an array of `bytes` with `given` for each rank: a rank reads a
 * slice of all arrays, bytes in all, and writes what it gives to the others. Without its update. */
double tess_network_share_s(const struct tess_network *network, int32_t ranks, double bytes,
                            double given);

/* The same of a message between two members of a group of busy ranks, counted in the group: what it
 * crosses, where tess_network_s takes the slowest neighbours. */
double tess_network_message_s(const struct tess_network *network, int32_t group, int32_t from,
                              int32_t to, double bytes);

#endif
