/*
 * From sums to factors (tess_update_judge): norm, clipping, NovoGrad's second moments, LAMB's trust
 * ratios, and whether anything is updated at all. In double, every operation rounded in the order
 * in which it stands here.
 */
#include "base/power.h"
#include "base/sum.h"
#include "ref/slots.h"

#include <float.h>
#include <math.h>

static bool judge_leaves_out(const struct tess_judge *judge, int32_t p)
{
    return judge->unused != NULL && judge->unused[p] != 0;
}

/* The first sum that is not finite is blamed; all ranks have the same sums. */
static void judge_refuse(const struct tess_judge *judge, int32_t sums)
{
    struct tess_verdict *verdict = judge->verdict;
    for (int32_t s = 0; s < sums; s++) {
        if (isfinite(tess_sum_value(&judge->sum[s])))
            continue;
        verdict->norm_bad = judge->count - s % judge->count;
        verdict->skip = 1;
        return;
    }
}

/* grad_norm, and the factor that gradients are read with. */
static float judge_norm(const struct tess_judge *judge)
{
    const struct tess_update_rates *rates = judge->rates;
    struct tess_sum total;
    tess_sum_clear(&total);
    for (int32_t p = 0; p < judge->count; p++)
        tess_sum_merge(&total, &judge->sum[p]);
    const double norm = sqrt(tess_sum_value(&total)) / rates->loss_scale;
    judge->verdict->grad_norm = norm;
    const double clip = judge->clip > 0 && norm > judge->clip ? judge->clip / norm : 1;
    return (float)(clip / rates->loss_scale);
}

/* NovoGrad (Ginsburg et al. 2019, algorithm 1, lines 1, 5 and 6): v = |g|^2 at first, then an
 * average. */
static float judge_novograd(const struct tess_judge *judge, int32_t p, float grad_scale,
                            int64_t age)
{
    const double beta2 = judge->beta2, scale = grad_scale;
    const double square = tess_sum_value(&judge->sum[p]) * (scale * scale);
    const double v =
        age == 0 ? square : beta2 * (double)judge->tensor_state[p] + (1 - beta2) * square;
    judge->tensor_state[p] = (float)fmin(v, FLT_MAX);
    return (float)(1 / (sqrt(judge->tensor_state[p]) + judge->epsilon));
}

/* |w| / |direction|, or 1 where one of them is 0 (You et al. 2020, section 3.1, phi the identity).
 */
static float judge_ratio(const struct tess_judge *judge, int32_t p)
{
    const double w = sqrt(tess_sum_value(&judge->sum[p]));
    const double u = sqrt(tess_sum_value(&judge->sum[judge->count + p]));
    return w > 0 && u > 0 ? (float)(w / u) : 1;
}

static void judge_parameter(const struct tess_judge *judge, int32_t p, float grad_scale)
{
    const struct tess_update_rates *rates = judge->rates;
    const int64_t age = judge->age != NULL ? judge->age[p] : judge->step;
    struct tess_update_factor *factor = &judge->factor[p];
    *factor = (struct tess_update_factor){
        .lr = rates->lr,
        .correction1 = rates->correction1,
        .correction2 = rates->correction2,
        .grad_scale = grad_scale,
        .tensor_scale = 1,
        .skip = judge->verdict->skip != 0 || judge_leaves_out(judge, p),
    };
    if (judge->age != NULL) {
        factor->correction1 = (float)(1 / (1 - tess_power(judge->beta1, age + 1)));
        factor->correction2 = (float)(1 / (1 - tess_power(judge->beta2, age + 1)));
    }
    if (judge->novograd && factor->skip == 0)
        factor->tensor_scale = judge_novograd(judge, p, grad_scale, age);
}

void tess__ref_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    struct tess_verdict *verdict = judge->verdict;
    (void)kernel;
    if (judge->ratio) {
        judge_refuse(judge, 2 * judge->count);
        for (int32_t p = 0; p < judge->count; p++) {
            judge->factor[p].tensor_scale = judge_ratio(judge, p);
            judge->factor[p].skip |= verdict->skip;
        }
        return;
    }
    float grad_scale = judge->rates->grad_scale;
    verdict->grad_norm = -1;
    verdict->skip |= verdict->grad_bad > 0 || verdict->loss_bad > 0;
    if (judge->norm) {
        judge_refuse(judge, judge->count);
        grad_scale = judge_norm(judge);
    }
    for (int32_t p = 0; p < judge->count; p++)
        judge_parameter(judge, p, grad_scale);
}
