/* The kernel tests' device memory, random numbers and comparisons; see device.h. */
#include "device.h"

#include "base/half.h"
#include "harness/need_device.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Memory is whole huge pages: guard protects them many thousand times. */
#define DEVICE_PAGE ((size_t)2 << 20)

const char *device_backend(int argc, char **argv)
{
    return argc > 1 ? argv[1] : "ref";
}

static void *test_memory(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

/* Where the backend computes on a device: that is the first one. */
static void device_select_first(const char *backend)
{
    if (strcmp(backend, "cuda") == 0 && need_device(backend)->device_select(0, false) != TESS_OK) {
        fprintf(stderr, "device 0 was counted and cannot be selected\n");
        exit(1);
    }
}

void device_open(struct device *device, const char *backend, size_t bytes)
{
    const struct tess_kernel_ops *ops;
    device_select_first(backend);
    if (tess_registry_get_kernel(backend, &ops) != TESS_OK)
        exit(77);
    *device = (struct device){.bytes = (bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE};
    bool opened = tess_kernel_open(ops, 1, &device->kernel) == TESS_OK;
    if (opened && ops->far_memory) {
        void *memory;
        opened = ops->alloc(device->kernel, device->bytes, &memory) == TESS_OK;
        device->arena = opened ? memory : NULL;
    } else if (opened) {
        device->arena = aligned_alloc(DEVICE_PAGE, device->bytes);
        opened = device->arena != NULL;
        if (opened) /* a hint */
            (void)madvise(device->arena, device->bytes, MADV_HUGEPAGE);
        opened = opened && device->kernel->ops->adopt(device->kernel, device->arena,
                                                      device->bytes) == TESS_OK;
    }
    if (!opened) {
        fprintf(stderr, "cannot open the backend %s\n", backend);
        exit(1);
    }
}

void device_close(struct device *device)
{
    bool far = device->kernel->ops->far_memory;
    if (far)
        device->kernel->ops->free(device->kernel, device->arena);
    else
        device->kernel->ops->disown(device->kernel, device->arena, device->bytes);
    tess_kernel_close(device->kernel);
    if (!far)
        free(device->arena);
}

void device_reset(struct device *device)
{
    device->used = 0;
}

void *device_array(struct device *device, size_t bytes)
{
    size_t room = (bytes + 63) / 64 * 64;
    if (room > device->bytes - device->used) {
        fprintf(stderr, "the test's arena is too small: %zu more bytes\n", room);
        exit(1);
    }
    char *array = device->arena + device->used;
    device->used += room;
    tess_fill(device->kernel, (int64_t)room, 0xff, array);
    return array;
}

void device_put(struct device *device, void *target, const void *source, size_t bytes)
{
    assert_int_equal(tess_write(device->kernel, bytes, source, target), TESS_OK);
}

void device_get(struct device *device, void *target, const void *source, size_t bytes)
{
    assert_int_equal(tess_read(device->kernel, bytes, source, target), TESS_OK);
}

void *device_put_real(struct device *device, enum tess_dtype dtype, const double *x, int64_t count)
{
    size_t bytes = tess_dtype_bytes(dtype);
    void *array = device_array(device, (size_t)count * bytes);
    char *host = test_memory(count, bytes);
    for (int64_t i = 0; i < count; i++) {
        float whole = (float)x[i];
        uint16_t half = dtype == TESS_BF16 ? tess__bf16_of_f32(whole) : tess__f16_of_f32(whole);
        memcpy(host + (size_t)i * bytes, dtype == TESS_F32 ? (void *)&whole : (void *)&half, bytes);
    }
    device_put(device, array, host, (size_t)count * bytes);
    free(host);
    return array;
}

void device_get_real(struct device *device, enum tess_dtype dtype, const void *source, double *x,
                     int64_t count)
{
    size_t bytes = tess_dtype_bytes(dtype);
    void *host = test_memory(count, bytes);
    device_get(device, host, source, (size_t)count * bytes);
    const uint16_t *half = host;
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)(dtype == TESS_BF16  ? tess__f32_of_bf16(half[i])
                        : dtype == TESS_F16 ? tess__f32_of_f16(half[i])
                                            : ((const float *)host)[i]);
    free(host);
}

void device_op_open(struct device *device, const struct tess_op_desc *desc, struct tess_op *op)
{
    static uint64_t token; /* every opened operation sees weights that were never packed */
    struct tess_op_needs needs;
    assert_int_equal(device->kernel->ops->op_needs(desc, &needs), TESS_OK);
    *op = (struct tess_op){.desc = *desc, .kernel = device->kernel, .weight_token = ++token};
    op->scratch = device_array(device, needs.scratch_bytes);
    op->packed = device_array(device, needs.packed_bytes);
    assert_int_equal(device->kernel->ops->op_open(op), TESS_OK);
}

void device_op_close(struct tess_op *op)
{
    op->kernel->ops->op_close(op);
}

void *device_fetch(struct device *device, const void *source, size_t bytes)
{
    void *host = test_memory((int64_t)bytes, 1);
    device_get(device, host, source, bytes);
    return host;
}

double *reals(int64_t count)
{
    return test_memory(count, sizeof(double));
}

float *floats(int64_t count)
{
    return test_memory(count, sizeof(float));
}

uint64_t draw_word(struct draw *draw)
{
    uint64_t z = draw->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t draw_between(struct draw *draw, int64_t low, int64_t high)
{
    return low + (int64_t)(draw_word(draw) % (uint64_t)(high - low + 1));
}

struct draw draw_shapes(uint64_t usual)
{
    const char *seed = getenv("TESS_TEST_SEED");
    if (seed == NULL || seed[0] == '\0')
        return (struct draw){usual};
    print_message("random shapes of TESS_TEST_SEED=%s\n", seed);
    struct draw draw = {strtoull(seed, NULL, 0)};
    return (struct draw){draw_word(&draw) + usual};
}

double draw_real(struct draw *draw, enum tess_dtype dtype)
{
    return round_to(dtype, (double)(draw_word(draw) >> 11) * 0x1p-52 - 1.0);
}

double *draw_reals(struct draw *draw, enum tess_dtype dtype, int64_t count)
{
    double *x = reals(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = draw_real(draw, dtype);
    return x;
}

double round_to(enum tess_dtype dtype, double x)
{
    if (dtype == TESS_F32)
        return (double)(float)x;
    int digits = dtype == TESS_BF16 ? 8 : 11;
    int exponent_min = dtype == TESS_F16 ? -14 : -126; /* of the smallest normal number */
    int exponent_max = dtype == TESS_F16 ? 15 : 127;
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent);
    exponent = exponent - 1 < exponent_min ? exponent_min : exponent - 1;
    double unit = ldexp(1.0, exponent - digits + 1);
    double rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) >= ldexp(1.0, exponent_max + 1) ? copysign(INFINITY, x) : rounded;
}

double unit_of(enum tess_dtype dtype)
{
    return dtype == TESS_BF16 ? 0x1p-8 : dtype == TESS_F16 ? 0x1p-11 : 0x1p-24;
}

double tiny_of(enum tess_dtype dtype)
{
    return dtype == TESS_F16 ? 0x1p-25 : 0;
}

double bound_of(enum tess_dtype dtype, double n, double magnitude, double value)
{
    double sum = 2 * (n + 2) * 0x1p-24 * magnitude;
    return sum + unit_of(dtype) * (fabs(value) + sum) + tiny_of(dtype);
}

void check_close(const char *what, const double *got, const double *expected, const double *bound,
                 int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= bound[i]))
            fail_msg("%s[%lld]: got %.9g, expected %.9g, off by %.3g, allowed are %.3g", what,
                     (long long)i, got[i], expected[i], fabs(got[i] - expected[i]), bound[i]);
}

void device_check(struct device *device, const char *what, enum tess_dtype dtype, const void *got,
                  const double *expected, const double *bound, int64_t count)
{
    double *values = reals(count);
    device_get_real(device, dtype, got, values, count);
    check_close(what, values, expected, bound, count);
    free(values);
}

void check_bytes(const char *what, const void *got, const void *expected, size_t bytes)
{
    const unsigned char *a = got, *b = expected;
    /* Where they are equal, quickly: sanitizers slow loops down. */
    for (size_t i = bytes > 0 && memcmp(a, b, bytes) == 0 ? bytes : 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu: got %02x, expected %02x", what, i, bytes, a[i], b[i]);
}

void tree_sum(const float *leaf, int64_t n, int64_t count, float *sum)
{
    if (n <= 1) {
        for (int64_t i = 0; i < count; i++)
            sum[i] = n == 1 ? leaf[i] : 0.0f;
        return;
    }
    int64_t left = 1;
    while (left * 2 < n)
        left *= 2;
    float *a = floats(count), *b = floats(count);
    tree_sum(leaf, left, count, a);
    tree_sum(leaf + left * count, n - left, count, b);
    for (int64_t i = 0; i < count; i++)
        sum[i] = a[i] + b[i];
    free(a);
    free(b);
}
