/*
 * Time lines as the program writes them (--trace): what the file contains of a run that ends well,
 * of one that does not, of a lane that is full and of a disk that is. Runs the built program on
 * made-up images.
 */
#include "harness/spawn.h"

#include "run/trace_file.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Two layers of about 0.4 MB, so that ddp has a bucket for each under the sizes below. */
#define MODEL                                                                                      \
    "--data", "synthetic", "--synthetic-rows", "512", "--batch-size", "64", "--mlp.hidden", "128", \
        "--grid", "4"
#define BUCKETS "--ddp.bucket-mib", "0.1", "--ddp.first-bucket-mib", "0.001"

enum thread { STEPS = 1, COMPUTE, WAITING, CALLS };

static char folder[] = "/tmp/tessera_timeline_XXXXXX";
static char trace_path[64], metrics_path[64];
static struct spawn spawn;

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *load_trace(void)
{
    json_error_t error;
    json_t *root = json_load_file(trace_path, 0, &error);

    if (root == NULL)
        fail_msg("%s:%d: %s", trace_path, error.line, error.text);
    assert_true(json_is_array(json_object_get(root, "traceEvents")));
    assert_string_equal(json_string_value(json_object_get(root, "displayTimeUnit")), "ms");
    return root;
}

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

static double end_of(const json_t *event)
{
    return number_of(event, "ts") + number_of(event, "dur");
}

static json_t *arg_of(const json_t *event, const char *name)
{
    return json_object_get(json_object_get(event, "args"), name);
}

static bool is_slice(const json_t *event, int rank)
{
    return strcmp(text_of(event, "ph"), "X") == 0 && (int)number_of(event, "pid") == rank;
}

static bool is_on(const json_t *event, int rank, enum thread thread)
{
    int at = (int)number_of(event, "tid");

    return is_slice(event, rank) && (thread == CALLS ? at >= CALLS : at == (int)thread);
}

/* Slices of one thread, in the file's order, follow one another; returns how many. The file has
 * three digits after the point, so two roundings may be apart by one nanosecond. */
static int check_thread(const json_t *events, int rank, int thread)
{
    double end = -1;
    size_t i;
    json_t *event;
    int count = 0;

    json_array_foreach(events, i, event)
    {
        if (!is_slice(event, rank) || (int)number_of(event, "tid") != thread)
            continue;
        if (number_of(event, "ts") < end - 0.0021 || number_of(event, "dur") < 0)
            fail_msg("rank %d, thread %d: %s overlaps what is before it", rank, thread,
                     text_of(event, "name"));
        end = end_of(event);
        count++;
    }
    return count;
}

static void check_names(const json_t *events, int ranks)
{
    static const char *const thread[] = {"steps", "compute", "waiting", "communication"};
    size_t i;
    json_t *event;
    int processes = 0, threads = 0;

    json_array_foreach(events, i, event)
    {
        char name[32];
        int rank = (int)number_of(event, "pid"), at = (int)number_of(event, "tid");

        if (strcmp(text_of(event, "name"), "process_name") == 0) {
            snprintf(name, sizeof(name), "rank %d", rank);
            assert_string_equal(json_string_value(arg_of(event, "name")), name);
            processes++;
        } else if (strcmp(text_of(event, "name"), "thread_name") == 0 && at <= CALLS) {
            assert_string_equal(json_string_value(arg_of(event, "name")), thread[at - STEPS]);
            threads++;
        }
    }
    assert_int_equal(processes, ranks);
    assert_int_equal(threads, 4 * ranks);
}

/* Time of the slices of computing that lie in a step. */
static double computed_in(const json_t *events, int rank, const json_t *step)
{
    double us = 0;
    size_t i;
    json_t *slice;

    json_array_foreach(events, i, slice)
    {
        if (is_on(slice, rank, COMPUTE) && number_of(slice, "ts") >= number_of(step, "ts") &&
            end_of(slice) <= end_of(step) + 0.0021)
            us += number_of(slice, "dur");
    }
    return us;
}

/*
 * The compute thread accounts for the steps: outside of its slices a step reads a clock a few times
 * and no more. A busy machine may take the core away there, so the step with the largest share
 * counts; a part without slices would lack in that one, too.
 */
static void check_coverage(const json_t *events, int rank, int steps)
{
    double best = 0;
    int seen = 0;
    size_t i;
    json_t *step;

    json_array_foreach(events, i, step)
    {
        double share;

        if (!is_on(step, rank, STEPS) || strncmp(text_of(step, "name"), "step ", 5) != 0)
            continue;
        seen++;
        share = computed_in(events, rank, step) / number_of(step, "dur");
        if (share > 1.001)
            fail_msg("rank %d: slices are %g times as long as their step", rank, share);
        if (share > best)
            best = share;
    }
    assert_int_equal(seen, steps);
    if (best < 0.9)
        fail_msg("rank %d: slices fill at most %g of a step", rank, best);
}

