/*
 * Every strategy and product of strategies gives the bits of one rank, whatever else is chosen: a
 * run for each row of an all-pairs design (pairs.h) over strategy, ranks, model, precision,
 * optimizer, accumulation, recompute, tensor parts, transport and kernel backend, against `single`
 * with the same numbers. Hashes of all parameters, losses, accuracies and norms are the same, and
 * every rank allocates what its plan predicts.
 *
 *   test_pairs [VALUE]... [few] [--list]
 *
 * A value (threads, ref, mlp ...) is the only one of its factor; few: each fourth row; --list
 * prints the rows and runs none. The complete products are in test_equivalence and test_mesh, with
 * the word full.
 */
#include "pairs.h"
#include "runs.h"

#include "config/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- factors --------------------------------------------------------------------------------- */

enum {
    STRATEGY,
    RANKS,
    MODEL,
    PRECISION,
    OPTIMIZER,
    ACCUMULATE,
    RECOMPUTE,
    PARTS,
    TRANSPORT,
    KERNEL,
    FACTORS
};

#define BUCKETS(name) "--" name ".first-bucket-mib 0.002 --" name ".bucket-mib 0.006"

/* Ways to lay a step out; the axes of a product, and the other options. */
static const struct {
    const char *strategy, *options;
    bool data, tensor, stage;
} layouts[] = {
    {"dp", "", true, false, false},
    {"ddp", BUCKETS("ddp"), true, false, false},
    {"ddp", "--ddp.overlap=off", true, false, false},
    {"ddp", "--ddp.sync-every-micro-batch=on " BUCKETS("ddp"), true, false, false},
    {"zero1", BUCKETS("zero1"), true, false, false},
    {"zero2", BUCKETS("zero2"), true, false, false},
    {"zero2", "--zero2.first-bucket-mib 0 --zero2.bucket-mib 0", true, false, false},
    {"fsdp", "", true, false, false},
    {"fsdp", "--fsdp.keep-last 2", true, false, false},
    {"fsdp", "--fsdp.reshard-after-forward=off", true, false, false},
    {"hsdp", "", true, false, false},
    {"tp", "", false, true, false},
    {"tp", "--tensor.runs 2", false, true, false},
    {"pp", "", false, false, true},
    {"pp", "--pp.schedule gpipe", false, false, true},
    {"pp", "--pp.schedule interleaved", false, false, true},
    {"ddp+tp", "", true, true, false},
    {"zero1+tp", "", true, true, false},
    {"zero2+tp", "--tensor.runs 2", true, true, false},
    {"fsdp+tp", "", true, true, false},
    {"hsdp+tp", "", true, true, false},
    {"ddp+pp", "--ddp.sync-every-micro-batch=on", true, false, true},
    {"zero1+pp", "--pp.schedule gpipe", true, false, true},
    {"zero2+pp", "--pp.schedule interleaved", true, false, true},
    {"fsdp+pp", "--fsdp.reshard-after-forward=on", true, false, true},
    {"hsdp+pp", "--pp.schedule gpipe", true, false, true},
    {"tp+pp", "--pp.schedule interleaved --tensor.runs 2", false, true, true},
    {"ddp+tp+pp", "--pp.schedule interleaved", true, true, true},
    {"zero2+tp+pp", "--pp.schedule gpipe", true, true, true},
    {"fsdp+tp+pp", "", true, true, true},
};

static const int32_t ranks[] = {1, 2, 3, 4, 6, 8};
static const char *const ranks_words[] = {"1", "2", "3", "4", "6", "8"};

/* Images of 6 x 6 where nothing divides anything; a vocabulary of 300 is padded. */
enum { MLP, WRN, GPT, LLAMA };
#define TOKENS "--model gpt --data.length 8 --gpt.dropout 0.1 "
static const char *const models[] = {
    "--model mlp --mlp.hidden 40,24,36 --mlp.dropout 0.1",
    "--model wrn --wrn.depth 10 --wrn.width 1",
    TOKENS "--gpt.layers 4 --gpt.width 16 --gpt.vocab 300",
    TOKENS "--gpt.style llama --gpt.layers 5 --gpt.ffn 16 --gpt.heads 8 --gpt.kv-heads 4 "
           "--gpt.width 32",
};
static const char *const model_words[] = {"mlp", "wrn", "gpt", "llama"};

static const char *const precisions[] = {
    "--precision f32",
    "--precision bf16",
    "--precision bf16 --master-weights off --rounding stochastic",
};
static const char *const precision_words[] = {"f32", "bf16", "bf16-alone"};

