/* A plan as JSON, a layout as a configuration for train, its step as a time line; see plan.h. */
#include "study/plan.h"

#include "base/file.h"
#include "base/options.h"
#include "core/engine.h"
#include "run/record.h"
#include "run/trace_file.h"
#include "tessera/check.h"
#include "text/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *file_memory(const struct tess__plan_layout *layout)
{
    json_t *memory = json_object();
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        json_object_set_new(memory, tess_memory_kind_name((enum tess_memory_kind)kind),
                            json_integer((json_int_t)layout->memory.bytes[kind]));
    return memory;
}

static json_t *file_options(const struct tess__plan_layout *layout)
{
    json_t *options =
        json_pack("{s:I, s:s, s:b}", "accumulate", (json_int_t)layout->accumulate, "recompute",
                  layout->recompute, "tensor.sequence-parallel", layout->sequence);
    if (layout->schedule != NULL)
        json_object_set_new(options, "schedule", json_string(layout->schedule));
    if (layout->chunks > 0)
        json_object_set_new(options, "chunks", json_integer(layout->chunks));
    if (layout->precision != NULL)
        json_object_set_new(options, "precision", json_string(layout->precision));
    if (layout->extra[0] != '\0') {
        char name[64];
        const size_t length = strcspn(layout->extra, "=");
        snprintf(name, sizeof(name), "%.*s", (int)length, layout->extra);
        json_object_set_new(options, name, json_string(layout->extra + length + 1));
    }
    return options;
}

/* "order": the device of each rank, and the step in the natural order; where it is another one. */
static void file_order(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                       json_t *json)
{
    json_t *device = json_array();
    for (int32_t r = 0; r < plan->cluster.ranks; r++)
        json_array_append_new(device, json_integer(layout->order->device[r]));
    json_object_set_new(json, "order", device);
    json_object_set_new(json, "natural_step_s", tess__json_number(layout->order->natural_s));
}

static json_t *file_layout(const struct tess__plan *plan, const struct tess__plan_layout *layout)
{
    char text[TESS__PLAN_TEXT], limit[TESS_PREDICT_LIMIT];
    json_t *json =
        json_pack("{s:s, s:s, s:{s:i, s:i, s:i}, s:o, s:o, s:o, s:o, s:I, s:o, s:s}", "name",
                  tess__plan_text(layout, text), "strategy", layout->strategy, "mesh", "data",
                  layout->count[TESS_AXIS_DATA], "tensor", layout->count[TESS_AXIS_TENSOR], "stage",
                  layout->count[TESS_AXIS_STAGE], "options", file_options(layout), "step_s",
                  tess__json_number(layout->step_s), "samples_per_s",
                  tess__json_number((double)plan->batch_size / layout->step_s), "memory",
                  file_memory(layout), "memory_total", (json_int_t)layout->memory.total,
                  "exposed_s", tess__json_number(layout->exposed_s), "limited_by",
                  tess_prediction_limit(&layout->loss, layout->step_s, limit));
    if (layout->order != NULL)
        file_order(plan, layout, json);
    if (layout->rounds > 0) {
        json_object_set_new(json, "measured_s", tess__json_number(layout->measured_s));
        json_object_set_new(json, "measured_rounds", json_integer(layout->rounds));
    }
    return json;
}

enum tess_status tess__plan_write_json(const struct tess__plan *plan, const char *path)
{
    json_t *layouts = json_array(), *rejected = json_array();
    for (int64_t i = 0; i < plan->layouts.count; i++)
        if (plan->layouts.item[i].predicted)
            json_array_append_new(layouts, file_layout(plan, &plan->layouts.item[i]));
    for (int32_t i = 0; i < plan->rejected_count; i++)
        json_array_append_new(rejected, json_pack("{s:s, s:s}", "family", plan->rejected[i].family,
                                                  "reason", plan->rejected[i].why));
    return tess__record_write(
        path,
        json_pack("{s:s, s:s, s:i, s:s, s:I, s:I, s:o, s:o, s:o}", "model", plan->model, "device",
                  plan->profile.name, "ranks", plan->cluster.ranks, "cluster", plan->cluster.source,
                  "batch_size", (json_int_t)plan->batch_size, "searched",
                  (json_int_t)plan->searched, "seconds", tess__json_number(plan->seconds),
                  "layouts", layouts, "rejected", rejected));
}

/* ---- YAML ------------------------------------------------------------------------------------ */

struct file_yaml {
    FILE *out;
};

/* What a user or the plan has chosen; all else keeps its default. */
static void file_option(void *context, const char *name, const char *value, const char *origin,
                        const struct tess_option *option)
{
    const struct file_yaml *yaml = context;
    if (strcmp(origin, "default") == 0)
        return;
    if (option->type != TESS_OPTION_STRING) {
        fprintf(yaml->out, "%s: %s\n", name, value);
        return;
    }
    fprintf(yaml->out, "%s: '", name);
    for (; *value != '\0'; value++)
        fprintf(yaml->out, *value == '\'' ? "''" : "%c", *value);
    fprintf(yaml->out, "'\n");
}

