/* Predicting the step of a run, and what is printed and kept of it; see predicted.h. */
#include "run/predicted.h"

#include "base/log_sink.h"
#include "config/registry.h"
#include "job/place.h"
#include "predict/network.h"
#include "predict/predict.h"
#include "tessera/check.h"
#include "text/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- on what the ranks run ------------------------------------------------------------------- */

const struct tess_profile *tess__predicted_device(const char *name, double bytes)
{
    static const struct {
        const char *part, *profile;
        double least_bytes;
    } known[] = {{"H100", "h100-80", 0}, {"H200", "h200-141", 0},   {"B200", "b200-180", 0},
                 {"L40S", "l40s", 0},    {"A100", "a100-80", 6e10}, {"A100", "a100-40", 0}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (strstr(name, known[i].part) != NULL && bytes >= known[i].least_bytes)
            return tess_profile_find(known[i].profile);
    return NULL;
}

static enum tess_status predicted_gpu(const struct tess__run *run, struct tess_profile *profile)
{
    const struct tess_device_plan *plan = &run->config->device;
    const char *name = plan->info[plan->of_rank[0]].name;
    const struct tess_profile *known =
        tess__predicted_device(name, (double)plan->info[plan->of_rank[0]].memory_bytes);
    if (known == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "there are no figures of the device %.60s", name);
    *profile = *known;
    return TESS_OK;
}

static enum tess_status predicted_host(const struct tess__run *run, struct tess_profile *profile)
{
    const char *kernel = run->config->kernel->name;
    if (strcmp(kernel, "cpu") != 0 && strcmp(kernel, "ref") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "there are no figures of the kernel %.60s", kernel);
    return tess_profile_here(kernel, profile);
}

/* By the network that ranks were placed by: of a file, of Slurm, or measured when the run began. */
static enum tess_status predicted_hosts(const struct tess__run *run,
                                        const struct tess_profile *profile,
                                        struct tess_cluster *cluster)
{
    const struct tess_device_plan *plan = &run->config->device;
    const struct tess_topology *topology = run->placed->topology;
    if (plan->module != NULL || strcmp(plan->comm->name, "tcp") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s over several hosts has no figures",
                  plan->module != NULL ? "communication between GPUs" : plan->comm->name);
    const bool known = run->placed->measured || run->config->placing.file[0] != '\0';
    if (!known || topology == NULL || topology->device_count != run->rank_count)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "the network of %d hosts has no figures: --topology.file describes it",
                  (int)run->placed->host_count);
    return tess_cluster_of_hosts(profile, topology, cluster);
}

static enum tess_status predicted_places(const struct tess__run *run, struct tess_profile *profile,
                                         struct tess_cluster *cluster)
{
    const struct tess_device_plan *plan = &run->config->device;
    const char *comm = plan->comm->name;
    const bool sockets = strcmp(comm, "tcp") == 0;
    TESS_TRY(plan->module != NULL ? predicted_gpu(run, profile) : predicted_host(run, profile));
    if (run->peers != NULL && run->placed->host_count > 1)
        return predicted_hosts(run, profile, cluster);
    if (plan->module != NULL)
        return tess_cluster_of_device(profile->name, run->rank_count, cluster);
    if (!sockets && strcmp(comm, "local") != 0 && strcmp(comm, "self") != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "communication over %.40s has no figures", comm);
    tess_cluster_of_processor(profile, run->rank_count, sockets, cluster);
    return TESS_OK;
}

/* ---- the prediction -------------------------------------------------------------------------- */

/* A longer step would take more than about a quarter of a second to predict. */
#define PREDICTED_PASSES_MAX 5000

/* A prediction runs the code of the parts, which outsiders may have made for ranks alone. */
static enum tess_status predicted_parts(const struct tess_config *config)
{
    bool own = tess_registry_is_own(TESS_REGISTRY_MODEL, config->model->name) &&
               tess_registry_is_own(TESS_REGISTRY_OPTIMIZER, config->optimizer->name);
    for (int axis = 0; axis < TESS_AXIS_COUNT && own; axis++)
        own = config->axis[axis] == NULL ||
              tess_registry_is_own(TESS_REGISTRY_STRATEGY, config->axis[axis]->name);
    if (!own)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "parts of a plugin have no figures");
    return TESS_OK;
}

