/*
 * From a place in the epoch to numbers for the model: which sample stands there, and its pixels
 * normalised and augmented. Pure: everything depends on arguments alone, so that every layout and
 * any number of loader threads see the same batches. When rows are loaded is loader.c's matter.
 */
#include "data/data_tokens.h"

#include "base/half.h"
#include "base/hash.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

const struct tess_option tess_loader_option_table[] = {
    {"workers", TESS_OPTION_INT, offsetof(struct tess_loader_options, workers), "-1", -1, 16, NULL,
     "prefetch threads per rank; 0 loads in the rank's own thread, -1 chooses"},
    {"shuffle", TESS_OPTION_BOOL, offsetof(struct tess_loader_options, shuffle), "on", 0, 0, NULL,
     "visit the training samples in another random order every epoch"},
    {"flip", TESS_OPTION_BOOL, offsetof(struct tess_loader_options, flip), "off", 0, 0, NULL,
     "mirror training images left to right, each with probability 1/2"},
    {"shift", TESS_OPTION_INT, offsetof(struct tess_loader_options, shift), "0", 0, 64, NULL,
     "move training images at random by up to this many pixels in both directions"},
    {"size", TESS_OPTION_INT, offsetof(struct tess_loader_options, size), "0", 0, 4096, NULL,
     "scale the images of folders of classes: the shorter side to this many pixels, and the middle "
     "is cut out; 0: they all have one size"},
    {"drop-last", TESS_OPTION_BOOL, offsetof(struct tess_loader_options, drop_last), "off", 0, 0,
     NULL,
     "leave out the last batch of an epoch where it is short; off: its mean is over the samples it "
     "has"},
    {"length", TESS_OPTION_INT, offsetof(struct tess_loader_options, length), "256", 1, 1 << 20,
     NULL, "tokens of a sample of text: what the model sees at once"},
    {"validation", TESS_OPTION_REAL, offsetof(struct tess_loader_options, validation), "0.02", 0,
     0.99, NULL,
     "share of a text, its end, that is kept for validation; at least one sample, or one document "
     "where --data is text"},
    {"validation-files", TESS_OPTION_STRING, offsetof(struct tess_loader_options, validation_files),
     "", 0, 0, NULL,
     "text or token files for validation, named as in --data; empty: --data.validation of its own"},
    {"mix", TESS_OPTION_STRING, offsetof(struct tess_loader_options, mix), "", 0, 0, NULL,
     "several sets of text or tokens in place of --data, each as --data names it, with its share "
     "of "
     "the samples: a:0.7,b:0.3"},
    {"packing", TESS_OPTION_BOOL, offsetof(struct tess_loader_options, packing), "off", 0, 0, NULL,
     "fill samples with whole documents, each of which sees itself alone and begins at position 0"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

int64_t tess_sample_at(uint64_t seed, int64_t epoch, int64_t count, int64_t position, bool shuffle)
{
    if (position < 0 || position >= count)
        return -1;
    if (!shuffle)
        return position;
    return (int64_t)tess_rng_permute(tess_rng_key(seed, TESS_RNG_SHUFFLE, (uint64_t)epoch),
                                     (uint64_t)count, (uint64_t)position);
}

/*
 * (pixel/255 - mean)/deviation as pixel * scale + shift: a product and a sum, each rounded (the
 * build forbids contraction), hence the same bits whether vectorised or not. In 16 bits the values
 * of all pixels are looked up, with the same bits in a quarter of the time.
 */
#define SAMPLE_VALUES 256 /* of a byte */

struct sample_norm {
    float scale, shift;
    enum tess_dtype dtype; /* of the target */
    uint16_t low[SAMPLE_VALUES];
};

/* Elements [at, at + count) of the target array, rounded to its type. */
static void sample_store(const float *x, int64_t count, enum tess_dtype dtype, void *target,
                         int64_t at)
{
    uint16_t *low = (uint16_t *)target + at;
    if (dtype != TESS_BF16 && dtype != TESS_F16) /* as they are: tokens too */
        memcpy((float *)target + at, x, (size_t)count * sizeof(*x));
    for (int64_t i = 0; dtype == TESS_BF16 && i < count; i++)
        low[i] = tess__bf16_of_f32(x[i]);
    for (int64_t i = 0; dtype == TESS_F16 && i < count; i++)
        low[i] = tess__f16_of_f32(x[i]);
}

static void sample_norm_init(struct sample_norm *norm, const struct tess_dataset *dataset,
                             enum tess_dtype dtype)
{
    const double deviation = dataset->deviation;
    norm->scale = (float)(1 / (255 * deviation));
    norm->shift = (float)(-(double)dataset->mean / deviation);
    norm->dtype = dtype;
    for (int pixel = 0; dtype != TESS_F32 && pixel < SAMPLE_VALUES; pixel++) {
        const float x = (float)pixel * norm->scale + norm->shift;
        sample_store(&x, 1, dtype, norm->low, pixel);
    }
}

#define SAMPLE_LINE 1024 /* bytes that are mirrored at a time; more than an image has channels */

static void sample_convert(const uint8_t *restrict pixel, int64_t count,
                           const struct sample_norm *norm, void *target, int64_t at)
{
    float *restrict x = (float *)target + at;
    uint16_t *restrict low = (uint16_t *)target + at;
    if (norm->dtype == TESS_F32) {
        const float scale = norm->scale, shift = norm->shift;
        for (int64_t i = 0; i < count; i++)
            x[i] = (float)pixel[i] * scale + shift;
    } else {
        for (int64_t i = 0; i < count; i++)
            low[i] = norm->low[pixel[i]];
    }
}

/* `count` black pixels' values. */
static void sample_blank(int64_t count, const struct sample_norm *norm, void *target, int64_t at)
{
    static const uint8_t black[SAMPLE_LINE];
    for (int64_t i = 0; i < count; i += SAMPLE_LINE)
        sample_convert(black, count - i < SAMPLE_LINE ? count - i : SAMPLE_LINE, norm, target,
                       at + i);
}

/* How one image is changed: mirrored, then moved down and right. */
struct sample_change {
    bool flip;
    int64_t down, right;
};

static struct sample_change sample_change_of(const struct tess_loader_options *options,
                                             uint64_t seed, int64_t epoch, int64_t sample)
{
    struct sample_change change = {false, 0, 0};
    const uint32_t choices = (uint32_t)(2 * options->shift + 1);
    uint32_t word[4];
    tess_rng_block(tess_rng_key(seed, TESS_RNG_AUGMENT, (uint64_t)epoch), (uint64_t)sample, 0,
                   word);
    change.flip = options->flip && word[0] >> 31 != 0;
    change.down = (int64_t)(word[1] % choices) - options->shift;
    change.right = (int64_t)(word[2] % choices) - options->shift;
    return change;
}

/* `pixels` pixels of one line, mirrored: the first comes from `last`, the next from its left. */
static void sample_convert_mirrored(const uint8_t *last, int64_t pixels, int64_t channels,
                                    const struct sample_norm *norm, void *target, int64_t at)
{
    uint8_t line[SAMPLE_LINE];
    const int64_t most = SAMPLE_LINE / channels;
    for (int64_t x = 0; x < pixels; x += most) {
        const int64_t now = pixels - x < most ? pixels - x : most;
        for (int64_t i = 0; i < now; i++)
            for (int64_t c = 0; c < channels; c++)
                line[i * channels + c] = last[c - (x + i) * channels];
        sample_convert(line, now * channels, norm, target, at + x * channels);
    }
}

/* One changed image [H, W, C]; what moves in from outside is black. */
static void sample_convert_changed(const uint8_t *image, const struct tess_shape *row,
                                   struct sample_change change, const struct sample_norm *norm,
                                   void *target, int64_t at)
{
    const int64_t height = row->dim[0], width = row->dim[1], channels = row->dim[2];
    const int64_t shift = change.right;
    const int64_t begin = shift > 0 ? shift : 0;
    const int64_t end = shift < 0 ? width + shift : width;
    for (int64_t y = 0; y < height; y++, at += width * channels) {
        const int64_t from = y - change.down;
        if (from < 0 || from >= height || begin >= end) {
            sample_blank(width * channels, norm, target, at);
            continue;
        }
        const uint8_t *line = image + from * width * channels;
        sample_blank(begin * channels, norm, target, at);
        if (change.flip)
            sample_convert_mirrored(line + (width - 1 - (begin - shift)) * channels, end - begin,
                                    channels, norm, target, at + begin * channels);
        else
            sample_convert(line + (begin - shift) * channels, (end - begin) * channels, norm,
                           target, at + begin * channels);
        sample_blank((width - end) * channels, norm, target, at + end * channels);
    }
}

/*
 * Samples are drawn at random from tens of megabytes: prefetch the next image while this one is
 * converted, or most of the time is spent waiting for memory.
 */
#define SAMPLE_AHEAD 4096 /* bytes; the processor's own prefetch does the rest of a large image */

static void sample_prefetch(const uint8_t *image, int64_t count)
{
    for (int64_t i = 0; i < count && i < SAMPLE_AHEAD; i += 64)
        __builtin_prefetch(image + i);
}

static void sample_load_images(const struct tess_dataset *dataset, const struct tess_split *split,
                               const struct tess_loader_options *options, uint64_t seed,
                               int64_t epoch, bool augment, const int64_t *sample, int64_t rows,
                               enum tess_dtype dtype, void *input, int32_t *label)
{
    struct sample_norm norm;
    const int64_t row_count = tess_shape_count(&dataset->row);
    const size_t element = tess_dtype_bytes(dtype);
    const bool change = augment && (options->flip || options->shift > 0);
    sample_norm_init(&norm, dataset, dtype);
    for (int64_t r = 0; r < rows; r++) {
        if (sample[r] < 0) {
            memset((char *)input + (size_t)(r * row_count) * element, 0,
                   (size_t)row_count * element);
            label[r] = -1;
            continue;
        }
        const int64_t here = sample[r] & ~TESS_SAMPLE_IGNORED;
        const uint8_t *image = split->image + here * row_count;
        if (r + 1 < rows && sample[r + 1] >= 0)
            sample_prefetch(split->image + (sample[r + 1] & ~TESS_SAMPLE_IGNORED) * row_count,
                            row_count);
        label[r] = sample[r] & TESS_SAMPLE_IGNORED ? -1 : split->label[here];
        if (change)
            sample_convert_changed(image, &dataset->row,
                                   sample_change_of(options, seed, epoch, here), &norm, input,
                                   r * row_count);
        else
            sample_convert(image, row_count, &norm, input, r * row_count);
    }
}

/* Rows of the caller, in the dtype of the model. */
static void sample_load_given(const struct tess_dataset *dataset, const int64_t *sample,
                              int64_t rows, enum tess_dtype dtype, void *input, int32_t *label)
{
    const int64_t width = tess_shape_count(&dataset->row), labels = dataset->labels;
    for (int64_t r = 0; r < rows; r++) {
        const bool here = sample[r] >= 0 && (sample[r] & TESS_SAMPLE_IGNORED) == 0;
        const int64_t from = here ? sample[r] % dataset->given_rows : 0;
        const float *x = (const float *)dataset->given + from * width;
        sample_store(x, width, dtype, input, r * width);
        for (int64_t i = 0; i < labels; i++)
            label[r * labels + i] = here ? dataset->given_label[from * labels + i] : -1;
    }
}

int64_t tess_dataset_labels(const struct tess_dataset *dataset, const struct tess_split *split,
                            int64_t sample)
{
    const int64_t labels = dataset->labels;
    int64_t count = 0;
    if (sample < 0 || (sample & TESS_SAMPLE_IGNORED) != 0)
        return 0;
    if (!dataset->masked)
        return labels;
    if (dataset->given == NULL)
        return tess__stream_labels(dataset, split, sample);
    const int32_t *label = dataset->given_label + sample % dataset->given_rows * labels;
    for (int64_t i = 0; i < labels; i++)
        count += label[i] >= 0;
    return count;
}

int64_t tess_load_rows(const struct tess_dataset *dataset, const struct tess_split *split,
                       const struct tess_loader_options *options, uint64_t seed, int64_t epoch,
                       bool augment, const int64_t *sample, int64_t rows, enum tess_dtype dtype,
                       void *input, int32_t *label)
{
    if (dataset->given != NULL) {
        sample_load_given(dataset, sample, rows, dtype, input, label);
        return rows;
    }
    if (dataset->tokens)
        return tess__stream_load_rows(dataset, split, sample, rows, input, label);
    sample_load_images(dataset, split, options, seed, epoch, augment, sample, rows, dtype, input,
                       label);
    return rows;
}

uint64_t tess_dataset_id(const struct tess_dataset *dataset, const struct tess_split *split)
{
    enum { SAMPLES = 64 };
    const int64_t row = tess_shape_count(&dataset->row);
    const int64_t number[] = {dataset->train.count, dataset->test.count, dataset->class_count,
                              dataset->labels, row};
    uint64_t id = tess_hash_bytes(number, sizeof(number));
    if (dataset->mix != NULL && split == &dataset->train)
        id = tess_hash_mix(id + tess_hash_bytes(dataset->mix->share, sizeof(dataset->mix->share)));
    int32_t *room = dataset->tokens ? calloc((size_t)row, 2 * sizeof(*room)) : NULL;
    for (int64_t i = 0; i < SAMPLES && split->count > 0 && dataset->given == NULL; i++) {
        const int64_t sample = split->count * i / SAMPLES;
        if (!dataset->tokens)
            id += tess_hash_bytes(split->image + sample * row, (size_t)row) + split->label[sample];
        else if (room != NULL &&
                 tess__stream_load_rows(dataset, split, &sample, 1, room, room + row) == 1)
            id += tess_hash_bytes(room, (size_t)row * sizeof(*room));
        id = tess_hash_mix(id);
    }
    free(room);
    return id;
}
