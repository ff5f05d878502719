/*
 * Algorithms. What the real library does is left open by its documents: which there are, what order
 * each adds up in, which of those that the heuristics name then refuse. Here are several of every
 * kind that its documents allow. Which comes first depends on the problem, also on its epilogue.
 */
#include "device/madeup/blas.h"

#include <string.h>

#define ALGO_MARK 0x414c474fu

/* What an algorithm does beyond its attributes. */
enum {
    ALGO_BY_GRID = 1,     /* the parts of k follow from how many tiles D has ("stream-k") */
    ALGO_REFUSES = 2,     /* AlgoCheck refuses what the heuristics have named */
    ALGO_BREAKS = 4,      /* it passes AlgoCheck and fails when it is run */
    ALGO_NO_GRADIENT = 8, /* has no epilogue BGRADB */
    ALGO_NO_NARROW = 16,  /* none for 8-bit operands */
    ALGO_SINGLE = 32      /* loads one element at a time */
};

static const struct algo_kind {
    int32_t id;
    uint32_t tile;
    int64_t rows, columns; /* of the tile */
    int64_t step;
    int32_t split_max;
    uint32_t schemes;
    unsigned is;
} algo_kinds[] = {
    {0, CUBLASLT_MATMUL_TILE_32x32, 32, 32, 1, 1, 0, ALGO_SINGLE | ALGO_NO_NARROW},
    {13, CUBLASLT_MATMUL_TILE_128x256, 128, 256, 16, 1, 0, ALGO_REFUSES},
    {21, CUBLASLT_MATMUL_TILE_128x128, 128, 128, 16, 1, 0, ALGO_NO_GRADIENT},
    {24, CUBLASLT_MATMUL_TILE_64x64, 64, 64, 8, 8, CUBLASLT_REDUCTION_SCHEME_MASK, 0},
    {31, CUBLASLT_MATMUL_TILE_64x32, 64, 32, 4, 1, 0, ALGO_SINGLE | ALGO_NO_NARROW},
    {47, CUBLASLT_MATMUL_TILE_256x128, 256, 128, 32, 1, 0, ALGO_BREAKS},
    {66, CUBLASLT_MATMUL_TILE_128x64, 128, 64, 32, 1, 0, ALGO_BY_GRID},
};

#define ALGO_KIND_COUNT (sizeof(algo_kinds) / sizeof(algo_kinds[0]))

/* What the heuristics name; the first to ALGO_LAST in an order of the problem's own, then that
 * which always works where there are single elements. */
