/*
 * Data of NVIDIA's driver about its devices: utilisation, memory, clocks, power, links, processes.
 * Through NVML, the library that comes with the driver, opened at run time: a machine without it
 * gets one sentence with the reason. It does not use CUDA and starts no context, so any process may
 * call it at any time, before a fork too.
 */
#ifndef TESSERA_DEVICE_NVML_H
#define TESSERA_DEVICE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TESS_WATCH_DEVICES_MAX   64
#define TESS_WATCH_PROCESSES_MAX 64

/* A process that computes on a device. */
struct tess_watch_process {
    int32_t pid;          /* as the driver numbers them: on the host, outside of containers */
    int64_t memory_bytes; /* of the device; -1: unknown */
};

/* One device at one moment. Values that the driver or the device does not give are NaN, or -1. */
struct tess_watch_sample {
    int32_t index;         /* the driver's order, which need not be CUDA's */
    char name[96];         /* "" where it is unknown, as bus */
    char bus[32];          /* PCI bus id, "0000:18:00.0" */
    double gpu_percent;    /* of the time since the driver's last sample in which kernels ran */
    double memory_percent; /* of the same in which device memory was read or written */
    int64_t memory_used_bytes, memory_total_bytes; /* over all processes; used: with what the driver
                                                      keeps for itself */
    double sm_mhz, memory_mhz;
    double power_w, power_limit_w;
    double temperature_c;
    int64_t throttle;           /* bits, see tess_watch_throttle_text */
    double link_tx_bytes_per_s; /* over all NVLinks, since the sample before of this device */
    double link_rx_bytes_per_s;
    int64_t own_bytes;     /* device memory of this process */
    int32_t process_count; /* -1: unknown */
    struct tess_watch_process process[TESS_WATCH_PROCESSES_MAX];
};

struct tess_watch;

/*
 * Open the driver's library: the file that the environment's TESSERA_NVML names, else the
 * installed one. NULL with one sentence in `why` where there is none, no driver runs, or there is
 * no device. One thread at a time uses it.
 */
struct tess_watch *tess_watch_open(char *why, size_t why_bytes);
void tess_watch_close(struct tess_watch *watch); /* NULL is allowed */

int32_t tess_watch_device_count(const struct tess_watch *watch);

/* 0 <= device < tess_watch_device_count. Always fills the whole sample. */
void tess_watch_sample(struct tess_watch *watch, int32_t device,
                       struct tess_watch_sample *sample_out);

/* The device with this PCI bus id, whatever the width of its domain and the case of its letters;
 * -1: none. */
int32_t tess_watch_find(const struct tess_watch *watch, const char *bus);

/*
 * How the devices are joined to each other, for tess_topology_live (topology/hwloc/live.h): device
 * [TESS_WATCH_DEVICES_MAX], which is large, is filled from its beginning, by the driver's order;
 * how many are, is returned. Devices that do not answer are left out. (nvml_links.c)
 */
struct tess_live_device;
int32_t tess_watch_links(const struct tess_watch *watch, struct tess_live_device *device);

#define TESS_WATCH_THROTTLE_BYTES 96

/* "power cap, heat": why clocks are below their highest; "" where nothing holds them back but that
 * there is no work or it is unknown. Pure. */
const char *tess_watch_throttle_text(int64_t throttle, char text[TESS_WATCH_THROTTLE_BYTES]);

#endif
