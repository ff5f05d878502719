/* What a model declared: units, parameters, tensors, operations. Filled through tessera/model.h. */
#ifndef TESSERA_CORE_DECLARE_H
#define TESSERA_CORE_DECLARE_H

#include "tessera/model.h"
#include "tessera/strategy.h"

#define TESS_NAME_MAX 64

struct tess_declare_unit {
    char name[TESS_NAME_MAX];
    int64_t output_count; /* elements per row */
};

struct tess_declare_param {
    char name[TESS_NAME_MAX];
    int32_t unit;
    struct tess_shape shape;
    struct tess_init init;
    uint32_t flags;
    float rate; /* TESS_PARAM_BUFFER */
};

struct tess_declare_tensor {
    char name[TESS_NAME_MAX];
    int32_t unit;
    enum tess_dtype dtype;
    int64_t count; /* elements per row, leaf or micro-batch */
    enum tess_life life;
};

struct tess_declare_op {
    int32_t unit;
    struct tess_op_desc desc;
};

struct tess_declare {
    struct tess_declare_unit *unit;
    struct tess_declare_param *param;
    struct tess_declare_tensor *tensor;
    struct tess_declare_op *op;
    int32_t unit_count, param_count, tensor_count, op_count;
    int64_t rows, leaf_rows; /* given to operations */
    enum tess_dtype dtype;
    bool conditional;        /* backward may leave parameters unused */
    enum tess_status status; /* the first thing that went wrong */
};

/* Run a model's declare() and check what it declared. `declare` is zeroed by the caller, who sets
 * rows, leaf_rows and dtype; fini is due also after a failure. */
enum tess_status tess_declare_model(struct tess_declare *declare,
                                    const struct tess_model_ops *model, void *state,
                                    const void *options, const struct tess_model_input *input);
void tess_declare_fini(struct tess_declare *declare);

#endif
