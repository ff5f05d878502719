/* A trial: one short run of a configuration under a given strategy, rank count, grid and batch. */
#include "cli/trial.h"

#include "base/file.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A file made for compare may be used in every series; what it says there is read elsewhere. */
struct trial_options {
    const char *variants;
};

static const struct tess_option trial_option_table[] = {
    {"variants", TESS_OPTION_STRING, offsetof(struct trial_options, variants), "", 0, 0, NULL,
     "runs of tessera compare"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

/* "--name N" where the choice has one; its digits live in `text`. */
static enum tess_status trial_add_number(struct tess__args *words, const char *name, int64_t value,
                                         char text[24])
{
    if (value <= 0)
        return TESS_OK;
    snprintf(text, 24, "%lld", (long long)value);
    return tess__args_add(words, name, text);
}

enum tess_status tess__trial_config(const struct tess__args *args,
                                    const struct tess__trial_choice *choice,
                                    struct tess_config **config_out)
{
    struct trial_options ignored;
    struct tess_config_table table = {"", trial_option_table, &ignored};
    struct tess__args words = *args;
    char number[4][24];

    for (int i = 0; i < choice->word_count; i++)
        TESS_TRY(tess__args_add_word(&words, choice->word[i]));
    if (choice->strategy != NULL)
        TESS_TRY(tess__args_add(&words, "--strategy", choice->strategy));
    TESS_TRY(trial_add_number(&words, "--ranks", choice->ranks, number[0]));
    TESS_TRY(trial_add_number(&words, "--grid", choice->grid, number[1]));
    TESS_TRY(trial_add_number(&words, "--steps", choice->steps, number[2]));
    TESS_TRY(trial_add_number(&words, "--batch-size", choice->batch_size, number[3]));
    if (choice->batch_size > 0)
        TESS_TRY(tess__args_add(&words, "--batch-per-rank", "0"));
    return tess_config_open(words.count, words.word, &table, 1, config_out);
}

enum tess_status tess__trial_mesh(struct tess__args *args, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out)
{
    struct trial_options ignored;
    struct tess_config_table table = {"", trial_option_table, &ignored};

    return tess_config_mesh(args->count, args->word, &table, 1, mesh_out, accumulate_out);
}

enum tess_status tess__trial_shape(const struct tess__args *args,
                                   const struct tess__trial_choice *choice,
                                   struct tess__variant_shape *shape_out)
{
    struct tess_config *config = NULL;

    TESS_TRY(tess__trial_config(args, choice, &config));
    *shape_out = (struct tess__variant_shape){config->mesh.count[TESS_AXIS_DATA],
                                              config->run.accumulate, config->run.batch_size};
    tess_config_close(config);
    return TESS_OK;
}

enum tess_status tess__trial_open(struct tess__trial *trial, const struct tess__args *args,
                                  const struct tess__trial_choice *choice,
                                  struct tess_dataset **dataset)
{
    memset(trial, 0, sizeof *trial);
    TESS_TRY(tess__trial_config(args, choice, &trial->config));
    if (*dataset == NULL)
        TESS_TRY(tess__run_open_data(trial->config, dataset));
    TESS_TRY(tess__run_open(&trial->run, trial->config, *dataset));
    trial->run.evaluate = false;
    /* One log line, the last: asking for the loss is not part of a step's price. */
    if (choice->steps > 0)
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

enum tess_status tess__trial_run(struct tess__trial *trial, const char *sign)
{
    struct tess__launch launch = tess__run_launch(&trial->run);
    enum tess_status status;

    launch.context = &trial->run;
    launch.message = trial_message;
    launch.before_line = trial_before_line;
    if (sign != NULL && isatty(STDOUT_FILENO) == 1) {
        printf("\r\033[K%s ...", sign);
        fflush(stdout);
    }
    status = tess__launch_run(&launch);
    if (sign != NULL)
        trial_before_line(NULL);
    return status;
}

void tess__trial_close(struct tess__trial *trial)
{
    tess__run_close(&trial->run);
    tess_config_close(trial->config);
    trial->config = NULL;
}

enum tess_status tess__trial_check(struct tess__args *args, const char *json)
{
    const char *run = NULL, *variants = NULL;

    TESS_TRY(tess__args_take(args, "run", &run));
    TESS_TRY(tess__args_take(args, "variants", &variants));
    if (run != NULL && run[0] != '\0')
        TESS_FAIL(TESS_ERR_USAGE,
                  "--run %s: only train and sweep write run folders; --json FILE keeps these "
                  "results",
                  run);
    if (variants != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--variants is an option of tessera compare");
    return json != NULL && json[0] != '\0' ? tess_file_check(json, "--json") : TESS_OK;
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