static const char *const optimizers[] = {
    "--optimizer momentum --clip 0.5",
    "--optimizer adamw --weight-decay 0.01 --clip 0.3",
    "--optimizer novograd --weight-decay 0.001",
    "--optimizer lamb",
};
static const char *const optimizer_words[] = {"momentum", "adamw", "novograd", "lamb"};

static const char *const accumulates[] = {"1", "2", "4"};
static const char *const recomputes[] = {"none", "full", "every:2"};
static const char *const parts[] = {"0", "4"};

enum { THREADS, PROCESSES, TCP };
static const char *const transports[] = {"threads", "processes", "tcp"};

static const char *const kernels[] = {"ref", "cpu", "guard", "guard_queue", "cuda"};
enum { FIRST_FAR = 3 }; /* from here on memory is a device's */
static bool kernel_built[COUNT(kernels)];

static struct pairs_factor factors[FACTORS] = {
    [STRATEGY] = {"strategy", NULL, COUNT(layouts), PAIRS_OPEN},
    [RANKS] = {"ranks", ranks_words, COUNT(ranks), PAIRS_OPEN},
    [MODEL] = {"model", model_words, COUNT(models), PAIRS_OPEN},
    [PRECISION] = {"precision", precision_words, COUNT(precisions), PAIRS_OPEN},
    [OPTIMIZER] = {"optimizer", optimizer_words, COUNT(optimizers), PAIRS_OPEN},
    [ACCUMULATE] = {"accumulate", accumulates, COUNT(accumulates), PAIRS_OPEN},
    [RECOMPUTE] = {"recompute", recomputes, COUNT(recomputes), PAIRS_OPEN},
    [PARTS] = {"parts", parts, COUNT(parts), PAIRS_OPEN},
    [TRANSPORT] = {"transport", transports, COUNT(transports), PAIRS_OPEN},
    [KERNEL] = {"kernel", kernels, COUNT(kernels), PAIRS_OPEN},
};
static struct pairs design;

/* Words of the layouts: the strategy and the first of its options without dashes. */
static void name_layouts(void)
{
    static char text[COUNT(layouts)][64];
    static const char *words[COUNT(layouts)];
    for (int l = 0; l < COUNT(layouts); l++) {
        const char *options = layouts[l].options;
        snprintf(text[l], sizeof(text[l]), "%s%s%.*s", layouts[l].strategy,
                 options[0] != '\0' ? " " : "", (int)strcspn(options, " "), options);
        words[l] = text[l];
    }
    factors[STRATEGY].value = words;
}

/* ---- rules ----------------------------------------------------------------------------------- */

struct mesh {
    int32_t data, tensor, stage;
};

/* The mesh of a layout on that many ranks; false: there is none. */
static bool mesh_of(int layout, int32_t count, struct mesh *mesh_out)
{
    const bool data = layouts[layout].data, tensor = layouts[layout].tensor;
    const bool stage = layouts[layout].stage;
    const int axes = data + tensor + stage;
    struct mesh mesh = {1, 1, 1};
    if (axes == 1) {
        *(data ? &mesh.data : tensor ? &mesh.tensor : &mesh.stage) = count;
    } else if (axes == 2 && count >= 4 && count % 2 == 0) {
        *(data ? &mesh.data : &mesh.tensor) = stage || count != 6 ? 2 : 3;
        *(stage ? &mesh.stage : &mesh.tensor) = stage || count != 6 ? count / 2 : 2;
    } else if (axes == 3 && count == 8) {
        mesh = (struct mesh){2, 2, 2};
    } else {
        return false;
    }
    *mesh_out = mesh;
    return mesh.tensor <= 2 || mesh.tensor == 4;
}

static int32_t grid_of(const struct mesh *mesh)
{
    return mesh->data % 3 == 0 ? 24 : 16;
}

static bool power_of_two(int32_t n)
{
    return (n & (n - 1)) == 0;
}

/* The batch's leaves dealt out: micro-batches before ranks where all of a strategy's ranks need the
 * sum of one micro-batch before the next. */
static bool legal_grid(int layout, const struct mesh *mesh, int32_t accumulate)
{
    static const char *const micro_first[] = {"fsdp", "hsdp", "zero2"};
    const int32_t grid = grid_of(mesh);
    bool first = false;
    for (int i = 0; i < COUNT(micro_first); i++)
        first = first || strstr(layouts[layout].strategy, micro_first[i]) != NULL;
    first = first || strstr(layouts[layout].options, "sync-every") != NULL;
    return grid % (mesh->data * accumulate) == 0 &&
           (!first || accumulate == 1 || power_of_two(grid / accumulate));
}

