/* The option set's messages, word by word with their places: bad values, names, files, command
 * lines. */
#include "options_fixture.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct expectation {
    const char *input, *message;
};

/* Is the latest error the expected one? All that differ are shown before the case fails. */
static int differs(const char *input, const char *message)
{
    if (strcmp(tess_log_last_error(), message) == 0)
        return 0;
    print_error("input:    %s\nexpected: %s\nfound:    %s\n", input, message,
                tess_log_last_error());
    return 1;
}

static void case_yaml_messages(void **state)
{
    (void)state;
    static const struct expectation expected[] = {
        /* values */
        {"ranks: four\n",
         "t.yaml:1:8: ranks: 'four' is not a whole number; expected a whole number from 1 to 64"},
        {"\n\nranks:   99\n",
         "t.yaml:3:10: ranks: '99' is out of range; expected a whole number from 1 to 64"},
        {"evaluate: maybe\n",
         "t.yaml:1:11: evaluate: 'maybe' is neither on nor off; expected on or off"},
        {"learning-rate: nan\n",
         "t.yaml:1:16: learning-rate: 'nan' is not a number; expected a number from 0 to 10"},
        {"learning-rate: 1e999\n", "t.yaml:1:16: learning-rate: '1e999' does not fit in a double; "
                                   "expected a number from 0 to 10"},
        {"precision: bf61\n",
         "t.yaml:1:12: precision: 'bf61' is not known; expected f32, bf16 or f16; "
         "did you mean 'bf16'?"},
        {"precision: double\n",
         "t.yaml:1:12: precision: 'double' is not known; expected f32, bf16 or f16"},
        {"layers: [1, x]\n",
         "t.yaml:1:9: layers: number 2, 'x', is not a whole number; expected up to "
         "32 whole numbers from 1 to 65536, separated by commas"},
        {"layers: 1,,2\n",
         "t.yaml:1:9: layers: number 2, '', is not a whole number; expected up to "
         "32 whole numbers from 1 to 65536, separated by commas"},
        {"layers: [1, 0]\n", "t.yaml:1:9: layers: number 2, '0', is out of range; expected up to "
                             "32 whole numbers from 1 to 65536, separated by commas"},
        {"any: 9223372036854775808\n",
         "t.yaml:1:6: any: '9223372036854775808' does not fit in 64 bits; expected a whole number"},
        {"any: 1K\n",
         "t.yaml:1:6: any: '1K' is not a whole number (suffixes are k, M, G and Ki, Mi, "
         "Gi); expected a whole number"},
        {"part:\n  bucket-mib: 0\n", "t.yaml:2:15: part.bucket-mib: '0' is out of range; expected "
                                     "a whole number from 1 to 1024"},
        /* the wrong shape */
        {"ranks: [1, 2]\n",
         "t.yaml:1:8: ranks: expected a whole number from 1 to 64, found a sequence"},
        {"ranks: {a: 1}\n", "t.yaml:1:8: ranks: expected a whole number from 1 to 64, found a map"},
        {"data:\n",
         "t.yaml:1:6: data: expected a text, found nothing; write \"\" for an empty text"},
        {"part: 5\n", "t.yaml:1:7: 'part' is a group of options, not an option; expected a map"},
        {"layers: [1, [2]]\n", "t.yaml:1:13: a number was expected, not a map or a sequence"},
        {"layers: [1, \"2,3\"]\n", "t.yaml:1:13: one number was expected, without a comma"},
        {"layers: [1, \"\"]\n", "t.yaml:1:13: one number was expected"},
        {"", "t.yaml:1:1: the file has no options; a file of defaults alone has {}"},
        {"# cut off\n", "t.yaml:2:1: the file has no options; a file of defaults alone has {}"},
        {"- ranks\n", "t.yaml:1:1: lines of the form 'name: value' were expected"},
        {"ranks\n", "t.yaml:1:1: lines of the form 'name: value' were expected"},
        {"? [a]\n: 1\n", "t.yaml:1:3: an option's name was expected, not a map or a sequence"},
        {"\"\": 1\n", "t.yaml:1:1: an option's name is empty"},
        /* names */
        {"rnaks: 2\n", "t.yaml:1:1: unknown option 'rnaks'; did you mean 'ranks'?"},
        {"ranks: 2\n  \nlearning_rat: 3\n",
         "t.yaml:3:1: unknown option 'learning-rat'; did you mean 'learning-rate'?"},
        {"part:\n    overlapp: on\n",
         "t.yaml:2:5: unknown option 'part.overlapp'; did you mean 'part.overlap'?"},
        {"bucket-mib: 4\n",
         "t.yaml:1:1: unknown option 'bucket-mib'; did you mean 'part.bucket-mib'?"},
        {"prat:\n  overlap: on\n", "t.yaml:1:1: unknown option 'prat'; did you mean 'part'?"},
        {"something: 1\n", "t.yaml:1:1: unknown option 'something'; --help lists the known ones"},
        {"otherwise: 1\n", "t.yaml:1:1: unknown option 'otherwise'; --help lists the known ones"},
        {"ranks: 1\nranks: 2\n", "t.yaml:2:1: 'ranks' is given twice, first at line 1, column 1"},
        {"part: {bucket_mib: 1}\npart.bucket-mib: 2\n",
         "t.yaml:2:1: 'part.bucket-mib' is given twice, first at line 1, column 8"},
        {"part: {bucket_mib: 1}\npart: {overlap: on}\n",
         "t.yaml:2:1: 'part' is given twice, first at line 1, column 1"},
        /* what YAML can and a configuration cannot */
        {"ranks: &x 1\n",
         "t.yaml:1:8: anchors and aliases (& and *) are not supported; write the value "
         "out, or in quotes if it begins with & or *"},
        {"ranks: *x\n",
         "t.yaml:1:8: anchors and aliases (& and *) are not supported; write the value "
         "out, or in quotes if it begins with & or *"},
        {"ranks: !!int 1\n",
         "t.yaml:1:8: tags (!) are not supported; write the value in quotes if it "
         "begins with !"},
        {"part: !x {overlap: on}\n",
         "t.yaml:1:7: tags (!) are not supported; write the value in quotes "
         "if it begins with !"},
        {"ranks: 1\n---\nranks: 2\n",
         "t.yaml:2:1: a second document begins here; one was expected"},
        {"data: \"a\\0b\"\n", "t.yaml:1:7: the text holds a NUL byte"},
        {"a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}}}}}}}}}}\n",
         "t.yaml:1:64: more than 16 maps in each other"},
        /* not YAML */
        {"ranks: 1\n\tany: 2\n", "t.yaml:2:1: not YAML: found a tab character that violates "
                                 "indentation while scanning a plain scalar"},
        {"part: {overlap: on\nany: 1\n",
         "t.yaml:2:4: not YAML: did not find expected ',' or '}' while parsing a flow mapping"},
        {"ranks: 1\n data: x\n",
         "t.yaml:2:6: not YAML: mapping values are not allowed in this context"},
        {"data: \"abc\n",
         "t.yaml:2:1: not YAML: found unexpected end of stream while scanning a quoted scalar"},
        /* not text */
        {"ranks: 1\ndata: a\xff\n", "t.yaml:2:8: byte 0xff is not UTF-8"},
        {"data: \xc0\xaf\n", "t.yaml:1:7: byte 0xc0 is not UTF-8"},
        {"data: \xed\xa0\x80\n", "t.yaml:1:7: byte 0xed is not UTF-8"},
        {"data: \xf4\x90\x80\x80\n", "t.yaml:1:7: byte 0xf4 is not UTF-8"},
        {"data: \xc3\xa9\xc3", "t.yaml:1:8: byte 0xc3 is not UTF-8"},
        {"a: \033[2J\n", "t.yaml:1:4: control character U+001B"},
        {"a: \xef\xbb\xbf\n", "t.yaml:1:4: control character U+FEFF"},
        {"data: \"\\e[2J\\x01\"\nranks: \"\\e[2J\"\n",
         "t.yaml:2:8: ranks: '\\x1b[2J' is not a whole "
         "number; expected a whole number from 1 to 64"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct fixture f;
        if (fixture_load_yaml(&f, expected[i].input) != TESS_ERR_USAGE)
            fail_msg("accepted: %s", expected[i].input);
        wrong += differs(expected[i].input, expected[i].message);
        fixture_close(&f);
    }
    assert_int_equal(wrong, 0);
}

static void case_argument_messages(void **state)
{
    (void)state;
    static const struct expectation expected[] = {
        {"--ranks 0",
         "command line: ranks: '0' is out of range; expected a whole number from 1 to 64"},
        {"--ranks=-2",
         "command line: ranks: '-2' is out of range; expected a whole number from 1 to 64"},
        {"--ranks", "command line: --ranks needs a value: a whole number from 1 to 64"},
        {"--ranks --data x", "command line: --ranks needs a value: a whole number from 1 to 64"},
        {"--ranks --", "command line: --ranks needs a value: a whole number from 1 to 64"},
        {"--data", "command line: --data needs a value: a text"},
        {"--ranks=",
         "command line: ranks: '' is not a whole number; expected a whole number from 1 "
         "to 64"},
        {"--evaluate=perhaps",
         "command line: evaluate: 'perhaps' is neither on nor off; expected on or off"},
        {"--no-evaluate=on",
         "command line: --no-evaluate takes no value: use --evaluate with on or off"},
        {"--no-ranks",
         "command line: --no-ranks does not apply, it is no switch: use --ranks with a "
         "whole number from 1 to 64"},
        {"--rank 2", "command line: unknown option 'rank'; did you mean 'ranks'?"},
        {"--bucket-mib=2",
         "command line: unknown option 'bucket-mib'; did you mean 'part.bucket-mib'?"},
        {"--=2", "command line: unknown option ''; --help lists the known ones"},
        {"--qqqqqqqqqqqqqqqqqqq",
         "command line: unknown option 'qqqqqqqqqqqqqqqqqqq'; --help lists the "
         "known ones"},
        {"--other.size 3", "command line: --other.size applies to strategy other only"},
        {"--set other.size=3", "command line: --other.size applies to strategy other only"},
        {"--no-other.flag", "command line: --no-other.flag applies to strategy other only"},
        {"--set", "command line: --set needs name=value, found ''"},
        {"--set ranks", "command line: --set needs name=value, found 'ranks'"},
        {"--set=ranks", "command line: --set needs name=value, found 'ranks'"},
        {"--set rnaks=2", "command line: unknown option 'rnaks'; did you mean 'ranks'?"},
        {"-r 2", "command line: unknown option '-r'; options begin with '--'"},
        {"-ranks=2", "command line: unknown option '-ranks=2'; options begin with '--'"},
        {"a b c", "command line: one word too many: 'c'; --help shows what may stand here"},
        {"--evaluate a b c",
         "command line: one word too many: 'c'; --help shows what may stand here"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct fixture f;
        if (fixture_load_words(&f, expected[i].input) != TESS_ERR_USAGE)
            fail_msg("accepted: %s", expected[i].input);
        wrong += differs(expected[i].input, expected[i].message);
        fixture_close(&f);
    }
    assert_int_equal(wrong, 0);
}

static void case_file_messages(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    assert_int_equal(tess_options_load_yaml(f.options, "missing.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "missing.yaml: cannot be opened: No such file or directory");
    assert_int_equal(tess_options_load_yaml(f.options, "."), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        ".: cannot be opened: it is a folder; a file was expected");
    assert_int_equal(tess_options_load_yaml(f.options, ""), TESS_ERR_USAGE);
    assert_int_equal(tess_options_load_yaml(f.options, "/dev/zero"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "/dev/zero: cannot be opened: it is a device or a pipe, not a file");
    fixture_write_text("large.yaml", "");
    assert_int_equal(truncate("large.yaml", (1 << 20) + 1), 0);
    assert_int_equal(tess_options_load_yaml(f.options, "large.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "large.yaml: is larger than 1 MiB; is it a configuration file?");
    assert_int_equal(tess_options_load_yaml(f.options, "/dev/null"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(), "/dev/null:1:1: the file has no options; a file of "
                                               "defaults alone has {}");
    if (geteuid() != 0) { /* root may read it all the same */
        fixture_write_text("closed.yaml", "ranks: 2\n");
        assert_int_equal(chmod("closed.yaml", 0), 0);
        assert_int_equal(tess_options_load_yaml(f.options, "closed.yaml"), TESS_ERR_USAGE);
        assert_string_equal(tess_log_last_error(),
                            "closed.yaml: cannot be opened: Permission denied");
    }
    fixture_close(&f);
}

static void case_file_sizes(void **state)
{
    (void)state;
    enum { LIMIT = 1 << 20 };
    static char bytes[LIMIT + 1];
    struct fixture f;
    memset(bytes, '#', sizeof(bytes));
    memcpy(bytes, "any: 7\n", 7);
    fixture_write("big.yaml", bytes, LIMIT);
    fixture_open(&f);
    assert_int_equal(tess_options_load_yaml(f.options, "big.yaml"), TESS_OK);
    assert_int_equal(f.run.any, 7);
    fixture_close(&f);
    fixture_write("big.yaml", bytes, LIMIT + 1);
    fixture_open(&f);
    assert_int_equal(tess_options_load_yaml(f.options, "big.yaml"), TESS_ERR_USAGE);
    fixture_close(&f);
    /* NUL bytes in a file, where strlen would stop. */
    fixture_write("big.yaml", "any: 7\nra\0nks: 1\n", 17);
    fixture_open(&f);
    assert_int_equal(tess_options_load_yaml(f.options, "big.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(), "big.yaml:2:3: NUL byte; a text file was expected");
    fixture_close(&f);
    /* More keys than any configuration has, all of them an unselected part's. */
    size_t used = (size_t)snprintf(bytes, sizeof(bytes), "other:\n");
    for (int i = 0; i < 4096; i++)
        used += (size_t)snprintf(bytes + used, sizeof(bytes) - used, " k%d: 1\n", i);
    fixture_write("big.yaml", bytes, used);
    fixture_open(&f);
    assert_int_equal(tess_options_load_yaml(f.options, "big.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(), "big.yaml:4097:2: more than 4096 options");
    fixture_close(&f);
}

/* "layers: [1, 1, ...]" with `count` numbers. */
static const char *many_numbers(char text[8192], int count)
{
    size_t used = (size_t)snprintf(text, 8192, "layers: [1");
    for (int i = 1; i < count; i++)
        used += (size_t)snprintf(text + used, 8192 - used, ", 1");
    snprintf(text + used, 8192 - used, "]\n");
    return text;
}

static void case_too_many_numbers(void **state)
{
    (void)state;
    struct fixture f;
    char text[8192];
    assert_int_equal(fixture_load_yaml(&f, many_numbers(text, TESS_INTS_MAX)), TESS_OK);
    assert_int_equal(f.run.layers.count, TESS_INTS_MAX);
    fixture_close(&f);
    assert_int_equal(fixture_load_yaml(&f, many_numbers(text, TESS_INTS_MAX + 1)), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "t.yaml:1:9: layers: number 33, '1', is one too many; expected up to 32 "
                        "whole numbers from 1 to 65536, separated by commas");
    fixture_close(&f);
    /* 511 numbers and their commas fill the 1023 bytes that a sequence may have; twice as many do
     * not. */
    for (int count = 505; count < 2000; count += count < 520 ? 1 : 500) {
        assert_int_equal(fixture_load_yaml(&f, many_numbers(text, count)), TESS_ERR_USAGE);
        fixture_close(&f);
    }
    assert_non_null(strstr(tess_log_last_error(), "the sequence is too long"));
}

static void case_long_names_and_values(void **state)
{
    (void)state;
    struct fixture f;
    char text[5000], name[301];
    memset(name, 'n', 300);
    name[300] = '\0';
    snprintf(text, sizeof(text), "%s: 1\n", name);
    assert_int_equal(fixture_load_yaml(&f, text), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "t.yaml:1:1: an option's name is longer than 127 characters");
    fixture_close(&f);
    snprintf(text, sizeof(text), "--%s=1", name);
    assert_int_equal(fixture_load_words(&f, text), TESS_ERR_USAGE);
    assert_true(strlen(tess_log_last_error()) < 160); /* cut, not spread over the screen */
    fixture_close(&f);
    snprintf(text, sizeof(text), "--ranks=%s", name);
    assert_int_equal(fixture_load_words(&f, text), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "nnn...' is not a whole number"));
    fixture_close(&f);
    memset(text, 'v', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "--data=", 7);
    char *argv[] = {text};
    const char *positional[1];
    int count;
    fixture_open(&f);
    assert_int_equal(tess_options_load_arguments(f.options, 1, argv, positional, 0, &count),
                     TESS_OK);
    assert_int_equal(strlen(f.run.data), sizeof(text) - 8);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_yaml_messages),    cmocka_unit_test(case_argument_messages),
        cmocka_unit_test(case_file_messages),    cmocka_unit_test(case_file_sizes),
        cmocka_unit_test(case_too_many_numbers), cmocka_unit_test(case_long_names_and_values),
    };
    return cmocka_run_group_tests(cases, fixture_folder_open, fixture_folder_close);
}
