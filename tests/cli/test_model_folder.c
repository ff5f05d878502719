/*
 * A model's folder as a user meets it: --model FOLDER alone gives the model and its weights, under
 * every layout the same bits; --init FOLDER is compared with the run's model; what contradicts is
 * refused. Runs the built program.
 */
#include "harness/spawn.h"

#include <jansson.h>
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
    "--tensor.canonical 4 "
#define SHAPE                                                                                      \
    "--model gpt --gpt.style llama --gpt.layers 2 --gpt.width 32 --gpt.heads 4 --gpt.kv-heads 4 "  \
    "--gpt.ffn 64 --gpt.tied on --gpt.rope-base 500 --gpt.norm-epsilon 1e-4 "
#define CONFIG                                                                                     \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, "                  \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"intermediate_size\": 64, "          \
    "\"max_position_embeddings\": 64, \"vocab_size\": 256, \"tie_word_embeddings\": true, "        \
    "\"rms_norm_eps\": 1e-4, \"rope_theta\": 500.0}"

static char folder[] = "/tmp/tessera_model_folder_XXXXXX";
static struct spawn spawn;

#define run(...) spawn_format(&spawn, __VA_ARGS__)

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void check_refused(const char *phrase)
{
    if (strstr(spawn.err, phrase) == NULL)
        fail_msg("'%s' expected: %s", phrase, spawn.err);
}

/* Hash and validation loss after a step that changes nothing. */
static void look(const char *model, const char *layout, char hash[32], char loss[32])
{
    if (run(DATA "--steps 1 --learning-rate 0 %s --strategy %s", model, layout) != 0)
        fail_msg("%s", spawn.err);
    spawn_hash(&spawn, hash);
    spawn_word(&spawn, "val loss ", loss);
}

static void case_model(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "fsdp --ranks 2", "ddp+tp --ranks 4",
                                         "pp --ranks 2"};
    char hash[32], loss[32], first[32], drawn[32], seeded[32];

    (void)state;
    look(SHAPE "--init out", "single", hash, first);
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        char other[32];

        look("--model out", layout[i], other, loss);
        assert_string_equal(other, hash);
        assert_string_equal(loss, first);
    }
    look("--model out --init none", "single", drawn, loss);
    look(SHAPE, "single", seeded, loss);
    assert_string_equal(drawn, seeded);
    assert_string_not_equal(drawn, hash);
    write_text("model.yaml", "model: out\n");
    look("model.yaml", "single", drawn, loss);
    assert_string_equal(drawn, hash);
}

