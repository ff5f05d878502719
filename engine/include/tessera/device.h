/*
 * Devices, by a loadable module (libtessera_cuda.so), which device/device.c opens when one is
 * requested, so that the same program runs on machines without one. A module exports one `const
 * struct tess_module tess_module`. Those for MPI (libtessera_mpi_*.so) have transport_open alone.
 */
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include "tessera/comm.h"
#include "tessera/kernel.h"

TESS_BEGIN_DECLS

#define TESS_DEVICE_MAX 64

/* From the driver. */
struct tess_device_info {
    int32_t index;
    char name[96];
    char bus[32];         /* PCI bus id, "0000:18:00.0" */
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    uint64_t memory_bytes;
    int32_t driver_version;    /* 13000: 13.0 */
    double clock_hz;           /* highest of the multiprocessors */
    double memory_bytes_per_s; /* by bus width and clock; 0: unknown */
};

/* Memory of a device as the driver sees it now, over all its processes. */
struct tess_device_memory {
    uint64_t free_bytes, total_bytes;
};

/* What a device is used for beside the arena. */
struct tess_device_usage {
    /* Bytes of its memory: what the driver's free memory lost. */
    uint64_t context;   /* the driver's context and loaded code */
    uint64_t workspace; /* matrix library */
    uint64_t comm;      /* communicators' buffers */
    /* Launches of a recorded step (tess_kernel_ops.graph_end), those of libraries among them, where
     * there is one that does not report a loss; 0: none was recorded. */
    uint32_t step_kernels, step_copies, step_fills;
};

/*
 * How a group of processes finds each other: exchange of small blobs before there is a
 * communicator (engine/comm/boot/boot.h). gather: rank r's `bytes` at `mine` become `all` + r *
 * bytes on every rank. Collective.
 */
struct tess_boot {
    int32_t rank, rank_count;
    double timeout_s;
    const char *address; /* at which the other ranks reach this one's host; never NULL */
    void *context;
    enum tess_status (*gather)(void *context, const void *mine, size_t bytes, void *all);
};

/* What a run may choose about a communicator between devices: --comm.nccl.*. */
struct tess_comm_choices {
    int64_t max_ctas;      /* blocks of a call of NCCL at most; 0: as NCCL chooses */
    int32_t cta_policy;    /* NCCL's: 0 default, 1 efficiency, 2 zero */
    int64_t scratch_bytes; /* of device memory, for sums in canonical order */
};

struct tess_world;
struct tess_transport;

struct tess_module {
    uint32_t abi;
    const char *name;    /* "cuda" */
    const char *summary; /* versions it was built with */
    const struct tess_kernel_ops *kernel;

    /* Number of devices that can be used. When 0, or an error, `why` becomes one sentence: what is
     * missing and what to do. Logs nothing. */
    int32_t (*device_count)(char *why, size_t why_bytes);
    enum tess_status (*device_info)(int32_t device, struct tess_device_info *info_out);
    /* The calling thread's device from here on; kernels opened afterwards are on it. `waits`: what
     * runs there may wait for other ranks' kernels, as NCCL's do. Then all code is loaded when the
     * process first selects a device, which takes seconds; else each kernel when it first runs. */
    enum tess_status (*device_select)(int32_t device, bool waits);
    enum tess_status (*device_memory)(struct tess_device_memory *memory_out); /* of that device */
    void (*device_usage)(struct tess_device_usage *usage_out);                /* likewise */
    /* Can `device` read and write the memory of `peer` in place? */
    bool (*device_reaches)(int32_t device, int32_t peer);

    /* A communicator between devices, one rank each, already selected: NCCL. world may be NULL.
     * Collective over boot. TESS_ERR_UNSUPPORTED where the library is missing or too old. */
    enum tess_status (*comm_open)(const struct tess_boot *boot, struct tess_world *world,
                                  enum tess_order order, double timeout_s,
                                  const struct tess_comm_choices *choices,
                                  struct tess_comm **comm_out);

    /* For the device's own profiler, around what the host does next. */
    void (*range_begin)(const char *name);
    void (*range_end)(void);

    /* Of modules for MPI, else NULL: tess_transport_mpi_open (engine/comm/mpi/comm_mpi.h). */
    enum tess_status (*transport_open)(const struct tess_boot *boot, double timeout_s,
                                       struct tess_transport **transport_out);
};

/* The module of that name, loaded once. TESS_ERR_UNSUPPORTED with one sentence where it is not
 * installed, does not load, or is of another version. */
enum tess_status tess_module_get(const char *name, const struct tess_module **module_out);
/* The same without a message: NULL where it cannot be had, with the sentence in `why`. */
const struct tess_module *tess_module_find(const char *name, char *why, size_t why_bytes);

TESS_END_DECLS
#endif
