/* What runs report, as JSON: the fields that metrics.jsonl and compare --json promise. */
#include "run/record.h"
#include "text/json.h"

#include "base/options.h"
#include "run/bubble.h"
#include "run/memory_table.h"
#include "run/metrics.h"
#include "run/mfu.h"
#include "state/declare.h"
#include "tessera/check.h"
#include "tessera/version.h"
#include "text/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const tess__record_axis_name[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};

static json_t *record_bytes(int64_t bytes)
{
    return bytes >= 0 ? json_integer((json_int_t)bytes) : json_null();
}

json_t *tess__record_device(const struct tess_watch_sample *sample)
{
    json_t *processes = json_array();
    for (int32_t p = 0; p < sample->process_count; p++)
        json_array_append_new(processes,
                              json_pack("{s:i, s:o}", "pid", sample->process[p].pid, "memory_bytes",
                                        record_bytes(sample->process[p].memory_bytes)));
    return json_pack(
        "{s:i, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "device", sample->index, "name", sample->name, "bus", sample->bus, "gpu_percent",
        tess__json_number(sample->gpu_percent), "memory_percent",
        tess__json_number(sample->memory_percent), "memory_used_bytes",
        record_bytes(sample->memory_used_bytes), "memory_total_bytes",
        record_bytes(sample->memory_total_bytes), "sm_mhz", tess__json_number(sample->sm_mhz),
        "memory_mhz", tess__json_number(sample->memory_mhz), "power_w",
        tess__json_number(sample->power_w), "power_limit_w",
        tess__json_number(sample->power_limit_w), "temperature_c",
        tess__json_number(sample->temperature_c), "throttle", record_bytes(sample->throttle),
        "link_tx_bytes_per_s", tess__json_number(sample->link_tx_bytes_per_s),
        "link_rx_bytes_per_s", tess__json_number(sample->link_rx_bytes_per_s), "processes",
        processes);
}

void tess__record_rate(json_t *object, const struct tess_dataset *dataset, double samples_per_s)
{
    struct tess__words words = tess__words_of(dataset);
    if (words.tokens)
        json_object_set_new(object, "tokens_per_s",
                            tess__json_number(words.rate_of_row * samples_per_s));
}

/* Of text, beside "val_loss". */
static void record_perplexity(json_t *object, const struct tess__run *run, double val_loss)
{
    if (run->dataset->tokens)
        json_object_set_new(object, "val_perplexity", tess__json_number(exp(val_loss)));
}

json_t *tess__record_mesh(const struct tess__run *run)
{
    const int32_t *count = run->config->mesh.count;
    return json_pack("{s:i, s:i, s:i}", "data", count[TESS_AXIS_DATA], "tensor",
                     count[TESS_AXIS_TENSOR], "stage", count[TESS_AXIS_STAGE]);
}

json_int_t tess__record_sample_tokens(const struct tess_dataset *dataset)
{
    return dataset->tokens ? (json_int_t)dataset->row.dim[0] : 0;
}

static const char *record_precision(const struct tess__run *run)
{
    return tess_dtype_name(tess_run_dtype(&run->config->run));
}

static void record_option(void *context, const char *name, const char *value, const char *origin,
                          const struct tess_option *option)
{
    (void)origin;
    (void)option;
    /* A value that is not UTF-8, such as a folder's name, is left out rather than the whole line.
     */
    json_object_set_new(context, name, json_string(value));
}

/* The fingerprints of what is trained on, and its name: without it, where that is not UTF-8. */
static json_t *record_data(const struct tess__run *run)
{
    const struct tess_dataset *dataset = run->dataset;
    char train[TESS__DATA_ID_BYTES], test[TESS__DATA_ID_BYTES];
    json_t *data =
        json_pack("{s:s, s:s}", "train", tess__data_id_text(dataset, &dataset->train, train),
                  "validation", tess__data_id_text(dataset, &dataset->test, test));
    json_object_set_new(data, "set", json_string(run->config->run.data));
    return data;
}

/* Do ranks take turns on the processors? Then a part of their waiting is for those. */
static json_t *record_shared_cores(const struct tess__run *run)
{
    return json_boolean(run->crowded && run->config->device.module == NULL);
}

