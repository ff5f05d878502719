/*
 * Jobs (tessera/engine.h): the same bits in every mode as from `tessera train`, batches of the
 * caller, several jobs at a time, and failures, which are returned and never printed.
 */
#include "harness/free_port.h"
#include "tessera/engine.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof(array)[0]))
#define STEPS        6
#define BATCH        32

static char folder[] = "/tmp/tessera_job_XXXXXX";

static const struct tess_job_option base[] = {
    {"data", "synthetic"}, {"synthetic-rows", "200"}, {"steps", "6"},    {"batch-size", "32"},
    {"grid", "8"},         {"mlp.hidden", "24"},      {"timeout", "20"},
};

/* `base`, then `ranks` under `strategy`, then one more option where it is given. */
static enum tess_status open_job(enum tess_job_mode mode, const char *strategy, const char *ranks,
                                 const char *name, const char *value,
                                 const struct tess_job_data *data, struct tess_job **job_out)
{
    struct tess_job_option option[COUNT(base) + 3];
    struct tess_job_setup setup = {.option = option, .data = data, .mode = mode};
    memcpy(option, base, sizeof(base));
    option[COUNT(base)] = (struct tess_job_option){"strategy", strategy};
    option[COUNT(base) + 1] = (struct tess_job_option){"ranks", ranks};
    option[COUNT(base) + 2] = (struct tess_job_option){name, value};
    setup.option_count = COUNT(base) + (name != NULL ? 3 : 2);
    return tess_job_open(&setup, job_out);
}

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != TESS_OK)                                                                     \
            fail_msg("%s: %s", #call, tess_log_last_error());                                      \
    } while (0)

/* The call is refused with that status, and a sentence that holds `text`. */
#define assert_refused(call, wanted, text)                                                         \
    do {                                                                                           \
        assert_int_equal(call, wanted);                                                            \
        if (strstr(tess_log_last_error(), text) == NULL)                                           \
            fail_msg("'%s' is not in: %s", text, tess_log_last_error());                           \
    } while (0)

/* What a training ends in. */
struct outcome {
    double loss;
    uint64_t hash;
};

static struct outcome train(enum tess_job_mode mode, const char *strategy, const char *ranks)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    struct outcome outcome;
    assert_ok(open_job(mode, strategy, ranks, NULL, NULL, NULL, &job));
    assert_int_equal(tess_job_step_count(job), STEPS);
    assert_int_equal(tess_job_batch_size(job), BATCH);
    assert_ok(tess_job_start(job));
    assert_ok(tess_job_step(job, 2, NULL, &metrics));
    assert_ok(tess_job_step(job, STEPS - 2, NULL, &metrics));
    assert_int_equal(metrics.step, STEPS);
    assert_true(metrics.samples_per_s > 0 && metrics.step_s > 0 && metrics.rate > 0);
    outcome.loss = metrics.loss;
    assert_ok(tess_job_hash(job, &outcome.hash));
    tess_job_close(job);
    return outcome;
}

static void assert_same(struct outcome a, struct outcome b)
{
    assert_memory_equal(&a.loss, &b.loss, sizeof(a.loss));
    assert_true(a.hash == b.hash);
}

static struct outcome reference;

static void case_modes(void **state)
{
    (void)state;
    reference = train(TESS_JOB_AUTO, "single", "1");
    assert_same(reference, train(TESS_JOB_CALLER, "single", "1"));
    assert_same(reference, train(TESS_JOB_THREADS, "fsdp", "4"));
    assert_same(reference, train(TESS_JOB_PROCESSES, "fsdp", "4"));
    assert_same(reference, train(TESS_JOB_AUTO, "dp", "2"));
    assert_same(reference, train(TESS_JOB_PROCESSES, "zero1", "2"));
}

static void case_as_train(void **state)
{
    char line[512];
    uint64_t hash = 0;
    (void)state;
    FILE *program = popen(TESSERA_PROGRAM " train --strategy fsdp --ranks 4 --data synthetic "
                                          "--synthetic-rows 200 --steps 6 --batch-size 32 "
                                          "--grid 8 --mlp.hidden 24 2>&1",
                          "r");
    assert_non_null(program);
    while (fgets(line, sizeof(line), program) != NULL)
        (void)sscanf(line, "hash of all parameters %" SCNx64, &hash);
    assert_int_equal(pclose(program), 0);
    assert_true(hash == reference.hash);
}

