/* Launches of the project's own kernels on streams of the made-up device: the emulator of
 * tests/kernels/emulate runs them, one at a time. */
#include "cuda/shared.h"
#include "device/madeup/runtime.h"
#include "emulate/native.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

static std::mutex emulator;

/* Kernels that are loaded, by device: the others are when they are first launched or asked for. */
static std::mutex loaded_lock;
static std::set<std::pair<int, const void *>> loaded;

static void kernel_load(const void *kernel)
{
    {
        std::lock_guard<std::mutex> locked(loaded_lock);
        if (!madeup_settings()->lazy || !loaded.insert({madeup_device(), kernel}).second)
            return;
    }
    (void)madeup_injected(MADEUP_LOAD, 0);
    madeup_wait_idle(madeup_device());
}

/* ---- attributes ----------------------------------------------------------------------------- */

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *about, const void *kernel)
{
    cudaError_t error = madeup_enter(__func__, cudaErrorNoKernelImageForDevice);
    if (error != cudaSuccess)
        return error;
    kernel_load(kernel);
    *about = cudaFuncAttributes();
    about->maxThreadsPerBlock = 1024;
    about->numRegs = 32;
    about->sharedSizeBytes = emulate_static_bytes(kernel);
    return cudaSuccess;
}

/* Shared memory of a block, with a kernel's static memory: without asking, and at most. What was
 * asked for on a device is a limit of dynamic memory alone. */
#define SHARED_USUAL ((size_t)48 << 10)
#define SHARED_MOST  ((size_t)227 << 10)
static std::mutex limit_lock;
static std::map<std::pair<int, const void *>, size_t> limits;

static bool kernel_fits(const void *kernel, size_t bytes)
{
    std::lock_guard<std::mutex> locked(limit_lock);
    auto found = limits.find({madeup_device(), kernel});
    return found != limits.end() ? bytes <= found->second
                                 : bytes + emulate_static_bytes(kernel) <= SHARED_USUAL;
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute,
                                            int value)
{
    cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        madeup_fail("cudaFuncSetAttribute of %d is not modelled", (int)attribute);
    if (error == cudaSuccess &&
        (value < 0 || (size_t)value + emulate_static_bytes(kernel) > SHARED_MOST))
        error = madeup_leave(cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    std::lock_guard<std::mutex> locked(limit_lock);
    limits[{madeup_device(), kernel}] = (size_t)value;
    return cudaSuccess;
}

/* ---- launches ------------------------------------------------------------------------------- */

static cudaError_t kernel_run(const void *context)
{
    std::lock_guard<std::mutex> locked(emulator);
    emulate_run(*static_cast<const emulate_kernel *>(context));
    return cudaSuccess;
}

static void kernel_drop(void *context)
{
    emulate_kernel *later = static_cast<emulate_kernel *>(context);
    delete later->call;
    delete later;
}

/* What the programming guide's "Technical specifications per compute capability" allows. */
static cudaError_t kernel_check(const emulate_kernel &later)
{
    const dim3 block = later.block, grid = later.grid;
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.z > 64 ||
        (uint64_t)block.x * block.y * block.z > 1024 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    return kernel_fits(later.kernel, later.shared_bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

/* Asks for shared memory as the launcher of a real one does (cuda/native.cuh), and returns the
 * thread's last error, whichever call that was of. */
cudaError_t emulate_submit(cudaStream_t stream, const emulate_kernel &later)
{
    cudaError_t error = cuda_need_shared(later.kernel, later.shared_bytes);
    if (error != cudaSuccess) {
        delete later.call;
        return error;
    }
    error = madeup_enter("cudaLaunchKernel", cudaErrorLaunchFailure);
    if (error == cudaSuccess)
        error = madeup_leave(kernel_check(later));
    if (error == cudaSuccess && madeup_stream_device(stream) != madeup_device())
        error = madeup_leave(cudaErrorInvalidResourceHandle);
    if (error != cudaSuccess) {
        delete later.call;
        return cudaGetLastError();
    }
    kernel_load(later.kernel);
    const char *slash = strrchr(later.file, '/');
    madeup_work work = {slash ? slash + 1 : later.file, kernel_run, kernel_drop,
                        new emulate_kernel(later)};
    (void)madeup_leave(madeup_submit(stream, &work));
    return cudaGetLastError();
}