json_t *tess__record_head(const struct tess__run *run)
{
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    json_t *options = json_object();
    if (!options)
        return NULL;
    tess_options_visit(run->config->options, record_option, options);
    return json_pack("{s:{s:s, s:s, s:s, s:o, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, "
                     "s:s, s:o, s:o}}",
                     "run", "version", TESS_VERSION, "model", run->config->model->name, "strategy",
                     run->config->run.strategy, "mesh", tess__record_mesh(run), "kernel",
                     run->config->kernel->name, "ranks", run->rank_count, "grid", plan->grid,
                     "classes", run->dataset->class_count, "parameters",
                     (json_int_t)tess_engine_model_size(run->planned), "steps",
                     (json_int_t)tess_engine_step_count(run->planned), "steps_per_epoch",
                     (json_int_t)tess_engine_steps_per_epoch(run->planned), "batch_size",
                     (json_int_t)run->config->run.batch_size, "sample_tokens",
                     tess__record_sample_tokens(run->dataset), "learning_rate",
                     tess__json_number(run->config->optim.learning_rate), "precision",
                     record_precision(run), "data", record_data(run), "options", options);
}

json_t *tess__record_step(const struct tess__run *run, const struct tess__run_step *step)
{
    const struct tess_step_result *result = &step->result;
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o}", "step",
        (json_int_t)result->step, "epoch", (json_int_t)result->epoch, "loss",
        tess__json_number(result->loss), "accuracy", tess__json_number(result->accuracy), "rate",
        tess__json_number(result->rate), "grad_norm",
        result->grad_norm < 0 ? json_null() : tess__json_number(result->grad_norm), "samples_per_s",
        tess__json_number(step->samples_per_s), "comm_share", tess__json_number(step->comm_share),
        "elapsed_s", tess__json_number(step->elapsed_s), "loss_scale",
        tess__json_number(result->loss_scale), "skipped", (json_int_t)result->skipped_count,
        "zero_share", tess__json_number(result->zero_share), "loss_zero_share",
        tess__json_number(result->loss_zero_share));
    json_object_set_new(object, "exposed_s",
                        json_pack("{s:o, s:o, s:o}", "forward",
                                  tess__json_number(step->wait_forward_s), "backward",
                                  tess__json_number(step->wait_backward_s), "optimizer",
                                  tess__json_number(step->wait_optim_s)));
    json_t *axes = json_object();
    for (int axis = 0; axes && axis < TESS_AXIS_COUNT; axis++)
        json_object_set_new(axes, tess__record_axis_name[axis],
                            tess__json_number(step->wait_axis_s[axis]));
    json_object_set_new(object, "exposed_axis_s", axes);
    tess__record_rate(object, run->dataset, step->samples_per_s);
    tess__mfu_record(object, run, step->samples_per_s);
    return object;
}

json_t *tess__record_validation(const struct tess__run *run,
                                const struct tess__run_validation *validation)
{
    json_t *object = json_pack("{s:I, s:I, s:o, s:o, s:I, s:o, s:o}", "step",
                               (json_int_t)validation->step, "epoch", (json_int_t)validation->epoch,
                               "val_loss", tess__json_number(validation->loss), "val_accuracy",
                               tess__json_number(validation->accuracy), "samples",
                               (json_int_t)tess_engine_test_count(run->planned), "evaluate_s",
                               tess__json_number(validation->evaluate_s), "cumulative_s",
                               tess__json_number(validation->cumulative_s));
    record_perplexity(object, run, validation->loss);
    return json_pack("{s:o}", "validation", object);
}

json_t *tess__record_saved(const struct tess__run_saved *saved)
{
    return json_pack("{s:{s:I, s:f, s:f, s:I}}", "saved", "step", (json_int_t)saved->step,
                     "blocked_s", saved->copy_s, "write_s", saved->write_s, "bytes",
                     (json_int_t)saved->bytes);
}

json_t *tess__record_epoch(const struct tess__run *run, const struct tess__run_epoch *epoch)
{
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "epoch", (json_int_t)epoch->epoch,
        "step", (json_int_t)epoch->step, "train_loss", tess__json_number(epoch->loss), "val_loss",
        tess__json_number(epoch->val_loss), "val_accuracy", tess__json_number(epoch->val_accuracy),
        "samples_per_s", tess__json_number(epoch->samples_per_s), "comm_share",
        tess__json_number(epoch->comm_share), "time_s", tess__json_number(epoch->time_s),
        "evaluate_s", tess__json_number(epoch->evaluate_s), "cumulative_s",
        tess__json_number(epoch->cumulative_s));
    if (run->evaluate)
        json_object_set_new(object, "val_samples",
                            json_integer((json_int_t)tess_engine_test_count(run->planned)));
    record_perplexity(object, run, epoch->val_loss);
    tess__record_rate(object, run->dataset, epoch->samples_per_s);
    return object;
}

