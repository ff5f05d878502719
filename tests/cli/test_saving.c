/*
 * What saving may take: memory, bandwidth, and what happens when it fails. Runs the built program.
 */
#include "base/clock.h"
#include "harness/spawn.h"
#include "harness/work_folder.h"

#include <dirent.h>
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

/* 0.48 M parameters: with AdamW's state 5.5 MiB, several blocks of a stage. */
#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 128 --batch-size 32 --evaluate off --grid 2 "         \
    "--mlp.hidden 400,400 --optimizer adamw --steps 4 "
#define STATE_BYTES (3.0 * 4 * 475000) /* at least */

#define MIB (INT64_C(1) << 20)

static struct spawn spawn;

#define run(...) spawn_format(&spawn, __VA_ARGS__)

/* Lines of the checkpoints after steps 2 and 4. */
static void check_saved(const char *line, int64_t bytes, int *count)
{
    json_t *object = json_loads(line, 0, NULL);
    const json_t *saved = json_object_get(object, "saved");

    if (saved != NULL) {
        assert_int_equal(json_integer_value(json_object_get(saved, "step")), 2 * ++*count);
        assert_in_range(json_integer_value(json_object_get(saved, "bytes")), 1, bytes);
        assert_true(json_real_value(json_object_get(saved, "blocked_s")) > 0);
        assert_true(json_real_value(json_object_get(saved, "write_s")) > 0);
    }
    json_decref(object);
}

/* Staging of every rank by the run's last line, which has to be what the plan predicted. */
static int64_t staging_of(const char *name, size_t ranks, int saves)
{
    static char text[1 << 16];
    char path[128];
    int64_t bytes = -1;
    int saved = 0;

    snprintf(path, sizeof(path), "%s/metrics.jsonl", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(text, sizeof(text), file) != NULL)
        check_saved(text, 6 * MIB, &saved);
    assert_int_equal(saved, saves);
    fclose(file);
    json_t *line = json_loads(text, 0, NULL);
    const json_t *memory = json_object_get(json_object_get(line, "final"), "memory");
    assert_int_equal(json_array_size(memory), ranks);
    for (size_t r = 0; r < ranks; r++) {
        const json_t *entry = json_array_get(memory, r);
        const json_t *is = json_object_get(json_object_get(entry, "allocated"), "staging");
        assert_true(json_is_integer(is));
        assert_true(
            json_equal(is, json_object_get(json_object_get(entry, "predicted"), "staging")));
        bytes = json_integer_value(is) > bytes ? json_integer_value(is) : bytes;
    }
    json_decref(line);
    return bytes;
}

static size_t read_file(const char *run_name, const char *name, char *bytes, size_t room)
{
    char path[600];

    snprintf(path, sizeof(path), "%s/checkpoints/step-00000004/%s", run_name, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s is not there", path);
    const size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

/* Every file of two checkpoints has the same bytes. */
static void check_same(const char *one, const char *other)
{
    static char a[1 << 23], b[1 << 23];
    char path[256];
    int files = 0;

    snprintf(path, sizeof(path), "%s/checkpoints/step-00000004", one);
    DIR *open = opendir(path);
    assert_non_null(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        const size_t count = read_file(one, entry->d_name, a, sizeof(a));
        assert_int_equal(read_file(other, entry->d_name, b, sizeof(b)), count);
        if (memcmp(a, b, count) != 0)
            fail_msg("%s of %s and %s differ", entry->d_name, one, other);
        files++;
    }
    closedir(open);
    assert_true(files >= 5);
}

static void case_memory(void **state)
{
    static const struct {
        const char *layout;
        size_t ranks;
    } on[] = {{"single --ranks 1", 1}, {"fsdp --ranks 2", 2}};
    static const struct {
        const char *memory;
        int64_t least, most;
    } with[] = {{"all", 0, INT64_MAX},      {"1TiB", 0, INT64_MAX},
                {"3MiB", 2 * MIB, 3 * MIB}, {"2500KB", 2 * MIB, 2500000 + 4095},
                {"1B", 2 * MIB, 2 * MIB},   {"0", 2 * MIB, 2 * MIB}};
    char name[64];

    (void)state;
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
            snprintf(name, sizeof(name), "memory%zu%zu", l, i);
            assert_int_equal(run(TRAIN "--save-every 2 --run %s --save-memory %s --strategy %s",
                                 name, with[i].memory, on[l].layout),
                             0);
            assert_string_equal(spawn.err, "");
            assert_non_null(strstr(spawn.out, "predicted by the memory plan = allocated"));
            const int64_t bytes = staging_of(name, on[l].ranks, 2);
            const double all = STATE_BYTES / (double)on[l].ranks + (double)MIB;
            if ((i < 2 && (double)bytes < all) || bytes < with[i].least || bytes > with[i].most)
                fail_msg("--save-memory %s: staging of %lld bytes", with[i].memory,
                         (long long)bytes);
            assert_int_equal(run("checkpoint verify %s", name), 0);
            if (i > 0) {
                char first[64];
                snprintf(first, sizeof(first), "memory%zu0", l);
                check_same(first, name);
            }
        }
}

/* Runs that save nothing plan nothing for it. */
static void case_unused(void **state)
{
    (void)state;
    assert_int_equal(run(TRAIN "--strategy ddp --ranks 2 --run off --save-every off"), 0);
    assert_int_equal(staging_of("off", 2, 0), 0);
    assert_int_equal(run(TRAIN "--strategy ddp --ranks 2 --explain"), 0);
    assert_null(strstr(spawn.out, "beside it"));
    assert_int_equal(run(TRAIN "--strategy ddp --ranks 2 --explain --run never"), 0);
    assert_non_null(strstr(spawn.out, "B beside it"));
    assert_non_null(strstr(spawn.out, "  staging "));
    assert_int_equal(access("never", F_OK), -1);
}

static void case_bandwidth(void **state)
{
    (void)state;
    const double begin_s = tess_clock_s();
    assert_int_equal(run(TRAIN "--save-every 4 --run slow --save-bandwidth 4MiB --strategy single "
                               "--ranks 1"),
                     0);
    assert_true(tess_clock_s() - begin_s > STATE_BYTES / (4.0 * (double)MIB));
    assert_int_equal(run("checkpoint verify slow"), 0);
}

/* A file in the place of the second step's folder: that save fails, the next one does not. */
static void case_required(void **state)
{
    static const char *const mode[] = {"", "--save-memory 0"};
    char path[128];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "fails%zu", i);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof(path), "fails%zu/checkpoints", i);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof(path), "fails%zu/checkpoints/step-00000002.part", i);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fclose(file);
        assert_int_equal(run(TRAIN "--save-every 2 --run fails%zu --strategy ddp --ranks 2 %s "
                                   "--save-required %s",
                             i, mode[i % 2], i < 2 ? "off" : "on"),
                         i < 2 ? 0 : 1);
        if (i < 2) {
            assert_int_equal(spawn_count(spawn.err, "step 2 is not saved: cannot create"), 1);
            assert_int_equal(spawn_count(spawn.err, "is not saved"), 1);
            assert_int_equal(spawn_count(spawn.err, "error: "), 0);
        } else {
            assert_int_equal(
                spawn_count(spawn.err, "step 2 is not saved, which --save-required demands: "), 1);
            assert_int_equal(spawn_count(spawn.err, "error: "), 1);
        }
        snprintf(path, sizeof(path), "fails%zu/checkpoints/step-00000004", i);
        assert_int_equal(access(path, F_OK), i < 2 ? 0 : -1);
    }
}

