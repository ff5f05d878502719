/*
 * tessera generate as a user meets it: a model that learnt a sentence writes it, from the run of
 * any strategy, in any precision; and what cannot be is refused with the way out. Runs the built
 * program.
 */
#include "harness/spawn.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SENTENCE "the rank waits for all, then adds. "
#define MODEL    "--model gpt --gpt.layers 2 --gpt.heads 4 --gpt.width 32 "
/* Learns the sentence by heart, to a loss of 0.05, whatever the seed; to 0.9 in 80 steps of the
 * default deviation and beta2, which is not enough for bf16. */
#define TRAIN                                                                                      \
    "train --data text.txt --data.length 48 --batch-size 8 --grid 4 --optimizer adamw "            \
    "--learning-rate 0.005 --beta2 0.99 --evaluate off --steps 120 " MODEL                         \
    "--gpt.init-deviation 0.1 "

static char folder[] = "/tmp/test_generate_XXXXXX";
static struct spawn spawn;

static int run(const char *words)
{
    return spawn_words(&spawn, words);
}

/* tessera generate WORDS, then --prompt TEXT, which may have spaces. */
static int generate(const char *words, const char *prompt)
{
    char copy[512], *argv[32];
    int argc = 0;

    snprintf(copy, sizeof(copy), "%s", words);
    argv[argc++] = "tessera";
    argv[argc++] = "generate";
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc++] = "--prompt";
    argv[argc++] = (char *)prompt;
    argv[argc] = NULL;
    return spawn_run(&spawn, argv, NULL);
}

static void check_says(const char *words, const char *prompt, const char *text)
{
    if (generate(words, prompt) != 0)
        fail_msg("generate %s: %s", words, spawn.err);
    if (strcmp(spawn.out, text) != 0)
        fail_msg("generate %s printed '%s', not '%s'", words, spawn.out, text);
    assert_non_null(strstr(spawn.err, "tokens/s"));
    /* The text is the model's bytes alone: what follows begins a line. */
    assert_true(spawn.err[0] == '\n' || strstr(spawn.err, "\n\n") != NULL);
}

/* The sentence learnt by heart, whatever trained it and whatever generates it. */
static void case_says(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "fsdp --ranks 4",
                                         "ddp --ranks 2 --precision bf16", "fsdp+tp+pp --ranks 8"};
    char words[512];
    glob_t found;

    (void)state;
    for (size_t i = 0; i < (TESTS_DIVISOR > 1 ? 2 : sizeof(layout) / sizeof(layout[0])); i++) {
        snprintf(words, sizeof(words), TRAIN "--run out%zu --strategy %s", i, layout[i]);
        assert_int_equal(run(words), 0);
        snprintf(words, sizeof(words), "out%zu --temperature 0 --tokens 27", i);
        check_says(words, "the rank", SENTENCE);
        assert_non_null(strstr(spawn.err, i == 2 ? "gpt, bf16" : "gpt, f32"));
    }
    check_says("out0 --temperature 0 --tokens 5 --kernel ref", "all, ", "all, then ");
    check_says("out0 --temperature 0 --tokens 5 --device cpu", "all, ", "all, then ");
    check_says("out0 --temperature 0 --tokens 5 --kernel guard_queue", "all, ", "all, then ");
    check_says("out0 --temperature 0 --tokens 5 --precision f16", "all, ", "all, then ");
    check_says("out0 --top-k 1 --tokens 5 --temperature 7", "all, ", "all, then ");
    check_says("out0 --top-p 1e-6 --tokens 5 --context 10", "all, ", "all, then ");
    /* A checkpoint; and a run that has nothing else, as after kill -9. */
    assert_int_equal(glob("out0/checkpoints/step-*", 0, NULL, &found), 0);
    snprintf(words, sizeof(words), "%s --temperature 0 --tokens 5", found.gl_pathv[0]);
    globfree(&found);
    check_says(words, "all, ", "all, then ");
    assert_int_equal(rename("out0/weights.safetensors", "out0/hidden"), 0);
    check_says("out0 --temperature 0 --tokens 5", "all, ", "all, then ");
    assert_int_equal(rename("out0/hidden", "out0/weights.safetensors"), 0);
    /* Weights alone, with the model's options from a file that contains more than those. */
    check_says("out1/weights.safetensors --config run.yaml --temperature 0 --tokens 5", "all, ",
               "all, then ");
}

