/*
 * Tensors in files that several ranks write: random parameters, cut along the tensor axis and into
 * random pieces, against where each element should be by the words of store.h; read again under
 * another cut; files that are not as planned are refused by the tensor's name.
 */
#include "state/store.h"

#include "base/hash.h"
#include "tessera/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PARAMS_MAX   6
#define ARRAYS       2
#define FILES_MAX    32
#define ELEMENTS_MAX 4096

static uint32_t seed = 1;

static int64_t random_below(int64_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (int64_t)((seed >> 8) % (uint32_t)below);
}

/* The value that array `a` of parameter p has at element `whole`. */
static float value_of(int32_t p, int32_t a, int64_t whole)
{
    return (float)(whole + 1) + 5000.0f * (float)(p * (ARRAYS + 1) + a + 1);
}

/* ---- models ---------------------------------------------------------------------------------- */

/* A model of random parameters as whole tensors with room for `parts`; the last one is tied. */
static void model_make(struct tess_declare *model, struct tess_declare_param *param, int32_t parts,
                       uint32_t model_seed)
{
    seed = model_seed;
    *model = (struct tess_declare){.param = param};
    model->param_count = 2 + (int32_t)random_below(PARAMS_MAX - 2);
    for (int32_t p = 0; p < model->param_count; p++) {
        struct tess_declare_param one = {.index = p, .slice = {.axis = -1, .blocks = 1}};
        const int64_t kind = random_below(4);
        snprintf(one.name, sizeof(one.name), "layer.%d.weight", (int)p);
        one.whole = (struct tess_shape){.rank = kind == 0 ? 1 : 2};
        for (int32_t d = 0; d < one.whole.rank; d++)
            one.whole.dim[d] = 1 + random_below(12);
        if (kind > 0 && random_below(2) == 0)
            one.flags |= TESS_PARAM_TRANSPOSED;
        if (kind == 3)
            one.flags |= TESS_PARAM_BUFFER;
        const int64_t cut = random_below(3), blocks = 1 + random_below(2);
        const int64_t size = 1 + random_below(3); /* drawn on every layout */
        if (cut < one.whole.rank) {
            one.slice.axis = (int32_t)cut;
            one.slice.blocks = (int32_t)blocks;
            one.whole.dim[cut] = blocks * 4 * size;                /* whole parts for 1, 2 and 4 */
            if (cut == 0 && blocks == 1 && random_below(2) == 0) { /* padded to whole parts */
                one.slice.used = 4 * size - 1;
                one.whole.dim[0] = (one.slice.used + parts - 1) / parts * parts;
            }
        }
        param[p] = one;
    }
    struct tess_declare_param *last = &param[model->param_count - 1];
    *last = param[0];
    last->index = model->param_count - 1;
    last->flags |= TESS_PARAM_TIED;
    snprintf(last->name, sizeof(last->name), "tied");
}

/* What one rank of the tensor axis holds of a parameter. */
static struct tess_declare_param held_by(const struct tess_declare_param *param,
                                         const struct tess_tensor_axis *axis)
{
    struct tess_declare_param held = *param;
    held.shape = param->whole;
    if (param->slice.axis >= 0 && axis->parts > 1)
        held.shape.dim[param->slice.axis] =
            param->whole.dim[param->slice.axis] / axis->parts * axis->count;
    return held;
}

/* ---- layouts --------------------------------------------------------------------------------- */

struct files {
    int fd[FILES_MAX];
};

static struct files files_make(const struct tess_store *store)
{
    struct files files;
    assert_in_range(store->file_count, 1, FILES_MAX);
    for (int32_t f = 0; f < store->file_count; f++) {
        files.fd[f] = open("/tmp", O_TMPFILE | O_RDWR, 0600);
        assert_true(files.fd[f] >= 0);
        assert_int_equal(ftruncate(files.fd[f], (off_t)store->file[f].bytes), 0);
        assert_int_equal(pwrite(files.fd[f], store->file[f].header, store->file[f].header_bytes, 0),
                         store->file[f].header_bytes);
    }
    return files;
}

static void files_close(const struct tess_store *store, const struct files *files)
{
    for (int32_t f = 0; f < store->file_count; f++)
        close(files->fd[f]);
}

