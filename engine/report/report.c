/*
 * tessera report: what runs and measurements left behind, as one HTML file. Responsible for the
 * command line; reading is report_read.c's, the page report_page.c's.
 */
#include "report/report_section.h"
#include "text/command.h"
#include "text/text.h"

#include "base/file.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct report_options {
    const char *out, *title;
};

static const struct tess_option report_option_table[] = {
    {"out", TESS_OPTION_STRING, offsetof(struct report_options, out), "report.html", 0, 0, NULL,
     "file to write"},
    {"title", TESS_OPTION_STRING, offsetof(struct report_options, title), "Training report", 0, 0,
     NULL, "heading of the page"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char report_usage[] =
    "usage: tessera report RUN... [--out FILE] [--title TEXT]\n"
    "\n"
    "Write one HTML file that shows runs side by side: loss and accuracy, memory of every\n"
    "rank, speed and where the time goes, scaling, plans, and the options that differ. The file\n"
    "needs no network and no other file; below every picture is a table of its numbers.\n"
    "\n"
    "A RUN is a folder that tessera train --run FOLDER wrote; a JSON file that --json of\n"
    "tessera compare, scaling, plan or tune batch wrote; or a time line that --trace FILE of\n"
    "tessera train or plan wrote (at most 64 MiB). Of a time line the step of median length is\n"
    "drawn: what up to 8 ranks compute, and the communication that is under way meanwhile.\n"
    "Damaged lines of a file are left out, with a note in the report.\n"
    "\n"
    "examples\n"
    "  tessera train configs/labs/fashion_mlp.yaml --run runs/mlp\n"
    "  tessera report runs/mlp\n"
    "  tessera train configs/labs/ddp.yaml --steps 20 --trace ddp.json\n"
    "  tessera report ddp.json --out step.html\n"
    "  tessera report runs/* compare.json --out lab4.html --title \"Large batches\"\n";

/* An output that is one of the inputs would destroy what it is made of. */
static enum tess_status report_check_out(const char *out, const char *input)
{
    struct stat target, source;
    char file[4096];
    int length = snprintf(file, sizeof(file), "%s/metrics.jsonl", input);
    if (stat(out, &target) != 0 || !S_ISREG(target.st_mode))
        return TESS_OK;
    for (int i = 0; i < 2; i++) {
        const char *path = i == 0 ? input : file;
        if ((i == 0 || (size_t)length < sizeof(file)) && stat(path, &source) == 0 &&
            source.st_dev == target.st_dev && source.st_ino == target.st_ino)
            TESS_FAIL(TESS_ERR_USAGE, "--out %s is one of the files to report on (%s)", out, path);
    }
    return TESS_OK;
}

static enum tess_status report_check(const struct tess__call *call)
{
    const struct report_options *options = call->values;
    if (call->word_count == 0)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "report needs run folders, or files of train --trace, compare, scaling, plan or tune "
            "batch --json: tessera report RUN...");
    if (!options->out[0])
        TESS_FAIL(TESS_ERR_USAGE, "--out is empty: give the name of the file to write");
    for (int i = 0; i < call->word_count; i++)
        TESS_TRY(report_check_out(options->out, call->word[i]));
    return TESS_OK;
}

static size_t report_count(const struct tess__html *html, const char *part)
{
    size_t count = 0;
    for (const char *at = html->bytes; at && (at = strstr(at, part)); at++)
        count++;
    return count;
}

static enum tess_status report_write(const struct tess__call *call)
{
    const struct report_options *options = call->values;
    struct tess__report report = {0};
    struct tess__html html = {0};
    enum tess_status status;
    char size[TESS__TEXT_BYTES];
    status = tess_file_check(options->out, TESS_FILE_TEXT, "--out");
    for (int i = 0; i < call->word_count && status == TESS_OK; i++)
        status = tess__report_load(&report, call->word[i]);
    if (status == TESS_OK) {
        tess__report_name_runs(&report);
        status = tess__report_page(&report, options->title, &html);
    }
    if (status == TESS_OK)
        status = tess_file_write(options->out, html.bytes, html.count);
    if (status == TESS_OK) {
        printf("%s: %zu run%s, %zu pictures, %s", options->out, report.run_count,
               report.run_count == 1 ? "" : "s", report_count(&html, "</figure>"),
               tess__text_bytes((double)html.count, size));
        if (report.note_count > 0)
            printf("; %zu note%s on damaged files", report.note_count,
                   report.note_count == 1 ? "" : "s");
        putchar('\n');
    }
    tess__html_close(&html);
    tess__report_close(&report);
    return status;
}

static int report_command(struct tess__call *call)
{
    enum tess_status status = report_check(call);
    if (status == TESS_OK)
        status = report_write(call);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_report = {
    .name = "report",
    .summary = "one HTML page with pictures of runs, comparisons, scaling and plans",
    .usage = report_usage,
    .table = report_option_table,
    .options_size = sizeof(struct report_options),
    .words_max = TESS__ARGS_MAX,
    .run = report_command,
};
