/* Bandwidths of NCCL 2.28's model, 10^9 bytes/s in one direction (graph/topo.h, graph/topo.cc). */
#ifndef TOPOLOGY_CONSTANTS_H
#define TOPOLOGY_CONSTANTS_H

#define TESS_GBS_LOCAL        5000.0
#define TESS_GBS_NVLINK_SM60  18.0
#define TESS_GBS_NVLINK_SM70  20.0 /* and sm80 */
#define TESS_GBS_NVLINK_SM86  12.0
#define TESS_GBS_NVLINK_SM90  20.6
#define TESS_GBS_NVLINK_SM100 40.1
#define TESS_GBS_XGMI         20.0
/* A link of `width` lanes: the table's number for its generation (3: 60, 4: 120, 5: 240, 6: 480)
 * times width / 80; x16 is 12, 24, 48, 96. */
#define TESS_GBS_PCI(speed, width) ((speed) * (width) / 80.0)
#define TESS_GBS_UPI_OLD           6.0
#define TESS_GBS_UPI_SKL           10.0
#define TESS_GBS_UPI_SPR           22.0
#define TESS_GBS_UPI_GNR           40.0
#define TESS_GBS_AMD               16.0
#define TESS_GBS_ARM               6.0
#define TESS_GBS_POWER             32.0
#define TESS_GBS_ZHAOXIN           6.0
#define TESS_GBS_YONGFENG          9.0

#endif
