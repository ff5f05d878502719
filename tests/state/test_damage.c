/*
 * Checkpoints that were damaged, or made to do harm: files cut short, missing, exchanged, of
 * another step; single bytes everywhere; state.json with numbers and shapes that cannot be, under a
 * right check; then random changes. Each is refused with the file and, where there is one, the
 * tensor, or is the same state.
 */
#include "state/checkpoint.h"

#include "base/hash.h"
#include "base/log_sink.h"
#include "tessera/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ARRAYS    2
#define RUN       "run"
#define FIRST     "run/checkpoints/step-00000003"
#define SECOND    "run/checkpoints/step-00000007"
#define MODEL     "model-00001-of-00001.safetensors"
#define OPTIMIZER "optimizer-00001-of-00001.safetensors"
#define OPTIONS   "steps: \"9\"\nseed: \"5\"\n"
#define RANDOM    (4000 / TESTS_DIVISOR)

#define SHAPE2(a, b) .whole = {.rank = 2, .dim = {a, b}}, .shape = {.rank = 2, .dim = {a, b}}
#define UNCUT        .slice = {.axis = -1, .blocks = 1}, .source = -1

static struct tess_declare_param param[] = {
    {.name = "a.weight", SHAPE2(7, 5), UNCUT, .flags = TESS_PARAM_TRANSPOSED},
    {.name = "b.weight", SHAPE2(4, 6), UNCUT, .index = 1},
    {.name = "c.weight", SHAPE2(4, 6), UNCUT, .index = 2},
};
enum { PARAMS = sizeof(param) / sizeof(param[0]), ELEMENTS_MOST = 35 };
static const struct tess_declare model = {
    .param = param, .param_count = PARAMS, .axis = {.parts = 1, .count = 1}};

/* Where there is memory in the place of a disk, which takes long to write. */
static char in_memory[] = "/dev/shm/damage_XXXXXX", on_disk[] = "/tmp/tessera_damage_XXXXXX";
static char *folder;
static uint32_t seed = 1;

