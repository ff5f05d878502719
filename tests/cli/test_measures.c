/*
 * What a run measures and computes, as lines of metrics.jsonl: the times of every epoch, and
 * digests of the parameters (--hash-every), which --debug must not change. Runs the built program
 * on made-up images.
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL                                                                                      \
    "--data", "synthetic", "--synthetic-rows", "512", "--batch-size", "64", "--mlp.hidden", "128", \
        "--grid", "4"
#define LINES_MAX 64

static char folder[] = "/tmp/tessera_measures_XXXXXX";
static char metrics_path[64];
static struct spawn spawn;

static double number_of(const json_t *event, const char *name)
{
    const json_t *value = json_object_get(event, name);

    if (!json_is_number(value))
        fail_msg("an event without the number %s", name);
    return json_number_value(value);
}

static const char *text_of(const json_t *event, const char *name)
{
    const char *text = json_string_value(json_object_get(event, name));

    assert_non_null(text);
    return text;
}

static int train_lines(char *const argv[], json_t *line[LINES_MAX])
{
    char text[16384];
    FILE *file;
    int count = 0;

    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    file = fopen(metrics_path, "r");
    assert_non_null(file);
    while (count < LINES_MAX && fgets(text, sizeof(text), file) != NULL) {
        line[count] = json_loads(text, 0, NULL);
        assert_non_null(line[count]);
        count++;
    }
    fclose(file);
    return count;
}

static void drop_lines(json_t *line[], int count)
{
    for (int i = 0; i < count; i++)
        json_decref(line[i]);
}

/* 512 images in batches of 64: 8 steps an epoch; 2 epochs and a half. */
static void case_times(void **state)
{
    char *argv[] = {"tessera", "train", MODEL,     "--strategy",  "fsdp",
                    "--ranks", "2",     "--steps", "20",          "--log-every",
                    "100",     "--run", folder,    "--overwrite", NULL};
    json_t *line[LINES_MAX];
    int count = train_lines(argv, line), epochs = 0;
    double all_parts = 0, all = 0;

    (void)state;
    for (int i = 1; i < count; i++) {
        static const char *const part[] = {"data_s", "forward_s", "backward_s", "exposed_s",
                                           "optim_s"};
        json_t *times = json_object_get(line[i], "times");
        json_int_t slowest = json_integer_value(json_object_get(times, "slowest"));
        double busy[2];

        if (times == NULL)
            continue;
        assert_int_equal(json_integer_value(json_object_get(times, "epoch")), epochs);
        epochs++;
        for (size_t r = 0; r < 2; r++) {
            json_t *rank = json_array_get(json_object_get(times, "ranks"), r);
            double sum = 0, total = number_of(rank, "total_s");

            for (size_t p = 0; p < sizeof(part) / sizeof(part[0]); p++) {
                assert_true(number_of(rank, part[p]) >= 0);
                sum += number_of(rank, part[p]);
            }
            /* The parts are disjoint: 5 differences of clock readings a step, each rounded to
             * double at less than 1e6 s, so at most 20 * 5 * 2 * 1e6 * 2^-53 = 2.3e-8 s over. What
             * they leave is the loss's sum and what is between steps. */
            assert_true(sum <= total + 2.3e-8);
            all_parts += sum;
            all += total;
            assert_true(number_of(rank, "hidden_s") >= 0);
            assert_true(number_of(rank, "hidden_s") <= total - number_of(rank, "exposed_s") + 1e-9);
            busy[r] = total - number_of(rank, "exposed_s");
            /* Rank 0's total is the epoch line's time, which comes before. */
            if (r == 0)
                assert_true(number_of(line[i - 1], "time_s") == total);
        }
        assert_true(busy[slowest] >= busy[1 - slowest]);
    }
    assert_true(all_parts > 0.5 * all); /* a single epoch of 10 ms may be interrupted for longer */
    assert_int_equal(epochs, 3);
    assert_int_equal(spawn_count(spawn.out, "  time: data "), 3);
    assert_int_equal(spawn_count(spawn.out, "slowest rank "), 3);
    drop_lines(line, count);
}

/* The same digests for one rank and for shards of two; and from --debug, which must not change a
 * bit. */
