/*
 * Weights in a file of their own, in the safetensors format: what a run leaves behind, and what
 * another begins with, under any strategy on any number of ranks.
 *
 *     | header length, u64 | header: JSON, padded with blanks | values of all tensors, end to end |
 *
 * all little endian. The header gives each tensor a dtype, a shape and its bytes [begin, end) in
 * the values. (Hugging Face, "safetensors", format section of its README.)
 */
#ifndef TESSERA_CORE_WEIGHTS_H
#define TESSERA_CORE_WEIGHTS_H

#include "core/declare.h"

struct tess_weights; /* a file that was opened for reading */

/*
 * Open and check: the length of the header against the file, the JSON, names, dtypes (F32, BF16 or
 * F16), shapes, and that the tensors lie end to end and fill the file. Values are read later, from
 * the file that is open now. TESS_ERR_IO, TESS_ERR_DATA; messages name the file and the tensor.
 */
enum tess_status tess_weights_open(const char *path, struct tess_weights **weights_out);
void tess_weights_close(struct tess_weights *weights); /* NULL is allowed */

/* Has the file exactly the parameters and buffers that the model declared, in their shapes? Needed
 * before tess_weights_read. TESS_ERR_DATA names the first that is missing, strange or different. */
enum tess_status tess_weights_match(struct tess_weights *weights,
                                    const struct tess_declare *declare);

/* Elements [from, from + count) of parameter `param` as f32. TESS_ERR_IO when the file has become
 * shorter. Any thread. */
enum tess_status tess_weights_read(const struct tess_weights *weights, int32_t param, int64_t from,
                                   int64_t count, float *w);

/* The header of a file of f32 tensors, with its length before it and blanks behind it so that the
 * values begin at a multiple of 8; to be freed. NULL without memory. */
char *tess_weights_header(const struct tess_declare *declare, size_t *bytes_out);

#endif
