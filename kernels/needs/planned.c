/* The plan-time half of the backend `cuda`, in the library; see planned.h. */
#include "needs/planned.h"

#include "needs/needs.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

#define PLANNED_WHY                                                                                \
    "this run can only be planned: libtessera_cuda.so, which computes on NVIDIA GPUs, is not here"

static enum tess_status planned_refuse(void)
{
    TESS_FAIL(TESS_ERR_UNSUPPORTED, PLANNED_WHY);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* What is chosen matters where it runs. */
static enum tess_status planned_choose(struct tess_kernel *kernel,
                                       const struct tess_kernel_choices *choices)
{
    (void)kernel, (void)choices;
    return TESS_OK;
}

static enum tess_status planned_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out)
{
    (void)kernel, (void)bytes;
    *memory_out = NULL;
    return planned_refuse();
}

static void planned_free(struct tess_kernel *kernel, void *memory)
{
    (void)kernel, (void)memory; /* always NULL */
}

static enum tess_status planned_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                                     void *host)
{
    (void)kernel, (void)bytes, (void)device, (void)host;
    return planned_refuse();
}

static enum tess_status planned_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                                      void *device)
{
    (void)kernel, (void)bytes, (void)host, (void)device;
    return planned_refuse();
}

static enum tess_status planned_failed(struct tess_kernel *kernel)
{
    (void)kernel;
    return planned_refuse();
}

static enum tess_status planned_graph(struct tess_kernel *kernel)
{
    (void)kernel;
    return planned_refuse();
}

static enum tess_status planned_graph_slot(struct tess_kernel *kernel, int32_t slot)
{
    (void)kernel, (void)slot;
    return planned_refuse();
}

static enum tess_status planned_op_open(struct tess_op *op)
{
    (void)op;
    return planned_refuse();
}

static void planned_op_close(struct tess_op *op)
{
    (void)op; /* none was opened */
}

static const struct tess_kernel_ops planned_kernel = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "NVIDIA GPUs, planned only",
    .far_memory = true,
    .stacks = true,
    .supports = tess__cuda_supports,
    .choose = planned_choose,
    .alloc = planned_alloc,
    .free = planned_free,
    .read = planned_read,
    .write = planned_write,
    .failed = planned_failed,
    .graph_begin = planned_graph,
    .graph_end = planned_graph_slot,
    .graph_play = planned_graph_slot,
    .op_needs = tess__cuda_op_needs,
    .op_open = planned_op_open,
    .op_close = planned_op_close,
};

/* ---- the module ------------------------------------------------------------------------------ */

static int32_t planned_count(char *why, size_t why_bytes)
{
    if (why_bytes > 0)
        snprintf(why, why_bytes, "%s", PLANNED_WHY);
    return 0;
}

static enum tess_status planned_info(int32_t device, struct tess_device_info *info_out)
{
    (void)device, (void)info_out;
    return planned_refuse();
}

static enum tess_status planned_select(int32_t device, bool waits)
{
    (void)device, (void)waits;
    return planned_refuse();
}

static enum tess_status planned_memory(struct tess_device_memory *memory_out)
{
    (void)memory_out;
    return planned_refuse();
}

static void planned_usage(struct tess_device_usage *usage_out)
{
    *usage_out = (struct tess_device_usage){0}; /* nothing runs, so nothing is in use */
}

static bool planned_reaches(int32_t device, int32_t peer)
{
    (void)device, (void)peer;
    return false;
}

static enum tess_status planned_comm(const struct tess_boot *boot, struct tess_world *world,
                                     enum tess_order order, double timeout_s,
                                     const struct tess_comm_choices *choices,
                                     struct tess_comm **comm_out)
{
    (void)boot, (void)world, (void)order, (void)timeout_s, (void)choices, (void)comm_out;
    return planned_refuse();
}

static void planned_range_begin(const char *name)
{
    (void)name;
}

static void planned_range_end(void)
{
}

const struct tess_module tess__cuda_planned = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "NVIDIA GPUs, planned only",
    .kernel = &planned_kernel,
    .device_count = planned_count,
    .device_info = planned_info,
    .device_select = planned_select,
    .device_memory = planned_memory,
    .device_usage = planned_usage,
    .device_reaches = planned_reaches,
    .comm_open = planned_comm,
    .range_begin = planned_range_begin,
    .range_end = planned_range_end,
};
