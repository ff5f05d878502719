#include "fake_device.h"

#include <stdio.h>
#include <stdlib.h>

int fake_arrays;
bool fake_absent;

const struct cudnn_library *tess__cudnn_library(const char **why_out)
{
    if (why_out != NULL)
        *why_out = fake_absent ? "cuDNN cannot be opened" : "";
    return fake_absent ? NULL : &fake_library;
}

bool tess__cudnn_present(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", fake_absent ? "cuDNN cannot be opened" : "cuDNN 9.99.9");
    return !fake_absent;
}

enum tess_status tess__cudnn_fail(cudnnStatus_t error, const char *where)
{
    TESS_FAIL(TESS_ERR_DEVICE, "cuDNN: %s answered %d", where, (int)error);
}

cudaError_t CUDARTAPI cudaMalloc(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    fake_arrays++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFree(void *memory)
{
    free(memory);
    fake_arrays--;
    return cudaSuccess;
}

void tess__cuda_log_error(cudaError_t error, const char *where)
{
    if (error != cudaSuccess || where == NULL)
        abort();
}

enum tess_status tess__cuda_fail(cudaError_t error, const char *where)
{
    TESS_FAIL(TESS_ERR_DEVICE, "%s answered %d", where, (int)error);
}

uint64_t tess__cuda_free_bytes(void)
{
    return 0;
}

void tess__cuda_usage_took(int device_number, enum cuda_usage kind, uint64_t free_before)
{
    (void)device_number, (void)free_before;
    if (kind != CUDA_USAGE_WORKSPACE)
        abort();
}
