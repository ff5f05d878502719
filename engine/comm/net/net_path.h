/*
 * The schedules of the communicator over a transport: who sends what to whom, for one rank. Pure.
 *
 * An array is cut into lanes, one for each rank that ends up with a part of a sum or begins with a
 * part of a whole. Up a lane partial sums go to its owner, down it the whole goes back:
 *
 *     up     take come[0], add; take come[1], add; ...    then give to `to`, unless the owner
 *     down   take from `from`, unless the owner            then give to all of `down`
 *
 * The tree of tessera/comm.h, 8 ranks: lane 5 (101 in binary) is held by the rank of each block
 * whose last bits are its own. So a rank hands over half of all lanes, then a quarter, an eighth.
 *
 *     blocks of 1   0>1  2>3  4>5  6>7
 *     blocks of 2     1<---3    5<---7
 *     blocks of 4     1-------->5          the owner
 *
 * Two levels. Where the ranks of each host are a block of the tree, an inner block of the tree lies
 * within one host, or is made of whole hosts: so above the hosts' blocks the tree is one over
 * hosts. A host's part of a lane is added up inside it, by its rank that has the lane's last bits;
 * that one sum crosses, to the rank of another host that holds the same lane, and each rank of a
 * host has its share of the lanes. Each host gives each lane away once, but those that it owns: of
 * an array of S bytes on H hosts of equal size S (H - 1) / H leave each host, what a ring over
 * hosts sends. They come evenly too where H is a power of two. Else a lane that is owned to the
 * right of the largest such power may take the sums of 2 or 4 parts of the left block, and add them
 * itself in the order of the tree:
 *
 *     3 hosts     0: 1>0 2>0     1: 0>1 2>1     2: 0>2 1>2, (0 + 1) + 2 there
 *
 * So no host gets more than 1.2 times as much as in a ring, up and down together 1.1 times. Hosts
 * are in racks, mostly, and the links of those are narrow: where the tree does not fit racks, sums
 * cross them more often than in a ring. On 6 to 48 hosts that are no power of two a sum for all
 * therefore goes up and down by ways that are searched once, for the racks, or where these are not
 * known for racks of any equal size: net_ways.h. On more hosts, and of a gather, the whole goes
 * down a chain, from the owner to the nearer end and then to the rest, which crosses few links
 * twice. It ends at another host for each lane:
 *
 *     6 hosts     0 1 2 5 4 3     1 0 2 3 5 4     2 1 0 3 4 5     3 4 5 2 1 0 ...
 *
 * The bits are those of the tree, which neither hosts nor racks change.
 *
 * Where they are no blocks (3 ranks on each of 2 hosts: 2 and 3 are added first) sums cross more
 * often, as often as the tree's order has it; tess__net_spread counts.
 *
 * Lanes that would be short are shared by 2, 4, 8, ... neighbours, so that the messages are few: of
 * a very small array there is one lane, and a message goes to the parent and one comes back. A
 * shared lane of a gather is first put together by its ranks, along the tree over them alone; one
 * of a sum is dealt out to them at the end by the same way back:
 *
 *     gather, 8 ranks, 2 lanes of 4     1>0 3>2  2-->0     then all of lane 0 down from rank 0
 *                                       4>5 6>7  7-->5                lane 1           rank 5
 *
 * A sum for all with one lane is exchanged between 2 or 3 hosts: within each host it goes to the
 * first rank, then both sides of each block of the tree give each other theirs, and all of these
 * ranks add the same two. That takes half as many messages one after the other as there and back:
 *
 *     2 hosts     0<>1         3 hosts     0<>1, 0<>2 2>1
 *
 * Such lanes, and others below NET_LANE_BYTES, go along the tree in the fast order too.
 *
 * The rings: lane 5 of 8 ranks on one host, or one rank on each of 8
 *
 *     up  6 > 7 > 0 > 1 > 2 > 3 > 4 > 5        down  5 > 6 > 7 > 0 > 1 > 2 > 3 > 4
 *
 * and of 4 hosts with 2 ranks each: within the hosts to the owner's place, then over the hosts
 *
 *     up  4>5, 6>7, 0>1, 2>3; 7 > 1 > 3 > 5    down  5 > 7 > 1 > 3; 5>4, 7>6, 1>0, 3>2
 */
