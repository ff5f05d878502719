/*
 * Causal attention as graphs of cuDNN, which recognises the pattern and runs it as one fused
 * kernel; the tensors between are never stored. The patterns are those of "Fused Flash Attention"
 * in NVIDIA's reference of the backend API. With s[i, j] = q[i] . k[j] / sqrt(D):
 *
 *     forward   p = softmax over j <= i of s,  lse = max + log sum of exp (s - max),  y = p v
 *     backward  p = exp (s - lse) for j <= i,  dp = dy v^T,  ds = p (dp - sum of dy y) / sqrt(D),
 *               dv = p^T dy,  dk = ds^T q,  dq = ds k
 *
 * dq as one product, not as a sum in f32 memory that all blocks of keys add to, is what makes
 * backward give the same bits each time; cuDNN then keeps ds in its workspace. Heads of keys and
 * values that several query heads share get one gradient for each of those, and a sum over them.
 */
#include "cuda/attention/attention_graph.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Before this version a score that does not count must be a number, from it on minus infinity. */
#define GRAPH_INFINITE_VERSION 91000
/* Wrong results by these; and up to the last, of backward where the length is no multiple of 128.
 */
#define GRAPH_WRONG_FIRST  91000
#define GRAPH_WRONG_LAST   91001
#define GRAPH_PADDED_LAST  91500
#define GRAPH_PADDED_EVERY 128

/* ---- tensors ------------------------------------------------------------------------------ */

/* Tensors between operations, after the operands. */
enum {
    GRAPH_KT = ATTENTION_OPERANDS, /* k and v with rows and columns exchanged: the same memory */
    GRAPH_VT,
    GRAPH_S,
    GRAPH_SCALED,
    GRAPH_ROW,
    GRAPH_COLUMN,
    GRAPH_SEEN, /* column <= row */
    GRAPH_MASKED,
    GRAPH_MAX,
    GRAPH_SHIFTED,
    GRAPH_EXP,
    GRAPH_SUM,
    GRAPH_LOG,
    GRAPH_P,
    GRAPH_DY_Y,
    GRAPH_DY_Y_SUM,
    GRAPH_PT,
    GRAPH_DP,
    GRAPH_DP_LESS,
    GRAPH_DP_P,
    GRAPH_DS,
    GRAPH_DST,
    GRAPH_K_AGAIN,
    GRAPH_DK_HEADS, /* of each query head */
    GRAPH_DV_HEADS,
    GRAPH_TENSORS
};

/* Extents and strides, from the sizes of the operation. */
enum graph_shape {
    GRAPH_LIKE_Q,   /* [B, heads, T, D], as q, dq lie */
    GRAPH_LIKE_Y,   /* the same, as y, dy lie */
    GRAPH_LIKE_K,   /* [B, kv_heads, T, D] */
    GRAPH_LIKE_KT,  /* [B, kv_heads, D, T] */
    GRAPH_SCORES,   /* [B, heads, T, T] */
    GRAPH_SCORES_T, /* their rows and columns exchanged */
    GRAPH_ROWS,     /* [B, heads, T, 1] */
    GRAPH_HEADS,    /* [B, heads, T, D], between */
    GRAPH_NUMBER,
};

enum graph_type { GRAPH_STORED /* the operation's dtype */, GRAPH_F32, GRAPH_I32, GRAPH_BOOL };

