/*
 * A model that goes on with sequences, on one rank and without an engine: it keeps the keys and
 * values of the positions before, and each call is the forward pass of some positions of some
 * sequences. What it computes for a position has the bits of the training forward, where the
 * kernel's operations promise that for their rows.
 */
#ifndef TESSERA_CORE_DECODE_H
#define TESSERA_CORE_DECODE_H

#include "tessera/memory.h"
#include "tessera/model.h"

struct tess_decoder;
struct tess_weights;

struct tess_decoder_config {
    const struct tess_model_ops *model; /* one for tokens */
    const void *options;                /* the model's */
    const struct tess_kernel_ops *kernel;
    const struct tess_kernel_choices *choices; /* NULL: the kernel's own; read until it is open */
    int threads;                               /* of one operation */
    enum tess_dtype dtype;                     /* of activations and parameters */
    uint32_t f32_ops;   /* kinds of operations that multiply in f32: tess_precision_f32_ops */
    int32_t vocabulary; /* 0: as many as the model's first parameter, the embedding, has rows */
    int64_t context;    /* positions of a sequence at most */
    int64_t learnt;     /* positions of a training sample; 0: context */
    int32_t sequences;  /* at once; 0: one */
    int64_t chunk;      /* positions of one call at most, if more than `sequences`; 0: one */
    struct tess_lora lora;
    int32_t parts; /* of the tensor axis, a power of two (--tensor.canonical); 0: one */
};

/* Positions position .. position + count - 1 of a sequence. */
struct tess_decoder_part {
    int32_t sequence;
    int64_t position, count;
    const int32_t *token; /* [count] */
    const int32_t *label; /* [count] NULL: no loss; -1: 0 for this one */
    float *loss;          /* [count] written: minus the log-probability of each label */
    float *logits;        /* [vocabulary] written: of the token that follows the last; or NULL */
};

/*
 * Declare, plan and fill everything: one allocation of tess_decoder_bytes(), parameters rounded to
 * dtype from `weights`, which is only read here. Computes where the kernels do: on a device, the
 * calling thread has selected it, now and for each call. All pointers of the configuration but
 * `kernel` and `model` are borrowed until close. TESS_ERR_USAGE what the model refuses,
 * TESS_ERR_DATA weights of another model, TESS_ERR_UNSUPPORTED a model that does not generate.
 */
enum tess_status tess_decoder_open(const struct tess_decoder_config *config,
                                   struct tess_weights *weights, struct tess_decoder **decoder_out);
void tess_decoder_close(struct tess_decoder *decoder); /* NULL is allowed */

int32_t tess_decoder_vocabulary(const struct tess_decoder *decoder);

/* Bytes of the arena: parameters, keys and values, room to work in. */
uint64_t tess_decoder_bytes(const struct tess_decoder *decoder);

/*
 * Take the parts, all of different sequences, at once; together they have at most the greater of
 * `sequences` and `chunk` positions. A part begins at position 0 of its sequence, or one after any
 * that was taken, which forgets the ones behind it. TESS_ERR_USAGE for a token, a label or a
 * position that cannot be. No allocation.
 */
enum tess_status tess_decoder_run(struct tess_decoder *decoder,
                                  const struct tess_decoder_part *part, int32_t part_count);

#endif
