/*
 * `tessera train --device cuda` on devices made of host code (madeup.h): the module's own sources,
 * through the program. One hash of all parameters for every strategy, number of ranks and number of
 * devices, with several ranks on a device (threads) and with one each (processes over NCCL);
 * 16 and 8 bits; attention over the made-up cuDNN; graphs; and calls that fail. No rank takes
 * memory, searches a plan or connects to another one after its first step began (MADEUP_SEAL), and
 * messages are of registered memory. A word chooses one of the cases in main.
 */
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RUN                                                                                        \
    "train --device cuda --data synthetic --synthetic-rows 32 --batch-size 8 --steps 2 "           \
    "--evaluate off --save-weights off --timeout 60 "
#define MLP RUN "--model mlp --mlp.hidden 24 --grid 8 "
#define CNN RUN "--model cnn --cnn.channels 4,6 --cnn.fc 20 --grid 8 "
#define GPT                                                                                        \
    RUN "--model gpt --gpt.layers 4 --gpt.heads 4 --gpt.width 32 --data.length 8 "                 \
        "--optimizer adamw --grid 4 --tensor.canonical 4 "

#define GPT_GRAPH                                                                                  \
    RUN "--steps 4 --log-every 100 --model gpt --gpt.heads 2 --gpt.width 32 --data.length 8 "      \
        "--precision bf16 "

/* Sizes in multiples of 16, also of a part. */
#define FP8                                                                                        \
    "train --device cuda --data synthetic --synthetic-rows 8 --batch-size 2 --steps 2 "            \
    "--evaluate off --save-weights off --timeout 60 --model gpt --gpt.layers 1 --gpt.heads 2 "     \
    "--gpt.width 32 --data.length 32 --optimizer adamw --grid 2 --tensor.canonical 2 "             \
    "--precision bf16 "

/* Llama's blocks, whose q, k and v, and gate and up, are one product each. */
#define LLAMA                                                                                      \
    RUN "--model gpt --gpt.style llama --gpt.layers 1 --gpt.heads 8 --gpt.kv-heads 4 "             \
        "--gpt.width 32 --gpt.ffn 64 --data.length 8 --optimizer adamw --batch-size 4 --grid 4 "
#define LLAMA_FP8 FP8 "--gpt.style llama --gpt.ffn 64 "

static struct spawn spawn;

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

/* What sanitizers see in other runs as well. */
static bool left_to_others(int index)
{
    return TESTS_DIVISOR > 1 && index % 4 != 0;
}

static int run(int devices, const char *model, const char *words)
{
    char text[1024];
    set_number("MADEUP_DEVICES", devices);
    snprintf(text, sizeof(text), "%s%s", model, words);
    return spawn_words(&spawn, text);
}

/* "hash of all parameters 0123456789abcdef" */
static void hash_of(int devices, const char *model, const char *words, char hash[17])
{
    const int code = run(devices, model, words);
    if (code != 0)
        fail_msg("%s on %d devices ended with %d:\n%s%s", words, devices, code, spawn.out,
                 spawn.err);
    spawn_hash(&spawn, hash);
}

struct way {
    int devices;
    const char *words;
};

/* All end with the hash of one rank. */
static void all_same(const char *model, const struct way *way, size_t count)
{
    char one[17], hash[17];
    hash_of(1, model, "", one);
    for (size_t w = 0; w < count; w++) {
        if (left_to_others((int)w))
            continue;
        hash_of(way[w].devices, model, way[w].words, hash);
        if (strcmp(hash, one) != 0)
            fail_msg("%s on %d devices: %s, and one rank %s", way[w].words, way[w].devices, hash,
                     one);
    }
}

#define ALL_SAME(model, ...)                                                                       \
    do {                                                                                           \
        static const struct way ways[] = {__VA_ARGS__};                                            \
        all_same(model, ways, sizeof(ways) / sizeof(ways[0]));                                     \
    } while (0)

