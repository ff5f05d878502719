/*
 * Predictions beside figures that others have published, of their engines. docs/published.md has
 * the tables, the sources and what an engine is here; the test computes every line and count of
 * them again, and fails where the page differs.
 *
 *   test_published FOLDER      of the documents; or --table, which prints the tables
 */
#include "predict_fixture.h"

#include "predict/published_rows.h"
#include "tessera/status.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

#define WORDS_BYTES 1024
#define WORDS_MAX   80
#define LINE_BYTES  256
#define PAGE_BYTES  (1 << 20)
#define NEAR        0.15

/* ---- predictions ----------------------------------------------------------------------------- */

/* Sizes of a data set are all that a prediction reads of it. */
static struct tess_dataset declared(const struct published *row)
{
    return (struct tess_dataset){.tokens = true,
                                 .row = tess_shape1(row->length),
                                 .class_count = 256,
                                 .labels = row->length,
                                 .train = {.count = (int64_t)1 << 40},
                                 .deviation = 1};
}

static struct tess_config *opened(const struct published *row)
{
    struct tess_config *config;
    char words[WORDS_BYTES], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words),
             "--model gpt --data synthetic --data.length %d --gpt.context %d --precision bf16 "
             "--optimizer adamw --clip 1 --batch-size %d --ranks %d --device cuda --reduce fast %s",
             (int)row->length, (int)row->length, (int)row->batch, row->devices, row->options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &config), TESS_OK);
    return config;
}

/* The device, as the engine uses it. */
static struct tess_profile used(const char *device, const struct engine *engine)
{
    struct tess_profile profile = *tess_profile_find(device);
    const int side = strncmp(device, "a100", 4) == 0 ? AMPERE : LATER;
    profile.bytes_per_s /= engine->passes;
    if (engine->attention[side][0] > 0) {
        profile.attention_forward = engine->attention[side][0];
        profile.attention_backward = engine->attention[side][1];
    }
    return profile;
}

/* Seconds of a step; *fits: does its memory fit the device? */
static double predicted_s(const struct published *row, const struct engine *engine,
                          double tensor_share, bool *fits)
{
    struct tess_config *config = opened(row);
    const struct tess_dataset dataset = declared(row);
    const struct tess_profile profile = used(row->device, engine);
    struct tess_prediction prediction = {0};
    struct tess_cluster cluster;
    struct tess_network network;
    assert_int_equal(tess_cluster_of_device(row->device, row->devices, &cluster), TESS_OK);
    if (row->host_net_gbs > 0)
        cluster.host_net_bytes_per_s = row->host_net_gbs * 1e9;
    tess_network_make(&cluster, &config->mesh, &network);
    network.group[TESS_AXIS_TENSOR].host_bytes_per_s /= tensor_share;
    assert_int_equal(tess_predict_step(config, &dataset, &profile, &network, &prediction), TESS_OK);
    const double seconds = prediction.step_s;
    *fits = (double)prediction.stage[prediction.fullest].memory_total <=
            profile.memory_bytes - profile.beside_bytes;
    tess_prediction_fini(&prediction);
    tess_config_close(config);
    return seconds;
}

/* Predicted by published: of this engine, and as the row's engine works. */
struct ratios {
    double own_s, own, as;
    bool fits;
};

static struct ratios ratios(const struct published *row)
{
    struct ratios r;
    bool fits;
    r.own_s = predicted_s(row, &native, 1, &r.fits);
    r.own = r.own_s / row->seconds;
    r.as = predicted_s(row, row->engine, row->tensor_share > 0 ? row->tensor_share : 1, &fits) /
           row->seconds;
    return r;
}

static bool near(double ratio)
{
    return fabs(ratio - 1) <= NEAR;
}

/* ---- the page -------------------------------------------------------------------------------- */

static const char rows_head[] =
    "| model | devices | layout | engine | published | this engine | ratio | as theirs | use |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |";

