/* Element types and shapes. Arrays are row-major, last index fastest; images are channels last. */
#ifndef TESSERA_TENSOR_H
#define TESSERA_TENSOR_H

#include "tessera/linkage.h"

#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

/* X(name, bytes, text) */
#define TESS_DTYPE_LIST(X)                                                                         \
    X(TESS_F32, 4, "f32")                                                                          \
    X(TESS_BF16, 2, "bf16")                                                                        \
    X(TESS_F16, 2, "f16")                                                                          \
    X(TESS_F64, 8, "f64")                                                                          \
    X(TESS_I32, 4, "i32")                                                                          \
    X(TESS_I64, 8, "i64")                                                                          \
    X(TESS_U8, 1, "u8")

enum tess_dtype {
#define TESS_DTYPE_ENUM(name, bytes, text) name,
    TESS_DTYPE_LIST(TESS_DTYPE_ENUM)
#undef TESS_DTYPE_ENUM
        TESS_DTYPE_COUNT
};

size_t tess_dtype_bytes(enum tess_dtype dtype);
const char *tess_dtype_name(enum tess_dtype dtype);

/* How a backend may compute convolutions in f32 where it has several ways; others ignore it. */
enum tess_conv_f32 {
    TESS_CONV_F32_DIRECT,   /* sums of products */
    TESS_CONV_F32_WINOGRAD, /* 3 x 3 of stride 1 by Winograd's F(4x4, 3x3), wherever it can */
    TESS_CONV_F32_AUTO, /* the same where it is faster and its bound is below the backend's limit */
};

#define TESS_DIM_MAX 4

struct tess_shape {
    int32_t rank; /* 0 .. TESS_DIM_MAX; 0 is one element */
    int64_t dim[TESS_DIM_MAX];
};

/* Elements of a shape, its dims >= 0; INT64_MAX when that many cannot be counted. */
int64_t tess_shape_count(const struct tess_shape *shape);

/* Shapes as values, for declarations: tess_shape2(out, in). */
struct tess_shape tess_shape1(int64_t a);
struct tess_shape tess_shape2(int64_t a, int64_t b);
struct tess_shape tess_shape3(int64_t a, int64_t b, int64_t c);
struct tess_shape tess_shape4(int64_t a, int64_t b, int64_t c, int64_t d);

TESS_END_DECLS
#endif