static void case_memory(void **state)
{
    struct tess_job *one, *four;
    (void)state;
    assert_ok(open_job(TESS_JOB_THREADS, "single", "1", NULL, NULL, NULL, &one));
    assert_ok(open_job(TESS_JOB_THREADS, "fsdp", "4", NULL, NULL, NULL, &four));
    assert_int_equal(tess_job_rank_count(four), 4);
    for (int32_t r = 0; r < 4; r++) {
        const struct tess_job_memory memory = tess_job_memory_of(four, r);
        uint64_t sum = 0;
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
            sum += memory.bytes[k];
        assert_int_equal(sum, memory.total);
        assert_true(memory.bytes[TESS_MEMORY_PARAMETER] <
                    tess_job_memory_of(one, 0).bytes[TESS_MEMORY_PARAMETER]);
    }
    tess_job_close(one);
    tess_job_close(four);
}

/* The file holds the parameters one after the other, as they are read. */
static void case_parameters(void **state)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    char path[64];
    uint64_t header;
    (void)state;
    snprintf(path, sizeof(path), "%s/weights.safetensors", folder);
    assert_ok(open_job(TESS_JOB_PROCESSES, "fsdp", "4", NULL, NULL, NULL, &job));
    assert_ok(tess_job_start(job));
    assert_ok(tess_job_step(job, 1, NULL, &metrics));
    assert_ok(tess_job_save(job, path));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof(header), 1, file), 1);
    assert_int_equal(fseek(file, (long)header, SEEK_CUR), 0);
    for (int32_t p = 0; p < tess_job_param_count(job); p++) {
        const struct tess_job_param param = tess_job_param_of(job, p);
        const size_t count = (size_t)tess_shape_count(&param.shape);
        float *values = malloc(count * sizeof(*values)), *saved = malloc(count * sizeof(*saved));
        assert_true(strlen(param.unit) > 0);
        assert_int_equal(tess_job_param_find(job, param.name), p);
        assert_ok(tess_job_param_read(job, p, values));
        assert_int_equal(fread(saved, sizeof(*saved), count, file), count);
        assert_memory_equal(values, saved, count * sizeof(*values));
        free(values);
        free(saved);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    assert_int_equal(tess_job_param_find(job, "nothing"), -1);
    assert_refused(tess_job_param_read(job, 99, NULL), TESS_ERR_USAGE, "no parameter 99");
    /* A file that cannot be written costs only the file. */
    assert_refused(tess_job_save(job, "/nowhere/weights.safetensors"), TESS_ERR_IO, "/nowhere");
    assert_ok(tess_job_step(job, 1, NULL, &metrics));
    tess_job_close(job);
}

/* Images of 4 x 4 whose class is the brightest row. */
static float given_input[BATCH * 16];
static int32_t given_label[BATCH];
static const struct tess_job_batch given = {given_input, given_label};
static const struct tess_job_data given_data = {.row = {3, {4, 4, 1}}, .class_count = 4};

static void fill_batch(void)
{
    for (int32_t i = 0; i < BATCH; i++) {
        given_label[i] = i % 4;
        for (int32_t e = 0; e < 16; e++)
            given_input[16 * i + e] = (e / 4 == i % 4 ? 1.0f : 0.0f) + 0.01f * (float)(i + e);
    }
}

static struct outcome train_given(enum tess_job_mode mode, const char *strategy, const char *ranks)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    struct outcome outcome;
    double first = 0, accuracy;
    assert_ok(open_job(mode, strategy, ranks, "learning-rate", "0.2", &given_data, &job));
    assert_ok(tess_job_start(job));
    fill_batch();
    for (int32_t step = 0; step < STEPS; step++) {
        assert_ok(tess_job_step(job, 1, &given, &metrics));
        first = step == 0 ? metrics.loss : first;
    }
    assert_true(metrics.loss < first);
    assert_ok(tess_job_evaluate(job, &given, &outcome.loss, &accuracy));
    assert_true(outcome.loss < metrics.loss);
    assert_ok(tess_job_hash(job, &outcome.hash));
    tess_job_close(job);
    return outcome;
}

