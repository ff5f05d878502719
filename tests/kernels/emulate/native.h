/*
 * What kernels/cuda/launch.cuh stands on when a host compiler compiles a kernel: CUDA's words, with
 * their meaning for blocks of threads in warps of 32, on the CPU. Included by launch.cuh alone; how
 * it works, and what it is for and what not, is in emulate.h.
 */
#ifndef TESTS_KERNELS_EMULATE_NATIVE_H
#define TESTS_KERNELS_EMULATE_NATIVE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <vector_functions.h>

/* Blocks run one after the other: one copy of a block's static shared memory is enough. */
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

/* One thread of the running block. `in` and `out` are what it brings to and takes from an operation
 * of its warp. */
struct emulate_thread {
    uint3 index;
    int lane;
    alignas(16) unsigned char in[48];
    alignas(16) unsigned char out[16];
};

/* Ends the program, naming the launch, the block and the thread. */
[[noreturn]] void emulate_fail(const char *what);

extern struct emulate_thread *emulate_now;
extern uint3 emulate_block_index;
extern dim3 emulate_block_size, emulate_grid_size;

#define threadIdx (emulate_now->index)
#define blockIdx  emulate_block_index
#define blockDim  emulate_block_size
#define gridDim   emulate_grid_size
#define warpSize  32

/* ---- launching ------------------------------------------------------------------------------ */

struct emulate_call {
    virtual void run() = 0; /* the kernel, once per thread */
    virtual ~emulate_call() = default;
};

/* A launch. kernel: the function itself. */
struct emulate_kernel {
    emulate_call *call;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes, parameter_bytes;
    const char *file;
    int line;
};
void emulate_run(const emulate_kernel &launch);

/* Bytes of a kernel's own __shared__ arrays (statics.cpp). Any thread. */
size_t emulate_static_bytes(const void *kernel);

template <typename F> struct emulate_bound final : emulate_call {
    F body;
    explicit emulate_bound(F f) : body(f)
    {
    }
    void run() override
    {
        body();
    }
};

/* A launch on a stream, which runs the call and deletes it when its turn has come: the made-up
 * device of tests/device. Where there is none (calls.cpp), the program ends. */
cudaError_t emulate_submit(cudaStream_t stream, const emulate_kernel &later);

template <typename... Parameters, typename... Arguments>
static inline cudaError_t emulate_launch(const char *file, int line, void (*kernel)(Parameters...),
                                         dim3 grid, dim3 block, size_t shared_bytes,
                                         cudaStream_t stream, Arguments... arguments)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaSuccess;
    auto body = [=] { kernel(static_cast<Parameters>(arguments)...); };
    constexpr size_t parameter_bytes = (sizeof(Parameters) + ... + 0);
    emulate_kernel launch = {nullptr,      reinterpret_cast<const void *>(kernel),
                             grid,         block,
                             shared_bytes, parameter_bytes,
                             file,         line};
    if (stream) {
        launch.call = new emulate_bound<decltype(body)>(body);
        return emulate_submit(stream, launch);
    }
    emulate_bound<decltype(body)> call(body);
    launch.call = &call;
    emulate_run(launch);
    return cudaSuccess;
}

#define CUDA_LAUNCH(...) emulate_launch(__FILE__, __LINE__, __VA_ARGS__)

void *emulate_shared(void);
#define CUDA_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulate_shared())

/* ---- what the threads of a block do together ------------------------------------------------ */

int emulate_sync(int value, int line); /* returns how many threads gave a value other than 0 */
#define __syncthreads()           ((void)emulate_sync(0, __LINE__))
#define __syncthreads_count(what) emulate_sync((what) != 0, __LINE__)
#define __syncthreads_or(what)    (emulate_sync((what) != 0, __LINE__) != 0)
#define __syncthreads_and(what)   (emulate_sync((what) == 0, __LINE__) == 0)

/* The lanes of a warp that `mask` names and that have not returned, when all of them are there.
 * thread[l] is NULL for the others. Sets the `out` of each. */
typedef void emulate_work(emulate_thread *const thread[32]);
void emulate_warp(uint32_t mask, emulate_work *work);

uint32_t emulate_ballot(uint32_t mask, int value);
/* `from`: the lane whose value this one gets. */
void emulate_shuffle(uint32_t mask, const void *value, void *result, size_t bytes, int from);

static inline void __syncwarp(uint32_t mask = 0xffffffffu)
{
    (void)emulate_ballot(mask, 0);
}

static inline unsigned __ballot_sync(uint32_t mask, int value)
{
    return emulate_ballot(mask, value);
}

static inline int __any_sync(uint32_t mask, int value)
{
    return emulate_ballot(mask, value) != 0;
}

static inline int __all_sync(uint32_t mask, int value)
{
    return emulate_ballot(mask, !value) == 0;
}

/* The four shuffles are one with a rule for the lane it takes from (CUDA C++ programming guide,
 * "Warp shuffle functions"); beyond its group of `width` lanes a lane keeps its own value. */
template <typename T> static inline T emulate_shuffle_of(uint32_t mask, T value, int from)
{
    static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
    T result;
    emulate_shuffle(mask, &value, &result, sizeof(T), from);
    return result;
}

template <typename T>
static inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32)
{
    int first = emulate_now->lane & ~(width - 1);
    return emulate_shuffle_of(mask, value, first | (source & (width - 1)));
}

