/* Measuring a processor; see calibrate.h. What the measurements say is calibrate_fit.c. */
#include "predict/calibrate.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "kernel_open.h"
#include "predict/calibrate_op.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PASS_MAX ((int64_t)3 << 20)

/* ---- passes ---------------------------------------------------------------------------------- */

static enum tess_status pass_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    tess_add(calibrate->kernel, TESS_F32, (int64_t)(sample->bytes / 12),
             calibrate_part(calibrate, 0), calibrate_part(calibrate, 1),
             calibrate_part(calibrate, 2));
    return TESS_OK;
}

static enum tess_status calibrate_passes(struct calibrate *calibrate)
{
    static const int64_t count[] = {16,     256,    2048,    8192,    16384,   65536,
                                    262144, 524288, 1048576, 2097152, PASS_MAX};
    for (size_t i = 0; i < sizeof(count) / sizeof(*count); i++) {
        for (int part = 0; part < 3; part++)
            calibrate->near_bytes[part] = 4.0 * (double)count[i];
        TESS_TRY(calibrate_measure(
            calibrate,
            (struct tess_sample){.kind = TESS_SAMPLE_PASS, .bytes = 12.0 * (double)count[i]},
            pass_run));
    }
    return TESS_OK;
}

/* ---- a shared cache -------------------------------------------------------------------------- */

#define OLD_SHORT_S   0.04
#define OLD_LONG_S    0.16
#define OLD_AGE_MAX_S 0.3 /* two ages do not distinguish more from a straight line */

/* What rounds have measured of the last cache. */
struct calibrate_cache {
    struct calibrate_rounds now, short_old, long_old; /* seconds of a pass */
    struct calibrate_rounds byte[CALIBRATE_SIZES];    /* of a byte, on one core */
};

/* A pass over what was touched so long ago, while the processor was busy. */
static double old_pass_s(struct calibrate *calibrate, double age_s)
{
    const struct tess_sample sample = {.bytes = 12 * TESS_PROFILE_FAR};
    double seconds[CALIBRATE_REPEATS];
    for (int i = 0; i < CALIBRATE_REPEATS; i++) {
        for (const double from_s = tess_clock_s(); tess_clock_s() - from_s < age_s;)
            ;
        const double begin_s = tess_clock_s();
        (void)pass_run(calibrate, &sample);
        seconds[i] = tess_clock_s() - begin_s;
    }
    return calibrate_middle(seconds, CALIBRATE_REPEATS);
}

/* From two ages: of the longer one, four times the other, x = exp(-short / age) solves
 * (1 - x^4) / (1 - x) = 1 + x + x^2 + x^3. */
static void old_take(const struct calibrate_cache *cache, struct tess_profile *profile)
{
    const double now_s = calibrate_usual(&cache->now), bytes = 12 * TESS_PROFILE_FAR;
    const double short_s = fmax(0, calibrate_usual(&cache->short_old) - now_s);
    const double long_s = fmax(0, calibrate_usual(&cache->long_old) - now_s);
    double low = 0.01, high = exp(-OLD_SHORT_S / OLD_AGE_MAX_S);
    if (!(long_s > 0))
        return;
    for (int i = 0; i < 40; i++) {
        const double x = (low + high) / 2;
        const bool above = (1 + x + x * x + x * x * x) * short_s > long_s;
        *(above ? &high : &low) = x;
    }
    profile->old_age_s = -OLD_SHORT_S / log(low);
    profile->old_byte_s = long_s / (1 - exp(-OLD_LONG_S / profile->old_age_s)) / bytes;
}

static enum tess_status cache_measure(struct calibrate *calibrate, struct calibrate_cache *cache)
{
    const size_t most = (size_t)(calibrate_mib[CALIBRATE_SIZES - 1] * (1 << 20));
    float *memory = calibrate_pages(most);
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory of %zu MiB to measure its passes", most >> 20);
    memset(memory, 0, most);
    for (int i = 0; i < CALIBRATE_SIZES; i++)
        calibrate_add(&cache->byte[i],
                      calibrate_byte_s(calibrate->kernel, memory, calibrate_mib[i] * (1 << 20)));
    calibrate_pages_free(memory, most);
    calibrate_add(&cache->now, old_pass_s(calibrate, 0));
    calibrate_add(&cache->short_old, old_pass_s(calibrate, OLD_SHORT_S));
    calibrate_add(&cache->long_old, old_pass_s(calibrate, OLD_LONG_S));
    return TESS_OK;
}

