/*
 * Trial runs of a plan over random operands when it is made: does it run, does a product over all
 * leaves give each leaf the bits that it has alone (tessera/kernel.h, "Rows and leaves"), one over
 * rows each row those that it has alone (tess__cuda_matmul_same_rows), and one with an epilogue
 * those of the product without?
 */
#include "cuda/host.h"
#include "cuda/products/matmul_plan.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that are drawn; repeated over the operands. A prime, so that no two rows or leaves begin
 * at the same number. */
#define TRIAL_NUMBERS 65521

/* Results that are compared at least, where this many rounds give them. */
#define TRIAL_RESULTS 4096
#define TRIAL_ROUNDS  64

/* One random number of [-1, 1), the generator's top bits (Knuth's MMIX constants). */
static float trial_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int64_t)(*state >> 40) - (1 << 23)) * 0x1p-23f;
}

/* In a type of 4 or 2 bytes. */
static void trial_put(cudaDataType_t type, float value, unsigned char *to)
{
    const uint16_t half = type == CUDA_R_16BF ? tess__bf16_of_f32(value) : tess__f16_of_f32(value);
    if (matmul_type_bytes(type) == sizeof(value))
        memcpy(to, &value, sizeof(value));
    else
        memcpy(to, &half, sizeof(half));
}

/* A random number in `type`. For e4m3 and e5m2 the bits are a sign and a magnitude below 1: all of
 * those are numbers. */
static void trial_draw(uint64_t *state, cudaDataType_t type, unsigned char *to)
{
    const float value = trial_next(state);
    if (type == CUDA_R_8F_E4M3) /* 1 is 0x38 */
        *to = (unsigned char)((*state >> 56 & 0x80) | (*state >> 40) % 0x38);
    else if (type == CUDA_R_8F_E5M2) /* 1 is 0x3c */
        *to = (unsigned char)((*state >> 56 & 0x80) | (*state >> 40) % 0x3c);
    else
        trial_put(type, value, to);
}