/* Without a prompt, in numbers, to the end of the context; the same seed gives the same. */
static void case_forms(void **state)
{
    char first[SPAWN_TEXT_BYTES];

    (void)state;
    assert_int_equal(run("generate out0 --prompt-tokens 97,108,108,44,32 --temperature 0 "
                         "--tokens 3"),
                     0);
    assert_string_equal(spawn.out, "97,108,108,44,32,116,104,101\n");
    assert_int_equal(spawn.err[0], '3');
    assert_int_equal(run("generate out0 --temperature 30"), 0);
    assert_non_null(strstr(spawn.err, "the context of 48 leaves room for 47 tokens"));
    assert_non_null(strstr(spawn.err, "47 tokens in"));
    assert_int_equal(spawn.out_used, 48);
    assert_int_equal(spawn.out[0], '\n');
    memcpy(first, spawn.out, sizeof(first));
    assert_int_equal(run("generate out0 --temperature 30 --seed 1 --tokens 47"), 0);
    assert_memory_equal(spawn.out, first, 48);
    assert_int_equal(run("generate out0 --temperature 30 --seed 2 --tokens 47"), 0);
    assert_memory_not_equal(spawn.out, first, 48);
}

static size_t read_file(const char *path, char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

/* Weights that are read under any layout, and saved again, are the same file. */
static void case_carried(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "tp --ranks 4", "pp --ranks 2",
                                         "fsdp+tp+pp --ranks 8"};
    static char first[1 << 18], again[1 << 18];
    const size_t count = read_file("out0/weights.safetensors", first, sizeof(first));
    char words[512];

    (void)state;
    assert_in_range(count, 1 << 16, sizeof(first) - 1);
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        snprintf(words, sizeof(words),
                 TRAIN "--steps 1 --learning-rate 0 --init out0/weights.safetensors --run again "
                       "--overwrite --strategy %s",
                 layout[i]);
        assert_int_equal(run(words), 0);
        assert_int_equal(read_file("again/weights.safetensors", again, sizeof(again)), count);
        assert_memory_equal(again, first, count);
    }
}

static void check_refused(const char *words, int status, const char *phrase)
{
    const int found = run(words);

    if (found != status || strstr(spawn.err, phrase) == NULL)
        fail_msg("%s: exit %d, not %d; '%s' in: %s", words, found, status, phrase, spawn.err);
    assert_string_equal(spawn.out, "");
}

