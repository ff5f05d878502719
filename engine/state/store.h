/*
 * The tensors of a training's state in files, which all ranks write and read at the same time, each
 * the elements that it owns: values of parameters and buffers, and arrays of the optimizer. What
 * lies where follows from the model and the optimizer alone, so every layout of ranks writes the
 * same bytes.
 *
 *     model-00001-of-00002.safetensors      values, in the shapes of weights.h: padding left out,
 *                                           transposed where the model declares it
 *     model.safetensors.index.json          which file has which tensor, as Hugging Face's loaders
 *                                           need it
 *     optimizer-00001-of-00003.safetensors  arrays "m." and "v." of each parameter, rows and
 * columns as in memory, padding left out; buffers have none
 *
 * All are f32, in order of declaration; a tied parameter is its source's. A tensor lies in one
 * file whole; a file ends before it would exceed the size given.
 */
#ifndef TESSERA_STATE_STORE_H
#define TESSERA_STATE_STORE_H

#include "state/declare.h"

#define TESS_STORE_ARRAYS_MAX 2

/* Names of the optimizer's arrays, as struct tess_update has them. */
extern const char *const tess_store_array_name[TESS_STORE_ARRAYS_MAX];

struct tess_store_file {
    char name[64];
    char *header; /* the file's first header_bytes bytes */
    size_t header_bytes;
    uint64_t bytes; /* of the whole file */
};

struct tess_store_tensor {
    int32_t file;       /* -1: there is none */
    uint64_t begin;     /* byte of the file where its values begin */
    int64_t count;      /* elements in the file */
    int64_t rows, line; /* where the file has it transposed: rows that it has, and elements of a
                           row, of the tensor in memory; else 0 */
};

/* Zero it, then plan. */
struct tess_store {
    struct tess_store_file *file; /* [file_count] */
    int32_t file_count;
    struct tess_store_tensor *tensor; /* [1 + arrays, param_count], tess_store_find */
    int32_t param_count, arrays;
    char *index; /* text of model.safetensors.index.json */
};

/*
 * model: the whole one. arrays: of the optimizer, 0 to TESS_STORE_ARRAYS_MAX. file_most: bytes of
 * values in a file, exceeded where one tensor is larger. TESS_ERR_MEMORY. fini also after a
 * failure.
 */
enum tess_status tess_store_plan(const struct tess_declare *model, int32_t arrays,
                                 uint64_t file_most, struct tess_store *store);
void tess_store_fini(struct tess_store *store);

/* The tensor of parameter `param`, a number in the whole model of one that is not tied: array -1,
 * its values; else of the optimizer. */
const struct tess_store_tensor *tess_store_find(const struct tess_store *store, int32_t param,
                                                int32_t array);

/*
 * Elements of what a rank holds of a parameter, from element `at` on, that are read and written at
 * once: `rows` rows of `columns` elements, one after the other here; element *whole is the first in
 * the whole tensor. Where files have the tensor transposed rows follow each other there too; else
 * there is one row. rows 0: `columns` elements of padding, which no file has.
 */
struct tess_store_block {
    int64_t whole, rows, columns;
};

/* The largest block of at most `most` elements, at least 1. Pure. */
struct tess_store_block tess_store_block_at(const struct tess_declare_param *param,
                                            const struct tess_tensor_axis *axis, int64_t at,
                                            int64_t most);

/*
 * Write, or read, the elements of a block, x [rows, columns], in a tensor's file, which is open as
 * fd. room [rows * columns]: needed where the file has the tensor transposed. Returns errno, 0 when
 * done; -1: the file ends too early. By any number of ranks and threads at the same time.
 */
int tess_store_write(int fd, const struct tess_store_tensor *tensor,
                     const struct tess_store_block *block, const float *x, float *room);
int tess_store_read(int fd, const struct tess_store_tensor *tensor,
                    const struct tess_store_block *block, float *x, float *room);

/* The check of a tensor's values adds up over the blocks that make it up: the sum, mod 2^64, of
 * tess_hash_f32 by the element's number in the whole tensor. */
uint64_t tess_store_check(const struct tess_declare_param *param,
                          const struct tess_store_block *block, const float *x);

/*
 * Is this file, open as fd, one that tess_store_plan describes: its length, and name, dtype, shape
 * and place of every tensor? TESS_ERR_DATA names `path` and the first tensor that differs;
 * TESS_ERR_IO.
 */
enum tess_status tess_store_match(const struct tess_store_file *file, int fd, const char *path);

#endif