/* Elements [from, to) of what a rank holds, block by block: written, or read and compared. */
static void piece_move(const struct tess_store *store, const struct files *files,
                       const struct tess_declare_param *held, const struct tess_tensor_axis *axis,
                       int32_t array, int64_t from, int64_t to, bool write, uint64_t *check)
{
    const struct tess_store_tensor *tensor = tess_store_find(store, held->index, array);
    struct tess_declare_param param = *held;
    if (array >= 0)
        param.flags &= ~(uint32_t)TESS_PARAM_TRANSPOSED;
    for (int64_t at = from; at < to;) {
        float x[ELEMENTS_MAX], room[ELEMENTS_MAX];
        const int64_t most = 1 + random_below(to - at);
        const struct tess_store_block block = tess_store_block_at(&param, axis, at, most);
        const int64_t count = (block.rows > 0 ? block.rows : 1) * block.columns;
        assert_in_range(count, 1, most);
        for (int64_t i = 0; i < count; i++) {
            int64_t whole;
            (void)tess_declare_run(held, axis, at + i, &whole);
            const bool padding = whole >= tess_declare_used(held);
            assert_int_equal(padding, block.rows == 0);
            x[i] = write && !padding ? value_of(held->index, array, whole) : -1;
        }
        if (block.rows > 0 && write) {
            assert_int_equal(tess_store_write(files->fd[tensor->file], tensor, &block, x, room), 0);
            *check += tess_store_check(&param, &block, x);
        } else if (block.rows > 0) {
            assert_int_equal(tess_store_read(files->fd[tensor->file], tensor, &block, x, room), 0);
            for (int64_t i = 0; i < count; i++) {
                int64_t whole;
                (void)tess_declare_run(held, axis, at + i, &whole);
                assert_true(x[i] == value_of(held->index, array, whole));
            }
        }
        at += count;
    }
}

