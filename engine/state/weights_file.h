/* The inside of struct tess_weights, shared by weights.c (a file as it is), weights_open.c (which
 * files there are) and weights_model.c (the files as a model's). */
#ifndef TESSERA_STATE_WEIGHTS_FILE_H
#define TESSERA_STATE_WEIGHTS_FILE_H

#include "state/weights.h"

#include <jansson.h>

struct tess__weights_file {
    int fd;
    char *path;
    json_t *header;
    uint64_t value_begin, value_bytes; /* in the file */
};

struct tess__weights_tensor {
    const char *name; /* the header's */
    int32_t file;
    json_t *shape;
    const char *dtype_text;
    enum tess_dtype dtype; /* TESS_DTYPE_COUNT: one that is not read */
    uint64_t begin, end;   /* bytes among the values */
};

/* A parameter of the model and where the file has it. */
struct tess__weights_param {
    int32_t tensor;
    int64_t channels; /* > 0: a row is [places, channels] here and [channels, places] in the file */
    struct tess_declare_param declared;
};

struct tess_weights {
    char *path; /* of the file or folder that was opened */
    struct tess__weights_file *file;
    int32_t file_count;
    struct tess__weights_tensor *tensor; /* file by file, in order of begin */
    int32_t tensor_count;

    /* By tess_weights_match. */
    struct tess__weights_param *param; /* [parameters of the whole model] */
    int32_t left_out;

    /* Rows [tile_first, tile_first + tile_rows) of a tensor that is another way round in the file,
     * turned round. */
    float *tile;
    int64_t tile_room; /* elements */
    int32_t tile_tensor;
    int64_t tile_first, tile_rows;
};

/* Weights without a file yet: NULL without memory. close as tess_weights_close. */
struct tess_weights *tess__weights_new(const char *path);

/* Open and check one more file, and add its tensors. */
enum tess_status tess__weights_add(struct tess_weights *weights, const char *path);

/* The path of a tensor's file, for messages. */
static inline const char *tess__weights_path(const struct tess_weights *weights, int32_t tensor)
{
    return weights->file[weights->tensor[tensor].file].path;
}

/* Elements [from, from + count) of a tensor in the file's order, as f32. TESS_ERR_IO. */
enum tess_status tess__weights_values(const struct tess_weights *weights, int32_t tensor,
                                      int64_t from, int64_t count, float *w);

#endif
