/* A plan as JSON, and a layout as a configuration for train; see plan.h. */
#include "study/plan.h"

#include "base/file.h"
#include "base/options.h"
#include "run/record.h"
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
    return options;
}

static json_t *file_layout(const struct tess__plan *plan, const struct tess__plan_layout *layout)
{
    return json_pack("{s:s, s:{s:i, s:i, s:i}, s:o, s:o, s:o, s:o, s:I, s:o, s:s}", "strategy",
                     layout->strategy, "mesh", "data", layout->count[TESS_AXIS_DATA], "tensor",
                     layout->count[TESS_AXIS_TENSOR], "stage", layout->count[TESS_AXIS_STAGE],
                     "options", file_options(layout), "step_s", tess__json_number(layout->step_s),
                     "samples_per_s", tess__json_number((double)plan->batch_size / layout->step_s),
                     "memory", file_memory(layout), "memory_total",
                     (json_int_t)layout->memory.total, "exposed_s",
                     tess__json_number(layout->exposed_s), "limited_by", layout->limited_by);
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
    return tess__record_write(path, json_pack("{s:I, s:o, s:o, s:o}", "searched",
                                              (json_int_t)plan->searched, "seconds",
                                              tess__json_number(plan->seconds), "layouts", layouts,
                                              "rejected", rejected));
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
    char why[TESS__PLAN_WHY] = "", name[200], *text = NULL;
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
