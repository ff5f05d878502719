/* Asking for shared memory (kernels/cuda/shared.h): once for a kernel on a device, also where
 * threads launch it at the same time, and never for more than the device has. */
#include "cuda/shared.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define KIB  ((size_t)1024)
#define MOST (227 * KIB)

/* ---- the runtime, as far as it is asked ------------------------------------------------------ */

static _Thread_local int device;
static atomic_int asked;
static size_t static_bytes;
static int last_limit;

cudaError_t cudaGetDevice(int *at)
{
    *at = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int at)
{
    (void)at;
    if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin)
        abort();
    *value = (int)MOST;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *about, const void *kernel)
{
    (void)kernel;
    *about = (struct cudaFuncAttributes){.sharedSizeBytes = static_bytes};
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (kernel == NULL || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        abort();
    if ((size_t)value + static_bytes > MOST)
        return cudaErrorInvalidValue;
    last_limit = value;
    atomic_fetch_add(&asked, 1);
    return cudaSuccess;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const char kernels[2 * CUDA_SHARED_KERNELS]; /* their addresses */

static void case_once(void **state)
{
    (void)state;
    asked = 0;
    for (int launch = 0; launch < 100; launch++) {
        assert_int_equal(cuda_ask_shared(&kernels[0], 100 * KIB), cudaSuccess);
        assert_int_equal(cuda_ask_shared(&kernels[1], 30 * KIB), cudaSuccess);
    }
    assert_int_equal(asked, 2);
    device = 1;
    assert_int_equal(cuda_ask_shared(&kernels[0], 100 * KIB), cudaSuccess);
    assert_int_equal(asked, 3);
    device = 0;
}

/* Static and dynamic memory share what there is. */
static void case_most(void **state)
{
    (void)state;
    static_bytes = 20 * KIB;
    for (int launch = 0; launch < 2; launch++) {
        assert_int_equal(cuda_ask_shared(&kernels[2], MOST - 20 * KIB), cudaSuccess);
        assert_int_equal(cuda_ask_shared(&kernels[2], MOST - 20 * KIB + 1), cudaErrorInvalidValue);
        assert_int_equal(cuda_ask_shared(&kernels[3], MOST), cudaErrorInvalidValue);
    }
    assert_int_equal(last_limit, MOST - 20 * KIB);
    static_bytes = 0;
}

static void *launch_many(void *unused)
{
    (void)unused;
    for (int launch = 0; launch < 1000; launch++)
        if (cuda_ask_shared(&kernels[8 + launch % 20], 64 * KIB) != cudaSuccess)
            return "refused";
    return NULL;
}

static void case_threads(void **state)
{
    (void)state;
    pthread_t thread[4];
    asked = 0;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, launch_many, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    assert_in_range(asked, 20, 80); /* each of the threads may be the first */
}

/* More kernels than slots: asked for again, and right. */
static void case_full(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < 2 * CUDA_SHARED_KERNELS; k++)
            assert_int_equal(cuda_ask_shared(&kernels[k], k < 4 ? 1 : MOST), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_once),
        cmocka_unit_test(case_most),
        cmocka_unit_test(case_threads),
        cmocka_unit_test(case_full),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
