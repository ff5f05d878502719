/*
 * Products of strategies on a mesh give the bits of one rank: hashes of all parameters, losses,
 * accuracies, gradient norms, shares of zeros and the bytes of saved weights are the same.
 *
 *   test_mesh [threads] [processes] [cpu] [guard] [full]
 *
 * threads is the default; processes: ranks are forked; cpu, guard: kernels other than ref. Four
 * models (both styles, tied and not, in f32 and bf16, with clipping and four optimizers) meet
 * layouts on 2, 3, 4, 6 and 8 ranks, which take turns in the data strategy, the schedule, the
 * number of micro-batches and recompute. full: every model meets every layout, with guard (which is
 * slow) every third of them; else test_pairs has the layouts, and here are two tensor ranks and
 * saved weights, each layout with one model.
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static enum tess_rank_mode mesh_mode = TESS_RANKS_THREADS;
static const char *mesh_kernel = "ref";
static bool mesh_full;

#define MESH_GPT                                                                                   \
    "--model gpt --data.length 8 --batch-size 24 --learning-rate 0.01 --gpt.dropout 0.1 "          \
    "--bind=off --data.workers 0 "
#define MESH_LLAMA MESH_GPT "--gpt.style llama --gpt.layers 5 --gpt.ffn 16 "

/* Eight units each. A vocabulary of 300 is padded, by 84 rows that have no gradient. */
static const char *const mesh_model[] = {
    MESH_GPT "--gpt.layers 4 --gpt.width 16 --gpt.vocab 300 --optimizer adamw --clip 0.1",
    MESH_LLAMA "--gpt.heads 8 --gpt.kv-heads 4 --gpt.width 32 --precision bf16 --optimizer lamb",
    MESH_GPT "--gpt.layers 4 --gpt.width 16 --gpt.tied off --gpt.vocab 300 --precision bf16 "
             "--master-weights off --rounding stochastic --optimizer momentum --clip 0.2",
    MESH_LLAMA "--gpt.width 16 --gpt.tied on --gpt.head-size 6 --gpt.qkv-bias on --gpt.qk-norm on "
               "--optimizer novograd --weight-decay 0.01",
};

/* A way to lay a step out, and the leaves that the batch is cut into for it. */
struct mesh_layout {
    int32_t ranks, grid;
    const char *strategy, *options;
};

#define MESH_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Nothing is cut by width: no sum is taken in another order than on one rank. */
static const struct mesh_layout mesh_whole[] = {
    {2, 8, "pp", "--accumulate 4"},
    {2, 8, "pp", "--pp.schedule interleaved --accumulate 4 --recompute selective"},
    {2, 8, "fsdp", "--accumulate 2 --recompute full"},
    {3, 12, "pp", "--accumulate 6 --recompute every:3"},
    {3, 12, "zero2", ""},
    {4, 8, "pp", "--pp.schedule gpipe --accumulate 4 --recompute full"},
    {4, 8, "pp", "--accumulate 8 --recompute every:2"},
    {4, 8, "dp", ""},
    {4, 8, "ddp+pp", "--mesh data=2,stage=2 --ddp.sync-every-micro-batch=on"},
    {4, 8, "zero1+pp", "--mesh data=2,stage=2 --pp.schedule gpipe"},
    {4, 8, "zero2+pp", "--mesh data=2,stage=2 --pp.schedule interleaved"},
    {4, 8, "fsdp+pp", "--mesh data=2,stage=2 --accumulate 4"},
    {6, 12, "ddp+pp", "--mesh data=3,stage=2 --recompute selective"},
    {6, 12, "fsdp+pp", "--mesh data=2,stage=3 --pp.schedule interleaved"},
    {8, 8, "fsdp+pp", "--mesh data=4,stage=2 --fsdp.reshard-after-forward=on"},
    {8, 8, "hsdp+pp", "--mesh data=4,stage=2 --pp.schedule gpipe"},
    {8, 8, "zero1+pp", "--mesh data=2,stage=4 --pp.schedule interleaved --accumulate 4"},
};

