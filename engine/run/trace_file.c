/*
 * Time lines as a file. A rank is a process of the format, what it does are threads:
 *
 *     1 steps   2 compute   3 waiting   4 communication   5 communication 2 ...
 *
 * Slices of one thread may not overlap, calls do: each goes to the first communication thread that
 * is free. Memory of a predicted step is a counter beside them, in bytes by what they are for, and
 * another one, with one value, of the arena. A slice that never ended (the rank died or was stopped
 * in it) is drawn to the last moment of the recording and marked as unfinished.
 */
#include "run/trace_file.h"

#include "base/clock.h"
#include "base/file.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 80 bytes an event in memory, about 180 in the file: 20 MB a rank, and no more than 400 MB of text
 * for any number of ranks. */
#define EVENTS_PER_RANK (UINT32_C(1) << 18)
#define EVENTS_TOTAL    (UINT32_C(1) << 21)

enum trace_thread { THREAD_STEPS = 1, THREAD_COMPUTE, THREAD_WAITING, THREAD_CALLS };

/* Communication threads in use at most; a call beyond them is drawn over the last one. */
#define CALL_THREADS_MAX 256

struct trace_writer {
    FILE *stream;
    const struct tess__trace_lines *lines;
    double last_s; /* the recording ends */
    int32_t rank;
    bool begun; /* an event is in the file */
    double call_end_s[CALL_THREADS_MAX];
    int32_t call_threads;
};

/* ---- before the run -------------------------------------------------------------------------- */

enum tess_status tess__trace_open(struct tess__run *run, int64_t first, int64_t steps,
                                  struct tess_trace **trace_out)
{
    uint32_t share = EVENTS_TOTAL / (uint32_t)run->rank_count;
    int64_t step_count = tess_engine_step_count(run->planned);
    if (first > step_count)
        TESS_FAIL(TESS_ERR_USAGE, "--trace-first %lld: the run has %lld steps only",
                  (long long)first, (long long)step_count);
    return tess_trace_open(run->rank_count, share < EVENTS_PER_RANK ? share : EVENTS_PER_RANK,
                           first, steps, trace_out);
}

/* ---- events ---------------------------------------------------------------------------------- */

static double trace_us(const struct trace_writer *writer, double time_s)
{
    return 1e6 * (time_s - writer->lines->origin_s);
}

/* Names come from models: what JSON does not take, or is not ASCII, is replaced. */
static void trace_put_name(FILE *stream, const char *name)
{
    for (; *name; name++) {
        unsigned char c = (unsigned char)*name;
        fputc(c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : c, stream);
    }
}

static void trace_next(struct trace_writer *writer)
{
    fputs(writer->begun ? ",\n" : "\n", writer->stream);
    writer->begun = true;
}

/* Name and place of a "process" or a "thread" of the format. */
static void trace_put_lane_name(struct trace_writer *writer, const char *what, int32_t thread,
                                int32_t place, const char *name)
{
    for (int i = 0; i < 2; i++) {
        trace_next(writer);
        fprintf(writer->stream, "{\"name\":\"%s_%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,", what,
                i == 0 ? "name" : "sort_index", writer->rank, thread);
        if (i == 0)
            fprintf(writer->stream, "\"args\":{\"name\":\"%s\"}}", name);
        else
            fprintf(writer->stream, "\"args\":{\"sort_index\":%d}}", place);
    }
}

static void trace_put_thread(struct trace_writer *writer, int32_t thread, const char *name)
{
    trace_put_lane_name(writer, "thread", thread, thread, name);
}

static void trace_put_call_thread(struct trace_writer *writer, int32_t index)
{
    char name[40];
    snprintf(name, sizeof(name), index == 0 ? "communication" : "communication %d", index + 1);
    trace_put_thread(writer, THREAD_CALLS + index, name);
}

static void trace_put_rank(struct trace_writer *writer)
{
    char name[40];
    snprintf(name, sizeof(name), "rank %d", writer->rank);
    trace_put_lane_name(writer, "process", THREAD_STEPS, writer->rank, name);
    trace_put_thread(writer, THREAD_STEPS, "steps");
    trace_put_thread(writer, THREAD_COMPUTE, "compute");
    trace_put_thread(writer, THREAD_WAITING, "waiting");
    trace_put_call_thread(writer, 0);
    writer->call_threads = 1;
    writer->call_end_s[0] = 0;
}

