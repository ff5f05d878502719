/*
 * Weights in a file of their own, in the safetensors format: what a run leaves behind, and what
 * another begins with, under any strategy on any number of ranks.
 *
 *     | header length, u64 | header: JSON, padded with blanks | values of all tensors, end to end |
 *
 * all little endian. The header gives each tensor a dtype, a shape and its bytes [begin, end) in
 * the values. (Hugging Face, "safetensors", format section of its README.)
 *
 * Files have a parameter in its usual shape (tess_declare_file_shape): without the padding of a
 * vocabulary, and as [in, out] where the model declares it; tied parameters are not in them.
 * Elements are requested by their number in the model's whole tensor:
 *
 *     whole [4, 3], 2 of 4 rows used        file [2, 3]       file of the transposed one [3, 2]
 *         0  1  2                             0  1  2             0  3
 *         3  4  5                             3  4  5             1  4
 *         6  7  8     padding, reads as 0                         2  5
 *         9 10 11     likewise
 */
#ifndef TESSERA_STATE_WEIGHTS_H
#define TESSERA_STATE_WEIGHTS_H

#include "state/declare.h"

struct tess_weights; /* one file or several, opened for reading */

/*
 * Open and check `path`: a file, or the index of several; or a folder, which is a run's (its newest
 * complete checkpoint, else weights.safetensors), a checkpoint's, or one with model.safetensors or,
 * for several files, model.safetensors.index.json. Of every file the length of the header is
 * checked, the JSON, names, dtypes, shapes, and that the tensors lie end to end and fill the file;
 * of an index that each tensor lies where it says, and nowhere else. Values are read later, from
 * the files that are open now. TESS_ERR_IO, TESS_ERR_DATA, TESS_ERR_NOT_FOUND (a folder without
 * weights); messages name the file and the tensor.
 */
enum tess_status tess_weights_open(const char *path, struct tess_weights **weights_out);
void tess_weights_close(struct tess_weights *weights); /* NULL is allowed */

/*
 * Have the files exactly the parameters and buffers of the whole model `declare`, in the shapes of
 * files, in F32, BF16 or F16? Names may have GPT-2's "transformer." before them or not. Left out
 * are the masks and frequencies that older files carry, and a tied parameter's copy where it is
 * equal to its source. Needed before tess_weights_read. TESS_ERR_DATA names the first tensor that
 * is missing, strange or different.
 */
enum tess_status tess_weights_match(struct tess_weights *weights,
                                    const struct tess_declare *declare);

/* The same for the model's adapters (TESS_PARAM_ADAPTER) alone, in a file of theirs: all of them,
 * and nothing else. Of a model's weights match accepts all or none. */
enum tess_status tess_weights_match_adapters(struct tess_weights *weights,
                                             const struct tess_declare *declare);

/* Do the files that were matched have this parameter? */
bool tess_weights_has(const struct tess_weights *weights, int32_t param);

/* Tensors that tess_weights_match left out. */
int32_t tess_weights_left_out(const struct tess_weights *weights);

/* Dimension `dim` of a tensor of the file, its name with or without "transformer."; 0 when there
 * is no such tensor or dimension. */
int64_t tess_weights_dim(const struct tess_weights *weights, const char *name, int32_t dim);

/*
 * Elements [from, from + count) of the whole tensor of parameter `param` (its number in the whole
 * model) as f32; padding is 0, and so is one that
 * the files do not have; a tied one has its source's. Increasing runs are fast, whatever
 * their length; memory beyond `w` is bounded (16 MiB). TESS_ERR_IO when the file has become
 * shorter. By one thread at a time.
 */
enum tess_status tess_weights_read(struct tess_weights *weights, int32_t param, int64_t from,
                                   int64_t count, float *w);

/*
 * The header of a file of f32 tensors for the whole model `declare`, with its length before it and
 * blanks behind it so that the values begin at a multiple of 8; to be freed. The values are those
 * of all parameters but the tied ones, in order of declaration. NULL without memory.
 */
char *tess_weights_header(const struct tess_declare *declare, size_t *bytes_out);

#endif