/* How far a profile's costs of lost bytes are from those that were measured, of `scale` times as
 * many bytes as calibrate_mib says. */
static double share_error(const struct tess_profile_cache *cache, const double *more_s,
                          double scale)
{
    double error = 0;
    for (int i = 0; i < CALIBRATE_SIZES; i++) {
        const double bytes = scale * calibrate_mib[i] * (1 << 20);
        const double off = tess_profile_lost_s(cache, bytes) - more_s[i];
        error += off * off;
    }
    return error;
}

/* What the cache keeps all and nothing of: of all pairs of sizes the one that comes nearest. */
static void share_fit(struct tess_profile_cache *cache, const double *more_s, double scale)
{
    const double from = scale * calibrate_mib[0] * (1 << 20);
    const double to = scale * calibrate_mib[CALIBRATE_SIZES - 1] * (1 << 20);
    struct tess_profile_cache tried = *cache;
    double least = INFINITY;
    for (tried.share_bytes = from; tried.share_bytes < to; tried.share_bytes *= 1.1)
        for (tried.gone_bytes = 1.1 * tried.share_bytes; tried.gone_bytes < to;
             tried.gone_bytes *= 1.1) {
            const double error = share_error(&tried, more_s, scale);
            if (error >= least)
                continue;
            least = error;
            cache->share_bytes = tried.share_bytes;
            cache->gone_bytes = tried.gone_bytes;
        }
}

/* near_s: of a byte where operations were measured. */
static void share_take(const struct calibrate_rounds *byte, double near_s, double scale,
                       struct tess_profile_cache *cache)
{
    double more_s[CALIBRATE_SIZES];
    for (int i = 0; i < CALIBRATE_SIZES; i++)
        more_s[i] = fmax(0, calibrate_usual(&byte[i]) - near_s);
    cache->lost_byte_s = (more_s[CALIBRATE_SIZES - 2] + more_s[CALIBRATE_SIZES - 1]) / 2;
    share_fit(cache, more_s, scale);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Of a layer: its input, weights and output; weights as their gradients. */
struct product_bytes {
    double x, w, y;
};

static struct product_bytes product_bytes(const struct tess_op_desc *desc)
{
    const bool conv = desc->kind == TESS_OP_CONV2D;
    const double size = (double)tess_dtype_bytes(desc->dtype);
    const double pixels = conv ? (double)(desc->height * desc->width) : 1;
    const double side =
        conv ? (double)tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding)
             : 1;
    return (struct product_bytes){.x = size * (double)(desc->rows * desc->in) * pixels,
                                  .w = (double)(desc->in * desc->out) *
                                       (conv ? desc->window * desc->window : 1) * 4,
                                  .y = size * (double)(desc->rows * desc->out) * side * side};
}

/* Forward reads what was just written, and so does backward dy. Weights and their gradients were
 * last touched a step ago, and what forward keeps is read much later. Results lie where no operand
 * is: as numbers of another type they might be slow. */
static enum tess_status product_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    const struct tess_op_desc *desc = &op->desc;
    const struct product_bytes bytes = product_bytes(desc);
    float *x = calibrate_part(calibrate, 0), *y = calibrate_part(calibrate, 1);
    float *w = calibrate_far(calibrate, 2, bytes.w), *bias = calibrate_part(calibrate, 3);
    float *x_kept = calibrate_far(calibrate, 4, bytes.x);
    float *y_kept = calibrate_far(calibrate, 5, bytes.y),
          *dw = calibrate_far(calibrate, 6, bytes.w);
    float *dx = calibrate_part(calibrate, 7), *dbias = dx + PASS_MAX - desc->out;
    switch ((enum tess_product)sample->which) {
    case TESS_PRODUCT_FORWARD:
        return tess_linear_forward(op, x, w, bias, y_kept);
    case TESS_PRODUCT_DATA:
        return tess_linear_backward_data(op, y, w, dx);
    case TESS_PRODUCT_WEIGHT:
        return tess_linear_backward_weight(op, x_kept, y, dw, dbias);
    case TESS_PRODUCT_CONV_FORWARD:
        return tess_conv2d_forward(op, x, w, bias, y_kept);
    case TESS_PRODUCT_CONV_DATA:
        return tess_conv2d_backward_data(op, y, w, dx);
    default:
        return tess_conv2d_backward_weight(op, x_kept, y, dw, dbias);
    }
}