static const struct graph_tensor {
    enum graph_shape shape;
    enum graph_type type;
    int memory; /* of which operand, where that is another one */
} graph_tensor[GRAPH_TENSORS] = {
    [ATTENTION_Q] = {GRAPH_LIKE_Q, GRAPH_STORED, 0},
    [ATTENTION_K] = {GRAPH_LIKE_K, GRAPH_STORED, 0},
    [ATTENTION_V] = {GRAPH_LIKE_K, GRAPH_STORED, 0},
    [ATTENTION_Y] = {GRAPH_LIKE_Y, GRAPH_STORED, 0},
    [ATTENTION_LSE] = {GRAPH_ROWS, GRAPH_F32, 0},
    [ATTENTION_DY] = {GRAPH_LIKE_Y, GRAPH_STORED, 0},
    [ATTENTION_DQ] = {GRAPH_LIKE_Q, GRAPH_STORED, 0},
    [ATTENTION_DK] = {GRAPH_LIKE_K, GRAPH_STORED, 0},
    [ATTENTION_DV] = {GRAPH_LIKE_K, GRAPH_STORED, 0},
    [ATTENTION_PRODUCT] = {GRAPH_ROWS, GRAPH_F32, 0},
    [ATTENTION_SCALE] = {GRAPH_NUMBER, GRAPH_F32, 0},
    [ATTENTION_MINUS_INF] = {GRAPH_NUMBER, GRAPH_F32, 0},
    [ATTENTION_ONE] = {GRAPH_NUMBER, GRAPH_F32, 0},
    [GRAPH_KT] = {GRAPH_LIKE_KT, GRAPH_STORED, ATTENTION_K},
    [GRAPH_VT] = {GRAPH_LIKE_KT, GRAPH_STORED, ATTENTION_V},
    [GRAPH_S] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_SCALED] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_ROW] = {GRAPH_SCORES, GRAPH_I32, 0},
    [GRAPH_COLUMN] = {GRAPH_SCORES, GRAPH_I32, 0},
    [GRAPH_SEEN] = {GRAPH_SCORES, GRAPH_BOOL, 0},
    [GRAPH_MASKED] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_MAX] = {GRAPH_ROWS, GRAPH_F32, 0},
    [GRAPH_SHIFTED] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_EXP] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_SUM] = {GRAPH_ROWS, GRAPH_F32, 0},
    [GRAPH_LOG] = {GRAPH_ROWS, GRAPH_F32, 0},
    [GRAPH_P] = {GRAPH_SCORES, GRAPH_STORED, 0},
    [GRAPH_DY_Y] = {GRAPH_HEADS, GRAPH_F32, 0},
    [GRAPH_DY_Y_SUM] = {GRAPH_ROWS, GRAPH_F32, 0},
    [GRAPH_PT] = {GRAPH_SCORES_T, GRAPH_STORED, 0},
    [GRAPH_DP] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_DP_LESS] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_DP_P] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_DS] = {GRAPH_SCORES, GRAPH_F32, 0},
    [GRAPH_DST] = {GRAPH_SCORES_T, GRAPH_STORED, 0},
    [GRAPH_K_AGAIN] = {GRAPH_LIKE_K, GRAPH_STORED, 0},
    [GRAPH_DK_HEADS] = {GRAPH_HEADS, GRAPH_STORED, 0},
    [GRAPH_DV_HEADS] = {GRAPH_HEADS, GRAPH_STORED, 0},
};

struct graph {
    struct cudnn_graph g;
    const struct tess_op_desc *d;
    int64_t sequences;
    bool shared; /* several query heads have one head of keys and values */
    cudnnBackendDescriptor_t tensor[GRAPH_TENSORS];
};

static void graph_lay(const struct graph *a, enum graph_shape shape, struct cudnn_tensor *t)
{
    const int64_t b = a->sequences, h = a->d->heads, kv = a->d->kv_heads, n = a->d->length,
                  e = a->d->in, q = a->d->q_stride, k = a->d->kv_stride;
    const int64_t lay[][2][4] = {
        [GRAPH_LIKE_Q] = {{b, h, n, e}, {n * q, e, q, 1}},
        [GRAPH_LIKE_Y] = {{b, h, n, e}, {n * h * e, e, h * e, 1}},
        [GRAPH_LIKE_K] = {{b, kv, n, e}, {n * k, e, k, 1}},
        [GRAPH_LIKE_KT] = {{b, kv, e, n}, {n * k, e, 1, k}},
        [GRAPH_SCORES] = {{b, h, n, n}, {h * n * n, n * n, n, 1}},
        [GRAPH_SCORES_T] = {{b, h, n, n}, {h * n * n, n * n, 1, n}},
        [GRAPH_ROWS] = {{b, h, n, 1}, {h * n, n, 1, 1}},
        [GRAPH_HEADS] = {{b, h, n, e}, {h * n * e, n * e, e, 1}},
        [GRAPH_NUMBER] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };
    memcpy(t->extent, lay[shape][0], sizeof(t->extent));
    memcpy(t->stride, lay[shape][1], sizeof(t->stride));
}

