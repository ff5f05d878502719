/*
 * Hostile input to the option set: mutations of valid files, command lines and environments from a
 * fixed seed. Nothing may crash, leak, hang or read beyond its memory (the sanitizers watch), every
 * refusal has a printable message, and what is accepted obeys the limits of the tables.
 */
#include "base/hash.h"
#include "base/options_set.h"
#include "base/rng.h"
#include "options_fixture.h"
#include "tessera/log.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT_MAX 4096

/* Present under a sanitizer: its reports go to the given descriptor instead of stderr. */
void __sanitizer_set_report_fd(void *fd) __attribute__((weak));

static struct tess_rng_key fuzz_key;
static uint64_t fuzz_drawn;

/* A number below `n`, the next of a fixed sequence. */
static size_t draw(size_t n)
{
    return tess_rng_word(fuzz_key, fuzz_drawn++, 0) % n;
}

/* "t.yaml" is a link to memory: thousands of files on a disk would take most of the time. */
static int fuzz_file, fuzz_stderr;

static int open_group(void **state)
{
    char target[64];
    if (fixture_folder_open(state) != 0)
        return -1;
    fuzz_file = memfd_create("t.yaml", MFD_CLOEXEC);
    fuzz_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", fuzz_file);
    if (fuzz_file < 0 || fuzz_stderr < 0 || symlink(target, "t.yaml") != 0)
        return -1;
    if (__sanitizer_set_report_fd)
        __sanitizer_set_report_fd((void *)(intptr_t)fuzz_stderr);
    fuzz_key = tess_rng_key(20, TESS_RNG_TEST, 0);
    return 0;
}

static void write_file(const void *bytes, size_t count)
{
    assert_int_equal(ftruncate(fuzz_file, 0), 0);
    assert_int_equal(pwrite(fuzz_file, bytes, count, 0), count);
}

/* Thousands of refusals would bury what matters: during a case stderr leads nowhere. */
static int mute(void **state)
{
    (void)state;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDERR_FILENO) < 0)
        return -1;
    return close(null);
}

static int unmute(void **state)
{
    (void)state;
    return dup2(fuzz_stderr, STDERR_FILENO) < 0;
}

static const char *const seed_yaml[] = {
    "ranks: 4\nevaluate: off\nlearning-rate: 1e-3\ndata: \"a b\"\nlayers: [1, 2Ki, 3]\n"
    "part:\n  bucket-mib: 8\n  overlap: on\nother: {x: [1, 2], y: {z: 3}}\n",
    "---\n? ranks\n: 3\n'data': 'it''s'\nprecision: bf16\nany: -9223372036854775808\n...\n",
    "part: {bucket_mib: 1024, overlap: no} # comment\nlayers: 1, 2, 3\ndata: |\n  folded\n  text\n",
    "data: \"\\u00e9\\x41\\\"\"\nany: +7Gi\nlearning_rate: .5\nevaluate: TRUE\nprecision: >-\n  "
    "f16\n",
};

/* What finds corners more often than single bytes do. */
static const char *const piece[] = {
    ": ",
    "\n",
    "\t",
    "[",
    "]",
    "{",
    "}",
    ",",
    "- ",
    "&a ",
    "*a",
    "!!x ",
    "<<: ",
    "? ",
    "|\n",
    ">\n",
    "\"",
    "'",
    "\\0",
    "%YAML 9.9\n",
    "---\n",
    "...\n",
    "#",
    "\xff",
    "\xc3",
    "\xef\xbb\xbf",
    "~",
    "part",
    "other.",
    "ranks: 3\n",
    "99999999999999999999",
    "1e999",
    "nan",
    "-",
    "\r",
    "\033",
    "@",
    "`",
    "  ",
    "=",
    "\xe2\x80\xa8",
    "null",
    "[[[[[[[[[[[[[[[[[[[[[[[[",
    "{a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: 1",
};

/* Change `text` [*length] in one place; never beyond TEXT_MAX. */
static void mutate(char *text, size_t *length)
{
    size_t at = draw(*length + 1), left = *length - at;
    size_t cut = draw(8) < left ? draw(8) % (left + 1) : 0;
    const char *put = piece[draw(sizeof(piece) / sizeof(piece[0]))];
    size_t put_length = strlen(put);
    switch (draw(6)) {
    case 0: /* one byte */
        if (left > 0)
            text[at] = (char)draw(256);
        break;
    case 1: /* bytes removed */
        memmove(text + at, text + at + cut, left - cut);
        *length -= cut;
        break;
    case 2: /* a stretch repeated */
        if (*length + cut <= TEXT_MAX) {
            memmove(text + at + cut, text + at, left);
            *length += cut;
        }
        break;
    case 3: /* cut short */
        if (draw(8) == 0)
            *length = at;
        break;
    default: /* a piece put in */
        if (*length + put_length <= TEXT_MAX) {
            memmove(text + at + put_length, text + at, left);
            memcpy(text + at, put, put_length);
            *length += put_length;
        }
    }
}