static void case_words(void **state)
{
    static const char *const wrong[][2] = {
        {"--save-memory many", "--save-memory: 'many' is not a size such as 512MiB"},
        {"--save-memory 5", "--save-memory: '5' is not a size"},
        {"--save-memory -1MiB", "--save-memory: '-1MiB' is not a size"},
        {"--save-bandwidth fast", "--save-bandwidth: 'fast' is not a size"},
        {"--save-every often", "--save-every often: expected a number of steps"},
        {"--save-every 0", "--save-every 0: expected"},
        {"--save-every -5s", "--save-every -5s: expected"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(run(TRAIN "%s", wrong[i][0]), 2);
        if (strstr(spawn.err, wrong[i][1]) == NULL)
            fail_msg("%s: %s", wrong[i][0], spawn.err);
    }
}

/* Options of saving without a folder to save to: from the command line and from a file. */
static void case_no_folder(void **state)
{
    static const char *const given[][2] = {
        {"--save-every 2", "--save-every 2 is"},
        {"--keep 3", "--keep 3 is"},
        {"--save-memory 0", "--save-memory 0 is"},
        {"--save-bandwidth 1MiB", "--save-bandwidth"},
        {"--save-required", "--save-required on is"},
        {"--overwrite", "--overwrite on is"},
        {"--save-weights on", "--save-weights on is"},
        {"keeps.yaml", "--keep 5 is"},
    };
    FILE *file = fopen("keeps.yaml", "w");

    (void)state;
    assert_non_null(file);
    fputs("keep: 5\n", file);
    fclose(file);
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        assert_int_equal(run(TRAIN "%s", given[i][0]), 2);
        if (strstr(spawn.err, given[i][1]) == NULL || strstr(spawn.err, "give --run DIR") == NULL)
            fail_msg("%s: %s", given[i][0], spawn.err);
    }
    assert_int_equal(run(TRAIN "keeps.yaml --run kept"), 0);
    assert_int_equal(run(TRAIN "--save-every off --save-weights off"), 0);
}

/* An older checkpoint that cannot be removed. The run continues on the one rank that it had, which
 * followed from its strategy. */
static void case_stays(void **state)
{
    (void)state;
    assert_int_equal(run(TRAIN "--save-every 2 --keep 2 --run stays --schedule constant"), 0);
    assert_int_equal(mkdir("stays/checkpoints/step-00000002/inner", 0777), 0);
    assert_int_equal(run("train --run stays --resume --steps 8 --save-every 2 --keep 1"), 0);
    assert_int_equal(spawn_count(spawn.err, "step 8 is saved, but older checkpoints stay: cannot "
                                            "remove stays/checkpoints/step-00000002.part: "),
                     1);
    assert_int_equal(spawn_count(spawn.err, "warning: "), 1);
    assert_int_equal(access("stays/checkpoints/step-00000008", F_OK), 0);
    assert_int_equal(access("stays/checkpoints/step-00000004", F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_memory),    cmocka_unit_test(case_unused),
        cmocka_unit_test(case_bandwidth), cmocka_unit_test(case_required),
        cmocka_unit_test(case_words),     cmocka_unit_test(case_no_folder),
        cmocka_unit_test(case_stays),
    };
    return cmocka_run_group_tests_name("saving", tests, work_folder_make, work_folder_remove);
}
