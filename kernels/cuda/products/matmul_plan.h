/* What the files of matmul*.c share: the inside of a plan and of the cache. */
#ifndef KERNELS_CUDA_PRODUCTS_MATMUL_PLAN_H
#define KERNELS_CUDA_PRODUCTS_MATMUL_PLAN_H

#include "cuda/products/matmul.h"

/* Number of algorithms requested from the heuristics: more than one, because those that split the
 * sum are skipped, and because candidates may be measured. */
#define MATMUL_CANDIDATES 16

enum cuda_alike { CUDA_ALIKE_UNKNOWN, CUDA_ALIKE_YES, CUDA_ALIKE_NO };

struct cuda_plan {
    struct cuda_product product;
    cublasLtMatmulDesc_t work;
    cublasLtMatrixLayout_t a, b, d; /* C is D */
    cublasLtMatmulAlgo_t algorithm;
    bool found; /* there is an algorithm */
    size_t workspace_bytes;
    double seconds;        /* 0: not measured */
    enum cuda_alike alike; /* of a plan with like_n: does it give the bits of that one? same_rows:
                              its rows those of one row? */
    uint32_t align_a, align_b, align_d, align_bias;
    struct cuda_plan *next;
};

struct cuda_plans {
    struct cuda_plan *first;
    bool tune, tf32, fp8_fast, same_rows;
    int32_t sm_target;
    char store[4096]; /* "": none */
};

#define MATMUL_TRIAL_READ 5

/* Operands of a plan, in memory of their own, filled with random numbers in [-1, 1). */
struct cuda_trial {
    struct cuda_operands operands;
    char *memory;
    struct {
        cudaDataType_t type;
        size_t bytes;
        void *memory;
    } read[MATMUL_TRIAL_READ]; /* a, b, bias, aux, scale */
    size_t d_bytes;            /* behind operands.d, and as many in `other` */
    void *other, *other_aux;
    uint32_t *differ;
};

/* matmul_trial.c. TESS_ERR_MEMORY, without a message, where the device has no room. */
enum tess_status tess__cuda_trial_open(struct tess_kernel *kernel, const struct cuda_plan *plan,
                                       struct cuda_trial *trial_out);
void tess__cuda_trial_close(struct cuda_trial *trial);
/* Sets rows->all->alike. */
enum tess_status tess__cuda_plan_compare(struct tess_kernel *kernel, const struct cuda_rows *rows);
/* Does a plan with same_rows run and give some of its rows the bits of `one`, the same product of
 * one row? `trial` is of the plan. */
enum tess_status tess__cuda_plan_steady(struct tess_kernel *kernel, struct cuda_plan *plan,
                                        struct cuda_plan *one, struct cuda_trial *trial,
                                        bool *steady_out);
/* The same, in plan->alike; where that is found already nothing is run. */
enum tess_status tess__cuda_plan_compare_rows(struct tess_kernel *kernel, struct cuda_plan *plan,
                                              struct cuda_plan *one);
/* Does a plan with the algorithm of `plain`, the same product without its epilogue, run, and give
 * the same D? */
enum tess_status tess__cuda_plan_agrees(struct tess_kernel *kernel, struct cuda_plan *plan,
                                        struct cuda_plan *plain, bool *agrees_out);

/* matmul_tune.c. Chooses among `count` candidates by measuring, or by what is in the store; sets
 * plan->found. operands NULL: there is no room to measure. */
enum tess_status tess__cuda_plan_tune(struct tess_kernel *kernel, struct cuda_plan *plan,
                                      const cublasLtMatmulHeuristicResult_t *candidate, int count,
                                      const struct cuda_operands *operands);

/* Bytes of one element. */
static inline size_t matmul_type_bytes(cudaDataType_t type)
{
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
        return 1;
    return type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 4;
}

static inline bool matmul_has_bias(const struct cuda_product *p)
{
    return (p->epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB)) != 0;
}

static inline bool matmul_has_aux(const struct cuda_product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || p->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static inline bool matmul_is_narrow(const struct cuda_product *p)
{
    return matmul_type_bytes(p->a) == 1;
}

/* ---- matmul_run.c ------------------------------------------------------------------------- */

enum tess_status tess__cuda_plan_set(struct cuda_plan *plan,
                                     cublasLtMatmulDescAttributes_t attribute, const void *value,
                                     size_t bytes);
/* The pointers that a plan has in its description: bias, aux and scales. */
enum tess_status tess__cuda_plan_point(struct cuda_plan *plan, const struct cuda_operands *o);
/* Is the algorithm one that the product may use (no split where none is allowed), and
 * does it work for the plan? Sets algorithm and workspace_bytes if so. */
bool tess__cuda_plan_accept(struct tess_kernel *kernel, struct cuda_plan *plan,
                            const cublasLtMatmulAlgo_t *algorithm);
/* Run it and wait for it; *runs_out is false where the library refuses, which it may though it has
 * named and checked the algorithm. */
enum tess_status tess__cuda_plan_try(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const struct cuda_operands *operands, bool *runs_out);
/* plan->found: it accepts the algorithm and runs with it. operands NULL: there is no room to. */
enum tess_status tess__cuda_plan_prove(struct tess_kernel *kernel, struct cuda_plan *plan,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       const struct cuda_operands *operands);
/* An attribute of 2 or 4 bytes; INT32_MAX where it cannot be had. */
int32_t tess__cuda_algorithm_attribute(const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulAlgoConfigAttributes_t attribute,
                                       size_t bytes);

#endif
