/* Element types and shapes: sizes, names, counts. No memory is touched here. */
#include "tessera/tensor.h"

static const struct {
    size_t bytes;
    const char *name;
} tensor_dtype_table[] = {
#define TENSOR_ROW(name, bytes, text) [name] = {bytes, text},
    TESS_DTYPE_LIST(TENSOR_ROW)
#undef TENSOR_ROW
};

size_t tess_dtype_bytes(enum tess_dtype dtype)
{
    return (unsigned)dtype < TESS_DTYPE_COUNT ? tensor_dtype_table[dtype].bytes : 0;
}

const char *tess_dtype_name(enum tess_dtype dtype)
{
    return (unsigned)dtype < TESS_DTYPE_COUNT ? tensor_dtype_table[dtype].name : "unknown";
}

int64_t tess_shape_count(const struct tess_shape *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dim[d] == 0)
            return 0; /* before the product, which may not fit by then */
    for (int32_t d = 0; d < shape->rank; d++)
        if (__builtin_mul_overflow(count, shape->dim[d], &count))
            return INT64_MAX;
    return count;
}

struct tess_shape tess_shape1(int64_t a)
{
    return (struct tess_shape){.rank = 1, .dim = {a}};
}

struct tess_shape tess_shape2(int64_t a, int64_t b)
{
    return (struct tess_shape){.rank = 2, .dim = {a, b}};
}

struct tess_shape tess_shape3(int64_t a, int64_t b, int64_t c)
{
    return (struct tess_shape){.rank = 3, .dim = {a, b, c}};
}

struct tess_shape tess_shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct tess_shape){.rank = 4, .dim = {a, b, c, d}};
}
