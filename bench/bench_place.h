/* Where a bench's kernels compute: on the host, or on one of the devices that a module brings. */
#ifndef TESSERA_BENCH_BENCH_PLACE_H
#define TESSERA_BENCH_BENCH_PLACE_H

#include "tessera/device.h"

struct tess__bench_target {
    const struct tess_kernel_ops *ops;
    const struct tess_module *module; /* NULL: on the host */
    int32_t device;                   /* as the module numbers them */
    struct tess_device_info info;     /* all zero on the host */
};

/*
 * By --device (auto, cpu, cuda, cuda:N) and --kernel (a backend's name, "": none given). auto is
 * the device, unless a kernel of the host is named. TESS_ERR_USAGE where they contradict each
 * other; TESS_ERR_DEVICE with what is missing, and with what works without, where there is no
 * device. Makes no process one that computes on a device, so ranks may be forked afterwards.
 */
enum tess_status tess__bench_place_find(const char *device, const char *kernel,
                                        struct tess__bench_target *place_out);

/* The calling thread computes there from here on; its kernels, with `threads` threads for each
 * operation, are to be closed by tess__bench_place_close. */
enum tess_status tess__bench_place_open(const struct tess__bench_target *place, int threads,
                                        struct tess_kernel **kernel_out);
void tess__bench_place_close(struct tess_kernel *kernel); /* NULL is allowed */

/* "NVIDIA H200, device 1" or "kernel ref on the host". */
const char *tess__bench_place_text(const struct tess__bench_target *place, char text[128]);

#endif
