/* Measuring one operation; see calibrate_op.h. */
#include "predict/calibrate_op.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/pages.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REPEATS_MAX 400

/* Each is measured so often, however long it takes, and until the processor has worked for the
 * sample's time; where other programs take it, up to so many times as long. */
#define REPEATS_LEAST 3
#define PATIENCE      4

/* Longer ones are interrupted now and then: of those the processor's time counts, whose clock is
 * too slow for shorter ones. */
#define LONG_S 50e-6

void *calibrate_pages(size_t bytes)
{
    void *pages = MAP_FAILED;
    const int fd = tess_pages_file();
    if (fd >= 0 && tess_file_resize(fd, bytes) == 0)
        pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (pages == MAP_FAILED)
        return NULL;
    (void)madvise(pages, bytes, MADV_HUGEPAGE); /* a hint */
    return pages;
}

void calibrate_pages_free(void *pages, size_t bytes)
{
    (void)munmap(pages, bytes);
}

float *calibrate_part(const struct calibrate *calibrate, int number)
{
    const size_t bytes = BYTES_MAX / CALIBRATE_PARTS / 64 * 64;
    return (float *)(void *)(calibrate->memory + (size_t)number * bytes);
}

/* Four of these, or two and what belongs to a product, are more than a second cache keeps, and less
 * than the last. What is larger is at three places: a step with such arrays comes back to one when
 * the last cache has it no more. */
#define FAR_BYTES  ((size_t)2 << 20)
#define FAR_PLACES 3

float *calibrate_far(const struct calibrate *calibrate, int number, double bytes)
{
    const size_t each = tess_round_up((size_t)bytes + 64, 64);
    const size_t few = BYTES_MAX / CALIBRATE_PARTS / each, many = FAR_BYTES / each;
    const size_t places = many > FAR_PLACES ? many : few < FAR_PLACES ? few : FAR_PLACES;
    const size_t place = places > 1 ? (size_t)calibrate->turn % places : 0;
    return calibrate_part(calibrate, number) + place * each / sizeof(float);
}

int calibrate_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double calibrate_middle(double *value, int count)
{
    const int quarter = count / 4;
    double sum = 0;
    qsort(value, (size_t)count, sizeof(*value), calibrate_order);
    for (int i = quarter; i < count - quarter; i++)
        sum += value[i];
    return sum / (count - 2 * quarter);
}

double calibrate_usual(const struct calibrate_rounds *rounds)
{
    struct calibrate_rounds sorted = *rounds;
    return calibrate_middle(sorted.value, sorted.count);
}

double calibrate_apart(const struct calibrate_rounds *rounds)
{
    struct calibrate_rounds sorted = *rounds;
    const double usual = calibrate_middle(sorted.value, sorted.count);
    return sorted.value[0] > 0 ? usual / sorted.value[0] - 1 : 0;
}

/* The first is what operations are measured with: calibrate_far. */
const double calibrate_mib[CALIBRATE_SIZES] = {6, 9, 12, 17, 24, 34, 48, 68, 96, 192, 384};

double calibrate_scale(double cores)
{
    return fmax(1, cores / 16);
}

double calibrate_byte_s(struct tess_kernel *kernel, float *memory, double bytes)
{
    double seconds[CALIBRATE_REPEATS];
    const int64_t count = (int64_t)(bytes / 12);
    for (int i = -1; i < CALIBRATE_REPEATS; i++) { /* the first one fetches it */
        const double begin_s = tess_clock_s();
        tess_add(kernel, TESS_F32, count, memory, memory + count, memory + 2 * count);
        seconds[i > 0 ? i : 0] = tess_clock_s() - begin_s;
    }
    return calibrate_middle(seconds, CALIBRATE_REPEATS) / bytes;
}

/*
 * Wide multiplications lower a core's clock for as long as most of its time goes to them, as in a
 * step, and what runs between them is slower by that too. So what is no product is measured with
 * products before it, for so many times as long; a clock takes some milliseconds to follow.
 */
#define HEAVY_TIMES  8.0
#define HEAVY_MOST_S 1e-2
#define HEAVY_ROWS   64
#define HEAVY_WIDTH  256
#define HEAVY_FROM   ((size_t)16 << 20)

enum tess_status calibrate_heavy_open(struct calibrate *calibrate)
{
    const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                      .dtype = TESS_F32,
                                      .rows = HEAVY_ROWS,
                                      .leaf_rows = HEAVY_ROWS,
                                      .in = HEAVY_WIDTH,
                                      .out = HEAVY_WIDTH};
    struct tess_op_needs needs = {0};
    TESS_TRY(calibrate->kernel->ops->op_needs(&desc, &needs));
    const size_t scratch = tess_round_up(needs.scratch_bytes + 64, 64);
    char *memory = aligned_alloc(64, scratch + tess_round_up(needs.packed_bytes + 64, 64));
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure an operation");
    calibrate->heavy_memory = memory;
    calibrate->heavy = (struct tess_op){.desc = desc,
                                        .kernel = calibrate->kernel,
                                        .scratch = memory,
                                        .packed = memory + scratch,
                                        .weight_token = 1};
    return calibrate->kernel->ops->op_open(&calibrate->heavy);
}

