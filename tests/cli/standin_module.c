/*
 * A module in the place of libtessera_cuda.so whose devices are made up and whose kernels are
 * ref's: for tests of how a run is dealt out over devices, on machines without any, and of tests
 * and scripts that are for machines with some. It proves nothing about CUDA. In the environment,
 * STANDIN_DEVICES: how many there are; STANDIN_FAR: the kernels are guard_queue's, whose memory the
 * host cannot touch; STANDIN_STRICT: kernels need one of the devices; STANDIN_CHOICE: there is a
 * choice of products, and without one their library is ill-advised.
 */
#include "tessera/check.h"
#include "tessera/device.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STANDIN_GIB ((uint64_t)1 << 30)

static struct tess_kernel_ops standin_kernel;
static __thread int32_t standin_device = -1, standin_depth;

static const struct tess_kernel_ops *standin_get(const char *name)
{
    const struct tess_kernel_ops *ops = NULL;
    (void)tess_registry_get_kernel(name, &ops);
    return ops;
}

static const struct tess_kernel_ops *standin_base(void)
{
    return standin_get(getenv("STANDIN_FAR") != NULL ? "guard_queue" : "ref");
}

/* Planning opens kernels where no device has been selected; who computes must not. */
static enum tess_status standin_open(struct tess_kernel *kernel)
{
    if (standin_device < 0 && getenv("STANDIN_STRICT") != NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernels were opened before a device was selected");
    return standin_base()->open != NULL ? standin_base()->open(kernel) : TESS_OK;
}

/* ---- a choice of products -------------------------------------------------------------------- */

/* A product that was not chosen, by measuring or as TF32, takes at least that long. */
#define STANDIN_DETOUR_S 2e-3

/* Behind the private state of the kernels that are lent. */
struct standin_choice {
    bool chosen;
    bool opened; /* an operation */
    enum tess_conv conv;
};

static size_t standin_state(void)
{
    return (standin_base()->state_size + 63) / 64 * 64;
}

static struct standin_choice *standin_choice(const struct tess_kernel *kernel)
{
    return (struct standin_choice *)((char *)kernel->state + standin_state());
}

static enum tess_status standin_choose(struct tess_kernel *kernel,
                                       const struct tess_kernel_choices *choices)
{
    struct standin_choice *choice = standin_choice(kernel);

    if (choice->opened)
        TESS_FAIL(TESS_ERR_INTERNAL, "products were chosen after an operation was opened");
    if (choices->autotune && choices->tf32)
        TESS_FAIL(TESS_ERR_INTERNAL, "a bench that chooses both does not show which one counts");
    choice->chosen = choices->autotune || choices->tf32;
    choice->conv = choices->conv;
    return TESS_OK;
}

static void standin_describe(const struct tess_kernel *kernel,
                             void (*line)(void *context, const char *text), void *context)
{
    static const char *const name[] = {"auto", "im2col", "cudnn"};
    char text[80];

    snprintf(text, sizeof(text), "the stand-in was opened for convolutions by %s",
             name[standin_choice(kernel)->conv]);
    line(context, text);
}

static enum tess_status standin_op_open(struct tess_op *op)
{
    standin_choice(op->kernel)->opened = true;
    return standin_get("ref")->op_open(op);
}

static void standin_detour(const struct tess_kernel *kernel)
{
    const struct timespec pause = {.tv_nsec = (long)(STANDIN_DETOUR_S * 1e9)};

    if (!standin_choice(kernel)->chosen)
        nanosleep(&pause, NULL);
}

static enum tess_status standin_forward(struct tess_op *op, const void *x, const void *w,
                                        const void *bias, void *y)
{
    standin_detour(op->kernel);
    return standin_get("ref")->linear_forward(op, x, w, bias, y);
}

static enum tess_status standin_data(struct tess_op *op, const void *dy, const void *w, void *dx)
{
    standin_detour(op->kernel);
    return standin_get("ref")->linear_backward_data(op, dy, w, dx);
}

static enum tess_status standin_weight(struct tess_op *op, const void *x, const void *dy, float *dw,
                                       float *dbias)
{
    standin_detour(op->kernel);
    return standin_get("ref")->linear_backward_weight(op, x, dy, dw, dbias);
}

static void standin_begin_choice(void)
{
    standin_kernel.state_size = standin_state() + sizeof(struct standin_choice);
    standin_kernel.choose = standin_choose;
    standin_kernel.describe = standin_describe;
    standin_kernel.op_open = standin_op_open;
    standin_kernel.linear_forward = standin_forward;
    standin_kernel.linear_backward_data = standin_data;
    standin_kernel.linear_backward_weight = standin_weight;
}

/* ---- the module ------------------------------------------------------------------------------ */

/* Before anybody can ask for it: the slots are known at run time only. */
__attribute__((constructor)) static void standin_begin(void)
{
    standin_kernel = *standin_base();
    standin_kernel.name = "cuda";
    standin_kernel.open = standin_open;
    if (getenv("STANDIN_CHOICE") != NULL)
        standin_begin_choice();
}

static int32_t standin_count(char *why, size_t why_bytes)
{
    const char *set = getenv("STANDIN_DEVICES");
    const int32_t count = set != NULL ? (int32_t)atoi(set) : 0;

    if (count == 0)
        snprintf(why, why_bytes, "no device: the stand-in has none");
    return count;
}

static enum tess_status standin_info(int32_t device, struct tess_device_info *info_out)
{
    *info_out = (struct tess_device_info){.index = device, .memory_bytes = 140 * STANDIN_GIB};
    snprintf(info_out->name, sizeof(info_out->name), "NVIDIA H200");
    /* The first two as the made-up driver of fake_nvml.c has them, the other way round. */
    snprintf(info_out->bus, sizeof(info_out->bus), "0000:%02x:00.0",
             device == 0   ? 0xaf
             : device == 1 ? 0x18
                           : 0x20 + (unsigned)device);
    return TESS_OK;
}

static enum tess_status standin_select(int32_t device, bool waits)
{
    (void)waits;
    standin_device = device;
    return TESS_OK;
}

/* Fails where ranges were not ended as often as they were begun. */
static enum tess_status standin_memory(struct tess_device_memory *memory_out)
{
    if (standin_depth != 0 || standin_device < 0)
        TESS_FAIL(TESS_ERR_INTERNAL, "%d ranges are open on device %d", standin_depth,
                  standin_device);
    *memory_out =
        (struct tess_device_memory){.free_bytes = (130 - (uint64_t)standin_device) * STANDIN_GIB,
                                    .total_bytes = 140 * STANDIN_GIB};
    return TESS_OK;
}

static void standin_usage(struct tess_device_usage *usage_out)
{
    *usage_out =
        (struct tess_device_usage){.context = STANDIN_GIB / 2, .workspace = STANDIN_GIB / 4};
}

static bool standin_reaches(int32_t device, int32_t peer)
{
    (void)device, (void)peer;
    return getenv("STANDIN_APART") == NULL;
}

/* Channels of the graph file that NCCL would read, 0 without. */
static int32_t standin_channels(void)
{
    const char *path = getenv("NCCL_GRAPH_FILE");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    char line[256];
    int32_t channels = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        channels += strstr(line, "<channel>") != NULL;
    if (file != NULL)
        fclose(file);
    return channels;
}

/* No communicator, but it meets its peers as one would. */
static enum tess_status standin_comm(const struct tess_boot *boot, struct tess_world *world,
                                     enum tess_order order, double timeout_s,
                                     const struct tess_comm_choices *choices,
                                     struct tess_comm **comm_out)
{
    int32_t device[TESS_DEVICE_MAX], sum = 0;

    (void)world, (void)order, (void)timeout_s, (void)choices, (void)comm_out;
    TESS_TRY(boot->gather(boot->context, &standin_device, sizeof(standin_device), device));
    for (int32_t r = 0; r < boot->rank_count; r++)
        sum += (r + 1) * (device[r] + 1);
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "the stand-in connects no ranks: %d ranks met, devices %d, %d channels",
              boot->rank_count, sum, standin_channels());
}

static void standin_range_begin(const char *name)
{
    standin_depth += name[0] != '\0';
}

static void standin_range_end(void)
{
    standin_depth--;
}

extern const struct tess_module tess_module;
const struct tess_module tess_module = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "stand-in for tests",
    .kernel = &standin_kernel,
    .device_count = standin_count,
    .device_info = standin_info,
    .device_select = standin_select,
    .device_memory = standin_memory,
    .device_usage = standin_usage,
    .device_reaches = standin_reaches,
    .comm_open = standin_comm,
    .range_begin = standin_range_begin,
    .range_end = standin_range_end,
};
