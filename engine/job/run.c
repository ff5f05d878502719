/* The launcher's half of a run: data, plans, and keeping what the ranks report. */
#include "job/run.h"

#include "base/clock.h"
#include "base/options.h"
#include "job/place.h"
#include "state/model_folder.h"
#include "tessera/check.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RUN_BYTES 256 /* the vocabulary of text whose tokens are bytes */

/* Made-up images have the shape and classes of the MNIST family. */
#define SYNTHETIC_SIDE    28
#define SYNTHETIC_CLASSES 10

/* The plans of more ranks are made once for all that are alike. */
#define RUN_EACH_MAX 64

/* ---- data ------------------------------------------------------------------------------------ */

/* Options of the loader that apply to one kind of data. */
static const struct {
    const char *name;
    bool tokens;
} run_kind_option[] = {
    {"data.flip", false},  {"data.shift", false},     {"data.size", false},
    {"data.length", true}, {"data.validation", true}, {"data.validation-files", true},
    {"data.mix", true},    {"data.packing", true},
};

struct run_misfit {
    bool tokens;
    const char *name; /* of an option that was given and does not apply; NULL: none */
};

/* As with options of parts that are not chosen: a file or the environment may carry them. */
static void run_find_misfit(void *context, const char *name, const char *value, const char *origin,
                            const struct tess_option *option)
{
    struct run_misfit *misfit = context;

    (void)value, (void)option;
    for (size_t i = 0; i < sizeof(run_kind_option) / sizeof(*run_kind_option); i++)
        if (run_kind_option[i].tokens != misfit->tokens &&
            strcmp(run_kind_option[i].name, name) == 0 && strcmp(origin, "command line") == 0)
            misfit->name = run_kind_option[i].name;
}

/* What is at `path`, S_IFDIR and the like; 0: nothing. */
static mode_t run_kind_of(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 ? about.st_mode & S_IFMT : 0;
}

static int64_t run_synthetic_test_rows(const struct tess_run_options *run)
{
    return run->synthetic_rows < 4 ? 1 : run->synthetic_rows / 4;
}

static enum tess_status run_open_images(const struct tess_config *config,
                                        struct tess_dataset **dataset_out)
{
    const struct tess_run_options *run = &config->run;
    const mode_t kind = run_kind_of(run->data);

    if (strcmp(run->data, "synthetic") == 0 && config->loader.size > 0)
        TESS_FAIL(TESS_ERR_USAGE, "--data.size: --data synthetic has no images to scale");
    if (strcmp(run->data, "synthetic") == 0)
        return tess_dataset_open_synthetic(
            tess_shape3(SYNTHETIC_SIDE, SYNTHETIC_SIDE, 1), SYNTHETIC_CLASSES, run->synthetic_rows,
            run_synthetic_test_rows(run), (uint64_t)run->seed, dataset_out);
    if (kind != S_IFDIR && (kind != 0 || strcmp(run->data, "text") == 0))
        TESS_FAIL(TESS_ERR_USAGE,
                  "model %s learns from images, but --data %s is text or tokens: give a folder "
                  "of images, or synthetic, or choose a model that learns from text",
                  config->model->name, run->data);
    return tess_dataset_open_images(run->data, (int32_t)config->loader.size, dataset_out);
}

static const char *run_tokens(const struct tess_config *config)
{
    return tess_options_is_set(config->options, "data") ? config->run.data : "text";
}

/* Bytes of text are no tokens of a tokenizer, though each is a number below its vocabulary. */
static void run_check_bytes(const struct tess_config *config, const struct tess_dataset *dataset)
{
    if (config->init_vocabulary > RUN_BYTES && dataset->class_count == RUN_BYTES)
        tess_log(TESS_LOG_WARN,
                 "the data are bytes, and the weights of %s are of a model with %lld tokens: "
                 "training begins as if bytes were the first %d tokens of its tokenizer",
                 config->run.init, (long long)config->init_vocabulary, RUN_BYTES);
}

/* Tokens that the model does not have would be read beyond its embedding. */
static enum tess_status run_check_vocabulary(const struct tess_config *config, const char *data,
                                             const struct tess_dataset *dataset)
{
    const struct tess_model_folder *folder = config->folder;
    const int64_t vocabulary = config->init_vocabulary > 0 ? config->init_vocabulary
                               : folder != NULL            ? folder->vocabulary
                                                           : 0;
    if (vocabulary == 0 || dataset->class_count <= vocabulary)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE,
              "--data %s: its tokenizer has %d tokens, and the model of %s has %lld: prepare the "
              "data with the model's tokenizer (tessera data prepare --tokenizer), or give another "
              "model",
              data, dataset->class_count, folder != NULL ? folder->config : config->run.init,
              (long long)vocabulary);
}

