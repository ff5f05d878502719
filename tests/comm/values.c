/* Test values and what sums of them must be, computed one by one and independently of the library.
 */
#include "comm/cases.h"

#include <math.h>
#include <string.h>

uint64_t value_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + c * 0x165667b19e3779f9u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return x;
}

/* Round to `digits` significant bits with least exponent `least` (of the last bit of subnormals),
 * ties to even, by way of the exactly known scale; 2^most and more is infinite. */
static double value_round(double x, int digits, int least, int most)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent);
    int last = exponent - digits < least ? least : exponent - digits;
    double rounded = ldexp(nearbyint(ldexp(x, -last)), last);
    return fabs(rounded) >= ldexp(1, most) ? copysign(INFINITY, x) : rounded;
}

static float value_single(uint32_t bits)
{
    float single;
    memcpy(&single, &bits, sizeof(single));
    return single;
}

static double value_get_half(enum tess_dtype dtype, const void *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof(bits));
    if (dtype == TESS_BF16)
        return value_single((uint32_t)bits << 16);
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0)
        return sign * mantissa * 0x1p-24;
    if (exponent == 31)
        return mantissa == 0 ? sign * INFINITY : NAN;
    return sign * value_single((uint32_t)(exponent + 112) << 23 | (uint32_t)mantissa << 13);
}

static double value_get(enum tess_dtype dtype, const void *at)
{
    float single;
    double number;
    switch (dtype) {
    case TESS_F32:
        memcpy(&single, at, sizeof(single));
        return single;
    case TESS_F64:
        memcpy(&number, at, sizeof(number));
        return number;
    default:
        return value_get_half(dtype, at);
    }
}

/* A float cut down to 16 bits; its size is between 2^-9 and 2^9, so it is normal in both types. */
static void value_put_half(enum tess_dtype dtype, float x, void *out)
{
    uint32_t single;
    memcpy(&single, &x, sizeof(single));
    uint16_t bits = (uint16_t)(single >> 16);
    if (dtype == TESS_F16)
        bits = (uint16_t)((single >> 16 & 0x8000) | (((single & 0x7fffffff) >> 13) - (112u << 10)));
    memcpy(out, &bits, sizeof(bits));
}

void value_put(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t i, void *out)
{
    uint64_t hash = value_hash(seed, (uint64_t)rank + 1, i);
    /* Sizes over 17 powers of two: another order of addition gives other bits. */
    double x = ((double)(hash >> 40) / 0x1p24 + 0.5) * (double)(1 << hash % 17) / 256;
    x = hash & 0x100000 ? x : -x;
    float single = (float)x;
    int32_t word = (int32_t)(hash >> 33);
    uint8_t byte = (uint8_t)(hash >> 33);
    switch (dtype) {
    case TESS_F32:
        memcpy(out, &single, sizeof(single));
        break;
    case TESS_F64:
        memcpy(out, &x, sizeof(x));
        break;
    case TESS_BF16:
    case TESS_F16:
        if (seed & VALUE_WILD)
            memcpy(out, &word, sizeof(uint16_t));
        else
            value_put_half(dtype, single, out);
        break;
    case TESS_I32:
        memcpy(out, &word, sizeof(word));
        break;
    case TESS_I64:
        memcpy(out, &hash, sizeof(hash));
        break;
    default:
        memcpy(out, &byte, sizeof(byte));
        break;
    }
}

void value_fill(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t count, void *array)
{
    size_t size = tess_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++)
        value_put(dtype, seed, rank, i, (char *)array + i * size);
}

bool value_is(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t i, const void *actual)
{
    unsigned char expected[8];
    value_put(dtype, seed, rank, i, expected);
    return memcmp(expected, actual, tess_dtype_bytes(dtype)) == 0;
}

static int32_t value_split(int32_t n)
{
    int32_t half = 1;
    while (half * 2 < n)
        half *= 2;
    return half;
}

/* The tree, as its definition says; f32 additions are rounded to f32 one by one. */
static double value_tree(enum tess_dtype dtype, enum tess_reduce reduce, uint64_t seed,
                         int32_t first, int32_t n, size_t i)
{
    if (n == 1) {
        unsigned char raw[8];
        value_put(dtype, seed, first, i, raw);
        return value_get(dtype, raw);
    }
    int32_t half = value_split(n);
    double a = value_tree(dtype, reduce, seed, first, half, i);
    double b = value_tree(dtype, reduce, seed, first + half, n - half, i);
    if (reduce != TESS_REDUCE_SUM)
        return (reduce == TESS_REDUCE_MAX) == (a > b) ? a : b;
    return dtype == TESS_F64 ? a + b : (double)((float)a + (float)b);
}

static bool value_is_integer_reduced(enum tess_dtype dtype, enum tess_reduce reduce, uint64_t seed,
                                     int32_t ranks, size_t i, const void *actual)
{
    int64_t sum = 0, most = INT64_MIN, least = INT64_MAX;
    for (int32_t r = 0; r < ranks; r++) {
        int64_t wide = 0;
        int32_t word;
        unsigned char raw[8];
        value_put(dtype, seed, r, i, raw);
        memcpy(&word, raw, sizeof(word));
        memcpy(&wide, raw, tess_dtype_bytes(dtype));
        wide = dtype == TESS_I32 ? word : wide;
        sum = (int64_t)((uint64_t)sum + (uint64_t)wide);
        most = wide > most ? wide : most;
        least = wide < least ? wide : least;
    }
    int64_t expected = reduce == TESS_REDUCE_SUM ? sum : reduce == TESS_REDUCE_MAX ? most : least;
    return memcmp(&expected, actual, tess_dtype_bytes(dtype)) == 0; /* little-endian: low bytes */
}

bool value_is_reduced(enum tess_dtype dtype, enum tess_reduce reduce, enum tess_order order,
                      uint64_t seed, int32_t ranks, size_t i, const void *actual)
{
    if (dtype == TESS_I32 || dtype == TESS_I64 || dtype == TESS_U8)
        return value_is_integer_reduced(dtype, reduce, seed, ranks, i, actual);
    double expected = value_tree(dtype, reduce, seed, 0, ranks, i), got = value_get(dtype, actual);
    double last = dtype == TESS_F64 ? 0x1p-53 : 0x1p-24;
    double rounding = 0;
    if (dtype == TESS_BF16 || dtype == TESS_F16) {
        expected = dtype == TESS_BF16 ? value_round(expected, 8, -133, 128)
                                      : value_round(expected, 11, -24, 16);
        rounding = dtype == TESS_BF16 ? 0x1p-8 : 0x1p-11;
    }
    if (order == TESS_ORDER_CANONICAL || reduce != TESS_REDUCE_SUM)
        return isnan(expected) ? isnan(got) : got == expected && signbit(got) == signbit(expected);
    /* Each of the ranks - 1 additions of either order may be wrong by half a unit in the last place
     * of a partial sum, which is at most the sum of sizes; then one rounding to 16 bits each. */
    double sizes = 0;
    for (int32_t r = 0; r < ranks; r++)
        sizes += fabs(value_tree(dtype, reduce, seed, r, 1, i));
    return fabs(got - expected) <= 2 * (ranks - 1) * last * sizes + 2 * rounding * fabs(expected);
}
