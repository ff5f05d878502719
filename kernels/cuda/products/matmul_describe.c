/* One line about each plan. */
#include "cuda/products/matmul_plan.h"

#include <stdio.h>

static const char *describe_type(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3   ? "e4m3"
           : type == CUDA_R_8F_E5M2 ? "e5m2"
           : type == CUDA_R_16BF    ? "bf16"
           : type == CUDA_R_16F     ? "f16"
                                    : "f32";
}

static const char *describe_epilogue(cublasLtEpilogue_t epilogue)
{
    static const struct {
        cublasLtEpilogue_t epilogue;
        const char *text;
    } table[] = {
        {CUBLASLT_EPILOGUE_BIAS, ", bias"},
        {CUBLASLT_EPILOGUE_RELU, ", relu"},
        {CUBLASLT_EPILOGUE_RELU_BIAS, ", bias, relu"},
        {CUBLASLT_EPILOGUE_GELU_AUX, ", gelu"},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, ", bias, gelu"},
        {CUBLASLT_EPILOGUE_DGELU, ", gelu's derivative"},
        {CUBLASLT_EPILOGUE_BGRADB, ", bias gradient"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].epilogue == epilogue)
            return table[i].text;
    return "";
}

static void describe_plan(const struct cuda_plan *plan, char *text, size_t bytes)
{
    const cublasLtMatmulAlgo_t *a = &plan->algorithm;
    const struct cuda_product *p = &plan->product;
    int length =
        snprintf(text, bytes,
                 "%lld x %lld x %lld %s%s %s%s -> %s%s: algorithm %d, tile %d, "
                 "stages %d, split %d, cluster %d, %zu KiB",
                 (long long)p->m, (long long)p->n, (long long)p->k, describe_type(p->a),
                 p->transpose_a ? "^T" : "", describe_type(p->b), p->transpose_b ? "^T" : "",
                 describe_type(p->d), describe_epilogue(p->epilogue),
                 tess__cuda_algorithm_attribute(a, CUBLASLT_ALGO_CONFIG_ID, 4),
                 tess__cuda_algorithm_attribute(a, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
                 tess__cuda_algorithm_attribute(a, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
                 tess__cuda_algorithm_attribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
                 tess__cuda_algorithm_attribute(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2),
                 plan->workspace_bytes >> 10);
    if (length < 0 || (size_t)length >= bytes)
        return;
    text += length;
    bytes -= (size_t)length;
    if (plan->seconds > 0)
        snprintf(text, bytes, ", measured: %.1f us", 1e6 * plan->seconds);
    else if (p->like_n > 0)
        snprintf(text, bytes, ", that of n = %lld%s", (long long)p->like_n,
                 plan->alike == CUDA_ALIKE_YES ? "" : "; other bits, so by leaves");
}

void tess__cuda_matmul_describe(const struct tess_kernel *kernel,
                                void (*line)(void *context, const char *text), void *context)
{
    const struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    for (const struct cuda_plan *plan = plans != NULL ? plans->first : NULL; plan != NULL;
         plan = plan->next) {
        char text[256];
        if (!plan->found)
            continue;
        describe_plan(plan, text, sizeof(text));
        line(context, text);
    }
}
