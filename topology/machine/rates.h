/*
 * The table of link speeds, the only one of the program: 10^9 bytes/s in one direction.
 *
 * TESS_WIRE_ is the speed of the link itself, by its standard or its maker's data sheet; `tessera
 * scaling` predicts with it. TESS_GBS_ is what NCCL 2.28's model expects of the link (graph/topo.h,
 * graph/topo.cc, graph/xml.cc); routes, rings and mappings use it, so that figures compare with
 * NCCL's logs.
 */
#ifndef TOPOLOGY_RATES_H
#define TOPOLOGY_RATES_H

#include <stdint.h>

#define TESS_WIRE_NVLINK_V100   (6 * 25.0)  /* links of a GPU x one link */
#define TESS_WIRE_NVLINK_A100   (12 * 25.0) /* 300: the data sheet's 600 counts both directions */
#define TESS_WIRE_NVLINK_H100   (18 * 25.0)
#define TESS_WIRE_PCI_5_X16     63.0 /* 32 GT/s x 16 lanes x 128/130 */
#define TESS_WIRE_NDR           50.0 /* InfiniBand, 400 Gb/s a port */
#define TESS_WIRE_HDR           25.0 /* 200 Gb/s */
#define TESS_WIRE_ETHERNET_100G 12.5
#define TESS_WIRE_ETHERNET_10G  1.25

#define TESS_GBS_LOCAL        5000.0 /* inside a processor */
#define TESS_GBS_NVLINK_SM60  18.0   /* one link */
#define TESS_GBS_NVLINK_SM70  20.0   /* and sm80 */
#define TESS_GBS_NVLINK_SM86  12.0
#define TESS_GBS_NVLINK_SM90  20.6
#define TESS_GBS_NVLINK_SM100 40.1
#define TESS_GBS_XGMI_VEGA    24.0 /* MI50, MI60, MI100: rccl's src/graph/topo.h */
#define TESS_GBS_XGMI_MI200   36.0 /* gfx90a */
#define TESS_GBS_XGMI_MI300   48.0 /* gfx94x, and gfx95x */
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
/* A network whose speed is not known: NCCL's figure for a card, ours for a link of a cluster. */
#define TESS_GBS_NIC_UNKNOWN TESS_WIRE_ETHERNET_10G
#define TESS_GBS_NET_UNKNOWN TESS_WIRE_ETHERNET_100G
#define TESS_NIC_MBITS_MOST  3200000 /* twice the fastest there is: InfiniBand XDR, two ports */

/* One NVLink of a device of compute capability sm / 10; 0: unknown, like 80. */
double tess__rate_nvlink(int32_t sm);

/* One xGMI link of an AMD GPU of architecture gfx, read as hexadecimal: 0x90a; 0: unknown, as rccl
 * takes any that it does not name. */
double tess__rate_xgmi(int32_t gfx);

/* What the wire of an NVLink or xGMI carries of which the model takes `one`; `one` where the table
 * has no such link. */
double tess__rate_wire_nvlink(double one);
/* The same of a PCIe link, of any width. */
double tess__rate_wire_pci(double gbs);

/* 16 lanes of PCIe of a generation, 1 .. 6; others are taken as the nearest. */
double tess__rate_pci_x16(int32_t generation);

/* For TESS_GBS_PCI: of generation 1 .. 6; other generations are taken as the nearest. */
int32_t tess__rate_pci(int32_t generation);

/*
 * GB/s of a network card whose speed a file gives, in Mbit/s. No card passes TESS_NIC_MBITS_MOST: a
 * speed beyond is in kbit/s where that is the rate of a standard (in bit/s it would be 10 to 1,600
 * Mbit/s, which no network of GPUs has), else it is counted as unknown, as 0 or less is.
 */
enum tess_nic_unit { TESS_NIC_MBITS, TESS_NIC_KBITS, TESS_NIC_UNKNOWN, TESS_NIC_NO_RATE };
enum tess_nic_unit tess__rate_nic(int32_t speed, double *gbs_out);

#define TESS__RATE_TEXT 32

/* The unit in which a rate is shown: "GB/s", "MB/s" below 1 GB/s, "kB/s" below 1 MB/s. */
const char *tess__rate_unit(double gbs);
/* "370.8", "12.5": up to four digits, in the unit of `like_gbs`. */
const char *tess__rate_number(double gbs, double like_gbs, char text[TESS__RATE_TEXT]);
/* "370.8 GB/s", "12.5 MB/s". */
const char *tess__rate_text(double gbs, char text[TESS__RATE_TEXT]);

/* Generation and lanes whose capacity is nearest to gbs; x16 where several are. */
void tess__rate_pci_nearest(double gbs, int32_t *generation_out, int32_t *width_out);

#endif
