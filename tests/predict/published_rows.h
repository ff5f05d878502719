/*
 * Steps that others have published, with the engine's options that make the same step, and what
 * their engines do otherwise than this one. docs/published.md has the sources and the counts.
 */
#ifndef TESTS_PREDICT_PUBLISHED_ROWS_H
#define TESTS_PREDICT_PUBLISHED_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- engines --------------------------------------------------------------------------------- */

/* Sides of a figure: of A100, and of later devices. */
enum { AMPERE, LATER, SIDES };

struct engine {
    const char *name;
    double passes;              /* bytes that its passes move, by those of this engine's */
    double attention[SIDES][2]; /* shares of the peak, forward and backward; 0: as here */
};

/* Counts in docs/published.md. FlashAttention-2 reaches 35 % of H100's peak (Shah et al. 2024);
 * backward less by as much as on A100, where it is the profile's. */
static const struct engine native = {"native", 1, {{0}}};
static const struct engine apart = {"attention apart", 62.0 / 42, {{0.12, 0.18}, {0}}};
static const struct engine apart_twice = {"attention apart", 62.0 / 42, {{0.12, 0.10}, {0}}};
static const struct engine compiled = {"compiled", 64.0 / 47, {{0}, {0.35, 0.30}}};
static const struct engine eager_llama = {"eager", 224.0 / 47, {{0}, {0.35, 0.30}}};
static const struct engine eager_gpt = {"eager", 52.0 / 31, {{0}, {0.35, 0.30}}};

/* ---- words of the rows ----------------------------------------------------------------------- */

/* Models, as their sources describe them. */
#define GPT(v, l, w, a)                                                                            \
    "--gpt.vocab " #v " --gpt.layers " #l " --gpt.width " #w " --gpt.heads " #a " "
#define GPT2(l, w, a)        GPT(50257, l, w, a)
#define MEGATRON(l, w, a)    "--gpt.dropout 0.1 " GPT(51200, l, w, a)
#define MCORE(l, w, a)       GPT(131072, l, w, a)
#define MPT(l, w, a)         GPT(50368, l, w, a)
#define LLAMA(v, l, w, f, a) "--gpt.style llama --gpt.ffn " #f " " GPT(v, l, w, a)
#define LLAMA2_7             LLAMA(32000, 32, 4096, 11008, 32)
#define LLAMA2_13            LLAMA(32000, 40, 5120, 13824, 40)
#define LLAMA2_34            "--gpt.kv-heads 8 " LLAMA(32000, 48, 8192, 22016, 64)
#define LLAMA2_70            "--gpt.kv-heads 8 " LLAMA(32000, 80, 8192, 28672, 64)
#define LLAMA3_8             "--gpt.kv-heads 8 " LLAMA(128256, 32, 4096, 14336, 32)
#define LLAMA3_70            "--gpt.kv-heads 8 " LLAMA(128256, 80, 8192, 28672, 64)
#define LLAMA3_405           "--gpt.kv-heads 8 " LLAMA(128256, 126, 16384, 53248, 128)

/* Layouts. torchtitan's "selective op" computes every second product again. This engine recomputes
 * whole layers: of every third, which is about as much. Of Llama 3 of 8 B these products are 4.75
 * of 13 width^2, 41.8 TFLOP of a sample; a third of the layers, with attention, is 44.0. */
#define LLMC             "--strategy zero1 --reduce-dtype bf16 "
#define FSDP             "--strategy fsdp "
#define KEPT             "--fsdp.reshard-after-forward off "
#define FULL             "--recompute full "
#define SECOND           "--recompute every:2 "
#define THIRD            "--recompute every:3 "
#define FP8              "--fp8 now "
#define SP               "--tensor.sequence-parallel on "
#define TP8              "--strategy tp --mesh tensor=8 "
#define TP8PP8           "--strategy tp+pp --mesh tensor=8,stage=8 "
#define TURNS(chunks)    "--pp.schedule interleaved --pp.chunks " #chunks " "
#define MICRO(count)     "--accumulate " #count " "
#define WITH_TP(s, d, t) "--strategy " s "+tp --mesh data=" #d ",tensor=" #t " "
#define WITH_PP(s, d, p) "--strategy " s "+tp+pp --mesh data=" #d ",tensor=8,stage=" #p " "

/* Of the time of calls along the tensor axis, what is left: where products hide calls (torchtitan's
 * "async TP", Megatron's --tp-comm-overlap), fitted to one pair of rows; where gathers are of 8
 * bits, half the calls take half as long. */
#define HIDDEN 0.58
#define NARROW 0.75

