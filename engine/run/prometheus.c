/*
 * https://prometheus.io/docs/instrumenting/exposition_formats/: of each metric a HELP and a TYPE
 * line, then a line for each of its label sets. Numbers have all their digits, so they are those of
 * metrics.jsonl. What is unknown is left out.
 */
#include "run/prometheus.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log_sink.h"
#include "job/saving.h"
#include "run/mfu.h"
#include "run/record.h"
#include "run/scrape.h"
#include "run/slow.h"
#include "tessera/check.h"
#include "tessera/version.h"
#include "text/words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMETHEUS_FILE_S 1.0 /* between two writes of the file */

struct tess__prometheus {
    const struct tess__run *run;
    struct tess__scrape *scrape; /* NULL: a file */
    char place[512];
    struct tess__run_step step;
    struct tess__run_epoch epoch; /* its loss; NaN: none has ended */
    double val_loss, val_accuracy;
    struct tess__run_saved saved; /* the latest that succeeded */
    int64_t saves, failed;
    const struct tess__slow *slow; /* NULL: no window of steps so far */
    const char *const *host;       /* [ranks] */
    bool changed, broken;          /* since the file was written; it cannot be written */
    double due_s;
};

/* ---- text ------------------------------------------------------------------------------------ */

static void prometheus_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP tessera_%s %s\n# TYPE tessera_%s %s\n", name, help, name, type);
}

static void prometheus_value(FILE *out, const char *name, const char *type, const char *help,
                             double value)
{
    if (isnan(value))
        return;
    prometheus_head(out, name, type, help);
    fprintf(out, "tessera_%s %.17g\n", name, value);
}

static void prometheus_gauge(FILE *out, const char *name, const char *help, double value)
{
    prometheus_value(out, name, "gauge", help, value);
}

/* A label's value, in quotes. */
static void prometheus_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            fputc('\\', out);
        if (*value == '\n')
            fputs("\\n", out);
        else
            fputc(*value, out);
    }
    fputc('"', out);
}

static void prometheus_run(const struct tess__run *run, FILE *out)
{
    const struct tess_config *config = run->config;
    prometheus_head(out, "run_info", "gauge", "What is trained, and how.");
    fputs("tessera_run_info{", out);
    prometheus_label(out, "version", TESS_VERSION);
    prometheus_label(out, ",model", config->model->name);
    prometheus_label(out, ",strategy", config->run.strategy);
    prometheus_label(out, ",precision", tess_dtype_name(tess_run_dtype(&config->run)));
    fprintf(out, ",ranks=\"%d\"} 1\n", run->rank_count);
    prometheus_gauge(out, "steps", "Steps of the whole run.",
                     (double)tess_engine_step_count(run->planned));
    prometheus_head(out, "memory_bytes", "gauge", "Memory of a rank by kind.");
    for (int32_t r = 0; r < run->rank_count; r++)
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
            fprintf(out, "tessera_memory_bytes{rank=\"%d\",kind=\"%s\"} %llu\n", r,
                    tess_memory_kind_name((enum tess_memory_kind)k),
                    (unsigned long long)tess__run_predicted(run, r)->bytes[k]);
}

static void prometheus_waits(const struct tess__run_step *step, FILE *out)
{
    static const char *const part[] = {"forward", "backward", "optimizer"};
    const double wait_s[] = {step->wait_forward_s, step->wait_backward_s, step->wait_optim_s};
    prometheus_head(out, "exposed_seconds_total", "counter",
                    "Time in which rank 0 waited for others, by the part of a step.");
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        fprintf(out, "tessera_exposed_seconds_total{part=\"%s\"} %.17g\n", part[i], wait_s[i]);
    prometheus_head(out, "exposed_axis_seconds_total", "counter",
                    "Time in which rank 0 waited for others, by the axis of the mesh.");
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        fprintf(out, "tessera_exposed_axis_seconds_total{axis=\"%s\"} %.17g\n",
                tess__record_axis_name[axis], step->wait_axis_s[axis]);
}

