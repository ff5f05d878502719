/* The made-up NVML's two halves: fake_nvml.c and fake_nvml_links.c. */
#ifndef TESSERA_TESTS_DEVICE_FAKE_NVML_H
#define TESSERA_TESTS_DEVICE_FAKE_NVML_H

struct fake_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};
struct fake_field {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, status;
    unsigned long long value;
};

#define FAKE_NOT_SUPPORTED 3

int fake_index(const void *handle); /* 0 or 1 */

/* Fields of links; 0: it is none of these. */
int fake_links_field(const void *handle, struct fake_field *field);

#endif
