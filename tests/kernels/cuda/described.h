/* A GPU that is described to cuDNN in words, for which it makes plans without one. */
#ifndef TESTS_KERNELS_CUDA_DESCRIBED_H
#define TESTS_KERNELS_CUDA_DESCRIBED_H

#include "cuda/cudnn/cudnn.h"

#include <string.h>

/* As cudaGetDeviceProperties has them on that chip; in the words of cuDNN 9.8 to 9.19. */
static const char device_text[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"smVersion\":900,\"device\":0,"
    "\"cudaDeviceId\":0,\"pciDeviceId\":0,\"driverVersion\":13000,\"driverVer\":13000,"
    "\"runtimeVersion\":13000,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,"
    "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"l2CacheSize\":62914560,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"totalGlobalMem\":150000000000,\"isTccDriver\":0,\"supportCoopLaunch\":1}";

/* Can plans be made for it? Of cuDNN 9.8 and later. The caller destroys place_out->properties. */
static inline bool describe_device(const struct cudnn_library *library,
                                   struct cudnn_place *place_out)
{
#if CUDNN_VERSION >= 90800
    return library->cudnnGetVersion() >= 90800 &&
           library->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                                                 &place_out->properties) == CUDNN_STATUS_SUCCESS &&
           library->cudnnBackendSetAttribute(
               place_out->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               (int64_t)strlen(device_text), device_text) == CUDNN_STATUS_SUCCESS &&
           library->cudnnBackendFinalize(place_out->properties) == CUDNN_STATUS_SUCCESS;
#else
    (void)library, (void)place_out;
    return false;
#endif
}

#endif
