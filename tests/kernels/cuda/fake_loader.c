/*
 * A libcuda.so.1 without a device on which code can be loaded, and nothing else: so that cuDNN
 * compiles the kernels of its fused engines for a device that is described to it, and makes their
 * plans (test_cudnn.c). Whatever would need a device is refused.
 */
#include <stddef.h>

#define LOADER_NO_DEVICE     100 /* CUDA_ERROR_NO_DEVICE */
#define LOADER_NOT_SUPPORTED 801 /* CUDA_ERROR_NOT_SUPPORTED */
#define LOADER_VERSION       13000

static int loader_code; /* its address stands for what was loaded */

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return LOADER_NO_DEVICE;
}

int cuDriverGetVersion(int *version_out);
int cuDriverGetVersion(int *version_out)
{
    *version_out = LOADER_VERSION;
    return 0;
}

int cuGetErrorString(int error, const char **text_out);
int cuGetErrorString(int error, const char **text_out)
{
    (void)error;
    *text_out = "an error of a made-up driver";
    return 0;
}

int cuLibraryLoadData(void **library_out);
int cuLibraryLoadData(void **library_out)
{
    *library_out = &loader_code;
    return 0;
}

int cuLibraryGetKernel(void **kernel_out);
int cuLibraryGetKernel(void **kernel_out)
{
    *kernel_out = &loader_code;
    return 0;
}

/* Of what is loaded. */
#define LOADER_ANSWER(name, answer)                                                                \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return answer;                                                                             \
    }
LOADER_ANSWER(cuLibraryUnload, 0)
LOADER_ANSWER(cuKernelSetAttribute, 0)
LOADER_ANSWER(cuDeviceGetCount, LOADER_NO_DEVICE)

/* cuDNN wants them to be there. */
LOADER_ANSWER(cuGetErrorName, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuCtxGetCurrent, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuCtxGetLimit, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuCtxPopCurrent, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuCtxPushCurrent, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuStreamGetCtx, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLinkCreate, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLinkAddData, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLinkComplete, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLinkDestroy, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLaunchKernel, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLaunchKernelEx, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLaunchCooperativeKernel, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuDeviceGet, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuLibraryLoadFromFile, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuKernelGetAttribute, LOADER_NOT_SUPPORTED)
LOADER_ANSWER(cuOccupancyMaxPotentialClusterSize, LOADER_NOT_SUPPORTED)