/* Seconds of a step from tokens per second of a device; and from 10^12 operations per second of a
 * device by equation 3 of Narayanan et al. 2021, which counts what is recomputed, and by the same
 * without it. */
#define RATE(devices, batch, length, tokens) ((double)(batch) * (length) / (devices) / (tokens))
#define TERA(passes, devices, batch, t, v, l, w, tera)                                             \
    (24.0 * (passes) * (batch) * (t) * (l) * (w) * (w) *                                           \
     (1 + (t) / (6.0 * (w)) + (v) / (4.0 * (passes) * (l) * (w))) / ((devices) * (tera)*1e12))

#define ROW(a, b, c, d, e, n, s, t, sec, opt)                                                      \
    .source = a, .model = b, .layout = c, .device = d, .engine = &(e), .devices = n, .batch = s,   \
    .length = t, .seconds = sec, .options = opt
#define LLMC_ROW(model, device, batch, sec, opt)                                                   \
    ROW("llm.c", model, "zero1 8", device, native, 8, batch, 1024, sec, opt)
#define M2022(model, layout, e, n, batch, sec, opt)                                                \
    ROW("Megatron 2022", model, layout, "a100-80", e, n, batch, 2048, sec, opt)
#define M2021(model, layout, n, batch, l, w, a, tera, opt)                                         \
    ROW("Megatron 2021", model, layout ", full", "a100-80", apart, n, batch, 2048,                 \
        TERA(4, n, batch, 2048.0, 51200.0, l, (double)(w), tera), MEGATRON(l, w, a) FULL opt)
#define MCORE_ROW(model, layout, n, batch, l, w, a, tera, opt)                                     \
    ROW("Megatron-LM", model, layout, "h100-80", native, n, batch, 4096,                           \
        TERA(3, n, batch, 4096.0, 131072.0, l, (double)(w), tera), MCORE(l, w, a) opt)
#define TITAN(model, layout, device, e, n, batch, t, tokens, opt)                                  \
    ROW("torchtitan", model, layout, device, e, n, batch, t, RATE(n, batch, t, tokens), opt)
#define TITAN_A(model, layout, batch, t, tokens, opt)                                              \
    TITAN(model, "fsdp 64" layout, "a100-80", eager_llama, 64, batch, t, tokens, opt FSDP)
#define TITAN_H(model, layout, e, n, batch, tokens, opt)                                           \
    TITAN(model, layout, "h100-96", e, n, batch, 8192, tokens, opt)
#define FMS(model, layout, device, n, batch, tokens, opt)                                          \
    ROW("fms-fsdp", model, layout, device, compiled, n, batch, 4096, RATE(n, batch, 4096, tokens), \
        opt "--reduce-dtype bf16")
#define FOUNDRY(model, layout, device, n, batch, tokens, opt)                                      \
    ROW("llm-foundry", model, layout, device, eager_gpt, n, batch, 2048,                           \
        RATE(n, batch, 2048, tokens), opt FSDP "--reduce-dtype bf16")
#define BRIDGE(model, layout, device, n, batch, tokens, opt)                                       \
    ROW("Megatron Bridge", model, layout, device, native, n, batch, 8192,                          \
        RATE(n, batch, 8192, tokens), opt FP8)

/* ---- rows ------------------------------------------------------------------------------------ */