/* All of one parameter by all ranks of a layout, each in random pieces. */
static void param_move(const struct tess_store *store, const struct files *files,
                       const struct tess_declare_param *param, int32_t parts, int32_t ranks,
                       bool write, uint64_t *check)
{
    const bool cut = param->slice.axis >= 0 && parts > 1;
    for (int32_t r = 0; r < (cut ? ranks : 1); r++) {
        const struct tess_tensor_axis axis = {.parts = parts,
                                              .first = r * (parts / ranks),
                                              .count = parts / ranks,
                                              .rank = r,
                                              .rank_count = ranks};
        const struct tess_declare_param held = held_by(param, &axis);
        const int64_t count = tess_shape_count(&held.shape);
        for (int32_t a = -1; a < ARRAYS; a++) {
            if (tess_store_find(store, param->index, a)->file < 0)
                continue;
            for (int64_t at = 0, now; at < count; at += now) {
                now = 1 + random_below(count - at);
                piece_move(store, files, &held, &axis, a, at, at + now, write, &check[a + 1]);
            }
        }
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* By the words of store.h, without its functions: element by element. */
static void expect_file(const struct tess_store *store, const struct files *files,
                        const struct tess_declare_param *param, const uint64_t *check)
{
    const int64_t used = tess_declare_used(param);
    for (int32_t a = -1; a < ARRAYS; a++) {
        const struct tess_store_tensor *tensor = tess_store_find(store, param->index, a);
        const bool turned = a < 0 && param->flags & TESS_PARAM_TRANSPOSED && param->whole.rank == 2;
        uint64_t sum = 0;
        assert_int_equal(tensor->file >= 0, a < 0 || !(param->flags & TESS_PARAM_BUFFER));
        if (tensor->file < 0)
            continue;
        assert_int_equal(tensor->count, used);
        for (int64_t whole = 0; whole < used; whole++) {
            const int64_t line = turned ? param->whole.dim[1] : 1;
            const int64_t rows = used / line;
            const int64_t place = turned ? whole % line * rows + whole / line : whole;
            float x;
            assert_int_equal(pread(files->fd[tensor->file], &x, sizeof(x),
                                   (off_t)tensor->begin + (off_t)place * (off_t)sizeof(x)),
                             sizeof(x));
            assert_true(x == value_of(param->index, a, whole));
            sum += tess_hash_f32(&x, 1, (uint64_t)whole);
        }
        assert_int_equal(sum, check[a + 1]);
    }
}

static void case_layouts(void **state)
{
    (void)state;
    static const int32_t parts[][2] = {{1, 1}, {2, 2}, {4, 4}, {4, 2}, {4, 1}};
    for (uint32_t model_seed = 1; model_seed <= 300 / TESTS_DIVISOR; model_seed++) {
        const int32_t *from = parts[model_seed % 5], *to = parts[model_seed / 5 % 5];
        struct tess_declare_param param[PARAMS_MAX], again_param[PARAMS_MAX];
        struct tess_declare model, again;
        struct tess_store store = {0}, other = {0};
        uint64_t check[PARAMS_MAX][ARRAYS + 1] = {{0}}, none[ARRAYS + 1] = {0};
        model_make(&model, param, from[0], model_seed);
        model_make(&again, again_param, to[0], model_seed);
        const uint64_t file_most = (uint64_t)(64 << random_below(8));
        assert_int_equal(tess_store_plan(&model, ARRAYS, file_most, &store), TESS_OK);
        assert_int_equal(tess_store_plan(&again, ARRAYS, file_most, &other), TESS_OK);
        struct files files = files_make(&store);
        for (int32_t p = 0; p < model.param_count; p++)
            if (!(param[p].flags & TESS_PARAM_TIED))
                param_move(&store, &files, &param[p], from[0], from[1], true, check[p]);
        for (int32_t p = 0; p < model.param_count; p++)
            if (!(param[p].flags & TESS_PARAM_TIED))
                expect_file(&store, &files, &param[p], check[p]);
        assert_int_equal(store.file_count, other.file_count);
        for (int32_t f = 0; f < other.file_count; f++)
            assert_int_equal(tess_store_match(&other.file[f], files.fd[f], "file"), TESS_OK);
        for (int32_t p = 0; p < model.param_count; p++)
            if (!(param[p].flags & TESS_PARAM_TIED))
                param_move(&other, &files, &again_param[p], to[0], to[1], false, none);
        files_close(&store, &files);
        tess_store_fini(&store);
        tess_store_fini(&other);
    }
}

/* A file ends before it would exceed its size, and only there. */
static void case_sizes(void **state)
{
    (void)state;
    struct tess_declare_param param[4];
    struct tess_declare model = {.param = param, .param_count = 4};
    struct tess_store store = {0};
    static const int64_t count[4] = {10, 20, 100, 5};
    for (int32_t p = 0; p < 4; p++) {
        param[p] = (struct tess_declare_param){.index = p,
                                               .whole = {.rank = 1, .dim = {count[p]}},
                                               .slice = {.axis = -1, .blocks = 1}};
        snprintf(param[p].name, sizeof(param[p].name), "p%d", (int)p);
    }
    assert_int_equal(tess_store_plan(&model, 0, 120, &store), TESS_OK);
    assert_int_equal(store.file_count, 3); /* 10 + 20 of 30, 100 alone, 5 */
    assert_int_equal(tess_store_find(&store, 1, -1)->file, 0);
    assert_int_equal(tess_store_find(&store, 2, -1)->file, 1);
    assert_int_equal(tess_store_find(&store, 3, -1)->file, 2);
    assert_string_equal(store.file[1].name, "model-00002-of-00003.safetensors");
    assert_non_null(strstr(store.index, "\"p2\": \"model-00002-of-00003.safetensors\""));
    assert_non_null(strstr(store.index, "\"total_size\": 540"));
    tess_store_fini(&store);
}

static void case_other_files(void **state)
{
    (void)state;
    struct tess_declare_param param[PARAMS_MAX], other_param[PARAMS_MAX];
    struct tess_declare model, other;
    struct tess_store store = {0}, changed = {0};
    model_make(&model, param, 1, 7);
    model_make(&other, other_param, 1, 7);
    other_param[1].whole.dim[0]++;
    assert_int_equal(tess_store_plan(&model, 0, 1 << 20, &store), TESS_OK);
    assert_int_equal(tess_store_plan(&other, 0, 1 << 20, &changed), TESS_OK);
    struct files files = files_make(&store);
    assert_int_equal(tess_store_match(&store.file[0], files.fd[0], "w"), TESS_OK);
    assert_int_equal(tess_store_match(&changed.file[0], files.fd[0], "w"), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "tensor 'layer.1.weight'"));
    assert_int_equal(ftruncate(files.fd[0], (off_t)store.file[0].bytes - 1), 0);
    assert_int_equal(tess_store_match(&store.file[0], files.fd[0], "w"), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "cut short"));
    assert_int_equal(ftruncate(files.fd[0], 20), 0);
    assert_int_equal(tess_store_match(&store.file[0], files.fd[0], "w"), TESS_ERR_DATA);
    files_close(&store, &files);
    tess_store_fini(&store);
    tess_store_fini(&changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_layouts),
        cmocka_unit_test(case_sizes),
        cmocka_unit_test(case_other_files),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
