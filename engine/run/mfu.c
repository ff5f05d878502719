/* Model FLOPs utilisation of a run, see mfu.h. */
#include "run/mfu.h"

#include "core/flops.h"
#include "text/json.h"
#include "text/words.h"

#include <math.h>
#include <stdio.h>

#define RATE_BYTES 32

/* "989 TFLOP/s", "45.6 GFLOP/s": three digits or more that mean something. */
static const char *mfu_rate(double flops_per_s, char text[RATE_BYTES])
{
    const bool tera = flops_per_s >= 1e12;
    const double value = flops_per_s / (tera ? 1e12 : 1e9);
    snprintf(text, RATE_BYTES, "%.*f %s",
             value >= 100  ? 0
             : value >= 10 ? 1
                           : 2,
             value, tera ? "TFLOP/s" : "GFLOP/s");
    return text;
}

static const struct tess_peak *mfu_peak(const struct tess__run *run)
{
    const struct tess_device_plan *plan = &run->config->device;
    return plan->module ? tess_peak_find(plan->info[plan->of_rank[0]].name) : NULL;
}

/* "bf16", also where the hardware has one speed for both types of 16 bits. */
static const char *mfu_type(const struct tess__run *run)
{
    const enum tess_peak_type type = tess_peak_type_of(run->config);
    return type == TESS_PEAK_16 ? tess_dtype_name(tess_run_dtype(&run->config->run))
                                : tess_peak_type_name(type);
}

struct tess__mfu tess__mfu_at(const struct tess__run *run, double samples_per_s)
{
    const struct tess_peak *peak = mfu_peak(run);
    const double given = run->config->run.peak_tflops * 1e12;
    const int32_t devices = run->config->device.count;
    struct tess__mfu mfu = {.dense = NAN, .measured = NAN};
    if (peak && peak->flops_per_s[tess_peak_type_of(run->config)] > 0)
        mfu.dense = peak->flops_per_s[tess_peak_type_of(run->config)];
    if (given > 0 && devices > 0)
        mfu.measured = given;
    mfu.flops_per_s = samples_per_s * tess_flops_causal(&run->flops);
    mfu.mfu = tess_flops_utilisation(mfu.flops_per_s, devices, mfu.dense);
    mfu.mfu_measured = tess_flops_utilisation(mfu.flops_per_s, devices, mfu.measured);
    mfu.mfu_palm = run->flops.attention > 0
                       ? tess_flops_utilisation(samples_per_s * tess_flops_palm(&run->flops),
                                                devices, mfu.dense)
                       : NAN;
    return mfu;
}

void tess__mfu_print_end(const struct tess__run *run)
{
    const struct tess__mfu mfu = tess__mfu_at(run, run->final.samples_per_s);
    const struct tess_peak *peak = mfu_peak(run);
    char rate[RATE_BYTES], devices[24] = "";
    if (!(mfu.flops_per_s > 0))
        return;
    if (run->config->device.count > 1)
        snprintf(devices, sizeof(devices), " x %d devices", run->config->device.count);
    if (!isnan(mfu.mfu))
        printf("MFU %.1f %% of %s dense %s (%s)%s, ", 100 * mfu.mfu, mfu_rate(mfu.dense, rate),
               mfu_type(run), peak->name, devices);
    if (!isnan(mfu.mfu_measured))
        printf("%s%.1f %% of %s measured%s, ", isnan(mfu.mfu) ? "MFU " : "", 100 * mfu.mfu_measured,
               mfu_rate(mfu.measured, rate), devices);
    printf("the model's operations at %s", mfu_rate(mfu.flops_per_s, rate));
    if (!isnan(mfu.mfu_palm))
        printf("; by PaLM's count %.1f %%", 100 * mfu.mfu_palm);
    putchar('\n');
}