static const struct published {
    const char *source, *model, *layout, *device;
    const struct engine *engine;
    int devices;
    int64_t batch, length; /* samples of all ranks, positions */
    double seconds;        /* of a step, published */
    const char *options;
    double tensor_share; /* of the time of calls along the tensor axis; 0: all of it */
    double host_net_gbs; /* GB/s of a host's network; 0: as hosts of this device are sold */
    bool fitted;
} published[] = {
    {LLMC_ROW("GPT-2 124M", "h100-80", 512, 0.140, GPT2(12, 768, 12) LLMC)},
    {LLMC_ROW("GPT-2 350M", "h100-80", 512, 0.348, GPT2(24, 1024, 16) LLMC)},
    {LLMC_ROW("GPT-2 1558M", "h100-80", 1024, 2.80, GPT2(48, 1600, 25) LLMC MICRO(8)),
     .fitted = true},
    {LLMC_ROW("GPT-2 124M", "a100-80", 512, 0.300, GPT2(12, 768, 12) LLMC)},
    {LLMC_ROW("GPT-2 350M", "a100-80", 512, 0.820, GPT2(24, 1024, 16) LLMC)},
    {LLMC_ROW("GPT-2 774M", "a100-80", 512, 1.7, GPT2(36, 1280, 20) LLMC MICRO(2)), .fitted = true},

    {M2022("GPT 22B", "tp 8, full", apart, 8, 4, 1.42, MEGATRON(48, 6144, 64) TP8 FULL)},
    {M2022("GPT 22B", "tp+sp 8", apart_twice, 8, 4, 1.10, MEGATRON(48, 6144, 64) TP8 SP)},
    {M2022("GPT 175B", "tp 8, pp 8, full", apart, 64, 64, 18.13,
           MEGATRON(96, 12288, 96) TP8PP8 TURNS(3) FULL MICRO(64))},
    {M2022("GPT 175B", "tp+sp 8, pp 8", apart_twice, 64, 64, 13.75,
           MEGATRON(96, 12288, 96) TP8PP8 TURNS(3) SP MICRO(64))},

    {M2021("GPT 1.7B", "ddp 32", 32, 512, 24, 2304, 24, 137, "--strategy ddp")},
    {M2021("GPT 3.6B", "ddp 32, tp 2", 64, 512, 30, 3072, 32, 138, WITH_TP("ddp", 32, 2))},
    {M2021("GPT 7.5B", "ddp 32, tp 4", 128, 512, 36, 4096, 32, 142,
           WITH_TP("ddp", 32, 4) MICRO(4))},
    {M2021("GPT 18.4B", "ddp 32, tp 8", 256, 1024, 40, 6144, 48, 135,
           WITH_TP("ddp", 32, 8) MICRO(8))},
    {M2021("GPT 39.1B", "ddp 32, tp 8, pp 2", 512, 1536, 48, 8192, 64, 138,
           WITH_PP("ddp", 32, 2) MICRO(16) TURNS(12))},

    {MCORE_ROW("GPT 1.7B", "fsdp 48", 48, 192, 24, 2048, 16, 408.8, FSDP KEPT)},
    {MCORE_ROW("GPT 7.1B", "fsdp 48, tp+sp 2", 96, 192, 30, 4096, 32, 465.9,
               WITH_TP("fsdp", 48, 2) KEPT SP),
     .tensor_share = HIDDEN},
    {MCORE_ROW("GPT 16B", "fsdp 48, tp+sp 4", 192, 192, 32, 6144, 48, 489.1,
               WITH_TP("fsdp", 48, 4) KEPT SP),
     .tensor_share = HIDDEN},
    {MCORE_ROW("GPT 32B", "fsdp 48, tp+sp 8", 384, 192, 48, 7168, 56, 459.6,
               WITH_TP("fsdp", 48, 8) KEPT SP),
     .tensor_share = HIDDEN},
    {MCORE_ROW("GPT 70B", "zero1 48, tp+sp 8, pp 2", 768, 384, 84, 8192, 64, 419.7,
               WITH_PP("zero1", 48, 2) SP MICRO(8) TURNS(21)),
     .tensor_share = HIDDEN},
    {MCORE_ROW("GPT 119B", "zero1 48, tp+sp 8, pp 4", 1536, 768, 92, 10240, 80, 420.5,
               WITH_PP("zero1", 48, 4) SP MICRO(16) TURNS(23)),
     .tensor_share = HIDDEN},
    {MCORE_ROW("GPT 314B", "zero1 48, tp+sp 8, pp 8", 3072, 1536, 96, 16384, 128, 474.4,
               WITH_PP("zero1", 48, 8) SP MICRO(32) TURNS(6)),
     .tensor_share = HIDDEN},

    {TITAN_A("Llama 2 13B", "", 128, 4096, 2162.0, LLAMA2_13)},
    {TITAN_A("Llama 2 13B", ", layers/2", 128, 4096, 1914.0, LLAMA2_13 SECOND)},
    {TITAN_A("Llama 2 13B", ", products/2", 128, 4096, 1904.0, LLAMA2_13 THIRD)},
    {TITAN_A("Llama 2 70B", ", products/2", 64, 4096, 355.0, LLAMA2_70 THIRD)},
    {TITAN_A("Llama 2 70B", ", full", 128, 4096, 353.0, LLAMA2_70 FULL)},
    {TITAN_A("Llama 3 8B", ", layers/2", 64, 8192, 2904.0, LLAMA3_8 SECOND)},
    {TITAN_A("Llama 3 8B", ", products/2", 64, 8192, 2973.0, LLAMA3_8 THIRD)},
    {TITAN_A("Llama 3 70B", ", full", 64, 8192, 331.0, LLAMA3_70 FULL)},
    {TITAN_H("Llama 3 405B", "fsdp 16, tp+sp 8, full", compiled, 128, 32, 109.0,
             LLAMA3_405 WITH_TP("fsdp", 16, 8) SP FULL)},
    {TITAN_H("Llama 3 405B", "fsdp 16, tp+sp 8, full, fp8", compiled, 128, 32, 177.0,
             LLAMA3_405 WITH_TP("fsdp", 16, 8) SP FULL FP8),
     .tensor_share = NARROW},
    {TITAN_H("Llama 3 405B", "fsdp 16, tp+sp 8, full, fp8, async", compiled, 128, 32, 185.0,
             LLAMA3_405 WITH_TP("fsdp", 16, 8) SP FULL FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN_H("Llama 3 8B", "fsdp 8, products/2", eager_llama, 8, 16, 5762.0, LLAMA3_8 FSDP THIRD)},
    {TITAN_H("Llama 3 8B", "fsdp 8, products/2", compiled, 8, 16, 6667.0, LLAMA3_8 FSDP THIRD)},
    {TITAN_H("Llama 3 8B", "fsdp 8, products/2, fp8", compiled, 8, 16, 8532.0,
             LLAMA3_8 FSDP THIRD FP8)},
    {TITAN_H("Llama 3 8B", "fsdp 128, products/2", eager_llama, 128, 256, 5605.0,
             LLAMA3_8 FSDP THIRD)},
    {TITAN_H("Llama 3 8B", "fsdp 128, products/2", compiled, 128, 256, 6514.0,
             LLAMA3_8 FSDP THIRD)},
    {TITAN_H("Llama 3 8B", "fsdp 128, products/2, fp8", compiled, 128, 256, 8380.0,
             LLAMA3_8 FSDP THIRD FP8)},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full, fp8", compiled, 256, 512, 829.0,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL FP8),
     .tensor_share = NARROW},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full, fp8, async", compiled, 256, 512, 876.0,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN_H("Llama 3 405B", "fsdp 8, tp+sp 8, pp 8, full, fp8, async", compiled, 512, 256, 100.0,
             LLAMA3_405 WITH_PP("fsdp", 8, 8) KEPT SP MICRO(8) "--pp.schedule 1f1b " FULL FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN_H("Llama 3 405B", "fsdp 8, tp+sp 8, pp 8x2, full, fp8, async", compiled, 512, 256, 128.0,
             LLAMA3_405 WITH_PP("fsdp", 8, 8) KEPT SP MICRO(8) TURNS(2) FULL FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full", compiled, 256, 512, 597.3,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL),
     .fitted = true},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full, async", compiled, 256, 512, 652.4,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL),
     .tensor_share = HIDDEN, .fitted = true},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full, fp8", compiled, 256, 512, 809.8,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL FP8),
     .tensor_share = NARROW},
    {TITAN_H("Llama 3 70B", "fsdp 32, tp+sp 8, full, fp8, async", compiled, 256, 512, 942.4,
             LLAMA3_70 WITH_TP("fsdp", 32, 8) SP FULL FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN_H("Llama 3 8B", "fsdp 8, tp+sp 8, products/2", compiled, 64, 96, 4378.0,
             LLAMA3_8 WITH_TP("fsdp", 8, 8) SP THIRD)},
    {TITAN_H("Llama 3 8B", "fsdp 8, tp+sp 8, products/2, async", compiled, 64, 96, 4809.4,
             LLAMA3_8 WITH_TP("fsdp", 8, 8) SP THIRD),
     .tensor_share = HIDDEN},
    {TITAN_H("Llama 3 8B", "fsdp 8, tp+sp 8, products/2, fp8", compiled, 64, 96, 5078.1,
             LLAMA3_8 WITH_TP("fsdp", 8, 8) SP THIRD FP8),
     .tensor_share = NARROW},
    {TITAN_H("Llama 3 8B", "fsdp 8, tp+sp 8, products/2, fp8, async", compiled, 64, 96, 5570.1,
             LLAMA3_8 WITH_TP("fsdp", 8, 8) SP THIRD FP8),
     .tensor_share = HIDDEN * NARROW},
    {TITAN("Llama 3 8B", "fsdp 32, products/2, fp8", "h200-141", compiled, 32, 64, 8192, 10938.0,
           LLAMA3_8 FSDP THIRD FP8)},
    {TITAN("Llama 3 8B", "fsdp 64, products/2, fp8", "h200-141", compiled, 64, 128, 8192, 10753.0,
           LLAMA3_8 FSDP THIRD FP8)},

    {FMS("Llama 2 7B", "hsdp 128", "a100-80", 128, 256, 4550.0, LLAMA2_7 "--strategy hsdp "),
     .host_net_gbs = 48},
    {FMS("Llama 2 13B", "fsdp 128, layers/3", "a100-80", 128, 256, 2150.0, LLAMA2_13 FSDP THIRD),
     .host_net_gbs = 48},
    {FMS("Llama 2 34B", "fsdp 128, full", "a100-80", 128, 256, 820.0, LLAMA2_34 FSDP FULL),
     .host_net_gbs = 48},
    {FMS("Llama 2 70B", "fsdp 128, full", "a100-80", 128, 256, 410.0, LLAMA2_70 FSDP FULL),
     .host_net_gbs = 48},
    {FMS("Llama 2 7B", "hsdp 96", "h100-80", 96, 192, 9600.0, LLAMA2_7 "--strategy hsdp "),
     .host_net_gbs = 96},
    {FMS("Llama 2 13B", "fsdp 96, layers/3", "h100-80", 96, 192, 4850.0, LLAMA2_13 FSDP THIRD),
     .host_net_gbs = 96},
    {FMS("Llama 2 34B", "fsdp 96, full", "h100-80", 96, 192, 1830.0, LLAMA2_34 FSDP FULL),
     .host_net_gbs = 96},
    {FMS("Llama 2 70B", "fsdp 96, full", "h100-80", 96, 192, 890.0, LLAMA2_70 FSDP FULL),
     .host_net_gbs = 96},

    {FOUNDRY("MPT 1B", "fsdp 8", "a100-80", 8, 448, 20513.0, MPT(24, 2048, 16) MICRO(4))},
    {FOUNDRY("MPT 3B", "fsdp 8", "a100-80", 8, 160, 10811.0, MPT(32, 2560, 20) MICRO(2))},
    {FOUNDRY("MPT 7B", "fsdp 8", "a100-80", 8, 96, 4641.0, MPT(32, 4096, 32) MICRO(2))},
    {FOUNDRY("MPT 13B", "fsdp 8", "a100-80", 8, 48, 2262.0, MPT(40, 5120, 40) MICRO(3))},
    {FOUNDRY("MPT 30B", "fsdp 8, full", "a100-80", 8, 504, 916.0,
             MPT(48, 7168, 56) FULL MICRO(21))},
    {FOUNDRY("MPT 70B", "fsdp 64, full", "a100-80", 64, 2048, 410.0,
             MPT(80, 8192, 64) FULL MICRO(4))},
    {FOUNDRY("MPT 760M", "fsdp 8", "h100-80", 8, 384, 63147.0, MPT(24, 1536, 12) MICRO(2))},
    {FOUNDRY("MPT 1B", "fsdp 8", "h100-80", 8, 112, 45455.0, MPT(24, 2048, 16))},
    {FOUNDRY("MPT 3B", "fsdp 16", "h100-80", 16, 480, 24142.0, MPT(32, 2560, 20) MICRO(3))},
    {FOUNDRY("MPT 7B", "fsdp 8", "h100-80", 8, 48, 10643.0, MPT(32, 4096, 32))},
    {FOUNDRY("MPT 7B", "fsdp 512", "h100-80", 512, 3072, 9670.0, MPT(32, 4096, 32))},
    {FOUNDRY("MPT 13B", "fsdp 8", "h100-80", 8, 16, 4792.0, MPT(40, 5120, 40))},
    {FOUNDRY("MPT 13B", "fsdp 128, full", "h100-80", 128, 2048, 5080.0, MPT(40, 5120, 40) FULL)},
    {FOUNDRY("MPT 30B", "fsdp 32, full", "h100-80", 32, 1344, 2308.0,
             MPT(48, 7168, 56) FULL MICRO(3))},
    {FOUNDRY("MPT 70B", "fsdp 64, full", "h100-80", 64, 2048, 1039.0,
             MPT(80, 8192, 64) FULL MICRO(4))},
    {FOUNDRY("MPT 70B", "fsdp 512, full", "h100-80", 512, 4096, 1007.0, MPT(80, 8192, 64) FULL)},

    {BRIDGE("Llama 3 8B", "fsdp 8, fp8", "h100-80", 8, 128, 14451.0, LLAMA3_8 FSDP MICRO(16))},
    {BRIDGE("Llama 3 70B", "zero1 2, tp+sp 4, pp 8, fp8", "h100-80", 64, 256, 1664.0,
            LLAMA3_70 "--strategy zero1+tp+pp --mesh data=2,tensor=4,stage=8 " SP MICRO(128)
                TURNS(5)),
     .tensor_share = HIDDEN * NARROW},
    {BRIDGE("Llama 3 8B", "zero1 8, fp8", "b200-180", 8, 128, 30624.0,
            LLAMA3_8 "--strategy zero1 " MICRO(8))},
};

#endif
