/*
 * Trial runs of a plan over random operands when it is made: does a product over all leaves give
 * each leaf the bits that it has alone (tessera/kernel.h, "Rows and leaves")?
 */
#include "cuda/products/matmul_plan.h"

#include "base/half.h"
#include "cuda/plain/launch_plain.h"

#include <stdlib.h>
#include <string.h>

/* Numbers that are drawn; repeated over the operands. A prime, so that no two rows or leaves begin
 * at the same number. */
#define TRIAL_NUMBERS 65521

/* Results that are compared at least, where this many rounds give them. */
#define TRIAL_RESULTS 4096
#define TRIAL_ROUNDS  64

/* One random number of [-1, 1), the generator's top bits (Knuth's MMIX constants), in `type`. For
 * e4m3 and e5m2 the bits are a sign and a magnitude below 1: all of those are numbers. */
static void trial_draw(uint64_t *state, cudaDataType_t type, unsigned char *to)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const float value = (float)((int64_t)(*state >> 40) - (1 << 23)) * 0x1p-23f;
    uint16_t half = 0;
    switch (type) {
    case CUDA_R_8F_E4M3: /* 1 is 0x38 */
        *to = (unsigned char)((*state >> 56 & 0x80) | (*state >> 40) % 0x38);
        return;
    case CUDA_R_8F_E5M2: /* 1 is 0x3c */
        *to = (unsigned char)((*state >> 56 & 0x80) | (*state >> 40) % 0x3c);
        return;
    case CUDA_R_16BF:
        half = tess__bf16_of_f32(value);
        break;
    case CUDA_R_16F:
        half = tess__f16_of_f32(value);
        break;
    default:
        memcpy(to, &value, sizeof(value));
        return;
    }
    memcpy(to, &half, sizeof(half));
}

static enum tess_status trial_fill(struct tess_kernel *kernel, uint64_t seed, cudaDataType_t type,
                                   size_t bytes, void *memory)
{
    const size_t width = tess__cuda_type_bytes(type);
    size_t done = TRIAL_NUMBERS * width < bytes ? TRIAL_NUMBERS * width : bytes;
    unsigned char *numbers = malloc(done + width);
    if (numbers == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu bytes of random numbers", done);
    uint64_t state = seed;
    for (size_t i = 0; i < done; i += width)
        trial_draw(&state, type, numbers + i);
    cudaStream_t stream = tess__cuda_stream(kernel);
    cudaError_t error = cudaMemcpyAsync(memory, numbers, done, cudaMemcpyHostToDevice, stream);
    /* Whole periods are doubled until all is full: the period stays a prime. */
    while (error == cudaSuccess && done < bytes) {
        const size_t more = done < bytes - done ? done : bytes - done;
        error =
            cudaMemcpyAsync((char *)memory + done, memory, more, cudaMemcpyDeviceToDevice, stream);
        done += more;
    }
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    free(numbers);
    CUDA_TRY(error);
    return TESS_OK;
}

/* What a plan's operands take, in the order they lie in memory. */
struct trial_sizes {
    size_t a, b, d, bias, aux, scale, differ;
};

static struct trial_sizes trial_sizes(const struct cuda_product *p)
{
    return (struct trial_sizes){
        .a = (size_t)(p->m * p->k) * tess__cuda_type_bytes(p->a),
        .b = (size_t)(p->k * p->n) * tess__cuda_type_bytes(p->b),
        .d = (size_t)(p->m * p->n) * tess__cuda_type_bytes(p->d),
        .bias = (size_t)(p->m > p->n ? p->m : p->n) * tess__cuda_type_bytes(p->d),
        .aux = (size_t)(p->m * p->n) * tess__cuda_type_bytes(p->d),
        .scale = sizeof(float),
        .differ = sizeof(uint32_t),
    };
}

/* Fills what the trial allocated, so that casting const away is right. */
static enum tess_status trial_draw_operands(struct tess_kernel *kernel,
                                            const struct cuda_product *p, uint64_t round,
                                            const struct cuda_operands *o)
{
    const struct trial_sizes size = trial_sizes(p);
    const struct {
        cudaDataType_t type;
        size_t bytes;
        const void *memory;
    } fill[] = {
        {p->a, size.a, o->a},
        {p->b, size.b, o->b},
        {p->d, size.bias, o->bias},
        {p->d, size.aux, o->aux},
        {CUDA_R_32F, size.scale, o->scale_a},
    };
    for (size_t i = 0; i < sizeof(fill) / sizeof(fill[0]); i++)
        TESS_TRY(trial_fill(kernel, 16 * round + i + 1, fill[i].type, fill[i].bytes,
                            (void *)(uintptr_t)fill[i].memory));
    return TESS_OK;
}

/* Where the operands lie in `base`; with base NULL it only measures. */
static struct cuda_trial trial_layout(const struct cuda_product *p, void *base, size_t *bytes_out)
{
    const struct trial_sizes size = trial_sizes(p);
    struct cuda_room room = {.base = base};
    struct cuda_trial trial = {.memory = base, .d_bytes = size.d};
    trial.operands.a = tess__cuda_take(&room, size.a);
    trial.operands.b = tess__cuda_take(&room, size.b);
    trial.operands.d = tess__cuda_take(&room, size.d);
    trial.other = tess__cuda_take(&room, size.d);
    trial.operands.bias = tess__cuda_take(&room, size.bias);
    trial.operands.aux = tess__cuda_take(&room, size.aux);
    trial.other_aux = tess__cuda_take(&room, size.aux);
    trial.operands.scale_a = trial.operands.scale_b = tess__cuda_take(&room, size.scale);
    trial.differ = tess__cuda_take(&room, size.differ);
    *bytes_out = room.used;
    return trial;
}

enum tess_status tess__cuda_trial_open(struct tess_kernel *kernel, const struct cuda_plan *plan,
                                       struct cuda_trial *trial_out)
{
    const struct cuda_product *p = &plan->product;
    size_t bytes;
    (void)trial_layout(p, NULL, &bytes);
    void *memory;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* else the next launch would report it */
        return TESS_ERR_MEMORY;
    }
    CUDA_TRY(error);
    struct cuda_trial trial = trial_layout(p, memory, &bytes);
    enum tess_status status = trial_draw_operands(kernel, p, 0, &trial.operands);
    if (status != TESS_OK)
        tess__cuda_trial_close(&trial);
    else
        *trial_out = trial;
    return status;
}