static void case_mlp(void **state)
{
    (void)state;
    /* Ranks that do the same have all memory registered. */
    setenv("MADEUP_NCCL_REGISTERED", "all", 1);
    ALL_SAME(MLP, {1, "--strategy ddp --ranks 2"}, {4, "--strategy dp --ranks 4 --comm nccl"},
             {1, "--strategy zero1 --ranks 4"}, {2, "--strategy zero2 --ranks 4"},
             {2, "--strategy fsdp --ranks 4"}, {1, "--strategy hsdp --ranks 4"},
             {2, "--strategy ddp --ranks 2"},
             {4, "--strategy fsdp --ranks 4 --comm.nccl.cta-policy zero"},
             {8, "--strategy ddp --ranks 8"}, {1, "--strategy dp --ranks 4"});
    setenv("MADEUP_NCCL_REGISTERED", "messages", 1);
    ALL_SAME(MLP, {1, "--strategy pp --ranks 2"}, {2, "--strategy pp --ranks 2"});
    set_number("MADEUP_PLACES", 2); /* two hosts */
    ALL_SAME(MLP, {4, "--strategy fsdp --ranks 4"},
             {4, "--strategy ddp --ranks 4 --comm.nccl.max-ctas 4 --comm.nccl.scratch 64Ki"});
    unsetenv("MADEUP_PLACES");
}

static void case_cnn(void **state)
{
    (void)state;
    ALL_SAME(CNN, {1, "--strategy ddp --ranks 2"}, {1, "--strategy fsdp --ranks 4"},
             {4, "--strategy zero2 --ranks 4"}, {2, "--strategy fsdp --ranks 2"},
             {1, "--strategy pp --ranks 2 --accumulate 4"},
             {2, "--strategy pp --ranks 2 --accumulate 4"});
}

static void case_gpt(void **state)
{
    (void)state;
    ALL_SAME(GPT, {1, "--strategy fsdp --ranks 4"}, {4, "--strategy fsdp+tp --ranks 4"},
             {2, "--strategy tp --ranks 2"}, {1, "--strategy tp --ranks 4"},
             {1, "--strategy pp --ranks 2 --accumulate 4"},
             {2, "--strategy pp --ranks 2 --accumulate 4"},
             {2, "--strategy pp --ranks 2 --accumulate 4 --pp.schedule interleaved"},
             {4, "--strategy pp --ranks 4 --accumulate 4 --pp.schedule gpipe"},
             {8, "--strategy fsdp+tp+pp --ranks 8"});
}

/* A rank with one part of each weight, or the whole, reads them where they lie; one with several
 * copies them together. */
static void case_llama(void **state)
{
    (void)state;
    ALL_SAME(LLAMA "--tensor.canonical 2 ", {2, "--strategy fsdp+tp --ranks 4"});
    ALL_SAME(LLAMA "--precision bf16 --gpt.layers 2 ",
             {1, "--strategy zero2 --ranks 2 --zero2.bucket-mib 0 --zero2.first-bucket-mib 0"},
             {2, "--strategy pp --ranks 2 --accumulate 4"});
    ALL_SAME(LLAMA_FP8 "--fp8 now ", {1, "--strategy tp --ranks 2"});
}

static void case_llama_all(void **state)
{
    (void)state;
    ALL_SAME(LLAMA, {2, "--strategy fsdp --ranks 4"}, {1, "--strategy hsdp --ranks 4"},
             {1, "--strategy ddp --ranks 2 --ddp.bucket-mib 0 --ddp.first-bucket-mib 0"},
             {1, "--strategy zero1 --ranks 2 --zero1.bucket-mib 0 --zero1.first-bucket-mib 0"},
             {1, "--strategy ddp --ranks 2 --audit 1"}, {1, "--strategy dp --ranks 2"},
             {2, "--strategy pp --ranks 2 --accumulate 4 --pp.schedule interleaved"},
             {1, "--cuda.graph on --accumulate 2"});
    ALL_SAME(LLAMA "--tensor.canonical 4 ", {4, "--strategy fsdp+tp --ranks 4"},
             {1, "--strategy tp --ranks 4"}, {2, "--strategy tp --ranks 2"},
             {8, "--strategy fsdp+tp+pp --ranks 8"});
    ALL_SAME(LLAMA_FP8, {1, "--strategy fsdp --ranks 2"}, {2, "--strategy tp --ranks 2"});
    ALL_SAME(LLAMA_FP8 "--fp8 now ", {1, "--strategy fsdp --ranks 2"},
             {2, "--strategy tp --ranks 2"});
}