void calibrate_heavy_close(struct calibrate *calibrate)
{
    if (calibrate->heavy_memory != NULL)
        calibrate->kernel->ops->op_close(&calibrate->heavy);
    free(calibrate->heavy_memory);
    calibrate->heavy_memory = NULL;
}

void calibrate_heavy_run(struct calibrate *calibrate, float *memory)
{
    const float *w = memory + HEAVY_ROWS * HEAVY_WIDTH, *bias = w + HEAVY_WIDTH * HEAVY_WIDTH;
    calibrate->heavy.weight_token++;
    (void)tess_linear_forward(&calibrate->heavy, memory, w, bias,
                              memory + CALIBRATE_HEAVY_BYTES / 2 / sizeof(float));
}

static void measure_heavy(struct calibrate *calibrate, double seconds)
{
    float *memory = calibrate_part(calibrate, 3) + HEAVY_FROM / sizeof(float);
    const double begin_s = tess_clock_s();
    while (tess_clock_s() - begin_s < seconds)
        calibrate_heavy_run(calibrate, memory);
}

static bool measure_is_heavy(const struct tess_sample *sample)
{
    return sample->kind == TESS_SAMPLE_PRODUCT && sample->which < TESS_PRODUCT_ATTENTION_FORWARD;
}

/* A step comes to an operation with caches that others have filled, and written to. */
#define OTHERS_COUNT 131072 /* elements of each of three arrays, more than a second cache keeps */
#define OTHERS_FROM  ((size_t)12 << 20)

static void measure_settle(struct calibrate *calibrate)
{
    float *others = calibrate_part(calibrate, 3) + OTHERS_FROM / sizeof(float);
    tess_add(calibrate->kernel, TESS_F32, OTHERS_COUNT, others, others + OTHERS_COUNT,
             others + 2 * (ptrdiff_t)OTHERS_COUNT);
    for (int i = 0; i < CALIBRATE_PARTS; i++) {
        volatile char *part = (volatile char *)calibrate_part(calibrate, i);
        for (size_t at = 0; at < (size_t)calibrate->near_bytes[i]; at += 64)
            part[at] = part[at];
    }
}

static enum tess_status measure_once(struct calibrate *calibrate, const struct tess_sample *sample,
                                     calibrate_run *run, double *seconds_out)
{
    calibrate->turn++;
    measure_settle(calibrate);
    const double processor_s = tess_clock_thread_s(), begin_s = tess_clock_s();
    TESS_TRY(run(calibrate, sample));
    *seconds_out = tess_clock_s() - begin_s;
    if (*seconds_out > LONG_S)
        *seconds_out = fmin(*seconds_out, tess_clock_thread_s() - processor_s);
    return TESS_OK;
}

enum tess_status calibrate_measure(struct calibrate *calibrate, struct tess_sample sample,
                                   calibrate_run *run)
{
    double seconds, sum_s = 0;
    int count = 0;
    if (calibrate->count == SAMPLES_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "more than %d measurements", SAMPLES_MAX);
    TESS_TRY(measure_once(calibrate, &sample, run, &seconds)); /* meets its scratch first */
    const double processor_s = tess_clock_thread_s(), begin_s = tess_clock_s();
    for (; count < REPEATS_MAX; count++) {
        if (count >= REPEATS_LEAST && (tess_clock_thread_s() - processor_s > calibrate->each_s ||
                                       tess_clock_s() - begin_s > PATIENCE * calibrate->each_s))
            break;
        if (!measure_is_heavy(&sample))
            measure_heavy(calibrate, fmin(HEAVY_TIMES * seconds, HEAVY_MOST_S));
        TESS_TRY(measure_once(calibrate, &sample, run, &seconds));
        sum_s += seconds;
    }
    memset(calibrate->near_bytes, 0, sizeof(calibrate->near_bytes));
    calibrate_add(&calibrate->seconds[calibrate->count], fmax(sum_s / count, 1e-9));
    calibrate->sample[calibrate->count++] = sample;
    return calibrate->kernel->ops->failed(calibrate->kernel);
}

static enum tess_status op_open(struct calibrate *calibrate, const struct tess_op_desc *desc)
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

static void op_free(struct calibrate *calibrate)
{
    if (calibrate->op.kernel != NULL)
        calibrate->kernel->ops->op_close(&calibrate->op);
    calibrate->op.kernel = NULL;
    free(calibrate->scratch);
    free(calibrate->packed);
    calibrate->scratch = calibrate->packed = NULL;
}

enum tess_status calibrate_op(struct calibrate *calibrate, const struct tess_op_desc *desc,
                              struct tess_sample sample, calibrate_run *run)
{
    char why[160];
    if (!calibrate->kernel->ops->supports(desc, why, sizeof(why))) {
        memset(calibrate->near_bytes, 0, sizeof(calibrate->near_bytes));
        return TESS_OK;
    }
    enum tess_status status = op_open(calibrate, desc);
    if (status == TESS_OK)
        status = calibrate_measure(calibrate, sample, run);
    op_free(calibrate);
    return status;
}