/* The first communication thread that is free at the event's begin. */
static int32_t trace_call_thread(struct trace_writer *writer, double begin_s, double end_s)
{
    int32_t thread = 0;
    while (thread < writer->call_threads && writer->call_end_s[thread] > begin_s)
        thread++;
    if (thread == CALL_THREADS_MAX)
        thread--;
    if (thread == writer->call_threads) {
        trace_put_call_thread(writer, thread);
        writer->call_threads++;
    }
    writer->call_end_s[thread] = end_s;
    return THREAD_CALLS + thread;
}

static void trace_put_doing_name(const struct trace_writer *writer,
                                 const struct tess_trace_event *event)
{
    static const char *const text[TESS_DOING_COUNT] = {
        [TESS_DOING_STARTING] = "starting",   [TESS_DOING_LOADING] = "loading",
        [TESS_DOING_FORWARD] = "forward",     [TESS_DOING_LOSS] = "loss",
        [TESS_DOING_BACKWARD] = "backward",   [TESS_DOING_REDUCING] = "gradients",
        [TESS_DOING_OPTIMIZER] = "optimizer", [TESS_DOING_EVALUATING] = "evaluating",
        [TESS_DOING_INPUT] = "input of",      [TESS_DOING_GRADIENT] = "gradient of",
    };
    fputs(text[event->what] ? text[event->what] : "other", writer->stream);
    if (event->unit >= 0 && event->unit < writer->lines->unit_count) {
        fputc(' ', writer->stream);
        trace_put_name(writer->stream, writer->lines->unit[event->unit]);
    }
}

static void trace_put_args(FILE *stream, const struct tess_trace_event *event)
{
    fprintf(stream, "\"args\":{\"step\":%" PRId64, event->step);
    if (event->kind == TESS_TRACE_CALL || event->kind == TESS_TRACE_WAIT) {
        fprintf(stream,
                ",\"call\":%" PRIu32 ",\"bytes\":%" PRIu64
                ",\"dtype\":\"%s\",\"ranks\":%d,\"site\":\"",
                event->call, event->bytes, tess_dtype_name((enum tess_dtype)event->dtype),
                event->rank_count);
        trace_put_name(stream, event->site);
        fputc('"', stream);
    }
    if (event->kind == TESS_TRACE_DOING)
        fprintf(stream, ",\"training\":%s", event->training ? "true" : "false");
    if (event->end_s == 0)
        fputs(",\"unfinished\":true", stream);
    fputc('}', stream);
}

static void trace_put_event(struct trace_writer *writer, const struct tess_trace_event *event)
{
    static const char *const phase[] = {"step", "evaluation after step", "digest after step"};
    static const char *const category[] = {"step", "compute", "communication", "waiting"};
    static const int32_t threads[] = {THREAD_STEPS, THREAD_COMPUTE, THREAD_CALLS, THREAD_WAITING};
    FILE *stream = writer->stream;
    double end_s = event->end_s > 0 ? event->end_s : fmax(writer->last_s, event->begin_s);
    int32_t thread = threads[event->kind];
    if (event->kind == TESS_TRACE_CALL)
        thread = trace_call_thread(writer, event->begin_s, end_s);
    trace_next(writer);
    fputs("{\"name\":\"", stream);
    if (event->kind == TESS_TRACE_PHASE)
        fprintf(stream, "%s %" PRId64, phase[event->what], event->step);
    else if (event->kind == TESS_TRACE_DOING)
        trace_put_doing_name(writer, event);
    else
        fputs(tess_collective_name((enum tess_collective)event->what), stream);
    fprintf(stream,
            "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,",
            category[event->kind], writer->rank, thread, trace_us(writer, event->begin_s),
            1e6 * (end_s - event->begin_s));
    trace_put_args(stream, event);
    fputc('}', stream);
}

/* ---- the file -------------------------------------------------------------------------------- */

static double trace_last_s(const struct tess__trace_lines *lines)
{
    double last_s = lines->origin_s;
    for (int32_t i = 0; i < lines->line_count; i++) {
        const struct tess__trace_line *line = &lines->line[i];
        for (uint32_t e = 0; e < line->count; e++)
            last_s = fmax(last_s, fmax(line->event[e].begin_s, line->event[e].end_s));
    }
    return last_s;
}

static void trace_begin_counter(struct trace_writer *writer, const char *name, double at_s)
{
    trace_next(writer);
    fprintf(writer->stream, "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{", name,
            writer->rank, trace_us(writer, at_s));
}

static void trace_put_series(struct trace_writer *writer, const uint64_t *bytes, int count,
                             const uint64_t *most)
{
    bool begun = false;
    for (int series = 0; series < count; series++) {
        if (most[series] == 0) /* all the time */
            continue;
        fprintf(writer->stream, "%s\"%s\":%" PRIu64, begun ? "," : "",
                tess_prediction_series_name(series), bytes[series]);
        begun = true;
    }
    fputs("}}", writer->stream);
}