/* How often kernels that narrow to 8 bits run in two steps of Llama. */
static int narrowed(const char *layers)
{
    static const char before[] = "made-up device: fp8.cu ran ";
    char words[64];
    snprintf(words, sizeof(words), "--fp8 now --tensor.canonical 1 --gpt.layers %s", layers);
    setenv("MADEUP_COUNT", "fp8.cu", 1);
    const int code = run(1, LLAMA_FP8, words);
    unsetenv("MADEUP_COUNT");
    const char *last = NULL;
    for (const char *at = spawn.err; (at = strstr(at, before)) != NULL; last = at)
        at += sizeof(before) - 1;
    if (code != 0 || last == NULL)
        fail_msg("%s ended with %d:\n%s%s", words, code, spawn.out, spawn.err);
    return atoi(last);
}

/*
 * A block has four products: q k v, join, gate up, narrow. Each narrows its weights once a step,
 * and in both leaves of a step x in forward, x and dy in backward, by three kernels: the greatest
 * element, the scale, the narrowing. With q, k, v and gate, up apart it would be 7/4 of that.
 */
static void case_narrowed(void **state)
{
    enum { STEPS = 2, PRODUCTS = 4, LEAVES = 2, KERNELS = 3 };
    (void)state;
    assert_int_equal(narrowed("2") - narrowed("1"), STEPS * PRODUCTS * (1 + 3 * LEAVES) * KERNELS);
}

static void case_bf16(void **state)
{
    (void)state;
    ALL_SAME(CNN "--precision bf16 ", {2, "--strategy fsdp --ranks 2"},
             {1, "--strategy pp --ranks 2 --accumulate 4"});
    ALL_SAME(FP8, {1, "--strategy fsdp --ranks 2"}, {2, "--strategy tp --ranks 2"});
}

/* With a history, scales follow from what a rank has multiplied, so layouts differ; where the ranks
 * are does not matter. */
static void case_fp8(void **state)
{
    static const char *const cut[] = {"--strategy fsdp --ranks 2", "--strategy tp --ranks 2"};
    char threads[17], processes[17];
    (void)state;
    ALL_SAME(FP8 "--fp8 now ", {1, "--strategy fsdp --ranks 2"}, {2, "--strategy tp --ranks 2"});
    for (int c = 0; c < 2; c++) {
        hash_of(1, FP8 "--fp8 history ", cut[c], threads);
        hash_of(2, FP8 "--fp8 history ", cut[c], processes);
        assert_string_equal(threads, processes);
    }
}

/* Kernels of a recorded step of `layers` blocks, by the run's metrics. */
static int step_kernels(int layers)
{
    static const char key[] = "\"step_kernels\":";
    char folder[] = "/tmp/madeup-XXXXXX", words[256], line[8192];
    int count = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(words, sizeof(words), "--gpt.layers %d --cuda.graph on --run %s/run", layers, folder);
    assert_int_equal(run(1, GPT_GRAPH, words), 0);
    snprintf(words, sizeof(words), "%s/run/metrics.jsonl", folder);
    FILE *file = fopen(words, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, key) != NULL)
            count = atoi(strstr(line, key) + sizeof(key) - 1);
    fclose(file);
    assert_int_equal(spawn_remove(folder), 0);
    return count;
}

static void case_graph(void **state)
{
    (void)state;
    /* A block is 8 launches forward and 21 backward (docs/gpu.md), of so few rows 19, and a step of
     * more parameters may update them in one more. */
    assert_in_range(step_kernels(3) - step_kernels(2), 8 + 19, 8 + 19 + 1);
    ALL_SAME(MLP, {1, "--cuda.graph on"});
    ALL_SAME(GPT, {1, "--cuda.graph on"}, {1, "--cuda.graph on --accumulate 2"});
}

/* ---- cuDNN ---------------------------------------------------------------------------------- */

/* Two heads of 16 for each part, and bf16: what cuDNN takes. */
#define GPT_BF16                                                                                   \
    RUN "--model gpt --gpt.layers 2 --gpt.heads 4 --gpt.width 64 --data.length 8 --precision "     \
        "bf16 --optimizer adamw --grid 4 --tensor.canonical 2 "

static void fails_cudnn(const char *fault, const char *words, const char *part)
{
    if (fault != NULL)
        setenv("MADEUP_FAIL", fault, 1);
    const int code = run(1, GPT_BF16, words);
    unsetenv("MADEUP_FAIL");
    if (code != 1 || strstr(spawn.err, part) == NULL || spawn_count(spawn.err, "tessera: ") != 1)
        fail_msg("%s, %s ended with %d:\n%s%s", fault, words, code, spawn.out, spawn.err);
}

