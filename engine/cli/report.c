/*
 * tessera report: what runs and measurements left behind, as one HTML file. Responsible for the
 * command line; reading is report_read.c's, the page report_page.c's.
 */
#include "cli/args.h"
#include "cli/command.h"
#include "cli/report_section.h"
#include "cli/text.h"

#include "base/file.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REPORT_OUT   "report.html"
#define REPORT_TITLE "Training report"

struct report_options {
    const char *out, *title;
};

static int report_help(void)
{
    printf(
        "usage: tessera report RUN... [--out FILE] [--title TEXT]\n\n"
        "Write one HTML file that shows runs side by side: loss and accuracy, memory of every "
        "rank,\n"
        "speed and where the time goes, scaling, and what differs between their options. The file\n"
        "needs no network and no other file; every picture has its numbers in a table below it.\n\n"
        "A RUN is a folder written with tessera train --run FOLDER, a JSON file of tessera\n"
        "compare, scaling or tune batch --json, or a time line of tessera train --trace FILE (at\n"
        "most 64 MiB): of that the step of median length is drawn, with what up to 8 ranks "
        "compute\n"
        "and which calls of communication are under way meanwhile. Damaged lines are left out,\n"
        "with a note in the report. The pictures are drawn by gnuplot (Debian's package\n"
        "gnuplot-nox).\n\n"
        "examples\n"
        "  tessera train configs/labs/fashion_mlp.yaml --run runs/mlp\n"
        "  tessera report runs/mlp\n"
        "  tessera train configs/labs/ddp.yaml --steps 20 --trace ddp.json\n"
        "  tessera report ddp.json --out step.html\n"
        "  tessera report runs/* compare.json --out lab4.html --title \"Large batches\"\n\n"
        "options\n"
        "  --out FILE     file to write; " REPORT_OUT " unless given\n"
        "  --title TEXT   heading of the page; \"" REPORT_TITLE "\" unless given\n");
    return 0;
}

/* An output that is one of the inputs would destroy what it is made of. */
static enum tess_status report_check_out(const char *out, const char *input)
{
    struct stat target, source;
    char file[4096];
    int length = snprintf(file, sizeof file, "%s/metrics.jsonl", input);

    if (stat(out, &target) != 0 || !S_ISREG(target.st_mode))
        return TESS_OK;
    for (int i = 0; i < 2; i++) {
        const char *path = i == 0 ? input : file;
        if ((i == 0 || (size_t)length < sizeof file) && stat(path, &source) == 0 &&
            source.st_dev == target.st_dev && source.st_ino == target.st_ino)
            TESS_FAIL(TESS_ERR_USAGE, "--out %s is one of the files to report on (%s)", out, path);
    }
    return TESS_OK;
}

static enum tess_status report_read_args(struct tess__args *args, struct report_options *options)
{
    TESS_TRY(tess__args_take(args, "out", &options->out));
    TESS_TRY(tess__args_take(args, "title", &options->title));
    for (int i = 0; i < args->count; i++)
        if (args->word[i][0] == '-')
            TESS_FAIL(TESS_ERR_USAGE,
                      "report knows no option %s: it has --out and --title; a folder of that name "
                      "is written ./%s",
                      args->word[i], args->word[i]);
    if (args->count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "report wants run folders, or files of train --trace, compare, scaling or tune "
                  "batch --json: tessera report RUN...");
    if (options->out[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "--out is empty: it wants the name of the file to write");
    for (int i = 0; i < args->count; i++)
        TESS_TRY(report_check_out(options->out, args->word[i]));
    return TESS_OK;
}

static size_t report_count(const struct tess__html *html, const char *part)
{
    size_t count = 0;

    for (const char *at = html->bytes; at != NULL && (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

static enum tess_status report_write(struct tess__args *args, const struct report_options *options)
{
    struct tess__report report = {0};
    struct tess__html html = {0};
    enum tess_status status = TESS_OK;
    char size[TESS__TEXT_BYTES];

    for (int i = 0; i < args->count && status == TESS_OK; i++)
        status = tess__report_load(&report, args->word[i]);
    if (status == TESS_OK)
        status = tess__report_name_runs(&report);
    if (status == TESS_OK)
        status = tess__report_page(&report, options->title, &html);
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

int tess__command_report(int argc, char **argv)
{
    struct report_options options = {REPORT_OUT, REPORT_TITLE};
    struct tess__args args;
    enum tess_status status = tess__args_init(&args, argc, argv);

    if (status == TESS_OK && tess__args_has(&args, "help"))
        return report_help();
    if (status == TESS_OK)
        status = report_read_args(&args, &options);
    if (status == TESS_OK)
        status = report_write(&args, &options);
    return tess_status_exit_code(status);
}