/* m, n and k of the layer's forward product, as predictions count them for each direction. */
static enum tess_status product_measure(struct calibrate *calibrate,
                                        const struct tess_op_desc *desc, int which, double m,
                                        double n, double k)
{
    const int way = which % TESS_PRODUCT_CONV_FORWARD;
    struct tess_sample sample = {.kind = TESS_SAMPLE_PRODUCT,
                                 .type = desc->dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16,
                                 .which = which,
                                 .size = {m, n, k}};
    if (way == TESS_PRODUCT_DATA)
        memcpy(sample.size, (double[3]){m, k, n}, sizeof(sample.size));
    else if (way == TESS_PRODUCT_WEIGHT)
        memcpy(sample.size, (double[3]){n, k, m}, sizeof(sample.size));
    sample.bytes = (m * k + k * n + m * n) * (double)tess_dtype_bytes(desc->dtype);
    if (desc->kind == TESS_OP_CONV2D) /* windows overlap */
        sample.bytes = 0;
    const struct product_bytes bytes = product_bytes(desc);
    calibrate->near_bytes[way == TESS_PRODUCT_FORWARD ? 0 : 1] =
        way == TESS_PRODUCT_FORWARD ? bytes.x : bytes.y;
    return calibrate_op(calibrate, desc, sample, product_run);
}

/* How many of the sizes are measured: of 16 bits only some where they are multiplied in f32, which
 * takes long. The first product of each type decides, once for all rounds. */
static size_t calibrate_sizes(const struct calibrate *calibrate, enum tess_dtype dtype, size_t all,
                              size_t some)
{
    return dtype == TESS_F32 || calibrate->fast_16 ? all : some;
}

/* After a product of the first size: is it faster in 16 bits? */
static void calibrate_compare(struct calibrate *calibrate, enum tess_dtype dtype)
{
    const struct calibrate_rounds *product = &calibrate->seconds[calibrate->count - 1];
    if (product->count != 1) /* not the first round */
        return;
    if (dtype == TESS_F32)
        calibrate->first_s = product->value[0];
    else
        calibrate->fast_16 = product->value[0] < calibrate->first_s;
}

/* So many rows of layers. */
static enum tess_status calibrate_linear(struct calibrate *calibrate, enum tess_dtype dtype)
{
    static const int64_t size[][3] = {
        {1024, 512, 128}, {128, 1024, 1024}, {16, 512, 512},    {64, 128, 4096}, {1024, 128, 128},
        {1024, 128, 512}, {128, 128, 128},   {64, 64, 64},      {256, 512, 512}, {64, 128, 128},
        {16, 128, 128},   {256, 128, 128},   {16, 512, 128},    {64, 512, 128},  {256, 512, 128},
        {16, 128, 512},   {64, 128, 512},    {256, 128, 512},   {64, 512, 512},  {1024, 512, 512},
        {16, 1024, 1024}, {64, 1024, 1024},  {256, 1024, 1024}, {64, 4096, 128}, {256, 128, 4096},
        {16, 16, 512},    {64, 16, 512},     {256, 16, 512},    {1024, 16, 512}, {8, 64, 64},
        {4096, 256, 64},  {64, 1024, 256},   {2048, 256, 256},
    };
    const size_t all = sizeof(size) / sizeof(*size);
    for (size_t i = 0; i < calibrate_sizes(calibrate, dtype, all, 10); i++)
        for (int which = TESS_PRODUCT_FORWARD; which <= TESS_PRODUCT_WEIGHT; which++) {
            const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                              .dtype = dtype,
                                              .rows = size[i][0],
                                              .leaf_rows = size[i][0],
                                              .in = size[i][2],
                                              .out = size[i][1],
                                              .input_grad = true};
            TESS_TRY(product_measure(calibrate, &desc, which, (double)size[i][0],
                                     (double)size[i][1], (double)size[i][2]));
            if (i == 0 && which == TESS_PRODUCT_FORWARD)
                calibrate_compare(calibrate, dtype);
        }
    return TESS_OK;
}

