/*
 * Runs of hundreds of ranks: they end with the hash of one, what is printed fits a screen, and
 * where the system does not let them start, the message says what to raise. With a number as
 * argument: a run of as many.
 */
#include "comm/world.h"
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS   128
#define LIMIT_S 240 /* of a machine that others use, too */
#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 512 --batch-size 512 --grid 512 --steps 2 "           \
    "--evaluate off --mlp.hidden 4 --kernel ref --threads 1 --data.workers 0 --timeout 200 "

static char folder[] = "/tmp/tessera_many_XXXXXX";
static struct spawn spawn;
static int many = RANKS;

/* Runs the program, in a child that `entry` may prepare. Returns its exit status. */
static int run(int (*entry)(int, char **), const char *format, ...)
{
    static char text[1024];
    char *argv[64] = {"tessera"}, *rest = text;
    size_t argc = 1;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    spawn_start(&spawn, argv, entry);
    return spawn_end(&spawn, LIMIT_S);
}

static void expect(const char *text, const char *phrase)
{
    if (strstr(text, phrase) == NULL)
        fail_msg("no '%s' in:\n%s%s", phrase, text, text == spawn.out ? spawn.err : "");
}

static void expect_lines(int most)
{
    const int lines = spawn_count(spawn.out, "\n");
    if (lines > most)
        fail_msg("%d lines, not %d at most:\n%s", lines, most, spawn.out);
}

/* ---- what is printed ------------------------------------------------------------------------- */

static void case_page(void **state)
{
    static const char *const words[] = {
        "--strategy fsdp", "--strategy ddp --accumulate 2",
        "--strategy fsdp+tp+pp --mesh data=128,tensor=8,stage=16 --accumulate 16"};
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        assert_int_equal(run(NULL,
                             "train --model gpt --gpt.layers 48 --gpt.heads 8 --gpt.width 64 "
                             "--gpt.vocab 300 --data synthetic --synthetic-rows 32768 "
                             "--data.length 24 --ranks 16384 --batch-size 32768 --explain %s",
                             words[i]),
                         0);
        expect_lines(60);
        assert_int_equal(spawn_count(spawn.out, "\n  rank "), 2);
        expect(spawn.out, "rank 16383 of 16384");
        expect(spawn.out, "ranks=16384");
    }
    /* All of it for those who ask. */
    assert_int_equal(run(NULL, TRAIN "--strategy ddp --ranks 32 --explain --explain-rank 31"), 0);
    expect(spawn.out, "\n  threads ");
    expect(spawn.out, "memory of rank 31,");
    expect(spawn.out, "kernel scratch");
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void case_run(void **state)
{
    char one[17], hash[17], name[32];
    (void)state;
    assert_int_equal(run(NULL, TRAIN "--strategy single --ranks 1"), 0);
    spawn_hash(&spawn, one);
    snprintf(name, sizeof(name), "\n0-%d ", many - 1);
    for (int fsdp = many == RANKS; fsdp < 2; fsdp++) {
        assert_int_equal(run(NULL, TRAIN "--strategy %s --ranks %d --run %s/%d --overwrite",
                             fsdp ? "fsdp" : "ddp", many, folder, many),
                         0);
        spawn_hash(&spawn, hash);
        assert_string_equal(hash, one);
        expect_lines(30);
        expect(spawn.out, "predicted by the memory plan = allocated");
    }
    assert_int_equal(run(NULL, "status %s/%d", folder, many), 0);
    expect_lines(30);
    expect(spawn.out, name);
    expect(spawn.out, "ended");
    expect(spawn.out, "no rank waited for another");
}

/* ---- limits of the system -------------------------------------------------------------------- */

static int with_files(rlim_t soft, rlim_t hard, char **argv)
{
    const struct rlimit files = {soft, hard};
    if (setrlimit(RLIMIT_NOFILE, &files) == 0)
        execv(TESSERA_PROGRAM, argv);
    return 1;
}

static int few_files(int argc, char **argv)
{
    (void)argc;
    return with_files(6, 6, argv);
}

/* Too few for the connections of 16 ranks, and more for those who ask. */
static int more_files(int argc, char **argv)
{
    struct rlimit files;
    (void)argc;
    return getrlimit(RLIMIT_NOFILE, &files) == 0 ? with_files(20, files.rlim_max, argv) : 1;
}

static void case_files(void **state)
{
    (void)state;
    assert_int_not_equal(run(few_files, TRAIN "--strategy ddp --ranks 2"), 0);
    expect(spawn.err, "Too many open files: raise the limit (ulimit -n)");
    assert_int_equal(run(more_files, TRAIN "--strategy ddp --ranks 16 --comm tcp"), 0);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_run), cmocka_unit_test(case_page),
                                       cmocka_unit_test(case_files)};
    if (argc == 1)
        return cmocka_run_group_tests(tests, make_folder, remove_folder);
    const struct CMUnitTest more[] = {cmocka_unit_test(case_run)};
    many = atoi(argv[1]);
    return cmocka_run_group_tests(more, make_folder, remove_folder);
}