/* The folder of the user's cache, and what was kept there. */
static void cudnn_forget(const char *folder)
{
    static const char *const files[] = {"/tessera/cuda-products.txt",
                                        "/tessera/cuda-products.txt.lock", "/tessera", ""};
    for (int i = 0; i < 4; i++) {
        char file[64];
        snprintf(file, sizeof(file), "%s%s", folder, files[i]);
        assert_int_equal(remove(file), 0);
    }
    unsetenv("XDG_CACHE_HOME");
}

/* What was kept for one model of GPU: 1, cuDNN; 2, our own kernels. */
static long cudnn_kept(const char *folder, int model)
{
    char file[64], text[8192] = "", key[64];
    snprintf(file, sizeof(file), "%s/tessera/cuda-products.txt", folder);
    FILE *stream = fopen(file, "r");
    assert_non_null(stream);
    assert_in_range(fread(text, 1, sizeof(text) - 1, stream), 1, sizeof(text) - 2);
    fclose(stream);
    snprintf(key, sizeof(key), "attention|a made-up GPU, model %d|", model);
    const char *at = strstr(text, key);
    assert_non_null(at);
    at = strchr(at, '\t');
    assert_non_null(at);
    return strtol(at, NULL, 16);
}

/* The choice is kept, so all runs make the same, on any number of ranks. */
static void cudnn_auto(const char own[17], const char cudnn[17])
{
    char folder[] = "/tmp/madeup-XXXXXX", one[17], other[17];
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    hash_of(1, GPT_BF16, "--cuda.attention auto", one);
    assert_true(strcmp(one, own) == 0 || strcmp(one, cudnn) == 0);
    hash_of(4, GPT_BF16, "--cuda.attention auto --strategy fsdp+tp --ranks 4", other);
    assert_string_equal(one, other);
    cudnn_forget(folder);
}

/* Ranks on GPUs of two models, each of which finds the other way the faster: all take our own. */
static void cudnn_settles(const char own[17])
{
    static const char *const slow[] = {
        "attention_plain.cu:0:60000,cudnnBackendExecute:1:60000",
        "attention_plain.cu:1:60000,cudnnBackendExecute:0:60000",
    };
    setenv("MADEUP_MODELS", "1", 1);
    for (int i = 0; i < 2; i++) {
        char folder[] = "/tmp/madeup-XXXXXX", hash[17];
        assert_non_null(mkdtemp(folder));
        setenv("XDG_CACHE_HOME", folder, 1);
        setenv("MADEUP_SLOW", slow[i], 1);
        hash_of(2, GPT_BF16, "--cuda.attention auto --strategy ddp --ranks 2", hash);
        assert_string_equal(hash, own);
        unsetenv("MADEUP_SLOW");
        assert_int_equal(cudnn_kept(folder, i), 1);
        assert_int_equal(cudnn_kept(folder, 1 - i), 2);
        cudnn_forget(folder);
    }
    unsetenv("MADEUP_MODELS");
}

static void case_cudnn(void **state)
{
    (void)state;
    char own[17], one[17], other[17];
    setenv("TESSERA_CUDNN", MADEUP_FOLDER "/libtessera_cuda.so", 1);
    hash_of(1, GPT_BF16, "", own);
    hash_of(1, GPT_BF16, "--cuda.attention cudnn", one);
    assert_string_not_equal(one, own); /* else our own kernels have run */
    hash_of(2, GPT_BF16, "--cuda.attention cudnn --strategy fsdp+tp --ranks 4", other);
    assert_string_equal(one, other);
    hash_of(1, GPT_BF16, "--cuda.attention cudnn --strategy pp --ranks 2 --accumulate 4", other);
    assert_string_equal(one, other);
    hash_of(1, GPT_BF16, "--cuda.attention cudnn --cuda.graph on", other);
    assert_string_equal(one, other);
    cudnn_auto(own, one);
    cudnn_settles(own);
    fails_cudnn("cudnnCreate:1", "--cuda.attention cudnn", "cuDNN: ");
    fails_cudnn("cudnnBackendFinalize:9", "--cuda.attention cudnn", "cuDNN: ");
    fails_cudnn("cudnnBackendExecute:2", "--cuda.attention cudnn", "cuDNN: ");
    setenv("TESSERA_CUDNN", "/nowhere/libcudnn.so.9", 1);
    fails_cudnn(NULL, "--cuda.attention cudnn", "--cuda.attention cudnn: cuDNN cannot be opened");
    hash_of(1, GPT_BF16, "--cuda.attention auto", other);
    assert_string_equal(own, other);
}