enum tess_status tess__record_digest(const struct tess__run *run,
                                     const struct tess__run_digest *digest, json_t *tensors)
{
    const char *unit = tess_engine_param_unit(run->planned, digest->index);
    const char *param = tess_engine_param_name(run->planned, digest->index);
    const size_t length = strlen(unit);
    /* "fc1.weight": most models put the unit's name before a parameter's themselves. */
    const bool named = strncmp(param, unit, length) == 0 && param[length] == '.';
    char name[2 * TESS_NAME_MAX + 2];
    json_t *sketch = json_array();
    snprintf(name, sizeof(name), "%s%s%s", named ? "" : unit, named ? "" : ".", param);
    for (int i = 0; i < TESS_DIGEST_SKETCH; i++)
        json_array_append_new(sketch, tess__json_number(digest->digest.sketch[i]));
    if (json_object_set_new(
            tensors, name,
            json_pack("{s:o, s:o, s:o}", "hash", tess__json_hash(digest->digest.hash), "norm",
                      tess__json_number(digest->digest.norm), "sketch", sketch)) != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the digest of %s, or its name is not UTF-8",
                  name);
    return TESS_OK;
}

static json_t *record_usage(const struct tess_job_memory *usage)
{
    json_t *kinds = json_object();
    for (int k = 0; kinds && k < TESS_MEMORY_KIND_COUNT; k++)
        json_object_set_new(kinds, tess_memory_kind_name((enum tess_memory_kind)k),
                            json_integer((json_int_t)usage->bytes[k]));
    return kinds;
}

static json_t *record_memory(const struct tess__run *run)
{
    json_t *memory = json_array();
    for (int32_t r = 0; memory && r < run->rank_count; r++)
        json_array_append_new(memory, json_pack("{s:i, s:o, s:o, s:I}", "rank", r, "predicted",
                                                record_usage(tess__run_predicted(run, r)),
                                                "allocated", record_usage(&run->rank[r].allocated),
                                                "peak_rss", (json_int_t)run->rank[r].peak_rss));
    return memory;
}

/* Only runs of one rank are recorded. */
static void record_launches(json_t *device, const struct tess_device_usage *usage)
{
    if (usage->step_kernels == 0)
        return;
    json_object_set_new(device, "step_kernels", json_integer(usage->step_kernels));
    json_object_set_new(device, "step_copies", json_integer(usage->step_copies));
    json_object_set_new(device, "step_fills", json_integer(usage->step_fills));
}

static json_t *record_devices(const struct tess__run *run)
{
    const struct tess_device_plan *plan = &run->config->device;
    json_t *devices = json_array();
    for (int32_t d = 0; devices && d < plan->count; d++) {
        const struct tess__device_memory memory = tess__device_memory_of(run, d);
        json_t *ranks = json_array();
        for (int32_t r = 0; ranks && r < run->rank_count; r++)
            if (plan->of_rank[r] == d)
                json_array_append_new(ranks, json_integer(r));
        json_array_append_new(
            devices,
            json_pack(
                "{s:i, s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "device", d, "name",
                plan->info[d].name, "ranks", ranks, "arena", (json_int_t)memory.arena, "context",
                (json_int_t)memory.context, "workspace", (json_int_t)memory.workspace, "comm",
                (json_int_t)memory.comm, "unaccounted",
                memory.total > 0 ? json_integer((json_int_t)memory.unaccounted) : json_null(),
                "used", memory.total > 0 ? json_integer((json_int_t)memory.used) : json_null(),
                "total", memory.total > 0 ? json_integer((json_int_t)memory.total) : json_null()));
        if (plan->of_rank[0] == d)
            record_launches(json_array_get(devices, (size_t)d), &run->rank[0].device_usage);
    }
    return json_pack("{s:s, s:s, s:o}", "kind", plan->module ? plan->module->name : "cpu", "comm",
                     plan->comm->name, "devices", devices);
}

static json_t *record_sent(const struct tess__run *run)
{
    json_t *sent = json_array();
    for (int32_t r = 0; sent && r < run->rank_count; r++)
        json_array_append_new(sent, tess__json_number(run->rank[r].sent_bytes_per_step));
    return sent;
}

/* {"data": {"sent_bytes_per_step": [...], "formula": [...]}, ...}: of every rank, along each axis.
 */
static json_t *record_axes(const struct tess__run *run)
{
    json_t *axes = json_object();
    for (int axis = 0; axes && axis < TESS_AXIS_COUNT; axis++) {
        json_t *sent = json_array(), *formula = json_array();
        for (int32_t r = 0; r < run->rank_count; r++) {
            json_array_append_new(sent, tess__json_number(run->rank[r].axis_sent_per_step[axis]));
            json_array_append_new(formula,
                                  json_integer((json_int_t)run->rank[r].axis_formula[axis]));
        }
        json_object_set_new(
            axes, tess__record_axis_name[axis],
            json_pack("{s:o, s:o}", "sent_bytes_per_step", sent, "formula", formula));
    }
    return axes;
}

