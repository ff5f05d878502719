/* Measuring one operation; see calibrate_op.h. */
#include "predict/calibrate_op.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS_MAX 400

/* Each is measured so often, however long it takes, and until the processor has worked for the
 * sample's time; where other programs take it, up to so many times as long. */
#define REPEATS_LEAST 5
#define PATIENCE      4

/* Longer ones are interrupted now and then: of those the processor's time counts, whose clock is
 * too slow for shorter ones. */
#define LONG_S 50e-6

float *calibrate_part(const struct calibrate *calibrate, int number)
{
    const size_t bytes = BYTES_MAX / CALIBRATE_PARTS / 64 * 64;
    return (float *)(void *)(calibrate->memory + (size_t)number * bytes);
}

/* Four of these, or two and what belongs to a product, are more than a second cache keeps, and less
 * than the last. */
#define FAR_BYTES ((size_t)2 << 20)

float *calibrate_far(const struct calibrate *calibrate, int number, double bytes)
{
    const size_t each = tess_round_up((size_t)bytes + 64, 64), places = FAR_BYTES / each;
    const size_t place = places > 1 ? (size_t)calibrate->turn % places : 0;
    return calibrate_part(calibrate, number) + place * each / sizeof(float);
}

int calibrate_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void rounds_sorted(const struct calibrate_rounds *rounds, double *value)
{
    memcpy(value, rounds->value, sizeof(rounds->value));
    qsort(value, (size_t)rounds->count, sizeof(*value), calibrate_order);
}

double calibrate_low(const struct calibrate_rounds *rounds)
{
    double value[CALIBRATE_ROUNDS];
    rounds_sorted(rounds, value);
    return value[rounds->count > 1 ? 1 : 0];
}

double calibrate_median(const struct calibrate_rounds *rounds)
{
    double value[CALIBRATE_ROUNDS];
    rounds_sorted(rounds, value);
    return (value[(rounds->count - 1) / 2] + value[rounds->count / 2]) / 2;
}

double calibrate_apart(const struct calibrate_rounds *rounds)
{
    double value[CALIBRATE_ROUNDS];
    rounds_sorted(rounds, value);
    return value[0] > 0 ? calibrate_median(rounds) / value[0] - 1 : 0;
}

/* The first is what operations are measured with: calibrate_far. */
const double calibrate_mib[CALIBRATE_SIZES] = {6, 9, 12, 17, 24, 34, 48, 68, 96, 192, 384};

double calibrate_byte_s(struct tess_kernel *kernel, float *memory, double bytes)
{
    double seconds[CALIBRATE_REPEATS];
    const int64_t count = (int64_t)(bytes / 12);
    for (int i = -1; i < CALIBRATE_REPEATS; i++) { /* the first one fetches it */
        const double begin_s = tess_clock_s();
        tess_add(kernel, TESS_F32, count, memory, memory + count, memory + 2 * count);
        seconds[i > 0 ? i : 0] = tess_clock_s() - begin_s;
    }
    qsort(seconds, CALIBRATE_REPEATS, sizeof(*seconds), calibrate_order);
    return seconds[CALIBRATE_REPEATS / 2] / bytes;
}

static enum tess_status measure_once(struct calibrate *calibrate, const struct tess_sample *sample,
                                     calibrate_run *run, double *seconds_out)
{
    calibrate->turn++;
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
    const double processor_s = tess_clock_thread_s(), begin_s = tess_clock_s();
    double seconds[REPEATS_MAX];
    int count = 0;
    if (calibrate->count == SAMPLES_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "more than %d measurements", SAMPLES_MAX);
    for (; count < REPEATS_MAX; count++) {
        if (count >= REPEATS_LEAST && (tess_clock_thread_s() - processor_s > calibrate->each_s ||
                                       tess_clock_s() - begin_s > PATIENCE * calibrate->each_s))
            break;
        TESS_TRY(measure_once(calibrate, &sample, run, &seconds[count]));
    }
    qsort(seconds, (size_t)count, sizeof(*seconds), calibrate_order);
    calibrate_add(&calibrate->seconds[calibrate->count], fmax(seconds[count / 2], 1e-9));
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
    if (!calibrate->kernel->ops->supports(desc, why, sizeof(why)))
        return TESS_OK;
    enum tess_status status = op_open(calibrate, desc);
    if (status == TESS_OK)
        status = calibrate_measure(calibrate, sample, run);
    op_free(calibrate);
    return status;
}
