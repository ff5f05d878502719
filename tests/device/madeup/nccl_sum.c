/* Sums, maxima and minima of all types that NCCL adds here, rounded to the type at every step. */
#include "base/half.h"
#include "device/madeup/nccl_madeup.h"

size_t madeup_dtype_bytes(ncclDataType_t dtype)
{
    switch (dtype) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclFloat32:
    case ncclInt32:
        return 4;
    case ncclFloat64:
    case ncclInt64:
        return 8;
    default:
        madeup_fail("NCCL's type %d is not modelled", (int)dtype);
    }
}

#define SUM_PICK(op, a, b)                                                                         \
    ((op) == ncclSum   ? (a) + (b)                                                                 \
     : (op) == ncclMax ? ((a) > (b) ? (a) : (b))                                                   \
                       : ((a) < (b) ? (a) : (b)))
#define SUM_LOOP(type, word)                                                                       \
    static void sum_##word(ncclRedOp_t op, size_t count, const type *source, type *target)         \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            target[i] = (type)SUM_PICK(op, target[i], source[i]);                                  \
    }
SUM_LOOP(float, f32)
SUM_LOOP(double, f64)
SUM_LOOP(int32_t, i32)
SUM_LOOP(int64_t, i64)
SUM_LOOP(uint8_t, u8)

#define SUM_LOOP_HALF(word)                                                                        \
    static void sum_##word(ncclRedOp_t op, size_t count, const uint16_t *source, uint16_t *target) \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            const float a = tess__f32_of_##word(target[i]), b = tess__f32_of_##word(source[i]);    \
            target[i] = tess__##word##_of_f32(SUM_PICK(op, a, b));                                 \
        }                                                                                          \
    }
SUM_LOOP_HALF(bf16)
SUM_LOOP_HALF(f16)

void madeup_sum(ncclDataType_t dtype, ncclRedOp_t op, size_t count, const void *source,
                void *target)
{
    if (op != ncclSum && op != ncclMax && op != ncclMin)
        madeup_fail("NCCL's operator %d is not modelled", (int)op);
    switch (dtype) {
    case ncclFloat32:
        sum_f32(op, count, source, target);
        return;
    case ncclFloat64:
        sum_f64(op, count, source, target);
        return;
    case ncclFloat16:
        sum_f16(op, count, source, target);
        return;
    case ncclBfloat16:
        sum_bf16(op, count, source, target);
        return;
    case ncclInt32:
        sum_i32(op, count, source, target);
        return;
    case ncclInt64:
        sum_i64(op, count, source, target);
        return;
    case ncclUint8:
        sum_u8(op, count, source, target);
        return;
    default:
        madeup_fail("NCCL's type %d is not modelled", (int)dtype);
    }
}