static uint32_t random_below(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

static void drop_line(void *context, enum tess_log_level level, const char *text)
{
    (void)context, (void)level, (void)text;
}
static const struct tess__log_sink silence = {drop_line, NULL};

/* ---- a checkpoint ---------------------------------------------------------------------------- */

static float value_of(int64_t step, int32_t p, int32_t a, int64_t i)
{
    return (float)(1000 * step + 100 * p + 40 * a + i);
}

/* Blocks of a tensor, written, or read and added to `check`. */
static enum tess_status visit(const struct tess_checkpoint *from, const struct tess_store *to,
                              const int *fd, int64_t step, int32_t p, int32_t a, uint64_t *check)
{
    struct tess_declare_param one = param[p];
    const int64_t count = tess_shape_count(&one.shape);
    float x[ELEMENTS_MOST], room[ELEMENTS_MOST];

    one.flags &= a < 0 ? ~0u : ~(uint32_t)TESS_PARAM_TRANSPOSED;
    for (int64_t at = 0, now; at < count; at += now) {
        const struct tess_store_block block =
            tess_store_block_at(&one, &model.axis, at, count - at);
        now = block.rows * block.columns;
        for (int64_t i = 0; i < now; i++)
            x[i] = value_of(step, p, a, at + i);
        if (from != NULL) {
            const enum tess_status status = tess_checkpoint_read(from, p, a, &block, x, room);
            if (status != TESS_OK)
                return status;
        } else {
            const struct tess_store_tensor *tensor = tess_store_find(to, p, a);
            assert_int_equal(tess_store_write(fd[tensor->file], tensor, &block, x, room), 0);
        }
        *check += tess_store_check(&one, &block, x);
    }
    return TESS_OK;
}

static void save(int64_t step)
{
    uint64_t check[(1 + ARRAYS) * PARAMS] = {0};
    int64_t updates[PARAMS] = {1, 2, 3};
    float moment[PARAMS] = {0.5f, 1.5f, 2.5f};
    char options[] = OPTIONS, name[] = "mlp", layout[] = "ddp on 2 ranks";
    struct tess_checkpoint_state state = {.step = step,
                                          .updates = step,
                                          .batch_size = 8,
                                          .grid = 2,
                                          .learning_rate = 0.1,
                                          .loss_scale = 1,
                                          .check = check,
                                          .param_updates = updates,
                                          .tensor_state = moment,
                                          .options = options,
                                          .model = name,
                                          .layout = layout,
                                          .model_id = tess_checkpoint_model_id(&model),
                                          .data_id = 77};
    struct tess_store store = {.file = NULL};
    int fd[4];

    assert_int_equal(tess_store_plan(&model, ARRAYS, TESS_CHECKPOINT_FILE_MOST, &store), TESS_OK);
    assert_in_range(store.file_count, 1, 4);
    assert_int_equal(tess_checkpoint_begin(RUN, step, &store), TESS_OK);
    assert_int_equal(tess_checkpoint_open_files(RUN, step, &store, fd), TESS_OK);
    for (int32_t a = -1; a < ARRAYS; a++)
        for (int32_t p = 0; p < PARAMS; p++)
            (void)visit(NULL, &store, fd, step, p, a, &check[(a + 1) * PARAMS + p]);
    for (int32_t f = 0; f < store.file_count; f++)
        assert_int_equal(tess_file_close(fd[f], 0), 0);
    assert_int_equal(tess_checkpoint_end(RUN, &store, &state, &model), TESS_OK);
    tess_store_fini(&store);
}

/* All that a run that continues reads. */
static enum tess_status load(const char *from)
{
    struct tess_checkpoint *checkpoint = NULL;
    uint64_t check[(1 + ARRAYS) * PARAMS] = {0};
    enum tess_status status = tess_checkpoint_check_options(from);

    if (status == TESS_OK)
        status = tess_checkpoint_open(from, &model, ARRAYS, &checkpoint);
    for (int32_t a = -1; a < ARRAYS && status == TESS_OK; a++)
        for (int32_t p = 0; p < PARAMS && status == TESS_OK; p++)
            status = visit(checkpoint, NULL, NULL, 0, p, a, &check[(a + 1) * PARAMS + p]);
    if (status == TESS_OK)
        status = tess_checkpoint_compare(checkpoint, check, 1);
    tess_checkpoint_close(checkpoint);
    return status;
}

/* Verifying and loading refuse it, and name `word` and `other`. */
static void refused(const char *what, const char *word, const char *other)
{
    for (int i = 0; i < 2; i++) {
        uint64_t bytes;
        const enum tess_status status =
            i == 0 ? tess_checkpoint_verify(SECOND, &bytes) : load(SECOND);
        const char *text = tess_log_last_error();
        if (status == TESS_OK || strstr(text, word) == NULL || strstr(text, other) == NULL)
            fail_msg("%s: %s: status %d: %s", what, i == 0 ? "verify" : "load", status, text);
    }
}

static void accepted(void)
{
    uint64_t bytes;
    assert_int_equal(tess_checkpoint_verify(SECOND, &bytes), TESS_OK);
    assert_int_equal(load(SECOND), TESS_OK);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct bytes {
    char *at;
    size_t count;
};

static struct bytes get(const char *path)
{
    struct stat about;
    struct bytes file;
    const int fd = open(path, O_RDONLY);

    assert_true(fd >= 0 && fstat(fd, &about) == 0);
    file.count = (size_t)about.st_size;
    file.at = malloc(file.count + 1);
    assert_non_null(file.at);
    assert_int_equal(read(fd, file.at, file.count), about.st_size);
    file.at[file.count] = '\0';
    close(fd);
    return file;
}

static void put(const char *path, const char *bytes, size_t count)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), (ssize_t)count);
    close(fd);
}

static void rename_ok(const char *from, const char *to)
{
    assert_int_equal(rename(from, to), 0);
}