/* What is in the first `done` bytes of memory, again and again: doubled until all is full. */
static enum tess_status trial_repeat(struct tess_kernel *kernel, size_t done, size_t bytes,
                                     void *memory)
{
    while (done < bytes) {
        const size_t more = done < bytes - done ? done : bytes - done;
        CUDA_TRY(cudaMemcpyAsync((char *)memory + done, memory, more, cudaMemcpyDeviceToDevice,
                                 tess__cuda_stream(kernel)));
        done += more;
    }
    return TESS_OK;
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
    return trial_repeat(kernel, done, bytes, memory); /* the period stays a prime */
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

/* ---- rows alone ------------------------------------------------------------------------------ */

/* Rows that are computed alone: the first, the last and some between, in tiles of all usual sizes.
 */
#define TRIAL_ROWS   9
#define TRIAL_CANCEL 3 /* rounds whose sums cancel */

static int64_t trial_row_count(int64_t n)
{
    return n < TRIAL_ROWS ? n : TRIAL_ROWS;
}

static int64_t trial_row(int64_t n, int64_t i)
{
    return i == 0 ? 0 : (n - 1) * i / (trial_row_count(n) - 1);
}

/* `bytes` of rows of k numbers: random ones of several magnitudes, and in the second half the same
 * again, or their negatives. */
static enum tess_status trial_fill_halves(struct tess_kernel *kernel, uint64_t seed, int64_t k,
                                          cudaDataType_t type, bool negative, size_t bytes,
                                          void *memory)
{
    const size_t width = matmul_type_bytes(type), row = (size_t)k * width;
    unsigned char *numbers = calloc((size_t)k, width);
    if (numbers == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu bytes of random numbers", row);
    uint64_t state = seed;
    for (int64_t i = 0; i < k / 2; i++) {
        unsigned char *low = numbers + (size_t)i * width;
        unsigned char *high = low + (size_t)(k / 2) * width;
        const float value = trial_next(&state);
        trial_put(type, ldexpf(value, -(int)(state >> 24 & 7)), low);
        memcpy(high, low, width);
        high[width - 1] ^= negative ? 0x80 : 0; /* the sign, of little-endian numbers */
    }
    const enum tess_status status = tess__cuda_write(kernel, row, numbers, memory);
    free(numbers);
    TESS_TRY(status);
    return trial_repeat(kernel, row, bytes, memory);
}

/*
 * Operands whose products cancel: what is left is the rounding of the sums, which shows their order
 * even where results have 8 bits. Sums of random numbers differ in their last bits of f32, which
 * one result of bf16 in ten thousand shows.
 */
static enum tess_status trial_cancel(struct tess_kernel *kernel, const struct cuda_product *p,
                                     const struct cuda_trial *trial, uint64_t round)
{
    TESS_TRY(trial_fill_halves(kernel, 2 * round + 1, p->k, p->a, false, trial->read[0].bytes,
                               trial->read[0].memory));
    TESS_TRY(trial_fill_halves(kernel, 2 * round + 2, p->k, p->b, true, trial->read[1].bytes,
                               trial->read[1].memory));
    CUDA_TRY(
        cudaMemsetAsync(trial->read[2].memory, 0, trial->read[2].bytes, tess__cuda_stream(kernel)));
    return TESS_OK;
}

/* Some rows of the plan's results, brought together at their beginning, and in `other` those of
 * each alone. */
static enum tess_status trial_steady_once(struct tess_kernel *kernel, struct cuda_plan *plan,
                                          struct cuda_plan *one, struct cuda_trial *trial,
                                          bool *steady_out)
{
    const struct cuda_product *p = &plan->product;
    const size_t b = (size_t)p->k * matmul_type_bytes(p->b);
    const size_t d = (size_t)p->m * matmul_type_bytes(p->d);
    const int64_t rows = trial_row_count(p->n);
    cudaStream_t stream = tess__cuda_stream(kernel);
    struct cuda_trial some = *trial;
    some.d_bytes = (size_t)rows * d;
    TESS_TRY(tess__cuda_plan_try(kernel, plan, &trial->operands, steady_out));
    for (int64_t i = 0; i < rows && *steady_out; i++) {
        const size_t row = (size_t)trial_row(p->n, i), to = (size_t)i * d;
        struct cuda_operands o = trial->operands;
        char *const all[] = {o.d, o.aux};
        for (int a = 0; a < (trial_writes_aux(p) ? 2 : 1) && row > (size_t)i; a++)
            CUDA_TRY(cudaMemcpyAsync(all[a] + to, all[a] + row * d, d, cudaMemcpyDeviceToDevice,
                                     stream));
        o.b = (const char *)o.b + row * b;
        o.d = (char *)trial->other + to;
        o.aux = (char *)trial->other_aux + to;
        TESS_TRY(tess__cuda_plan_try(kernel, one, &o, steady_out));
    }
    return *steady_out ? trial_same(kernel, p, &some, steady_out) : TESS_OK;
}

enum tess_status tess__cuda_plan_steady(struct tess_kernel *kernel, struct cuda_plan *plan,
                                        struct cuda_plan *one, struct cuda_trial *trial,
                                        bool *steady_out)
{
    *steady_out = true;
    for (uint64_t round = 0; round <= TRIAL_CANCEL && *steady_out; round++) {
        if (round > 0)
            TESS_TRY(trial_cancel(kernel, &plan->product, trial, round));
        TESS_TRY(trial_steady_once(kernel, plan, one, trial, steady_out));
    }
    return trial_draw_operands(kernel, trial, 0); /* another candidate finds what this one did */
}

enum tess_status tess__cuda_plan_compare_rows(struct tess_kernel *kernel, struct cuda_plan *plan,
                                              struct cuda_plan *one)
{
    if (plan->alike != CUDA_ALIKE_UNKNOWN)
        return TESS_OK;
    struct cuda_trial trial;
    bool steady = false;
    enum tess_status status = tess__cuda_trial_open(kernel, plan, &trial);
    if (status == TESS_ERR_MEMORY) {
        /* Ranks must not differ by what memory they have: the same algorithm is believed. */
        tess_log(TESS_LOG_WARN,
                 "no device memory to compare a product over %lld rows with one of them",
                 (long long)plan->product.n);
        plan->alike = CUDA_ALIKE_YES;
        return TESS_OK;
    }
    TESS_TRY(status);
    status = tess__cuda_plan_steady(kernel, plan, one, &trial, &steady);
    tess__cuda_trial_close(&trial);
    plan->alike = steady ? CUDA_ALIKE_YES : CUDA_ALIKE_NO;
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
