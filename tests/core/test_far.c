/*
 * Parameters where device memory is far: what is drawn there, read into it from a file, hashed,
 * digested and saved from it has the bits that ref has in the host's. guard_queue stops the program
 * wherever the host touches such memory itself.
 */
#include "config/config.h"
#include "core/engine.h"
#include "harness/world.h"
#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS_MAX = 4, PARAMS_MAX = 80, WORDS_MAX = 64 };

#define COMMON "--batch-size 16 --grid 4 --evaluate off --bind off --data.workers 0 "
/* A vocabulary that is padded, to 384. */
#define GPT                                                                                        \
    COMMON "--model gpt --gpt.layers 2 --gpt.heads 4 --gpt.width 32 --gpt.vocab 300 "              \
           "--data.length 12 --optimizer adamw "

static char path[2][32] = {"/tmp/test_far_ref_XXXXXX", "/tmp/test_far_queue_XXXXXX"};

/* ---- a run ----------------------------------------------------------------------------------- */

/* Before the first step and after the last. */
struct found {
    int32_t params;
    uint64_t hash[2];
    struct tess_digest digest[2][PARAMS_MAX];
    double loss;
};

struct job {
    struct tess_config *config;
    struct tess_dataset *dataset;
    const char *save; /* what is found at the end */
    int32_t steps;
    struct found found[RANKS_MAX];
    char text[512];
};

static int job_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct job *job = arg;
    struct found *found = &job->found[comm->rank];
    struct tess_engine *engine = NULL;
    struct tess_step_result result = {.loss = 0};
    WORLD_OK(tess_engine_open(job->config, job->dataset, comm, world, &engine));
    found->params = tess_engine_param_count(engine);
    WORLD_CHECK(found->params <= PARAMS_MAX);
    for (int i = 0; i < 2; i++) {
        WORLD_OK(tess_engine_digest(engine, found->digest[i]));
        WORLD_OK(tess_engine_hash(engine, &found->hash[i]));
        for (int32_t s = 0; i == 0 && s < job->steps; s++)
            WORLD_OK(tess_engine_step(engine, true, &result));
    }
    found->loss = result.loss;
    WORLD_OK(tess_engine_save(engine, job->save));
    WORLD_OK(tess_comm_barrier(comm));
    tess_engine_close(engine);
    return 0;
}

static void job_open(struct job *job, const char *words)
{
    char copy[512], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &job->config), TESS_OK);
    if (job->config->model->tokens)
        assert_int_equal(
            tess_dataset_open_synthetic_tokens(job->config->loader.length, 64, 1, 3, &job->dataset),
            TESS_OK);
    else
        assert_int_equal(
            tess_dataset_open_synthetic(tess_shape3(8, 8, 1), 5, 64, 0, 3, &job->dataset), TESS_OK);
}

/* What all ranks found, which must be the same. */
static struct found run(const char *words, const char *kernel, int32_t ranks, const char *init,
                        const char *save, int32_t steps)
{
    static struct job job;
    struct world_report report;
    char all[512];
    const struct world_setup setup = {
        .ranks = ranks, .mode = TESS_RANKS_THREADS, .self = strstr(words, "single") != NULL};
    memset(&job, 0, sizeof(job));
    job.save = save;
    job.steps = steps;
    snprintf(all, sizeof(all), "%s --ranks %d --kernel %s%s%s", words, (int)ranks, kernel,
             init != NULL ? " --init " : "", init != NULL ? init : "");
    job_open(&job, all);
    int failed = world_run_setup(&setup, job_rank, &job, &report);
    if (failed > 0)
        print_error("%s\n", all);
    world_print(&report);
    assert_int_equal(failed, 0);
    for (int32_t r = 1; r < ranks; r++)
        assert_memory_equal(&job.found[r], &job.found[0], sizeof(job.found[0]));
    tess_dataset_close(job.dataset);
    tess_config_close(job.config);
    return job.found[0];
}

static void check_files(const char *words)
{
    FILE *file[2];
    char part[2][4096];
    size_t got[2], total = 0;
    for (int f = 0; f < 2; f++) {
        file[f] = fopen(path[f], "rb");
        assert_non_null(file[f]);
    }
    do {
        for (int f = 0; f < 2; f++)
            got[f] = fread(part[f], 1, sizeof(part[f]), file[f]);
        if (got[0] != got[1] || memcmp(part[0], part[1], got[0]) != 0)
            fail_msg("%s: saved files differ after byte %zu", words, total);
        total += got[0];
    } while (got[0] > 0);
    assert_true(total > 1000);
    for (int f = 0; f < 2; f++)
        fclose(file[f]);
}