/* Images, channels in and out, pixels of a side, window, stride, padding. */
static enum tess_status calibrate_conv(struct calibrate *calibrate, enum tess_dtype dtype)
{
    static const int64_t size[][7] = {
        {8, 32, 64, 28, 3, 1, 1},  {32, 1, 32, 28, 3, 1, 1},  {8, 16, 16, 32, 3, 1, 1},
        {8, 64, 64, 14, 3, 1, 1},  {8, 1, 32, 28, 3, 1, 0},   {32, 32, 64, 30, 3, 1, 0},
        {8, 64, 128, 16, 1, 2, 0}, {32, 16, 32, 16, 3, 2, 1}, {8, 32, 32, 8, 3, 1, 1},
        {8, 3, 16, 32, 3, 1, 1},   {32, 64, 64, 14, 3, 1, 1}, {2, 32, 64, 28, 3, 1, 0},
        {32, 32, 32, 28, 3, 1, 1}, {8, 16, 64, 28, 3, 1, 1},  {32, 16, 64, 28, 3, 1, 1},
        {8, 1, 16, 28, 3, 1, 0},
    };
    const size_t all = sizeof(size) / sizeof(*size);
    for (size_t i = 0; i < calibrate_sizes(calibrate, dtype, all, 6); i++)
        for (int which = TESS_PRODUCT_CONV_FORWARD; which <= TESS_PRODUCT_CONV_WEIGHT; which++) {
            const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                              .dtype = dtype,
                                              .rows = size[i][0],
                                              .leaf_rows = size[i][0],
                                              .in = size[i][1],
                                              .out = size[i][2],
                                              .height = size[i][3],
                                              .width = size[i][3],
                                              .window = (int32_t)size[i][4],
                                              .stride = (int32_t)size[i][5],
                                              .padding = (int32_t)size[i][6],
                                              .input_grad = true,
                                              .conv = TESS_CONV_F32_AUTO}; /* as by default */
            const int64_t rows = tess_profile_conv_rows(&desc, (enum tess_product)which);
            TESS_TRY(product_measure(calibrate, &desc, which, (double)rows, (double)desc.out,
                                     (double)(desc.in * desc.window * desc.window)));
        }
    return TESS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What lies there are small numbers, which is all that time depends on. */
static enum tess_status attention_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    const int64_t size = (int64_t)tess_dtype_bytes(op->desc.dtype);
    const int64_t next = op->desc.in * op->desc.heads * size;
    const double bytes = (double)(op->desc.rows * op->desc.length * next);
    const bool forward = sample->which == TESS_PRODUCT_ATTENTION_FORWARD;
    char *q =
        (char *)(forward ? calibrate_part(calibrate, 0) : calibrate_far(calibrate, 0, 3 * bytes));
    char *dq = (char *)calibrate_part(calibrate, 7);
    float *y = calibrate_far(calibrate, 5, bytes), *dy = calibrate_part(calibrate, 1);
    float *lse = calibrate_part(calibrate, 6);
    if (forward)
        return tess_attention_forward(op, q, q + next, q + 2 * next, y, lse);
    return tess_attention_backward(op, q, q + next, q + 2 * next, y, dy, lse, dq, dq + next,
                                   dq + 2 * next);
}