static void trace_put_memory(struct trace_writer *writer, const struct tess_prediction_stage *stage)
{
    if (stage->live_count == 0)
        return;
    trace_begin_counter(writer, "memory of the arena", writer->lines->origin_s);
    trace_put_series(writer, stage->memory, TESS_MEMORY_STAGING, stage->memory);
    for (int32_t i = 0; i < stage->live_count; i++) {
        trace_begin_counter(writer, "memory in use", stage->live[i].at_s);
        trace_put_series(writer, stage->live[i].bytes, TESS_PREDICT_SERIES, stage->live_most);
    }
}

static void trace_put_line(struct trace_writer *writer, const struct tess__trace_line *line)
{
    writer->rank = line->rank;
    trace_put_rank(writer);
    if (line->predicted != NULL)
        trace_put_memory(writer, line->predicted);
    for (uint32_t e = 0; e < line->count; e++)
        trace_put_event(writer, &line->event[e]);
    if (line->full_s == 0)
        return;
    trace_next(writer);
    fprintf(writer->stream,
            "{\"name\":\"time line full in step %" PRId64 "\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,"
            "\"tid\":%d,\"ts\":%.3f,\"args\":{\"step\":%" PRId64 "}}",
            line->full_step, writer->rank, THREAD_STEPS, trace_us(writer, line->full_s),
            line->full_step);
}

static void trace_put_file(struct trace_writer *writer)
{
    const struct tess__trace_lines *lines = writer->lines;
    fprintf(writer->stream,
            "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"version\":\"tessera %s\",\"model\":\"",
            TESS_VERSION);
    trace_put_name(writer->stream, lines->model);
    fputs("\",\"strategy\":\"", writer->stream);
    trace_put_name(writer->stream, lines->strategy);
    fprintf(writer->stream, "\",\"ranks\":\"%d\"%s},\n\"traceEvents\":[", lines->ranks,
            lines->predicted ? ",\"predicted\":\"true\"" : "");
    for (int32_t i = 0; i < lines->line_count; i++)
        trace_put_line(writer, &lines->line[i]);
    fputs("\n]}\n", writer->stream);
}

enum tess_status tess__trace_put(const struct tess__trace_lines *lines, const char *path,
                                 double *last_s_out)
{
    struct trace_writer writer = {.lines = lines, .last_s = trace_last_s(lines)};
    char *text = NULL;
    size_t bytes = 0;
    writer.stream = open_memstream(&text, &bytes);
    if (!writer.stream)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the text of the time lines");
    trace_put_file(&writer);
    const bool failed = ferror(writer.stream) != 0;
    const enum tess_status status =
        fclose(writer.stream) != 0 || failed
            ? tess_fail(TESS_ERR_MEMORY,
                        "no memory for the text of the time lines: take fewer --trace-steps")
            : tess_file_write(path, text, bytes);
    free(text);
    *last_s_out = writer.last_s;
    return status;
}

/* ---- a run's --------------------------------------------------------------------------------- */

static void trace_print_end(const struct tess__trace_lines *lines, const char *path, double seconds)
{
    printf("\ntime lines of %.3f s in %s, for ui.perfetto.dev or chrome://tracing\n", seconds,
           path);
    for (int32_t i = 0; i < lines->line_count; i++)
        if (lines->line[i].full_s > 0)
            printf("rank %d's time line was full in step %" PRId64
                   " and ends there: take fewer --trace-steps\n",
                   lines->line[i].rank, lines->line[i].full_step);
    fflush(stdout);
}

enum tess_status tess__trace_write(const struct tess__run *run, const char *path)
{
    struct tess__trace_lines lines = {.model = run->config->model->name,
                                      .strategy = run->config->run.strategy,
                                      .ranks = run->rank_count,
                                      .origin_s = tess_trace_origin_s(run->trace),
                                      .line_count = run->rank_count};
    struct tess__trace_line *line = calloc((size_t)run->rank_count, sizeof(*line));
    double last_s = 0;
    if (line == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the time lines");
    lines.unit = tess_engine_unit_names(run->planned, &lines.unit_count);
    lines.line = line;
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess_trace_lane *lane = tess_trace_lane(run->trace, r);
        line[r].rank = r;
        line[r].event = tess_trace_events(lane, &line[r].count);
        line[r].full_s = tess_trace_full_s(lane, &line[r].full_step);
    }
    const enum tess_status status = tess__trace_put(&lines, path, &last_s);
    if (status == TESS_OK)
        trace_print_end(&lines, path, last_s - lines.origin_s);
    free(line);
    return status;
}