/* Tokens of GPT-2's tokenizer, as llm.c has them, all below 256. */
static void write_shard(const char *path)
{
    const int32_t header[256] = {20240520, 1, 2000};
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof(header), 1, file), 1);
    for (int i = 0; i < 2000; i++) {
        const uint16_t token = (uint16_t)(i % 200);

        assert_int_equal(fwrite(&token, sizeof(token), 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static void case_contradictions(void **state)
{
    (void)state;
    assert_int_equal(run(DATA "--steps 1 --model out --gpt.heads 2"), 2);
    check_refused("command line: gpt.heads is 2, and in out/config.json \"num_attention_heads\" is "
                  "4");
    assert_int_equal(run(DATA "--steps 1 --model out --gpt.heads 4 --gpt.dropout 0.1"), 0);
    assert_int_equal(run(DATA "--steps 1 " SHAPE "--gpt.norm-epsilon 1e-5 --init out"), 2);
    check_refused("\"rms_norm_eps\" is 0.0001, and the run has gpt.norm-epsilon 1e-05");
    assert_int_equal(run(DATA "--steps 1 " SHAPE "--gpt.rope-base 10000 --init "
                              "out/model.safetensors.index.json"),
                     2);
    check_refused("\"rope_theta\" is 500.0, and the run has gpt.rope-base 10000");
    assert_int_equal(run("train --steps 1 --init out"), 2);
    check_refused("give the folder as --model");
    write_shard("large.bin");
    assert_int_equal(run(DATA "--steps 1 --model out --data large.bin"), 2);
    check_refused("--data large.bin: its tokenizer has 50257 tokens, and the model of "
                  "out/config.json has 256");
    assert_int_equal(run(DATA "--steps 1 " SHAPE "--init out --data large.bin"), 2);
    check_refused("its tokenizer has 50257 tokens, and the model of out has 256");
    assert_int_equal(run(DATA "--model ./nowhere"), 1);
    check_refused("there is no such folder");
    assert_int_equal(mkdir("empty", 0777), 0);
    assert_int_equal(run(DATA "--model empty"), 1);
    check_refused("empty: the folder has no config.json");
    write_text("empty/config.json", "{\"model_type\": \"bert\"}");
    assert_int_equal(run(DATA "--model empty"), 1);
    check_refused("empty/config.json: \"model_type\" is \"bert\"");
}

/* A run has its model's options itself. */
static void case_run(void **state)
{
    char hash[32], other[32];

    (void)state;
    assert_int_equal(run(DATA "--model out --steps 4 --run whole"), 0);
    spawn_hash(&spawn, hash);
    assert_int_equal(run(DATA "--model out --steps 2 --run part --schedule constant"), 0);
    assert_int_equal(run("generate out --prompt ab --tokens 4 --temperature 0"), 0);
    assert_int_equal(rename("out", "gone"), 0);
    assert_int_equal(run("train --run part --resume --steps 4"), 0);
    spawn_hash(&spawn, other);
    assert_string_equal(other, hash);
    assert_int_equal(run("generate part --prompt ab --tokens 4"), 0);
    assert_int_equal(rename("gone", "out"), 0);
}

/* What is exported of a run is a folder again: the same model, the same bits. */
static void case_export(void **state)
{
    static const char *const model[] = {
        "--gpt.ffn 48 --gpt.tied off --gpt.vocab 300",
        "--gpt.style llama --gpt.kv-heads 4 --gpt.norm-epsilon 1e-4 --gpt.rope-base 500",
        "--gpt.style llama --gpt.qkv-bias on --gpt.rope-scaling llama3 --gpt.rope-factor 8 "
        "--gpt.rope-context 8 --gpt.rope-low 0.5",
        "--gpt.style llama --gpt.qk-norm on --gpt.head-size 6 --gpt.tied on --gpt.rope-scaling "
        "yarn --gpt.rope-factor 4 --gpt.rope-context 8 --gpt.rope-amplitude 1.25",
        "--gpt.style llama --gpt.rope-scaling dynamic --gpt.rope-factor 2 --gpt.rope-context 8",
        "--gpt.style llama --gpt.window 5 --gpt.gate gelu --gpt.gelu erf",
        "--gpt.style llama --gpt.qkv-bias on --gpt.window 6 --gpt.window-from 1 --gpt.gate gelu",
    };
    static const char *const family[] = {"gpt2",  "llama",   "qwen2", "qwen3",
                                         "llama", "mistral", "qwen2"};

    (void)state;
    for (size_t i = 0; i < sizeof(model) / sizeof(model[0]); i++) {
        char hash[32], loss[32], other[32], again[32];

        if (run(DATA "--model gpt --gpt.layers 2 --gpt.width 16 --steps 2 --strategy single --run "
                     "own --overwrite %s",
                model[i]) != 0)
            fail_msg("%s", spawn.err);
        spawn_hash(&spawn, hash);
        spawn_word(&spawn, "val loss ", loss);
        assert_int_equal(run("checkpoint export own --out again"), 0);
        json_t *config = json_load_file("again/config.json", 0, NULL);
        assert_string_equal(json_string_value(json_object_get(config, "model_type")), family[i]);
        json_decref(config);
        look("--model again", "single", other, again);
        assert_string_equal(other, hash);
        assert_string_equal(again, loss);
        assert_int_equal(spawn_remove("again"), 0);
    }
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0 ||
        run(DATA SHAPE "--steps 4 --run begin") != 0 ||
        run("checkpoint export begin --out out") != 0)
        return -1;
    write_text("out/config.json", CONFIG);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_model),
        cmocka_unit_test(case_contradictions),
        cmocka_unit_test(case_run),
        cmocka_unit_test(case_export),
    };
    return cmocka_run_group_tests_name("model folder", tests, set_up, tear_down);
}