static void case_files(void **state)
{
    static const char *const name[] = {"state.json", "options.yaml", MODEL, OPTIMIZER};

    (void)state;
    for (size_t f = 0; f < sizeof(name) / sizeof(name[0]); f++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", SECOND, name[f]);
        struct bytes file = get(path);
        assert_int_equal(unlink(path), 0);
        refused("missing", name[f], "No such file");
        assert_int_equal(mkfifo(path, 0600), 0);
        refused("a FIFO", name[f], "");
        assert_int_equal(unlink(path), 0);
        for (size_t cut = 0; cut < file.count; cut += 1 + file.count / 37) {
            put(path, file.at, cut);
            refused("cut", name[f], "");
        }
        file.at[file.count] = 'x';
        put(path, file.at, file.count + 1);
        refused("one byte more", name[f], "");
        for (size_t at = 0; at < file.count; at += 1 + (f > 0 ? 0 : file.count / 200)) {
            file.at[at] ^= 0x04;
            put(path, file.at, file.count);
            if (file.at[at] != ('\n' ^ 0x04) && file.at[at] != (' ' ^ 0x04))
                refused("a byte", name[f], "");
            file.at[at] ^= 0x04;
        }
        put(path, file.at, file.count);
        accepted();
        free(file.at);
    }
}

static void case_exchanged(void **state)
{
    (void)state;
    /* Of another step. */
    rename_ok(SECOND "/" MODEL, "kept");
    struct bytes other = get(FIRST "/" MODEL);
    put(SECOND "/" MODEL, other.at, other.count);
    refused("another step's model", MODEL, "'a.weight'");
    free(other.at);
    /* The optimizer's file in the place of the model's. */
    other = get(SECOND "/" OPTIMIZER);
    put(SECOND "/" MODEL, other.at, other.count);
    refused("the optimizer as the model", MODEL, "");
    free(other.at);
    rename_ok("kept", SECOND "/" MODEL);
    /* Values of two tensors of one shape, which are the file's last. */
    struct bytes file = get(SECOND "/" MODEL);
    const size_t bytes = 24 * sizeof(float);
    char *last = file.at + file.count - bytes, kept[24 * sizeof(float)];
    memcpy(kept, last, bytes);
    memcpy(last, last - bytes, bytes);
    memcpy(last - bytes, kept, bytes);
    put(SECOND "/" MODEL, file.at, file.count);
    refused("two tensors", MODEL, "'b.weight'");
    memcpy(kept, last, bytes);
    memcpy(last, last - bytes, bytes);
    memcpy(last - bytes, kept, bytes);
    put(SECOND "/" MODEL, file.at, file.count);
    free(file.at);
    /* Another step's state, and a whole checkpoint under another name. */
    rename_ok(SECOND "/state.json", "kept");
    other = get(FIRST "/state.json");
    put(SECOND "/state.json", other.at, other.count);
    free(other.at);
    refused("another step's state", "state.json", "step 3");
    rename_ok("kept", SECOND "/state.json");
    rename_ok(SECOND, "kept");
    rename_ok(FIRST, SECOND);
    refused("another step's checkpoint", "state.json", "step 3");
    rename_ok(SECOND, FIRST);
    rename_ok("kept", SECOND);
    accepted();
}

/* ---- state.json under a right check ---------------------------------------------------------- */

