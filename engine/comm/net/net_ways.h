/*
 * By which hosts a sum for all goes where they are no power of two, so that no link carries much
 * more than in a ring: of each host, and of each rack. Where the racks are not known, whatever the
 * number of equal racks that hosts in a row may be in. For the files net_path.c and tests alone.
 *
 * Each lane has its own ways up the tree of tessera/comm.h and down a chain of all hosts. Whether
 * the sum of a block goes to a host of the other block, or that one's here, is free; so is where
 * the whole is first, and the order of the chain. One lane after the other takes the ways that cost
 * least, where a link costs the sixth power of what it carries so far; many times, each given up
 * and taken anew, and the best of these passes stay. All in integers: every rank finds the same.
 *
 * Where known racks then carry more than 1.1 times what they do in a ring, each lane is cut in two
 * with ways of their own, if these carry no more than that: 3 racks of 5 hosts, and 5 of 3.
 */
#ifndef TESSERA_COMM_NET_NET_WAYS_H
#define TESSERA_COMM_NET_NET_WAYS_H

#include <stdint.h>

#define NET_WAYS_HOSTS 48 /* at most: the search takes up to 0.15 s */

/* A block of hosts is named by the first host of its right part; lanes by a number. */
struct net_ways {
    int32_t lanes; /* one for each host, or two that are half as long */
    int8_t holder[NET_WAYS_HOSTS][NET_WAYS_HOSTS]; /* [lane][block]: who adds it up */
    int8_t parts[NET_WAYS_HOSTS][NET_WAYS_HOSTS]; /* in which the left part comes to it; 1: whole */
    int8_t root[NET_WAYS_HOSTS];                  /* [lane]: who has the whole first */
    int8_t next[NET_WAYS_HOSTS][NET_WAYS_HOSTS];  /* [lane][host]: down the chain; -1: none */
    int8_t before[NET_WAYS_HOSTS][NET_WAYS_HOSTS];
};

/* For so many hosts, from 3 on, of so many ranks, in racks as struct net_shape has them. Searched
 * once in a process, kept to its end. NULL for more than NET_WAYS_HOSTS, and where hosts are no
 * blocks of the tree. */
const struct net_ways *tess__net_ways(int32_t hosts, int32_t places, int32_t rack_hosts);

#endif