template <typename T>
static inline T __shfl_xor_sync(uint32_t mask, T value, int step, int width = 32)
{
    int lane = emulate_now->lane, from = lane ^ step;
    return emulate_shuffle_of(mask, value, from > (lane | (width - 1)) ? lane : from);
}

template <typename T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned step, int width = 32)
{
    int lane = emulate_now->lane, from = lane + (int)step;
    return emulate_shuffle_of(mask, value, from > (lane | (width - 1)) ? lane : from);
}

template <typename T>
static inline T __shfl_up_sync(uint32_t mask, T value, unsigned step, int width = 32)
{
    int lane = emulate_now->lane, from = lane - (int)step;
    return emulate_shuffle_of(mask, value, from < (lane & ~(width - 1)) ? lane : from);
}

/* ---- memory --------------------------------------------------------------------------------- */

void cuda_copy_async16(void *shared, const void *global, bool valid = true);
void cuda_copy_commit();
void emulate_copy_wait(int groups);
template <int N> static inline void cuda_copy_wait()
{
    emulate_copy_wait(N);
}

static inline void __threadfence()
{
}

static inline void __threadfence_block()
{
}

static inline void __threadfence_system()
{
}

template <typename T> static inline T __ldg(const T *memory)
{
    return *memory;
}

template <typename T> static inline T __ldcs(const T *memory)
{
    return *memory;
}

template <typename T> static inline T __ldcg(const T *memory)
{
    return *memory;
}

template <typename T> static inline void __stcs(T *memory, T value)
{
    *memory = value;
}

template <typename T> static inline void __stcg(T *memory, T value)
{
    *memory = value;
}

/* Integers only: sums of floats by atomics would depend on the order. */
template <typename T> static inline T emulate_exchange(T *memory, T value)
{
    static_assert((T)0.5 == (T)0, "atomics are for integers");
    T before = *memory;
    *memory = value;
    return before;
}

template <typename T> static inline T atomicAdd(T *memory, T value)
{
    return emulate_exchange(memory, (T)(*memory + value));
}

template <typename T> static inline T atomicMax(T *memory, T value)
{
    return emulate_exchange(memory, *memory > value ? *memory : value);
}

template <typename T> static inline T atomicMin(T *memory, T value)
{
    return emulate_exchange(memory, *memory < value ? *memory : value);
}

template <typename T> static inline T atomicOr(T *memory, T value)
{
    return emulate_exchange(memory, (T)(*memory | value));
}

template <typename T> static inline T atomicExch(T *memory, T value)
{
    return emulate_exchange(memory, value);
}

template <typename T> static inline T atomicCAS(T *memory, T expected, T value)
{
    return emulate_exchange(memory, *memory == expected ? value : *memory);
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* The tests compile without contraction: plain operators are the rounded ones. */
#define EMULATE_ROUNDED(prefix, type)                                                              \
    static inline type __##prefix##add_rn(type a, type b)                                          \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##sub_rn(type a, type b)                                          \
    {                                                                                              \
        return a - b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##mul_rn(type a, type b)                                          \
    {                                                                                              \
        return a * b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##div_rn(type a, type b)                                          \
    {                                                                                              \
        return a / b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##sqrt_rn(type a)                                                 \
    {                                                                                              \
        return (type)sqrt((double)a); /* double has more than twice the digits of float */         \
    }
EMULATE_ROUNDED(f, float)
EMULATE_ROUNDED(d, double)

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* As cuda/native.cuh has it of the device, but for what is below 2^-126. */
static inline float cuda_exp2(float x)
{
    return exp2f(x);
}

static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float rsqrtf(float a)
{
    return 1.0f / sqrtf(a);
}

static inline float __double2float_rn(double a)
{
    return (float)a;
}

static inline void sincospif(float a, float *sine, float *cosine)
{
    const double turn = 3.14159265358979323846 * (double)a;
    *sine = (float)sin(turn);
    *cosine = (float)cos(turn);
}

static inline float __saturatef(float a)
{
    return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f;
}

/* The C library has these names for itself. */
#define __expf(x)    expf(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __powf(x, y) powf(x, y)

template <typename To, typename From> static inline To emulate_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

#define __float_as_uint(x)      emulate_bits<unsigned, float>(x)
#define __float_as_int(x)       emulate_bits<int, float>(x)
#define __uint_as_float(x)      emulate_bits<float, unsigned>(x)
#define __int_as_float(x)       emulate_bits<float, int>(x)
#define __double_as_longlong(x) emulate_bits<long long, double>(x)
#define __longlong_as_double(x) emulate_bits<double, long long>(x)
#define __umulhi(a, b)          ((unsigned)((uint64_t)(unsigned)(a) * (unsigned)(b) >> 32))
#define __popc(x)               __builtin_popcount(x)
#define __popcll(x)             __builtin_popcountll(x)
#define __ffs(x)                __builtin_ffs(x)
#define __clz(x)                ((unsigned)(x) ? __builtin_clz(x) : 32)
#define __clzll(x)              ((unsigned long long)(x) ? __builtin_clzll(x) : 64)

#define EMULATE_EXTREMES(type)                                                                     \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
EMULATE_EXTREMES(int)
EMULATE_EXTREMES(unsigned)
EMULATE_EXTREMES(long)
EMULATE_EXTREMES(unsigned long)
EMULATE_EXTREMES(long long)
EMULATE_EXTREMES(unsigned long long)

#endif