/* Chunks are of whole units. */
static bool legal_stages(int layout, const struct mesh *mesh, int32_t accumulate, int model)
{
    static const int32_t units[] = {4, 5, 8, 8};
    const bool interleaved = strstr(layouts[layout].options, "interleaved") != NULL;
    if (mesh->stage == 1)
        return !interleaved;
    if (interleaved && accumulate > 0 && accumulate % mesh->stage != 0)
        return false;
    return model == PAIRS_OPEN || mesh->stage * (interleaved ? 2 : 1) <= units[model];
}

static bool legal(const int *value)
{
    const int layout = value[STRATEGY];
    const int32_t accumulate =
        value[ACCUMULATE] == PAIRS_OPEN ? 0 : (int32_t)atoi(accumulates[value[ACCUMULATE]]);
    struct mesh mesh;
    for (int f = 0; f < FACTORS; f++)
        if (factors[f].only != PAIRS_OPEN && value[f] != PAIRS_OPEN && value[f] != factors[f].only)
            return false;
    if (value[KERNEL] != PAIRS_OPEN && !kernel_built[value[KERNEL]])
        return false;
    if (value[KERNEL] >= FIRST_FAR && value[TRANSPORT] > THREADS)
        return false; /* ranks reach each other's device memory */
    if (value[RANKS] == 0 && value[TRANSPORT] == TCP)
        return false; /* one rank has no peer */
    if (layout == PAIRS_OPEN)
        return true;
    if (strcmp(layouts[layout].strategy, "dp") == 0 && value[TRANSPORT] > THREADS)
        return false; /* ranks share their memory */
    if (layouts[layout].tensor && value[PARTS] == 0)
        return false;
    if (value[RANKS] == PAIRS_OPEN)
        return true;
    return mesh_of(layout, ranks[value[RANKS]], &mesh) &&
           (accumulate == 0 || legal_grid(layout, &mesh, accumulate)) &&
           legal_stages(layout, &mesh, accumulate, value[MODEL]);
}

/* ---- runs ------------------------------------------------------------------------------------ */

#define WORDS_BYTES 1024

/* What changes no bit is left out for `single`. */
static struct run row_run(const int *value, bool single, char *words)
{
    const int layout = value[STRATEGY];
    const char *kernel = kernels[value[KERNEL]];
    struct mesh mesh;
    char more[512] = "";
    assert_true(mesh_of(layout, ranks[value[RANKS]], &mesh));
    if (!single)
        snprintf(more, sizeof(more),
                 "--accumulate %s --recompute %s %s --mesh data=%d,tensor=%d,stage=%d",
                 accumulates[value[ACCUMULATE]], recomputes[value[RECOMPUTE]],
                 layouts[layout].options, (int)mesh.data, (int)mesh.tensor, (int)mesh.stage);
    snprintf(words, WORDS_BYTES,
             "%s %s %s --batch-size 48 --grid %d --learning-rate 0.02 --bind=off --data.workers 0 "
             "--tensor.canonical %s %s",
             models[value[MODEL]], precisions[value[PRECISION]], optimizers[value[OPTIMIZER]],
             (int)grid_of(&mesh), parts[value[PARTS]], more);
    if (single && strncmp(kernel, "guard", 5) == 0)
        kernel = "ref"; /* which it computes with */
    return (struct run){.strategy = single ? "single" : layouts[layout].strategy,
                        .kernel = kernel,
                        .options = words,
                        .rank_count = single ? 1 : ranks[value[RANKS]],
                        .steps = 2,
                        .evaluate = true,
                        .mode =
                            value[TRANSPORT] == THREADS ? TESS_RANKS_THREADS : TESS_RANKS_PROCESSES,
                        .tcp = !single && value[TRANSPORT] == TCP};
}

/* The bits of `single` are the same for rows that differ in the layout alone. */
static void expect_of(const int *value, struct run_outcome *expected_out)
{
    static struct {
        char words[WORDS_BYTES];
        const char *kernel;
        struct run_outcome outcome;
    } known[PAIRS_ROWS_MAX];
    static int count;
    char words[WORDS_BYTES];
    const struct run run = row_run(value, true, words);
    int k = 0;
    while (k < count && (strcmp(known[k].words, words) != 0 || known[k].kernel != run.kernel))
        k++;
    if (k == count) {
        memcpy(known[k].words, words, sizeof(words));
        known[k].kernel = run.kernel;
        run_train(&run, &known[k].outcome);
        count++;
    }
    *expected_out = known[k].outcome;
}

static int row_step = 1;