/* Sequences, heads, width of a head, positions. */
static enum tess_status calibrate_attention(struct calibrate *calibrate, enum tess_dtype dtype)
{
    static const int64_t size[][4] = {
        {4, 8, 16, 128}, {4, 4, 32, 128},  {4, 4, 64, 64},  {2, 4, 64, 256},  {4, 8, 16, 32},
        {8, 4, 16, 64},  {2, 4, 16, 256},  {4, 4, 32, 32},  {2, 4, 32, 512},  {4, 4, 64, 128},
        {2, 2, 64, 512}, {2, 2, 128, 256}, {2, 8, 16, 128}, {16, 8, 32, 128},
    };
    const size_t all = sizeof(size) / sizeof(*size);
    for (size_t i = 0; i < calibrate_sizes(calibrate, dtype, all, 4); i++)
        for (int which = TESS_PRODUCT_ATTENTION_FORWARD; which <= TESS_PRODUCT_ATTENTION_BACKWARD;
             which++) {
            const int64_t rows = size[i][0], heads = size[i][1], width = size[i][2];
            const int64_t length = size[i][3];
            const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                              .dtype = dtype,
                                              .rows = rows,
                                              .leaf_rows = 1,
                                              .in = width,
                                              .length = length,
                                              .heads = (int32_t)heads,
                                              .kv_heads = (int32_t)heads,
                                              .q_stride = 3 * width * heads,
                                              .kv_stride = 3 * width * heads};
            const struct tess_sample sample = {
                .kind = TESS_SAMPLE_PRODUCT,
                .type = dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16,
                .which = which,
                .size = {(double)(rows * heads * length), (double)length, (double)width}};
            const double bytes =
                (double)(rows * length * heads * width) * (double)tess_dtype_bytes(dtype);
            if (which == TESS_PRODUCT_ATTENTION_FORWARD)
                calibrate->near_bytes[0] = 3 * bytes;
            else
                calibrate->near_bytes[1] = bytes;
            TESS_TRY(calibrate_op(calibrate, &desc, sample, attention_run));
        }
    return TESS_OK;
}

/* ---- the profile ----------------------------------------------------------------------------- */

/* Numbers from 0.008 to 0.016, and so is each half of them in bf16. */
static void calibrate_fill(struct calibrate *calibrate)
{
    for (size_t i = 0; i < BYTES_MAX / sizeof(uint16_t); i++) {
        const uint16_t small = (uint16_t)(0x3c00 | ((i * 2654435761u) >> 13 & 0x7f));
        memcpy(calibrate->memory + i * sizeof(small), &small, sizeof(small));
    }
}

static enum tess_status calibrate_type(struct calibrate *calibrate, enum tess_dtype dtype)
{
    calibrate_fill(calibrate);
    TESS_TRY(calibrate_linear(calibrate, dtype));
    TESS_TRY(calibrate_conv(calibrate, dtype));
    TESS_TRY(calibrate_attention(calibrate, dtype));
    return calibrate_works(calibrate, dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16);
}

static enum tess_status calibrate_all(struct calibrate *calibrate)
{
    for (int32_t i = 0; i < CALIBRATE_IDS; i++)
        calibrate->id[i] = i * 37 % 128;
    calibrate_fill(calibrate);
    TESS_TRY(calibrate_passes(calibrate));
    TESS_TRY(calibrate_type(calibrate, TESS_F32));
    return calibrate_type(calibrate, TESS_BF16);
}

/* Processes that do the same on the other cores, as ranks and threads of a step do: cores that are
 * busy at once share a clock, a last cache and memory. As many as there is memory for. */
#define OTHERS_MAX   1023
#define OTHERS_SHARE 0.5 /* of the machine's memory, at most */

struct calibrate_others {
    pid_t pid[OTHERS_MAX];
    int count;
};

static int others_most(double cores)
{
    char group[64];
    const double room = OTHERS_SHARE * tess_memory(group) / (double)BYTES_MAX;
    return (int)fmin(OTHERS_MAX, fmin(cores, room) - 1);
}