/* Every call has an end, a place in the source and a size; every wait lies in its call. */
static void check_calls(const json_t *events, int rank)
{
    int calls = 0, waits = 0;
    size_t i, j;
    json_t *event, *call;

    json_array_foreach(events, i, event)
    {
        if (is_on(event, rank, CALLS)) {
            calls++;
            assert_null(arg_of(event, "unfinished"));
            assert_int_equal(json_integer_value(arg_of(event, "call")), calls);
            assert_true(json_is_integer(arg_of(event, "bytes")));
            assert_true(json_integer_value(arg_of(event, "ranks")) >= 1);
            assert_non_null(json_string_value(arg_of(event, "dtype")));
            assert_non_null(json_string_value(arg_of(event, "site")));
        }
        if (!is_on(event, rank, WAITING))
            continue;
        waits++;
        call = NULL;
        json_array_foreach(events, j, call)
        {
            if (is_on(call, rank, CALLS) && json_equal(arg_of(call, "call"), arg_of(event, "call")))
                break;
        }
        assert_non_null(call);
        assert_string_equal(text_of(call, "name"), text_of(event, "name"));
        assert_true(number_of(event, "ts") >= number_of(call, "ts"));
        assert_true(number_of(event, "ts") <= end_of(call));
    }
    assert_true(calls > 0 && waits > 0);
}

/* The bucket of the last layer is on its way while the first layer's backward still runs. */
static void check_overlap(const json_t *events, int rank, int steps)
{
    int overlapped = 0;
    size_t i, j;
    json_t *backward, *call;

    json_array_foreach(events, i, backward)
    {
        if (!is_on(backward, rank, COMPUTE) ||
            strcmp(text_of(backward, "name"), "backward fc1") != 0)
            continue;
        json_array_foreach(events, j, call)
        {
            if (is_on(call, rank, CALLS) && strstr(text_of(call, "name"), "all_reduce") != NULL &&
                strstr(json_string_value(arg_of(call, "site")), "shared.c:") != NULL &&
                number_of(call, "ts") <= number_of(backward, "ts") + 0.0021 &&
                end_of(call) > number_of(backward, "ts")) {
                overlapped++;
                break;
            }
        }
    }
    assert_int_equal(overlapped, steps);
}

static void case_trace(void **state)
{
    char *argv[] = {"tessera",       "train", MODEL,           BUCKETS, "--strategy", "ddp",
                    "--ranks",       "2",     "--steps",       "8",     "--trace",    trace_path,
                    "--trace-first", "3",     "--trace-steps", "4",     NULL};
    json_t *root, *events;

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    assert_non_null(strstr(spawn.out, "time lines of"));
    root = load_trace();
    events = json_object_get(root, "traceEvents");
    check_names(events, 2);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(check_thread(events, rank, COMPUTE) > 4 * 5);
        for (int thread = STEPS; thread < CALLS + 16; thread++)
            check_thread(events, rank, thread);
        check_coverage(events, rank, 4);
        check_calls(events, rank);
        check_overlap(events, rank, 4);
    }
    json_decref(root);
}

static int count_unfinished(const json_t *events, int rank, enum thread thread)
{
    size_t i;
    json_t *event;
    int count = 0;

    json_array_foreach(events, i, event)
    {
        if (is_on(event, rank, thread))
            count += json_is_true(arg_of(event, "unfinished"));
    }
    return count;
}

/* However a run ends, its time lines are there, and show what each rank was doing. */
static void case_trace_of_a_failure(void **state)
{
    /* Wide layers, so that a lane takes long to fill. */
    char *argv[] = {"tessera",  "train",         MODEL,       "--mlp.hidden",
                    "512",      "--strategy",    "ddp",       "--ranks",
                    "2",        "--steps",       "100000000", "--trace",
                    trace_path, "--trace-steps", "100000000", NULL};
    pid_t child[2];

    (void)state;
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        json_t *root, *events;

        unlink(trace_path);
        spawn_start(&spawn, argv, NULL);
        assert_true(spawn_until(&spawn, "step 1/", 30));
        assert_int_equal(spawn_children(&spawn, child, 2), 2);
        if (interrupted) {
            kill(spawn.pid, SIGINT);
        } else {
            /* Held still first, so that rank 0 comes to wait for it, within a step. */
            const struct timespec pause = {0, 300000000};
            kill(child[1], SIGSTOP);
            nanosleep(&pause, NULL);
            kill(child[1], SIGKILL);
        }
        assert_int_equal(spawn_end(&spawn, 20), interrupted ? 130 : 1);
        assert_true(spawn_gone(&spawn, 1));
        root = load_trace();
        events = json_object_get(root, "traceEvents");
        for (int rank = 0; rank < 2; rank++)
            assert_true(check_thread(events, rank, COMPUTE) > 5);
        if (!interrupted) { /* who is may be between two steps */
            assert_true(count_unfinished(events, 0, STEPS) > 0);
            assert_true(count_unfinished(events, 0, COMPUTE) > 0);
        }
        json_decref(root);
    }
}