#ifndef TESSERA_COMM_NET_NET_PATH_H
#define TESSERA_COMM_NET_NET_PATH_H

#include "tessera/comm.h"

#define NET_KEPT       2     /* sums of a lane that are kept at a time */
#define NET_LANES_MAX  128   /* of a sum or a gather */
#define NET_ROUND      128   /* distances of an all-to-all that are under way at a time */
#define NET_LANE_BYTES 8192u /* shorter lanes go along the tree in any order, and are shared */
#define NET_LANE_FEW   4096u /* from here on not shared where there are up to NET_FEW ranks, */
#define NET_FEW        4     /* whose messages are few anyway */

/* Kinds of messages within a group, in their tags. Those of lanes: a partial sum, the whole. */
enum net_kind { NET_UP, NET_DOWN, NET_NOTE, NET_MESSAGE, NET_MESSAGE_NOTE };

/* Ranks of a group on hosts that have `places` consecutive ones each; one host where they have
 * not. */
struct net_shape {
    int32_t rank, rank_count;
    int32_t hosts, places;       /* hosts * places = rank_count */
    int32_t rack_hosts;          /* of hosts in a row; hosts are whole racks; 0: not known */
    const struct net_ways *ways; /* a plan's own; NULL for it */
};

/* One message of this rank in a lane. */
struct net_move {
    int32_t peer;
    uint8_t kind; /* NET_UP or NET_DOWN */
    bool sends;
    bool adds; /* what comes is added, else it takes its place */
    bool left; /* what comes up is the left operand */
    bool leaf; /* what comes is no partial sum: a rank's own value, or the whole */
    /* What comes begins another sum, and the one so far is kept, as a left operand or a right one;
     * so many that were kept are added once this has been, the latest first. */
    bool starts, keeps_left;
    uint8_t joins;
    size_t at, count; /* the elements of the lane that it has; 0, SIZE_MAX: all */
};

struct net_lane {
    int32_t name;                /* the same on all ranks, of a round's lanes between two */
    size_t length;               /* elements */
    size_t source_at, target_at; /* first element in the call's arrays; SIZE_MAX: not there */
    bool copied; /* nothing comes: the source is the whole, and goes to the target */
    /* Of a lane that several ranks share: this rank's own part of a gather, which the call's source
     * has, or of the sum, which goes to its target. */
    size_t own_at, own_count;
    int32_t adds;   /* the first moves, among them all that add what comes */
    bool exchanged; /* what has been added up is sent before more is added */
    int32_t move_count;
    struct net_move *move; /* one after the other; in the plan's table */
};

/* An all-to-all of many ranks is several plans, one after the other: rounds. */
struct net_plan {
    int32_t round_count;
    int32_t width; /* ranks that share a lane */
    bool by_ways;  /* net_ways.h */
    int32_t lane_count, move_count;
    int32_t lane_room, move_room; /* of what follows: enough for any call */
    struct net_lane *lane;
    struct net_move *move; /* those of lane 0, of lane 1, ... */
};

/* TESS_ERR_MEMORY. */
enum tess_status tess__net_plan_open(int32_t rank_count, struct net_plan *plan_out);
void tess__net_plan_close(struct net_plan *plan);

/* host[i]: of rank i of the group. rack_hosts: as struct tess_transport has it. */
struct net_shape tess__net_shape(int32_t rank, int32_t rank_count, const int32_t *host,
                                 int32_t rack_hosts);

/* Any collective but a barrier. */
void tess__net_plan(const struct net_shape *shape, const struct tess_comm_call *call, int32_t round,
                    struct net_plan *plan);

/* Of the tree over ranks on hosts, all lanes. */
struct net_spread {
    int32_t hosts;
    int32_t astray;    /* the first rank whose host's ranks are no block of the tree; -1: none */
    int32_t crossings; /* sums that go from one host to another: rank_count * (hosts - 1) where all
                          hosts are blocks, else more */
};

struct net_spread tess__net_spread(int32_t rank_count, const int32_t *host);

/* The largest power of two below count > 1: where the tree of tessera/comm.h splits. */
int32_t tess__net_split(int32_t count);

#endif