/* Is it a folder that tessera data prepare has completed? */
static bool run_is_prepared(const char *folder)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof(path), "%s/index.json", folder) < (int)sizeof(path) &&
           run_kind_of(path) == S_IFREG;
}

static enum tess_status run_open_files(const struct tess_loader_options *loader, const char *files,
                                       struct tess_dataset **dataset_out)
{
    if (loader->packing)
        return tess_dataset_open_packed(files, loader->validation_files, loader->validation,
                                        loader->length, dataset_out);
    return tess_dataset_open_tokens(files, loader->validation_files, loader->validation,
                                    loader->length, dataset_out);
}

static enum tess_status run_open_prepared(const struct tess_config *config, const char *folder,
                                          struct tess_dataset **dataset_out)
{
    const struct tess_loader_options *loader = &config->loader;
    char pattern[PATH_MAX];
    if (snprintf(pattern, sizeof(pattern), "%s/tokens_*.bin", folder) >= (int)sizeof(pattern))
        TESS_FAIL(TESS_ERR_USAGE, "--data: the path %s is too long", folder);
    return run_open_files(loader, pattern, dataset_out);
}

static enum tess_status run_find_tokens(const struct tess_config *config, const char *data,
                                        struct tess_dataset **dataset_out)
{
    const struct tess_run_options *run = &config->run;
    const struct tess_loader_options *loader = &config->loader;

    if (strcmp(data, "synthetic") == 0 && loader->packing)
        TESS_FAIL(TESS_ERR_USAGE, "--data.packing: --data synthetic has no documents");
    if (strcmp(data, "synthetic") == 0)
        return tess_dataset_open_synthetic_tokens(loader->length, run->synthetic_rows,
                                                  run_synthetic_test_rows(run), (uint64_t)run->seed,
                                                  dataset_out);
    if (strcmp(data, "text") != 0 && run_kind_of(data) == S_IFDIR && run_is_prepared(data))
        return run_open_prepared(config, data, dataset_out);
    if (strcmp(data, "text") != 0 && run_kind_of(data) == S_IFDIR)
        TESS_FAIL(TESS_ERR_USAGE,
                  "model %s learns from text or tokens, but --data %s is a folder: name files, "
                  "such as --data '%s/*.txt' or '%s/*.bin', or leave --data out for made-up text",
                  config->model->name, data, data, data);
    TESS_TRY(run_open_files(loader, data, dataset_out));
    run_check_bytes(config, *dataset_out);
    return TESS_OK;
}

static enum tess_status run_open_tokens(const struct tess_config *config, const char *data,
                                        struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset;
    TESS_TRY(run_find_tokens(config, data, &dataset));
    const enum tess_status status = run_check_vocabulary(config, data, dataset);
    if (status == TESS_OK)
        *dataset_out = dataset;
    else
        tess_dataset_close(dataset);
    return status;
}

/* One set of --data.mix: "a:0.7". Sets are joined by commas, and a name may have colons. */
static enum tess_status run_open_share(const struct tess_config *config, char *word,
                                       double *weight_out, struct tess_dataset **dataset_out)
{
    char *colon = strrchr(word, ':'), *end = word;

    *weight_out = colon != NULL ? strtod(colon + 1, &end) : 0;
    if (colon == NULL || colon == word || end == colon + 1 || *end != '\0' ||
        !(*weight_out >= 1e-6 && *weight_out <= 1e6))
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--data.mix: '%s': expected a set, a colon and its share, 0.000001 to 1000000, as "
            "in a:0.7,b:0.3",
            word);
    *colon = '\0';
    return run_open_tokens(config, word, dataset_out);
}

static enum tess_status run_open_mix(const struct tess_config *config,
                                     struct tess_dataset **dataset_out)
{
    struct tess_dataset *set[TESS_MIX_MAX];
    double weight[TESS_MIX_MAX];
    int32_t count = 0;
    char *words = strdup(config->loader.mix), *rest = words;
    enum tess_status status = TESS_OK;

