/* The inside of struct tess_weights, shared by weights.c (the file as it is) and weights_model.c
 * (the file as a model's). */
#ifndef TESSERA_STATE_WEIGHTS_FILE_H
#define TESSERA_STATE_WEIGHTS_FILE_H

#include "state/weights.h"

#include <jansson.h>

struct tess__weights_tensor {
    const char *name; /* the header's */
    json_t *shape;
    const char *dtype_text;
    enum tess_dtype dtype; /* TESS_DTYPE_COUNT: one that is not read */
    uint64_t begin, end;   /* bytes among the values */
};

/* A parameter of the model and where the file has it. */
struct tess__weights_param {
    int32_t tensor;
    struct tess_declare_param declared;
};

struct tess_weights {
    int fd;
    char *path;
    json_t *header;
    uint64_t value_begin, value_bytes;   /* in the file */
    struct tess__weights_tensor *tensor; /* in order of begin */
    int32_t tensor_count;

    /* By tess_weights_match. */
    struct tess__weights_param *param; /* [parameters of the whole model] */
    int32_t left_out;

    /* Rows [tile_first, tile_first + tile_rows) of a transposed tensor, turned round. */
    float *tile;
    int64_t tile_room; /* elements */
    int32_t tile_tensor;
    int64_t tile_first, tile_rows;
};

/* Elements [from, from + count) of a tensor in the file's order, as f32. TESS_ERR_IO. */
enum tess_status tess__weights_values(const struct tess_weights *weights, int32_t tensor,
                                      int64_t from, int64_t count, float *w);

#endif