/* ---- failures ------------------------------------------------------------------------------- */

/* One sentence, exit code 1, nobody hangs. */
static void fails(const char *fault, int devices, const char *words, const char *part)
{
    setenv("MADEUP_FAIL", fault, 1);
    const int code = run(devices, MLP, words);
    unsetenv("MADEUP_FAIL");
    if (code != 1 || strstr(spawn.err, part) == NULL || spawn_count(spawn.err, "tessera: ") != 1)
        fail_msg("%s, %s ended with %d:\n%s%s", fault, words, code, spawn.out, spawn.err);
}

static void case_failures(void **state)
{
    (void)state;
    fails("cudaMalloc:1", 1, "", "out of memory");
    fails("cudaMalloc:2", 1, "", "out of memory");
    fails("cudaHostAlloc:1", 1, "", "out of memory");
    fails("cudaStreamCreateWithPriority:1", 1, "", "out of memory");
    fails("cudaInitDevice:1", 1, "", "cudaInitDevice");
    fails("cudaGetDeviceCount:1:802", 1, "", "the GPUs are not ready");
    fails("cudaLaunchKernel:9", 1, "", "cudaErrorLaunchFailure");
    fails("cudaMemcpyAsync:3:700", 1, "", "cudaErrorIllegalAddress");
    fails("work:40", 1, "", "cudaErrorIllegalAddress");
    fails("work:40", 1, "--strategy ddp --ranks 2", "cudaErrorIllegalAddress");
}

static void refuses(const char *words, const char *part)
{
    const int code = run(1, MLP, words);
    if (code == 0 || strstr(spawn.err, part) == NULL || spawn_count(spawn.err, "tessera: ") != 1)
        fail_msg("%s ended with %d:\n%s%s", words, code, spawn.out, spawn.err);
}

/* What cannot be chosen: NCCL's choices where the ranks do not use it; 8 bits for a layer whose
 * sizes 8-bit products do not take, named with its unit. */
static void case_choices(void **state)
{
    (void)state;
    refuses("--strategy ddp --ranks 2 --comm.nccl.cta-policy zero",
            "--comm.nccl.cta-policy is a choice of NCCL's");
    refuses("--precision bf16 --fp8 now", "kernel 'cuda' cannot run an operation of unit");
    refuses("--precision bf16 --fp8 now", "in multiples of 16 (rows 8 by 1, in ");
    refuses("--fp8 now", "--precision is f32: give --precision bf16 too");
    refuses("--cuda.decode exact --cuda.attention auto", "leave --cuda.attention at own");
    refuses("--cuda.decode exact --precision bf16 --fp8 now", "leave one of the two out");
}

/* Documents of 3 to 62 bytes, each in a file of its own. */
static void write_documents(const char *folder)
{
    for (int f = 0; f < 60; f++) {
        char path[96];
        snprintf(path, sizeof(path), "%s/%02d.txt", folder, f);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        for (int i = 0; i < 3 + f * 37 % 60; i++)
            fputc('a' + (f * 7 + i * i) % 26, file);
        assert_int_equal(fclose(file), 0);
    }
}

/* Packed samples, whose documents the attention kernels keep apart and whose places lie on the
 * device; with a window, too. */
static void case_packing(void **state)
{
    static const char *const style[] = {"", "--gpt.style llama --gpt.window 9 --gpt.gate gelu "};
    static const struct way ways[] = {
        {1, "--strategy ddp --ranks 2"},
        {2, "--strategy fsdp --ranks 2 --accumulate 2"},
        {2, "--strategy pp --ranks 2 --accumulate 2"},
        {1, "--accumulate 4 --recompute full"},
    };
    char folder[] = "/tmp/tessera_packing_XXXXXX", words[512], one[17], apart[17];
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_documents(folder);
    for (int s = 0; s < 2; s++) {
        snprintf(words, sizeof(words),
                 "train --device cuda --data %s/*.txt --data.length 48 --batch-size 4 --grid 4 "
                 "--steps 2 --save-weights off --timeout 60 --model gpt --gpt.layers 2 "
                 "--gpt.heads 2 --gpt.width 32 --optimizer adamw --tensor.canonical 2 %s",
                 folder, style[s]);
        hash_of(1, words, "", apart);
        strncat(words, "--data.packing on ", sizeof(words) - strlen(words) - 1);
        all_same(words, ways + s, s == 0 ? 4 : 2);
        hash_of(1, words, "", one);
        assert_string_not_equal(one, apart);
        strncat(words, "--gpt.attention-dropout 0.3 ", sizeof(words) - strlen(words) - 1);
        all_same(words, ways + s, 2); /* the mask of a sample and a head, on every layout */
        hash_of(1, words, "", apart);
        assert_string_not_equal(one, apart);
    }
    assert_int_equal(run(1, words, "--cuda.graph on"), 2);
    assert_non_null(strstr(spawn.err, "with --data.packing each step has other documents"));
    assert_int_equal(spawn_remove(folder), 0);
}

