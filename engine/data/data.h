/* Data sets, the sampler and the loader. */
#ifndef TESSERA_DATA_DATA_H
#define TESSERA_DATA_DATA_H

#include "tessera/option.h"
#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>

struct tess_token_stream; /* tokens of one or several files, end to end; data/data_tokens.h */

/*
 * One split, in memory shared by forked ranks: images of bytes and their labels, or samples of
 * tokens: sample i is tokens [first + i T, first + i T + T) of the stream, its labels the token
 * after each of them.
 */
struct tess_split {
    int64_t count;
    uint8_t *image;                   /* [count, H, W, C]; read-only once the set is open */
    uint16_t *label;                  /* [count], each < class_count; likewise */
    struct tess_token_stream *stream; /* tokens */
    int64_t first;
    const int64_t
        *start; /* [count + 1], packed: the token that each sample begins with; it ends
                   where the next one begins. NULL: samples of T tokens, from `first` on */
    const struct tess_split *part; /* of a mix, in place of a stream: end to end, `count` in all */
};

struct tess_dataset {
    bool tokens;
    struct tess_shape row; /* images [H, W, C]; tokens [T] */
    int32_t class_count;   /* classes, or the size of the vocabulary */
    int64_t labels;        /* of a sample: 1, or T */
    bool masked;           /* some labels may be negative: they are ignored */
    struct tess_split train, test;
    float mean, deviation; /* of the training pixels / 255, for normalisation */
    /* Rows that are written before each batch; NULL: the splits' own. Sample i of either split
     * is row i % given_rows, as it is: f32 (tokens i32) [given_rows, row], [given_rows, labels]. */
    const void *given;
    const int32_t *given_label;
    int64_t given_rows;
    size_t mapped_bytes;  /* shared between all ranks of the host */
    struct tess_mix *mix; /* of several sets; NULL: none */
    bool packs;           /* samples are whole documents, and zeros behind them */
    int64_t *packed[2];   /* owned: what the splits' `start` is in */
};

/*
 * The set of images in `folder`: IDX files (below); else the binary files of CIFAR-10 or CIFAR-100
 * (its fine labels); else folders of classes with PNG and JPEG files, in train/ and val/, valid/,
 * validation/ or test/, or without those, every tenth image of a class for validation. Classes are
 * numbered in the order of their names. Images of folders have one size, or are scaled: the shorter
 * side to `size` > 0 pixels, and the middle cut out. One channel where all are grey, else three.
 * Everything is read and checked: messages name the file. TESS_ERR_NOT_FOUND where there is no set,
 * TESS_ERR_DATA where a file is wrong, TESS_ERR_UNSUPPORTED where libpng or libjpeg was not built
 * in, TESS_ERR_USAGE for a size that does not apply.
 */
enum tess_status tess_dataset_open_images(const char *folder, int32_t size,
                                          struct tess_dataset **dataset_out);

/*
 * Read the four IDX files of an MNIST-like set in `folder`:
 * {train,t10k}-{images-idx3,labels-idx1}-ubyte, each plain or .gz; or images-idx4, whose fourth
 * dimension is 1 to 4 channels. Labels are bytes, or of 16 or 32 bits (IDX's types 0x0b and 0x0c).
 * Every header field is checked against the file's length and the other files; messages name the
 * file and the field. Sets of three dimensions with labels of bytes have ten classes, others as
 * many as the training labels name; a greater label is an error. mean and deviation are computed
 * from the training pixels by integer sums (the same on every machine). TESS_ERR_NOT_FOUND when a
 * file is missing, TESS_ERR_DATA when one is wrong.
 */
enum tess_status tess_dataset_open_idx(const char *folder, struct tess_dataset **dataset_out);
void tess_dataset_close(struct tess_dataset *dataset); /* NULL is allowed */

