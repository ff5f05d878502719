/* Arithmetic of a step, and peaks of devices; see flops.h. */
#include "core/flops.h"

#include "core/declared.h"
#include "tessera/check.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- operations ------------------------------------------------------------------------------ */

/* Forward, the gradient by the weights, and that by the input, where they are needed: each the same
 * number of products (Kaplan et al. 2020, section 2.1: backward is twice forward). */
static double flops_passes(const struct tess_op_desc *desc)
{
    return 1 + !desc->frozen + desc->input_grad;
}

void tess_flops_add(const struct tess_op_desc *desc, struct tess_flops *flops)
{
    const double rows = (double)desc->rows * (desc->calls > 0 ? desc->calls : 1);
    const double weights = (double)desc->in * (double)desc->out;
    if (desc->add_grad)
        return;
    if (desc->kind == TESS_OP_LINEAR) {
        flops->product += flops_passes(desc) * 2 * rows * weights;
    } else if (desc->kind == TESS_OP_CONV2D) {
        const double places =
            (double)tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
            (double)tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding);
        flops->product +=
            flops_passes(desc) * 2 * rows * places * weights * desc->window * desc->window;
    } else if (desc->kind == TESS_OP_ATTENTION) {
        /* q k^T and p v, 2 T T D each and head; backward has twice as many products without the one
         * that only a kernel that keeps no p does again. */
        flops->attention +=
            3 * 2 * 2 * rows * tess_op_square(desc) * (double)desc->in * desc->heads;
    }
}

double tess_flops_causal(const struct tess_flops *flops)
{
    return flops->product + flops->attention / 2;
}

double tess_flops_palm(const struct tess_flops *flops)
{
    return flops->attention > 0 ? 6 * flops->parameters * flops->tokens + flops->attention : 0;
}

#define FLOPS_SAMPLES 256 /* of packed ones, that stand for all */

/* Attention of a packed sample: the mean over the first samples of their documents', each a square
 * by itself. */
static double flops_packed(const struct tess_dataset *dataset, const struct tess_op_desc *desc,
                           int32_t *begin)
{
    const struct tess_split *split = &dataset->train;
    const int64_t samples = split->count < FLOPS_SAMPLES ? split->count : FLOPS_SAMPLES;
    struct tess_op_desc one = *desc;
    struct tess_flops flops = {.attention = 0};
    for (int64_t s = 0; s < samples; s++) {
        const int32_t count = tess_dataset_documents(dataset, split, s, begin);
        for (int32_t d = 0; d < count; d++) {
            one.length = (d + 1 < count ? begin[d + 1] : desc->length) - begin[d];
            tess_flops_add(&one, &flops);
        }
    }
    return flops.attention / (double)(samples > 0 ? samples : 1);
}

