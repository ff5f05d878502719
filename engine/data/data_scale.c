/*
 * Pictures of any size to squares: the shorter side scaled, the middle cut out. The same pixels as
 * torchvision's Resize(N) and CenterCrop(N) make of Pillow's images (Pillow before 13, which may
 * take columns first): lines first, then columns, each pixel a weighted sum in integers of 22 bits
 * behind the point, rounded to 8 bits between the two.
 */
#include "data/data_images.h"

#include <stdio.h>
#include <stdlib.h>

#define SCALE_BITS 22

/* Which pixels of a line make pixel i of the part that is kept, and their weights. */
struct scale_axis {
    int32_t *first, *count; /* [size] */
    int32_t *weight;        /* [size, most] */
    int32_t most;
};

static void scale_axis_close(struct scale_axis *axis)
{
    free(axis->first);
    free(axis->count);
    free(axis->weight);
}

/* 1 at 0, 0 at -1 and 1. */
static double scale_triangle(double x)
{
    const double far = x < 0 ? -x : x;
    return far < 1 ? 1 - far : 0;
}

/* Pixel i, whose middle is at `center` of a line of `from` pixels. `weight`: room. */
static void scale_axis_pixel(struct scale_axis *axis, int32_t i, double center, double widen,
                             int32_t from, double *weight)
{
    const int32_t low = (int32_t)(center - widen + 0.5), high = (int32_t)(center + widen + 0.5);
    const int32_t first = low < 0 ? 0 : low, end = high > from ? from : high;
    double sum = 0;
    axis->first[i] = first;
    axis->count[i] = end - first;
    for (int32_t k = 0; k < end - first; k++) {
        weight[k] = scale_triangle((k + first - center + 0.5) * (1 / widen));
        sum += weight[k];
    }
    for (int32_t k = 0; k < end - first; k++)
        axis->weight[(int64_t)i * axis->most + k] =
            (int32_t)(0.5 + weight[k] / sum * (1 << SCALE_BITS));
}

/* Pixels [begin, begin + size) of `scaled`, which `from` pixels become. False: no memory. */
static bool scale_axis_open(struct scale_axis *axis, int32_t from, int32_t scaled, int32_t begin,
                            int32_t size)
{
    const double scale = (double)from / scaled, widen = scale < 1 ? 1 : scale;
    axis->most = 2 * ((int32_t)widen + 1) + 1;
    axis->first = calloc((size_t)size, sizeof(*axis->first));
    axis->count = calloc((size_t)size, sizeof(*axis->count));
    axis->weight = calloc((size_t)size * (size_t)axis->most, sizeof(*axis->weight));
    double *weight = calloc((size_t)axis->most, sizeof(*weight));
    const bool good = axis->first && axis->count && axis->weight && weight;
    for (int32_t i = 0; i < size && good; i++)
        scale_axis_pixel(axis, i, (begin + i + 0.5) * scale, widen, from, weight);
    free(weight);
    return good;
}

/* The sum over pixels that lie `step` bytes apart. */
static uint8_t scale_sum(const struct scale_axis *axis, int32_t i, const uint8_t *pixel,
                         int64_t step)
{
    const int32_t *weight = axis->weight + (int64_t)i * axis->most;
    int64_t sum = (int64_t)1 << (SCALE_BITS - 1);
    for (int32_t k = 0; k < axis->count[i]; k++)
        sum += (int64_t)weight[k] * pixel[(axis->first[i] + k) * step];
    sum >>= SCALE_BITS;
    return (uint8_t)(sum > 255 ? 255 : sum);
}

static void scale_pixels(const struct tess__picture *picture, const uint8_t *pixel, int32_t size,
                         const struct scale_axis axis[2], uint8_t *between, uint8_t *target)
{
    const int64_t channels = picture->channels, line = size * channels;
    for (int64_t y = 0; y < picture->height; y++)
        for (int32_t x = 0; x < size; x++)
            for (int64_t c = 0; c < channels; c++)
                between[y * line + x * channels + c] =
                    scale_sum(&axis[0], x, pixel + y * picture->width * channels + c, channels);
    for (int32_t y = 0; y < size; y++)
        for (int64_t i = 0; i < line; i++)
            target[y * line + i] = scale_sum(&axis[1], y, between + i, line);
}

/* Half of what is cut off, to an even number where it is between two, as Python rounds. */
static int32_t scale_margin(int32_t scaled, int32_t size)
{
    const int32_t over = scaled - size, half = over / 2;
    return half + (over % 2 != 0 && half % 2 != 0);
}

enum tess_status tess__picture_scale(const struct tess__picture *picture, const uint8_t *pixel,
                                     int32_t size, uint8_t *target, char why[TESS__IMAGE_WHY])
{
    const int64_t height = picture->height, width = picture->width;
    const int64_t shorter = height < width ? height : width;
    const int32_t tall = (int32_t)(size * height / shorter);
    const int32_t wide = (int32_t)(size * width / shorter);
    struct scale_axis axis[2] = {{0}, {0}};
    uint8_t *between = malloc((size_t)(height * size * picture->channels));
    const bool good =
        between != NULL &&
        scale_axis_open(&axis[0], picture->width, wide, scale_margin(wide, size), size) &&
        scale_axis_open(&axis[1], picture->height, tall, scale_margin(tall, size), size);
    if (good)
        scale_pixels(picture, pixel, size, axis, between, target);
    else
        snprintf(why, TESS__IMAGE_WHY, "no memory to scale it");
    scale_axis_close(&axis[0]);
    scale_axis_close(&axis[1]);
    free(between);
    return good ? TESS_OK : TESS_ERR_MEMORY;
}
