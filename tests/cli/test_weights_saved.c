/*
 * Weights between runs, as a user sees them: every strategy leaves the same file, any strategy goes
 * on from it, and a file that cannot be written costs nothing else. Runs the built program.
 */
#include "harness/spawn.h"
#include "harness/work_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 256 --batch-size 32 --evaluate off --model cnn "      \
    "--cnn.channels 4,6 --cnn.fc 20 --cnn.batch-norm on --grid 4 "

static struct spawn spawn;

static int run(const char *words)
{
    return spawn_words(&spawn, words);
}

static size_t read_file(const char *path, char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    size_t count;

    if (file == NULL)
        return 0;
    count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

static void case_every_layout(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "dp --ranks 2",   "ddp --ranks 4",
                                         "zero2 --ranks 2",  "fsdp --ranks 4", "hsdp --ranks 4"};
    static char first[1 << 17], other[1 << 17];
    char words[512], hash[17], again[17];
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        snprintf(words, sizeof(words), TRAIN "--steps 3 --run out%zu --strategy %s", i, layout[i]);
        assert_int_equal(run(words), 0);
        spawn_hash(&spawn, i == 0 ? hash : again);
        snprintf(words, sizeof(words), "out%zu/weights.safetensors", i);
        assert_non_null(strstr(spawn.out, words));
        if (i == 0)
            count = read_file(words, first, sizeof(first));
        else
            assert_int_equal(read_file(words, other, sizeof(other)), count);
        assert_in_range(count, 1000, sizeof(first) - 1);
        assert_memory_equal(i == 0 ? first : other, first, count);
        assert_string_equal(i == 0 ? hash : again, hash);
    }
    /* A step that changes nothing gives the parameters' hash; running averages do change. */
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        snprintf(words, sizeof(words),
                 TRAIN "--steps 1 --learning-rate 0 --init out4/weights.safetensors --hash-every 1 "
                       "--run again%zu --save-weights off --strategy %s",
                 i, layout[i]);
        assert_int_equal(run(words), 0);
        spawn_hash(&spawn, i == 0 ? hash : again);
        assert_string_equal(i == 0 ? hash : again, hash);
        snprintf(words, sizeof(words), "again%zu/weights.safetensors", i);
        assert_int_equal(access(words, F_OK), -1);
    }
    assert_int_equal(run("diff out0 again0"), 1); /* options and buffers */
}

static void case_trouble(void **state)
{
    (void)state;
    assert_int_equal(run(TRAIN "--steps 1 --init nowhere"), 1);
    assert_non_null(strstr(spawn.err, "nowhere"));
    assert_int_equal(run("train --data synthetic --steps 1 --init out0/weights.safetensors"), 1);
    assert_non_null(strstr(spawn.err, "tensor 'fc1.weight' has shape"));
    /* The name is taken by a folder, which shows before the first step. */
    assert_int_equal(mkdir("taken", 0777), 0);
    assert_int_equal(mkdir("taken/weights.safetensors", 0777), 0);
    assert_int_equal(run(TRAIN "--steps 2 --run taken --strategy ddp --ranks 2"), 1);
    assert_non_null(strstr(spawn.err, "taken/weights.safetensors: cannot write there: it is a "
                                      "folder"));
    assert_null(strstr(spawn.out, "hash of all parameters"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_every_layout),
        cmocka_unit_test(case_trouble),
    };
    return cmocka_run_group_tests(cases, work_folder_make, work_folder_remove);
}
