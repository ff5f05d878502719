/*
 * Trial runs of a plan over random operands when it is made: does it run, does a product over all
 * leaves give each leaf the bits that it has alone (tessera/kernel.h, "Rows and leaves"), and one
 * with an epilogue those of the product without?
 */
#include "cuda/host.h"
#include "cuda/products/matmul_plan.h"

#include "base/half.h"

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
    const size_t width = matmul_type_bytes(type);
    size_t done = TRIAL_NUMBERS * width < bytes ? TRIAL_NUMBERS * width : bytes;
    unsigned char *numbers = malloc(done + width);
    if (numbers == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu bytes of random numbers", done);
    uint64_t state = seed;
    for (size_t i = 0; i < done; i += width)
        trial_draw(&state, type, numbers + i);
    const enum tess_status status = tess__cuda_write(kernel, done, numbers, memory);
    free(numbers);
    TESS_TRY(status);
    /* Whole periods are doubled until all is full: the period stays a prime. */
    while (done < bytes) {
        const size_t more = done < bytes - done ? done : bytes - done;
        CUDA_TRY(cudaMemcpyAsync((char *)memory + done, memory, more, cudaMemcpyDeviceToDevice,
                                 tess__cuda_stream(kernel)));
        done += more;
    }
    return TESS_OK;
}

/* Fills what the trial reads, otherwise in every round. */
static enum tess_status trial_draw_operands(struct tess_kernel *kernel,
                                            const struct cuda_trial *trial, uint64_t round)
{
    for (size_t i = 0; i < MATMUL_TRIAL_READ; i++)
        TESS_TRY(trial_fill(kernel, 16 * round + i + 1, trial->read[i].type, trial->read[i].bytes,
                            trial->read[i].memory));
    return TESS_OK;
}

/* Where the operands lie in `base`; with base NULL it only measures. */
static struct cuda_trial trial_layout(const struct cuda_product *p, void *base, size_t *bytes_out)
{
    const size_t d = (size_t)(p->m * p->n) * matmul_type_bytes(p->d);
    struct cuda_room room = {.base = base};
    struct cuda_trial trial = {
        .memory = base,
        .d_bytes = d,
        .read = {{p->a, (size_t)(p->m * p->k) * matmul_type_bytes(p->a), NULL},
                 {p->b, (size_t)(p->k * p->n) * matmul_type_bytes(p->b), NULL},
                 {p->d, (size_t)(p->m > p->n ? p->m : p->n) * matmul_type_bytes(p->d), NULL},
                 {p->d, d, NULL},
                 {CUDA_R_32F, sizeof(float), NULL}},
    };
    for (size_t i = 0; i < MATMUL_TRIAL_READ; i++)
        trial.read[i].memory = tess__cuda_take(&room, trial.read[i].bytes);
    trial.operands = (struct cuda_operands){.a = trial.read[0].memory,
                                            .b = trial.read[1].memory,
                                            .bias = trial.read[2].memory,
                                            .aux = trial.read[3].memory,
                                            .scale_a = trial.read[4].memory,
                                            .scale_b = trial.read[4].memory,
                                            .d = tess__cuda_take(&room, d)};
    trial.other = tess__cuda_take(&room, d);
    trial.other_aux = tess__cuda_take(&room, d);
    trial.differ = tess__cuda_take(&room, sizeof(uint32_t));
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
    TESS_TRY(
        tess__cuda_drain(kernel, "making room to try a product")); /* cudaMalloc may wait, too */
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* else the next launch would report it */
        return TESS_ERR_MEMORY;
    }
    TESS_TRY(tess__cuda_status(error, "cudaMalloc"));
    struct cuda_trial trial = trial_layout(p, memory, &bytes);
    enum tess_status status = trial_draw_operands(kernel, &trial, 0);
    if (status != TESS_OK)
        tess__cuda_trial_close(&trial);
    else
        *trial_out = trial;
    return status;
}