static void row_line(const struct published *row, const struct ratios *r, char line[LINE_BYTES])
{
    snprintf(line, LINE_BYTES, "| %s | %d %s | %s | %s | %.3g | %.3g%s | %.2f | %.2f | %s |",
             row->model, row->devices, row->device, row->layout, row->engine->name, row->seconds,
             r->own_s, r->fits ? "" : " *", r->own, r->as, row->fitted ? "fitted" : "kept");
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* One source, or all (NULL): how many were kept back, how many of these are near, as this engine
 * and as their engine, and the latter's least, median and greatest ratio. */
static void source_line(const char *source, const struct ratios *r, char line[LINE_BYTES])
{
    double as[COUNT(published)];
    int kept = 0, own = 0, theirs = 0;
    for (int i = 0; i < COUNT(published); i++) {
        if (published[i].fitted || (source != NULL && strcmp(published[i].source, source) != 0))
            continue;
        own += near(r[i].own);
        theirs += near(r[i].as);
        as[kept++] = r[i].as;
    }
    qsort(as, (size_t)kept, sizeof(*as), by_value);
    snprintf(line, LINE_BYTES, "| %s | %d | %d | %d | %.2f | %.2f | %.2f |",
             source != NULL ? source : "all", kept, own, theirs, as[0], as[kept / 2], as[kept - 1]);
}

/* The sentence of docs/plan.md. */
static void plan_line(const struct ratios *r, char line[LINE_BYTES])
{
    int kept = 0, own = 0, theirs = 0;
    for (int i = 0; i < COUNT(published); i++) {
        kept += !published[i].fitted;
        own += !published[i].fitted && near(r[i].own);
        theirs += !published[i].fitted && near(r[i].as);
    }
    snprintf(line, LINE_BYTES,
             "**%d of %d published steps that were kept back are within 15 %%, as their engines "
             "work; %d as this engine works.**",
             theirs, kept, own);
}

static bool first_of_source(int i)
{
    return i == 0 || strcmp(published[i].source, published[i - 1].source) != 0;
}

static void print_tables(void)
{
    struct ratios r[COUNT(published)];
    char line[LINE_BYTES];
    for (int i = 0; i < COUNT(published); i++)
        r[i] = ratios(&published[i]);
    plan_line(r, line);
    puts(line);
    for (int i = 0; i < COUNT(published); i++)
        if (first_of_source(i)) {
            source_line(published[i].source, r, line);
            puts(line);
        }
    source_line(NULL, r, line);
    puts(line);
    for (int i = 0; i < COUNT(published); i++) {
        if (first_of_source(i))
            printf("\n### %s\n\n%s\n", published[i].source, rows_head);
        row_line(&published[i], &r[i], line);
        puts(line);
    }
}

static const char *folder;

static void read_page(const char *name, char text[PAGE_BYTES])
{
    char path[WORDS_BYTES];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, PAGE_BYTES - 1, file)] = '\0';
    fclose(file);
}

static void holds(const char *text, const char *line)
{
    if (strstr(text, line) == NULL)
        fail_msg("the page lacks this line of test_published --table:\n%s", line);
}

static int occurrences(const char *text, const char *word)
{
    int count = 0;
    while ((text = strstr(text, word)) != NULL) {
        text += strlen(word);
        count++;
    }
    return count;
}

/* Every line is there, and no line of a row that is no longer computed. Sanitizers take some of the
 * rows, and so cannot sum them up. */
static void case_tables(void **state)
{
    static char page[PAGE_BYTES], plan[PAGE_BYTES];
    struct ratios r[COUNT(published)];
    char line[LINE_BYTES];
    (void)state;
    read_page("published.md", page);
    read_page("plan.md", plan);
    for (int i = 0; i < COUNT(published); i += TESTS_DIVISOR) {
        r[i] = ratios(&published[i]);
        row_line(&published[i], &r[i], line);
        holds(page, line);
    }
    if (TESTS_DIVISOR > 1)
        return;
    for (int i = 0; i < COUNT(published); i++)
        if (first_of_source(i)) {
            source_line(published[i].source, r, line);
            holds(page, line);
        }
    source_line(NULL, r, line);
    holds(page, line);
    plan_line(r, line);
    holds(plan, line);
    assert_int_equal(occurrences(page, " | kept |\n") + occurrences(page, " | fitted |\n"),
                     COUNT(published));
}