/* A process's own: others that are started have none of it. */
static enum tess_status calibrate_memory(struct calibrate *calibrate)
{
    calibrate->memory = calibrate_pages(BYTES_MAX);
    if (calibrate->memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure in");
    (void)madvise(calibrate->memory, BYTES_MAX, MADV_DONTFORK);
    return TESS_OK;
}

static void others_start(struct calibrate *calibrate, double cores, struct calibrate_others *others)
{
    const int most = others_most(cores);
    others->count = 0;
    while (others->count < most) {
        const pid_t pid = fork();
        if (pid < 0)
            return;
        if (pid > 0) {
            others->pid[others->count++] = pid;
            continue;
        }
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (enum tess_status status = calibrate_memory(calibrate); status == TESS_OK;) {
            memset(calibrate->seconds, 0, sizeof(calibrate->seconds));
            calibrate->count = 0;
            status = calibrate_all(calibrate);
        }
        _exit(1);
    }
}

static void others_end(const struct calibrate_others *others)
{
    for (int i = 0; i < others->count; i++) {
        (void)kill(others->pid[i], SIGKILL);
        while (waitpid(others->pid[i], NULL, 0) < 0 && errno == EINTR)
            ;
    }
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
    profile.cores = tess_cores();
    /* memory_bytes stays 0: ranks share the host's, and how many there are is not known here. */
    profile.flops_per_s[TESS_PEAK_F32] = profile.flops_per_s[TESS_PEAK_16] = 1e10;
    profile.efficiency[TESS_PEAK_F32] = profile.efficiency[TESS_PEAK_16] = 1;
    return profile;
}

/* About the measurements of a round without those of the cache and the ranks, and with all sizes in
 * 16 bits by how much more; seconds of the cache and the ranks. */
#define CALIBRATE_COUNT  320
#define CALIBRATE_MORE   1.35
#define CALIBRATE_REST_S 3.0
#define CALIBRATE_OVER   1.1 /* of the seconds that were asked for */

/* Rounds for so long, and the seconds of one measurement. */
static int calibrate_rounds(double limit_s, double *each_s_out)
{
    int rounds = CALIBRATE_ROUNDS;
    while (rounds > 1 && limit_s < 1.5 * CALIBRATE_REST_S * rounds)
        rounds--;
    const double rest_s = CALIBRATE_REST_S * (rounds + 1) / 2;
    *each_s_out = fmax(0.3 * limit_s, limit_s - rest_s) / rounds / CALIBRATE_COUNT;
    return rounds;
}

/* Is there time for one more round that takes as long as those before? On a machine that is busy or
 * slow a round takes longer than was planned. */
static bool calibrate_has_time(double limit_s, double begin_s, int rounds)
{
    const double now_s = tess_clock_s() - begin_s;
    return rounds == 0 || now_s * (rounds + 1) / rounds < CALIBRATE_OVER * limit_s;
}

/* Everything once; of the cache and the ranks every other time. */
static enum tess_status calibrate_round(struct calibrate *calibrate, int round,
                                        struct calibrate_cache *cache, double cores,
                                        struct calibrate_ranks *ranks)
{
    struct calibrate_others others;
    calibrate->count = 0;
    others_start(calibrate, cores, &others);
    const enum tess_status status = calibrate_all(calibrate);
    others_end(&others);
    TESS_TRY(status);
    if (round % 2 != 0)
        return TESS_OK;
    TESS_TRY(cache_measure(calibrate, cache));
    return cores > 1 ? calibrate_ranks_measure(calibrate, cores, ranks) : TESS_OK;
}

/* What the rounds of all samples say, and how far they are apart: the median of all. */
static double calibrate_take_samples(struct calibrate *calibrate)
{
    double apart[SAMPLES_MAX];
    for (int32_t i = 0; i < calibrate->count; i++) {
        calibrate->sample[i].seconds = calibrate_usual(&calibrate->seconds[i]);
        apart[i] = calibrate_apart(&calibrate->seconds[i]);
    }
    qsort(apart, (size_t)calibrate->count, sizeof(*apart), calibrate_order);
    return apart[calibrate->count / 2];
}

static void calibrate_take(struct calibrate *calibrate, const struct calibrate_cache *cache,
                           const struct calibrate_ranks *ranks, int rounds,
                           struct tess_profile *profile)
{
    double apart[CALIBRATE_SETTINGS] = {0};
    const double samples_apart = calibrate_take_samples(calibrate);
    const size_t used = strlen(profile->source);
    const double near_s = calibrate_usual(&cache->byte[0]);
    share_take(cache->byte, near_s, 1, &profile->cache_one);
    if (ranks->byte[0].count > 0)
        share_take(ranks->byte, near_s, calibrate_scale(profile->cores), &profile->cache_all);
    old_take(cache, profile);
    tess_profile_fit(profile, calibrate->sample, calibrate->count);
    if (profile->cores > 1)
        calibrate_ranks_take(ranks, profile, apart);
    if (rounds > 1)
        snprintf(
            profile->source + used, sizeof(profile->source) - used,
            " in %d rounds, apart by %.0f %% (operations), %.0f %% (passes over 48 MiB), %.0f, "
            "%.0f and %.0f %% (calls in memory, over sockets, of ranks that take turns)",
            rounds, 100 * samples_apart, 100 * calibrate_apart(&cache->byte[6]),
            100 * apart[CALIBRATE_LOCAL], 100 * apart[CALIBRATE_NET], 100 * apart[CALIBRATE_TURNS]);
}

/* Other programs make all take longer: a prediction by that is too long, once they have ended. */
static void calibrate_say_beside(const struct calibrate_beside *from, struct tess_profile *profile)
{
    const struct calibrate_beside now = calibrate_beside_now();
    const double share = calibrate_beside_share(from, &now);
    const size_t used = strlen(profile->source);
    if (share < CALIBRATE_BESIDE)
        return;
    snprintf(profile->source + used, sizeof(profile->source) - used,
             "; other programs took %.0f %% of the cores", 100 * share);
    tess_log(TESS_LOG_WARN,
             "other programs took %.0f %% of the cores while they were measured, so steps without "
             "them are predicted too long: end them and run --calibrate again",
             100 * share);
}

static enum tess_status calibrate_open(const struct tess_kernel_ops *kernel,
                                       struct calibrate *calibrate)
{
    TESS_TRY(calibrate_memory(calibrate));
    calibrate->id = calloc(CALIBRATE_IDS, sizeof(*calibrate->id));
    if (calibrate->id == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure in");
    TESS_TRY(tess_kernel_open(kernel, 1, &calibrate->kernel));
    if (calibrate->kernel->queue != NULL || kernel->far_memory)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "kernel %s computes on a device: only processors are measured", kernel->name);
    return calibrate_heavy_open(calibrate);
}

enum tess_status tess_profile_calibrate(const struct tess_kernel_ops *kernel, const char *name,
                                        double limit_s, struct tess_profile *profile_out)
{
    struct calibrate *calibrate = calloc(1, sizeof(*calibrate));
    struct calibrate_cache cache = {.now.count = 0};
    struct calibrate_ranks ranks = {.call[0][0].count = 0};
    struct tess_profile profile = calibrate_begin(kernel, name);
    enum tess_status status = calibrate != NULL
                                  ? calibrate_open(kernel, calibrate)
                                  : tess_fail(TESS_ERR_MEMORY, "no memory to measure");
    double each_s;
    const struct calibrate_beside beside = calibrate_beside_now();
    const double begin_s = tess_clock_s();
    const int most = calibrate_rounds(limit_s, &each_s);
    int rounds = 0;
    while (rounds < most && status == TESS_OK && calibrate_has_time(limit_s, begin_s, rounds)) {
        calibrate->each_s = calibrate->fast_16 ? each_s / CALIBRATE_MORE : each_s;
        status = calibrate_round(calibrate, rounds++, &cache, profile.cores, &ranks);
    }
    if (status == TESS_OK)
        calibrate_take(calibrate, &cache, &ranks, rounds, &profile);
    if (status == TESS_OK)
        calibrate_say_beside(&beside, &profile);
    if (calibrate != NULL) {
        calibrate_heavy_close(calibrate);
        tess_kernel_close(calibrate->kernel);
        if (calibrate->memory != NULL)
            calibrate_pages_free(calibrate->memory, BYTES_MAX);
        free(calibrate->id);
    }
    free(calibrate);
    if (status == TESS_OK)
        status = tess_profile_check(&profile);
    if (status == TESS_OK)
        *profile_out = profile;
    return status;
}
