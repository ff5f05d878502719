/* Assumptions about a machine where its file has no value. */
#ifndef TOPOLOGY_ASSUME_H
#define TOPOLOGY_ASSUME_H

#include "topology/machine/topology.h"

/* Compute capability * 10 of the first GPU model named in the text ("a100", "NVIDIA H100 PCIe");
 * 0: none is. */
int32_t tess__sm_of_text(const char *text, size_t bytes);
/* The same of a PCI device of NVIDIA's, by its id. */
int32_t tess__sm_of_pci(uint32_t device);

/* Architecture of AMD's GPUs, 0x90a of gfx90a, by the first model that the text names ("MI250X",
 * "gfx942"), or by a PCI device id; 0: none is. */
int32_t tess__gfx_of_text(const char *text, size_t bytes);
int32_t tess__gfx_of_pci(uint32_t device);

/* Compute capability * 10 of the GPUs of a cloud's machine, by its name in a file's name ("ndv4",
 * "p5"), or by a GPU's name in it; 0: none is there. */
int32_t tess__sm_of_cloud(const char *path);

/* Are GPUs of this kind mostly sold on boards that join them by NVLink? */
bool tess__sm_has_nvlink(int32_t sm);
/* Is it a GeForce, whose driver allows no peer-to-peer over PCIe? By the first model named. */
bool tess__text_is_geforce(const char *text, size_t bytes);

/* How many links a GPU has. */
int32_t tess__nvlink_links(int32_t sm);
/* The generation of PCIe that GPUs of this kind come with. */
int32_t tess__pci_gen(int32_t sm);
/* Model of the Intel processors such GPUs were mostly sold with (family 6). */
int32_t tess__intel_model(int32_t sm);

#endif
