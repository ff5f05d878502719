/*
 * A model that goes on with a sequence, on one rank and without an engine: it keeps the keys and
 * values of the positions before, and each step is the forward pass of one position.
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
    int threads;           /* of one operation */
    enum tess_dtype dtype; /* of activations and parameters */
    int32_t vocabulary;    /* 0: as many as the model's first parameter, the embedding, has rows */
    int64_t context;       /* positions at most */
    struct tess_lora lora;
};

/*
 * Declare, plan and fill everything: one allocation of tess_decoder_bytes(), parameters rounded to
 * dtype from `weights`, which is only read here. Computes where the kernels do: on a device, the
 * calling thread has selected it, now and for each step. All pointers of the configuration but
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
 * Take `token` as the sequence's at `position`: 0, or one after any that was taken, which forgets
 * the ones behind it. logits [vocabulary]: of the token that follows; NULL where they are not
 * wanted. TESS_ERR_USAGE for a token or a position that cannot be. No allocation.
 */
enum tess_status tess_decoder_step(struct tess_decoder *decoder, int32_t token, int64_t position,
                                   float *logits);

#endif