    if (words == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the sets of --data.mix");
    while (rest != NULL && status == TESS_OK) {
        char *word = strsep(&rest, ",");
        if (count == TESS_MIX_MAX)
            status = tess_fail(TESS_ERR_USAGE, "--data.mix: more than %d sets", TESS_MIX_MAX);
        else
            status = run_open_share(config, word, &weight[count], &set[count]);
        count += status == TESS_OK;
    }
    free(words);
    if (status == TESS_OK)
        return tess_dataset_mix(set, weight, count, dataset_out);
    for (int32_t k = 0; k < count; k++)
        tess_dataset_close(set[k]);
    return status;
}

static enum tess_status run_check_data(const struct tess_config *config)
{
    struct run_misfit misfit = {.tokens = config->model->tokens};

    tess_options_visit(config->options, run_find_misfit, &misfit);
    if (misfit.name != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--%s applies to %s only, and model %s learns from %s",
                  misfit.name, misfit.tokens ? "images" : "text and tokens", config->model->name,
                  misfit.tokens ? "text and tokens" : "images");
    if (config->loader.packing && !config->model->documents)
        TESS_FAIL(TESS_ERR_USAGE, "--data.packing: model %s does not keep documents apart",
                  config->model->name);
    if (config->loader.mix[0] != '\0' && config->loader.validation_files[0] != '\0')
        TESS_FAIL(TESS_ERR_USAGE,
                  "--data.mix takes validation samples from each of its sets: leave "
                  "--data.validation-files out");
    return TESS_OK;
}

enum tess_status tess__run_open_data(const struct tess_config *config,
                                     struct tess_dataset **dataset_out)
{
    TESS_TRY(run_check_data(config));
    if (config->model->tokens && config->loader.mix[0] != '\0')
        return run_open_mix(config, dataset_out);
    if (config->model->tokens)
        return run_open_tokens(config, run_tokens(config), dataset_out);
    return run_open_images(config, dataset_out);
}

bool tess__run_count_data(const struct tess_config *config, int64_t *train_out, int64_t *test_out)
{
    const struct tess_loader_options *loader = &config->loader;
    struct run_misfit misfit = {.tokens = config->model->tokens};

    tess_options_visit(config->options, run_find_misfit, &misfit);
    if (misfit.name != NULL || !config->model->tokens || strcmp(run_tokens(config), "text") != 0 ||
        loader->mix[0] != '\0' || loader->validation_files[0] != '\0' || loader->packing ||
        config->init_vocabulary > 0)
        return false;
    tess_dataset_text_counts(loader->validation, loader->length, train_out, test_out);
    return *train_out > 0 && *test_out > 0;
}

bool tess__run_same_data(const struct tess_config *a, const struct tess_config *b)
{
    bool same = a->model->tokens == b->model->tokens && strcmp(a->run.data, b->run.data) == 0;

    if (strcmp(a->run.data, "synthetic") == 0)
        same = same && a->run.seed == b->run.seed && a->run.synthetic_rows == b->run.synthetic_rows;
    if (!a->model->tokens)
        same = same && a->loader.size == b->loader.size;
    if (a->model->tokens)
        same = same && a->loader.length == b->loader.length &&
               a->loader.validation == b->loader.validation &&
               strcmp(a->loader.validation_files, b->loader.validation_files) == 0 &&
               strcmp(a->loader.mix, b->loader.mix) == 0 && a->loader.packing == b->loader.packing;
    return same;
}

/* ---- a run ----------------------------------------------------------------------------------- */

int32_t tess__run_alike(const struct tess_mesh *mesh, int32_t rank)
{
    int32_t at[TESS_AXIS_COUNT];

    memcpy(at, tess_mesh_at(mesh, rank).at, sizeof(at));
    at[TESS_AXIS_DATA] = at[TESS_AXIS_DATA] > 0;
    at[TESS_AXIS_TENSOR] = at[TESS_AXIS_TENSOR] > 0;
    return tess_mesh_rank(mesh, at);
}

static struct tess_job_memory *run_memory(struct tess__run *run, int32_t rank)
{
    const struct tess_mesh mesh = tess_mesh_at(&run->config->mesh, rank);

    if (!run->folded)
        return &run->predicted[rank];
    if (run->exact != NULL && run->exact[rank].total > 0)
        return &run->exact[rank];
    return &run->predicted[4 * mesh.at[TESS_AXIS_STAGE] + 2 * (mesh.at[TESS_AXIS_DATA] > 0) +
                           (mesh.at[TESS_AXIS_TENSOR] > 0)];
}

const struct tess_job_memory *tess__run_predicted(const struct tess__run *run, int32_t rank)
{
    return run_memory((struct tess__run *)run, rank);
}

static enum tess_status run_plan_ranks(struct tess__run *run)
{
    const struct tess_mesh *mesh = &run->config->mesh;
    const size_t ranks = (size_t)run->rank_count;