/* Work that never ends: one sentence that names the rank and what it waits for. */
static void hangs(const char *stall, int devices, const char *words, const char *part)
{
    setenv("MADEUP_STALL", stall, 1);
    const int code = run(devices, MLP, words);
    unsetenv("MADEUP_STALL");
    if (code != 1 || strstr(spawn.err, part) == NULL || spawn_count(spawn.err, "error: ") != 1)
        fail_msg("%s, %s ended with %d:\n%s%s", stall, words, code, spawn.out, spawn.err);
}

static void case_hangs(void **state)
{
    (void)state;
    hangs("update.cu:1", 1, "--timeout 0.2", "has not ended after 2 s");
    /* Ranks also wait for each other to open, which takes more than a second where other tests run.
     * All code is there before, or CUDA would wait for the device in the other rank, to load some.
     */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    hangs("update.cu:1", 1, "--timeout 2 --strategy ddp --ranks 2", "has not ended after 20 s");
    unsetenv("CUDA_MODULE_LOADING");
    hangs("ncclAllGather:5", 2, "--timeout 2 --strategy fsdp --ranks 2", "did not end within 2 s");
    /* Before the first step: a copy of what products are tried with, new memory; a rank that never
     * comes. */
    hangs("cudaMemcpyAsync:1", 1, "--timeout 0.4",
          "writing memory: what was queued has not ended after 4 s");
    hangs("cudaMemsetAsync:1", 1, "--timeout 0.4",
          "filling new device memory with zeros: what was queued has not ended after 4 s");
    hangs("ncclCommInitRankConfig:1:1", 2, "--timeout 2 --strategy fsdp --ranks 2",
          "rank 0: ncclCommInitRankConfig did not end within 2 s: rank 1 is starting");
    /* A rank that is killed, for it waits for its device, which another thread of it has seen. */
    hangs("update.cu:1:1", 2, "--timeout 0.5 --strategy ddp --ranks 2", "did not end within 0.5 s");
}

/* The time limit passes while ranks that wait for each other over NCCL are suspended. */
static void case_suspended(void **state)
{
#define SUSPENDED MLP "--strategy ddp --ranks 2 --steps 200 --synthetic-rows 1600 --timeout 3"
    static char text[] = "tessera " SUSPENDED, *argv[64];
    char whole[17], hash[17];
    int argc = 0;
    (void)state;
    hash_of(2, SUSPENDED, "", whole);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 60));
    spawn_suspend(&spawn);
    if (spawn_end(&spawn, 60) != 0)
        fail_msg("%s%s", spawn.out, spawn.err);
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, whole);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest all[] = {
        cmocka_unit_test(case_mlp),       cmocka_unit_test(case_cnn),
        cmocka_unit_test(case_gpt),       cmocka_unit_test(case_graph),
        cmocka_unit_test(case_cudnn),     cmocka_unit_test(case_failures),
        cmocka_unit_test(case_choices),   cmocka_unit_test(case_bf16),
        cmocka_unit_test(case_fp8),       cmocka_unit_test(case_hangs),
        cmocka_unit_test(case_llama),     cmocka_unit_test(case_llama_all),
        cmocka_unit_test(case_narrowed),  cmocka_unit_test(case_packing),
        cmocka_unit_test(case_suspended),
    };
    if (argc != 2 || setenv("TESSERA_MODULE_PATH", MADEUP_FOLDER, 1) != 0 ||
        setenv("MADEUP_SEAL", "step", 1) != 0 ||
        setenv("MADEUP_NCCL_REGISTERED", "messages", 1) != 0)
        return 2;
    cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(all, NULL, NULL);
}