static void prometheus_step(const struct tess__prometheus *prometheus, FILE *out)
{
    const struct tess__run_step *step = &prometheus->step;
    const struct tess_step_result *result = &step->result;
    const struct tess__words words = tess__words_of(prometheus->run->dataset);
    prometheus_gauge(out, "step", "Latest recorded step, from 1.", (double)result->step);
    if (result->step == 0)
        return;
    prometheus_gauge(out, "epoch", "Its epoch, from 0.", (double)result->epoch);
    prometheus_gauge(out, "loss", "Its loss.", result->loss);
    prometheus_gauge(out, "learning_rate", "Its learning rate.", result->rate);
    prometheus_gauge(out, "gradient_norm", "Norm of its gradient, before clipping.",
                     result->grad_norm < 0 ? NAN : result->grad_norm);
    prometheus_gauge(out, "loss_scale", "Factor on its loss.", result->loss_scale);
    prometheus_value(out, "skipped_steps_total", "counter",
                     "Steps whose gradients were not finite.", (double)result->skipped_count);
    prometheus_gauge(out, "samples_per_second", "Since the latest line of the log.",
                     step->samples_per_s);
    if (words.tokens)
        prometheus_gauge(out, "tokens_per_second", "Since the latest line of the log.",
                         words.rate_of_row * step->samples_per_s);
    prometheus_gauge(out, "mfu", "Share of the devices' peak that the model uses.",
                     tess__mfu_at(prometheus->run, step->samples_per_s).mfu);
    prometheus_gauge(out, "communication_share",
                     "Share of that time in which rank 0 waited for others.", step->comm_share);
    prometheus_gauge(out, "elapsed_seconds", "Since the first step began.", step->elapsed_s);
    prometheus_waits(step, out);
}

static void prometheus_saves(const struct tess__prometheus *prometheus, FILE *out)
{
    const struct tess__run_saved *saved = &prometheus->saved;
    prometheus_head(out, "saves_total", "counter", "Checkpoints, by result.");
    fprintf(out,
            "tessera_saves_total{result=\"saved\"} %lld\n"
            "tessera_saves_total{result=\"failed\"} %lld\n",
            (long long)prometheus->saves, (long long)prometheus->failed);
    if (prometheus->saves == 0)
        return;
    prometheus_gauge(out, "saved_step", "Step of the latest checkpoint.", (double)saved->step);
    prometheus_gauge(out, "save_copy_seconds", "Time of training that it took.", saved->copy_s);
    prometheus_gauge(out, "save_write_seconds", "Time that writing it took, beside training.",
                     saved->write_s);
}

/* One gauge of every rank, or of every link. */
static void prometheus_of_rank(const struct tess__prometheus *prometheus, FILE *out, int32_t rank,
                               const char *name, double value)
{
    if (isnan(value))
        return;
    fprintf(out, "tessera_%s{rank=\"%d\",", name, rank);
    prometheus_label(out, "host", prometheus->host[rank]);
    fprintf(out, "} %.17g\n", value);
}

static void prometheus_ranks(const struct tess__prometheus *prometheus, FILE *out)
{
    const int32_t count = prometheus->run->rank_count;
    prometheus_head(out, "rank_own_seconds", "gauge",
                    "Time of a step in which a rank waits for no other one.");
    for (int32_t r = 0; r < count; r++)
        prometheus_of_rank(prometheus, out, r, "rank_own_seconds",
                           tess__slow_rank_of(prometheus->slow, r)->own_s);
    prometheus_head(out, "rank_score", "gauge", "That against the median of ranks like it.");
    for (int32_t r = 0; r < count; r++)
        prometheus_of_rank(prometheus, out, r, "rank_score",
                           tess__slow_rank_of(prometheus->slow, r)->score);
    prometheus_head(out, "rank_late", "gauge", "1: it holds the others up.");
    for (int32_t r = 0; r < count; r++)
        prometheus_of_rank(prometheus, out, r, "rank_late",
                           tess__slow_rank_of(prometheus->slow, r)->late);
}

