/*
 * Low-rank adapters as a user meets them: --lora.rank trains adapters beside frozen weights, with
 * the same bits under every layout, less memory, and files that PEFT has. Runs the built program.
 */
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DATA                                                                                       \
    "train --data synthetic --synthetic-rows 64 --data.length 16 --batch-size 16 --grid 4 "        \
    "--tensor.canonical 4 --model base --learning-rate 0.02 "
#define LORA "--lora.rank 4 --lora.alpha 8 --clip 1 "
#define CONFIG                                                                                     \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, "                  \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"intermediate_size\": 64, "          \
    "\"max_position_embeddings\": 64, \"vocab_size\": 256, \"tie_word_embeddings\": true, "        \
    "\"rms_norm_eps\": 1e-4, \"rope_theta\": 500.0}"

static char folder[] = "/tmp/tessera_adapters_XXXXXX";
static struct spawn spawn;

static int run(const char *format, ...)
{
    char words[1024];
    va_list list;

    va_start(list, format);
    vsnprintf(words, sizeof(words), format, list);
    va_end(list);
    return spawn_words(&spawn, words);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* What follows `before` on the line where stdout has it. */
static void word_after(const char *before, char word[32])
{
    const char *at = strstr(spawn.out, before);

    if (at == NULL)
        fail_msg("no '%s' in: %s%s", before, spawn.out, spawn.err);
    at += strlen(before);
    snprintf(word, 32, "%.*s", (int)strcspn(at, ",;\n "), at);
}

static void check_refused(const char *phrase)
{
    if (strstr(spawn.err, phrase) == NULL)
        fail_msg("'%s' expected: %s", phrase, spawn.err);
}

static void case_layouts(void **state)
{
    static const char *const layout[] = {
        "dp --ranks 2",
        "ddp --ranks 2 --audit 1",
        "ddp --ranks 4 --recompute full",
        "zero1 --ranks 2",
        "zero2 --ranks 4",
        "fsdp --ranks 2 --recompute selective",
        "fsdp --ranks 2 --accumulate 2",
        "hsdp --ranks 4",
        "pp --ranks 2 --accumulate 2",
        "tp --ranks 4",
        "fsdp+tp --ranks 4",
        "fsdp+pp --ranks 4 --accumulate 2",
        "fsdp --ranks 2 --kernel guard",
    };
    char first[32], hash[32];

    (void)state;
    /* Sanitizers: each other one, with all ways to deal out; they catch in ref what guard does. */
    const size_t turn = TESTS_DIVISOR > 1 ? 2 : 1;
    for (size_t i = 0; i + turn <= sizeof(layout) / sizeof(layout[0]); i += turn) {
        const char *kernel = strstr(layout[i], "guard") != NULL ? "--kernel guard" : "";

        if (i == 0 || kernel[0] != '\0') {
            assert_int_equal(run(DATA LORA "--steps 3 --strategy single %s", kernel), 0);
            word_after("hash of all parameters ", first);
        }
        if (run(DATA LORA "--steps 3 --strategy %s", layout[i]) != 0)
            fail_msg("%s: %s", layout[i], spawn.err);
        word_after("hash of all parameters ", hash);
        if (strcmp(first, hash) != 0)
            fail_msg("%s: hash %s, on one rank %s", layout[i], hash, first);
        if (strstr(spawn.out, "predicted by the memory plan = allocated, for every kind") == NULL)
            fail_msg("%s: another plan than memory: %s", layout[i], spawn.out);
    }
}

/* bf16 needs no masters of what is frozen. */
static void case_bf16(void **state)
{
    char first[32], hash[32];

    (void)state;
    assert_int_equal(run(DATA LORA "--steps 3 --precision bf16 --strategy single"), 0);
    word_after("hash of all parameters ", first);
    assert_int_equal(run(DATA LORA "--steps 3 --precision bf16 --strategy fsdp --ranks 2"), 0);
    word_after("hash of all parameters ", hash);
    assert_string_equal(first, hash);
}

/* Of rank 0, by kind: parameters, masters, gradients, optimizer; in MiB. */
static void memory_of(const char *options, double mib[4])
{
    if (run("train --data synthetic --synthetic-rows 16 --data.length 16 --batch-size 4 --steps 1 "
            "--model gpt --gpt.style llama --gpt.layers 2 --gpt.width 256 --precision bf16 %s",
            options) != 0)
        fail_msg("%s", spawn.err);
    const char *at = strstr(spawn.out, "peak RSS\n");
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen("peak RSS\n"), "%*d %lf %lf %lf %lf", &mib[0], &mib[1],
                            &mib[2], &mib[3]),
                     4);
}

/* Adapters of rank 4 have some 4 % of the elements of layers 256 wide. */
static void case_memory(void **state)
{
    static const char *const layout[] = {"--strategy single", "--strategy fsdp --ranks 2"};

    (void)state;
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        char words[128];
        double all[4], lora[4];

        memory_of(layout[i], all);
        snprintf(words, sizeof(words), "%s --lora.rank 4", layout[i]);
        memory_of(words, lora);
        assert_true(lora[0] > all[0] && lora[0] < 1.1 * all[0]);
        for (int kind = 1; kind < 4; kind++)
            assert_true(all[kind] > 1 && lora[kind] < 0.1 * all[kind]);
    }
}