static void check_steps(const char *words, int32_t ranks, int32_t steps)
{
    const struct found near = run(words, "ref", ranks, NULL, path[0], steps);
    const struct found far = run(words, "guard_queue", ranks, NULL, path[1], steps);
    assert_true(near.params > 0 && near.digest[0][0].norm > 0);
    assert_true((steps > 0) == (near.hash[0] != near.hash[1]));
    if (memcmp(&near, &far, sizeof(near)) != 0)
        fail_msg("%s: hash %016llx at first, not %016llx; %016llx at last, not %016llx", words,
                 (unsigned long long)far.hash[0], (unsigned long long)near.hash[0],
                 (unsigned long long)far.hash[1], (unsigned long long)near.hash[1]);
    check_files(words);
    /* What another seed's run begins with is what was saved. */
    char other[512];
    snprintf(other, sizeof(other), "%s --seed 9", words);
    const struct found drawn = run(other, "guard_queue", ranks, NULL, path[1], 0);
    assert_int_not_equal(drawn.hash[0], near.hash[1]);
    const struct found read = run(other, "guard_queue", ranks, path[0], path[1], 0);
    assert_int_equal(read.hash[0], near.hash[1]);
    assert_memory_equal(read.digest[0], near.digest[1], sizeof(read.digest[0]));
    check_files(words);
}

static void check(const char *words, int32_t ranks)
{
    check_steps(words, ranks, 2);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void case_precisions(void **state)
{
    (void)state;
    check(GPT "--strategy single", 1);
    check(GPT "--strategy single --precision bf16", 1);
    check(GPT "--strategy single --precision f16", 1);
    check(GPT "--strategy single --precision bf16 --master-weights off", 1);
    check(GPT "--strategy single --gpt.style llama --gpt.tied on", 1);
}

/* Uniform numbers, ones and buffers. */
static void case_images(void **state)
{
    (void)state;
    check(COMMON "--strategy single --model cnn --cnn.channels 4,8 --cnn.batch-norm on", 1);
    check(COMMON "--strategy ddp --model cnn --cnn.channels 4,8 --cnn.batch-norm on", 2);
    check(COMMON "--strategy fsdp --model mlp --mlp.hidden 41,27 --precision bf16", 2);
}

/* A parameter cut into shards, rows, columns and stages; copies beside masters. */
static void case_layouts(void **state)
{
    (void)state;
    check(GPT "--strategy dp --precision bf16", 2);
    check(GPT "--strategy ddp --precision bf16", 2);
    check(GPT "--strategy zero1", 2);
    check(GPT "--strategy zero2 --precision bf16 --master-weights off", 2);
    check(GPT "--strategy fsdp --precision bf16 --master-weights off", 2);
    check(GPT "--strategy tp", 2);
    check(GPT "--strategy tp --precision bf16 --master-weights off", 2);
    check(GPT "--strategy pp", 2);
    check(GPT "--strategy fsdp+tp --mesh data=2,tensor=2 --precision bf16", 4);
}

/* What is not finite is found where it is, and named as it is on the host. */
static int diverge_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct job *job = arg;
    struct tess_engine *engine = NULL;
    struct tess_step_result result;
    enum tess_status status = TESS_OK;
    WORLD_OK(tess_engine_open(job->config, job->dataset, comm, world, &engine));
    for (int i = 0; status == TESS_OK && i < 20; i++)
        status = tess_engine_step(engine, true, &result);
    snprintf(job->text, sizeof(job->text), "%s", tess_log_last_error());
    tess_engine_close(engine);
    WORLD_CHECK(status == TESS_ERR_NUMERIC);
    return 0;
}

static void case_diverges(void **state)
{
    static const char *const words[] = {
        COMMON "--strategy single --model mlp --learning-rate 1000 --ranks 1",
        COMMON "--strategy single --model mlp --learning-rate 1000 --precision f16 "
               "--master-weights off --loss-scale off --ranks 1",
        GPT "--strategy single --learning-rate 1000 --gpt.init-deviation 10 --precision f16 "
            "--loss-scale off --ranks 1"};
    const struct world_setup setup = {.ranks = 1, .mode = TESS_RANKS_THREADS, .self = true};
    static struct job job[2];
    struct world_report report;
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int k = 0; k < 2; k++) {
            char all[512];
            memset(&job[k], 0, sizeof(job[k]));
            snprintf(all, sizeof(all), "%s --kernel %s", words[i], k == 0 ? "ref" : "guard_queue");
            job_open(&job[k], all);
            int failed = world_run_setup(&setup, diverge_rank, &job[k], &report);
            world_print(&report);
            assert_int_equal(failed, 0);
            tess_dataset_close(job[k].dataset);
            tess_config_close(job[k].config);
        }
        assert_non_null(strstr(job[0].text, "held the first"));
        assert_string_equal(job[1].text, job[0].text);
    }
}

/* More elements than are taken to or from far memory at a time: 2^20. */
static void case_large(void **state)
{
    (void)state;
    check_steps(COMMON "--strategy single --model mlp --mlp.hidden 1030,1030", 1, 0);
    check_steps(COMMON "--strategy zero1 --model mlp --mlp.hidden 1030,1030 --precision bf16", 2,
                0);
}

static int set_up(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        int fd = mkstemp(path[f]);
        if (fd < 0 || close(fd) != 0)
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++)
        (void)unlink(path[f]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_precisions), cmocka_unit_test(case_images),
        cmocka_unit_test(case_layouts),    cmocka_unit_test(case_diverges),
        cmocka_unit_test(case_large),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