void tess__cuda_trial_close(struct cuda_trial *trial)
{
    if (tess__cuda_hangs())
        return;
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
    TESS_TRY(tess__cuda_read(kernel, sizeof(differ), trial->differ, &differ));
    *same_out = differ == 0;
    return TESS_OK;
}

static enum tess_status trial_compare_once(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                           struct cuda_trial *trial)
{
    struct cuda_rows leaf_by_leaf = *rows;
    struct cuda_operands by_leaves = trial->operands;
    leaf_by_leaf.all = NULL;
    leaf_by_leaf.bias_first = false; /* what the sums begin with is no matter of their order */
    by_leaves.d = trial->other;
    if (trial_writes_aux(&rows->all->product))
        by_leaves.aux = trial->other_aux;
    bool same = false, runs;
    TESS_TRY(tess__cuda_plan_try(kernel, rows->all, &trial->operands, &runs));
    rows->all->alike = CUDA_ALIKE_NO;
    if (!runs)
        return TESS_OK;
    TESS_TRY(tess__cuda_rows_run(kernel, &leaf_by_leaf, &by_leaves));
    TESS_TRY(trial_same(kernel, &rows->all->product, trial, &same));
    if (same)
        rows->all->alike = CUDA_ALIKE_YES;
    return TESS_OK;
}

/* A few results may agree by chance in another order of their sums: small products are compared
 * several times. */
static int64_t trial_rounds(const struct cuda_product *p)
{
    const int64_t wanted = p->m * p->n < TRIAL_RESULTS ? TRIAL_RESULTS / (p->m * p->n) : 1;
    return wanted < TRIAL_ROUNDS ? wanted : TRIAL_ROUNDS;
}

static enum tess_status trial_compare(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                      struct cuda_trial *trial)
{
    const int64_t rounds = trial_rounds(&rows->all->product);
    TESS_TRY(trial_compare_once(kernel, rows, trial));
    for (int64_t round = 1; round < rounds && rows->all->alike == CUDA_ALIKE_YES; round++) {
        TESS_TRY(trial_draw_operands(kernel, trial, (uint64_t)round));
        TESS_TRY(trial_compare_once(kernel, rows, trial));
    }
    return TESS_OK;
}

enum tess_status tess__cuda_plan_compare(struct tess_kernel *kernel, const struct cuda_rows *rows)
{
    struct cuda_plan *all = rows->all;
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
    status = trial_compare(kernel, rows, &trial);
    tess__cuda_trial_close(&trial);
    return status;
}

static enum tess_status trial_agrees(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     struct cuda_plan *plain, struct cuda_trial *trial,
                                     bool *agrees_out)
{
    struct cuda_operands other = trial->operands;
    other.d = trial->other;
    *agrees_out = true;
    for (int64_t round = 0; round < trial_rounds(&plan->product) && *agrees_out; round++) {
        if (round > 0)
            TESS_TRY(trial_draw_operands(kernel, trial, (uint64_t)round));
        TESS_TRY(tess__cuda_plan_try(kernel, plan, &trial->operands, agrees_out));
        if (!*agrees_out)
            return TESS_OK;
        TESS_TRY(tess__cuda_plan_run(kernel, plain, &other));
        TESS_TRY(trial_same(kernel, &plain->product, trial, agrees_out));
    }
    return TESS_OK;
}

enum tess_status tess__cuda_plan_agrees(struct tess_kernel *kernel, struct cuda_plan *plan,
                                        struct cuda_plan *plain, bool *agrees_out)
{
    struct cuda_trial trial;
    enum tess_status status = tess__cuda_trial_open(kernel, plan, &trial);
    if (status == TESS_ERR_MEMORY) {
        /* Ranks must not differ by what memory they have: the same algorithm is believed. */
        tess_log(TESS_LOG_WARN, "no device memory to try a product with its bias gradient");
        *agrees_out = true;
        return TESS_OK;
    }
    TESS_TRY(status);
    status = trial_agrees(kernel, plan, plain, &trial, agrees_out);
    tess__cuda_trial_close(&trial);
    return status;
}
