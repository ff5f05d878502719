/* tessera status: what a run does, or did. */
#include "run/status.h"
#include "tessera/check.h"
#include "text/command.h"

#include <stdio.h>

struct status_options {
    bool json;
    int64_t calls;
};

static const struct tess_option status_table[] = {
    TESS_ROW_BOOL("json", offsetof(struct status_options, json), "off",
                  "print an object in JSON in place of the text"),
    TESS_ROW_INT("calls", offsetof(struct status_options, calls), "0", 0, TESS_FLIGHT_CALLS,
                 "the latest calls of each rank to print, of those that it keeps"),
    TESS_ROW_END,
};

static const char status_usage[] =
    "usage: tessera status RUN [--json] [--calls N]\n"
    "\n"
    "What the ranks of a run do, or did when it ended: RUN is the folder of train --run RUN.\n"
    "A row for each rank: step, phase and unit, the rank that it waits for and since when, the\n"
    "time that it has waited in all steps, its host. Then the rank that the others wait for,\n"
    "and the first call that is not the same on all ranks.\n"
    "\n"
    "SIGUSR2 to tessera train, or to one of its ranks, prints the same. A run that fails\n"
    "prints it, too, and adds it to RUN/failures.txt.\n"
    "\n"
    "examples\n"
    "  tessera status out\n"
    "  tessera status out --calls 5\n"
    "  tessera status out --json\n";

static enum tess_status status_write(const struct tess__status *run, int32_t calls)
{
    json_t *object = tess__status_json(run, calls);
    if (object == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the status as JSON");
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
    return TESS_OK;
}

static enum tess_status status_run(const struct tess__call *words)
{
    const struct status_options *options = words->values;
    struct tess__status run;
    if (words->word_count < 1)
        TESS_FAIL(TESS_ERR_USAGE, "status needs the folder of a run: tessera status RUN");
    enum tess_status status = tess__status_read(words->word[0], &run);
    if (run.rank_count > 0) {
        tess__status_find(&run);
        if (options->json)
            TESS_KEEP(status, status_write(&run, (int32_t)options->calls));
        else
            tess__status_print(&run, (int32_t)options->calls, stdout);
    }
    tess__status_close(&run);
    return status;
}

static int status_command(struct tess__call *words)
{
    return tess_status_exit_code(status_run(words));
}

const struct tess__command tess__command_status = {
    .name = "status",
    .summary = "what the ranks of a run do, and which rank is late",
    .usage = status_usage,
    .table = status_table,
    .options_size = sizeof(struct status_options),
    .words_max = 1,
    .run = status_command,
};
