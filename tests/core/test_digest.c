/*
 * Digests of parameters: the same on every layout, hashes to the bit and sums but for their last
 * digits; one bit is seen, and in one parameter only; sketches measure how far two versions are
 * apart; replicas that differ are named, with their ranks.
 */
#include "config/config.h"
#include "core/state.h"
#include "harness/world.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Nothing is a multiple of anything, so that shards cut parameters. */
#define MLP                                                                                        \
    "--kernel ref --data synthetic --model mlp --mlp.hidden 41,27 --batch-size 48 --grid 4 "       \
    "--steps 30 --evaluate=off --bind=off --data.workers 0 --optimizer momentum "

enum { RANKS_MAX = 4, PARAMS = 6 };

/* What is damaged after the steps: a bit of every word for which this is true. */
enum damage {
    DAMAGE_NONE,
    DAMAGE_OWNED, /* the first element of fc2.weight that the rank owns */
    DAMAGE_COPY,  /* the last element of fc2.weight as the rank computes with it */
};

struct job {
    struct tess_config *config;
    struct tess_dataset *dataset;
    enum damage damage;
    uint32_t damaged; /* ranks, as bits */
    enum tess_status status[RANKS_MAX], hash_status[RANKS_MAX];
    uint64_t hash[RANKS_MAX];
    struct tess_digest digest[RANKS_MAX][PARAMS];
    char text[RANKS_MAX][2048];
};

static void open_config(const char *words, struct tess_config **config_out)
{
    char copy[512];
    char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof(copy), MLP "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, config_out), TESS_OK);
}

static void damage(struct tess_engine *engine, enum damage kind)
{
    const struct tess_plan *plan = &engine->plan;
    if (kind == DAMAGE_COPY) {
        const struct tess_segment *segment = &plan->segment[plan->param[2].segment];
        const int64_t last = plan->param[2].begin - segment->begin + plan->param[2].count - 1;
        *((uint8_t *)segment->param + (size_t)last * engine->sizes.dtype_bytes) ^= 1;
        return;
    }
    for (int32_t i = 0; i < engine->optim.piece_count; i++)
        if (engine->piece[i].param == 2) {
            *(uint8_t *)engine->piece[i].w ^= 1;
            return;
        }
}

static int job_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct job *job = arg;
    const int32_t rank = comm->rank;
    struct tess_engine *engine = NULL;
    struct tess_step_result result;
    WORLD_OK(tess_engine_open(job->config, job->dataset, comm, world, &engine));
    for (int i = 0; i < 3; i++)
        WORLD_OK(tess_engine_step(engine, false, &result));
    if (job->damage != DAMAGE_NONE && (job->damaged >> rank & 1))
        damage(engine, job->damage);
    job->status[rank] = tess_engine_digest(engine, job->digest[rank]);
    snprintf(job->text[rank], sizeof(job->text[rank]), "%s", tess_log_last_error());
    job->hash_status[rank] = tess_engine_hash(engine, &job->hash[rank]);
    WORLD_OK(tess_comm_barrier(comm));
    tess_engine_close(engine);
    return 0;
}

static void job_run(struct job *job, const char *strategy, int32_t ranks, const char *options)
{
    char words[256];
    struct world_report report;
    const struct world_setup setup = {
        .ranks = ranks, .mode = TESS_RANKS_THREADS, .self = strcmp(strategy, "single") == 0};
    snprintf(words, sizeof(words), "--strategy %s --ranks %d %s", strategy, (int)ranks, options);
    open_config(words, &job->config);
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 0, 3, &job->dataset),
                     TESS_OK);
    int failed = world_run_setup(&setup, job_rank, job, &report);
    world_print(&report);
    assert_int_equal(failed, 0);
    tess_dataset_close(job->dataset);
    tess_config_close(job->config);
}

