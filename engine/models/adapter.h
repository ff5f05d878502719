/*
 * Low-rank adapters of linear layers (tess_lora): y += u B^T of u = scale x A^T, beside a frozen
 * layer (layer.h). A has r rows and is drawn as a linear layer's weight, B is zero at first, as in
 * Hugging Face's PEFT.
 *
 * Along the tensor axis u is a sum where the layer is cut by inputs, and u's gradient where it is
 * cut by outputs. Both are of r channels and added in f32, so that each rank has all of them:
 *
 *     by outputs    u = x A^T       y_p += u B_p^T    du = sum over p of dy_p B_p    dA = du^T x
 *     by inputs     u = sum over p of x_p A_p^T       y += u B^T      du = dy B      dA_p = du^T
 * x_p
 *
 * What is added once, of parts that are added up later, is added to the first of all parts.
 */
#ifndef TESSERA_MODELS_ADAPTER_H
#define TESSERA_MODELS_ADAPTER_H

#include "layer.h"

struct tess__adapter {
    int64_t rank; /* r; 0: there is none, and all functions do nothing */
    enum tess__split split;
    float scale;
    int64_t positions, in, out;  /* of a part */
    int32_t a, b;                /* parameters [r, in], [out, r] of the whole layer */
    int32_t op_a, op_b;          /* operations */
    int32_t low, low_grad, wide; /* tensors: u, du [positions, r]; their terms in f32, or -1 */
    int32_t room;                /* tensor [positions, in or out]: see tess__adapter_room */
};

/* Does a layer of this name get an adapter: is its end, after a point, among the targets? */
bool tess__adapter_is_target(const struct tess_lora *lora, const char *name);

/* Declare <name>.lora_A.weight and the rest in the current unit, where the layer is a target. Call
 * it behind all else that the unit declares of parameters. */
void tess__adapter_declare(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                           const struct tess_lora *lora, const struct tess__layer_desc *desc,
                           struct tess__adapter *adapter_out);

/* Elements of a row that the adapter's room needs; the room is a tensor of TESS_LIFE_UNIT that the
 * adapters of a unit share, for which the caller sets `room`. */
int64_t tess__adapter_room(const struct tess__adapter *adapter);

/* After a part of the layer: x, y as there. And after the last part, y being the first part's. */
enum tess_status tess__adapter_forward(const struct tess_pass *pass,
                                       const struct tess__adapter *adapter, int32_t part,
                                       const void *x, void *y);
enum tess_status tess__adapter_forward_end(const struct tess_pass *pass,
                                           const struct tess__adapter *adapter, void *y);

/*
 * Before the layer's backward of a part, which may overwrite x: gradients of A and B. After it:
 * dx += the adapter's part. After the last part: x of the layer, dx of the first part.
 */
enum tess_status tess__adapter_backward(const struct tess_pass *pass,
                                        const struct tess__adapter *adapter, int32_t part,
                                        const void *x, const void *dy);
enum tess_status tess__adapter_backward_data(const struct tess_pass *pass,
                                             const struct tess__adapter *adapter, int32_t part,
                                             void *dx);
enum tess_status tess__adapter_backward_end(const struct tess_pass *pass,
                                            const struct tess__adapter *adapter, const void *x,
                                            void *dx);

#endif
