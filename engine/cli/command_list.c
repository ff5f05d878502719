/* The list of commands, finding one, reading its options and running it. */
#include "cli/help.h"

#include "base/options.h"
#include "config/config.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* To add a command: its file, its name in text/command.h, one row here. */
static const struct tess__command *const command_list[] = {
    &tess__command_train,         &tess__command_generate,     &tess__command_score,
    &tess__command_sweep,         &tess__command_compare,      &tess__command_scaling,
    &tess__command_tune_batch,    &tess__command_checkpoint,   &tess__command_diff,
    &tess__command_report,        &tess__command_status,       &tess__command_top,
    &tess__command_topo,          &tess__command_bench_comm,   &tess__command_bench_gpu,
    &tess__command_bench_kernels, &tess__command_bench_step,   &tess__command_plan,
    &tess__command_accuracy,      &tess__command_data_prepare,
};

#define COMMAND_COUNT ((int)(sizeof(command_list) / sizeof(command_list[0])))

/* ---- one command ----------------------------------------------------------------------------- */

static enum tess_status command_read(const struct tess__command *command, struct tess__call *call)
{
    struct tess__args *args = &call->args;
    if (command->reads == TESS__READS_SERIES) {
        args->own = command->table;
        return tess_config_take(call->options, command->table, call->values, &args->count,
                                args->word);
    }
    if (command->reads == TESS__READS_TRAINING)
        return TESS_OK;
    if (command->prepare)
        TESS_TRY(command->prepare(args, call->values));
    /* Variables of a training may be set where this command runs. */
    tess_options_skip_others(call->options);
    TESS_TRY(tess_options_load_environment(call->options));
    return tess_options_load_arguments(call->options, args->count, args->word, call->word,
                                       command->words_max, &call->word_count);
}

int tess__command_call(const struct tess__command *command, int argc, char **argv, tess__show *show,
                       void *context)
{
    static struct tess__call call; /* large for a stack, and a program runs one command */
    const struct tess_config_table own = {"", command->table, NULL};
    const bool training = command->reads != TESS__READS_OWN;
    enum tess_status status = tess__args_init(&call.args, argc, argv);
    call.values = calloc(1, command->options_size + 1);
    if (status == TESS_OK && !call.values)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the options of %s", command->name);
    if (status == TESS_OK)
        status = tess_options_open(&call.options);
    if (status == TESS_OK && !training)
        status = tess_options_add(call.options, "", command->table, call.values);
    if (status == TESS_OK && command->declare)
        status = command->declare(call.options, call.values);
    if (status == TESS_OK && !show)
        status = command_read(command, &call);
    else if (status == TESS_OK && training)
        status = tess_config_show(argc, argv, &own, command->table ? 1 : 0, show, context);
    else if (status == TESS_OK)
        status = show(call.options, context);
    int code = status == TESS_OK && !show ? command->run(&call) : tess_status_exit_code(status);
    tess_options_close(call.options);
    if (call.values && command->release)
        command->release(call.values);
    free(call.values);
    call = (struct tess__call){.options = NULL};
    return code;
}

const struct tess__namer tess__namer_list[TESS__NAMERS] = {
    {"--strategy", TESS_REGISTRY_STRATEGY},   {"--model", TESS_REGISTRY_MODEL},
    {"--optimizer", TESS_REGISTRY_OPTIMIZER}, {"--strategies", TESS_REGISTRY_STRATEGY},
    {"--comm", TESS_REGISTRY_COMMUNICATOR},
};

/* ---- which command --------------------------------------------------------------------------- */

const struct tess__command *tess__command_at(int index)
{
    return index < COMMAND_COUNT ? command_list[index] : NULL;
}

bool tess__command_is_of(const struct tess__command *command, const char *group)
{
    const size_t length = strlen(group);
    return strncmp(command->name, group, length) == 0 && command->name[length] == ' ' &&
           command->name[length + 1] != '-';
}

const struct tess__command *tess__command_find(int argc, char **argv, int *words_out)
{
    const struct tess__command *one = NULL; /* plan, where it is not plan --accuracy */
    *words_out = 2;
    for (int i = 0; argc > 0 && i < COMMAND_COUNT; i++) {
        const char *name = command_list[i]->name, *second = strchr(name, ' ');
        const size_t length = strcspn(name, " ");
        if (strlen(argv[0]) != length || strncmp(argv[0], name, length) != 0)
            continue;
        if (!second)
            one = command_list[i];
        else if (argc > 1 && strcmp(argv[1], second + 1) == 0)
            return command_list[i];
    }
    *words_out = 1;
    return one;
}
