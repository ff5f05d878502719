/* Machines built by hand, as they are known from their makers' papers; all finished. */
#ifndef TESTS_TOPOLOGY_MACHINES_H
#define TESTS_TOPOLOGY_MACHINES_H

#include "topology/machine/topology.h"

struct tess_topology *machine_dgx1v(void);         /* 8 V100, hybrid cube mesh, Broadwell */
struct tess_topology *machine_h100_bridges(void);  /* 8 H100 PCIe, 3 + 5, a bridge across sockets */
struct tess_topology *machine_epyc_hives(void);    /* two hives of 4 on 4 NUMA nodes, 1+3+2+2 */
struct tess_topology *machine_nvswitch(int count); /* H100, 18 links each, 4 PCIe switches */
/* Switches of `each` on each of two Skylake sockets, PCIe 3. */
struct tess_topology *machine_two_sockets(int left, int right);
struct tess_topology *machine_all_to_all(int count); /* A100, 4 links a pair, AMD */
struct tess_topology *machine_square(void);          /* 4 xGMI devices in a square, 0-1-3-2 */
struct tess_topology *machine_pairs(void);           /* 8 bridged in pairs, two Skylake sockets */
struct tess_topology *machine_mi250(void);           /* 16 dies in one host, a ladder of xGMI */
/* A switch of 4 on the first of three NUMA nodes, 2 devices on each other one; the switch's uplink
 * carries three times what the ways from the first node to the others do. */
struct tess_topology *machine_three_numa(void);
struct tess_topology *machine_cluster(int hosts, int each); /* DGX-1-like hosts on one switch */
/* The same in racks, host h in rack h % racks; uplinks as wide as a host's link. */
struct tess_topology *machine_racks(int racks, int hosts, int each);
/* Racks of hosts whose devices share a rack's NVSwitches, 18 links of B200 each; a NIC of 50 GB/s
 * beside each device, all on one switch. */
struct tess_topology *machine_nvl(int racks, int hosts, int each);
/* Leaves of `each` hosts, every leaf with 50 GB/s to each of the spines; hosts of four devices on
 * NVSwitches, each device with a NIC of 25 GB/s beside it. */
struct tess_topology *machine_spines(int leaves, int each, int spines);
struct tess_topology *machine_p100(void); /* 8 P100, cube mesh of single links, Broadwell */
struct tess_topology *machine_random(unsigned seed, int count); /* whole GB/s, shared links */
/* Nodes of all kinds and directed links of all kinds anywhere; not finished, and often not sound.
 */
struct tess_topology *machine_anything(unsigned seed, int nodes, int links);

#endif
