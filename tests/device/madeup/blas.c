/* Handles and descriptors. An attribute that is not modelled ends the program. */
#include "device/madeup/blas.h"

#include <stdlib.h>
#include <string.h>

#define BLAS_HANDLE     0x48414e44u
#define BLAS_LAYOUT     0x4c41594fu
#define BLAS_WORK       0x574f524bu
#define BLAS_PREFERENCE 0x50524546u

/* ---- opaque things --------------------------------------------------------------------------- */

static void *blas_known(const void *thing, uint32_t mark, const char *what)
{
    uint32_t found = 0;
    if (thing != NULL)
        memcpy(&found, thing, sizeof(found));
    if (found != mark)
        madeup_fail("cuBLASLt was given %p as %s, which it is not (any more)", thing, what);
    return (void *)(uintptr_t)thing;
}

struct blas_handle *blas_handle(cublasLtHandle_t handle)
{
    return blas_known(handle, BLAS_HANDLE, "a handle");
}

struct blas_layout *blas_layout(cublasLtMatrixLayout_t layout)
{
    return blas_known(layout, BLAS_LAYOUT, "a matrix layout");
}

struct blas_work *blas_work(cublasLtMatmulDesc_t work)
{
    return blas_known(work, BLAS_WORK, "a description of a product");
}

struct blas_preference *blas_preference(cublasLtMatmulPreference_t preference)
{
    return blas_known(preference, BLAS_PREFERENCE, "a preference");
}

static void *blas_make(const void *content, size_t bytes)
{
    void *thing = malloc(bytes);
    if (thing != NULL)
        memcpy(thing, content, bytes);
    return thing;
}

static void blas_drop(void *thing)
{
    memset(thing, 0, sizeof(uint32_t)); /* its mark: a later use is noticed */
    free(thing);
}

/* ---- the library ----------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "an absent device architectural feature is required";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "an unknown error";
    }
}

/* The document: making and destroying one allocates, frees and waits for the device. */
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    BLAS_INJECT(CUBLAS_STATUS_ALLOC_FAILED);
    const struct blas_handle made = {.mark = BLAS_HANDLE, .device = madeup_device()};
    madeup_wait_idle(made.device);
    *handle = blas_make(&made, sizeof(made));
    return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    BLAS_INJECT(CUBLAS_STATUS_NOT_INITIALIZED);
    madeup_wait_idle(blas_handle(handle)->device);
    blas_drop(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- layouts --------------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    BLAS_INJECT(CUBLAS_STATUS_ALLOC_FAILED);
    const struct blas_layout made = {BLAS_LAYOUT, type, rows, columns, stride};
    *layout = blas_make(&made, sizeof(made));
    return *layout != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    blas_drop(blas_layout(layout));
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- attributes ------------------------------------------------------------------------------ */

struct blas_attribute {
    int attribute;
    size_t bytes, offset;
};

/* The header: INVALID_VALUE where the value is missing or of another size. */
static cublasStatus_t blas_set(void *thing, const char *what, const struct blas_attribute *table,
                               int attribute, const void *value, size_t bytes)
{
    while (table->bytes > 0 && table->attribute != attribute)
        table++;
    if (table->bytes == 0)
        madeup_fail("attribute %d of %s of cuBLASLt is not modelled", attribute, what);
    if (value == NULL || bytes != table->bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((char *)thing + table->offset, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

#define BLAS_FIELD(type, field) sizeof(((type *)NULL)->field), offsetof(type, field)

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *work, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    BLAS_INJECT(CUBLAS_STATUS_ALLOC_FAILED);
    const struct blas_work made = {
        .mark = BLAS_WORK,
        .compute = compute,
        .scale_type = scale,
        .transpose_a = CUBLAS_OP_N,
        .transpose_b = CUBLAS_OP_N,
        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
        .bias_type = -1,
    };
    *work = blas_make(&made, sizeof(made));
    return *work != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t work)
{
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    blas_drop(blas_work(work));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t work,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    static const struct blas_attribute table[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, BLAS_FIELD(struct blas_work, transpose_a)},
        {CUBLASLT_MATMUL_DESC_TRANSB, BLAS_FIELD(struct blas_work, transpose_b)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, BLAS_FIELD(struct blas_work, epilogue)},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, BLAS_FIELD(struct blas_work, bias)},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, BLAS_FIELD(struct blas_work, bias_type)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, BLAS_FIELD(struct blas_work, aux)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, BLAS_FIELD(struct blas_work, aux_stride)},
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, BLAS_FIELD(struct blas_work, fast)},
        {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, BLAS_FIELD(struct blas_work, multiprocessors)},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, BLAS_FIELD(struct blas_work, scale_a)},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, BLAS_FIELD(struct blas_work, scale_b)},
        {0, 0, 0},
    };
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    return blas_set(blas_work(work), "a product", table, (int)attribute, value, bytes);
}

/* Defaults are the header's. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    BLAS_INJECT(CUBLAS_STATUS_ALLOC_FAILED);
    const struct blas_preference made = {
        .mark = BLAS_PREFERENCE,
        .schemes = CUBLASLT_REDUCTION_SCHEME_MASK,
        .align_a = 256,
        .align_b = 256,
        .align_c = 256,
        .align_d = 256,
    };
    *preference = blas_make(&made, sizeof(made));
    return *preference != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    blas_drop(blas_preference(preference));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    static const struct blas_attribute table[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         BLAS_FIELD(struct blas_preference, workspace_bytes)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, BLAS_FIELD(struct blas_preference, schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, BLAS_FIELD(struct blas_preference, align_a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, BLAS_FIELD(struct blas_preference, align_b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, BLAS_FIELD(struct blas_preference, align_c)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, BLAS_FIELD(struct blas_preference, align_d)},
        {0, 0, 0},
    };
    BLAS_INJECT(CUBLAS_STATUS_INVALID_VALUE);
    return blas_set(blas_preference(preference), "a preference", table, (int)attribute, value,
                    bytes);
}