/*
 * Text or tokens, memory-mapped. `source` is a file, several joined by commas, or a pattern such as
 * "shards/train_*.bin", whose files are taken in the order of their names' bytes. All are of one
 * kind:
 *
 *   text    any other file: a token is a byte, the vocabulary 256. Known binary formats and files
 *           with NUL bytes are refused (data_format.c)
 *   tokens  files that end in .bin, in the layouts of llm.c: 256 int32 (magic, version, count, then
 *           zeros), then `count` tokens. Magic 20240520, version 1: uint16, vocabulary 50257
 *           (GPT-2); magic 20240801, version 7: uint32, vocabulary 128256 (Llama 3). Or what
 *           tessera data prepare writes, with any vocabulary: data/shard.h
 *   "text"  the word: 12 MB of stories that a grammar makes, the same everywhere (data_text.c). The
 *           validation share is of whole documents
 *
 * length is T. The files are one stream, end to end: a sample may begin in one and end in the next,
 * and the last tokens, too few for a sample, are left out. The last `validation` share of the
 * samples, at least one, is the test split unless `validation_source` (NULL or "": none) names
 * files of their own. TESS_ERR_NOT_FOUND, TESS_ERR_DATA: messages name the file and the field, and
 * a set shorter than one sample of each split is an error.
 *
 * Names, headers and sizes are checked here; that tokens are in the vocabulary when a sample is
 * loaded: see tess_load_rows. A file that is cut short while it is in use fails there too: the
 * first sample that is read makes a handler of SIGBUS, which passes others on to the one before it.
 */
enum tess_status tess_dataset_open_tokens(const char *source, const char *validation_source,
                                          double validation, int64_t length,
                                          struct tess_dataset **dataset_out);

/*
 * The same with samples that are filled with whole documents in their order, as many as fit into T
 * tokens; behind them are zeros, whose labels are ignored, as is the label of a document's last
 * token. A document of more than T tokens is cut into pieces of T, of which only the last one
 * shares its sample with others. A file of text is one document. TESS_ERR_DATA for files that do
 * not say where documents end.
 */
enum tess_status tess_dataset_open_packed(const char *source, const char *validation_source,
                                          double validation, int64_t length,
                                          struct tess_dataset **dataset_out);

/* Samples of both splits of the text "text", without the text; 0: too few for that length. Pure. */
void tess_dataset_text_counts(double validation, int64_t length, int64_t *train_out,
                              int64_t *test_out);

/*
 * Where the documents of a sample begin among its positions, in order: begin_out [1 + T], the first
 * is 0; then the zeros at its end, if any. Returns how many. One of a set that is not packed.
 */
int32_t tess_dataset_documents(const struct tess_dataset *dataset, const struct tess_split *split,
                               int64_t sample, int32_t *begin_out);

#define TESS_MIX_MAX 64

/*
 * One set of 1 to TESS_MIX_MAX sets of tokens of one kind and length: their samples end to end, the
 * training samples drawn in proportion to the weights, each above 0, by tess_dataset_sample. Takes
 * the sets over, also when it fails: TESS_ERR_DATA where they differ in kind.
 */
enum tess_status tess_dataset_mix(struct tess_dataset **set, const double *weight, int32_t count,
                                  struct tess_dataset **dataset_out);

/*
 * Made-up images whose class can be learnt, for benches and tests without the data: the mean of a
 * random template of the class and of random noise. row is [H, W, C]; 1 to 65,536 classes; at least
 * one training image. TESS_ERR_USAGE for a set that is too large.
 */
enum tess_status tess_dataset_open_synthetic(struct tess_shape row, int32_t class_count,
                                             int64_t train_count, int64_t test_count, uint64_t seed,
                                             struct tess_dataset **dataset_out);

/*
 * Made-up text that can be learnt, for the same uses: a token is a byte, and after each one follow
 * four others, equally often and drawn from the seed. A model that has learnt them has a loss of ln
 * 4 at most. Each count is at least 1.
 */
enum tess_status tess_dataset_open_synthetic_tokens(int64_t length, int64_t train_count,
                                                    int64_t test_count, uint64_t seed,
                                                    struct tess_dataset **dataset_out);

/*
 * Fingerprint of a split, `train` or `test` of the set: the sizes of both, and the bytes of 64
 * samples spread over it (all of them where it has no more). The same on every layout. It is cheap
 * for any size, so a change of other samples alone is not seen.
 */
uint64_t tess_dataset_id(const struct tess_dataset *dataset, const struct tess_split *split);

