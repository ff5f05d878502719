/* Assumptions about a machine where its file has no value. */
#ifndef TOPOLOGY_ASSUME_H
#define TOPOLOGY_ASSUME_H

#include "topology/machine/topology.h"

/* Compute capability * 10 of the first GPU model named in the text ("a100", "NVIDIA H100 PCIe");
 * 0: none is. */
int32_t tess__sm_of_text(const char *text, size_t bytes);
/* The same of a PCI device of NVIDIA's, by its id. */
int32_t tess__sm_of_pci(uint32_t device);

/* How many links a GPU has. */
int32_t tess__nvlink_links(int32_t sm);
/* The generation of PCIe that GPUs of this kind come with. */
int32_t tess__pci_gen(int32_t sm);
/* Model of the Intel processors such GPUs were mostly sold with (family 6). */
int32_t tess__intel_model(int32_t sm);

#endif