/* The tensor, made where it was not used before. */
static enum tess_status graph_tensor_of(struct graph *a, int which, cudnnBackendDescriptor_t *out)
{
    const struct graph_tensor *about = &graph_tensor[which];
    const cudnnDataType_t stored = a->d->dtype == TESS_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const cudnnDataType_t type[] = {stored, CUDNN_DATA_FLOAT, CUDNN_DATA_INT32, CUDNN_DATA_BOOLEAN};
    *out = a->tensor[which];
    if (*out != NULL || which == 0)
        return TESS_OK;
    struct cudnn_tensor t = {
        .id = about->memory != 0 ? about->memory : which,
        .type = type[about->type],
        .align = about->type == GRAPH_STORED ? ATTENTION_ALIGN : (int64_t)sizeof(float),
        .virtual = which >= ATTENTION_OPERANDS && about->memory == 0,
        .by_value = about->shape == GRAPH_NUMBER,
    };
    graph_lay(a, about->shape, &t);
    TESS_TRY(tess__cudnn_add_tensor(&a->g, &t, &a->tensor[which]));
    *out = a->tensor[which];
    return TESS_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

enum graph_kind { GRAPH_POINTWISE, GRAPH_INDEX, GRAPH_MATMUL, GRAPH_REDUCE, GRAPH_RESHAPE };

/* y from a, b, c. `mode` of the kind; of an index the axis. */
struct graph_node {
    enum graph_kind kind;
    int mode, y, a, b, c;
};

static const struct graph_node graph_scores[] = {
    {GRAPH_MATMUL, 0, GRAPH_S, ATTENTION_Q, GRAPH_KT, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_MUL, GRAPH_SCALED, GRAPH_S, ATTENTION_SCALE, 0},
};

static const struct graph_node graph_forward[] = {
    {GRAPH_INDEX, 2, GRAPH_ROW, GRAPH_SCALED, 0, 0},
    {GRAPH_INDEX, 3, GRAPH_COLUMN, GRAPH_SCALED, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_CMP_GE, GRAPH_SEEN, GRAPH_ROW, GRAPH_COLUMN, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, GRAPH_MASKED, GRAPH_SCALED,
     ATTENTION_MINUS_INF, GRAPH_SEEN},
    {GRAPH_REDUCE, CUDNN_REDUCE_TENSOR_MAX, GRAPH_MAX, GRAPH_MASKED, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_SUB, GRAPH_SHIFTED, GRAPH_MASKED, GRAPH_MAX, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_EXP, GRAPH_EXP, GRAPH_SHIFTED, 0, 0},
    {GRAPH_REDUCE, CUDNN_REDUCE_TENSOR_ADD, GRAPH_SUM, GRAPH_EXP, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_LOG, GRAPH_LOG, GRAPH_SUM, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_ADD, ATTENTION_LSE, GRAPH_MAX, GRAPH_LOG, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_DIV, GRAPH_P, GRAPH_EXP, GRAPH_SUM, 0},
    {GRAPH_MATMUL, 0, ATTENTION_Y, GRAPH_P, ATTENTION_V, 0},
};

/* Before the scores. */
static const struct graph_node graph_product[] = {
    {GRAPH_POINTWISE, CUDNN_POINTWISE_MUL, GRAPH_DY_Y, ATTENTION_DY, ATTENTION_Y, 0},
    {GRAPH_REDUCE, CUDNN_REDUCE_TENSOR_ADD, GRAPH_DY_Y_SUM, GRAPH_DY_Y, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_MUL, ATTENTION_PRODUCT, GRAPH_DY_Y_SUM, ATTENTION_ONE, 0},
};

/* GRAPH_DV_HEADS and GRAPH_DK_HEADS stand for dv and dk where no heads are shared. */
static const struct graph_node graph_backward[] = {
    {GRAPH_POINTWISE, CUDNN_POINTWISE_SUB, GRAPH_SHIFTED, GRAPH_SCALED, ATTENTION_LSE, 0},
    {GRAPH_INDEX, 2, GRAPH_ROW, GRAPH_SHIFTED, 0, 0},
    {GRAPH_INDEX, 3, GRAPH_COLUMN, GRAPH_SHIFTED, 0, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_CMP_GE, GRAPH_SEEN, GRAPH_ROW, GRAPH_COLUMN, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, GRAPH_MASKED, GRAPH_SHIFTED,
     ATTENTION_MINUS_INF, GRAPH_SEEN},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_EXP, GRAPH_EXP, GRAPH_MASKED, 0, 0},
    {GRAPH_RESHAPE, 0, GRAPH_PT, GRAPH_EXP, 0, 0},
    {GRAPH_MATMUL, 0, GRAPH_DV_HEADS, GRAPH_PT, ATTENTION_DY, 0},
    {GRAPH_REDUCE, CUDNN_REDUCE_TENSOR_ADD, ATTENTION_DV, GRAPH_DV_HEADS, 0, 0},
    {GRAPH_MATMUL, 0, GRAPH_DP, ATTENTION_DY, GRAPH_VT, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_SUB, GRAPH_DP_LESS, GRAPH_DP, ATTENTION_PRODUCT, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_MUL, GRAPH_DP_P, GRAPH_DP_LESS, GRAPH_EXP, 0},
    {GRAPH_POINTWISE, CUDNN_POINTWISE_MUL, GRAPH_DS, GRAPH_DP_P, ATTENTION_SCALE, 0},
    {GRAPH_RESHAPE, 0, GRAPH_DST, GRAPH_DS, 0, 0},
    {GRAPH_MATMUL, 0, GRAPH_DK_HEADS, GRAPH_DST, ATTENTION_Q, 0},
    {GRAPH_REDUCE, CUDNN_REDUCE_TENSOR_ADD, ATTENTION_DK, GRAPH_DK_HEADS, 0, 0},
    {GRAPH_RESHAPE, 0, GRAPH_K_AGAIN, GRAPH_KT, 0, 0},
    {GRAPH_MATMUL, 0, ATTENTION_DQ, GRAPH_DS, GRAPH_K_AGAIN, 0},
};