static void case_files(void **state)
{
    char hash[32], loss[32], other[32];

    (void)state;
    FILE *file = fopen("text.txt", "w"); /* that a model can learn from */
    assert_non_null(file);
    for (int i = 0; i < 2000; i++)
        fprintf(file, "%d and ", i);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(run(DATA "--data text.txt " LORA
                              "--steps 8 --run tuned --schedule constant --strategy fsdp "
                              "--ranks 2"),
                     0);
    word_after("hash of all parameters ", hash);
    assert_int_equal(run("checkpoint export tuned --out adapters --adapters"), 0);
    assert_int_equal(run("checkpoint export tuned --out merged --file-size 40KB"), 0);
    assert_int_equal(access("merged/model-00002-of-00004.safetensors", F_OK), 0);

    /* The adapters beside the base are the run; merged they are one model, to rounding. */
    assert_int_equal(run(DATA "--data text.txt "
                              "--lora.init adapters --steps 1 --learning-rate 0"),
                     0);
    word_after("hash of all parameters ", other);
    assert_string_equal(hash, other);
    word_after("val loss ", loss);
    assert_int_equal(run(DATA "--data text.txt "
                              "--model merged --steps 1 --learning-rate 0"),
                     0);
    word_after("val loss ", other);
    assert_true(atof(loss) - atof(other) < 2e-4 && atof(other) - atof(loss) < 2e-4);
    assert_int_equal(run(DATA "--data text.txt "
                              "--steps 1 --learning-rate 0"),
                     0);
    word_after("val loss ", other); /* the base alone is another */
    assert_string_not_equal(other, loss);

    assert_int_equal(run("generate tuned --prompt-tokens 1,2 --tokens 4 --temperature 0"), 0);
    snprintf(other, sizeof(other), "%.31s", spawn.out);
    assert_int_equal(run("generate merged --prompt-tokens 1,2 --tokens 4 --temperature 0"), 0);
    assert_true(strncmp(other, spawn.out, strlen(other)) == 0);

    /* Continued on other ranks, and in one go. */
    assert_int_equal(run("train --run tuned --resume --steps 10 --strategy ddp --ranks 4"), 0);
    word_after("hash of all parameters ", hash);
    assert_int_equal(run(DATA "--data text.txt " LORA "--steps 10 --schedule constant"), 0);
    word_after("hash of all parameters ", other);
    assert_string_equal(hash, other);
}

static void refuse_config(const char *keys, const char *phrase)
{
    char text[512];

    snprintf(text, sizeof(text), "{\"peft_type\": \"LORA\", %s}", keys);
    write_text("wrong/adapter_config.json", text);
    assert_int_not_equal(run(DATA "--lora.init wrong --steps 1"), 0);
    check_refused(phrase);
}

static void case_contradictions(void **state)
{
    (void)state;
    assert_int_equal(run("train --model mlp --data synthetic --steps 1 --lora.rank 2"), 2);
    check_refused("model 'mlp' has no adapters");
    assert_int_equal(run(DATA "--lora.init adapters --lora.rank 2 --steps 1"), 2);
    check_refused("lora.rank is 2, and in adapters/adapter_config.json 4");
    assert_int_equal(mkdir("wrong", 0777), 0);
    assert_int_not_equal(run(DATA "--lora.init wrong --steps 1"), 0);
    check_refused("wrong/adapter_config.json");
    refuse_config("\"r\": 4", "\"lora_alpha\" is missing");
    refuse_config("\"r\": 0, \"lora_alpha\": 4", "\"r\" is 0");
    refuse_config("\"r\": 4, \"lora_alpha\": 4, \"target_modules\": \".*\"",
                  "\"target_modules\" is \".*\"");
    refuse_config("\"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"], \"bias\": "
                  "\"all\"",
                  "\"bias\" is \"all\": not supported");
    refuse_config("\"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"], \"use_dora\": "
                  "true",
                  "\"use_dora\" is true: not supported");
    refuse_config("\"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"layers.0.q_proj\", "
                  "\"layers.1.q_proj\", \"layers.0.k_proj\"]",
                  "not the same layers in each block");
    refuse_config("\"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"]",
                  "wrong/adapter_model.safetensors");
    /* Adapters of other layers than the file has, and a file of the model's own weights. */
    write_text("wrong/adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": "
                                            "8, \"target_modules\": [\"layers.0.mlp.up_proj\", "
                                            "\"layers.1.mlp.up_proj\"]}");
    assert_int_equal(link("adapters/adapter_model.safetensors", "wrong/adapter_model.safetensors"),
                     0);
    assert_int_not_equal(run(DATA "--lora.init wrong --steps 1"), 0);
    check_refused("is none of the model's");
    assert_int_equal(run("checkpoint export plain --out none --adapters"), 2);
    check_refused("it was trained without --lora.rank");
    assert_int_equal(mkdir("full", 0777), 0);
    write_text("full/model.safetensors", "");
    assert_int_equal(run("checkpoint export plain --out full"), 2);
    check_refused("full/model.safetensors is there already");
}

/* A random model as base. */
static int enter(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0 || mkdir("drawn", 0777) != 0)
        return -1;
    write_text("drawn/config.json", CONFIG);
    if (run("train --data synthetic --synthetic-rows 64 --data.length 16 --batch-size 16 --model "
            "drawn --run plain --steps 2") != 0 ||
        run("checkpoint export plain --out base") != 0)
        fail_msg("%s", spawn.err);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_layouts), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_memory), cmocka_unit_test(case_files),
                                       cmocka_unit_test(case_contradictions)};

    return cmocka_run_group_tests(cases, enter, leave);
}
