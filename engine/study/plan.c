/* tessera plan: the command; see plan.h. */
#include "study/plan.h"

#include "base/file.h"
#include "base/options.h"
#include "base/size.h"
#include "config/registry.h"
#include "job/memory_room.h"
#include "predict/calibrate.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "text/text.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define PLAN_LARGE         1024 /* ranks */
#define PLAN_FIELD(member) offsetof(struct tess__plan_options, member)

static const struct tess_option plan_option_table[] = {
    {"ranks", TESS_OPTION_INT, PLAN_FIELD(ranks), "0", 0, TESS_RANKS_MAX, NULL,
     "ranks to plan for, one on each device; 0: as many as --cluster has devices, else 8"},
    {"device", TESS_OPTION_STRING, PLAN_FIELD(device), "h100-80", 0, 0, NULL,
     "device of a rank: h100-80, h100-96, h200-141, a100-80, a100-40, b200-180, l40s; cpu, ranks "
     "on this host; or a file of figures"},
    {"calibrate", TESS_OPTION_STRING, PLAN_FIELD(calibrate), "", 0, 0, NULL,
     "measure the processor of this host, which should do nothing else meanwhile, write its "
     "figures to this file, and plan for it; later --device cpu plans with them, and train and "
     "compare predict with them"},
    {"calibrate-s", TESS_OPTION_REAL, PLAN_FIELD(seconds), "40", 0.01, 600, NULL,
     "seconds that --calibrate measures"},
    {"cluster", TESS_OPTION_STRING, PLAN_FIELD(cluster), "", 0, 0, NULL,
     "file that describes hosts and network, in any format that tessera topo reads; empty: hosts "
     "of eight devices as they are sold"},
    {"memory", TESS_OPTION_STRING, PLAN_FIELD(memory), "", 0, 0, NULL,
     "memory of a device that a rank may plan, such as 70GiB; empty: the device's, less what "
     "driver and libraries take"},
    {"precisions", TESS_OPTION_STRING, PLAN_FIELD(precisions), "", 0, 0, NULL,
     "precisions to try, a list such as f32,bf16; empty: as configured. They learn differently"},
    {"tokens", TESS_OPTION_REAL, PLAN_FIELD(tokens), "0", 0, 1e18, NULL,
     "tokens (samples, of images) of the whole training: prints the days that it takes"},
    {"price", TESS_OPTION_REAL, PLAN_FIELD(price), "0", 0, 1e9, NULL,
     "what an hour of a device costs: with --tokens prints the price"},
    {"top", TESS_OPTION_INT, PLAN_FIELD(top), "10", 1, 1000000, NULL, "layouts that are printed"},
    {"json", TESS_OPTION_STRING, PLAN_FIELD(json), "", 0, 0, NULL,
     "file for all results; empty writes none"},
    {"out", TESS_OPTION_STRING, PLAN_FIELD(out), "", 0, 0, NULL,
     "file for the configuration of the best layout, or of --choose, which train takes; empty "
     "writes none"},
    {"choose", TESS_OPTION_INT, PLAN_FIELD(choose), "1", 1, 1000000, NULL,
     "number of the printed layout that --out and --trace write"},
    {"try", TESS_OPTION_INT, PLAN_FIELD(try_count), "0", 0, 1000, NULL,
     "train so many of the first layouts on this host for a few steps each, in turns, and the best "
     "of every other product that is predicted within 15 % of the first; the list and --out are "
     "then in order of what was measured; 0: train none"},
    {"try-rounds", TESS_OPTION_INT, PLAN_FIELD(try_rounds), "5", 1, TESS__PLAN_ROUNDS_MAX, NULL,
     "rounds of a layout that is not far behind; then those within 3 % of the fastest go on, up to "
     "three times as many"},
    {"try-s", TESS_OPTION_REAL, PLAN_FIELD(try_s), "30", 0.01, 86400, NULL,
     "seconds that --try takes, where three rounds need no more"},
    {"trace", TESS_OPTION_STRING, PLAN_FIELD(trace), "", 0, 0, NULL,
     "file for the time line of one predicted step of the best layout, or of --choose: of one rank "
     "of each stage; tessera report and ui.perfetto.dev show it; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char plan_usage[] =
    "usage: tessera plan CONFIG (--ranks N --device NAME | --cluster FILE) [--memory SIZE]\n"
    "                    [--tokens T] [--price P] [--top K] [--json FILE] [--out FILE.yaml]\n"
    "                    [--trace FILE.json] [--calibrate FILE.yaml] [--try K] [--try-s S]\n"
    "       tessera plan --accuracy RUN... [--json FILE]\n"
    "\n"
    "Which layout trains CONFIG fastest, on machines that need not be here? Every legal layout\n"
    "is tried: strategies and their products, the mesh, schedules and chunks, micro-batches,\n"
    "recompute, sequence parallel. Nothing is started and no GPU module is needed, except with\n"
    "--try, which trains the first layouts here and orders them by the measured time.\n"
    "\n"
    "Memory is exact: the bytes by kind are what the engine would allocate. Times are\n"
    "predicted: the engine's own step runs in virtual time, with a device's published figures\n"
    "and the links of the cluster. docs/published.md compares predictions with published\n"
    "measurements.\n"
    "\n"
    "All layouts have the same global batch, the configuration's --batch-size.\n"
    "--out writes the best layout as a configuration: tessera train FILE --explain shows it.\n"
    "tessera report draws what --json and --trace write.\n"
    "\n"
    "what is printed of a layout, the fastest first\n"
    "  step        from one update of the weights to the next, for the whole batch\n"
    "  MFU         the model's operations, as a share of what the devices could do in that time\n"
    "  memory      what its fullest rank plans on its device\n"
    "  layout      strategies, ranks along each axis of the mesh, micro-batches of a rank and\n"
    "              step\n"
    "  exposed     the part of the step in which a rank waits for others\n"
    "  limited by  what its slowest stage loses most time to, if that is 5 % of the step, or\n"
    "              else what it works on: products or memory passes; then its longest waiting\n"
    "Layouts that are refused follow, with the first reason of each kind.\n"
    "\n"
    "examples\n"
    "  tessera plan configs/models/llama-8b.yaml --ranks 64 --device h100-80 --batch-size 512\n"
    "  tessera plan configs/models/gpt2-124m.yaml --ranks 8 --device a100-80 --tokens 1e10 \\\n"
    "               --price 1.8 --out best.yaml\n"
    "  tessera plan configs/models/tiny-gpt.yaml --ranks 4 --device cpu\n"
    "  tessera plan configs/models/tiny-gpt.yaml --ranks 2 --calibrate host.yaml\n"
    "  tessera plan configs/models/tiny-gpt.yaml --ranks 2 --device cpu --try 5 --out best.yaml\n"
    "  tessera plan --accuracy runs/*\n";

/* ---- what it is for -------------------------------------------------------------------------- */

/* What this build lacks on the host is computed by the reference. */
static const char *plan_host_kernel(void)
{
    return tess_registry_summary(TESS_REGISTRY_KERNEL, "cpu")[0] != '\0' ? "cpu" : "ref";
}

static enum tess_status plan_calibrate(struct tess__plan *plan)
{
    const struct tess_kernel_ops *ops;
    char path[512];
    TESS_TRY(tess_file_check(plan->given->calibrate, TESS_FILE_TEXT, "--calibrate"));
    TESS_TRY(tess_registry_get_kernel(plan_host_kernel(), &ops));
    TESS_TRY(tess_profile_calibrate(ops, "measured", plan->given->seconds, &plan->profile));
    TESS_TRY(tess_profile_write(&plan->profile, plan->given->calibrate));
    if (!tess_profile_kept(true, path, sizeof(path))) {
        tess_log(TESS_LOG_WARN,
                 "train and compare do not find these figures: neither HOME nor XDG_CACHE_HOME is "
                 "a folder that can be written; plan has them with --device %s",
                 plan->given->calibrate);
        return TESS_OK;
    }
    TESS_TRY(tess_profile_write(&plan->profile, path));
    tess_log(TESS_LOG_INFO,
             "--device cpu, train and compare predict with these figures from now on: %s", path);
    return TESS_OK;
}

static enum tess_status plan_profile(struct tess__plan *plan)
{
    if (plan->given->calibrate[0] != '\0')
        return plan_calibrate(plan);
    const struct tess_profile *known = tess_profile_find(plan->given->device);
    if (known != NULL && strcmp(known->kernel, "cpu") == 0)
        return tess_profile_here(plan_host_kernel(), &plan->profile);
    if (known != NULL) {
        plan->profile = *known;
        return TESS_OK;
    }
    if (strchr(plan->given->device, '.') == NULL && strchr(plan->given->device, '/') == NULL) {
        char names[160] = "";
        const char *name;
        for (int32_t i = 0; (name = tess_profile_name(i)) != NULL && strlen(names) < 120; i++) {
            strcat(names, i > 0 ? ", " : "");
            strncat(names, name, 30);
        }
        TESS_FAIL(TESS_ERR_USAGE, "--device %.60s: known are %s, or the name of a file",
                  plan->given->device, names);
    }
    return tess_profile_read(plan->given->device, &plan->profile);
}

/* The links are the file's and everything else is the profile's: is it of such a device? */
static void plan_warn_device(const struct tess__plan *plan)
{
    const int32_t sm = plan->cluster.sm, own = (int32_t)plan->profile.sm;
    char fit[160] = "none is built in, so give a FILE of figures";
    const char *name;
    size_t used = 0;
    if (sm == 0 || own == 0 || sm == own || tess_cluster_guessed_sm(plan->topology))
        return;
    for (int32_t i = 0; (name = tess_profile_name(i)) != NULL && used < 120; i++)
        if (tess_profile_find(name)->sm == sm)
            used += (size_t)snprintf(fit + used, sizeof(fit) - used, "%s%.20s",
                                     used > 0 ? " or " : "", name);
    tess_log(TESS_LOG_WARN,
             "%s has devices of compute capability %d.%d, and %s has %d.%d: its times and memory "
             "are not theirs. Devices of %d.%d for --device: %s",
             plan->given->cluster, sm / 10, sm % 10, plan->profile.name, own / 10, own % 10,
             sm / 10, sm % 10, fit);
}

static enum tess_status plan_read_cluster(struct tess__plan *plan, bool device_given)
{
    TESS_TRY(tess_cluster_read(plan->given->cluster, &plan->cluster, &plan->topology));
    plan->guessed_device = !device_given && plan->given->calibrate[0] == '\0' &&
                           (plan->cluster.sm == 0 || tess_cluster_guessed_sm(plan->topology));
    plan_warn_device(plan);
    if (plan->given->ranks > plan->cluster.ranks)
        TESS_FAIL(TESS_ERR_USAGE, "--ranks %lld: %s has %d devices", (long long)plan->given->ranks,
                  plan->given->cluster, plan->cluster.ranks);
    if (plan->given->ranks > 0)
        plan->cluster.ranks = (int32_t)plan->given->ranks;
    return TESS_OK;
}

static enum tess_status plan_cluster(struct tess__plan *plan, bool device_given)
{
    const int32_t ranks = plan->given->ranks > 0 ? (int32_t)plan->given->ranks : 8;
    if (plan->given->cluster[0] != '\0')
        return plan_read_cluster(plan, device_given);
    if (strcmp(plan->profile.kernel, "cuda") == 0)
        return tess_cluster_of_device(plan->profile.name, ranks, &plan->cluster);
    tess_cluster_of_processor(&plan->profile, ranks, false, &plan->cluster);
    return TESS_OK;
}

/* `text`, which must stay, is cut at its commas. */
static enum tess_status plan_precisions(struct tess__plan *plan, char *text)
{
    const char *item[TESS__LIST_MAX];
    plan->precision_count = 1; /* as configured */
    if (text[0] == '\0')
        return TESS_OK;
    TESS_TRY(tess__list_split("precisions", text, item, &plan->precision_count));
    if (plan->precision_count > TESS__PLAN_PRECISIONS)
        TESS_FAIL(TESS_ERR_USAGE, "--precisions: up to %d", TESS__PLAN_PRECISIONS);
    for (int i = 0; i < plan->precision_count; i++)
        if (strcmp(item[i], "f32") != 0 && strcmp(item[i], "bf16") != 0 &&
            strcmp(item[i], "f16") != 0)
            TESS_FAIL(TESS_ERR_USAGE, "--precisions: '%.20s' is not f32, bf16 or f16", item[i]);
    for (int i = 1; i < plan->precision_count; i++)
        for (int before = 0; before < i; before++)
            if (strcmp(item[i], item[before]) == 0)
                TESS_FAIL(TESS_ERR_USAGE, "--precisions: '%s' is there twice", item[i]);
    memcpy(plan->precision, item, (size_t)plan->precision_count * sizeof(*item));
    return TESS_OK;
}

/* Of a device; of ranks on this host its share, which train has too. */
static enum tess_status plan_memory(struct tess__plan *plan)
{
    char where[96];
    double bytes = plan->profile.memory_bytes - plan->profile.beside_bytes;
    const bool here = strcmp(plan->given->device, "cpu") == 0 || plan->given->calibrate[0] != '\0';
    if (bytes <= 0 && here && plan->given->cluster[0] == '\0')
        bytes = tess__memory_of_host(where) / plan->cluster.ranks;
    if (plan->given->memory[0] != '\0')
        TESS_TRY(tess_size_parse("memory", plan->given->memory, &bytes));
    plan->memory_limit = bytes > 0 ? bytes : 0;
    return TESS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* That command is named by its two words. */
static enum tess_status plan_check_accuracy(const struct tess__args *args)
{
    for (int i = 0; i < args->count; i++)
        if (strcmp(args->word[i], "--accuracy") == 0 ||
            strncmp(args->word[i], "--accuracy=", strlen("--accuracy=")) == 0)
            TESS_FAIL(
                TESS_ERR_USAGE,
                "--accuracy compares runs that were made, and takes no configuration: tessera "
                "plan --accuracy RUN...");
    return TESS_OK;
}

static enum tess_status plan_open(struct tess__plan *plan, const struct tess__call *call)
{
    plan->args = call->args;
    plan->given = call->values;
    TESS_TRY(plan_check_accuracy(&plan->args));
    static char precisions[64];
    if (strlen(plan->given->precisions) >= sizeof(precisions))
        TESS_FAIL(TESS_ERR_USAGE, "--precisions is too long: f32,bf16,f16");
    memcpy(precisions, plan->given->precisions, strlen(plan->given->precisions) + 1);
    if (plan->given->price > 0 && plan->given->tokens == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--price %g: of how long a training? Give --tokens, or leave the price out",
                  plan->given->price);
    TESS_TRY(plan_profile(plan));
    TESS_TRY(plan_cluster(plan, tess_options_is_set(call->options, "device")));
    TESS_TRY(plan_memory(plan));
    TESS_TRY(plan_precisions(plan, precisions));
    if (plan->given->json[0] != '\0')
        TESS_TRY(tess_file_check(plan->given->json, TESS_FILE_TEXT, "--json"));
    if (plan->given->out[0] != '\0')
        TESS_TRY(tess_file_check(plan->given->out, TESS_FILE_TEXT, "--out"));
    if (plan->given->trace[0] != '\0')
        TESS_TRY(tess_file_check(plan->given->trace, TESS_FILE_TEXT, "--trace"));
    return tess__plan_open(plan);
}

static enum tess_status plan_fail_none(const struct tess__plan *plan)
{
    char text[TESS__TEXT_BYTES];
    if (plan->least_bytes == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "no layout is legal: the reasons above say what each of them needs");
    TESS_FAIL(TESS_ERR_USAGE,
              "no layout is legal and fits the memory: the reasons are above. The smallest needs "
              "%s on a device: give more --ranks, a larger --device or --memory, or a smaller "
              "--batch-size",
              tess__text_bytes((double)plan->least_bytes, text));
}

static enum tess_status plan_finish(const struct tess__plan *plan)
{
    tess__plan_print(plan);
    if (plan->given->json[0] != '\0')
        TESS_TRY(tess__plan_write_json(plan, plan->given->json));
    if (plan->layouts.count == 0)
        return plan_fail_none(plan);
    if (plan->given->try_count > 0 && plan->layouts.item[0].rounds == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "none of the first layouts could be trained here: the reasons are above");
    if (plan->given->choose > plan->layouts.count)
        TESS_FAIL(TESS_ERR_USAGE, "--choose %lld: there are %lld layouts",
                  (long long)plan->given->choose, (long long)plan->layouts.count);
    const struct tess__plan_layout *chosen = &plan->layouts.item[plan->given->choose - 1];
    if (plan->given->out[0] != '\0')
        TESS_TRY(tess__plan_write_yaml(plan, chosen, plan->given->out));
    if (plan->given->trace[0] != '\0')
        TESS_TRY(tess__plan_write_trace(plan, chosen, plan->given->trace));
    return TESS_OK;
}

static int plan_command(struct tess__call *call)
{
    /* Not closed: a program runs one command, and freeing piece by piece takes 3 % of it. */
    static struct tess__plan plan;
    enum tess_status status = plan_open(&plan, call);
    /* Else what threads free stays with them: 190 in place of 152 MiB for 405 B on 16,384 ranks. A
     * small search is faster so. */
    if (plan.cluster.ranks > PLAN_LARGE)
        (void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
    if (status == TESS_OK)
        status = tess__plan_search(&plan);
    if (status == TESS_OK && plan.given->try_count > 0)
        status = tess__plan_measure(&plan);
    if (status == TESS_OK)
        status = plan_finish(&plan);
    else if (status == TESS_ERR_INTERRUPTED && plan.layouts.count > 0)
        tess__plan_print(&plan); /* what was measured is not lost */
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_plan = {
    .name = "plan",
    .summary = "the fastest layout on machines that need not be here",
    .usage = plan_usage,
    .table = plan_option_table,
    .options_size = sizeof(struct tess__plan_options),
    .reads = TESS__READS_SERIES,
    .run = plan_command,
};
