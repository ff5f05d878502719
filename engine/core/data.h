/* Data sets, the sampler and the loader. */
#ifndef TESSERA_CORE_DATA_H
#define TESSERA_CORE_DATA_H

#include "tessera/option.h"
#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>

/* One split: images of bytes and their labels, in memory shared by forked ranks. */
struct tess_split {
    int64_t count;
    const uint8_t *image; /* [count, H, W, C] */
    const uint8_t *label; /* [count], each < class_count */
};

struct tess_dataset {
    struct tess_shape row; /* [H, W, C] */
    int32_t class_count;
    struct tess_split train, test;
    float mean, deviation; /* of the training pixels / 255, for normalisation */
    size_t mapped_bytes;   /* shared between all ranks of the host */
};

/*
 * Read the four IDX files of an MNIST-like set in `folder`:
 * {train,t10k}-{images-idx3,labels-idx1}-ubyte, each plain or .gz. Every header field is checked
 * against the file's length and the other files; messages name the file and the field. Sets of
 * these names have ten classes; a label above 9 is an error. mean and deviation are computed from
 * the training pixels by integer sums (the same on every machine). TESS_ERR_NOT_FOUND when a file
 * is missing, TESS_ERR_DATA when one is wrong.
 */
enum tess_status tess_dataset_open_idx(const char *folder, struct tess_dataset **dataset_out);
void tess_dataset_close(struct tess_dataset *dataset); /* NULL is allowed */

/*
 * Made-up images whose class can be learnt, for benches and tests without the data: the mean of a
 * random template of the class and of random noise. row is [H, W, C]; 1 to 256 classes; test_count
 * may be 0.
 */
enum tess_status tess_dataset_open_synthetic(struct tess_shape row, int32_t class_count,
                                             int64_t train_count, int64_t test_count, uint64_t seed,
                                             struct tess_dataset **dataset_out);

/*
 * The sampler: which sample of the split stands at global position `position` of an epoch; -1
 * beyond its end. Depends on nothing but its arguments, so that every layout sees the same batches.
 */
int64_t tess_sample_at(uint64_t seed, int64_t epoch, int64_t count, int64_t position, bool shuffle);

/*
 * A sample number with this bit: its image is loaded, its label is -1. It fills up a short batch:
 * statistics of the batch see real images, loss and gradient count none of them.
 */
#define TESS_SAMPLE_IGNORED (INT64_C(1) << 62)

/* Options of the loader, table below, prefix "data". */
struct tess_loader_options {
    int64_t workers; /* prefetch threads, at most one a slot; 0: load in the rank's own thread;
                        -1: choose: 1 where two cores per rank are there and batches are not tiny */
    bool shuffle;
    bool flip;      /* random horizontal flip, keyed by sample and epoch */
    int64_t shift;  /* random shift by up to this many pixels, zero filled */
    bool drop_last; /* leave a short last batch of the epoch out */
};
extern const struct tess_option tess_loader_option_table[];

/*
 * Fill `input` [rows, H, W, C] in dtype (f32, bf16 or f16) with (pixel/255 - mean)/deviation and
 * `label` [rows] for the given samples; a negative sample is padding: zeros, label -1. `augment`
 * false for evaluation. Pure.
 */
void tess_load_rows(const struct tess_dataset *dataset, const struct tess_split *split,
                    const struct tess_loader_options *options, uint64_t seed, int64_t epoch,
                    bool augment, const int64_t *sample, int64_t rows, enum tess_dtype dtype,
                    void *input, int32_t *label);

/*
 * A loader: prefetches the batches of one rank into `slot_count` slots of the caller's memory, in
 * the order in which they will be asked for. The request function says which samples make batch
 * number `batch`; it returns false when there is no such batch. It is called from the loader's
 * threads, once for each of 0, 1, 2, ..., never by two at a time (without workers: by the rank's
 * own thread, in tess_loader_next, and again for a batch that is not there). Between two calls a
 * slot belongs to the loader unless it is the one handed out last.
 */
struct tess_batch_request {
    const struct tess_split *split;
    int64_t epoch;
    bool augment;
    int64_t rows;    /* 1 .. rows_max */
    int64_t *sample; /* [rows_max]; to be filled */
};
struct tess_loader;
struct tess_loader_config {
    const struct tess_dataset *dataset;
    struct tess_loader_options options;
    uint64_t seed;
    enum tess_dtype dtype; /* f32, bf16 or f16 */
    int64_t rows_max;
    int32_t host_ranks; /* ranks that share the cores this one may use, for workers = -1; 0: 1 */
    int32_t slot_count; /* 1 (no prefetch) .. 4 */
    void *input[4];     /* each [rows_max, row] */
    int32_t *label[4];  /* each [rows_max] */
    bool (*request)(void *context, int64_t batch, struct tess_batch_request *request);
    void *context;
};
enum tess_status tess_loader_open(const struct tess_loader_config *config,
                                  struct tess_loader **loader_out);
/*
 * The next batch, numbers 0, 1, 2, ...; the previous one's slot is given back. After the last batch
 * rows is 0 and the pointers are NULL. wait_s_out (may be NULL): seconds spent waiting for it, or
 * loading it. No allocation.
 */
enum tess_status tess_loader_next(struct tess_loader *loader, void **input_out, int32_t **label_out,
                                  int64_t *rows_out, double *wait_s_out);
void tess_loader_close(struct tess_loader *loader); /* any time; joins; NULL is allowed */

#endif