/* A lane that is too short: what it has is written, and where it ends. By hand, because the
 * program's lanes take tens of thousands of steps to fill. */
static void case_trace_of_a_full_lane(void **state)
{
    char *argv[] = {"--data", "synthetic", "--synthetic-rows", "64", "--strategy", "single"};
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess__run run;
    struct tess_trace_lane *lane;
    json_t *root, *events, *event;
    size_t i;
    int slices = 0, marks = 0;

    (void)state;
    assert_int_equal(tess_config_open(6, argv, NULL, 0, &config), TESS_OK);
    assert_int_equal(tess__run_open_data(config, &dataset), TESS_OK);
    assert_int_equal(tess__run_open(&run, config, dataset), TESS_OK);
    assert_int_equal(tess_trace_open(1, 4, 1, 10, &run.trace), TESS_OK);
    lane = tess_trace_lane(run.trace, 0);
    tess_trace_start(lane);
    for (int64_t step = 1; step < 5; step++) {
        tess_trace_begin(lane, TESS_TRACE_STEP, step);
        tess_trace_doing(lane, TESS_DOING_FORWARD, 0, true);
    }
    assert_int_equal(tess__trace_write(&run, trace_path), TESS_OK);
    root = load_trace();
    events = json_object_get(root, "traceEvents");
    json_array_foreach(events, i, event)
    {
        slices += is_slice(event, 0);
        if (strcmp(text_of(event, "ph"), "i") == 0) {
            assert_string_equal(text_of(event, "name"), "time line full in step 2");
            marks++;
        }
    }
    assert_int_equal(slices, 4);
    assert_int_equal(marks, 1);
    json_decref(root);
    tess_trace_close(run.trace);
    tess__run_close(&run);
    tess_dataset_close(dataset);
    tess_config_close(config);
}

/* A full disk is found out at the end: by then everything else is safe. */
static void case_trace_without_room(void **state)
{
    char *argv[] = {"tessera", "train", MODEL,   "--strategy", "ddp",     "--ranks",   "2",
                    "--steps", "3",     "--run", folder,       "--trace", "/dev/full", NULL};
    FILE *file;
    char text[16384];
    bool final = false;

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, NULL), 1);
    assert_non_null(strstr(spawn.err, "cannot write /dev/full: No space left"));
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    assert_non_null(strstr(spawn.out, "hash of all parameters"));
    file = fopen(metrics_path, "r");
    assert_non_null(file);
    while (fgets(text, sizeof(text), file) != NULL)
        final = strncmp(text, "{\"final\":", 9) == 0;
    fclose(file);
    assert_true(final);
}

static void case_bad_traces(void **state)
{
    static const struct {
        int code;
        const char *phrase, *option, *value;
    } table[] = {
        {1, "--trace /no/such/folder/x: cannot create a file there", "--trace",
         "/no/such/folder/x"},
        {1, "--trace /proc/x: cannot create a file there", "--trace", "/proc/x"},
        {1, "it is a folder", "--trace", "/tmp"},
        {2, "--trace-first 4: the run has 3 steps only", "--trace-first", "4"},
        {2, "from 1 to", "--trace-first", "0"},
        {2, "from 1 to", "--trace-steps", "0"},
        {2, "trace-steps", "--trace-steps", "-1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *argv[] = {"tessera",
                        "train",
                        MODEL,
                        "--steps",
                        "3",
                        "--trace",
                        trace_path,
                        (char *)table[i].option,
                        (char *)table[i].value,
                        NULL};

        unlink(trace_path);
        assert_int_equal(spawn_run(&spawn, argv, NULL), table[i].code);
        if (strstr(spawn.err, table[i].phrase) == NULL)
            fail_msg("no '%s' in %s", table[i].phrase, spawn.err);
        assert_null(strstr(spawn.out, "pid ")); /* refused before anything was started */
        assert_int_not_equal(access(trace_path, F_OK), 0);
    }
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_trace),
        cmocka_unit_test(case_trace_of_a_failure),
        cmocka_unit_test(case_trace_of_a_full_lane),
        cmocka_unit_test(case_trace_without_room),
        cmocka_unit_test(case_bad_traces),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(trace_path, sizeof(trace_path), "%s/trace.json", folder);
    snprintf(metrics_path, sizeof(metrics_path), "%s/metrics.jsonl", folder);
    return cmocka_run_group_tests_name("timeline", tests, NULL, remove_folder);
}