static void prometheus_links(const struct tess__prometheus *prometheus, FILE *out)
{
    static const char *const name[] = {"link_bytes_per_second", "link_score", "link_slow"};
    static const char *const help[] = {"Speed of a link while bytes are under way.",
                                       "That against links like it, and its own first windows.",
                                       "1: it holds the ranks up."};
    struct tess__slow_link link;
    if (!tess__slow_link_of(prometheus->slow, 0, &link))
        return;
    for (int k = 0; k < 3; k++) {
        prometheus_head(out, name[k], "gauge", help[k]);
        for (int32_t i = 0; tess__slow_link_of(prometheus->slow, i, &link); i++) {
            const double value[] = {link.bytes_per_s, link.score, link.slow};
            if (!isnan(value[k]))
                fprintf(out, "tessera_%s{from=\"%d\",to=\"%d\"} %.17g\n", name[k], link.from,
                        link.to, value[k]);
        }
    }
}

static void prometheus_pace(const struct tess__prometheus *prometheus, FILE *out)
{
    if (!prometheus->slow)
        return;
    prometheus_gauge(out, "stragglers", "Ranks and links that hold the others up.",
                     tess__slow_count(prometheus->slow));
    prometheus_ranks(prometheus, out);
    prometheus_links(prometheus, out);
}