static enum tess_status predicted_length(const struct tess__run *run)
{
    int32_t units = 0;
    (void)tess_engine_unit_names(run->planned, &units);
    const double passes = (double)units * (double)run->config->run.accumulate *
                          run->config->mesh.count[TESS_AXIS_STAGE];
    if (passes > PREDICTED_PASSES_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "a step of %g passes through units takes long to predict: tessera plan does it",
                  passes);
    return TESS_OK;
}

static struct tess__phases predicted_phases(const struct tess_prediction *prediction)
{
    struct tess__phases sum = {0};
    const double share = 1.0 / prediction->stage_count;
    for (int32_t s = 0; s < prediction->stage_count; s++) {
        const struct tess_prediction_stage *stage = &prediction->stage[s];
        double exposed_s = 0;
        for (int group = 0; group < TESS_PREDICT_GROUPS; group++) {
            exposed_s += stage->exposed_s[group];
            sum.sent_bytes += share * (double)stage->sent_bytes[group];
        }
        sum.data_s += share * stage->data_s;
        sum.forward_s += share * stage->forward_s;
        sum.backward_s += share * stage->backward_s;
        sum.optim_s += share * stage->optim_s;
        sum.exposed_s += share * exposed_s;
        sum.hidden_s += share * stage->hidden_s;
        sum.processor_s += share * stage->processor_s;
    }
    sum.step_s = prediction->step_s;
    return sum;
}

static enum tess_status predicted_step(const struct tess__run *run,
                                       struct tess__predicted *predicted)
{
    struct tess_profile profile;
    struct tess_cluster cluster;
    struct tess_network network;
    struct tess_prediction prediction = {0};
    TESS_TRY(predicted_parts(run->config));
    TESS_TRY(predicted_length(run));
    TESS_TRY(predicted_places(run, &profile, &cluster));
    tess_network_make(&cluster, &run->config->mesh, &network);
    TESS_TRY(tess_predict_step(run->config, run->dataset, &profile, &network, &prediction));
    predicted->calibrated = profile.measured;
    snprintf(predicted->profile, sizeof(predicted->profile), "%s", profile.name);
    _Static_assert(sizeof(predicted->limited_by) == TESS_PREDICT_LIMIT, "room for the words");
    (void)tess_prediction_limit(&prediction.loss, prediction.step_s, predicted->limited_by);
    predicted->phases = predicted_phases(&prediction);
    tess_prediction_fini(&prediction);
    return TESS_OK;
}

/* The first message says why. */
static void predicted_line(void *context, enum tess_log_level level, const char *text)
{
    struct tess__predicted *predicted = context;
    if (level == TESS_LOG_ERROR && predicted->why[0] == '\0')
        snprintf(predicted->why, sizeof(predicted->why), "%s", text);
}

static double predicted_processor_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tess__predicted_make(const struct tess__run *run, struct tess__predicted *predicted_out)
{
    const double begin_s = predicted_processor_s();
    memset(predicted_out, 0, sizeof(*predicted_out));
    const struct tess__log_sink sink = {.line = predicted_line, .context = predicted_out};
    const struct tess__log_sink *before = tess__log_redirect(&sink);
    predicted_out->known = predicted_step(run, predicted_out) == TESS_OK;
    (void)tess__log_redirect(before);
    predicted_out->cost_s = predicted_processor_s() - begin_s;
}

/* ---- what was measured ----------------------------------------------------------------------- */

struct tess__phases tess__predicted_measured(const struct tess__run *run)
{
    struct tess__phases sum = {0};
    const double share = 1.0 / run->rank_count;
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess__run_rank *rank = &run->rank[r];
        const struct tess_times *step = &run->usual[r].step;
        sum.step_s += share * step->total_s;
        sum.data_s += share * step->data_s;
        sum.forward_s += share * step->forward_s;
        sum.backward_s += share * step->backward_s;
        sum.optim_s += share * step->optim_s;
        sum.exposed_s += share * step->comm_s;
        sum.hidden_s += share * step->hidden_s;
        sum.processor_s += share * (step->total_s - step->comm_s) * rank->processor_share;
        sum.sent_bytes += share * rank->sent_bytes_per_step;
    }
    return sum;
}

