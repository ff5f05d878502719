/* Lines of results of `tessera bench gpu`, on stdout and as JSON; and the known peaks. */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"
#include "text/json.h"

#include <stdio.h>

/* Processors of the host are a thousand times slower. */
static const char *print_unit(const struct tess__gpu *gpu, bool is_bytes, double *factor_out)
{
    const bool device = gpu->place.module;
    *factor_out = is_bytes || !device ? 1e-9 : 1e-12;
    return is_bytes ? "GB/s" : device ? "TFLOP/s" : "GFLOP/s";
}

void tess__gpu_head(const struct tess__gpu *gpu, const char *title, bool is_bytes,
                    const char *share_of)
{
    char share[16];
    double factor;
    snprintf(share, sizeof(share), "%% of %s", share_of);
    printf("\n%-27s %-22s %-5s %10s %10s %9s%s\n", title, "shape", "", "us",
           print_unit(gpu, is_bytes, &factor), share, gpu->place.module ? "      goal" : "");
}

static const char *print_goal(const struct tess__gpu_row *row, double share, char text[16])
{
    if (!(row->goal > 0))
        return "";
    snprintf(text, 16, " %2.0f %6s", 100 * row->goal, share >= row->goal ? "met" : "MISSED");
    return text;
}

static enum tess_status print_json(struct tess__gpu *gpu, const struct tess__gpu_row *row,
                                   double rate, double share)
{
    const bool is_bytes = row->bytes > 0;
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "bench", "gpu", "part",
        row->part, "name", row->name, "shape", row->shape, "type", row->type, "median_s",
        row->time.median_s, "least_s", row->time.least_s, is_bytes ? "bytes" : "flops",
        is_bytes ? row->bytes : row->flops, is_bytes ? "bytes_per_s" : "flops_per_s", rate,
        "ceiling_per_s", row->ceiling > 0 ? json_real(row->ceiling) : json_null(), "share",
        tess__json_number(share), "goal", row->goal > 0 ? json_real(row->goal) : json_null(), "met",
        row->goal > 0 ? json_boolean(share >= row->goal) : json_null());
    if (row->measured_s > 0 && line)
        json_object_set_new(line, "measured_s", json_real(row->measured_s));
    return tess__bench_write(&gpu->bench.log, line);
}

enum tess_status tess__gpu_print(struct tess__gpu *gpu, const struct tess__gpu_row *given)
{
    struct tess__gpu_row copy = *given;
    const struct tess__gpu_row *row = &copy;
    if (!gpu->place.module) /* goals are a device's */
        copy.goal = 0;
    const bool is_bytes = row->bytes > 0;
    const double rate = (is_bytes ? row->bytes : row->flops) / row->time.median_s;
    const double share = tess_flops_utilisation(rate, 1, row->ceiling); /* NaN: unknown */
    char share_text[16] = "-", goal_text[16];
    double factor;

    (void)print_unit(gpu, is_bytes, &factor);
    if (row->ceiling > 0)
        snprintf(share_text, sizeof(share_text), "%.1f", 100 * share);
    if (row->goal > 0) {
        gpu->goals++;
        gpu->met += share >= row->goal;
    }
    printf("%-27s %-22s %-5s %10.2f %10.1f %9s%s\n", row->name, row->shape, row->type,
           row->time.median_s * 1e6, rate * factor, share_text, print_goal(row, share, goal_text));
    fflush(stdout);
    return print_json(gpu, row, rate, share);
}

void tess__gpu_print_ceiling(const struct tess__gpu *gpu, const char *name, bool is_bytes,
                             double best, double peak, const char *by, const char *of)
{
    double factor;
    const char *unit = print_unit(gpu, is_bytes, &factor);
    printf("%s: %.1f %s, %s", name, best * factor, unit, of);
    if (peak > 0)
        printf("; peak by %s: %.1f", by, peak * factor);
    printf("\n");
}

/* ---- peaks ----------------------------------------------------------------------------------- */

const char *tess__gpu_type_name(enum tess__gpu_type type)
{
    static const char *const name[TESS__GPU_TYPES] = {"f32", "tf32", "bf16", "f16", "fp8"};
    return name[type];
}

enum tess__gpu_type tess__gpu_type_of(enum tess_dtype dtype)
{
    return dtype == TESS_BF16 ? TESS__GPU_BF16 : dtype == TESS_F16 ? TESS__GPU_F16 : TESS__GPU_F32;
}

double tess__gpu_peak(const struct tess__gpu *gpu, enum tess__gpu_type type)
{
    static const enum tess_peak_type kind[TESS__GPU_TYPES] = {
        TESS_PEAK_F32, TESS_PEAK_TF32, TESS_PEAK_16, TESS_PEAK_16, TESS_PEAK_FP8};
    const struct tess_peak *peak = gpu->place.module ? tess_peak_find(gpu->place.info.name) : NULL;
    return peak ? peak->flops_per_s[kind[type]] : 0;
}

double tess__gpu_memory_peak(const struct tess__gpu *gpu)
{
    if (!gpu->place.module)
        return 0;
    if (gpu->place.info.memory_bytes_per_s > 0)
        return gpu->place.info.memory_bytes_per_s;
    const struct tess_peak *peak = tess_peak_find(gpu->place.info.name);
    return peak ? peak->memory_bytes_per_s : 0;
}
