/*
 * Allocations that fail: the option set and the memory plan are taken through a whole life while
 * the n-th allocation fails, for every n. Each time the status is the right one, and nothing leaks
 * or crashes.
 */
#include "base/arena.h"
#include "options_fixture.h"
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

#define NEVER (-1)

static int left_allocations = NEVER;
static bool only_one; /* the n-th alone fails, not all from it on */
static bool any_failed;

static bool fails(void)
{
    if (left_allocations < 0)
        return false;
    if (left_allocations > 0) {
        left_allocations--;
        return false;
    }
    if (only_one)
        left_allocations = NEVER;
    any_failed = true;
    return true;
}

/* Declared here and not by failing_alloc.h, whose macros would turn the bodies on themselves. */
void *failing_malloc(size_t bytes);
void *failing_calloc(size_t count, size_t bytes);
void *failing_realloc(void *memory, size_t bytes);
char *failing_strdup(const char *text);

void *failing_malloc(size_t bytes)
{
    return fails() ? NULL : malloc(bytes);
}

void *failing_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : calloc(count, bytes);
}

void *failing_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : realloc(memory, bytes);
}

char *failing_strdup(const char *text)
{
    return fails() ? NULL : strdup(text);
}

static enum tess_status load_all(struct fixture *f)
{
    char *argv[] = {"--ranks", "4", "--set", "data=x", "--no-evaluate"};
    const char *positional[1];
    int count;
    enum tess_status status = tess_options_add(f->options, "", fixture_run_table, &f->run);
    if (status == TESS_OK)
        status = tess_options_add(f->options, "part", fixture_part_table, &f->part);
    if (status == TESS_OK)
        status = tess_options_allow(f->options, "other", "applies to strategy other only");
    if (status == TESS_OK)
        status = tess_options_load_environment(f->options);
    if (status == TESS_OK)
        status = tess_options_load_yaml(f->options, "t.yaml");
    if (status == TESS_OK)
        status = tess_options_load_arguments(f->options, 5, argv, positional, 0, &count);
    return status;
}

static enum tess_status options_life(void)
{
    struct fixture f;
    memset(&f, 0, sizeof(f));
    enum tess_status status = tess_options_open(&f.options);
    if (status != TESS_OK)
        return status;
    const char *peeked = tess_options_peek(f.options, "precision", 0, NULL, "t.yaml");
    status = load_all(&f);
    if (status == TESS_OK) {
        assert_int_equal(f.run.ranks, 4);
        assert_string_equal(f.run.data, "x");
        assert_int_equal(f.part.bucket_mib, 8);
    }
    if (status == TESS_OK && !peeked)
        status = TESS_ERR_MEMORY; /* a peek has no status; NULL is its answer */
    tess_options_close(f.options);
    return status;
}

/* Run `life` until no allocation is left to fail. */
static void check_every_allocation(enum tess_status (*life)(void), int least)
{
    for (int mode = 0; mode < 2; mode++) {
        only_one = mode == 1;
        int n = 0;
        for (;; n++) {
            left_allocations = n;
            any_failed = false;
            enum tess_status status = life();
            left_allocations = NEVER;
            if (!any_failed) {
                assert_int_equal(status, TESS_OK);
                break;
            }
            assert_int_equal(status, TESS_ERR_MEMORY);
        }
        assert_true(n >= least);
    }
}

static void case_options(void **state)
{
    (void)state;
    fixture_write_text("t.yaml",
                       "precision: bf16\nlayers: [1, 2]\npart: {bucket-mib: 8}\nany: 5\n");
    setenv("TESSERA_LEARNING_RATE", "0.5", 1);
    check_every_allocation(options_life, 20);
    unsetenv("TESSERA_LEARNING_RATE");
}

/* Finding the nearest name needs no memory. */
static void case_unknown_name(void **state)
{
    (void)state;
    struct fixture f;
    char *argv[] = {"--rnaks=4"};
    const char *positional[1];
    int count;
    fixture_open(&f);
    left_allocations = 0;
    enum tess_status status =
        tess_options_load_arguments(f.options, 1, argv, positional, 0, &count);
    left_allocations = NEVER;
    assert_int_equal(status, TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "command line: unknown option 'rnaks'; did you mean 'ranks'?");
    fixture_close(&f);
}

static enum tess_status memory_life(void)
{
    struct tess_memory *memory = NULL;
    struct tess_block block;
    enum tess_status status = tess_memory_open(&memory);
    for (uint64_t i = 0; i < 100 && status == TESS_OK; i++) {
        status = tess_memory_reserve(memory, TESS_MEMORY_BUCKET, i, "bucket", &block);
        if (status != TESS_OK) /* a failed reservation counts for nothing */
            assert_int_equal(tess_memory_total(memory), i > 0 ? (i - 1) * TESS_MEMORY_ALIGN : 0);
    }
    tess_memory_close(memory);
    return status;
}

static void case_memory_plan(void **state)
{
    (void)state;
    check_every_allocation(memory_life, 7); /* itself; blocks, four times; their owners, twice */
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_options),
        cmocka_unit_test(case_unknown_name),
        cmocka_unit_test(case_memory_plan),
    };
    return cmocka_run_group_tests(cases, fixture_folder_open, fixture_folder_close);
}