bool tess__predicted_guessed(const struct tess__predicted *predicted)
{
    return predicted->known && strcmp(predicted->profile, "cpu") == 0;
}

/* Three digits and more. */
const char *tess__predicted_ms(double seconds, char text[TESS__TEXT_BYTES])
{
    const double ms = seconds * 1e3;
    snprintf(text, TESS__TEXT_BYTES, "%.*f", ms < 1 ? 3 : ms < 10 ? 2 : ms < 100 ? 1 : 0, ms);
    return text;
}

static void predicted_print_pair(const char *name, double predicted_s, double measured_s,
                                 const char *measured)
{
    char text[2][TESS__TEXT_BYTES];
    printf("%s %s |%s %s", name, tess__predicted_ms(predicted_s, text[0]), measured,
           tess__predicted_ms(measured_s, text[1]));
}

void tess__predicted_print(const struct tess__run *run, const struct tess__predicted *predicted)
{
    const struct tess__phases measured = tess__predicted_measured(run);
    const struct tess__phases *phases = &predicted->phases;
    const double share = tess__run_processor_share(run);
    char text[2][TESS__TEXT_BYTES];
    if (!predicted->known) {
        printf("step: measured %s ms, not predicted: %s\n",
               tess__predicted_ms(measured.step_s, text[0]), predicted->why);
        return;
    }
    predicted_print_pair("step: predicted", phases->step_s, measured.step_s, " measured");
    printf(" ms, ratio %.2f; ", phases->step_s / measured.step_s);
    if (tess__predicted_guessed(predicted))
        printf("not calibrated (tessera plan --calibrate FILE)\n");
    else
        printf("profile %s\n", predicted->profile);
    predicted_print_pair("  forward", phases->forward_s, measured.forward_s, "");
    predicted_print_pair(", backward", phases->backward_s, measured.backward_s, "");
    predicted_print_pair(", optimizer", phases->optim_s, measured.optim_s, "");
    predicted_print_pair(", waiting", phases->exposed_s, measured.exposed_s, "");
    printf(" ms; sent %s | %s\n", tess__text_bytes(phases->sent_bytes, text[0]),
           tess__text_bytes(measured.sent_bytes, text[1]));
    if (share < TESS__RUN_UNDISTURBED)
        printf("  other programs took a part of the processors: a rank had %.0f %% of the time it "
               "could use\n",
               100 * share);
}

static json_t *predicted_json(const struct tess__phases *phases)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step_s",
        tess__json_number(phases->step_s), "data_s", tess__json_number(phases->data_s), "forward_s",
        tess__json_number(phases->forward_s), "backward_s", tess__json_number(phases->backward_s),
        "optim_s", tess__json_number(phases->optim_s), "exposed_s",
        tess__json_number(phases->exposed_s), "hidden_s", tess__json_number(phases->hidden_s),
        "processor_s", tess__json_number(phases->processor_s), "sent_bytes_per_step",
        tess__json_number(phases->sent_bytes));
}

json_t *tess__predicted_record(const struct tess__run *run, const struct tess__predicted *predicted)
{
    const struct tess__phases measured = tess__predicted_measured(run);
    if (!predicted->known)
        return json_pack("{s:s, s:n, s:o}", "why", predicted->why, "predicted", "measured",
                         predicted_json(&measured));
    return json_pack("{s:s, s:b, s:o, s:s, s:o, s:o, s:o, s:o}", "profile", predicted->profile,
                     "calibrated", predicted->calibrated, "predict_s",
                     tess__json_number(predicted->cost_s), "limited_by", predicted->limited_by,
                     "predicted", predicted_json(&predicted->phases), "measured",
                     predicted_json(&measured), "ratio",
                     tess__json_number(predicted->phases.step_s / measured.step_s),
                     "processor_share", tess__json_number(tess__run_processor_share(run)));
}