/* To be freed; NULL without memory. */
static char *prometheus_page(void *context)
{
    const struct tess__prometheus *prometheus = context;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    prometheus_run(prometheus->run, out);
    prometheus_step(prometheus, out);
    prometheus_gauge(out, "epoch_loss", "Mean loss of the latest epoch that ended.",
                     prometheus->epoch.loss);
    prometheus_gauge(out, "validation_loss", "Of the latest evaluation.", prometheus->val_loss);
    prometheus_gauge(out, "validation_accuracy", "Of the latest evaluation, 0 to 1.",
                     prometheus->val_accuracy);
    prometheus_saves(prometheus, out);
    prometheus_pace(prometheus, out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

/* ---- what ranks report ----------------------------------------------------------------------- */

void tess__prometheus_step(struct tess__prometheus *prometheus, const struct tess__run_step *step)
{
    if (!prometheus)
        return;
    prometheus->step = *step;
    prometheus->changed = true;
}

void tess__prometheus_epoch(struct tess__prometheus *prometheus,
                            const struct tess__run_epoch *epoch)
{
    if (!prometheus)
        return;
    prometheus->epoch = *epoch;
    prometheus->changed = true;
    if (isnan(epoch->val_loss))
        return;
    prometheus->val_loss = epoch->val_loss;
    prometheus->val_accuracy = epoch->val_accuracy;
}

void tess__prometheus_validation(struct tess__prometheus *prometheus,
                                 const struct tess__run_validation *validation)
{
    if (!prometheus)
        return;
    prometheus->val_loss = validation->loss;
    prometheus->val_accuracy = validation->accuracy;
    prometheus->changed = true;
}

void tess__prometheus_saved(struct tess__prometheus *prometheus,
                            const struct tess__run_saved *saved)
{
    if (!prometheus)
        return;
    prometheus->changed = true;
    if (!saved->saved) {
        prometheus->failed++;
        return;
    }
    prometheus->saves++;
    prometheus->saved = *saved;
}

void tess__prometheus_pace(struct tess__prometheus *prometheus, const struct tess__slow *slow,
                           const char *const *host)
{
    if (!prometheus)
        return;
    prometheus->slow = slow;
    prometheus->host = host;
    prometheus->changed = true;
}

/* ---- file and server ------------------------------------------------------------------------- */

static void prometheus_write(struct tess__prometheus *prometheus)
{
    prometheus->due_s = tess_clock_s() + PROMETHEUS_FILE_S;
    prometheus->changed = false;
    char *text = prometheus_page(prometheus);
    if (!text)
        return;
    const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
    const enum tess_status status = tess_file_write(prometheus->place, text, strlen(text));
    tess__log_redirect(former);
    free(text);
    prometheus->broken = status != TESS_OK;
    if (prometheus->broken)
        tess_log(TESS_LOG_WARN, "--prometheus: %s; the file is not written from here on",
                 tess_log_last_error());
}

void tess__prometheus_tick(struct tess__prometheus *prometheus)
{
    if (!prometheus)
        return;
    if (prometheus->scrape)
        tess__scrape_serve(prometheus->scrape, prometheus_page, prometheus);
    else if (prometheus->changed && !prometheus->broken && tess_clock_s() >= prometheus->due_s)
        prometheus_write(prometheus);
}

/* PORT, HOST:PORT or [HOST]:PORT. */
static enum tess_status prometheus_listen(struct tess__prometheus *prometheus, const char *where)
{
    const char *colon = strrchr(where, ':'), *digits = colon ? colon + 1 : where;
    const size_t count = strlen(digits);
    const bool bracket = colon > where && where[0] == '[' && colon[-1] == ']';
    char host[256] = "";
    if ((where[0] == '[' && !bracket) || count == 0 || count > 5 ||
        strspn(digits, "0123456789") != count || atoi(digits) > 65535 ||
        (size_t)(digits - where) > sizeof(host) || colon == where)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--prometheus %s: expected a port (9400), an address and a port (0.0.0.0:9400, "
                  "[::1]:9400) or a file that ends in .prom",
                  where);
    if (colon)
        snprintf(host, sizeof(host), "%.*s", (int)(colon - where) - 2 * bracket, where + bracket);
    TESS_TRY(tess__scrape_open(host, atoi(digits), "--prometheus", &prometheus->scrape));
    snprintf(prometheus->place, sizeof(prometheus->place), "http://%s%s%s:%d/metrics",
             bracket ? "[" : "", host[0] ? host : "127.0.0.1", bracket ? "]" : "",
             tess__scrape_port(prometheus->scrape));
    return TESS_OK;
}

static enum tess_status prometheus_open(struct tess__prometheus *prometheus, const char *where)
{
    const size_t length = strlen(where);
    if (length < 5 || strcmp(where + length - 5, ".prom") != 0)
        return prometheus_listen(prometheus, where);
    if (length >= sizeof(prometheus->place))
        TESS_FAIL(TESS_ERR_USAGE, "--prometheus: the name of the file is too long");
    memcpy(prometheus->place, where, length + 1);
    return tess_file_check(where, TESS_FILE_WHOLE, "--prometheus");
}

enum tess_status tess__prometheus_open(const char *where, const struct tess__run *run,
                                       struct tess__prometheus **prometheus_out)
{
    *prometheus_out = NULL;
    if (!where[0])
        return TESS_OK;
    struct tess__prometheus *prometheus = calloc(1, sizeof(*prometheus));
    if (!prometheus)
        TESS_FAIL(TESS_ERR_MEMORY, "--prometheus: no memory");
    prometheus->run = run;
    prometheus->changed = true;
    prometheus->epoch.loss = prometheus->val_loss = prometheus->val_accuracy = NAN;
    const enum tess_status status = prometheus_open(prometheus, where);
    if (status != TESS_OK)
        free(prometheus);
    else
        *prometheus_out = prometheus;
    return status;
}

const char *tess__prometheus_place(const struct tess__prometheus *prometheus)
{
    return prometheus->place;
}

void tess__prometheus_close(struct tess__prometheus *prometheus)
{
    if (!prometheus)
        return;
    if (!prometheus->scrape && prometheus->changed && !prometheus->broken)
        prometheus_write(prometheus);
    tess__scrape_close(prometheus->scrape);
    free(prometheus);
}