static void check_printable(const char *text)
{
    assert_true(*text);
    for (; *text; text++)
        assert_true((unsigned char)*text >= 0x20 && *text != 0x7f);
}

/* Every field is within its table's limits, whatever was loaded before. */
static void check_fields(const struct fixture *f)
{
    assert_in_range(f->run.ranks, 1, 64);
    assert_true(f->run.rate >= 0 && f->run.rate <= 10);
    assert_non_null(f->run.data);
    assert_in_range(f->run.precision, 0, 2);
    assert_in_range(f->run.layers.count, 0, TESS_INTS_MAX);
    for (int32_t i = 0; i < f->run.layers.count; i++)
        assert_in_range(f->run.layers.value[i], 1, 65536);
    assert_in_range(f->part.bucket_mib, 1, 1024);
}

static void add_hash(void *context, const char *name, const char *value, const char *origin,
                     const struct tess_option *option)
{
    uint64_t *hash = context;
    *hash += tess_hash_bytes(name, strlen(name)) ^ tess_hash_bytes(value, strlen(value)) ^
             tess_hash_bytes(origin, strlen(origin)) ^ (uint64_t)option->type;
}

/* After a load: message or fields, and everything that the set hands out can be read. */
static void check_outcome(struct fixture *f, enum tess_status status, int *accepted)
{
    uint64_t hash = 0;
    if (status == TESS_OK) {
        ++*accepted;
    } else {
        assert_int_equal(status, TESS_ERR_USAGE);
        check_printable(tess_log_last_error());
    }
    check_fields(f);
    tess_options_visit(f->options, add_hash, &hash);
    assert_int_not_equal(hash + tess_options_hash(f->options), 0);
}

static void case_yaml(void **state)
{
    (void)state;
    int accepted = 0, tries = 4000;
    for (int i = 0; i < tries; i++) {
        char text[TEXT_MAX];
        const char *seed = seed_yaml[draw(sizeof(seed_yaml) / sizeof(seed_yaml[0]))];
        size_t length = strlen(seed);
        memcpy(text, seed, length);
        for (size_t changes = draw(5); changes > 0; changes--)
            mutate(text, &length);
        write_file(text, length);
        struct fixture f;
        fixture_open(&f);
        if (i % 3 == 0)
            tess_options_peek(f.options, "part.bucket-mib", 0, NULL, "t.yaml");
        enum tess_status status = tess_options_load_yaml(f.options, "t.yaml");
        check_outcome(&f, status, &accepted);
        if (status != TESS_OK) /* the place is named: file, line, column */
            assert_non_null(strstr(tess_log_last_error(), "t.yaml:"));
        fixture_close(&f);
    }
    /* A fifth is not changed at all; if nearly nothing else gets through, the parser is not
     * reached. */
    assert_in_range(accepted, tries / 4, tries * 3 / 4);
}

static void case_bytes(void **state)
{
    (void)state;
    int accepted = 0;
    for (int i = 0; i < 1000; i++) {
        unsigned char text[300];
        size_t length = draw(sizeof(text)), kind = draw(3);
        for (size_t b = 0; b < length; b++)
            text[b] = kind == 0 ? (unsigned char)draw(256) : (unsigned char)(0x20 + draw(0x5f));
        struct fixture f;
        fixture_open(&f);
        write_file(text, length);
        check_outcome(&f, tess_options_load_yaml(f.options, "t.yaml"), &accepted);
        fixture_close(&f);
    }
}

static const char *const seed_word[] = {
    "--ranks",
    "4",
    "--ranks=8",
    "--evaluate",
    "--no-evaluate",
    "--evaluate=on",
    "--set",
    "any=3Ki",
    "--set=part.overlap=1",
    "--learning-rate=1e-2",
    "--data",
    "a b",
    "--layers",
    "1,2,3",
    "--layers=1, 2, 3",
    "--",
    "file.yaml",
    "-",
    "--part.bucket-mib",
    "16",
    "--precision",
    "bf16",
    "--other.x=1",
    "-x",
    "",
};

/* A heap copy of exactly the word's size, so that a step beyond its end is seen. */
static char *make_word(void)
{
    char text[TEXT_MAX];
    const char *seed = seed_word[draw(sizeof(seed_word) / sizeof(seed_word[0]))];
    size_t length = strlen(seed);
    memcpy(text, seed, length);
    for (size_t changes = draw(6) == 0 ? draw(4) : 0; changes > 0; changes--)
        mutate(text, &length);
    if (draw(100) == 0) { /* a very long one */
        memset(text, "n=-1"[draw(4)], sizeof(text) - 1);
        length = sizeof(text) - 1;
    }
    text[length] = '\0';
    return strdup(text); /* up to a NUL that a mutation made */
}