/*
 * How many labels of these samples of the split count: those that are ignored are -1, or -100 as
 * PyTorch has it. The mean loss of a step is over the labels of the whole batch that count, which
 * any rank can count by this: nothing is sent. 0 for samples that fill up.
 */
int64_t tess_dataset_labels(const struct tess_dataset *dataset, const struct tess_split *split,
                            int64_t sample);

/*
 * The sampler: which sample of the split stands at global position `position` of an epoch; -1
 * beyond its end. Depends on nothing but its arguments, so that every layout sees the same batches.
 */
int64_t tess_sample_at(uint64_t seed, int64_t epoch, int64_t count, int64_t position, bool shuffle);
/* The same for the training split of a set, which may be a mix. */
int64_t tess_dataset_sample(const struct tess_dataset *dataset, uint64_t seed, int64_t epoch,
                            int64_t position, bool shuffle);

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
    bool flip;         /* random horizontal flip, keyed by sample and epoch */
    int64_t shift;     /* random shift by up to this many pixels, zero filled */
    int64_t size;      /* pixels of a side that images of folders are scaled to; 0: none */
    bool drop_last;    /* leave a short last batch of the epoch out */
    int64_t length;    /* tokens of a sample */
    double validation; /* share of the samples kept for validation */
    const char *validation_files; /* "": that share; else files as data names them */
    const char *mix;              /* "a:0.7,b:0.3"; "": none */
    bool packing;                 /* samples are whole documents */
};
extern const struct tess_option tess_loader_option_table[];

/*
 * Fill `input` [rows, H, W, C] in dtype (f32, bf16 or f16) with (pixel/255 - mean)/deviation and
 * `label` [rows] for the given samples; of tokens `input` [rows, T] in i32 and `label` [rows, T].
 * A negative sample is padding: zeros, labels -1. `augment`, of images only, is false for
 * evaluation. Pure.
 *
 * Returns rows; or the number of the first row with a token that is not in the vocabulary, which
 * is not filled, nor are those after it. tess_load_report logs what is wrong with it, in the thread
 * whose message it is to be.
 */
int64_t tess_load_rows(const struct tess_dataset *dataset, const struct tess_split *split,
                       const struct tess_loader_options *options, uint64_t seed, int64_t epoch,
                       bool augment, const int64_t *sample, int64_t rows, enum tess_dtype dtype,
                       void *input, int32_t *label);
/* TESS_ERR_DATA, with the file, the token's number in it and its value; TESS_ERR_IO: the file has
 * become shorter. */
enum tess_status tess_load_report(const struct tess_dataset *dataset,
                                  const struct tess_split *split, int64_t sample);

/*
 * A loader: prefetches the batches of one rank into `slot_count` slots of the caller's memory, in
 * the order in which they will be requested. The request function gives the samples of batch
 * number `batch`; it returns false when there is no such batch. It is called from the loader's
 * threads, once for each of 0, 1, 2, ..., never by two at a time (without workers: by the rank's
 * own thread, in tess_loader_next, and again for a batch that is not there or cannot be had).
 * Between two calls a slot belongs to the loader unless it is the one returned last.
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
    enum tess_dtype dtype; /* f32, bf16 or f16; of tokens i32 */
    int64_t rows_max;
    int32_t cores;      /* of this rank, for workers = -1 */
    int32_t slot_count; /* 1 (no prefetch) .. 4 */
    void *input[4];     /* each [rows_max, row] */
    int32_t *label[4];  /* each [rows_max, labels] */
    bool (*request)(void *context, int64_t batch, struct tess_batch_request *request);
    void *context;
};
enum tess_status tess_loader_open(const struct tess_loader_config *config,
                                  struct tess_loader **loader_out);
/*
 * The next batch, numbers 0, 1, 2, ...; the previous one's slot is given back. After the last batch
 * rows is 0 and the pointers are NULL. No allocation. TESS_ERR_DATA when a sample of the batch
 * cannot be had, and the same whenever it is requested again.
 */
enum tess_status tess_loader_next(struct tess_loader *loader, void **input_out, int32_t **label_out,
                                  int64_t *rows_out);
void tess_loader_close(struct tess_loader *loader); /* any time; joins; NULL is allowed */

#endif
