/* A trial: one short run of a configuration under a given strategy, rank count, grid and batch. */
#include "study/trial.h"

#include "base/file.h"
#include "base/terminal.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRIAL_TABLES_MAX (1 + TESS__SKIP_MAX)

/* What the configurations of a series need not read: the command's options, which it has read, and
 * those of strategies that this run does not have. Returns their number. */
static int trial_tables(const struct tess__args *args,
                        struct tess_config_table table[TRIAL_TABLES_MAX])
{
    int count = 0;
    if (args->own)
        table[count++] = (struct tess_config_table){"", args->own, NULL};
    for (int i = 0; i < args->skip_count; i++)
        table[count++] = (struct tess_config_table){args->skip[i], NULL, NULL};
    return count;
}

enum tess_status tess__trial_config(const struct tess__args *args,
                                    const struct tess__trial_choice *choice,
                                    struct tess_config **config_out)
{
    const struct {
        const char *name;
        int64_t value;
    } number[] = {{"ranks", choice->ranks},
                  {"grid", choice->grid},
                  {"steps", choice->steps},
                  {"batch-size", choice->batch_size}};
    struct tess_config_table table[TRIAL_TABLES_MAX];
    struct tess__args words = *args;
    char text[4][48], strategy[96];

    for (int i = 0; i < choice->word_count; i++)
        TESS_TRY(tess__args_add(&words, choice->word[i]));
    if (choice->strategy) {
        snprintf(strategy, sizeof(strategy), "--strategy=%s", choice->strategy);
        TESS_TRY(tess__args_add(&words, strategy));
    }
    for (int i = 0; i < 4; i++) {
        snprintf(text[i], sizeof(text[i]), "--%s=%lld", number[i].name, (long long)number[i].value);
        if (number[i].value > 0)
            TESS_TRY(tess__args_add(&words, text[i]));
    }
    if (choice->batch_size > 0)
        TESS_TRY(tess__args_add(&words, "--batch-per-rank=0"));
    const int table_count = trial_tables(args, table);
    return choice->load ? tess_config_load(words.count, words.word, table, table_count,
                                           choice->before, config_out)
                        : tess_config_open(words.count, words.word, table, table_count, config_out);
}

enum tess_status tess__trial_mesh(struct tess__args *args, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out)
{
    struct tess_config_table table[TRIAL_TABLES_MAX];
    return tess_config_mesh(args->count, args->word, table, trial_tables(args, table), mesh_out,
                            accumulate_out);
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
    memset(trial, 0, sizeof(*trial));
    TESS_TRY(tess__trial_config(args, choice, &trial->config));
    if (!*dataset)
        TESS_TRY(tess__run_open_data(trial->config, dataset));
    TESS_TRY(tess__run_open(&trial->run, trial->config, *dataset));
    trial->run.evaluate = false;
    /* One log line, the last: reading the loss is not part of a step's cost. */
    if (choice->steps > 0)
        trial->run.log_every = choice->steps;
    return TESS_OK;
}

static enum tess_status trial_message(void *context, const struct tess__message *message)
{
    tess__run_keep(context, message);
    return TESS_OK;
}

/* A terminal may show that a trial is running. */
static void trial_before_line(void *context)
{
    (void)context;
    if (tess__is_terminal(STDOUT_FILENO)) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
    }
}

enum tess_status tess__trial_run(struct tess__trial *trial, const char *sign)
{
    struct tess__launch launch = tess__run_launch(&trial->run);
    launch.context = &trial->run;
    launch.message = trial_message;
    launch.before_line = trial_before_line;
    if (sign && tess__is_terminal(STDOUT_FILENO)) {
        printf("\r\033[K%s ...", sign);
        fflush(stdout);
    }
    enum tess_status status = tess__launch_run(&launch);
    if (sign)
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
    const char *run = tess_options_peek_arguments("run", args->count, args->word);
    if (run && run[0])
        TESS_FAIL(TESS_ERR_USAGE,
                  "--run %s: only train and sweep write run folders; --json FILE keeps these "
                  "results",
                  run);
    return json[0] ? tess_file_check(json, TESS_FILE_TEXT, "--json") : TESS_OK;
}
