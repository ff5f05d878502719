/*
 * What libtessera_cuda.so exports: `tess_module` (tessera/device.h). Devices by the numbers of the
 * survey, which leaves out those that this build has no code for.
 */
#include "comm/nccl/nccl.h"
#include "cuda/host.h"
#include "tessera/version.h"

#include <stdio.h>

static int32_t module_device_count(char *why, size_t why_bytes)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    if (survey->count == 0 && why_bytes > 0)
        snprintf(why, why_bytes, "%s", survey->why);
    return survey->count;
}

static enum tess_status module_device_info(int32_t device, struct tess_device_info *info_out)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    TESS_TRY(tess__cuda_check_device(survey, device));
    *info_out = survey->info[device];
    return TESS_OK;
}

static enum tess_status module_device_memory(struct tess_device_memory *memory_out)
{
    if (tess__cuda_selected() < 0)
        TESS_FAIL(TESS_ERR_USAGE, "no device was selected in this thread, so none has memory");
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    *memory_out = (struct tess_device_memory){.free_bytes = free_bytes, .total_bytes = total_bytes};
    return TESS_OK;
}

static void module_device_usage(struct tess_device_usage *usage_out)
{
    tess__cuda_usage_get(tess__cuda_selected(), usage_out);
}

#define MODULE_TEXT_(x) #x
#define MODULE_TEXT(x)  MODULE_TEXT_(x)
#define MODULE_BLAS                                                                                \
    MODULE_TEXT(CUBLAS_VER_MAJOR)                                                                  \
    "." MODULE_TEXT(CUBLAS_VER_MINOR) "." MODULE_TEXT(CUBLAS_VER_PATCH)

extern const struct tess_module tess_module;
__attribute__((visibility("default"))) const struct tess_module tess_module = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "NVIDIA GPUs: CUDA " MODULE_TEXT(CUDART_VERSION) ", cuBLASLt " MODULE_BLAS
                                                                ", code for " CUDA_ARCHS,
    .kernel = &tess_kernel_cuda,
    .device_count = module_device_count,
    .device_info = module_device_info,
    .device_select = tess__cuda_select,
    .device_memory = module_device_memory,
    .device_usage = module_device_usage,
    .device_reaches = tess__cuda_reaches,
    .comm_open = tess__nccl_open,
    .range_begin = tess__cuda_range_begin,
    .range_end = tess__cuda_range_end,
};
