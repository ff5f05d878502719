/*
 * Checkpoints where a device copies the state while the next step computes: their files are those
 * of ref, whose state is copied within the call. The device is guard_queue, which copies as late as
 * fences allow; here the thread that writes is held back as well, until the next update is done, so
 * that no one but the update runs the copies before the state is overwritten.
 */
#include "config/config.h"
#include "config/registry.h"
#include "core/engine.h"
#include "core/save.h"
#include "harness/world.h"
#include "tessera/tessera.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, WORDS_MAX = 64 };

#define COMMON "--batch-size 16 --grid 4 --evaluate off --bind off --data.workers 0 "
#define GPT                                                                                        \
    COMMON "--model gpt --gpt.layers 2 --gpt.heads 4 --gpt.width 32 --gpt.vocab 300 "              \
           "--data.length 12 "
#define CNN COMMON "--model cnn --cnn.channels 4,8 --cnn.batch-norm on "
/* More than two blocks of a stage: the values, and each array of the optimizer. */
#define MLP COMMON "--model mlp --mlp.hidden 700,700 "

static char folder[] = "/tmp/test_save_far_XXXXXX";

/* ---- a device that is held back -------------------------------------------------------------- */

/* What the calling rank's thread has done since a save began; NULL in a thread that writes. */
struct waits {
    int reads, waits, follows;
    bool early; /* copied before the queue followed the kernels' */
};
static __thread struct waits *mine;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut;
    int failures; /* of waits that are still to fail */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const struct tess_kernel_ops *base;
static struct tess_kernel_ops far_kernel;
static struct tess_queue_ops far_queue;

static void gate_set(bool shut)
{
    pthread_mutex_lock(&gate.lock);
    gate.shut = shut;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Of the queues that checkpoints open: the kernels' own, and those of communicators, are not
 * opened by these. */
static enum tess_status far_wait(const struct tess_fence *fence)
{
    bool fails = false;
    if (mine != NULL) {
        mine->waits++;
        return base->queue->wait(fence);
    }
    pthread_mutex_lock(&gate.lock);
    while (gate.shut)
        pthread_cond_wait(&gate.changed, &gate.lock);
    if (gate.failures > 0) {
        gate.failures--;
        fails = true;
    }
    pthread_mutex_unlock(&gate.lock);
    return fails ? tess_fail(TESS_ERR_DEVICE, "the device of this test is lost")
                 : base->queue->wait(fence);
}

static enum tess_status far_open(struct tess_kernel *kernel, struct tess_queue **queue_out)
{
    const enum tess_status status = base->queue->open(kernel, queue_out);
    if (status == TESS_OK)
        (*queue_out)->ops = &far_queue;
    return status;
}

/* Kernels of guard_queue are done on return, so the order after them shows in no bits. */
static enum tess_status far_follow(struct tess_queue *queue, const struct tess_fence *fence)
{
    mine->follows++;
    return base->queue->follow(queue, fence);
}

static enum tess_status far_copy(struct tess_queue *queue, size_t bytes, const void *source,
                                 void *target)
{
    mine->early = mine->early || mine->follows == 0;
    return base->queue->copy(queue, bytes, source, target);
}

static enum tess_status far_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                                 void *host)
{
    if (mine != NULL)
        mine->reads++;
    return base->read(kernel, bytes, device, host);
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct job {
    struct tess_config *config;
    struct tess_dataset *dataset;
    char run[128], copies[128]; /* folders */
    bool far, whole;            /* the stage holds all of the share */
    bool fails;                 /* the first checkpoint */
};

static struct tess_checkpoint_state about = {
    .options = (char *)"", .model = (char *)"model", .layout = (char *)"layout"};

/* Queue the copies; with a stage that holds all of them the host waits for nothing. */
static int begin(const struct job *job, struct tess_saver *saver)
{
    char why[TESS_SAVER_WHY];
    bool begun;
    *mine = (struct waits){0};
    WORLD_OK(tess_saver_begin(saver, &begun, why));
    WORLD_CHECK(begun && tess_saver_busy(saver));
    WORLD_CHECK(mine->reads == 0 && !mine->early);
    WORLD_CHECK(job->far && !job->whole ? mine->waits > 0 : mine->waits == 0);
    return 0;
}

static int end(struct tess_saver *saver, int rank, bool fails)
{
    char why[TESS_SAVER_WHY];
    bool saved;
    WORLD_OK(tess_saver_end(saver, &about, &saved, why));
    if (saved == fails || (why[0] != '\0') != (fails && rank == 0))
        return world_fail("saved %d: %s", saved, why);
    WORLD_CHECK(!fails || rank != 0 ||
                strstr(why, "device of a rank failed while its state was copied") != NULL);
    return 0;
}

/* Also a copy of --redundancy, which is complete before the next step begins. */
static int copy(const struct job *job, struct tess_saver *copies)
{
    char why[TESS_SAVER_WHY];
    bool begun, saved;
    if (copies == NULL)
        return 0;
    *mine = (struct waits){0};
    WORLD_OK(tess_saver_begin(copies, &begun, why));
    WORLD_CHECK(begun && tess_saver_written(copies));
    WORLD_CHECK(mine->reads == 0 && !mine->early);
    WORLD_CHECK((mine->waits > 0) == job->far);
    WORLD_OK(tess_saver_end(copies, &about, &saved, why));
    WORLD_CHECK(saved);
    return 0;
}

/* Checkpoints after every step. Of two one is written when the step after it is done, and the other
 * one at once, with nothing but the thread to run the copies. */
static int steps(const struct job *job, struct tess_engine *engine, struct tess_saver *saver,
                 struct tess_saver *copies, struct tess_comm *comm)
{
    struct tess_step_result result;
    for (int s = 1; s < STEPS; s += 2) {
        WORLD_OK(tess_engine_step(engine, true, &result));
        gate_set(true);
        if (begin(job, saver) != 0 || copy(job, copies) != 0)
            return 1;
        WORLD_OK(tess_engine_step(engine, s > 1, &result));
        WORLD_OK(tess_comm_barrier(comm));
        gate_set(false);
        if (end(saver, comm->rank, job->fails && s == 1) != 0 || begin(job, saver) != 0 ||
            copy(job, copies) != 0 || end(saver, comm->rank, false) != 0)
            return 1;
    }
    return 0;
}

static int job_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct job *job = arg;
    struct tess_engine *engine = NULL;
    struct tess_saver *saver = NULL, *copies = NULL;
    struct waits counts = {0};
    mine = &counts;
    WORLD_OK(tess_engine_open(job->config, job->dataset, comm, world, &engine));
    struct tess_saver_setup setup = {.run = job->run, .maker = comm->rank == 0};
    WORLD_OK(tess_saver_open(engine, &setup, &saver));
    setup.run = job->copies;
    setup.copies = true;
    if (job->copies[0] != '\0')
        WORLD_OK(tess_saver_open(engine, &setup, &copies));
    const int failed = steps(job, engine, saver, copies, comm);
    if (failed != 0) /* the gate may be shut */
        return failed;
    tess_saver_close(saver);
    tess_saver_close(copies);
    tess_engine_close(engine);
    mine = NULL;
    return 0;
}

