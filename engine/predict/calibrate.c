/* Measuring a processor; see calibrate.h. What the measurements say is calibrate_fit.c. */
#include "predict/calibrate.h"

#include "base/clock.h"
#include "comm/world.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLES_MAX 96
#define BYTES_MAX   ((size_t)96 << 20)
#define PASS_MAX    ((int64_t)(BYTES_MAX / 3) / (int64_t)sizeof(float))

/* A measurement is the least of several: what disturbs only adds. */
#define REPEATS_MAX 200

struct calibrate {
    struct tess_kernel *kernel;
    char *memory;  /* [BYTES_MAX] */
    double each_s; /* for one measurement */
    struct tess_sample sample[SAMPLES_MAX];
    int32_t count;
    struct tess_op op;
    void *scratch, *packed;
};

/* ---- one operation --------------------------------------------------------------------------- */

static float *calibrate_at(const struct calibrate *calibrate, size_t bytes)
{
    return (float *)(void *)(calibrate->memory + bytes);
}

static void calibrate_free(struct calibrate *calibrate)
{
    if (calibrate->op.kernel != NULL)
        calibrate->kernel->ops->op_close(&calibrate->op);
    calibrate->op.kernel = NULL;
    free(calibrate->scratch);
    free(calibrate->packed);
    calibrate->scratch = calibrate->packed = NULL;
}

static enum tess_status calibrate_open(struct calibrate *calibrate, const struct tess_op_desc *desc)
{
    struct tess_op_needs needs = {0};
    TESS_TRY(calibrate->kernel->ops->op_needs(desc, &needs));
    calibrate->scratch = aligned_alloc(64, tess_round_up(needs.scratch_bytes + 64, 64));
    calibrate->packed = aligned_alloc(64, tess_round_up(needs.packed_bytes + 64, 64));
    if (calibrate->scratch == NULL || calibrate->packed == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure an operation");
    calibrate->op = (struct tess_op){.desc = *desc,
                                     .kernel = calibrate->kernel,
                                     .scratch = calibrate->scratch,
                                     .packed = calibrate->packed,
                                     .weight_token = 1};
    return calibrate->kernel->ops->op_open(&calibrate->op);
}

/* Runs the sample's operation once. */
static enum tess_status calibrate_once(struct calibrate *calibrate,
                                       const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    const size_t third = BYTES_MAX / 3 / 64 * 64;
    float *a = calibrate_at(calibrate, 0), *b = calibrate_at(calibrate, third);
    float *c = calibrate_at(calibrate, 2 * third);
    switch (sample->kind) {
    case TESS_SAMPLE_PASS:
        tess_add(calibrate->kernel, TESS_F32, (int64_t)(sample->bytes / 12), a, b, c);
        return TESS_OK;
    case TESS_SAMPLE_MATH:
        tess_gelu_forward(calibrate->kernel, TESS_F32, (int64_t)sample->size[0], a, c);
        return TESS_OK;
    case TESS_SAMPLE_PRODUCT:
        return tess_linear_forward(op, a, b, NULL, c);
    case TESS_SAMPLE_FORWARD:
        return tess_attention_forward(op, a, a + op->desc.in * op->desc.heads,
                                      a + 2 * op->desc.in * op->desc.heads, c, b);
    default: /* what lies there are finite numbers, which is all that time depends on */
        return tess_attention_backward(op, a, a + op->desc.in * op->desc.heads,
                                       a + 2 * op->desc.in * op->desc.heads, c, c, b, b + third / 8,
                                       b + third / 8 + op->desc.in * op->desc.heads,
                                       b + third / 8 + 2 * op->desc.in * op->desc.heads);
    }
}

static enum tess_status calibrate_measure(struct calibrate *calibrate, struct tess_sample sample)
{
    const double first_s = tess_clock_s(), end_s = first_s + calibrate->each_s;
    if (calibrate->count == SAMPLES_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "more than %d measurements", SAMPLES_MAX);
    TESS_TRY(calibrate_once(calibrate, &sample)); /* warms caches */
    sample.seconds = tess_clock_s() - first_s;
    for (int i = 0; i < REPEATS_MAX && tess_clock_s() < end_s; i++) {
        const double begin_s = tess_clock_s();
        TESS_TRY(calibrate_once(calibrate, &sample));
        const double seconds = tess_clock_s() - begin_s;
        sample.seconds = seconds < sample.seconds ? seconds : sample.seconds;
    }
    sample.seconds = sample.seconds > 1e-9 ? sample.seconds : 1e-9;
    calibrate->sample[calibrate->count++] = sample;
    return calibrate->kernel->ops->failed(calibrate->kernel);
}

/* ---- what is measured ------------------------------------------------------------------------ */

static enum tess_status calibrate_passes(struct calibrate *calibrate)
{
    static const int64_t count[] = {16,     256,    2048,    8192,    16384,   65536,
                                    262144, 524288, 1048576, 4194304, PASS_MAX};
    for (size_t i = 0; i < sizeof(count) / sizeof(*count); i++)
        TESS_TRY(
            calibrate_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_PASS,
                                                              .bytes = 12.0 * (double)count[i]}));
    for (int64_t n = 4096; n <= 65536; n *= 4)
        TESS_TRY(calibrate_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_MATH,
                                                                   .size = {(double)n},
                                                                   .bytes = 8.0 * (double)n}));
    return TESS_OK;
}