enum tess_status tess__plan_write_yaml(const struct tess__plan *plan,
                                       const struct tess__plan_layout *layout, const char *path)
{
    struct tess_config *config = NULL;
    char why[TESS__PLAN_WHY] = "", name[200], order[120], *text = NULL;
    size_t bytes = 0;
    struct file_yaml yaml = {.out = open_memstream(&text, &bytes)};
    enum tess_status status = tess__plan_config(plan, layout, &config, why);
    if (yaml.out == NULL || status != TESS_OK) {
        status = tess_fail(status != TESS_OK ? status : TESS_ERR_MEMORY, "--out %s: %s", path,
                           status != TESS_OK ? why : "no memory");
        goto close_out;
    }
    fprintf(yaml.out,
            "# By tessera plan: %s.\n# A step of %.4g s is predicted, with %llu bytes on the "
            "fullest rank. %s\n",
            tess__plan_name(layout, name), layout->step_s, (unsigned long long)layout->memory.total,
            plan->cluster.source);
    if (layout->rounds > 0)
        fprintf(yaml.out, "# Measured here: %.4g s, in %d rounds.\n", layout->measured_s,
                layout->rounds);
    if (layout->order != NULL)
        fprintf(yaml.out,
                "# With ranks on devices %s. It is %.4g s in the natural order: give train\n"
                "# --topology.file with the description, by which it numbers ranks.\n",
                tess__plan_order_text(plan, layout, order), layout->order->natural_s);
    tess_options_visit(config->options, file_option, &yaml);
    if (fflush(yaml.out) != 0)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for --out %s", path);
    else
        status = tess_file_write(path, text, bytes);

close_out:
    if (yaml.out != NULL)
        fclose(yaml.out);
    free(text);
    tess_config_close(config);
    return status;
}

/* ---- time line ------------------------------------------------------------------------------- */

/* About 180 bytes each in the file. */
#define FILE_EVENTS (1 << 20)

/* Events of a stage as those of step 1, after the step itself: freed by the caller. */
static enum tess_status file_line(const struct tess_prediction_stage *stage,
                                  struct tess__trace_line *line)
{
    struct tess_trace_event *event = calloc((size_t)stage->event_count + 1, sizeof(*event));
    if (event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a time line of %d events", stage->event_count);
    event[0] = (struct tess_trace_event){.kind = TESS_TRACE_PHASE, .what = TESS_TRACE_STEP};
    for (int32_t e = 0; e < stage->event_count; e++) {
        event[e + 1] = stage->event[e];
        if (event[0].end_s < event[e + 1].end_s)
            event[0].end_s = event[e + 1].end_s;
    }
    for (int32_t e = 0; e <= stage->event_count; e++) {
        event[e].step = 1;
        event[e].training = true;
    }
    line->event = event;
    line->count = (uint32_t)stage->event_count + 1;
    line->predicted = stage;
    return TESS_OK;
}

static enum tess_status file_lines(const struct tess_config *config,
                                   const struct tess_prediction *prediction,
                                   struct tess__trace_lines *lines, const char *path)
{
    struct tess__trace_line *line = calloc((size_t)prediction->stage_count, sizeof(*line));
    enum tess_status status =
        line != NULL ? TESS_OK : tess_fail(TESS_ERR_MEMORY, "no memory for --trace %s", path);
    double last_s;
    lines->line = line;
    for (int32_t s = 0; s < prediction->stage_count && status == TESS_OK; s++) {
        const int32_t at[TESS_AXIS_COUNT] = {[TESS_AXIS_STAGE] = s};
        line[s].rank = tess_mesh_rank(&config->mesh, at);
        status = file_line(&prediction->stage[s], &line[s]);
        lines->line_count += status == TESS_OK;
    }
    if (status == TESS_OK)
        status = tess__trace_put(lines, path, &last_s);
    for (int32_t i = 0; i < lines->line_count; i++)
        free((void *)(uintptr_t)line[i].event);
    free(line);
    return status;
}

enum tess_status tess__plan_write_trace(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout, const char *path)
{
    struct tess_config *config = NULL;
    struct tess_engine *engine = NULL;
    struct tess_prediction prediction = {0};
    struct tess_network network;
    char why[TESS__PLAN_WHY] = "";
    enum tess_status status = tess__plan_config(plan, layout, &config, why);
    if (status != TESS_OK)
        TESS_FAIL(status, "--trace %s: %s", path, why);
    struct tess__trace_lines lines = {.model = config->model->name,
                                      .strategy = config->run.strategy,
                                      .predicted = true,
                                      .ranks = (int32_t)config->run.ranks};
    tess_network_make(&plan->cluster, &config->mesh, &network);
    if (layout->order != NULL)
        network = layout->order->network;
    TESS_TRY_GOTO(status, close_config, tess_engine_plan(config, plan->dataset, 0, &engine));
    lines.unit = tess_engine_unit_names(engine, &lines.unit_count);
    TESS_TRY_GOTO(status, close_engine,
                  tess_predict_timeline(config, plan->dataset, &plan->profile, &network,
                                        FILE_EVENTS / layout->count[TESS_AXIS_STAGE], &prediction));
    status = file_lines(config, &prediction, &lines, path);
    tess_prediction_fini(&prediction);

close_engine:
    tess_engine_close(engine);
close_config:
    tess_config_close(config);
    return status;
}