static void put_state(json_t *object)
{
    json_object_del(object, "check");
    char *text = json_dumps(object, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(
        json_object_set_new(object, "check",
                            json_sprintf("%016" PRIx64, tess_hash_bytes(text, strlen(text)))),
        0);
    free(text);
    text = json_dumps(object, 0);
    put(SECOND "/state.json", text, strlen(text));
    free(text);
}

/* JSON of what stands in the place of a field, at "object/object/field"; NULL: nothing. */
static const struct {
    const char *field, *value;
} hostile[] = {
    {"version", "99"},
    {"version", "-9223372036854775808"},
    {"step", "-1"},
    {"step", "9223372036854775807"},
    {"step", "1e300"},
    {"step", "\"7\""},
    {"step", NULL},
    {"updates", "8"},
    {"updates", "-1"},
    {"resolved", "[]"},
    {"resolved/batch_size", "0"},
    {"resolved/batch_size", "9223372036854775807"},
    {"resolved/grid", "-4"},
    {"resolved/grid", "1099511627776"},
    {"resolved/learning_rate", "-1.0"},
    {"resolved/warmup_start", "-0.5"},
    {"loss_scale/value", "0.0"},
    {"loss_scale/value", "-1e308"},
    {"loss_scale/good", "-1"},
    {"loss_scale/good", "9223372036854775807"},
    {"loss_scale/skipped", "8"},
    {"model", "null"},
    {"model_id", "\"00\""},
    {"model_id", "\"zzzzzzzzzzzzzzzz\""},
    {"data_id", "5"},
    {"layout", "{}"},
    {"files", NULL},
    {"files", "{}"},
    {"files", "[1]"},
    {"files/options.yaml", NULL},
    {"files/options.yaml", "{\"bytes\": -1, \"header\": \"0000000000000000\"}"},
    {"files/options.yaml", "{\"bytes\": 9223372036854775807, \"header\": \"0000000000000000\"}"},
    {"tensors", NULL},
    {"tensors", "7"},
    {"tensors/b.weight", NULL},
    {"tensors/b.weight", "{\"check\": \"1234\"}"},
    {"tensors/m.c.weight/check", "\"0123456789abcdef\""},
};

static void case_hostile(void **state)
{
    struct bytes good = get(SECOND "/state.json");

    (void)state;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        json_t *object = json_loadb(good.at, good.count, 0, NULL), *in = object;
        char field[64], *name = field, *part;
        snprintf(field, sizeof(field), "%s", hostile[i].field);
        while ((part = strchr(name, '/')) != NULL) {
            *part = '\0';
            in = json_object_get(in, name);
            name = part + 1;
        }
        assert_non_null(json_object_get(in, name));
        if (hostile[i].value == NULL)
            json_object_del(in, name);
        else
            json_object_set_new(in, name, json_loads(hostile[i].value, JSON_DECODE_ANY, NULL));
        put_state(object);
        json_decref(object);
        uint64_t bytes;
        if (tess_checkpoint_verify(SECOND, &bytes) == TESS_OK)
            fail_msg("%s as %s is accepted", hostile[i].field, hostile[i].value);
        assert_non_null(strstr(tess_log_last_error(), SECOND));
    }
    /* Members twice, and deeper than a reader that calls itself can go. */
    char *text = malloc((1 << 20) + good.count);
    const int used = sprintf(text, "{\"step\": 7, %s", good.at + 1);
    put(SECOND "/state.json", text, (size_t)used);
    refused("a member twice", "state.json", "duplicate");
    memset(text, '[', 1 << 20);
    put(SECOND "/state.json", text, 1 << 20);
    refused("nesting", "state.json", "depth");
    free(text);
    put(SECOND "/state.json", good.at, good.count);
    accepted();
    free(good.at);
}

/* ---- at random ------------------------------------------------------------------------------- */

static json_t *random_value(void)
{
    static const json_int_t number[] = {0, -1, 1, 7, INT64_MAX, INT64_MIN, 1 << 30, 1000};
    static const char *const text[] = {"", "0000000000000000", "../state.json", MODEL, "\x01"};
    switch (random_below(7)) {
    case 0:
        return json_integer(number[random_below(8)]);
    case 1:
        return json_real(1e300);
    case 2:
        return json_string(text[random_below(5)]);
    case 3:
        return json_array();
    case 4:
        return json_pack("{s:i, s:i}", "bytes", 8, "line", (int)random_below(9) - 1);
    case 5:
        return json_null();
    default:
        return json_real(-0.5);
    }
}

/* Change one member, at any depth: another value, another name, gone. */
static void random_member(json_t *object)
{
    void *at = json_object_iter(object);
    for (uint32_t skip = random_below((uint32_t)json_object_size(object) + 1); skip > 0 && at;
         skip--)
        at = json_object_iter_next(object, at);
    if (at == NULL)
        return;
    json_t *value = json_object_iter_value(at);
    char name[256];
    snprintf(name, sizeof(name), "%s", json_object_iter_key(at));
    if (json_is_object(value) && random_below(4) > 0)
        random_member(value);
    else if (random_below(5) == 0)
        json_object_del(object, name);
    else if (random_below(5) == 0)
        json_object_set(object, "../../x", value);
    else
        json_object_set_new(object, name, random_value());
}

