/*
 * The inside of model gpt, shared by its files: gpt.c (options, the chain of units, embeddings),
 * gpt_block.c (attention and feed-forward), gpt_qk.c (queries and keys before attention),
 * gpt_head.c (logits and loss) and gpt_parts.c (norms and what else several units have).
 *
 * Shapes: B rows of T positions, C channels, H heads of D (H D is C unless the options say so), KV
 * key and value heads, F the feed-forward layer's width, V the padded vocabulary. N is B T; with
 * sequence parallel over n ranks, M is N/n, the positions for which this rank computes what the
 * tensor axis does not cut, else N. P is the number of parts that this rank computes; tensors of
 * cut things are [P, N, ...].
 */
#ifndef TESSERA_MODELS_GPT_H
#define TESSERA_MODELS_GPT_H

#include "adapter.h"

#define GPT_LAYERS_MAX      512
#define GPT_PROJECTIONS_MAX TESS_STACK_MAX /* q, k, v; one where they are one product */

struct gpt_norm {
    int32_t op, gamma, beta; /* beta -1: none */
    int32_t mean, rstd;      /* tensors; mean -1: none */
    int32_t unread; /* tensor [2, C]: gradients of frozen parameters; -1: they are trained */
};

/* What is done to q, or to k. All -1 where there is no norm of heads. */
struct gpt_qk {
    int32_t op, gain; /* of the norm; gain [D] */
    int32_t turned;   /* tensor: what attention reads; else it is as projected, in place */
    int32_t rstd;
};

/* Adapters, by the layers that they are beside. */
enum {
    GPT_ADAPTER_PROJECT,
    GPT_ADAPTER_JOIN = GPT_ADAPTER_PROJECT + GPT_PROJECTIONS_MAX,
    GPT_ADAPTER_WIDEN,
    GPT_ADAPTER_NARROW = GPT_ADAPTER_WIDEN + 2,
    GPT_ADAPTERS
};

/* Tensors -1: not there. */
struct gpt_block {
    struct gpt_norm norm[2];
    struct tess__layer project[GPT_PROJECTIONS_MAX], join; /* of attention */
    struct tess__layer widen[2], narrow; /* of feed-forward: gate and up, or one product */
    struct tess__adapter adapter[GPT_ADAPTERS];
    struct gpt_qk qk[2];
    int32_t gains_grad; /* terms of the gains' gradients [P, leaves, 2, D] */
    int32_t attention;
    int32_t projected[GPT_PROJECTIONS_MAX], mixed, lse; /* attention's inputs and outputs */
    int32_t middle;                                     /* x + attention */
    int32_t hidden[2];                                  /* of widen: gate and up, or one */
    int32_t normed[2], active;                          /* remade: of norm, of the activation */
    int32_t projected_grad[GPT_PROJECTIONS_MAX];
    int32_t mixed_grad; /* of a part; where it does not fit in the place of normed[1] */
    int32_t dropped, term, terms, whole[2]; /* scratch, see gpt_block.c */
    int32_t kept[2]; /* decode: keys and values [P, sequences, positions, KV D / parts] */
};

struct gpt_head {
    int32_t weight;
    int32_t op[2];       /* the weight's gradient overwrites, adds */
    int64_t chunk;       /* positions whose logits are there at once */
    int64_t chunk_count; /* in a leaf; in a group of leaves, if it is 1 */
    int64_t group;       /* leaves */
    int32_t logits, stat, stats;
    int32_t levels;       /* partial sums over leaves */
    int32_t terms, whole; /* as in struct gpt_block, of a leaf */
};

struct gpt_state {
    /* From the options. */
    bool llama, tied, qkv_bias, out_bias, mlp_bias, qk_norm;
    bool erf;                        /* GELU by the error function */
    bool geglu;                      /* GeGLU in the place of SwiGLU */
    int64_t window;                  /* positions that attention sees at most; 0: all */
    int32_t window_from;             /* the first block that has the window */
    int32_t layers, heads, kv_heads; /* heads of the whole model */
    int64_t width, head_size, ffn;   /* C, D, F */
    int64_t vocabulary, padded;      /* classes of the model; V */
    int64_t context;                 /* positions that gpt2 learns */
    double dropout, attention_dropout;
    struct tess_rotary rotary;
    float epsilon, deviation;
    int64_t head_bytes; /* logits of a chunk at most */
    int64_t head_small; /* of leaves that are not cut, and of those that go together */
    struct tess_lora lora;

    /* From the run. */
    int32_t classes; /* of the data: decode's outputs */
    enum tess_dtype dtype;
    bool decode;
    int64_t kept, sequences; /* decode: positions of each sequence at most */
    struct tess_tensor_axis axis;
    int64_t length;        /* T */
    int64_t rows, leaves;  /* of a pass */
    int32_t runs;          /* of leaves, in which products that are summed are computed; 1: whole */
    int64_t leaf_length;   /* positions of a leaf, all ranks' */
    int64_t own_length;    /* of a row, this rank's: T, or T/n with sequence parallel */
    int64_t positions;     /* N */
    int64_t own_positions; /* M */

    /* Of a part. */
    int32_t project_count, widen_count; /* products */
    int32_t part_heads, part_kv_heads;
    int64_t project_stride[2]; /* elements from one position to the next: of q; of k and v */
    int64_t mixed, hidden;     /* elements of attention's output, of the feed-forward layer */
    int64_t hidden_stride;     /* as project_stride, of gate and up */
    int64_t words;             /* V / parts */