static enum tess_status graph_add_matmul(struct cudnn_graph *g, cudnnBackendDescriptor_t a,
                                         cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how, d;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &how));
    TESS_TRY(
        tess__cudnn_set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TESS_TRY(tess__cudnn_finish(g, how));
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &d));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how));
    return tess__cudnn_add_operation(g, d);
}

static enum tess_status graph_add_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t mode,
                                         cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how, d;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &how));
    TESS_TRY(
        tess__cudnn_set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TESS_TRY(tess__cudnn_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR,
                             CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode));
    TESS_TRY(tess__cudnn_finish(g, how));
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &d));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y));
    return tess__cudnn_add_operation(g, d);
}

static enum tess_status graph_add_reshape(struct cudnn_graph *g, cudnnBackendDescriptor_t x,
                                          cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t d;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &d));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y));
    return tess__cudnn_add_operation(g, d);
}

static enum tess_status graph_add_node(struct graph *a, const struct graph_node *node, int y_id)
{
    cudnnBackendDescriptor_t x, b, c, y;
    TESS_TRY(graph_tensor_of(a, node->a, &x));
    TESS_TRY(graph_tensor_of(a, node->b, &b));
    TESS_TRY(graph_tensor_of(a, node->c, &c));
    TESS_TRY(graph_tensor_of(a, y_id, &y));
    switch (node->kind) {
    case GRAPH_MATMUL:
        return graph_add_matmul(&a->g, x, b, y);
    case GRAPH_REDUCE:
        return graph_add_reduce(&a->g, (cudnnReduceTensorOp_t)node->mode, x, y);
    case GRAPH_RESHAPE:
        return graph_add_reshape(&a->g, x, y);
    default:
        break;
    }
    const bool index = node->kind == GRAPH_INDEX;
    const struct cudnn_pointwise p = {
        .mode = index ? CUDNN_POINTWISE_GEN_INDEX : (cudnnPointwiseMode_t)node->mode,
        .compute = y_id == GRAPH_SEEN ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT,
        .axis = node->mode,
        .x = x,
        .b = b,
        .t = c,
        .y = y,
    };
    return tess__cudnn_add_pointwise(&a->g, &p);
}