    run->folded = run->rank_count > RUN_EACH_MAX;
    run->predicted = calloc(run->folded ? 4 * (size_t)mesh->count[TESS_AXIS_STAGE] : ranks,
                            sizeof(*run->predicted));
    if (run->predicted == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a plan of %d ranks", run->rank_count);
    for (int32_t r = 0; r < run->rank_count; r++) {
        struct tess_engine *engine = NULL;

        if (run->folded && tess__run_alike(mesh, r) != r)
            continue;
        TESS_TRY(tess_engine_plan(run->config, run->dataset, r, &engine));
        *run_memory(run, r) = tess__run_memory(tess_engine_memory(engine));
        if (r == 0)
            run->planned = engine;
        else
            tess_engine_close(engine);
    }
    return TESS_OK;
}

enum tess_status tess__run_set_cores(struct tess__run *run, struct tess_config *config,
                                     int32_t cores)
{
    const int32_t threads = config->threads;
    tess_config_set_cores(config, cores);
    run->crowded = config->threads > cores;
    if (config->threads == threads)
        return TESS_OK;
    tess_engine_close(run->planned);
    run->planned = NULL;
    free(run->predicted);
    return run_plan_ranks(run);
}

enum tess_status tess__run_place(struct tess__run *run, struct tess_config *config,
                                 const struct tess_boot_env *env)
{
    TESS_TRY(tess__place_ranks(run, config, env));
    return config->started.rank_cores > 0
               ? TESS_OK
               : tess__run_set_cores(run, config, run->placed->rank_cores);
}

enum tess_status tess__run_open_planned(struct tess__run *run, struct tess_config *config,
                                        const struct tess_dataset *dataset)
{
    *run = (struct tess__run){
        .config = config,
        .dataset = dataset,
        .rank_count = (int32_t)config->run.ranks,
        .evaluate = config->run.evaluate,
        .log_every = config->run.log_every,
        .warm_steps = 3,
        .start_s = tess_clock_s(),
    };
    TESS_TRY(tess__place_check(config));
    run->crowded = config->threads > config->rank_cores;
    TESS_TRY(run_plan_ranks(run));
    TESS_TRY(tess_flops_count(config, dataset, &run->flops));
    run->chunk = calloc((size_t)run->rank_count * (size_t)tess_engine_chunk_count(run->planned),
                        sizeof(*run->chunk));
    run->placed = tess__placed_open();
    if (run->chunk == NULL || run->placed == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a run of %d ranks", run->rank_count);
    TESS_TRY(tess__place_devices(run, config));
    /* Ranks that others started are yet to be placed. */
    return config->started.starter == NULL ? tess__place_graph(run) : TESS_OK;
}

/* A bus id for tess__launch.bus. */
static const char *run_bus(const char *bus)
{
    return bus != NULL && bus[0] != '\0' ? bus : NULL;
}

enum tess_status tess__run_open(struct tess__run *run, struct tess_config *config,
                                const struct tess_dataset *dataset)
{
    TESS_TRY(tess__run_open_planned(run, config, dataset));
    const struct tess_device_plan *plan = &config->device;
    run->rank = calloc((size_t)run->rank_count, sizeof(*run->rank));
    run->usual = calloc((size_t)run->rank_count, sizeof(*run->usual));
    run->bus = calloc((size_t)run->rank_count, sizeof(*run->bus));
    if (run->rank == NULL || run->usual == NULL || run->bus == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a run of %d ranks", run->rank_count);
    for (int32_t r = 0; r < run->rank_count && plan->module != NULL; r++)
        run->bus[r] = run_bus(plan->info[plan->of_rank[r]].bus);
    return TESS_OK;
}

void tess__run_close(struct tess__run *run)
{
    tess__placed_close(run->placed);
    run->placed = NULL;
    tess_engine_close(run->planned);
    run->planned = NULL;
    free(run->chunk);
    run->chunk = NULL;
    free(run->predicted);
    run->predicted = NULL;
    free(run->exact);
    run->exact = NULL;
    free(run->bus);
    run->bus = NULL;
    free(run->rank);
    run->rank = NULL;
    free(run->usual);
    run->usual = NULL;
}

/* What this rank's own plan is. */
static void run_plan_exactly(struct tess__run *run, int32_t rank)
{
    struct tess_engine *engine = NULL;

    if (run->exact == NULL)
        run->exact = calloc((size_t)run->rank_count, sizeof(*run->exact));
    if (run->exact == NULL || tess_engine_plan(run->config, run->dataset, rank, &engine) != TESS_OK)
        return; /* then it differs from the plan */
    run->exact[rank] = tess__run_memory(tess_engine_memory(engine));
    tess_engine_close(engine);
}

static bool run_rank_as_predicted(const struct tess__run *run, int32_t rank)
{
    return memcmp(tess__run_predicted(run, rank), &run->rank[rank].allocated,
                  sizeof(*run->predicted)) == 0;
}

void tess__run_keep(struct tess__run *run, const struct tess__message *message)
{
    const int32_t chunks = tess_engine_chunk_count(run->planned);
    struct tess__run_chunk chunk;

    if (message->kind == TESS__RUN_RANK)
        memcpy(&run->rank[message->rank], message->payload, sizeof(run->rank[0]));
    else if (message->kind == TESS__RUN_USUAL)
        memcpy(&run->usual[message->rank], message->payload, sizeof(run->usual[0]));
    else if (message->kind == TESS__RUN_FINAL)
        memcpy(&run->final, message->payload, sizeof(run->final));
    if (message->kind == TESS__RUN_RANK && run->folded &&
        !run_rank_as_predicted(run, message->rank))
        run_plan_exactly(run, message->rank);
    if (message->kind != TESS__RUN_CHUNK)
        return;
    memcpy(&chunk, message->payload, sizeof(chunk));
    if (chunk.chunk >= 0 && chunk.chunk < chunks) /* else of a rank that runs something else */
        run->chunk[message->rank * chunks + chunk.chunk] = chunk;
}

struct tess__launch tess__run_launch(const struct tess__run *run)
{
    struct tess__launch launch = {
        .rank_count = run->rank_count,
        .peers = run->peers,
        .flight = run->flight,
        .mode = run->config->device.rank_mode,
        .bind = run->config->run.bind,
        .saves = run->config->saves,
        .stopped_s = run->config->run.timeout / 2, /* before those that wait for it give up */
        .bus = run->bus,
        .body = tess__run_body,
    };

    launch.unit_name = tess_engine_unit_names(run->planned, &launch.unit_count);
    if (run->peers == NULL)
        return launch;
    tess__placed_bind(run->placed, &launch);
    for (int32_t p = 0; p < launch.slot_count; p++)
        run->bus[p] = run_bus(run->bus[p]);
    return launch;
}

bool tess__run_has_mesh(const struct tess__run *run)
{
    return run->config->mesh.count[TESS_AXIS_DATA] != run->rank_count;
}

const char *tess__mesh_text(const int32_t axis[TESS_AXIS_COUNT], char text[TESS__MESH_TEXT_BYTES])
{
    snprintf(text, TESS__MESH_TEXT_BYTES, "data %d, tensor %d, stage %d", axis[TESS_AXIS_DATA],
             axis[TESS_AXIS_TENSOR], axis[TESS_AXIS_STAGE]);
    return text;
}

bool tess__run_as_predicted(const struct tess__run *run)
{
    for (int32_t r = 0; r < run->rank_count; r++)
        if (!run_rank_as_predicted(run, r))
            return false;
    return true;
}

double tess__run_processor_share(const struct tess__run *run)
{
    const bool says = !run->crowded && run->config->device.module == NULL;
    double share = 1;
    for (int32_t r = 0; r < run->rank_count && says; r++)
        share = fmin(share, run->rank[r].processor_share);
    return share;
}

/*
 * /proc/self/stat field 22 is the start in clock ticks since boot, so the age is known to 10 ms.
 * The program's name, field 2, may hold spaces: count from its closing bracket.
 */
double tess__run_process_start_s(void)
{
    double now_s = tess_clock_s();
    unsigned long long start_ticks = 0;
    struct timespec boot;
    char text[1024];
    char *field;
    FILE *stat = fopen("/proc/self/stat", "r");
    size_t count;

    if (stat == NULL)
        return now_s;
    count = fread(text, 1, sizeof(text) - 1, stat);
    fclose(stat);
    text[count] = '\0';
    field = strrchr(text, ')');
    for (int f = 2; field != NULL && f < 22; f++)
        field = strchr(field + 1, ' ');
    if (field == NULL || sscanf(field, "%llu", &start_ticks) != 1 ||
        clock_gettime(CLOCK_BOOTTIME, &boot) != 0)
        return now_s;
    return now_s - ((double)boot.tv_sec + 1e-9 * (double)boot.tv_nsec -
                    (double)start_ticks / (double)sysconf(_SC_CLK_TCK));
}