static enum tess_status calibrate_product(struct calibrate *calibrate, enum tess_dtype dtype,
                                          int64_t m, int64_t n, int64_t k)
{
    const struct tess_op_desc desc = {
        .kind = TESS_OP_LINEAR, .dtype = dtype, .rows = m, .leaf_rows = m, .in = k, .out = n};
    const double bytes = (double)(m * k + k * n + m * n) * (double)tess_dtype_bytes(dtype);
    char why[160];
    if (!calibrate->kernel->ops->supports(&desc, why, sizeof(why)))
        return TESS_OK;
    enum tess_status status = calibrate_open(calibrate, &desc);
    if (status == TESS_OK)
        status = calibrate_measure(
            calibrate,
            (struct tess_sample){.kind = TESS_SAMPLE_PRODUCT,
                                 .type = dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16,
                                 .size = {(double)m, (double)n, (double)k},
                                 .bytes = bytes});
    calibrate_free(calibrate);
    return status;
}

/* Rows, columns and length of sums from small to large, one after the other and together. */
static enum tess_status calibrate_products(struct calibrate *calibrate)
{
    static const int64_t size[][3] = {
        {512, 512, 512}, {1024, 768, 768}, {256, 1024, 256}, {16, 512, 512}, {64, 512, 512},
        {512, 16, 512},  {512, 64, 512},   {512, 512, 16},   {512, 512, 64}, {64, 64, 64},
        {32, 128, 128},  {128, 256, 784},  {128, 10, 1024},  {16, 16, 16},
    };
    for (size_t i = 0; i < sizeof(size) / sizeof(*size); i++)
        TESS_TRY(calibrate_product(calibrate, TESS_F32, size[i][0], size[i][1], size[i][2]));
    for (size_t i = 0; i < 4; i++)
        TESS_TRY(calibrate_product(calibrate, TESS_BF16, size[i][0], size[i][1], size[i][2]));
    return TESS_OK;
}

/* Four sequences, four heads of 64. */
static enum tess_status calibrate_attention(struct calibrate *calibrate, int64_t length)
{
    const int64_t rows = 4, heads = 4, width = 64;
    const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                      .dtype = TESS_F32,
                                      .rows = rows,
                                      .leaf_rows = 1,
                                      .in = width,
                                      .length = length,
                                      .heads = (int32_t)heads,
                                      .kv_heads = (int32_t)heads,
                                      .q_stride = 3 * width * heads,
                                      .kv_stride = 3 * width * heads};
    const double square = (double)(rows * length * length * width * heads);
    const double arrays = 4.0 * (double)(rows * length * width * heads) * sizeof(float);
    enum tess_status status = calibrate_open(calibrate, &desc);
    if (status == TESS_OK)
        status =
            calibrate_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_FORWARD,
                                                              .size = {2 * square, (double)length},
                                                              .bytes = arrays});
    if (status == TESS_OK)
        status =
            calibrate_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_BACKWARD,
                                                              .size = {5 * square, (double)length},
                                                              .bytes = 2 * arrays});
    calibrate_free(calibrate);
    return status;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct calibrate_rank {
    struct tess_world *world;
    int32_t rank;
    double seconds[2]; /* of the smallest all-gather, and of a large one */
    enum tess_status status;
};

#define GATHER_BYTES ((size_t)4 << 20) /* of each rank */

#define GATHERS 20

static enum tess_status rank_gather(struct tess_comm *comm, char *memory, size_t bytes,
                                    double *least_s)
{
    *least_s = 1e30;
    for (int i = 0; i < GATHERS; i++) {
        TESS_TRY(tess_comm_barrier(comm));
        const double begin_s = tess_clock_s();
        TESS_TRY(tess_comm_all_gather(comm, memory + (size_t)comm->rank * bytes, memory, bytes,
                                      TESS_U8, NULL));
        const double seconds = tess_clock_s() - begin_s;
        *least_s = seconds < *least_s ? seconds : *least_s;
    }
    return TESS_OK;
}

static void *rank_run(void *context)
{
    struct calibrate_rank *mine = context;
    struct tess_comm *comm = NULL;
    void *memory;
    mine->status = tess_comm_local_open(mine->world, mine->rank, TESS_ORDER_CANONICAL, 30, &comm);
    if (mine->status == TESS_OK)
        mine->status = tess_comm_alloc(comm, 2 * GATHER_BYTES, &memory);
    if (mine->status == TESS_OK)
        mine->status = rank_gather(comm, memory, 64, &mine->seconds[0]);
    if (mine->status == TESS_OK)
        mine->status = rank_gather(comm, memory, GATHER_BYTES, &mine->seconds[1]);
    if (mine->status != TESS_OK && comm != NULL)
        tess_comm_abort(comm, "a measurement failed");
    tess_comm_close(comm);
    return NULL;
}