static void case_batches(void **state)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    (void)state;
    const struct outcome one = train_given(TESS_JOB_THREADS, "single", "1");
    assert_same(one, train_given(TESS_JOB_THREADS, "fsdp", "4"));
    assert_same(one, train_given(TESS_JOB_PROCESSES, "ddp", "2"));
    assert_ok(open_job(TESS_JOB_THREADS, "ddp", "2", NULL, NULL, &given_data, &job));
    assert_ok(tess_job_start(job));
    given_label[5] = 4;
    assert_refused(tess_job_step(job, 1, &given, &metrics), TESS_ERR_USAGE, "label 5");
    given_label[5] = 1;
    assert_refused(tess_job_step(job, 2, &given, &metrics), TESS_ERR_USAGE, "one step");
    assert_refused(tess_job_step(job, 1, NULL, &metrics), TESS_ERR_USAGE, "give one");
    assert_ok(tess_job_step(job, 1, &given, &metrics));
    tess_job_close(job);
    const struct tess_job_data flat = {.row = {1, {16}}, .class_count = 4};
    assert_refused(open_job(TESS_JOB_THREADS, "ddp", "2", NULL, NULL, &flat, &job), TESS_ERR_USAGE,
                   "[H, W, C]");
}

struct beside {
    const char *ranks;
    struct outcome outcome;
};

static void *train_beside(void *context)
{
    struct beside *beside = context;
    beside->outcome = train(TESS_JOB_THREADS, "fsdp", beside->ranks);
    return NULL;
}

/* At the same time; and interleaved, by one thread. */
static void case_two_jobs(void **state)
{
    struct beside beside[2] = {{.ranks = "2"}, {.ranks = "4"}};
    pthread_t thread[2];
    struct tess_job *job[2];
    struct tess_job_metrics metrics[2];
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, train_beside, &beside[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_same(beside[i].outcome, reference);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(open_job(TESS_JOB_THREADS, "ddp", i == 0 ? "2" : "4", NULL, NULL, NULL, &job[i]));
        assert_ok(tess_job_start(job[i]));
    }
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < 2; i++)
            assert_ok(tess_job_step(job[i], 1, NULL, &metrics[i]));
    assert_true(metrics[0].loss == metrics[1].loss && metrics[0].loss == reference.loss);
    tess_job_close(job[0]);
    tess_job_close(job[1]);
}

static void case_refused(void **state)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    double loss, accuracy;
    const struct tess_job_setup file = {.file = "/nowhere/job.yaml"};
    (void)state;
    assert_refused(open_job(TESS_JOB_THREADS, "fsdp", "2", "batchsize", "3", NULL, &job),
                   TESS_ERR_USAGE, "batchsize");
    assert_refused(open_job(TESS_JOB_PROCESSES, "dp", "2", NULL, NULL, NULL, &job), TESS_ERR_USAGE,
                   "threads of one process");
    assert_refused(open_job(TESS_JOB_CALLER, "ddp", "2", NULL, NULL, NULL, &job), TESS_ERR_USAGE,
                   "another mode");
    assert_true(tess_job_open(&file, &job) != TESS_OK);
    assert_non_null(strstr(tess_log_last_error(), "/nowhere/job.yaml"));
    assert_ok(open_job(TESS_JOB_THREADS, "fsdp", "2", "evaluate", "off", NULL, &job));
    assert_refused(tess_job_step(job, 1, NULL, &metrics), TESS_ERR_USAGE, "tess_job_start");
    assert_ok(tess_job_start(job));
    assert_refused(tess_job_start(job), TESS_ERR_USAGE, "before");
    assert_refused(tess_job_step(job, STEPS + 1, NULL, &metrics), TESS_ERR_USAGE,
                   "6 of 6 are left");
    assert_refused(tess_job_step(job, 1, &given, &metrics), TESS_ERR_USAGE, "data set");
    assert_refused(tess_job_evaluate(job, NULL, &loss, &accuracy), TESS_ERR_USAGE, "evaluate");
    assert_ok(tess_job_step(job, STEPS, NULL, &metrics));
    tess_job_close(job);
    tess_job_close(NULL);
}

/* A batch that is not a number; what follows has its reason. */
static void case_failed(void **state)
{
    static const enum tess_job_mode mode[] = {TESS_JOB_THREADS, TESS_JOB_PROCESSES};
    struct tess_job *job;
    struct tess_job_metrics metrics;
    uint64_t hash;
    (void)state;
    for (int m = 0; m < COUNT(mode); m++) {
        assert_ok(open_job(mode[m], "fsdp", "2", NULL, NULL, &given_data, &job));
        assert_ok(tess_job_start(job));
        fill_batch();
        given_input[16] = NAN;
        assert_refused(tess_job_step(job, 1, &given, &metrics), TESS_ERR_NUMERIC, "step 1");
        assert_refused(tess_job_hash(job, &hash), TESS_ERR_ABORTED, "failed before: rank ");
        tess_job_close(job);
    }
}

/* A child of this process, which is a rank; 0: none. */
static pid_t any_child(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    (void)!fscanf(file, "%d", &pid);
    fclose(file);
    return pid;
}