/* Bytes for a token and a layer that passes of this engine move, in units of two bytes x width:
 * what two more layers add, the update left out. */
static double layer_units(const char *options)
{
    struct published row = {.device = "h100-80", .devices = 1, .batch = 16, .length = 2048};
    double seconds[2];
    for (int more = 0; more < 2; more++) {
        char words[WORDS_BYTES];
        struct tess_prediction prediction;
        struct tess_cluster cluster;
        struct tess_network network;
        snprintf(words, sizeof(words),
                 "%s --strategy single --gpt.vocab 1024 --gpt.width 4096 --gpt.heads 32 "
                 "--gpt.layers %d",
                 options, 2 + 2 * more);
        row.options = words;
        struct tess_config *config = opened(&row);
        const struct tess_dataset dataset = declared(&row);
        assert_int_equal(tess_cluster_of_device(row.device, 1, &cluster), TESS_OK);
        tess_network_make(&cluster, &config->mesh, &network);
        assert_int_equal(tess_predict_step(config, &dataset, tess_profile_find(row.device),
                                           &network, &prediction),
                         TESS_OK);
        seconds[more] = prediction.stage[0].pass_s - prediction.stage[0].optim_s;
        tess_prediction_fini(&prediction);
        tess_config_close(config);
    }
    return (seconds[1] - seconds[0]) * tess_profile_find(row.device)->bytes_per_s /
           (2.0 * (double)(row.batch * row.length) * 2 * 4096);
}

/* The page's counts: here, and of the engines by those. */
static void case_passes(void **state)
{
    static const struct {
        const char *options;
        double here, theirs;
        const struct engine *engine;
    } count[] = {
        {"--gpt.style llama --gpt.kv-heads 8 --gpt.ffn 14336", 47, 64, &compiled},
        {"--gpt.style llama --gpt.kv-heads 8 --gpt.ffn 14336", 47, 224, &eager_llama},
        {"", 31, 52, &eager_gpt},
        {"--gpt.dropout 0.1", 42, 62, &apart},
    };
    (void)state;
    for (int i = 0; i < COUNT(count); i++) {
        const double here = layer_units(count[i].options);
        assert_true(fabs(here - count[i].here) < 0.5);
        assert_true(fabs(count[i].theirs / here / count[i].engine->passes - 1) < 0.01);
    }
}

/* What profiles and engines were fitted to: a step of each device, and what a step gains by the
 * overlap of calls along the tensor axis (two rows: without and with it). */
static void case_fitted(void **state)
{
    struct ratios gain[2] = {{0}};
    int devices = 0, pair = 0;
    (void)state;
    for (int i = 0; i < COUNT(published); i++) {
        if (!published[i].fitted)
            continue;
        const struct ratios r = ratios(&published[i]);
        if (published[i].engine == &native) {
            assert_true(near(r.own) && fabs(r.own - 1) < 0.005);
            devices++;
        } else if (pair < 2) {
            gain[pair++] = r;
        }
    }
    assert_int_equal(devices, 2);
    assert_int_equal(pair, 2);
    assert_true(fabs(gain[0].as / gain[1].as - 1) < 0.005);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_tables),
        cmocka_unit_test(case_passes),
        cmocka_unit_test(case_fitted),
    };
    if (argc != 2)
        return 2;
    folder = argv[1];
    if (strcmp(folder, "--table") != 0)
        return cmocka_run_group_tests(cases, NULL, NULL);
    print_tables();
    return 0;
}
