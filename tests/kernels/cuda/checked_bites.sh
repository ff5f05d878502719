#!/usr/bin/env bash
# Does checked.sh find what it should, and nothing else? One sound file, then one fault at a time beside it.
set -euo pipefail
checked=$(cd "$(dirname "$0")" && pwd)/checked.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/sound.c" <<'SOUND'
/* cudaFree(p); in a comment, and "cudaFree(p);" in a text. */
#include <cuda_runtime_api.h>
#define SOUND_TRY(call) do { cudaError_t error = (call); if (error) return error; } while (0)
cudaError_t (*sound_slot)(void);
static const char *sound_text = "; cudaFree(p);";
static cudaError_t sound(void *p, cudaStream_t stream)
{
    cudaError_t error = cudaMalloc(&p, 1);
    if (cudaFree(p) != cudaSuccess)
        return cudaGetLastError();
    SOUND_TRY(cudaStreamSynchronize(stream)); // cudaFree(p);
    CUBLAS_TRY(cublasLtCreate(&handle));
    CUDNN_TRY(library->cudnnCreate(&handle));
    error = library->cudnnDestroy(handle);
    NCCL_TRY(
        ncclCommAbort(comm));
    note(kernel, cudaFree(p), "cudaFree");
    error = p ? cudaFree(p)
              : cudaSuccess;
    return error;
}
SOUND

cat >"$folder/sound.cu" <<'SOUND'
/* of a function:
 * __shared__ float array[2]; */
template <typename T>
static __global__ void __launch_bounds__(32)
    sound_kernel(const T *x)
{
    __shared__ float array[2];
}
static __device__ void sound_use(float *array)
{
}
extern __shared__ unsigned char sound_all[];
SOUND

failures=0
bash "$checked" "$folder" >/dev/null || { echo "sound code is refused"; failures=1; }

# bites FILE TEXT: checked.sh must complain about a FILE of that TEXT, and name it.
bites()
{
    local output
    printf '%s\n' "$2" >"$folder/$1"
    if output=$(bash "$checked" "$folder"); then
        echo "not found: $2"
        failures=$((failures + 1))
    elif ! grep -qF "$1: " <<<"$output"; then
        echo "found, but not in $1: $output"
        failures=$((failures + 1))
    fi
    rm "$folder/$1"
}

bites bad.c 'void f(void *p) { cudaFree(p); }'
bites bad.c 'void f(void *p) { g(); cudaFree(p); }'
bites bad.c 'void f(void *p) { if (p) cudaFree(p); }'
bites bad.c 'void f(void *p) { if (!p) return; else cudaFree(p); }'
bites bad.c 'void f(void *p) { (void)cudaFree(p); }'
bites bad.c 'void f(int k) { switch (k) { case 1: cudaDeviceReset(); } }'
bites bad.c 'void f(int k) { switch (k) { default: cudaDeviceReset(); } }'
bites bad.c $'void f(void *p)\n{\n    /* all is well */\n    cudaFree(\n        p);\n}'
bites bad.c $'#define F(p) \\\n    cudaFree(p)'
bites bad.c $'#include <cuda.h>\nvoid f(void)\n{\n#ifdef X\n    cudaDeviceReset();\n#endif\n}'
bites bad.c 'void f(void) { cublasLtDestroy(handle); }'
bites bad.c 'void f(void) { ncclCommDestroy(comm); }'
bites bad.c 'void f(void) { cudnnDestroy(handle); }'
bites bad.c 'void f(void) { library->cudnnDestroy(handle); }'
bites bad.c 'void f(void) { (void)state.library->cudnnBackendFinalize(plan); }'
bites bad.c 'void f(void) { cuInit(0); }'
bites bad.c 'void f(void) { cudaError_t error = g(); CUDA_TRY(error); }'
bites bad.cu 'void f(void *p) { cudaFree(p); }'
bites bad.cu $'__global__ void k(int)\n{\n}\nstatic __device__ void f(int x)\n{\n    __shared__ float a[2];\n}'
bites bad.h 'static inline void f(void *p) { cudaFree(p); }'

if [ "$failures" -gt 0 ]; then
    echo "checked_bites: $failures failures"
    exit 1
fi
echo "checked_bites: every fault is found"