static void job_open(struct job *job, const char *words)
{
    char copy[512], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0' && argc < WORDS_MAX)
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &job->config), TESS_OK);
    job->config->saves = true;
    if (job->config->model->tokens)
        assert_int_equal(
            tess_dataset_open_synthetic_tokens(job->config->loader.length, 64, 1, 3, &job->dataset),
            TESS_OK);
    else
        assert_int_equal(
            tess_dataset_open_synthetic(tess_shape3(8, 8, 1), 5, 64, 0, 3, &job->dataset), TESS_OK);
}

static void run(struct job *job, const char *words, int32_t ranks, double memory_bytes)
{
    struct world_report report;
    char all[512];
    const struct world_setup setup = {
        .ranks = ranks, .mode = TESS_RANKS_THREADS, .self = ranks == 1};
    snprintf(all, sizeof(all), "%s --ranks %d --kernel ref", words, (int)ranks);
    job_open(job, all);
    job->whole = memory_bytes == HUGE_VAL;
    job->config->save.memory_bytes = memory_bytes;
    job->config->save.copy_steps = job->copies[0] != '\0';
    if (job->far)
        job->config->kernel = &far_kernel;
    const int failed = world_run_setup(&setup, job_rank, job, &report);
    world_print(&report);
    if (failed > 0)
        fail_msg("%s", all);
    tess_dataset_close(job->dataset);
    tess_config_close(job->config);
}

static int differ(const char *one, const char *other)
{
    char words[512];
    snprintf(words, sizeof(words), "diff -r -q %s %s > %s/differ", one, other, folder);
    return system(words);
}

static void clear(void)
{
    char words[128];
    snprintf(words, sizeof(words), "rm -rf %s/*", folder);
    assert_int_equal(system(words), 0);
}

