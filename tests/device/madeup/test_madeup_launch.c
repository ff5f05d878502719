/* Launches on the made-up device: sizes that hardware refuses are refused, and shared memory beyond
 * 48 KiB, a kernel's own included, is there for a kernel that it was asked for, on the device where
 * it was. */
#include "device/madeup/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define KIB ((size_t)1024)

static cudaStream_t stream;

static void expect(cudaError_t error, unsigned blocks_x, unsigned blocks_y, unsigned threads_x,
                   unsigned threads_z, size_t shared_bytes)
{
    assert_int_equal(launch_nothing(stream, blocks_x, blocks_y, threads_x, threads_z, shared_bytes),
                     error);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
}

static void case_sizes(void **state)
{
    (void)state;
    expect(cudaSuccess, 1, 1, 1024, 1, 0);
    expect(cudaSuccess, 0, 1, 32, 1, 0); /* nothing to do */
    expect(cudaSuccess, 1, 65535, 1, 1, 0);
    expect(cudaErrorInvalidConfiguration, 1, 1, 1025, 1, 0);
    expect(cudaErrorInvalidConfiguration, 1, 1, 0, 1, 0);
    expect(cudaErrorInvalidConfiguration, 1, 1, 32, 33, 0);
    expect(cudaErrorInvalidConfiguration, 1, 1, 1, 65, 0);
    expect(cudaErrorInvalidConfiguration, 1, 65536, 32, 1, 0);
    expect(cudaErrorInvalidConfiguration, 0x80000000u, 1, 32, 1, 0);
}

/* The project's launcher asks; what it has not asked for is refused. */
static void case_shared(void **state)
{
    const void *kernel = launch_kernel();
    (void)state;
    expect(cudaSuccess, 1, 1, 32, 1, 227 * KIB);
    assert_int_equal(launch_nothing(stream, 1, 1, 32, 1, 227 * KIB + 1), cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * KIB),
        cudaSuccess);
    expect(cudaSuccess, 1, 1, 32, 1, 64 * KIB);
    expect(cudaErrorInvalidValue, 1, 1, 32, 1, 64 * KIB + 1);
    assert_int_equal(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * KIB),
        cudaErrorInvalidValue);
}

/* A sanitizer's guard may be counted with the array. */
static void case_static(void **state)
{
    const void *kernel = launch_static_kernel();
    struct cudaFuncAttributes about;
    (void)state;
    (void)cudaGetLastError(); /* launches return it */
    assert_int_equal(cudaFuncGetAttributes(&about, kernel), cudaSuccess);
    const size_t own = about.sharedSizeBytes;
    assert_in_range(own, LAUNCH_STATIC, LAUNCH_STATIC / 4 * 5);
    assert_int_equal(launch_static(stream, 48 * KIB - own), cudaSuccess);
    /* Little enough for the launcher not to ask. */
    assert_int_equal(launch_static(stream, 48 * KIB - own + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)(227 * KIB - own + 1)),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(launch_static(stream, 227 * KIB - own), cudaSuccess);
    assert_int_equal(launch_static(stream, 227 * KIB - own + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_sizes), cmocka_unit_test(case_shared),
                                       cmocka_unit_test(case_static)};
    if (cudaSetDevice(0) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return 2;
    return cmocka_run_group_tests(cases, NULL, NULL);
}
