/*
 * Operands of linear products in 8 bits, as their values: what narrowing and widening again leaves
 * of an operand, in f32. Scales are powers of two, so taking them out again is exact, and the
 * products of ref are those that 8-bit hardware adds up.
 */
#include "ref/fp8.h"

#include "ref/slots.h"
#include "ref/stage.h"
#include "tessera/check.h"

#include <stdlib.h>

#define FP8_HISTORY 16

struct fp8_history {
    float greatest[FP8_HISTORY];
    int64_t calls;
    int32_t exponent; /* of the call that began last */
};

struct fp8_data {
    struct fp8_history history[REF_FP8_OPERAND_COUNT];
};

static enum tess_fp8_format fp8_format(enum ref_fp8_operand operand)
{
    return operand == REF_FP8_DY || operand == REF_FP8_DY_WEIGHT ? TESS_FP8_E5M2 : TESS_FP8_E4M3;
}

enum tess_status tess__ref_fp8_open(struct tess_op *op)
{
    op->data = calloc(1, sizeof(struct fp8_data));
    if (op->data == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the scales of a linear layer");
    return TESS_OK;
}

void tess__ref_fp8_close(struct tess_op *op)
{
    free(op->data);
    op->data = NULL;
}

/* The greatest finite |x|. */
static float fp8_greatest(const float *x, int64_t count, float greatest)
{
    for (int64_t i = 0; i < count; i++) {
        const float magnitude = tess__f32_of_bits(tess__bits_of_f32(x[i]) & 0x7fffffffu);
        if (magnitude > greatest && tess__bits_of_f32(magnitude) < 0x7f800000u)
            greatest = magnitude;
    }
    return greatest;
}

void tess__ref_fp8_begin(struct tess_op *op, enum ref_fp8_operand operand, const void *x,
                         int64_t count)
{
    struct fp8_data *data = op->data;
    struct fp8_history *history = &data->history[operand];
    if (op->desc.fp8 != TESS_FP8_HISTORY)
        return;
    float own = 0, greatest = 0, piece[256];
    for (int64_t first = 0; first < count; first += 256) {
        const int64_t n = count - first < 256 ? count - first : 256;
        own = fp8_greatest(ref_read(op->desc.dtype, x, first, n, piece), n, own);
    }
    for (int64_t i = 0; i < FP8_HISTORY && i < history->calls; i++)
        greatest = fp8_greatest(&history->greatest[i], 1, greatest);
    if (history->calls == 0)
        greatest = own; /* nothing else is known */
    history->exponent = tess__fp8_exponent(fp8_format(operand), greatest);
    history->greatest[history->calls % FP8_HISTORY] = own;
    history->calls++;
}

void tess__ref_fp8_narrow(struct tess_op *op, enum ref_fp8_operand operand, float *x, int64_t count)
{
    const struct fp8_data *data = op->data;
    const enum tess_fp8_format format = fp8_format(operand);
    const bool remembered = op->desc.fp8 == TESS_FP8_HISTORY && operand != REF_FP8_W;
    const int32_t exponent = remembered ? data->history[operand].exponent
                                        : tess__fp8_exponent(format, fp8_greatest(x, count, 0));
    const float scale = tess__f32_of_bits((uint32_t)(127 + exponent) << 23);
    const float inverse = tess__f32_of_bits((uint32_t)(127 - exponent) << 23);
    for (int64_t i = 0; i < count; i++) {
        /* What is finite stays so: it saturates, though the scale may take it beyond f32. */
        const bool finite = (tess__bits_of_f32(x[i]) & 0x7fffffffu) < 0x7f800000u;
        float scaled = x[i] * scale;
        if (finite && !(scaled < 0x1p100f))
            scaled = 0x1p100f;
        if (finite && !(scaled > -0x1p100f))
            scaled = -0x1p100f;
        x[i] = tess__f32_of_fp8(format, tess__fp8_of_f32(format, scaled)) * inverse;
    }
}
