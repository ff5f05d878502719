/*
 * Devices whose figures are published; nothing here was measured with this engine. Peaks and
 * bandwidths are those of tess_peak_find, from NVIDIA's datasheets. The rest:
 *
 *   efficiency   of bf16 products in training, fitted to one published step of llm.c for each
 *                device: GPT-2 1558M on H100, 774M on A100 (docs/published.md has these and the
 *                steps that were kept back). The best product alone reaches more, 794.5 of 989 on
 *                H100, 267.9 of 312 on A100 and 1745 of 2250 on B200 ("maximum achievable matmul
 *                FLOPS", S. Bekman, "Machine Learning Engineering"); a training step does not keep
 *                that up. H200 is taken as H100, B200 to lose as much of its best as H100, L40S as
 *                A100; other types to reach the same share
 *   fp8          products in 8 bits reach less of their peak than those in 16, by the best of both
 *                in the same list: 70.9 by 80.3 % on H100, 73.4 by 80.3 on H200, 76.3 by 77.6 on
 *                B200; L40S as H100
 *   limit        what a lower power limit leaves of products and attention. Rates grow as P^0.78:
 *                the line through the logarithms of three measurements of this chip
 *                (github.com/mag-/gpu_benchmark): 821 TFLOP/s in the SXM card of 700 W, 488 in the
 *                NVL of 400 W, 500 in the PCIe of 350 W. So 0.77 at 500 W
 *   bytes_per_s  0.906 of the datasheet's: a copy of 4 GiB on an H100 NVL ran at 3.57 TB/s of 3.94;
 *                taken for the others too. h100-96 is the SXM card with HBM2e of 2.4 TB/s and a
 *                limit of 500 W, on which torchtitan's benchmarks ran
 *   start_s      1.3 us: a kernel in a recorded sequence, in the same measurement
 *   launch_s     3 us: an estimate, between the 2 us that launches from C take and the 4 us from
 *                Python
 *   attention    Dao 2023, "FlashAttention-2": 73 % of A100's peak forward, 63 % backward; Shah et
 *                al. 2024, "FlashAttention-3": 75 % of H100's forward; its backward is taken to be
 *                less by as much as A100's. attention_half is an estimate from their figures
 *   beside_bytes an estimate: context, libraries and NCCL's buffers
 *   memory_bytes what nvidia-smi gives as the device's memory
 *   link         PCIe, generation 4 or 5 with 16 lanes, less a seventh for its packets
 */
#include "predict/profile.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

struct table_device {
    const char *name, *driver; /* the name for tess_peak_find */
    double sm, memory_mib, units, tile_m, tile_n, efficiency, fp8;
    double limit, bandwidth; /* shares: of the rates, and of the datasheet's memory bandwidth */
    double attention_forward, attention_backward, link_bytes_per_s;
};

static const struct table_device table_device[] = {
    {"h100-80", "NVIDIA H100 80GB HBM3", 90, 81559, 132, 128, 256, 0.638, 0.883, 1, 1, 0.75, 0.65,
     55e9},
    {"h100-96", "NVIDIA H100", 90, 97321, 132, 128, 256, 0.638, 0.883, 0.77, 2.4 / 3.35, 0.75, 0.65,
     55e9},
    {"h200-141", "NVIDIA H200", 90, 143771, 132, 128, 256, 0.638, 0.914, 1, 1, 0.75, 0.65, 55e9},
    {"a100-80", "NVIDIA A100-SXM4-80GB", 80, 81920, 108, 128, 256, 0.754, 1, 1, 1, 0.73, 0.63,
     27e9},
    {"a100-40", "NVIDIA A100-SXM4-40GB", 80, 40960, 108, 128, 256, 0.754, 1, 1, 1, 0.73, 0.63,
     27e9},
    {"b200-180", "NVIDIA B200", 100, 183359, 148, 256, 256, 0.616, 0.983, 1, 1, 0.75, 0.65, 55e9},
    {"l40s", "NVIDIA L40S", 89, 46068, 142, 128, 128, 0.754, 0.883, 1, 1, 0.73, 0.63, 27e9},
};

#define DEVICES ((int32_t)(sizeof(table_device) / sizeof(*table_device)))

/* The processor comes last. */
static struct tess_profile table_profile[DEVICES + 1];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static struct tess_profile table_gpu(const struct table_device *device)
{
    const struct tess_peak *peak = tess_peak_find(device->driver);
    struct tess_profile profile = {
        .kernel = "cuda",
        .source =
            "datasheet; what training reaches of it: fitted to published steps (docs/published.md)",
        .sm = device->sm,
        .memory_bytes = device->memory_mib * MIB,
        .beside_bytes = 1536 * MIB,
        .launch_s = 3e-6,
        .start_s = 1.3e-6,
        .bytes_per_s = 0.906 * device->bandwidth * peak->memory_bytes_per_s,
        .link_bytes_per_s = device->link_bytes_per_s,
        .units = device->units,
        .tile_m = device->tile_m,
        .tile_n = device->tile_n,
        .half_k = 64,
        .attention_forward = device->limit * device->attention_forward,
        .attention_backward = device->limit * device->attention_backward,
        .attention_half = 512,
    };
    snprintf(profile.name, sizeof(profile.name), "%s", device->name);
    for (int t = 0; t < TESS_PEAK_TYPES; t++) {
        profile.flops_per_s[t] = peak->flops_per_s[t];
        profile.efficiency[t] = device->limit * device->efficiency;
    }
    profile.efficiency[TESS_PEAK_FP8] *= device->fp8;
    return profile;
}

static void table_make(void)
{
    for (int32_t i = 0; i < DEVICES; i++)
        table_profile[i] = table_gpu(&table_device[i]);
    table_profile[DEVICES] = (struct tess_profile){
        .name = "cpu",
        .kernel = "cpu",
        .source = "round numbers of no processor: measure with --calibrate",
        .start_s = 1e-6,
        .bytes_per_s = 1e10,
        .cores = 8,
        .flops_per_s = {5e10, 0, 5e10, 0},
        .efficiency = {1, 1, 1, 1},
        .units = 1,
        .tile_m = 1,
        .tile_n = 1,
        .half_k = 32,
        .attention_forward = 0.5,
        .attention_backward = 0.5,
        .attention_half = 32,
    };
}

const char *tess_profile_name(int32_t index)
{
    (void)pthread_once(&table_once, table_make);
    return index >= 0 && index <= DEVICES ? table_profile[index].name : NULL;
}

const struct tess_profile *tess_profile_find(const char *name)
{
    for (int32_t i = 0; tess_profile_name(i) != NULL; i++)
        if (strcmp(tess_profile_name(i), name) == 0)
            return &table_profile[i];
    return NULL;
}