static void check_at(const char *words, int32_t ranks, double memory_bytes, bool copies)
{
    struct job near = {.far = false}, far = {.far = true};
    clear();
    snprintf(near.run, sizeof(near.run), "%s/near", folder);
    snprintf(far.run, sizeof(far.run), "%s/far", folder);
    if (copies)
        snprintf(far.copies, sizeof(far.copies), "%s/copies", folder);
    run(&near, words, ranks, HUGE_VAL);
    run(&far, words, ranks, memory_bytes);
    for (int s = 1; s <= STEPS; s++) {
        char path[3][256];
        const char *const of[] = {near.run, far.run, far.copies};
        for (int f = 0; f < 3; f++)
            snprintf(path[f], sizeof(path[f]), "%s/checkpoints/step-%08d", of[f], s);
        if (differ(path[0], path[1]) != 0 || (copies && differ(path[0], path[2]) != 0))
            fail_msg("%s on %d ranks: the checkpoints after step %d differ", words, (int)ranks, s);
        snprintf(path[1], sizeof(path[1]), "%s/checkpoints/step-%08d", near.run, s % STEPS + 1);
        assert_int_not_equal(differ(path[0], path[1]), 0); /* of other steps */
    }
}

static void check(const char *words, int32_t ranks)
{
    check_at(words, ranks, HUGE_VAL, false);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void case_precisions(void **state)
{
    (void)state;
    check(GPT "--strategy single --optimizer adamw", 1);
    check(GPT "--strategy single --optimizer momentum --precision bf16", 1);
    check(GPT "--strategy single --optimizer adamw --precision bf16 --master-weights off "
              "--rounding stochastic",
          1);
    check(GPT "--strategy single --optimizer sgd --precision f16 --master-weights off", 1);
}

/* Numbers per tensor; running statistics. */
static void case_state(void **state)
{
    (void)state;
    check(CNN "--strategy single --optimizer novograd", 1);
    check(CNN "--strategy ddp --optimizer novograd", 2);
    check(CNN "--strategy single --optimizer lamb", 1);
}

static void case_layouts(void **state)
{
    (void)state;
    if (TESTS_DIVISOR > 1) /* sanitizers see the same accesses in case_copies */
        skip();
    check(GPT "--strategy dp --optimizer adamw", 2);
    check(GPT "--strategy zero1 --optimizer adamw", 2);
    check(GPT "--strategy fsdp --optimizer adamw --precision bf16 --master-weights off "
              "--rounding stochastic",
          2);
    check(GPT "--strategy fsdp+tp --mesh data=2,tensor=2 --optimizer novograd --precision bf16", 4);
}

/* What the stage does not hold is written before the step goes on; 0: all. */
static void case_memory(void **state)
{
    static const double memory_bytes[] = {2.5e6, 0};
    (void)state;
    if (TESTS_DIVISOR > 1) /* likewise */
        skip();
    for (int i = 0; i < 2; i++) {
        check_at(MLP "--strategy single --optimizer adamw", 1, memory_bytes[i], false);
        check_at(MLP "--strategy single --optimizer novograd --precision bf16 "
                     "--master-weights off --rounding stochastic",
                 1, memory_bytes[i], false);
    }
}

static void case_copies(void **state)
{
    (void)state;
    check_at(CNN "--strategy ddp --optimizer novograd", 2, HUGE_VAL, true);
    check_at(GPT "--strategy fsdp --optimizer adamw --precision bf16", 2, HUGE_VAL, true);
}

/* A device that is lost while it copies costs that checkpoint; the step that follows reports it. */
static void case_lost(void **state)
{
    struct job job = {.far = true, .fails = true};
    char path[256];
    (void)state;
    clear();
    snprintf(job.run, sizeof(job.run), "%s/lost", folder);
    gate.failures = 1;
    run(&job, CNN "--strategy ddp", 2, HUGE_VAL);
    assert_int_equal(gate.failures, 0);
    for (int s = 1; s <= STEPS; s++) {
        snprintf(path, sizeof(path), "test -e %s/checkpoints/step-%08d", job.run, s);
        assert_int_equal(system(path) == 0, s > 1);
    }
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || tess_registry_get_kernel("guard_queue", &base) != TESS_OK)
        return -1;
    far_queue = *base->queue;
    far_queue.open = far_open;
    far_queue.wait = far_wait;
    far_queue.follow = far_follow;
    far_queue.copy = far_copy;
    far_kernel = *base;
    far_kernel.queue = &far_queue;
    far_kernel.read = far_read;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    clear();
    return remove(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_precisions), cmocka_unit_test(case_state),
        cmocka_unit_test(case_layouts),    cmocka_unit_test(case_memory),
        cmocka_unit_test(case_copies),     cmocka_unit_test(case_lost),
    };
    return cmocka_run_group_tests_name("save_far", cases, set_up, tear_down);
}