static struct job *job_new(void)
{
    struct job *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    return job;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static const char *const strategies[] = {"dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"};

static const int64_t param_count[PARAMS] = {36 * 41, 41, 41 * 27, 27, 27 * 5, 5};

/*
 * Sums of n terms in any order are off by at most (n - 1) 2^-53 times the sum of the magnitudes,
 * which for n elements is at most sqrt(n) norm; for the squares, norm^2, of which the root halves
 * the error.
 */
static void check_same(const struct tess_digest *digest, const struct tess_digest *expected)
{
    for (int p = 0; p < PARAMS; p++) {
        const double n = (double)param_count[p], norm = expected[p].norm;
        assert_true(norm > 0);
        assert_int_equal(digest[p].hash, expected[p].hash);
        assert_true(fabs(digest[p].norm - norm) <= n * 0x1p-53 * norm);
        for (int s = 0; s < TESS_DIGEST_SKETCH; s++)
            assert_true(fabs(digest[p].sketch[s] - expected[p].sketch[s]) <=
                        2 * n * 0x1p-53 * sqrt(n) * norm);
    }
}

static void check_layouts(const char *options)
{
    struct job *single = job_new();
    uint64_t sum = 0;
    job_run(single, "single", 1, options);
    assert_int_equal(single->status[0], TESS_OK);
    for (int p = 0; p < PARAMS; p++)
        sum += single->digest[0][p].hash;
    assert_int_equal(sum, single->hash[0]);
    for (size_t s = 0; s < sizeof(strategies) / sizeof(strategies[0]); s++)
        for (int32_t ranks = 2; ranks <= 4; ranks += 2) {
            struct job *job = job_new();
            job_run(job, strategies[s], ranks, options);
            for (int32_t r = 0; r < ranks; r++) {
                assert_int_equal(job->status[r], TESS_OK);
                assert_int_equal(job->hash[r], single->hash[0]);
                check_same(job->digest[r], single->digest[0]);
            }
            free(job);
        }
    free(single);
}

static void case_layouts(void **state)
{
    (void)state;
    check_layouts("");
    check_layouts("--precision bf16");
    check_layouts("--precision bf16 --master-weights=off");
}

/* A model that is large enough to be hashed by several threads, and for replicas of one host to
 * make each other's first values: the hash of one thread of one rank. */
static void check_shared(const char *options)
{
    static const struct {
        const char *strategy, *threads;
        int32_t ranks;
    } layout[] = {{"single", "1", 1}, {"single", "3", 1}, {"ddp", "1", 4}, {"ddp", "2", 2}};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(layout) / sizeof(*layout); i++) {
        struct job *job = job_new();
        char words[160];
        snprintf(words, sizeof(words), "--batch-size 4 --mlp.hidden 1500,801 --threads %s %s",
                 layout[i].threads, options);
        job_run(job, layout[i].strategy, layout[i].ranks, words);
        hash = i == 0 ? job->hash[0] : hash;
        for (int32_t r = 0; r < layout[i].ranks; r++) {
            assert_int_equal(job->hash_status[r], TESS_OK);
            assert_int_equal(job->hash[r], hash);
        }
        free(job);
    }
}

static void case_shared(void **state)
{
    (void)state;
    check_shared("");
    if (TESTS_DIVISOR > 1) /* sanitizers: a minute */
        return;
    check_shared("--precision bf16");
    check_shared("--precision bf16 --master-weights=off");
}

/* ---- differences ----------------------------------------------------------------------------- */

/* fc2.weight's first element: its last bit is half the distance to its neighbour, which is all that
 * each sketch moves by, and none of the other parameters' digests. */
static void case_one_bit(void **state)
{
    struct job *plain = job_new(), *changed = job_new();
    (void)state;
    job_run(plain, "single", 1, "");
    changed->damage = DAMAGE_OWNED;
    changed->damaged = 1;
    job_run(changed, "single", 1, "");
    for (int p = 0; p < PARAMS; p++) {
        const struct tess_digest *a = &plain->digest[0][p], *b = &changed->digest[0][p];
        if (p != 2) {
            assert_memory_equal(a, b, sizeof(*a));
            continue;
        }
        assert_int_not_equal(a->hash, b->hash);
        const double moved = fabs(a->sketch[0] - b->sketch[0]);
        /* Weights are below 1, their last bits at most 2^-24, sums of theirs right to 2^-40. */
        assert_true(moved > 0 && moved <= 0x1p-24);
        for (int s = 1; s < TESS_DIGEST_SKETCH; s++)
            assert_true(fabs(fabs(a->sketch[s] - b->sketch[s]) - moved) <= 0x1p-39);
    }
    assert_int_not_equal(plain->hash[0], changed->hash[0]);
    free(plain);
    free(changed);
}

