/* Predicted beside measured, as a user meets it: plan --calibrate, what train and compare print and
 * keep of a prediction, and the table of plan --accuracy. */
#include "harness/spawn.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY                                                                                       \
    "--data synthetic --synthetic-rows 256 --batch-size 16 --mlp.hidden 16,16,16 --evaluate off"

static char folder[] = "/tmp/tessera_test_XXXXXX";
static struct spawn spawn;

/* `format` with the test's folder in the place of each %s: up to three of them. */
static int run_words(const char *format)
{
    char words[2048];
    snprintf(words, sizeof(words), format, folder, folder, folder);
    return spawn_words(&spawn, words);
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        return;
    print_error("no \"%s\" in:\n%s\n", part, text);
    fail();
}

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* The prediction in a run folder's last line; a new reference. */
static json_t *prediction_of(const char *run)
{
    char path[256], line[1 << 15], last[1 << 15] = "";
    snprintf(path, sizeof(path), "%s/%s/metrics.jsonl", folder, run);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        memcpy(last, line, sizeof(last));
    fclose(file);
    json_t *root = json_loads(last, 0, NULL);
    json_t *prediction = json_object_get(json_object_get(root, "final"), "prediction");
    assert_true(json_is_object(prediction));
    json_incref(prediction);
    json_decref(root);
    return prediction;
}

