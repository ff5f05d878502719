/* The measured half of tessera scaling: one training on 1, 2, 4, ... ranks, and Amdahl's fit. */
#include "study/scaling.h"
#include "study/trial.h"
#include "study/variant.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct measure {
    struct tess__scaling *scaling;
    struct tess__trial trial[TESS__SCALING_POINTS_MAX];
    int count;
    /* [count * repeats], the runs of a rank count one after the other */
    struct tess__scaling_measured *run;
};

int tess__scaling_ranks(int64_t last, int64_t count[TESS__SCALING_POINTS_MAX])
{
    int points = 0;
    for (int64_t ranks = 1; ranks < last && points + 1 < TESS__SCALING_POINTS_MAX; ranks *= 2)
        count[points++] = ranks;
    count[points++] = last;
    return points;
}

/* The configured batch and accumulation, before the ranks are chosen. */
static enum tess_status measure_shape(struct tess__scaling *scaling)
{
    struct tess__trial_choice choice = {
        .strategy = scaling->strategy, .ranks = 1, .steps = scaling->asked.steps};
    struct tess_config *config = NULL;
    TESS_TRY(tess__trial_config(&scaling->args, &choice, &config));
    scaling->model = config->model->name;
    scaling->batch_size = config->run.batch_size;
    scaling->accumulate = config->run.accumulate;
    if (config->run.batch_per_rank > 0 && !scaling->asked.weak) {
        tess_config_close(config);
        TESS_FAIL(TESS_ERR_USAGE, "--batch-per-rank lets the batch grow with the ranks: give "
                                  "--weak, or --batch-size in its place");
    }
    tess_config_close(config);
    return TESS_OK;
}

static struct tess__trial_choice measure_choice(struct tess__scaling *scaling, int64_t ranks,
                                                int64_t grid)
{
    /* Ranks are compared, so one has no more threads than many have. */
    static char *const one_thread[] = {"--threads=1"};
    char given[32];
    const bool asked =
        tess_config_peek(scaling->args.count, scaling->args.word, "threads", given, sizeof(given));
    return (struct tess__trial_choice){
        .word = one_thread,
        .word_count = asked ? 0 : 1,
        .strategy = scaling->strategy,
        .ranks = ranks,
        .grid = grid,
        .steps = scaling->asked.steps,
        .batch_size = scaling->batch_size * (scaling->asked.weak ? ranks : 1),
    };
}

static enum tess_status measure_open(struct measure *measure)
{
    struct tess__scaling *scaling = measure->scaling;
    struct tess__variant_shape shape[TESS__SCALING_POINTS_MAX];
    int64_t ranks[TESS__SCALING_POINTS_MAX], grid;
    int count = tess__scaling_ranks(scaling->asked.max_ranks, ranks);
    TESS_TRY(measure_shape(scaling));
    for (int i = 0; i < count; i++) {
        const struct tess__trial_choice choice = measure_choice(scaling, ranks[i], 0);
        TESS_TRY(tess__trial_shape(&scaling->args, &choice, &shape[i]));
    }
    /* Of one batch the bits can be compared, too. */
    grid = scaling->asked.weak ? 0 : tess__variants_grid(shape, count);
    for (int i = 0; i < count; i++) {
        const struct tess__trial_choice choice = measure_choice(scaling, ranks[i], grid);
        struct tess__trial *trial = &measure->trial[measure->count++];
        TESS_TRY(tess__trial_open(trial, &scaling->args, &choice, &scaling->dataset));
        trial->run.warm_steps = scaling->asked.steps / 4;
    }
    scaling->words = tess__words_of(scaling->dataset);
    return TESS_OK;
}

static struct tess__scaling_measured measure_result(const struct tess__scaling *scaling,
                                                    const struct tess__run *run)
{
    const struct tess_run_options *options = &run->config->run;
    struct tess__scaling_measured result = {
        .ranks = run->rank_count,
        .batch_size = options->batch_size,
        .shared = run->rank_count * run->config->threads > scaling->cores,
        .hash = run->final.hash,
        .samples_per_s = run->final.samples_per_s,
    };
    memcpy(result.mesh, run->config->mesh.count, sizeof(result.mesh));
    for (int32_t r = 0; r < run->rank_count; r++)
        tess_times_add(&result.step, &run->rank[r].step, 1 / (double)run->rank_count);
    return result;
}

static int measure_order(const void *a, const void *b)
{
    const struct tess__scaling_measured *x = a, *y = b;
    return (x->step.total_s > y->step.total_s) - (x->step.total_s < y->step.total_s);
}

/* Repeats in turns, so that a temporary load of the machine affects every rank count. */
static enum tess_status measure_run(struct measure *measure)
{
    const struct tess__scaling *scaling = measure->scaling;
    size_t repeats = (size_t)scaling->asked.repeats;
    measure->run = calloc((size_t)measure->count * repeats, sizeof(*measure->run));
    if (!measure->run)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the results of %d rank counts", measure->count);
    for (size_t r = 0; r < repeats; r++)
        for (int i = 0; i < measure->count; i++) {
            struct tess__run *run = &measure->trial[i].run;
            char sign[96];
            snprintf(sign, sizeof(sign), "round %zu of %zu: %d rank%s of %d", r + 1, repeats,
                     run->rank_count, run->rank_count > 1 ? "s" : "",
                     (int)scaling->asked.max_ranks);
            TESS_TRY(tess__trial_run(&measure->trial[i], sign));
            measure->run[(size_t)i * repeats + r] = measure_result(scaling, run);
        }
    return TESS_OK;
}

/* Median runs, factors of one rank, and the fit to those that had cores of their own. */
static void measure_evaluate(struct measure *measure)
{
    struct tess__scaling *scaling = measure->scaling;
    size_t repeats = (size_t)scaling->asked.repeats;
    int64_t ranks[TESS__SCALING_POINTS_MAX];
    double time_s[TESS__SCALING_POINTS_MAX];
    int fitting = 0;
    scaling->measured_count = measure->count;
    for (int i = 0; i < measure->count; i++) {
        struct tess__scaling_measured *point = &scaling->measured[i];
        struct tess__scaling_measured *run = &measure->run[(size_t)i * repeats];
        qsort(run, repeats, sizeof(*run), measure_order);
        *point = run[(repeats - 1) / 2];
        point->speedup = scaling->measured[0].step.total_s / point->step.total_s *
                         (scaling->asked.weak ? (double)point->ranks : 1);
        point->efficiency = point->speedup / (double)point->ranks;
        if (!point->shared) {
            ranks[fitting] = point->ranks;
            time_s[fitting++] = point->step.total_s;
        }
    }
    /* Amdahl divides a fixed amount of work. */
    scaling->fitted =
        !scaling->asked.weak && tess_amdahl_fit(scaling->measured[0].step.total_s, ranks, time_s,
                                                fitting, &scaling->amdahl_p);
}

enum tess_status tess__scaling_measure(struct tess__scaling *scaling)
{
    struct measure measure = {.scaling = scaling};
    enum tess_status status;
    TESS_TRY_GOTO(status, close_trials, measure_open(&measure));
    TESS_TRY_GOTO(status, close_trials, measure_run(&measure));
    measure_evaluate(&measure);

close_trials:
    for (int i = 0; i < measure.count; i++)
        tess__trial_close(&measure.trial[i]);
    free(measure.run);
    return status;
}