static const float *values_of(const char *words, struct tess_engine **engine_out,
                              struct tess_config **config_out, struct tess_dataset **dataset_out,
                              struct tess_comm **comm_out, struct tess_digest *digest)
{
    open_config(words, config_out);
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 0, 3, dataset_out),
                     TESS_OK);
    assert_int_equal(tess_comm_self_open(TESS_ORDER_CANONICAL, comm_out), TESS_OK);
    assert_int_equal(tess_engine_open(*config_out, *dataset_out, *comm_out, NULL, engine_out),
                     TESS_OK);
    assert_int_equal(tess_engine_digest(*engine_out, digest), TESS_OK);
    return (*engine_out)->piece[0].w;
}

/*
 * Two models that share nothing: sum over parameters of the mean square of the sketches'
 * differences against the square of the true distance, and norms against sums made here. One
 * sketch's square has a relative deviation of at most sqrt(2); eight, of parameters most of whose
 * weight is in two: about sqrt(2/16) = 0.35.
 */
static void case_distance(void **state)
{
    struct tess_engine *engine[2];
    struct tess_config *config[2];
    struct tess_dataset *dataset[2];
    struct tess_comm *comm[2];
    struct tess_digest digest[2][PARAMS];
    const float *w[2];
    double estimate = 0, distance = 0;
    (void)state;
    for (int m = 0; m < 2; m++)
        w[m] = values_of(m ? "--strategy single --seed 2" : "--strategy single --seed 1",
                         &engine[m], &config[m], &dataset[m], &comm[m], digest[m]);
    for (int p = 0; p < PARAMS; p++) {
        const int64_t begin = engine[0]->plan.param[p].begin;
        double square = 0;
        for (int64_t i = begin; i < begin + param_count[p]; i++) {
            distance += pow((double)w[0][i] - (double)w[1][i], 2);
            square += pow(w[0][i], 2);
        }
        assert_true(fabs(digest[0][p].norm / sqrt(square) - 1) < (double)param_count[p] * 0x1p-52);
        for (int s = 0; s < TESS_DIGEST_SKETCH; s++)
            estimate +=
                pow(digest[0][p].sketch[s] - digest[1][p].sketch[s], 2) / TESS_DIGEST_SKETCH;
    }
    assert_true(distance > 1);
    assert_true(estimate > 0.3 * distance && estimate < 2 * distance);
    for (int m = 0; m < 2; m++) {
        tess_engine_close(engine[m]);
        tess_comm_close(comm[m]);
        tess_dataset_close(dataset[m]);
        tess_config_close(config[m]);
    }
}

/* ---- replicas -------------------------------------------------------------------------------- */

static void check_named(const char *strategy, const char *options, enum damage kind,
                        uint32_t damaged, const char *expected)
{
    struct job *job = job_new();
    job->damage = kind;
    job->damaged = damaged;
    job_run(job, strategy, 4, options);
    for (int32_t r = 0; r < 4; r++) {
        assert_int_equal(job->status[r], TESS_ERR_INTERNAL);
        assert_int_equal(job->hash_status[r], TESS_ERR_INTERNAL);
        if (strstr(job->text[r], expected) == NULL)
            print_error("%s: expected '%s' in: %s\n", strategy, expected, job->text[r]);
        assert_non_null(strstr(job->text[r], expected));
    }
    free(job);
}

static void case_replicas(void **state)
{
    (void)state;
    check_named("ddp", "", DAMAGE_OWNED, 1 << 1 | 1 << 3,
                "after step 3 parameter 'fc2.weight' of ranks 1, 3 differs from rank 0's");
    check_named("ddp", "", DAMAGE_OWNED, 1 << 0, "of ranks 1, 2, 3 differs from rank 0's");
    check_named("ddp", "--precision bf16", DAMAGE_COPY, 1 << 2, "of rank 2 differs from rank 0's");
    /* Shards of two ranks: 3 owns what 1 owns. */
    check_named("hsdp", "--hsdp.shard-ranks 2", DAMAGE_OWNED, 1 << 3,
                "'fc2.weight' of rank 3 differs from rank 1's");
    /* Every rank's part of the optimizer is its own; the copies in use are not. */
    check_named("zero1", "", DAMAGE_COPY, 1 << 2, "'fc2.weight' of rank 2 differs from rank 0's");
    check_named("zero2", "--precision bf16", DAMAGE_COPY, 1 << 1,
                "'fc2.weight' of rank 1 differs from rank 0's");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_layouts),  cmocka_unit_test(case_shared),
        cmocka_unit_test(case_one_bit),  cmocka_unit_test(case_distance),
        cmocka_unit_test(case_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