/* One row of the count, a sample and a token. */
static void mfu_explain_count(const struct tess__run *run, const char *what, double flops)
{
    const struct tess__words words = tess__words_of(run->dataset);
    printf("  %-11s %10.4g FLOPs per %s", what, flops, words.row);
    if (words.tokens)
        printf(", %.4g per token", flops / run->flops.tokens);
    putchar('\n');
}

static void mfu_explain_peak(const struct tess__run *run)
{
    const struct tess_device_plan *plan = &run->config->device;
    const struct tess__mfu mfu = tess__mfu_at(run, 0);
    char rate[RATE_BYTES];
    if (!plan->module) {
        printf("  the peak of this processor is unknown: FLOP/s are shown, no share of a peak\n");
        return;
    }
    printf("  MFU = FLOPs of a step / (time of a step x devices x peak of a device)\n");
    if (!isnan(mfu.dense))
        printf("  the peak is %s dense %s, by the datasheet of %s", mfu_rate(mfu.dense, rate),
               mfu_type(run), mfu_peak(run)->name);
    else
        printf("  the peak of %s for %s is unknown; --peak-tflops sets a measured one",
               plan->missing ? "devices that are not here" : plan->info[plan->of_rank[0]].name,
               mfu_type(run));
    printf("; devices: %d\n", plan->count);
    if (!isnan(mfu.measured))
        printf("  and %s as measured, by --peak-tflops\n", mfu_rate(mfu.measured, rate));
}

void tess__mfu_explain(const struct tess__run *run)
{
    const struct tess_flops *flops = &run->flops;
    printf("\noperations of forward and backward; recompute, norms and optimizer do not count\n");
    mfu_explain_count(run, "products", flops->product);
    if (flops->attention > 0) {
        mfu_explain_count(run, "attention", flops->attention / 2);
        mfu_explain_count(run, "together", tess_flops_causal(flops));
        mfu_explain_count(run, "PaLM", tess_flops_palm(flops));
        printf("  products: 2 x rows x in x out forward, twice that backward; attention: the lower "
               "half of\n  12 L H Q T a token, as positions look back only. PaLM's count (appendix "
               "B) is\n  6 N + 12 L H Q T with all N = %.0f parameters and the whole square\n",
               flops->parameters);
    } else {
        printf("  2 x rows x in x out (x window x window x places) forward, twice that backward, "
               "once where\n  the input needs no gradient\n");
    }
    mfu_explain_peak(run);
}

void tess__mfu_record(json_t *object, const struct tess__run *run, double samples_per_s)
{
    const struct tess__mfu mfu = tess__mfu_at(run, samples_per_s);
    json_object_set_new(object, "flops_per_s", tess__json_number(mfu.flops_per_s));
    if (!isnan(mfu.dense)) {
        json_object_set_new(object, "mfu", tess__json_number(mfu.mfu));
        json_object_set_new(object, "mfu_palm", tess__json_number(mfu.mfu_palm));
    }
    if (!isnan(mfu.measured))
        json_object_set_new(object, "mfu_measured", tess__json_number(mfu.mfu_measured));
}

json_t *tess__mfu_record_model(const struct tess__run *run)
{
    const struct tess__mfu mfu = tess__mfu_at(run, 0);
    const struct tess_peak *peak = mfu_peak(run);
    const double palm = tess_flops_palm(&run->flops);
    return json_pack("{s:o, s:o, s:o, s:o, s:s?, s:s, s:o, s:o}", "flops_per_sample",
                     tess__json_number(tess_flops_causal(&run->flops)), "product",
                     tess__json_number(run->flops.product), "attention_whole",
                     tess__json_number(run->flops.attention), "palm_per_sample",
                     palm > 0 ? json_real(palm) : json_null(), "peak_of", peak ? peak->name : NULL,
                     "peak_type", mfu_type(run), "peak_flops_per_s", tess__json_number(mfu.dense),
                     "peak_measured_flops_per_s", tess__json_number(mfu.measured));
}