/* Operations of one row. */
static enum tess_status flops_ops(const struct tess_declare *declare,
                                  const struct tess_dataset *dataset, struct tess_flops *flops)
{
    int32_t *begin = NULL;
    if (dataset->packs) {
        begin = malloc((size_t)(dataset->row.dim[0] + 1) * sizeof(*begin));
        if (begin == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the documents of a sample");
    }
    for (int32_t o = 0; o < declare->op_count; o++) {
        const struct tess_op_desc *desc = &declare->op[o].desc;
        if (begin != NULL && desc->kind == TESS_OP_ATTENTION)
            flops->attention += flops_packed(dataset, desc, begin);
        else
            tess_flops_add(desc, flops);
    }
    free(begin);
    return TESS_OK;
}

enum tess_status tess_flops_count(const struct tess_config *config,
                                  const struct tess_dataset *dataset, struct tess_flops *flops_out)
{
    const struct tess_model_input input = {
        .row = dataset->row,
        .class_count = dataset->class_count,
        .dtype = tess_run_dtype(&config->run),
        .tokens = dataset->tokens,
        .rows = 1,
        .leaf_rows = 1,
        .axis = {.parts = 1, .count = 1, .rank_count = 1},
        .lora = tess_config_lora(config),
    };
    struct tess_declare declare = {0};
    struct tess_flops flops = {.tokens = dataset->tokens ? (double)dataset->row.dim[0] : 1};
    void *state = NULL;
    enum tess_status status;
    TESS_TRY_GOTO(status, free_declare, tess__declare(config, &input, &declare, &state));
    TESS_TRY_GOTO(status, free_declare, flops_ops(&declare, dataset, &flops));
    flops.parameters = (double)tess_declare_size(&declare);
    *flops_out = flops;

free_declare:
    tess__declare_free(&declare, state);
    return status;
}

/* ---- peaks ----------------------------------------------------------------------------------- */

#define T 1e12

/*
 * Dense tera-FLOP/s by NVIDIA's datasheets; where one prints only the figure with sparsity it is
 * halved here. First match counts: special models stand before the general one. `needs`: further
 * words that the driver's name has.
 *
 *   H100, H100 PCIe, H100 NVL   "NVIDIA H100 Tensor Core GPU" datasheet, 2023 and 2024
 *   H200, H200 NVL              "NVIDIA H200 Tensor Core GPU" datasheet, 2024
 *   A100                        "NVIDIA A100 Tensor Core GPU" datasheet, 2021: four cards, one chip
 *   L40S                        "NVIDIA L40S" datasheet, 2023
 *   B200                        "NVIDIA HGX B200" column of the Blackwell datasheet, 2025
 */
static const struct {
    const char *word, *needs;
    struct tess_peak peak;
} peak_table[] = {
    {"H200", "NVL", {"H200 NVL", {60 * T, 417.5 * T, 835.5 * T, 1670.5 * T}, 4.8 * T}},
    {"H200", NULL, {"H200", {66.9 * T, 494.7 * T, 989.4 * T, 1978.9 * T}, 4.8 * T}},
    {"H100", "PCIe", {"H100 PCIe", {51.2 * T, 378 * T, 756 * T, 1513 * T}, 2.0 * T}},
    {"H100", "NVL", {"H100 NVL", {60 * T, 417.5 * T, 835.5 * T, 1670.5 * T}, 3.9 * T}},
    {"H100", NULL, {"H100 SXM", {66.9 * T, 494.7 * T, 989.4 * T, 1978.9 * T}, 3.35 * T}},
    {"A100-SXM4-80GB", NULL, {"A100 80 GB SXM", {19.5 * T, 156 * T, 312 * T, 0}, 2.039 * T}},
    {"A100", "80GB", {"A100 80 GB PCIe", {19.5 * T, 156 * T, 312 * T, 0}, 1.935 * T}},
    {"A100", NULL, {"A100 40 GB", {19.5 * T, 156 * T, 312 * T, 0}, 1.555 * T}},
    {"L40S", NULL, {"L40S", {91.6 * T, 183 * T, 362.05 * T, 733 * T}, 0.864 * T}},
    {"B200", NULL, {"B200", {75 * T, 1100 * T, 2250 * T, 4500 * T}, 7.7 * T}},
};

/* Does `word` stand in the text with nothing of a word before or behind it? "GH200" is no "H200".
 */
static bool peak_has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return true;
    return false;
}

const struct tess_peak *tess_peak_find(const char *device)
{
    if (peak_has_word(device, "MIG"))
        return NULL;
    for (size_t i = 0; i < sizeof(peak_table) / sizeof(*peak_table); i++)
        if (peak_has_word(device, peak_table[i].word) &&
            (peak_table[i].needs == NULL || peak_has_word(device, peak_table[i].needs)))
            return &peak_table[i].peak;
    return NULL;
}

const char *tess_peak_type_name(enum tess_peak_type type)
{
    static const char *const name[TESS_PEAK_TYPES] = {"f32", "tf32", "16-bit", "fp8"};

    return name[type];
}

enum tess_peak_type tess_peak_type_of(const struct tess_config *config)
{
    if (config->run.fp8 != TESS_FP8_OFF)
        return TESS_PEAK_FP8;
    if (config->run.precision != 0)
        return TESS_PEAK_16;
    return config->cuda.tf32 ? TESS_PEAK_TF32 : TESS_PEAK_F32;
}

double tess_flops_utilisation(double flops_per_s, int32_t devices, double peak_flops_per_s)
{
    if (!(peak_flops_per_s > 0) || devices < 1)
        return NAN;
    return flops_per_s / ((double)devices * peak_flops_per_s);
}