static double number(const json_t *object, const char *part, const char *key)
{
    const json_t *value = json_object_get(json_object_get(object, part), key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* Before there is a measurement, and of what is not modelled. */
static void test_not_calibrated(void **state)
{
    (void)state;
    assert_int_equal(run_words("train " TINY " --ranks 2 --strategy ddp --steps 6 --run %s/plain"),
                     0);
    has(spawn.out, "step: predicted ");
    has(spawn.out, "not calibrated (tessera plan --calibrate FILE)");
    assert_int_equal(run_words("train " TINY " --ranks 2 --strategy ddp --steps 6 --audit 0.5 "
                               "--run %s/audit"),
                     0);
    has(spawn.out, "not predicted: predictions do not have --audit: leave it out");
    assert_null(strstr(spawn.err, "predictions do not have"));
}

static void test_calibrate(void **state)
{
    char path[256];
    struct stat about;
    (void)state;
    assert_int_equal(run_words("plan " TINY " --ranks 2 --calibrate %s/host.yaml --calibrate-s "
                               "0.01 --top 1"),
                     0);
    has(spawn.out, "measured with kernel");
    has(spawn.err, "train and compare predict with these figures");
    snprintf(path, sizeof(path), "%s/host.yaml", folder);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(run_words("plan " TINY " --ranks 2 --device %s/host.yaml --top 1"), 0);
    has(spawn.out, "device measured");
    assert_int_equal(run_words("plan " TINY " --ranks 2 --device cpu --top 1"), 0);
    has(spawn.out, "device measured");
}

/* The measured profile is used, bytes are those of a step whose loss is not read, and phases are
 * parts of the step. */
static void test_train(void **state)
{
    (void)state;
    assert_int_equal(run_words("train " TINY " --ranks 2 --strategy ddp --steps 20 --run %s/run"),
                     0);
    has(spawn.out, "profile measured\n");
    json_t *prediction = prediction_of("run");
    assert_true(json_is_true(json_object_get(prediction, "calibrated")));
    assert_true(number(prediction, "predicted", "sent_bytes_per_step") > 0);
    assert_true(fabs(number(prediction, "predicted", "sent_bytes_per_step") /
                         number(prediction, "measured", "sent_bytes_per_step") -
                     1) < 0.01);
    const double step_s = number(prediction, "predicted", "step_s");
    const double parts_s =
        number(prediction, "predicted", "data_s") + number(prediction, "predicted", "forward_s") +
        number(prediction, "predicted", "backward_s") + number(prediction, "predicted", "optim_s") +
        number(prediction, "predicted", "exposed_s");
    assert_true(parts_s > 0.5 * step_s && parts_s < 1.001 * step_s);
    assert_true(fabs(json_number_value(json_object_get(prediction, "ratio")) /
                         (step_s / number(prediction, "measured", "step_s")) -
                     1) < 1e-9);
    json_decref(prediction);
}

/* Three busy processes on each core leave a rank about a quarter: what is printed names them. */
static void test_disturbed(void **state)
{
    pid_t burner[3 * 64];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int count = 3 * (int)(cores < 64 ? cores : 64);
    (void)state;
    for (int i = 0; i < count; i++) {
        burner[i] = fork();
        assert_true(burner[i] >= 0);
        if (burner[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* not for ever, whatever becomes of this process */
            for (;;)
                ;
        }
    }
    const int status =
        run_words("train " TINY " --strategy single --threads 1 --mlp.hidden 512,512,512 "
                  "--steps 40 --run %s/beside");
    for (int i = 0; i < count; i++) {
        kill(burner[i], SIGKILL);
        waitpid(burner[i], NULL, 0);
    }
    assert_int_equal(status, 0);
    has(spawn.out, "other programs took a part of the processors: a rank had ");
    json_t *prediction = prediction_of("beside");
    assert_true(json_number_value(json_object_get(prediction, "processor_share")) < 0.9);
    json_decref(prediction);
}

/* More stages than cores take turns: no stage's step is shorter than all work by all cores. */
static void test_compare(void **state)
{
    (void)state;
    assert_int_equal(run_words("compare " TINY " --ranks 4 --strategies "
                               "single,ddp,pp --steps 4 --json %s/compare.json"),
                     0);
    has(spawn.out, "step in ms, predicted and measured\n");
    assert_int_equal(run_words("plan --accuracy %s/run %s/compare.json --json %s/errors.json"), 0);
    has(spawn.out, "4 runs: median error ");
    char path[256];
    snprintf(path, sizeof(path), "%s/errors.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(root, "runs")), 4);
    const json_t *errors = json_object_get(root, "errors");
    assert_true(number(errors, "step_s", "runs") == 4);
    assert_true(number(errors, "step_s", "p95") >= number(errors, "step_s", "median"));
    json_decref(root);
}

/* Median and percentile by hand: of errors 1, 2 .. 10 % the 5th and the 10th. */
static void test_errors(void **state)
{
    char text[8192];
    size_t used = (size_t)snprintf(text, sizeof(text), "{\"runs\": [");
    (void)state;
    for (int i = 1; i <= 10; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "%s{\"strategy\": \"x\\u001b\", \"ranks\": 2, \"prediction\": "
                                 "{\"calibrated\": true, \"predicted\": {\"step_s\": %g}, "
                                 "\"measured\": {\"step_s\": 1}}}",
                                 i > 1 ? ", " : "", i % 2 == 0 ? 1 + 0.01 * i : 1 - 0.01 * i);
    snprintf(text + used, sizeof(text) - used, "]}");
    write_file("ten.json", text);
    assert_int_equal(run_words("plan --accuracy %s/ten.json"), 0);
    has(spawn.out, "10 runs: median error 5.0 %, 95th percentile 10.0 %");
    assert_null(strchr(spawn.out, '\033'));
    /* A run that goes on still is named, and the others count. */
    char path[256];
    snprintf(path, sizeof(path), "%s/open", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file("open/metrics.jsonl", "{\"train_loss\": 1}\n");
    assert_int_equal(run_words("plan --accuracy %s/open %s/ten.json"), 0);
    has(spawn.out, "/open: it has not ended: metrics.jsonl has no \"final\"");
    has(spawn.out, "10 runs: median error 5.0 %, 95th percentile 10.0 %");
}

static void test_hostile(void **state)
{
    static const struct {
        const char *text, *words;
    } made[] = {
        {"", "hostile:1: not JSON: "},
        {"{\"runs\": [", "hostile:1: not JSON: "},
        {"{\"runs\": 3}", "it has no \"runs\""},
        {"[]", "it has no \"runs\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++) {
        write_file("hostile", made[i].text);
        assert_int_equal(run_words("plan --accuracy %s/hostile"), 1);
        has(spawn.err, made[i].words);
    }
    /* Items of other types are named in the table. */
    write_file("hostile", "{\"runs\": [1, null, {}, {\"ranks\": 1e99, \"prediction\": []}, "
                          "{\"prediction\": {\"predicted\": {\"step_s\": -1}, \"measured\": 7}}]}");
    assert_int_equal(run_words("plan --accuracy %s/hostile"), 0);
    has(spawn.out, "it was written before predictions were");
    has(spawn.out, "its prediction has no time of a step");
    has(spawn.out, "no run has a prediction");
    assert_int_equal(run_words("plan --accuracy %s"), 1);
    has(spawn.err, "metrics.jsonl");
    assert_int_equal(run_words("plan --accuracy"), 2);
    has(spawn.err, "needs run folders");
}

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL && setenv("XDG_CACHE_HOME", folder, 1) == 0 ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_calibrated), cmocka_unit_test(test_calibrate),
        cmocka_unit_test(test_train),          cmocka_unit_test(test_disturbed),
        cmocka_unit_test(test_compare),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests_name("accuracy", tests, folder_make, folder_remove);
}
