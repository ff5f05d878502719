/* NCCL's rules from what a link is to what it carries, and back; the numbers are constants.h's. */
#ifndef TOPOLOGY_RATES_H
#define TOPOLOGY_RATES_H

#include <stdint.h>

/* Of one NVLink of a device of compute capability sm / 10, 10^9 bytes/s; 0: not told, like 80. */
double tess__rate_nvlink(int32_t sm);

/* Of 16 lanes of PCIe of a generation, 1 .. 6; others are taken as the nearest. */
double tess__rate_pci_x16(int32_t generation);

/* For TESS_GBS_PCI: of generation 1 .. 6; other generations are taken as the nearest. */
int32_t tess__rate_pci(int32_t generation);

/* Generation and lanes whose capacity is nearest to gbs; x16 where several are. */
void tess__rate_pci_nearest(double gbs, int32_t *generation_out, int32_t *width_out);

#endif