static const struct algo_config {
    int32_t id, split;
    uint32_t scheme, order;
} algo_configs[] = {
    {47, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {21, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {24, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0},
    {13, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {24, 3, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 0},
    {24, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1},
    {66, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {24, 4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0},
    {31, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {24, 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1},
    {0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
};

#define ALGO_COUNT (sizeof(algo_configs) / sizeof(algo_configs[0]))
#define ALGO_LAST  (ALGO_COUNT - 1)

static const struct algo_kind *algo_kind(int32_t id)
{
    for (size_t i = 0; i < ALGO_KIND_COUNT; i++)
        if (algo_kinds[i].id == id)
            return &algo_kinds[i];
    return NULL;
}

static struct blas_algorithm algo_unpack(const cublasLtMatmulAlgo_t *algorithm)
{
    struct blas_algorithm a;
    memcpy(&a, algorithm, sizeof(a));
    return a;
}

static cublasLtMatmulAlgo_t algo_pack(const struct blas_algorithm *a)
{
    cublasLtMatmulAlgo_t algorithm;
    memset(&algorithm, 0, sizeof(algorithm));
    memcpy(&algorithm, a, sizeof(*a));
    return algorithm;
}

static struct blas_algorithm algo_make(const struct algo_kind *kind)
{
    return (struct blas_algorithm){
        .id = kind->id,
        .tile = kind->tile,
        .split = 1,
        .stages = CUBLASLT_MATMUL_STAGES_64x3,
        .version = CUBLAS_VERSION,
        .mark = ALGO_MARK,
    };
}

/* ---- attributes ------------------------------------------------------------------------------ */

static size_t algo_field(cublasLtMatmulAlgoConfigAttributes_t attribute, size_t *offset_out)
{
#define ALGO_FIELD(name, field)                                                                    \
    case name:                                                                                     \
        *offset_out = offsetof(struct blas_algorithm, field);                                      \
        return sizeof(((struct blas_algorithm *)NULL)->field)
    switch (attribute) {
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_ID, id);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_STAGES_ID, stages);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, inner);
        ALGO_FIELD(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
    default:
        madeup_fail("attribute %d of cuBLASLt's algorithms is not modelled", (int)attribute);
    }
#undef ALGO_FIELD
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *algorithm)
{
    BLAS_INJECT(CUBLAS_STATUS_NOT_SUPPORTED);
    (void)blas_handle(handle);
    const cudaDataType_t type[4] = {a, b, c, d};
    const struct algo_kind *kind = algo_kind(id);
    if (kind == NULL || algorithm == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = blas_check_types(compute, scale, type);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    const struct blas_algorithm made = algo_make(kind);
    *algorithm = algo_pack(&made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written)
{
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    size_t offset;
    if (algo_field(attribute, &offset) != bytes || value == NULL || written == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, (const char *)algorithm + offset, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    size_t offset;
    if (algo_field(attribute, &offset) != bytes || value == NULL ||
        attribute == CUBLASLT_ALGO_CONFIG_ID)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((char *)algorithm + offset, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- what one needs -------------------------------------------------------------------------- */

uint32_t blas_algorithm_align(const cublasLtMatmulAlgo_t *algorithm, cudaDataType_t type)
{
    const struct blas_algorithm a = algo_unpack(algorithm);
    return algo_kind(a.id)->is & ALGO_SINGLE ? (uint32_t)blas_type_bytes(type) : 16;
}

static int64_t algo_tiles(const struct blas_problem *p, const struct algo_kind *kind)
{
    return ((p->m + kind->rows - 1) / kind->rows) * ((p->n + kind->columns - 1) / kind->columns);
}

static size_t algo_workspace(const struct blas_problem *p, const struct blas_algorithm *a)
{
    const size_t results = (size_t)(p->m * p->n);
    switch (a->scheme) {
    case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE:
        return (size_t)a->split * results * sizeof(float);
    case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
        return (size_t)a->split * results * blas_type_bytes(p->d.type);
    case CUBLASLT_REDUCTION_SCHEME_INPLACE: /* a counter for each tile */
        return (size_t)algo_tiles(p, algo_kind(a->id)) * sizeof(uint32_t);
    default:
        return 0;
    }
}

/* The attributes alone. */
static bool algo_is_consistent(const struct blas_algorithm *a, const struct algo_kind *kind)
{
    const bool one_scheme = (a->scheme & (a->scheme - 1)) == 0;
    if (a->tile != kind->tile || a->split < 1 || a->split > kind->split_max || !one_scheme ||
        a->swizzle > 1 || a->custom != 0 || a->inner != 0 || a->cluster != 0 ||
        a->stages != CUBLASLT_MATMUL_STAGES_64x3)
        return false;
    return a->split > 1 ? (a->scheme & kind->schemes) != 0 : a->scheme == 0;
}

/* The header: rows' distances must be aligned like the matrices; bias and aux by the pointer that
 * the description has. */
static bool algo_is_aligned(const struct blas_problem *p, const cublasLtMatmulAlgo_t *algorithm)
{
    const struct blas_layout *const all[] = {&p->a, &p->b, &p->c, &p->d};
    for (int i = 0; i < 4; i++)
        if ((size_t)all[i]->stride * blas_type_bytes(all[i]->type) %
            blas_algorithm_align(algorithm, all[i]->type))
            return false;
    const struct blas_work *w = &p->work;
    if (blas_has_bias(w->epilogue) &&
        blas_align_of((uintptr_t)w->bias) < blas_algorithm_align(algorithm, p->bias_type))
        return false;
    return !blas_has_aux(w->epilogue) ||
           blas_align_of((uintptr_t)w->aux) >= blas_algorithm_align(algorithm, p->d.type);
}

static bool algo_suits(const struct blas_problem *p, const struct algo_kind *kind)
{
    return !(p->narrow && (kind->is & ALGO_NO_NARROW)) &&
           !(p->work.epilogue == CUBLASLT_EPILOGUE_BGRADB && (kind->is & ALGO_NO_GRADIENT));
}

/* What the heuristics know. */
static cublasStatus_t algo_check(const struct blas_problem *p,
                                 const cublasLtMatmulAlgo_t *algorithm, size_t *workspace_bytes_out)
{
    const struct blas_algorithm a = algo_unpack(algorithm);
    const struct algo_kind *kind = algo_kind(a.id);
    if (kind == NULL || a.mark != ALGO_MARK || a.version != CUBLAS_VERSION)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!algo_is_consistent(&a, kind) || !algo_suits(p, kind) || a.split > p->k ||
        !algo_is_aligned(p, algorithm))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *workspace_bytes_out = algo_workspace(p, &a);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t blas_algorithm_check(const struct blas_problem *p,
                                    const cublasLtMatmulAlgo_t *algorithm,
                                    size_t *workspace_bytes_out)
{
    const cublasStatus_t status = algo_check(p, algorithm, workspace_bytes_out);
    if (status == CUBLAS_STATUS_SUCCESS && algo_kind(algo_unpack(algorithm).id)->is & ALGO_REFUSES)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
}

bool blas_algorithm_breaks(const cublasLtMatmulAlgo_t *algorithm)
{
    return algo_kind(algo_unpack(algorithm).id)->is & ALGO_BREAKS;
}

struct blas_sum blas_algorithm_sum(const struct blas_problem *p,
                                   const cublasLtMatmulAlgo_t *algorithm)
{
    const struct blas_algorithm a = algo_unpack(algorithm);
    const struct algo_kind *kind = algo_kind(a.id);
    return (struct blas_sum){
        .step = kind->step,
        .parts = kind->is & ALGO_BY_GRID ? 1 + algo_tiles(p, kind) % 3 : a.split,
        .backward = a.order != 0,
        .scheme = a.scheme,
    };
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t work,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    BLAS_INJECT(CUBLAS_STATUS_NOT_SUPPORTED);
    (void)blas_handle(handle);
    const cublasLtMatrixLayout_t layouts[4] = {a, b, c, d};
    struct blas_problem problem;
    size_t bytes = 0;
    cublasStatus_t status = blas_check(work, layouts, &problem);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas_algorithm_check(&problem, algorithm, &bytes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    result->workspaceSize = bytes;
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- heuristics ------------------------------------------------------------------------------ */

/* The header's word on the mask: "to only include algo configs that use one of the required modes".
 * Those that do not split use none. */
static bool algo_is_preferred(const struct blas_problem *p, const struct blas_preference *wish,
                              const cublasLtMatmulAlgo_t *algorithm, size_t bytes)
{
    const struct blas_algorithm a = algo_unpack(algorithm);
    return (a.scheme == 0 || (a.scheme & wish->schemes)) && bytes <= wish->workspace_bytes &&
           wish->align_a >= blas_algorithm_align(algorithm, p->a.type) &&
           wish->align_b >= blas_algorithm_align(algorithm, p->b.type) &&
           wish->align_c >= blas_algorithm_align(algorithm, p->c.type) &&
           wish->align_d >= blas_algorithm_align(algorithm, p->d.type);
}

/* A number of the problem: of its sizes, types and epilogue (FNV-1a), and what it is to run on. */
static uint32_t algo_number(const struct blas_problem *p)
{
    const uint64_t what[] = {(uint64_t)p->m,
                             (uint64_t)p->n,
                             (uint64_t)p->k,
                             p->a.type,
                             p->b.type,
                             p->d.type,
                             p->work.epilogue,
                             p->work.compute,
                             (uint64_t)(2 * p->work.transpose_a + p->work.transpose_b)};
    uint32_t number = 2166136261u;
    for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++)
        for (int byte = 0; byte < 8; byte++)
            number = (number ^ (uint32_t)(what[i] >> (8 * byte) & 0xff)) * 16777619u;
    return (number ^ number >> 15) + (uint32_t)p->work.multiprocessors;
}

/* The header: a result's state is to be looked at. One of them is always a refusal. */
static cublasLtMatmulHeuristicResult_t algo_refused(void)
{
    cublasLtMatmulHeuristicResult_t refused;
    memset(&refused, 0xff, sizeof(refused));
    refused.state = CUBLAS_STATUS_NOT_SUPPORTED;
    return refused;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t work,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    BLAS_INJECT(CUBLAS_STATUS_NOT_SUPPORTED);
    (void)blas_handle(handle);
    const cublasLtMatrixLayout_t layouts[4] = {a, b, c, d};
    const struct blas_preference *wish = blas_preference(preference);
    struct blas_problem problem;
    if (wanted <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = blas_check(work, layouts, &problem);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    int found = 0;
    const uint32_t first = algo_number(&problem);
    for (size_t turn = 0; turn < ALGO_COUNT && found < wanted; turn++) {
        const size_t at = turn < ALGO_LAST ? (first + turn) % ALGO_LAST : ALGO_LAST;
        const struct algo_config *config = &algo_configs[at];
        struct blas_algorithm made = algo_make(algo_kind(config->id));
        made.split = config->split;
        made.scheme = config->scheme;
        made.order = config->order;
        cublasLtMatmulHeuristicResult_t result = {.algo = algo_pack(&made), .wavesCount = 1};
        if (algo_check(&problem, &result.algo, &result.workspaceSize) != CUBLAS_STATUS_SUCCESS ||
            !algo_is_preferred(&problem, wish, &result.algo, result.workspaceSize))
            continue;
        results[found++] = result;
        if (found == 2 && found < wanted)
            results[found++] = algo_refused();
    }
    *count = found;
    return found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