static enum tess_status graph_add(struct graph *a, const struct graph_node *node, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bool heads = node[i].y == GRAPH_DV_HEADS || node[i].y == GRAPH_DK_HEADS;
        const bool sum = node[i].a == GRAPH_DV_HEADS || node[i].a == GRAPH_DK_HEADS;
        if (sum && !a->shared)
            continue;
        TESS_TRY(graph_add_node(a, &node[i],
                                !heads || a->shared           ? node[i].y
                                : node[i].y == GRAPH_DV_HEADS ? ATTENTION_DV
                                                              : ATTENTION_DK));
    }
    return TESS_OK;
}

#define GRAPH_ADD(a, nodes) TESS_TRY(graph_add(a, nodes, sizeof(nodes) / sizeof(*(nodes))))

static enum tess_status graph_build(struct graph *a, enum attention_way way)
{
    if (way == ATTENTION_BACKWARD)
        GRAPH_ADD(a, graph_product);
    GRAPH_ADD(a, graph_scores);
    if (way == ATTENTION_FORWARD)
        GRAPH_ADD(a, graph_forward);
    else
        GRAPH_ADD(a, graph_backward);
    return TESS_OK;
}

float tess__cudnn_attention_minus_inf(void)
{
    const struct cudnn_library *library = tess__cudnn_library(NULL);
    return library->cudnnGetVersion() < GRAPH_INFINITE_VERSION ? -FLT_MAX : -INFINITY;
}

/* Does this version compute it, and rightly? */
static bool graph_is_sound(const struct cudnn_library *library, const struct tess_op_desc *d,
                           enum attention_way way)
{
    const size_t version = library->cudnnGetVersion();
    const bool padded = d->length % GRAPH_PADDED_EVERY != 0;
    if (version >= GRAPH_WRONG_FIRST && version <= GRAPH_WRONG_LAST)
        return false;
    if (way == ATTENTION_BACKWARD && (d->length == 1 || (padded && version <= GRAPH_PADDED_LAST)))
        return false;
    return d->dtype != TESS_F32 && d->in % 8 == 0 && d->q_stride % 8 == 0 && d->kv_stride % 8 == 0;
}

enum tess_status tess__cudnn_attention_choose(const struct tess_op_desc *desc, int64_t sequences,
                                              enum attention_way way, int64_t workspace_bytes,
                                              const struct cudnn_place *place,
                                              struct cudnn_choice *choice_out)
{
    struct graph a = {.g = {.library = tess__cudnn_library(NULL),
                            .place = place,
                            .workspace_bytes = workspace_bytes},
                      .d = desc,
                      .sequences = sequences,
                      .shared = desc->kv_heads < desc->heads};
    *choice_out = (struct cudnn_choice){0};
    if (a.g.library == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph was requested without cuDNN");
    if (!graph_is_sound(a.g.library, desc, way))
        return TESS_OK;
    enum tess_status status = graph_build(&a, way);
    if (status == TESS_OK)
        status = tess__cudnn_choose(&a.g, choice_out);
    tess__cudnn_drop(&a.g, 0);
    return status;
}
