/*
 * Drives one model on one kernel without the engine: what the core does for a model, in its
 * plainest form. Every array has its own block of the heap, so that the sanitizers see each
 * overrun. Failures end the test through cmocka.
 */
#ifndef TESSERA_TESTS_MODELS_MODEL_DRIVER_H
#define TESSERA_TESTS_MODELS_MODEL_DRIVER_H

#include "core/state.h"
#include "state/declare.h"
#include "tessera/kernel.h"
#include "tessera/model.h"

struct model_driver {
    const struct tess_model_ops *model;
    struct tess_kernel *kernel;
    struct tess_model_input input;
    void *options, *state;
    struct tess_declare declare;
    int64_t rows, leaf_rows, input_count;
    int64_t labels;                  /* of a row: 1, or as the model declares */
    int64_t row_first;               /* of the pass in the global batch */
    struct tess_pass_run run;        /* decode: position of the only row */
    int32_t decode_place;            /* the same */
    const int32_t *document, *place; /* as in tess_pass; NULL: not packed */
    int32_t document_count;
    int64_t loss_count; /* labels that the loss is the mean of: rows x labels unless changed */
    uint64_t weight_token, step;
    bool training;
    bool remake;    /* backward finds no TESS_LIFE_REMADE tensor and makes it again */
    bool on_thread; /* failures are left in `status`, for the main thread to find */
    enum tess_status status;
    struct tess_tensor_pass crossing; /* canonical where a rank has several parts */

    float *x;           /* [rows, input row], f32; not of tokens */
    void *x_low;        /* the same in the run's precision; tokens: int32 [rows, T] */
    int32_t *label;     /* [rows, labels] */
    float *loss;        /* [rows], of the latest loss */
    float *each;        /* the test's own, or NULL: struct tess_pass */
    int32_t *correct;   /* [rows] */
    float **master;     /* per parameter, f32: change these and call model_refresh */
    void **param;       /* per parameter, in the run's precision */
    float **grad;       /* per parameter, written by model_backward; zero where unused,
                           NULL where frozen */
    bool *used;         /* per parameter, by the latest model_backward */
    void **output;      /* per unit */
    void **output_grad; /* per unit */
    void **tensor;
    struct tess_op **op;
};

/*
 * Open `model` with `argument_count` words such as "--hidden=8,6" on the backend `kernel`; images
 * are [height, width, channels] of random numbers with random labels, parameters drawn
 * as declared.
 */
void model_open(struct model_driver *driver, const char *model, const char *kernel,
                enum tess_dtype dtype, struct tess_shape row, int32_t class_count, int64_t rows,
                int64_t leaf_rows, const char *const *argument, int argument_count);
/*
 * The same for any `input`: samples of tokens, which are random and below class_count, a
 * tensor axis, decode. Parameters of a cut model have the values of the whole model's, padding is
 * zero.
 */
void model_open_input(struct model_driver *driver, const char *model, const char *kernel,
                      const struct tess_model_input *input, const char *const *argument,
                      int argument_count);
void model_close(struct model_driver *driver);

/* Add random numbers in [-scale, scale) to biases and norms, which begin alike: the same to the
 * same elements of the whole model however it is cut. */
void model_disturb(struct model_driver *driver, float scale);

/* A model's options with defaults and the given words; to be freed. */
void *model_read_options(const struct tess_model_ops *model, const char *const *argument,
                         int argument_count);

/* Round the masters to the parameters in use and mark them as changed for the kernel. A tied
 * parameter takes its source's values. */
void model_refresh(struct model_driver *driver);

/* Mean loss of the batch; sums of rows in double. Before every call what is left in a unit's
 * scratch is overwritten with NaN. */
double model_forward(struct model_driver *driver);

/* Gradients of the mean loss; after model_forward. Statistics of buffers land in grad too, and a
 * tied parameter's gradient is added to its source's. */
void model_backward(struct model_driver *driver);

/* The parts of parameter `param`, or of its gradient, that this rank holds: to their places in the
 * whole tensor. */
void model_gather(const struct model_driver *driver, int32_t param, const float *held,
                  float *whole);

/* The parameters of a model that is not cut, as a file of weights. */
void model_write(const struct model_driver *driver, const char *path);

/* Index of a parameter by name; fails the test when there is none. */
int32_t model_find(const struct model_driver *driver, const char *name);
int64_t model_param_count(const struct model_driver *driver, int32_t param);

/* Sum over all parameters, without buffers. */
int64_t model_parameter_total(const struct model_driver *driver);

#endif