/* Widths are cut into four parts on any number of ranks. */
#define MESH_PARTS "--tensor.canonical 4 "
static const struct mesh_layout mesh_parts[] = {
    {2, 8, "tp", MESH_PARTS "--tensor.runs 4"},
    {2, 8, "pp", MESH_PARTS "--accumulate 2"},
    {4, 8, "tp", MESH_PARTS "--recompute full"},
    {4, 8, "tp+pp", MESH_PARTS "--mesh tensor=2,stage=2 --accumulate 4"},
    {4, 8, "ddp+tp", MESH_PARTS "--mesh data=2,tensor=2 --recompute selective --tensor.runs 2"},
    {4, 8, "zero1+tp", MESH_PARTS "--mesh data=2,tensor=2 --accumulate 2"},
    {6, 12, "ddp+tp", MESH_PARTS "--mesh data=3,tensor=2 --accumulate 2"},
    {6, 12, "tp+pp", MESH_PARTS "--mesh tensor=2,stage=3 --pp.schedule gpipe"},
    {8, 8, "zero2+tp", MESH_PARTS "--mesh data=2,tensor=4"},
    {8, 8, "fsdp+tp", MESH_PARTS "--mesh data=4,tensor=2"},
    {8, 8, "hsdp+tp", MESH_PARTS "--mesh data=4,tensor=2 --recompute every:2"},
    {8, 8, "fsdp+tp+pp", MESH_PARTS "--mesh data=2,tensor=2,stage=2"},
    {8, 8, "ddp+tp+pp", MESH_PARTS "--mesh data=2,tensor=2,stage=2 --pp.schedule interleaved"},
    {8, 8, "zero2+tp+pp",
     MESH_PARTS "--mesh data=2,tensor=2,stage=2 --pp.schedule gpipe --recompute full"},
    {8, 8, "tp+pp", MESH_PARTS "--mesh tensor=4,stage=2 --pp.schedule interleaved --accumulate 8"},
    {8, 8, "tp+pp", MESH_PARTS "--mesh tensor=2,stage=4 --recompute selective"},
};

/* `words` holds the run's options. */
static struct run mesh_run(int model, const struct mesh_layout *layout, const char *more,
                           char words[768])
{
    snprintf(words, 768, "%s --grid %d %s %s", mesh_model[model], (int)layout->grid,
             layout->options, more);
    return (struct run){.strategy = layout->strategy,
                        .kernel = mesh_kernel,
                        .options = words,
                        .rank_count = layout->ranks,
                        .steps = 3,
                        .evaluate = true,
                        .mode =
                            strcmp(layout->strategy, "dp") == 0 ? TESS_RANKS_THREADS : mesh_mode};
}

/* Models and layouts that meet. */
static bool mesh_meets(int model, int layout)
{
    if (strcmp(mesh_kernel, "guard") == 0 && layout % 3 != 0)
        return false;
    return mesh_full || layout % MESH_COUNT(mesh_model) == model;
}

/* As many parts as ranks: sums that two ranks make. */
static const struct mesh_layout mesh_two[] = {
    {2, 8, "tp", "--recompute selective"},
    {2, 8, "tp", "--recompute selective --tensor.runs 8"},
    {2, 8, "tp", "--recompute full --accumulate 2"},
    {4, 8, "tp+pp", "--mesh tensor=2,stage=2 --pp.schedule interleaved"},
    {4, 8, "zero2+tp", "--mesh data=2,tensor=2"},
    {6, 8, "tp+pp", "--mesh tensor=2,stage=3 --accumulate 8 --recompute every:2"},
    {8, 8, "fsdp+tp+pp", "--mesh data=2,tensor=2,stage=2"},
};

/* Every layout against `base`, with its options, and as many leaves. */
static void mesh_compare(const struct mesh_layout *layout, int layouts,
                         const struct mesh_layout *base)
{
    char words[768];
    for (int m = 0; m < MESH_COUNT(mesh_model); m++) {
        struct run_outcome expected[13] = {{0}}; /* by leaves */
        for (int l = 0; l < layouts; l++) {
            struct run_outcome *wanted = &expected[layout[l].grid];
            struct mesh_layout first = *base;
            first.grid = layout[l].grid;
            if (!mesh_meets(m, l))
                continue;
            if (wanted->hash == 0) {
                const struct run run = mesh_run(m, &first, "", words);
                run_train(&run, wanted);
            }
            const struct run run = mesh_run(m, &layout[l], base->options, words);
            run_compare(&run, wanted);
        }
    }
}

static void test_whole(void **state)
{
    static const struct mesh_layout single = {1, 0, "single", ""};
    (void)state;
    mesh_compare(mesh_whole, MESH_COUNT(mesh_whole), &single);
}

static void test_parts(void **state)
{
    static const struct mesh_layout single = {1, 0, "single", MESH_PARTS};
    (void)state;
    mesh_compare(mesh_parts, MESH_COUNT(mesh_parts), &single);
}