/* Two ranks on two cores. */
static enum tess_status calibrate_ranks(struct tess_profile *profile)
{
    struct calibrate_rank rank[2];
    struct tess_world *world;
    pthread_t thread[2];
    int32_t started = 0;
    TESS_TRY(tess_world_open(2, TESS_RANKS_THREADS, &world));
    for (; started < 2; started++) {
        rank[started] = (struct calibrate_rank){.world = world, .rank = started};
        if (pthread_create(&thread[started], NULL, rank_run, &rank[started]) != 0)
            break;
    }
    for (int32_t i = 0; i < started; i++)
        (void)pthread_join(thread[i], NULL);
    tess_world_close(world);
    if (started < 2)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot start two threads");
    TESS_TRY(rank[0].status);
    TESS_TRY(rank[1].status);
    const double passed_s = rank[0].seconds[1] - rank[0].seconds[0];
    profile->call_s = rank[0].seconds[0];
    if (passed_s > 0)
        profile->copy_bytes_per_s = (double)GATHER_BYTES / passed_s;
    return TESS_OK;
}

/* ---- the profile ----------------------------------------------------------------------------- */

static enum tess_status calibrate_all(struct calibrate *calibrate)
{
    for (size_t i = 0; i < BYTES_MAX / sizeof(float); i++)
        calibrate_at(calibrate, 0)[i] = 0.01f;
    TESS_TRY(calibrate_passes(calibrate));
    TESS_TRY(calibrate_products(calibrate));
    for (int64_t length = 32; length <= 512; length *= 4)
        TESS_TRY(calibrate_attention(calibrate, length));
    return TESS_OK;
}

/* Where the search for a profile begins. */
static struct tess_profile calibrate_begin(const struct tess_kernel_ops *kernel, const char *name)
{
    struct tess_profile profile = {.measured = true,
                                   .start_s = 1e-7,
                                   .bytes_per_s = 5e9,
                                   .cache_bytes = 1e6,
                                   .cache_bytes_per_s = 1e10,
                                   .element_s = 1e-9,
                                   .units = 1,
                                   .tile_m = 1,
                                   .tile_n = 1,
                                   .half_m = 4,
                                   .half_n = 4,
                                   .half_k = 16,
                                   .attention_forward = 0.5,
                                   .attention_backward = 0.5,
                                   .attention_half = 32};
    snprintf(profile.name, sizeof(profile.name), "%s", name);
    snprintf(profile.kernel, sizeof(profile.kernel), "%s", kernel->name);
    snprintf(profile.source, sizeof(profile.source), "measured with kernel %s", kernel->name);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    profile.cores = cores > 0 ? (double)cores : 1;
    /* memory_bytes stays 0: ranks share the host's, and how many there are is not known here. */
    profile.flops_per_s[TESS_PEAK_F32] = profile.flops_per_s[TESS_PEAK_16] = 1e10;
    profile.efficiency[TESS_PEAK_F32] = profile.efficiency[TESS_PEAK_16] = 1;
    return profile;
}

/* Measurements without those of the ranks: their kinds and shapes. */
#define CALIBRATE_COUNT 38

enum tess_status tess_profile_calibrate(const struct tess_kernel_ops *kernel, const char *name,
                                        double limit_s, struct tess_profile *profile_out)
{
    struct calibrate *calibrate = calloc(1, sizeof(*calibrate));
    if (calibrate != NULL)
        calibrate->memory = aligned_alloc(4096, BYTES_MAX);
    enum tess_status status = calibrate != NULL && calibrate->memory != NULL
                                  ? tess_kernel_open(kernel, 1, &calibrate->kernel)
                                  : tess_fail(TESS_ERR_MEMORY, "no memory to measure in");
    if (status == TESS_OK && (calibrate->kernel->queue != NULL || kernel->far_memory))
        status =
            tess_fail(TESS_ERR_UNSUPPORTED,
                      "kernel %s computes on a device: only processors are measured", kernel->name);
    if (status == TESS_OK) {
        calibrate->each_s = 0.8 * limit_s / CALIBRATE_COUNT;
        status = calibrate_all(calibrate);
    }
    struct tess_profile profile = calibrate_begin(kernel, name);
    if (status == TESS_OK)
        tess_profile_fit(&profile, calibrate->sample, calibrate->count);
    if (status == TESS_OK && profile.cores > 1)
        status = calibrate_ranks(&profile);
    if (calibrate != NULL) {
        tess_kernel_close(calibrate->kernel);
        free(calibrate->memory);
    }
    free(calibrate);
    if (status == TESS_OK)
        status = tess_profile_check(&profile);
    if (status == TESS_OK)
        *profile_out = profile;
    return status;
}