static void case_arguments(void **state)
{
    (void)state;
    int accepted = 0, tries = 6000;
    for (int i = 0; i < tries; i++) {
        /* On the heap, so that a step beyond argv is seen too. */
        int argc = (int)draw(7), count = 0, positional_max = (int)draw(4);
        char **argv = malloc((size_t)argc * sizeof(*argv) + 1);
        const char **positional = malloc((size_t)positional_max * sizeof(*positional) + 1);
        assert_non_null(argv);
        assert_non_null(positional);
        for (int a = 0; a < argc; a++) {
            argv[a] = make_word();
            assert_non_null(argv[a]);
        }
        struct fixture f;
        fixture_open(&f);
        tess_options_peek(f.options, "data", argc, argv, NULL);
        tess_options_peek(f.options, "evaluate", argc, argv, NULL);
        enum tess_status status =
            tess_options_load_arguments(f.options, argc, argv, positional, positional_max, &count);
        for (int a = 0; a < argc; a++)
            if (status != TESS_OK)
                free(argv[a]);
        check_outcome(&f, status, &accepted);
        if (status == TESS_OK) {
            assert_in_range(count, 0, positional_max);
            for (int p = 0; p < count; p++)
                assert_true(strlen(positional[p]) < TEXT_MAX);
            for (int a = 0; a < argc; a++)
                free(argv[a]);
        }
        check_fields(&f); /* and keeps nothing of argv */
        fixture_close(&f);
        free(positional);
        free(argv);
    }
    assert_in_range(accepted, tries / 10, tries * 9 / 10);
}

static void case_environment(void **state)
{
    (void)state;
    static const char *const seed[] = {"RANKS=3", "EVALUATE=off", "PART_BUCKET_MIB=9",
                                       "DATA=x",  "OTHER_X=1",    "LAYERS=1,2"};
    int accepted = 0;
    for (int i = 0; i < 1000; i++) {
        char text[TEXT_MAX] = "TESSERA_";
        size_t length = 8, added;
        const char *from = seed[draw(6)];
        added = strlen(from);
        memcpy(text + length, from, added);
        for (size_t changes = draw(3); changes > 0; changes--) {
            char tail[TEXT_MAX];
            memcpy(tail, text + length, added);
            mutate(tail, &added);
            added = added < TEXT_MAX - 9 ? added : TEXT_MAX - 9;
            memcpy(text + length, tail, added);
        }
        text[length + added] = '\0';
        char *own[] = {text, NULL}, **before = environ;
        struct fixture f;
        fixture_open(&f);
        environ = own;
        enum tess_status status = tess_options_load_environment(f.options);
        tess_options_peek(f.options, "ranks", 0, NULL, NULL);
        environ = before;
        memset(text, 'x', sizeof(text));
        check_outcome(&f, status, &accepted);
        fixture_close(&f);
    }
    assert_in_range(accepted, 300, 900);
}

/* The distance is symmetric here and the word itself is nearest; any bytes are words. */
static void case_nearest_word(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        char a[80], b[80];
        size_t a_length = draw(sizeof(a)), b_length = draw(sizeof(b));
        for (size_t k = 0; k < a_length; k++)
            a[k] = (char)(1 + draw(255));
        for (size_t k = 0; k < b_length; k++)
            b[k] = (char)(1 + draw(255));
        a[a_length] = b[b_length] = '\0';
        const char *known[] = {b, a};
        const char *nearest = tess_nearest_word(a, known, 2);
        if (a_length > 64 || a_length == 0)
            assert_null(nearest);
        else
            assert_string_equal(nearest, a);
    }
}

/* Every sequence of bytes at the very end of its memory: nothing is read beyond, and what is taken
 * for UTF-8 is written again as the same bytes. */
static void case_utf8(void **state)
{
    (void)state;
    int taken[5] = {0};
    for (int i = 0; i < 200000; i++) {
        size_t length = 1 + draw(4);
        char *bytes = malloc(length), again[4];
        assert_non_null(bytes);
        for (size_t b = 0; b < length; b++) /* mostly leads and followers that fit each other */
            bytes[b] = (char)(draw(8) == 0 ? draw(256) : b == 0 ? draw(64) + 192 : draw(64) + 128);
        uint32_t code = 0;
        int count = tess__utf8_length(bytes, length, &code);
        assert_in_range(count, 0, length);
        taken[count]++;
        if (count == 1)
            again[0] = (char)code;
        else if (count > 1) {
            for (int b = count - 1; b > 0; b--, code >>= 6)
                again[b] = (char)(0x80 | (code & 0x3f));
            again[0] = (char)((0xf00 >> count) | code);
        }
        assert_memory_equal(bytes, again, count);
        free(bytes);
    }
    for (int count = 0; count <= 4; count++)
        assert_true(taken[count] > 100);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_setup_teardown(case_yaml, mute, unmute),
        cmocka_unit_test_setup_teardown(case_bytes, mute, unmute),
        cmocka_unit_test_setup_teardown(case_arguments, mute, unmute),
        cmocka_unit_test_setup_teardown(case_environment, mute, unmute),
        cmocka_unit_test_setup_teardown(case_nearest_word, mute, unmute),
        cmocka_unit_test(case_utf8),
    };
    return cmocka_run_group_tests(cases, open_group, fixture_folder_close);
}