/* The bits of two tensor ranks, whatever lies along the other axes. */
static void test_two(void **state)
{
    static const struct mesh_layout whole = {2, 0, "tp", ""};
    static const struct mesh_layout sequence = {2, 0, "tp", "--tensor.sequence-parallel=on"};
    const bool full = mesh_full;
    (void)state;
    mesh_full = false; /* each layout one model: the others are as above */
    mesh_compare(mesh_two, MESH_COUNT(mesh_two), &whole);
    mesh_compare(mesh_two, MESH_COUNT(mesh_two), &sequence);
    mesh_full = full;
}

/* What the others prove is proof only if these differ: a number of parts, a seed for dropout. */
static void test_tells_apart(void **state)
{
    struct run_outcome one, other;
    char words[768];
    const struct mesh_layout layout = {2, 8, "tp", ""};
    struct run run = mesh_run(0, &layout, "", words);
    (void)state;
    run_train(&run, &one);
    run = mesh_run(0, &layout, MESH_PARTS, words);
    run_train(&run, &other);
    assert_int_not_equal(one.hash, other.hash);
    run = mesh_run(0, &layout, "--gpt.dropout 0", words);
    run_train(&run, &other);
    assert_int_not_equal(one.hash, other.hash);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Of both styles: tied, transposed and padded; grouped heads, in bf16. */
static const int mesh_saved_model[] = {0, 1};
static const struct mesh_layout mesh_saved[] = {
    {2, 8, "tp", MESH_PARTS},
    {4, 8, "zero2+pp", MESH_PARTS "--mesh data=2,stage=2 --pp.schedule interleaved"},
    {6, 12, "ddp+tp", MESH_PARTS "--mesh data=3,tensor=2"},
    {8, 8, "fsdp+tp+pp", MESH_PARTS "--mesh data=2,tensor=2,stage=2"},
};

static unsigned char *mesh_read(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes_out = (size_t)ftell(file);
    unsigned char *bytes = malloc(*bytes_out + 1);
    rewind(file);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *bytes_out, file), *bytes_out);
    fclose(file);
    return bytes;
}

static void mesh_same_files(const char *one_path, const char *other_path)
{
    size_t one_bytes, other_bytes;
    unsigned char *one = mesh_read(one_path, &one_bytes);
    unsigned char *other = mesh_read(other_path, &other_bytes);
    assert_int_equal(one_bytes, other_bytes);
    assert_memory_equal(one, other, one_bytes);
    free(one);
    free(other);
}

/* Each layout writes the file of one rank; and from that file each goes on as one rank does. */
static void test_weights(void **state)
{
    char folder[] = "/tmp/test_mesh_XXXXXX", saved[64], other[64], words[768], more[96];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(saved, sizeof(saved), "%s/saved", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    snprintf(more, sizeof(more), "--seed 7 --init %s", saved);
    for (int i = 0; i < MESH_COUNT(mesh_saved_model); i++) {
        for (int l = 0; l < MESH_COUNT(mesh_saved); l++) {
            const int m = mesh_saved_model[i];
            if (!mesh_full && l % MESH_COUNT(mesh_saved_model) != i)
                continue;
            const struct mesh_layout single = {1, mesh_saved[l].grid, "single", MESH_PARTS};
            struct run_outcome outcome, expected;
            struct run run = mesh_run(m, &single, "", words);
            run.save = saved;
            run_train(&run, &expected);
            run = mesh_run(m, &mesh_saved[l], "", words);
            run.save = other;
            run_compare(&run, &expected);
            mesh_same_files(saved, other);
            run = mesh_run(m, &single, more, words);
            run_train(&run, &outcome);
            assert_int_not_equal(outcome.hash, expected.hash);
            run = mesh_run(m, &mesh_saved[l], more, words);
            run_compare(&run, &outcome);
        }
    }
    unlink(saved);
    unlink(other);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_tells_apart),
        cmocka_unit_test(test_weights),
    };
    const struct CMUnitTest full[] = {cmocka_unit_test(test_whole), cmocka_unit_test(test_parts)};
    for (int i = 1; i < argc; i++) {
        mesh_mode = strcmp(argv[i], "processes") == 0 ? TESS_RANKS_PROCESSES : mesh_mode;
        mesh_full = mesh_full || strcmp(argv[i], "full") == 0;
        if (run_is_kernel(argv[i]))
            mesh_kernel = argv[i];
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (mesh_full)
        failed += cmocka_run_group_tests(full, NULL, NULL);
    return failed;
}