static void case_digests_and_debug(void **state)
{
    static const char *const run[][3] = {
        {"single", "1", "--no-debug"}, {"ddp", "2", "--debug"}, {"fsdp", "4", "--debug"}};
    json_t *line[LINES_MAX], *kept[3] = {NULL, NULL, NULL}, *hash = NULL;

    (void)state;
    for (size_t r = 0; r < 3; r++) {
        char *argv[] = {"tessera",
                        "train",
                        MODEL,
                        "--strategy",
                        (char *)run[r][0],
                        "--ranks",
                        (char *)run[r][1],
                        (char *)run[r][2],
                        "--steps",
                        "7",
                        "--hash-every",
                        "3",
                        "--run",
                        folder,
                        "--overwrite",
                        NULL};
        int count = train_lines(argv, line), digests = 0;

        for (int i = 0; i < count; i++) {
            json_t *digest = json_object_get(line[i], "digest"), *tensor;
            const char *name;

            if (digest == NULL)
                continue;
            assert_true(digests < 3);
            assert_int_equal(json_integer_value(json_object_get(digest, "step")),
                             3 * digests); /* from the initial values on */
            assert_int_equal(json_object_size(json_object_get(digest, "tensors")), 4);
            json_object_foreach(json_object_get(digest, "tensors"), name, tensor)
            {
                assert_int_equal(strlen(text_of(tensor, "hash")), 16);
                assert_true(number_of(tensor, "norm") >= 0);
                assert_int_equal(json_array_size(json_object_get(tensor, "sketch")), 8);
                if (kept[digests] != NULL)
                    assert_string_equal(
                        text_of(tensor, "hash"),
                        text_of(json_object_get(json_object_get(kept[digests], "tensors"), name),
                                "hash"));
            }
            assert_non_null(json_object_get(json_object_get(digest, "tensors"), "fc1.weight"));
            if (kept[digests] == NULL)
                kept[digests] = json_incref(digest);
            digests++;
        }
        assert_int_equal(digests, 3);
        if (hash == NULL)
            hash = json_incref(json_object_get(json_object_get(line[count - 1], "final"), "hash"));
        assert_true(
            json_equal(hash, json_object_get(json_object_get(line[count - 1], "final"), "hash")));
        drop_lines(line, count);
    }
    assert_false(json_equal(kept[0], kept[1]));
    json_decref(kept[0]);
    json_decref(kept[1]);
    json_decref(kept[2]);
    json_decref(hash);
}

/* Every shown step has how busy each of several ranks was, as shares; not for one rank alone.
 */
static void case_busy(void **state)
{
    char *two[] = {"tessera", "train",   MODEL, "--strategy",  "ddp", "--ranks",
                   "2",       "--steps", "16",  "--log-every", "1",   NULL};
    char *one[] = {"tessera", "train", MODEL, "--strategy", "single", "--steps", "4", NULL};
    const char *at = spawn.out;
    int seen = 0;

    (void)state;
    assert_int_equal(spawn_run(&spawn, two, NULL), 0);
    while ((at = strstr(at, "  busy ")) != NULL) {
        int a = -1, b = -1;
        assert_int_equal(sscanf(at, "  busy %d %d %%", &a, &b), 2);
        assert_in_range(a, 0, 100);
        assert_in_range(b, 0, 100);
        seen++;
        at++;
    }
    assert_int_equal(seen, 16);
    assert_int_equal(spawn_run(&spawn, one, NULL), 0);
    assert_null(strstr(spawn.out, "busy"));
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

/* ---- what --explain says that a rank sends ----------------------------------------------------
 */

/* Where ranks sum and update in one pass, values in 16 bits go out in place of sums; else sums do.
 */
static void case_sent(void **state)
{
    static const char *const words[] = {"--precision f32", "--precision bf16",
                                        "--precision bf16 --clip 1", "--precision bf16 --comm tcp",
                                        "--precision bf16 --threads 2"};
    json_t *line[LINES_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        char *argv[] = {"tessera", "train",       MODEL,     "--strategy", "ddp",
                        "--ranks", "2",           "--steps", "4",          "--run",
                        folder,    "--overwrite", "on",      "--evaluate", "off",
                        NULL,      NULL,          NULL,      NULL,         NULL};
        char text[64], *rest = text;
        size_t argc = 0;
        assert_int_equal(spawn_format(&spawn,
                                      "train --data synthetic --synthetic-rows 512 --batch-size 64 "
                                      "--mlp.hidden 128 --grid 4 --strategy ddp --ranks 2 "
                                      "--explain %s",
                                      words[i]),
                         0);
        const char *said = strstr(spawn.out, "sent by a rank per step: ");
        const char *bytes = said != NULL ? strstr(said, " bytes") : NULL;
        assert_non_null(bytes);
        while (bytes[-1] >= '0' && bytes[-1] <= '9')
            bytes--;
        const double sent = strtod(bytes, NULL);
        while (argv[argc] != NULL)
            argc++;
        snprintf(text, sizeof(text), "%s", words[i]);
        for (char *word; (word = strsep(&rest, " ")) != NULL;)
            argv[argc++] = word;
        const int count = train_lines(argv, line);
        const json_t *final = json_object_get(line[count - 1], "final");
        const json_t *measured = json_object_get(final, "sent_bytes_per_step");
        const double ran = json_number_value(json_array_get(measured, 0));
        if (sent > ran || sent < 0.99 * ran || ran <= 0) /* losses and the like come on top */
            fail_msg("%s: --explain says %.0f bytes, the run %.0f", words[i], sent, ran);
        for (int l = 0; l < count; l++)
            json_decref(line[l]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_times),
        cmocka_unit_test(case_digests_and_debug),
        cmocka_unit_test(case_busy),
        cmocka_unit_test(case_sent),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(metrics_path, sizeof(metrics_path), "%s/metrics.jsonl", folder);
    return cmocka_run_group_tests_name("measures", tests, NULL, remove_folder);
}
