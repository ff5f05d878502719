/* --explain: everything that was resolved before a run begins. */
#include "cli/explain.h"

#include "base/options.h"
#include "cli/memory_table.h"

#include <stdio.h>
#include <string.h>

struct widths {
    int name, value;
};

static void explain_measure(void *context, const char *name, const char *value, const char *origin,
                            const struct tess_option *option)
{
    struct widths *widths = context;
    int name_length = (int)strlen(name), value_length = (int)strlen(value);

    (void)origin;
    (void)option;
    widths->name = name_length > widths->name ? name_length : widths->name;
    widths->value = value_length > widths->value ? value_length : widths->value;
}

static void explain_option(void *context, const char *name, const char *value, const char *origin,
                           const struct tess_option *option)
{
    const struct widths *widths = context;

    (void)option;
    printf("  %-*s  %-*s  %s\n", widths->name, name, widths->value, value, origin);
}

static void explain_line(void *context, const char *text)
{
    (void)context;
    printf("  %s\n", text);
}

void tess__explain_print(const struct tess__run *run)
{
    const struct tess_config *config = run->config;
    struct widths widths = {0, 0};

    printf("options\n");
    tess_options_visit(config->options, explain_measure, &widths);
    tess_options_visit(config->options, explain_option, &widths);
    printf("\nchosen\n  ranks %d, strategy %s (%s), kernel %s\n", run->rank_count,
           config->strategy->name,
           config->strategy->rank_mode == TESS_RANKS_THREADS ? "threads of one process"
                                                             : "one process per rank",
           config->kernel->name);
    printf("\nplan of rank 0\n");
    tess_engine_describe(run->planned, explain_line, NULL);
    tess__memory_table_print(run, false);
}
