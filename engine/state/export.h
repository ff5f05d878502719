/*
 * Weights for other programs: the files of a run as a model's folder has them, in another type, in
 * files of a given size, adapters merged or by themselves, images channels first as PyTorch has
 * them.
 *
 *     model-00001-of-00002.safetensors ..., model.safetensors.index.json     a model's
 *     adapter_model.safetensors                                              adapters alone
 */
#ifndef TESSERA_STATE_EXPORT_H
#define TESSERA_STATE_EXPORT_H

#include "state/weights.h"

struct tess_export {
    const char *out;       /* folder, which is there */
    uint64_t file_most;    /* bytes of values in a file, exceeded where one tensor is larger */
    enum tess_dtype dtype; /* f32, bf16 or f16, rounded to nearest even */
    bool adapters;         /* adapters alone, named as PEFT does; else merged into their layers */
    double scale;          /* of what adapters add */
    bool gpt2;             /* layers are [in, out] in files, names have PEFT's "transformer." */
    bool images;           /* of convolutions, [out, height, width, in] in the run's files, and of
                              the layer that reads the last one's image: channels come first */
};

/* One tensor to write. */
struct tess_export_tensor {
    const char *name; /* in the run's files */
    int32_t index;    /* there */
    int32_t a, b;     /* of the adapter that is merged into it; -1: none */
    int64_t rows, line;
    int64_t channels; /* > 0: a row is [line / channels, channels], and becomes [channels, ...] */
    int32_t rank;
    int64_t dim[4]; /* as it is written */
};

struct tess_export_list {
    struct tess_export_tensor *tensor; /* [count] in the order of the files */
    int32_t count;
    float *room; /* of a merge: A and B of tensor room_of */
    int32_t room_of;
    float *turn; /* of a row whose channels come first */
};

/* The tensors that the export writes. TESS_ERR_DATA, TESS_ERR_MEMORY. fini also after a failure. */
enum tess_status tess_export_list(const struct tess_weights *weights,
                                  const struct tess_export *export,
                                  struct tess_export_list *list_out);
void tess_export_list_fini(struct tess_export_list *list);

/* Rows [first, first + count) of a tensor of the list, as they are written, in f32. TESS_ERR_IO. */
enum tess_status tess_export_rows(const struct tess_weights *weights,
                                  const struct tess_export *export, struct tess_export_list *list,
                                  const struct tess_export_tensor *tensor, int64_t first,
                                  int64_t count, float *w);

/* Write all files. TESS_ERR_IO. */
enum tess_status tess_export_write(const struct tess_weights *weights,
                                   const struct tess_export *export);

#endif
