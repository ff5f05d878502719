/*
 * Weights in several files: an index of three files is read as one file, and an index that says
 * what is not so is refused with the file and the tensor.
 */
#include "state/weights.h"

#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define VECTOR(n) .whole = {.rank = 1, .dim = {n}}, .slice = {.axis = -1}, .source = -1

enum { PARAMS = 4 };
static struct tess_declare_param param[PARAMS] = {
    {.name = "a", VECTOR(5)},
    {.name = "b", VECTOR(3)},
    {.name = "c", VECTOR(7)},
    {.name = "d", VECTOR(2)},
};
static const struct tess_declare declare = {.param = param, .param_count = PARAMS};

static char folder[] = "/tmp/tessera_weights_open_XXXXXX";

static float value_at(int p, int64_t i)
{
    return (float)(10 * (p + 1)) + 0.5f * (float)i;
}

/* A file of the tensors whose letters are in `names`, in that order. */
static void write_tensors(const char *path, const char *names)
{
    char header[1024] = "{";
    size_t used = 1;
    int64_t at = 0;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    for (const char *name = names; *name != '\0'; name++) {
        const int64_t count = param[*name - 'a'].whole.dim[0];
        used += (size_t)snprintf(
            header + used, sizeof(header) - used,
            "%s\"%c\":{\"dtype\":\"F32\",\"shape\":[%lld],\"data_offsets\":[%lld,%lld]}",
            name > names ? "," : "", *name, (long long)count, (long long)at * 4,
            (long long)(at + count) * 4);
        at += count;
    }
    header[used++] = '}';
    const uint64_t length = used;
    assert_int_equal(fwrite(&length, sizeof(length), 1, file), 1);
    assert_int_equal(fwrite(header, 1, used, file), used);
    for (const char *name = names; *name != '\0'; name++)
        for (int64_t i = 0; i < param[*name - 'a'].whole.dim[0]; i++) {
            const float value = value_at(*name - 'a', i);
            assert_int_equal(fwrite(&value, sizeof(value), 1, file), 1);
        }
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

#define INDEX "several/model.safetensors.index.json"
#define GOOD                                                                                       \
    "{\"metadata\": {\"total_size\": 68}, \"weight_map\": {\"a\": \"x.safetensors\", \"b\": "      \
    "\"y.safetensors\", \"c\": \"x.safetensors\", \"d\": \"z.safetensors\"}}"

/* Three files and their index, as they should be. */
static void write_several(void)
{
    write_tensors("several/x.safetensors", "ca");
    write_tensors("several/y.safetensors", "b");
    write_tensors("several/z.safetensors", "d");
    write_text(INDEX, GOOD);
}

static enum tess_status open_and_match(const char *path, struct tess_weights **weights)
{
    *weights = NULL;
    const enum tess_status status = tess_weights_open(path, weights);
    return status == TESS_OK ? tess_weights_match(*weights, &declare) : status;
}

static void check_values(const char *path)
{
    struct tess_weights *weights;
    float w[8];

    assert_int_equal(open_and_match(path, &weights), TESS_OK);
    for (int p = 0; p < PARAMS; p++) {
        const int64_t count = param[p].whole.dim[0];
        for (int64_t from = 0; from < count; from++) {
            assert_int_equal(tess_weights_read(weights, p, from, count - from, w), TESS_OK);
            for (int64_t i = from; i < count; i++)
                assert_true(w[i - from] == value_at(p, i));
        }
    }
    tess_weights_close(weights);
}

static void case_read(void **state)
{
    (void)state;
    write_several();
    check_values("several");
    check_values("several/");
    check_values(INDEX);
    write_tensors("one/model.safetensors", "dbac");
    check_values("one");
    check_values("one/model.safetensors");
    /* A run without checkpoints has its weights alone. */
    write_tensors("run/weights.safetensors", "abcd");
    check_values("run");
    assert_int_equal(mkdir("run/checkpoints", 0777), 0);
    assert_int_equal(mkdir("run/checkpoints/step-00000007.part", 0777), 0);
    check_values("run");
}

static void check_refused(const char *path, const char *phrase)
{
    struct tess_weights *weights;
    const enum tess_status status = open_and_match(path, &weights);

    tess_weights_close(weights);
    if (status == TESS_OK || strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' expected: status %d, %s", phrase, (int)status, tess_log_last_error());
}

static void case_index(void **state)
{
    static const struct {
        const char *index, *phrase;
    } wrong[] = {
        {"", "index.json:"},
        {"{\"weight_map\"", "index.json:1: "},
        {"[1]", "no weight_map"},
        {"{\"weight_map\": [\"a\"]}", "no weight_map"},
        {"{\"weight_map\": {}}", "no weight_map"},
        {"{\"weight_map\": {\"a\": 3}}", "tensor 'a' lies in '': expected the name of a file"},
        {"{\"weight_map\": {\"a\": \"\"}}", "tensor 'a' lies in ''"},
        {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "tensor 'a' lies in '../x.safe"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "tensor 'a' lies in '/etc/passwd'"},
        {"{\"weight_map\": {\"a\": \"..\"}}", "several/.. is not a regular file"},
        {"{\"weight_map\": {\"a\": \"w.safetensors\"}}",
         "cannot open the weights several/w.safetensors: No such file"},
        {"{\"weight_map\": {\"a\": \"model.safetensors.index.json\"}}",
         "several/model.safetensors.index.json: a header of"},
        {"{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}}", "\"a\""},
        /* The tensor is in another file than the index says; the file has one more; one fewer. */
        {"{\"weight_map\": {\"a\": \"y.safetensors\", \"c\": \"x.safetensors\", \"b\": "
         "\"y.safetensors\"}}",
         "several/x.safetensors has tensor 'a', for which several/model.safetensors.index.json "
         "names y.safetensors"},
        {"{\"weight_map\": {\"a\": \"x.safetensors\"}}",
         "several/x.safetensors has tensor 'c', for which several/model.safetensors.index.json "
         "names no file"},
        {"{\"weight_map\": {\"b\": \"y.safetensors\", \"f\": \"y.safetensors\"}}",
         "several/y.safetensors has no tensor 'f'"},
        {"{\"weight_map\": {\"b\": \"y.safetensors\", \"__metadata__\": \"y.safetensors\"}}",
         "several/y.safetensors has no tensor '__metadata__'"},
        {"{\"weight_map\": {\"b\": \"y.safetensors\"}}", "several has no tensor 'a', which"},
    };

    (void)state;
    write_several();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_text(INDEX, wrong[i].index);
        check_refused("several", wrong[i].phrase);
    }
    write_several();
    check_values("several");
}

static void case_files(void **state)
{
    (void)state;
    write_several();
    write_tensors("several/y.safetensors", "ba"); /* in two files */
    check_refused("several", "several/y.safetensors has tensor 'a', for which");
    write_several();
    assert_int_equal(truncate("several/x.safetensors", 40), 0);
    check_refused("several", "several/x.safetensors: ");
    write_several();
    assert_int_equal(unlink("several/z.safetensors"), 0);
    check_refused("several", "several/z.safetensors: No such file");
    /* Cut anywhere, the index is none. */
    write_several();
    for (size_t cut = 0; cut < strlen(GOOD); cut++) {
        assert_int_equal(truncate(INDEX, (off_t)cut), 0);
        check_refused("several", "index.json");
        write_text(INDEX, GOOD);
    }
}

static void case_folders(void **state)
{
    (void)state;
    check_refused("nowhere", "cannot open the weights nowhere");
    check_refused("empty", "empty has no weights: neither a complete checkpoint nor");
    assert_int_equal(mkdir("empty/step-00000100.part", 0777), 0);
    write_tensors("empty/step-00000100.part/model.safetensors", "abcd");
    check_refused("empty/step-00000100.part", "is a checkpoint that is not complete");
    check_refused("empty/step-00000100.part/", "is a checkpoint that is not complete");
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return -1;
    return mkdir("several", 0777) | mkdir("one", 0777) | mkdir("run", 0777) | mkdir("empty", 0777);
}

static int tear_down(void **state)
{
    char words[128];
    (void)state;
    snprintf(words, sizeof(words), "rm -rf %s", folder);
    return chdir("/") != 0 ? -1 : system(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_read),
        cmocka_unit_test(case_index),
        cmocka_unit_test(case_files),
        cmocka_unit_test(case_folders),
    };
    return cmocka_run_group_tests_name("weights open", tests, set_up, tear_down);
}
