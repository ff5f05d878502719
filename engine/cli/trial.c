/* A trial: one short run of a configuration under a given strategy, rank count and grid. */
#include "cli/trial.h"

#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum tess_status tess__trial_open(struct tess__trial *trial, const struct tess__args *args,
                                  const struct tess__trial_choice *choice,
                                  struct tess_dataset **dataset)
{
    struct tess__args words = *args;
    char ranks[24], grid[24], steps[24];

    memset(trial, 0, sizeof *trial);
    snprintf(ranks, sizeof ranks, "%lld", (long long)choice->ranks);
    snprintf(grid, sizeof grid, "%lld", (long long)choice->grid);
    snprintf(steps, sizeof steps, "%lld", (long long)choice->steps);
    TESS_TRY(tess__args_add(&words, "--strategy", choice->strategy));
    TESS_TRY(tess__args_add(&words, "--ranks", ranks));
    TESS_TRY(tess__args_add(&words, "--grid", grid));
    TESS_TRY(tess__args_add(&words, "--steps", steps));
    TESS_TRY(tess_config_open(words.count, words.word, NULL, 0, &trial->config));
    if (*dataset == NULL)
        TESS_TRY(tess__run_open_data(trial->config, dataset));
    TESS_TRY(tess__run_open(&trial->run, trial->config, *dataset));
    trial->run.evaluate = false;
    /* One log line, the last: asking for the loss is not part of a step's price. */
    trial->run.log_every = choice->steps;
    return TESS_OK;
}

static enum tess_status trial_message(void *context, const struct tess__message *message)
{
    tess__run_keep(context, message);
    return TESS_OK;
}

/* A terminal may hold the sign that a trial is running. */
static void trial_before_line(void *context)
{
    (void)context;
    if (isatty(STDOUT_FILENO) == 1) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
    }
}

enum tess_status tess__trial_run(struct tess__trial *trial)
{
    struct tess__launch launch = tess__run_launch(&trial->run);

    launch.context = &trial->run;
    launch.message = trial_message;
    launch.before_line = trial_before_line;
    return tess__launch_run(&launch);
}

void tess__trial_close(struct tess__trial *trial)
{
    tess__run_close(&trial->run);
    tess_config_close(trial->config);
    trial->config = NULL;
}

enum tess_status tess__trial_number(struct tess__args *args, const char *name, int64_t min,
                                    int64_t max, int64_t fallback, int64_t *value_out)
{
    char text[64];
    const char *value = NULL;

    TESS_TRY(tess__args_take(args, name, &value));
    if (value == NULL && tess_config_peek(args->count, args->word, name, text, sizeof text))
        value = text;
    if (value == NULL) {
        *value_out = fallback;
        return TESS_OK;
    }
    return tess__list_number(name, value, min, max, value_out);
}