/* Change some bytes: flipped, set, left out, doubled. */
static struct bytes random_bytes(struct bytes from, size_t within)
{
    struct bytes to = {malloc(2 * from.count + 16), from.count};
    memcpy(to.at, from.at, from.count);
    for (uint32_t i = 0, changes = 1 + random_below(3); i < changes; i++) {
        const size_t at = random_below((uint32_t)(within < to.count ? within : to.count));
        const size_t most = to.count - at, some = 1 + random_below(most < 9 ? (uint32_t)most : 9);
        switch (random_below(4)) {
        case 0:
            to.at[at] ^= (char)(1 << random_below(8));
            break;
        case 1:
            to.at[at] = (char)random_below(256);
            break;
        case 2:
            memmove(to.at + at, to.at + at + some, most - some);
            to.count -= some;
            break;
        default:
            if (to.count + some <= 2 * from.count) {
                memmove(to.at + at + some, to.at + at, most);
                to.count += some;
            }
        }
        if (to.count == 0)
            break;
    }
    return to;
}

/* A file that differs in its bytes: refused; or state.json is the same JSON in other bytes. */
static void case_random_bytes(void **state)
{
    static const char *const path[] = {SECOND "/state.json", SECOND "/" MODEL, SECOND "/" OPTIMIZER,
                                       SECOND "/options.yaml"};
    (void)state;
    for (int i = 0; i < RANDOM; i++) {
        const uint32_t f = random_below(4);
        struct bytes good = get(path[f]), bad = random_bytes(good, f == 0 ? SIZE_MAX : 800);
        const bool same = good.count == bad.count && memcmp(good.at, bad.at, good.count) == 0;
        uint64_t bytes;
        put(path[f], bad.at, bad.count);
        const bool verified = tess_checkpoint_verify(SECOND, &bytes) == TESS_OK;
        const bool loaded = load(SECOND) == TESS_OK;
        json_t *one = json_loadb(good.at, good.count, 0, NULL);
        json_t *two = json_loadb(bad.at, bad.count, 0, NULL);
        if (two != NULL && json_is_string(json_object_get(two, "check"))) /* of any case */
            json_object_set(two, "check", json_object_get(one, "check"));
        if ((verified || loaded) && !same && !(f == 0 && json_equal(one, two)))
            fail_msg("%s is accepted: case %d: %.*s", path[f], i, (int)bad.count, bad.at);
        json_decref(one);
        json_decref(two);
        put(path[f], good.at, good.count);
        free(good.at);
        free(bad.at);
    }
    accepted();
}

/* Under a right check: whatever comes of it, nothing is read or written that must not be. */
static void case_random_members(void **state)
{
    struct bytes good = get(SECOND "/state.json");
    int refusals = 0;

    (void)state;
    for (int i = 0; i < RANDOM; i++) {
        json_t *object = json_loadb(good.at, good.count, 0, NULL);
        for (uint32_t n = 1 + random_below(2); n > 0; n--)
            random_member(object);
        put_state(object);
        json_decref(object);
        uint64_t bytes;
        refusals += tess_checkpoint_verify(SECOND, &bytes) != TESS_OK;
        (void)load(SECOND);
    }
    assert_in_range(refusals, RANDOM / 2, RANDOM);
    put(SECOND "/state.json", good.at, good.count);
    accepted();
    free(good.at);
}

static int set_up(void **state)
{
    (void)state;
    folder = mkdtemp(access("/dev/shm", W_OK) == 0 ? in_memory : on_disk);
    if (folder == NULL || chdir(folder) != 0)
        return -1;
    (void)tess__log_redirect(&silence);
    save(3);
    save(7);
    return 0;
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    tess__log_redirect(NULL);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return chdir("/") != 0 ? -1 : system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_files),          cmocka_unit_test(case_exchanged),
        cmocka_unit_test(case_hostile),        cmocka_unit_test(case_random_bytes),
        cmocka_unit_test(case_random_members),
    };
    return cmocka_run_group_tests_name("damage", tests, set_up, tear_down);
}