static void case_refused(void **state)
{
    static const struct {
        const char *words, *phrase;
        int status;
    } wrong[] = {
        {"generate", "needs a run", 2},
        {"generate out0 out1", "one word too many", 2},
        {"generate out0 --tokns 3", "did you mean 'tokens'", 2},
        {"generate out0 --temperature -1", "temperature", 2},
        {"generate out0 --top-p 0", "top-p", 2},
        {"generate out0 --prompt=", "--prompt is empty", 2},
        {"generate out0 --prompt a --prompt-tokens 1", "give one", 2},
        {"generate out0 --prompt-tokens 1,300", "300 is not in the model's vocabulary", 2},
        {"generate out0 --prompt abc --tokens 46", "--tokens 45 does", 2},
        {"generate out0 --context 3 --prompt abc", "leaves nothing of a context of 3", 2},
        {"generate out0 --kernel none", "none", 2},
        {"generate out0 --kernel ref --device cuda", "--device cuda has kernels of its own", 2},
        {"generate out0 --context 500", "a context of 500 positions: this model has learnt 48", 2},
        {"generate out0 --stop a||b", "--stop: word 2 is empty", 2},
        {"generate out0 --stop-tokens 1,256", "256 is not in the model's vocabulary", 2},
        {"generate out0 --chat on --prompt a", "tokenizer_config.json", 1},
        {"generate out0 --chat on", "--chat needs a question", 2},
        {"generate out0 --system a --prompt a", "give --chat, too", 2},
        {"generate out0 --prompts nowhere", "cannot read --prompts nowhere", 1},
        {"generate out0 --prompts run.yaml --prompt a", "give one", 2},
        {"generate out0 --prompts lines.txt --output text", "give --output json", 2},
        {"generate out0 --prompts bad1.jsonl", "bad1.jsonl, line 2: not JSON", 1},
        {"generate out0 --prompts bad2.jsonl", "line 1: \"tokens\" are not numbers", 1},
        {"generate out0 --prompts bad3.jsonl", "line 1: an object without \"prompt\"", 1},
        {"generate out0 --prompts bad4.jsonl", "line 1: message 1 has no", 1},
        {"score", "score needs a run and a text", 2},
        {"score out0", "score needs a run and a text", 2},
        {"score out0 --text nowhere", "cannot read --text nowhere", 1},
        {"score out0 --text-tokens 5", "a text of one token", 2},
        {"score out0 --text-tokens 5,300", "300 is not in the model's vocabulary", 2},
        {"score wide --text lines.txt --vocabulary 300", "a tokenizer that is not here", 2},
        {"generate nowhere", "there is no nowhere: give a run's folder", 1},
        {"generate out0/weights.safetensors", "need --config FILE.yaml", 1},
        {"generate out0/weights.safetensors --config nowhere.yaml", "nowhere.yaml", 2},
        {"generate wide/weights.safetensors --config wide.yaml", "has 300 tokens of a tokenizer",
         2},
        {"generate text.txt --config run.yaml", "not a safetensors file", 1},
        {"generate unsaved", "unsaved has no weights: neither a complete checkpoint nor", 1},
        {"generate images", "model 'mlp' is not one of tokens", 1},
        {"generate broken", "does not begin with {\"run\": ...}", 1},
        {"generate other", "other weights?", 1},
    };

    (void)state;
    assert_int_equal(run("train --data synthetic --steps 1 --evaluate off --run images"), 0);
    assert_int_equal(
        run(TRAIN "--steps 1 --strategy single --run unsaved --save-weights off --save-every off"),
        0);
    assert_int_equal(run(TRAIN "--steps 1 --strategy single --run wide --gpt.vocab 300"), 0);
    assert_int_equal(mkdir("broken", 0777), 0);
    assert_int_equal(mkdir("other", 0777), 0);
    assert_int_equal(link("out0/weights.safetensors", "broken/weights.safetensors"), 0);
    assert_int_equal(link("out0/metrics.jsonl", "other/metrics.jsonl"), 0);
    assert_int_equal(link("images/weights.safetensors", "other/weights.safetensors"), 0);
    FILE *file = fopen("broken/metrics.jsonl", "w");
    assert_non_null(file);
    fputs("{\"run\": 3}\n", file);
    fclose(file);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        check_refused(wrong[i].words, wrong[i].status, wrong[i].phrase);
    /* The same weights as bytes, whose numbers the larger table begins with. */
    assert_int_equal(run("generate wide --tokens 3 --prompt x"), 0);
    assert_int_equal(spawn.out_used, 4);
}

/* A file of prompts: each line's text, the same whatever else is continued beside it. */
static void case_batch(void **state)
{
    static const char *const words[] = {
        "generate out0 --prompts lines.txt --tokens 12 --temperature 0.9 --batch 1 --chunk 1",
        "generate out0 --prompts lines.txt --tokens 12 --temperature 0.9 --batch 2 --chunk 3",
        "generate out0 --prompts lines.txt --tokens 12 --temperature 0.9",
    };
    char first[SPAWN_TEXT_BYTES];
    (void)state;
    assert_int_equal(run("generate out0 --prompts lines.txt --temperature 0 --tokens 6"), 0);
    assert_string_equal(spawn.out,
                        "{\"prompt\":0,\"text\":\" waits\",\"tokens\":[32,119,97,105,116,115],"
                        "\"end\":\"length\"}\n"
                        "{\"prompt\":1,\"text\":\"then a\",\"tokens\":[116,104,101,110,32,97],"
                        "\"end\":\"length\"}\n"
                        "{\"prompt\":2,\"text\":\", then\",\"tokens\":[44,32,116,104,101,110],"
                        "\"end\":\"length\"}\n");
    assert_non_null(strstr(spawn.err, "3 prompts, 18 tokens"));
    assert_int_equal(run("generate out0 --prompts lines.txt --temperature 0 --tokens 6 --stop "
                         "its|then --stop-tokens 110"),
                     0);
    assert_non_null(strstr(spawn.out, "\"text\":\" wa\",\"tokens\":[32,119,97,105,116,115],"
                                      "\"end\":\"stop\"}"));
    assert_non_null(
        strstr(spawn.out, "\"text\":\"the\",\"tokens\":[116,104,101,110],\"end\":\"end\"}"));
    check_says("out0 --temperature 0 --stop adds|xx", "the rank", "the rank waits for all, then ");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        assert_int_equal(run(words[i]), 0);
        /* Of equal length: the same order, too. */
        if (i == 0)
            memcpy(first, spawn.out, sizeof(first));
        assert_string_equal(spawn.out, first);
    }
}