static void case_killed(void **state)
{
    struct tess_job *job;
    struct tess_job_metrics metrics;
    (void)state;
    assert_ok(open_job(TESS_JOB_PROCESSES, "fsdp", "4", NULL, NULL, NULL, &job));
    assert_ok(tess_job_start(job));
    const pid_t pid = any_child();
    assert_true(pid > 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_refused(tess_job_step(job, 1, NULL, &metrics), TESS_ERR_COMM, "signal 9");
    tess_job_close(job);
    assert_int_equal(any_child(), 0);
}

/* Two processes as torchrun starts them, each a rank. */
static void case_environment(void **state)
{
    static const char *const name[] = {"MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE", "RANK",
                                       "LOCAL_RANK"};
    struct outcome *of =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char text[16];
    pid_t pid[2];
    (void)state;
    assert_true(of != MAP_FAILED);
    snprintf(text, sizeof(text), "%d", free_port());
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("WORLD_SIZE", "2", 1);
    for (int r = 0; r < 2; r++) {
        snprintf(text, sizeof(text), "%d", r);
        setenv("RANK", text, 1);
        setenv("LOCAL_RANK", text, 1);
        pid[r] = fork();
        if (pid[r] == 0) {
            of[r] = train(TESS_JOB_AUTO, "fsdp", "2");
            _exit(0);
        }
    }
    for (int r = 0; r < 2; r++) {
        int status = 1;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        assert_int_equal(status, 0);
        assert_same(of[r], reference);
    }
    for (int i = 0; i < COUNT(name); i++)
        unsetenv(name[i]);
    munmap(of, 4096);
}

/* Compiled for the test where the machine has none (Debian: package locales). */
static bool set_locale_with_comma(void)
{
    char command[160];
    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL)
        return true;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1",
             folder, folder);
    return system(command) == 0 && setenv("LOCPATH", folder, 1) == 0 &&
           setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

/* A program around the library may have set a locale with another decimal point: it keeps it, and
 * options and files are read as ever. */
static void case_locale(void **state)
{
    const char *topology = "tessera-topology: 1\nmachine: node:1 rank:2 edge:12.5\n";
    char path[64];
    uint64_t hash[2];
    (void)state;
    if (!set_locale_with_comma())
        skip();
    snprintf(path, sizeof(path), "%s/topology.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_true(file != NULL && fputs(topology, file) >= 0 && fclose(file) == 0);
    for (int i = 0; i < 2; i++) {
        struct tess_job *job = NULL;
        struct tess_job_metrics metrics;
        assert_ok(open_job(TESS_JOB_THREADS, "ddp", "2", "topology.file", path, NULL, &job));
        assert_ok(tess_job_start(job));
        assert_ok(tess_job_step(job, STEPS, NULL, &metrics));
        assert_ok(tess_job_hash(job, &hash[i]));
        tess_job_close(job);
        assert_string_equal(localeconv()->decimal_point, i == 0 ? "," : ".");
        setlocale(LC_ALL, "C");
    }
    assert_int_equal(hash[0], hash[1]);
}

static int output_fd; /* stdout, while it and stderr are a file, which stays empty */

static int begin_silence(void **state)
{
    char path[64];
    (void)state;
    snprintf(path, sizeof(path), "%s/output", folder);
    FILE *file = fopen(path, "w+");
    if (file == NULL)
        return -1;
    fflush(stdout);
    output_fd = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    return fclose(file);
}

/* What the file holds is shown: words of cmocka, or of a library that is not silent. */
static int end_silence(void **state)
{
    char path[64], line[1024];
    bool silent = true;
    (void)state;
    fflush(stdout);
    dup2(output_fd, STDOUT_FILENO);
    dup2(output_fd, STDERR_FILENO);
    close(output_fd);
    snprintf(path, sizeof(path), "%s/output", folder);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        silent = false;
        printf("%s", line);
    }
    return file != NULL && fclose(file) == 0 && silent ? 0 : -1;
}

int main(void)
{
#define SILENT(name) cmocka_unit_test_setup_teardown(name, begin_silence, end_silence)
    const struct CMUnitTest tests[] = {
        SILENT(case_modes),       SILENT(case_as_train), SILENT(case_memory),
        SILENT(case_parameters),  SILENT(case_batches),  SILENT(case_two_jobs),
        SILENT(case_refused),     SILENT(case_failed),   SILENT(case_killed),
        SILENT(case_environment), SILENT(case_locale),
    };
    char command[64];
    if (mkdtemp(folder) == NULL)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command) != 0 ? 1 : failed;
}
