/* Which token follows: temperature, top-k, top-p, and one random number for each position. */
#include "base/rng.h"
#include "cli/generate.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>

/* The first greatest logit. */
static enum tess_status sample_greatest(const struct tess__sampler *sampler, const float *logits,
                                        int32_t *token_out)
{
    int32_t greatest = 0;
    for (int32_t i = 0; i < sampler->vocabulary; i++) {
        if (isnan(logits[i]))
            TESS_FAIL(TESS_ERR_NUMERIC,
                      "the logit of token %d is not a number: the weights are not, or --precision "
                      "is too small for them",
                      i);
        greatest = logits[i] > logits[greatest] ? i : greatest;
    }
    if (isinf(logits[greatest]))
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "the greatest logit is infinite: the weights are not those of a trained model, "
                  "or --precision is too small for them");
    *token_out = greatest;
    return TESS_OK;
}

static int sample_by_logit(const void *a, const void *b)
{
    const struct tess__candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static double sample_total(const struct tess__candidate *candidate, int32_t count)
{
    double total = 0;
    for (int32_t i = 0; i < count; i++)
        total += candidate[i].weight;
    return total;
}

/* How many of the candidates, which are in order, --top-k and --top-p leave. */
static int32_t sample_cut(const struct tess__sampler *sampler)
{
    int32_t count = sampler->vocabulary, kept = 0;
    double sum = 0;
    if (sampler->top_k > 0 && sampler->top_k < count)
        count = (int32_t)sampler->top_k;
    if (sampler->top_p >= 1)
        return count;
    const double enough = sampler->top_p * sample_total(sampler->candidate, count);
    while (kept < count && (kept == 0 || sum < enough))
        sum += sampler->candidate[kept++].weight;
    return kept;
}

/* Uniform in [0, 1), in 53 bits. */
static double sample_uniform(const struct tess__sampler *sampler, int64_t position)
{
    uint32_t word[4];
    tess_rng_block(tess_rng_key(sampler->seed, TESS_RNG_SAMPLE, 0), (uint64_t)position,
                   sampler->sequence, word);
    return (double)((uint64_t)(word[0] >> 5) << 26 | word[1] >> 6) * 0x1p-53;
}

enum tess_status tess__sample(const struct tess__sampler *sampler, const float *logits,
                              int64_t position, int32_t *token_out)
{
    struct tess__candidate *candidate = sampler->candidate;
    int32_t greatest, count = sampler->vocabulary, drawn = 0;
    TESS_TRY(sample_greatest(sampler, logits, &greatest));
    if (sampler->temperature == 0) {
        *token_out = greatest;
        return TESS_OK;
    }
    for (int32_t i = 0; i < count; i++)
        candidate[i] = (struct tess__candidate){
            logits[i], i, exp(((double)logits[i] - logits[greatest]) / sampler->temperature)};
    if ((sampler->top_k > 0 && sampler->top_k < count) || sampler->top_p < 1) {
        qsort(candidate, (size_t)count, sizeof(*candidate), sample_by_logit);
        count = sample_cut(sampler);
    }
    const double place = sample_uniform(sampler, position) * sample_total(candidate, count);
    double sum = 0;
    for (int32_t i = 0; i < count && sum <= place; i++) {
        if (candidate[i].weight == 0)
            continue;
        drawn = i;
        sum += candidate[i].weight;
    }
    *token_out = candidate[drawn].token;
    return TESS_OK;
}