/* Log-probabilities of a text: the same bits in any chunk, and as training has them together. */
static void case_score(void **state)
{
    char first[SPAWN_TEXT_BYTES];
    double loss, sum, perplexity;
    (void)state;
    assert_int_equal(run("score out0 --text lines.txt"), 0);
    memcpy(first, spawn.out, sizeof(first));
    assert_non_null(strstr(first, "{\"at\":1,\"token\":104,\"log_prob\":-"));
    assert_int_equal(run("score out0 --text lines.txt --chunk 1"), 0);
    assert_string_equal(spawn.out, first);
    assert_int_equal(run("score out0 --text lines.txt --chunk 7 --kernel cpu"), 0);
    assert_string_equal(spawn.out, first);
    const char *end = strstr(first, "{\"tokens\":");
    assert_non_null(end);
    assert_int_equal(
        sscanf(end, "{\"tokens\":%*d,\"log_prob\":%lf,\"perplexity\":%lf", &sum, &perplexity), 2);
    assert_true(sum < 0 && perplexity > 1);
    /* A step over the first samples of a text, of rate 0, has their mean loss: in order, as the
     * batch is all there is. */
    assert_int_equal(run("train --data part.txt --data.length 48 --data.validation 0.01 "
                         "--batch-size 8 --optimizer sgd --learning-rate 0 --evaluate off --steps "
                         "1 --log-every 1 " MODEL "--init out0/weights.safetensors --strategy "
                         "single --run scored"),
                     0);
    FILE *file = fopen("scored/metrics.jsonl", "r");
    assert_non_null(file);
    for (loss = -1; loss < 0 && fgets(first, sizeof(first), file) != NULL;)
        if (strstr(first, "\"loss\":") != NULL)
            sscanf(strstr(first, "\"loss\":"), "\"loss\":%lf", &loss);
    fclose(file);
    assert_int_equal(run("score out0 --text part.txt --output sum --limit 385"), 0);
    assert_int_equal(sscanf(spawn.out, "384 tokens, log-probability %lf", &sum), 1);
    /* Sums of samples are rounded to f32, the printed one to nine digits. */
    assert_true(loss > 0 && fabs(loss + sum / 384) < 1e-6 * loss);
    assert_int_equal(run("score out0 --text-tokens 97,108,108 --output table"), 0);
    assert_non_null(strstr(spawn.out, "log-probability\n         1       108  "));
}

static void case_help(void **state)
{
    (void)state;
    assert_int_equal(run("help generate"), 0);
    assert_non_null(strstr(spawn.out, "--top-k N"));
    assert_non_null(strstr(spawn.out, "tessera generate out --prompt"));
    assert_int_equal(run("generate --help"), 0);
    assert_non_null(strstr(spawn.out, "usage: tessera generate RUN"));
}

static void write_yaml(const char *name, const char *more)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fprintf(file,
            "data: text.txt\nstrategy: fsdp\nranks: 4\nbatch-size: 8\ngrid: 4\nmodel: gpt\n"
            "data.length: 48\ngpt:\n  layers: 2\n  heads: 4\n  width: 32\n%s",
            more);
    fclose(file);
}

static void write_text(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return -1;
    FILE *file = fopen("text.txt", "w");
    for (int i = 0; file != NULL && i < 600; i++)
        fputs(SENTENCE, file);
    if (file == NULL || fclose(file) != 0)
        return -1;
    write_text("lines.txt", "the rank\n\n{\"prompt\": \"all, \"}\n{\"tokens\": [97,108,108]}\n");
    write_text("bad1.jsonl", "a\n{\"prompt\": \n");
    write_text("bad2.jsonl", "{\"tokens\": [1, 256]}\n");
    write_text("bad3.jsonl", "{\"text\": \"a\"}\n");
    write_text("bad4.jsonl", "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}\n");
    file = fopen("part.txt", "w"); /* 9 samples: 8 to train on, in one batch */
    for (int i = 0; file != NULL && i < 13; i++)
        fputs(SENTENCE, file);
    if (file == NULL || fclose(file) != 0)
        return -1;
    write_yaml("run.yaml", "");
    write_yaml("wide.yaml", "  vocab: 300\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_says),  cmocka_unit_test(case_forms), cmocka_unit_test(case_carried),
        cmocka_unit_test(case_batch), cmocka_unit_test(case_score), cmocka_unit_test(case_refused),
        cmocka_unit_test(case_help),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