    /* Declared. */
    int32_t table, table_op, table_terms; /* of tokens */
    int32_t places, places_op, places_whole;
    struct gpt_block block[GPT_LAYERS_MAX];
    struct gpt_norm norm;
    struct gpt_head head;
    int32_t block_first, norm_unit; /* units */
};

/* A norm over the channels of this rank's positions. */
void tess__gpt_declare_norm(const struct gpt_state *gpt, struct tess_declare *declare,
                            const char *name, struct gpt_norm *norm_out);
enum tess_status tess__gpt_norm_forward(const struct tess_pass *pass, const struct gpt_norm *norm,
                                        const void *x, const void *add, void *sum, void *y);
enum tess_status tess__gpt_norm_backward(const struct tess_pass *pass, const struct gpt_norm *norm,
                                         const void *x, const void *dy, const void *add, void *dx);

/* y = x [M, C] with elements dropped, at a place of the unit; y may be x. */
void tess__gpt_dropout(const struct gpt_state *gpt, const struct tess_pass *pass, int32_t site,
                       const void *x, void *y);

/*
 * tess_pass_sum and tess_pass_widen of a whole pass. With sequence parallel each
 * leaf's positions are cut into the ranks' runs, so that sums by leaves do not depend on how many
 * leaves a pass has:
 *
 *     2 ranks, 2 leaves of 6 positions    rank 0   0 1 2  6 7 8     rank 1   3 4 5  9 10 11
 */
enum tess_status tess__gpt_sum(const struct gpt_state *gpt, const struct tess_pass *pass,
                               void *terms, void *y);
/* The first half of it; the second is tess_pass_sum_end. */
enum tess_status tess__gpt_sum_begin(const struct gpt_state *gpt, const struct tess_pass *pass,
                                     void *terms, void *y);
/* y = the sum over all parts of layer(x), x [P, N, in of a part]: in gpt->runs runs, of which the
 * sum of one goes on beside the product of the next. terms as above. */
enum tess_status tess__gpt_sum_runs(const struct gpt_state *gpt, const struct tess_pass *pass,
                                    const struct tess__layer *layer, const void *x, void *terms,
                                    void *y);
/* Sets *whole_out to tensor `room`, or where nothing is to be done (room may be -1) to x. */
enum tess_status tess__gpt_widen(const struct gpt_state *gpt, const struct tess_pass *pass,
                                 int32_t room, const void *x, const void **whole_out);

/* Element `at` of a tensor in the run's type. */
void *tess__gpt_at(const struct tess_pass *pass, int32_t tensor, int64_t at);

/* Is each of the targets the name of a layer? */
enum tess_status tess__gpt_check_lora(const struct gpt_state *gpt);

void tess__gpt_declare_block(struct gpt_state *gpt, struct tess_declare *declare, int32_t layer);
enum tess_status tess__gpt_block_forward(const struct gpt_state *gpt, const struct gpt_block *block,
                                         const struct tess_pass *pass);
enum tess_status tess__gpt_block_backward(const struct gpt_state *gpt,
                                          const struct gpt_block *block,
                                          const struct tess_pass *pass);

/* Rotary positions as the options have them. */
enum gpt_scaling {
    GPT_SCALING_OFF,
    GPT_SCALING_LINEAR,
    GPT_SCALING_DYNAMIC,
    GPT_SCALING_LLAMA3,
    GPT_SCALING_YARN
};
struct gpt_rope {
    double base;
    int32_t scaling; /* enum gpt_scaling */
    double factor, low, high, amplitude;
    int64_t context; /* of training before the scaling */
    bool whole;      /* YaRN: low and high are rounded to whole pairs */
};

/* ---- gpt_qk.c -------------------------------------------------------------------------------- */

/* The angles of heads of `head_size` in sequences of `length` positions. Pure. */
struct tess_rotary tess__gpt_rotary(const struct gpt_rope *rope, int64_t head_size, int64_t length);

void tess__gpt_declare_qk(const struct gpt_state *gpt, struct tess_declare *declare, int32_t layer,
                          struct gpt_block *block);

/* q and k of a part, as they were projected: qk becomes what attention reads. */
enum tess_status tess__gpt_turn(const struct gpt_state *gpt, const struct gpt_block *block,
                                const struct tess_pass *pass, int32_t part, void *qk[2]);

/* Gradients of what attention read become those of what was projected, in place; qk: as projected.
 * With terms of the gains' gradients, which finish adds up after the last part. */
enum tess_status tess__gpt_turn_backward(const struct gpt_state *gpt, const struct gpt_block *block,
                                         const struct tess_pass *pass, int32_t part,
                                         void *const qk[2], void *const grad[2]);
enum tess_status tess__gpt_gains_finish(const struct gpt_state *gpt, const struct gpt_block *block,
                                        const struct tess_pass *pass);

/* ---------------------------------------------------------------------------------------------- */

void tess__gpt_declare_head(struct gpt_state *gpt, struct tess_declare *declare);
enum tess_status tess__gpt_head_forward(const struct gpt_state *gpt, const struct tess_pass *pass);
enum tess_status tess__gpt_head_backward(const struct gpt_state *gpt, const struct tess_pass *pass);

#endif