static void test_rows(void **state)
{
    (void)state;
    for (int r = 0; r < design.row_count; r += row_step) {
        struct run_outcome expected;
        char words[WORDS_BYTES];
        expect_of(design.row[r], &expected);
        const struct run run = row_run(design.row[r], false, words);
        run_compare(&run, &expected);
    }
}

/* ---- the design itself ----------------------------------------------------------------------- */

/* The engine refuses what the rules refuse, and no more: the rules hide nothing from the design. */
static void test_rules(void **state)
{
    int value[FACTORS] = {0}, refused = 0;
    (void)state;
    for (int layout = 0; layout < COUNT(layouts); layout++)
        for (int more = 0; more < COUNT(ranks) * COUNT(models) * COUNT(accumulates); more++) {
            struct mesh mesh;
            char words[WORDS_BYTES];
            value[STRATEGY] = layout;
            value[RANKS] = more % COUNT(ranks);
            value[MODEL] = more / COUNT(ranks) % COUNT(models);
            value[ACCUMULATE] = more / COUNT(ranks) / COUNT(models);
            value[PARTS] = layouts[layout].tensor;
            if (!mesh_of(layout, ranks[value[RANKS]], &mesh))
                continue;
            const struct run run = row_run(value, false, words);
            const enum tess_status status = run_plan(&run);
            if ((status == TESS_OK) != legal(value))
                fail_msg("%s on %d ranks with %s: %s, and the rules differ", run.strategy,
                         (int)run.rank_count, words, tess_status_text(status));
            refused += status != TESS_OK;
        }
    assert_true(refused > 0);
}

/* Over the whole product: rows are legal, and all pairs of legal combinations are in rows. */
static void test_covered(void **state)
{
    static bool covered[FACTORS][PAIRS_VALUES_MAX][FACTORS][PAIRS_VALUES_MAX];
    int value[FACTORS] = {0}, at = 0;
    (void)state;
    for (int r = 0; r < design.row_count; r++) {
        const int *row = design.row[r];
        assert_true(legal(row));
        for (int f = 0; f < FACTORS; f++)
            for (int g = 0; g < FACTORS; g++)
                covered[f][row[f]][g][row[g]] = true;
    }
    while (at < FACTORS) {
        for (int f = legal(value) ? 0 : FACTORS; f < FACTORS; f++)
            for (int g = 0; g < f; g++)
                if (!covered[f][value[f]][g][value[g]])
                    fail_msg("%s %s with %s %s is legal and in no row", factors[f].name,
                             factors[f].value[value[f]], factors[g].name,
                             factors[g].value[value[g]]);
        for (at = 0; at < FACTORS && ++value[at] == factors[at].count; at++)
            value[at] = 0;
    }
}

/* A device's kernels only where they are asked for. What guard's pages catch, sanitizers catch in
 * ref. */
static void find_kernels(void)
{
    int count;
    const char *const *name = tess_registry_names(TESS_REGISTRY_KERNEL, &count);
    for (int k = 0; k < COUNT(kernels); k++)
        for (int i = 0; i < count && (TESTS_DIVISOR == 1 || strcmp(kernels[k], "guard") != 0); i++)
            kernel_built[k] =
                kernel_built[k] || (strcmp(kernels[k], name[i]) == 0 &&
                                    (strcmp(name[i], "cuda") != 0 || factors[KERNEL].only == k));
}

/* A word of the command line that is a value of the factor leaves it alone. */
static bool take_word(struct pairs_factor *factor, const char *word)
{
    for (int v = 0; v < factor->count; v++)
        if (strcmp(factor->value[v], word) == 0) {
            factor->only = v;
            return true;
        }
    return false;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covered),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rules),
    };
    const struct CMUnitTest alone[] = {tests[0], tests[1]}; /* some values: other rules */
    bool list = false, all = true;
    name_layouts();
    for (int i = 1; i < argc; i++) {
        list = list || strcmp(argv[i], "--list") == 0;
        row_step = strcmp(argv[i], "few") == 0 ? 4 : row_step;
        for (int f = 0; f < FACTORS; f++)
            all = !take_word(&factors[f], argv[i]) && all;
        if (factors[KERNEL].only != PAIRS_OPEN)
            run_is_kernel(kernels[factors[KERNEL].only]); /* ends here where it needs a device that
                                                             is not there */
    }
    find_kernels();
    design.factor = factors;
    design.factor_count = FACTORS;
    design.legal = legal;
    if (!pairs_make(&design))
        return 1;
    if (list)
        pairs_print(&design);
    return list  ? 0
           : all ? cmocka_run_group_tests(tests, NULL, NULL)
                 : cmocka_run_group_tests(alone, NULL, NULL);
}