void tess__cuda_trial_close(struct cuda_trial *trial)
{
    cudaError_t error = cudaFree(trial->memory);
    if (error != cudaSuccess) /* a close does not fail; the message is there */
        (void)tess__cuda_fail(error, "cudaFree of a trial's operands");
    trial->memory = NULL;
}

static bool trial_writes_aux(const struct cuda_product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/* Are the two results the same bits? */
static enum tess_status trial_same(struct tess_kernel *kernel, const struct cuda_product *product,
                                   const struct cuda_trial *trial, bool *same_out)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    uint32_t differ = 1;
    CUDA_TRY(cudaMemsetAsync(trial->differ, 0, sizeof(differ), stream));
    CUDA_TRY(tess__cuda_matmul_differ(stream, trial->d_bytes, trial->operands.d, trial->other,
                                      trial->differ));
    if (trial_writes_aux(product)) /* it has D's size */
        CUDA_TRY(tess__cuda_matmul_differ(stream, trial->d_bytes, trial->operands.aux,
                                          trial->other_aux, trial->differ));
    CUDA_TRY(
        cudaMemcpyAsync(&differ, trial->differ, sizeof(differ), cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    *same_out = differ == 0;
    return TESS_OK;
}

static enum tess_status trial_compare_once(struct tess_kernel *kernel, struct cuda_plan *leaf,
                                           struct cuda_plan *all, int64_t leaves,
                                           struct cuda_trial *trial)
{
    struct cuda_rows rows = {
        .leaf = leaf,
        .leaves = leaves,
        .b_bytes =
            (size_t)(leaf->product.k * leaf->product.n) * tess__cuda_type_bytes(leaf->product.b),
        .d_bytes =
            (size_t)(leaf->product.m * leaf->product.n) * tess__cuda_type_bytes(leaf->product.d),
    };
    struct cuda_operands by_leaves = trial->operands;
    by_leaves.d = trial->other;
    if (trial_writes_aux(&all->product))
        by_leaves.aux = trial->other_aux;
    TESS_TRY(tess__cuda_plan_run(kernel, all, &trial->operands));
    TESS_TRY(tess__cuda_rows_run(kernel, &rows, &by_leaves));
    bool same = false;
    TESS_TRY(trial_same(kernel, &all->product, trial, &same));
    all->alike = same ? CUDA_ALIKE_YES : CUDA_ALIKE_NO;
    return TESS_OK;
}

/* A few results may agree by chance in another order of their sums: small products are compared
 * several times. */
static enum tess_status trial_compare(struct tess_kernel *kernel, struct cuda_plan *leaf,
                                      struct cuda_plan *all, int64_t leaves,
                                      struct cuda_trial *trial)
{
    const int64_t results = all->product.m * all->product.n;
    const int64_t rounds = results < TRIAL_RESULTS ? TRIAL_RESULTS / results : 1;
    enum cuda_alike alike = CUDA_ALIKE_YES;
    for (int64_t round = 0; round < rounds && round < TRIAL_ROUNDS && alike == CUDA_ALIKE_YES;
         round++) {
        if (round > 0)
            TESS_TRY(trial_draw_operands(kernel, &all->product, (uint64_t)round, &trial->operands));
        TESS_TRY(trial_compare_once(kernel, leaf, all, leaves, trial));
        alike = all->alike;
    }
    return TESS_OK;
}

enum tess_status tess__cuda_plan_compare(struct tess_kernel *kernel, struct cuda_plan *leaf,
                                         struct cuda_plan *all, int64_t leaves)
{
    if (all->alike != CUDA_ALIKE_UNKNOWN)
        return TESS_OK;
    struct cuda_trial trial;
    enum tess_status status = tess__cuda_trial_open(kernel, all, &trial);
    if (status == TESS_ERR_MEMORY) {
        /* Leaf by leaf is always right. */
        tess_log(TESS_LOG_WARN,
                 "no device memory to compare a product over %lld rows with its leaves: it runs "
                 "leaf by leaf",
                 (long long)all->product.n);
        all->alike = CUDA_ALIKE_NO;
        return TESS_OK;
    }
    TESS_TRY(status);
    status = trial_compare(kernel, leaf, all, leaves, &trial);
    tess__cuda_trial_close(&trial);
    return status;
}