static void record_restarts(json_t *object, const struct tess__run *run,
                            const struct tess__history *history)
{
    const int64_t from = run->config->checkpoint[0] ? tess_engine_step_done(run->planned) : -1;
    json_object_set_new(object, "restarts", json_integer(history ? history->restarts : 0));
    json_object_set_new(object, "lost_steps", json_integer(history ? history->lost_steps : 0));
    json_object_set_new(object, "renumbered", json_integer(history ? history->renumbered : 0));
    json_object_set_new(object, "resumed_from", from < 0 ? json_null() : json_integer(from));
}

json_t *tess__record_adapt(const struct tess__adapt *adapt)
{
    return json_pack("{s:{s:I, s:s, s:o, s:b, s:s}}", "adapt", "step", (json_int_t)adapt->step,
                     "part", adapt->part, "gain", tess__json_number(adapt->gain), "renumbers",
                     adapt->renumbers, "why", adapt->text);
}

json_t *tess__record_final(const struct tess__run *run, const struct tess__predicted *predicted,
                           const struct tess__history *history)
{
    const struct tess__run_final *final = &run->final;
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:s, s:o, s:i, s:s, s:o, s:o}", "hash",
        tess__json_hash(final->hash), "val_loss", tess__json_number(final->val_loss),
        "val_accuracy", tess__json_number(final->val_accuracy), "loss",
        tess__json_number(final->loss), "samples_per_s", tess__json_number(final->samples_per_s),
        "comm_share", tess__json_number(final->comm_share), "steps", (json_int_t) final->steps,
        "time_s", tess__json_number(final->time_s), "first_step_s",
        tess__json_number(final->first_step_s), "strategy", run->config->run.strategy, "mesh",
        tess__record_mesh(run), "ranks", run->rank_count, "precision", record_precision(run),
        "sent_bytes_per_step", record_sent(run), "memory", record_memory(run));
    record_perplexity(object, run, final->val_loss);
    tess__record_rate(object, run->dataset, final->samples_per_s);
    tess__mfu_record(object, run, final->samples_per_s);
    json_object_set_new(object, "operations", tess__mfu_record_model(run));
    json_object_set_new(object, "device", record_devices(run));
    json_object_set_new(object, "shared_cores", record_shared_cores(run));
    json_object_set_new(object, "bubble", tess__bubble_record(run));
    json_object_set_new(object, "audited_steps", json_integer((json_int_t) final->audited));
    json_object_set_new(object, "prediction", tess__predicted_record(run, predicted));
    record_restarts(object, run, history);
    return json_pack("{s:o}", "final", object);
}

json_t *tess__record_compared(const struct tess__run *run, const struct tess__predicted *predicted)
{
    const struct tess__run_final *final = &run->final;
    json_t *formula = json_array(), *object;
    for (int32_t r = 0; formula && r < run->rank_count; r++)
        json_array_append_new(formula, json_integer((json_int_t)run->rank[r].sent_bytes_formula));
    object = json_pack(
        "{s:s, s:s, s:o, s:i, s:s, s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:o}",
        "model", run->config->model->name, "strategy", run->config->run.strategy, "mesh",
        tess__record_mesh(run), "ranks", run->rank_count, "precision", record_precision(run),
        "steps", (json_int_t) final->steps, "grid", tess_engine_plan_of(run->planned)->grid,
        "batch_size", (json_int_t)run->config->run.batch_size, "sample_tokens",
        tess__record_sample_tokens(run->dataset), "learning_rate",
        tess__json_number(run->config->optim.learning_rate), "hash", tess__json_hash(final->hash),
        "loss", tess__json_number(final->loss), "samples_per_s",
        tess__json_number(final->samples_per_s), "comm_share", tess__json_number(final->comm_share),
        "sent_bytes_per_step", record_sent(run), "sent_bytes_formula", formula, "axes",
        record_axes(run), "memory", record_memory(run));
    tess__record_rate(object, run->dataset, final->samples_per_s);
    tess__mfu_record(object, run, final->samples_per_s);
    json_object_set_new(object, "data", record_data(run));
    json_object_set_new(object, "device", record_devices(run));
    json_object_set_new(object, "shared_cores", record_shared_cores(run));
    json_object_set_new(object, "bubble", tess__bubble_record(run));
    json_object_set_new(object, "prediction", tess__predicted_record(run, predicted));
    return object;
}

enum tess_status tess__record_write(const char *path, json_t *root)
{
    if (!root)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the results of --json");
    enum tess_status status = tess_json_write_file(path, root);
    json_decref(root);
    return status;
}
