/*
 * Benches through the program. A bench has no verdict, so what is checked is arithmetic: that every
 * line's figures follow from each other, that bytes and operations are those of the formulas in
 * bench/README.md, worked out here by hand, and that what cannot be measured is refused. Ceilings
 * and goals of a device are those of a stand-in for the module (standin_module.c).
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LINES_MAX 256

static char folder[] = "/tmp/tessera_bench_XXXXXX";
static struct spawn spawn;
static json_t *line[LINES_MAX];
static int lines;

/* ---- lines ----------------------------------------------------------------------------------- */

static void drop_lines(void)
{
    while (lines > 0)
        json_decref(line[--lines]);
}

/* Run the bench with --json and read what it writes. */
static void bench(const char *words)
{
    char all[512], text[4096];
    FILE *file;

    drop_lines();
    snprintf(all, sizeof(all), "%s --json %s/lines", words, folder);
    if (spawn_words(&spawn, all) != 0)
        fail_msg("%s:\n%s", words, spawn.err);
    snprintf(all, sizeof(all), "%s/lines", folder);
    file = fopen(all, "r");
    assert_non_null(file);
    while (fgets(text, sizeof(text), file) != NULL) {
        assert_true(lines < LINES_MAX);
        line[lines] = json_loads(text, 0, NULL);
        assert_non_null(line[lines]);
        lines++;
    }
    fclose(file);
    assert_int_equal(remove(all), 0);
}

static const char *word(const json_t *of, const char *name)
{
    const char *text = json_string_value(json_object_get(of, name));

    if (text == NULL)
        fail_msg("a line without the word %s", name);
    return text;
}

static double number(const json_t *of, const char *name)
{
    const json_t *value = json_object_get(of, name);

    if (!json_is_number(value))
        fail_msg("a line without the number %s", name);
    return json_number_value(value);
}

static bool is(const json_t *of, const char *name, const char *value)
{
    return strcmp(word(of, name), value) == 0;
}

static bool is_null(const json_t *of, const char *name)
{
    return json_is_null(json_object_get(of, name));
}

/* The n-th line of that part and name; fails where there is none. */
static const json_t *found(const char *part, const char *name, int n)
{
    for (int i = 0; i < lines; i++)
        if (is(line[i], "part", part) && is(line[i], "name", name) && n-- == 0)
            return line[i];
    fail_msg("no line '%s' of part %s", name, part);
    return NULL;
}

static void near(double value, double wanted, double share)
{
    if (!(fabs(value - wanted) <= share * fabs(wanted)))
        fail_msg("%.17g, expected %.17g", value, wanted);
}

/* Columns of the table: at most 100, nothing behind the last word. */
static void check_columns(void)
{
    for (const char *at = spawn.out; *at != '\0';) {
        const size_t length = strcspn(at, "\n");

        if (length > 100 || (length > 0 && at[length - 1] == ' '))
            fail_msg("%zu columns: '%.*s'", length, (int)length, at);
        at += length + (at[length] == '\n');
    }
}

/* ---- bench gpu: what follows from what ------------------------------------------------------- */

/* Is it a line with a rate? */
static bool is_row(const json_t *of)
{
    return json_object_get(of, "least_s") != NULL && json_object_get(of, "share") != NULL;
}

static double row_rate(const json_t *of)
{
    return number(of, json_object_get(of, "bytes") != NULL ? "bytes_per_s" : "flops_per_s");
}

/* The greatest amount / best time among the rows that make a ceiling: of the type, or all; of the
 * bytes, or all. */
static double best(const char *part, const char *name, const char *type, double bytes)
{
    double most = 0;

    for (int i = 0; i < lines; i++) {
        const bool counts = is_row(line[i]) && is(line[i], "part", part) &&
                            (name == NULL || is(line[i], "name", name)) &&
                            (type == NULL || is(line[i], "type", type));
        if (counts && (bytes == 0 || number(line[i], "bytes") == bytes))
            most = fmax(most, number(line[i], bytes > 0 ? "bytes" : "flops") /
                                  number(line[i], "least_s"));
    }
    assert_true(most > 0);
    return most;
}

/* A quotient of two doubles is rounded once, a product of two once more: 2^-50 is ample. */
#define ROUNDED 0x1p-50

static void check_row(const json_t *row)
{
    const bool is_bytes = json_object_get(row, "bytes") != NULL;
    const double amount = number(row, is_bytes ? "bytes" : "flops");

    assert_true(amount > 0 && number(row, "least_s") > 0);
    assert_true(number(row, "median_s") >= number(row, "least_s"));
    near(row_rate(row), amount / number(row, "median_s"), ROUNDED);
    assert_true(is_null(row, "ceiling_per_s") == is_null(row, "share"));
    assert_true(is_null(row, "goal") == is_null(row, "met"));
    if (!is_null(row, "share"))
        near(number(row, "share"), row_rate(row) / number(row, "ceiling_per_s"), ROUNDED);
    if (!is_null(row, "goal"))
        assert_true(json_is_true(json_object_get(row, "met")) ==
                    (number(row, "share") >= number(row, "goal")));
}

/* The row as it is printed, from where the one before ended: the same figures, as rounded there. */
static const char *check_printed(const json_t *row, const char *from, double unit)
{
    char head[64], share[16];
    double us, rate;
    const char *at;

    snprintf(head, sizeof(head), "\n%-27s %-22s %-5s ", word(row, "name"), word(row, "shape"),
             word(row, "type"));
    at = strstr(from, head);
    if (at == NULL)
        fail_msg("'%s' is not printed, or in another order", head + 1);
    at += strlen(head);
    assert_int_equal(sscanf(at, "%lf %lf %15s", &us, &rate, share), 3);
    /* Two and one digits behind the point; half of the last, and what doubles lose. */
    assert_true(fabs(us - 1e6 * number(row, "median_s")) <= 0.0050001);
    assert_true(fabs(rate - row_rate(row) / unit) <= 0.0500001);
    if (is_null(row, "share"))
        assert_string_equal(share, "-");
    else
        assert_true(fabs(atof(share) - 100 * number(row, "share")) <= 0.0500001);
    return at;
}

static void check_rows(double flops_unit)
{
    const char *at = spawn.out;
    int rows = 0;

    for (int i = 0; i < lines; i++) {
        if (!is_row(line[i]))
            continue;
        check_row(line[i]);
        at = check_printed(line[i], at,
                           json_object_get(line[i], "bytes") != NULL ? 1e9 : flops_unit);
        rows++;
    }
    assert_true(rows > 0);
    check_columns();
}

/* Every share is one of the ceiling that this run has measured. */
static void check_ceilings(double array_bytes)
{
    const double copy = best("copy", "copy", NULL, 2 * array_bytes);

    for (int i = 0; i < lines; i++) {
        if (is(line[i], "part", "copy ceiling"))
            near(number(line[i], "bytes_per_s"), copy, ROUNDED);
        if (is(line[i], "part", "matmul ceiling"))
            near(number(line[i], "flops_per_s"), best("matmul", NULL, word(line[i], "type"), 0),
                 ROUNDED);
        if (is(line[i], "part", "kernels") || is(line[i], "part", "reduce"))
            near(number(line[i], "ceiling_per_s"), copy, ROUNDED);
        if (is(line[i], "part", "products"))
            near(number(line[i], "ceiling_per_s"), best("matmul", NULL, word(line[i], "type"), 0),
                 ROUNDED);
    }
}

/* ---- bench gpu: amounts ---------------------------------------------------------------------- */

/*
 * A small model of 64 channels, 256 inside, 512 classes in bf16; arrays of 65536 bytes are 512 rows
 * of 64 channels, 128 of 256, 64 of 512, and 16384 numbers in f32.
 */
static const struct {
    const char *part, *name;
    double amount;
} amounts[] = {
    {"copy", "fill", 65536},
    /* four arrays, mean and rstd, gamma and beta */
    {"kernels", "add + layer norm", 4 * 65536 + 512 * 8 + 2 * 64 * 2},
    /* gamma; dgamma and dbeta in f32 */
    {"kernels", "layer norm backward + add", 4 * 65536 + 512 * 8 + 64 * 2 + 2 * 64 * 4},
    {"kernels", "add + RMS norm", 4 * 65536 + 512 * 4 + 64 * 2},
    {"kernels", "RMS norm backward + add", 4 * 65536 + 512 * 4 + 64 * 2 + 64 * 4},
    /* as many rows of the table as there are tokens, tokens, result */
    {"kernels", "embedding", 512 * 64 * 2 + 512 * 4 + 512 * 64 * 2},
    {"kernels", "embedding backward", 512 * 64 * 2 + 512 * 4 + 512 * 64 * 4},
    {"kernels", "rope", 2 * 65536},
    {"kernels", "add", 3 * 65536},
    {"kernels", "dropout", 2 * 65536},
    {"kernels", "relu backward", 3 * 65536},
    {"kernels", "gelu", 2 * 65536},
    {"kernels", "gelu backward", 3 * 65536},
    {"kernels", "swiglu", 3 * 65536},
    {"kernels", "swiglu backward", 5 * 65536},
    /* logits and their gradient; label, loss, correct */
    {"kernels", "xent, loss and gradient", 2 * 65536 + 64 * 12},
    /* maximum, sum, target, best; then these once more, label, one logit */
    {"kernels", "xent max", 65536 + 64 * 16},
    {"kernels", "xent sum", 64 * 32},
    {"kernels", "xent gradient, in place", 2 * 65536 + 64 * 12},
    {"kernels", "accumulate", 16384 * 12},
    {"kernels", "cast from f32", 16384 * 6},
    {"kernels", "cast to f32", 16384 * 6},
    {"kernels", "cast, rounded at random", 16384 * 6},
    {"kernels", "square sum", 16384 * 4},
    {"kernels", "find flag", 16384 * 4},
    {"kernels", "count zeros", 16384 * 4},
    {"kernels", "find nonfinite, waits", 16384 * 4},
    {"kernels", "sgd", 16384 * (12 + 2)},
    {"kernels", "momentum", 16384 * (20 + 2)},
    {"kernels", "adamw", 16384 * (28 + 2)},
    {"kernels", "adamw, no copy", 16384 * 28},
    {"kernels", "adamw, rounded at random", 16384 * (28 + 6)},
    {"kernels", "adamw, the model's pieces", 16384 * (28 + 2)},
    {"kernels", "novograd", 16384 * (20 + 2)},
    {"kernels", "lamb, direction", 16384 * 28},
    {"kernels", "lamb, update", 16384 * (12 + 2)},
    {"reduce", "sum of arrays", (2 + 1) * 65536},
    {"reduce", "sum, written to all", (2 + 2) * 65536},
    {"matmul", "product", 2.0 * 64 * 64 * 64},
    {"matmul", "product, scales now", 2.0 * 64 * 64 * 64},
    {"products", "qkv forward", 2.0 * 64 * 192 * 64},
    {"products", "attention out weight", 2.0 * 64 * 64 * 64},
    {"products", "up forward, gelu", 2.0 * 64 * 256 * 64},
    {"products", "down data, gelu", 2.0 * 64 * 64 * 256},
    {"products", "vocabulary data", 2.0 * 64 * 512 * 64},
    {"products", "conv 3x3 of 28x28 forward", 2.0 * 26 * 26 * 9 * 32},
    {"products", "conv 3x3 of 26x26 data", 2.0 * 24 * 24 * 9 * 32 * 64},
    /* 32 positions, 2 heads of 64 */
    {"products", "attention forward", 2.0 * 32 * 32 * 64 * 2},
    {"products", "attention backward", 5.0 * 32 * 32 * 64 * 2},
};

static void check_amounts(void)
{
    for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++) {
        const json_t *row = found(amounts[i].part, amounts[i].name, 0);
        const double amount =
            number(row, json_object_get(row, "bytes") != NULL ? "bytes" : "flops");

        if (amount != amounts[i].amount)
            fail_msg("%s: %.0f, expected %.0f", amounts[i].name, amount, amounts[i].amount);
    }
}

static void case_gpu(void **state)
{
    static const char *const call[] = {
        "add",           "copy", "layer norm", "product", "adamw of 148 pieces", "record a fence",
        "follow a fence"};

    (void)state;
    bench("bench gpu --kernel guard_queue --quick");
    assert_true(is(line[0], "part", "device") && is(line[0], "kernel", "guard_queue"));
    assert_true(is(line[0], "device", "host") && number(line[0], "index") == -1);
    assert_true(number(line[0], "array_bytes") == 65536);
    check_rows(1e9);
    check_ceilings(65536);
    check_amounts();
    for (size_t i = 0; i < sizeof(call) / sizeof(call[0]); i++) {
        const json_t *row = found("host", call[i], 0);

        assert_true(number(row, "least_s") > 0);
        assert_true(number(row, "median_s") >= number(row, "least_s"));
        assert_true(number(row, "done_s") >= number(row, "least_s"));
    }
    /* Peaks and goals are a device's. */
    assert_true(is_null(found("copy", "copy", 0), "share"));
    assert_true(is_null(found("kernels", "adamw", 0), "goal"));
    assert_true(is(line[lines - 1], "part", "end") && number(line[lines - 1], "goals") == 0);
}

/* One part alone, with its ceiling and no other; other types; no queue. */
static void case_parts(void **state)
{
    (void)state;
    bench("bench gpu --kernel ref --quick --part products --precision f32");
    assert_true(is(found("products", "qkv data", 0), "type", "f32"));
    assert_true(is(found("matmul", "product", 0), "type", "f32"));
    assert_null(strstr(spawn.out, "copy ceiling"));
    assert_null(strstr(spawn.out, "adamw"));
    check_rows(1e9);
    bench("bench gpu --kernel ref --quick --part reduce");
    assert_non_null(strstr(spawn.out, "kernel ref has no queue"));
    assert_non_null(strstr(spawn.out, "the clock on the wall"));
    bench("bench gpu --kernel ref --quick --part host");
    assert_null(strstr(spawn.out, "record a fence"));
    assert_int_equal(lines, 2 + 5);
}

/* ---- bench gpu on devices -------------------------------------------------------------------- */

/* The stand-in calls its devices H200; its kernels are ref's and have no queue. */
static void case_device(void **state)
{
    int goals = 0, met = 0;

    (void)state;
    setenv("STANDIN_DEVICES", "2", 1);
    bench("bench gpu --device cuda:1 --model small --bytes 64Ki --quick --part kernels");
    assert_true(is(line[0], "device", "NVIDIA H200") && number(line[0], "index") == 1);
    assert_non_null(strstr(spawn.out, "NVIDIA H200, device 1: arrays of 64.0 KiB, bf16"));
    assert_non_null(strstr(spawn.out, "peak by datasheet: 4800.0"));
    assert_true(number(found("copy", "copy", 0), "ceiling_per_s") == 4.8e12);
    check_rows(1e12);
    for (int i = 0; i < lines; i++) {
        if (!is_row(line[i]) || is_null(line[i], "goal"))
            continue;
        assert_true(number(line[i], "goal") == 0.85 && is(line[i], "part", "kernels"));
        goals++;
        met += json_is_true(json_object_get(line[i], "met"));
    }
    assert_true(goals > 30); /* 19 kernels of activations, 17 of 19 of parameters */
    assert_true(is_null(found("kernels", "find nonfinite, waits", 0), "goal"));
    assert_true(number(line[lines - 1], "goals") == goals);
    assert_true(number(line[lines - 1], "met") == met);
    assert_int_equal(spawn_count(spawn.out, " 85    met\n"), met);
    assert_int_equal(spawn_count(spawn.out, " 85 MISSED\n"), goals - met);
    /* By default the first. */
    bench("bench gpu --model small --bytes 64Ki --quick --part copy");
    assert_true(is(line[0], "device", "NVIDIA H200") && number(line[0], "index") == 0);
    setenv("STANDIN_DEVICES", "0", 1);
}

/* ---- bench gpu: a choice of products --------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Passes of 5 linear layers: forward, data, weight; two of the layers have a GELU both ways. */
#define PLANS (5 * 3 + 2 * 2)

/* Shares are of the faster of advice and measured choice; the median is theirs. */
static void check_plans(void)
{
    const json_t *end = line[lines - 1], *median = NULL;
    double share[PLANS];
    int count = 0, met = 0;

    for (int i = 0; i < lines; i++) {
        if (is(line[i], "part", "plans median"))
            median = line[i];
        if (!is(line[i], "part", "plans"))
            continue;
        assert_true(count < PLANS && number(line[i], "goal") == 0.95);
        const double best_s = fmin(number(line[i], "median_s"), number(line[i], "measured_s"));
        near(number(line[i], "ceiling_per_s"), number(line[i], "flops") / best_s, ROUNDED);
        met += json_is_true(json_object_get(line[i], "met"));
        share[count++] = number(line[i], "share");
    }
    assert_int_equal(count, PLANS);
    assert_non_null(median);
    qsort(share, PLANS, sizeof(share[0]), compare);
    near(number(median, "share"), share[PLANS / 2], ROUNDED);
    near(number(median, "least"), share[0], ROUNDED);
    assert_true(number(median, "products") == PLANS && number(median, "goal") == 0.95);
    assert_true(json_is_true(json_object_get(median, "met")) == (share[PLANS / 2] >= 0.95));
    assert_int_equal(spawn_count(spawn.out, " 95    met\n"), met);
    assert_int_equal(spawn_count(spawn.out, " 95 MISSED\n"), PLANS - met);
    met += json_is_true(json_object_get(median, "met"));
    assert_true(number(end, "goals") == PLANS + 1 && number(end, "met") == met);
}

/* What the stand-in takes at least for a product that was not chosen: STANDIN_DETOUR_S. */
#define DETOUR_S 2e-3

/* Rows of products that were not chosen, of the part and type, have waited; a faster row belongs to
 * the other kernel. */
static void check_detours(const char *part, const char *type)
{
    int count = 0;

    for (int i = 0; i < lines; i++) {
        if (!is_row(line[i]) || !is(line[i], "part", part) || !is(line[i], "type", type))
            continue;
        assert_true(number(line[i], "least_s") >= DETOUR_S);
        count++;
    }
    assert_true(count > 0);
}

static void case_choices(void **state)
{
    static const char *const memory[] = {NULL, "STANDIN_FAR"};

    (void)state;
    setenv("STANDIN_DEVICES", "1", 1);
    setenv("STANDIN_CHOICE", "1", 1);
    for (int far = 0; far < 2; far++) {
        if (memory[far] != NULL)
            setenv(memory[far], "1", 1);
        bench("bench gpu --device cuda --model small --bytes 64Ki --quick --part plans");
        check_rows(1e12);
        check_plans();
        check_detours("plans", "bf16");
        assert_non_null(strstr(spawn.out, "the median of 19 products reaches"));
    }
    unsetenv("STANDIN_FAR");
    bench("bench gpu --device cuda --model small --bytes 64Ki --quick --part matmul");
    check_rows(1e12);
    check_detours("matmul", "f32");
    for (int i = 0; i < lines; i++)
        if (is_row(line[i]) && is(line[i], "type", "tf32"))
            assert_true(number(line[i], "ceiling_per_s") == 494.7e12);
    assert_non_null(strstr(spawn.out, "\nmatmul ceiling tf32: "));
    unsetenv("STANDIN_CHOICE");
    setenv("STANDIN_DEVICES", "0", 1);
    /* A backend without a choice reports that, and has no such ceiling. */
    bench("bench gpu --kernel guard_queue --quick --part plans");
    assert_non_null(
        strstr(spawn.out, "plans: kernel guard_queue does not choose products by measuring"));
    assert_int_equal(lines, 2);
    bench("bench gpu --kernel ref --quick --part matmul");
    assert_null(strstr(spawn.out, "tf32"));
}

/* ---- bench comm ------------------------------------------------------------------------------ */

static void case_comm(void **state)
{
    static const char *const operation[] = {"all_reduce",    "reduce_scatter", "all_gather",
                                            "broadcast",     "reduce",         "all_to_all",
                                            "send and recv", "memcpy"};
    static const char *const order[] = {"canonical", "fast"};

    (void)state;
    for (int o = 0; o < 2; o++) {
        char words[256];

        snprintf(words, sizeof(words),
                 "bench comm --kernel guard_queue --ranks 3 --sizes 4Ki --order %s%s", order[o],
                 o == 0 ? " --rewrite" : "");
        bench(words);
        assert_int_equal(lines, 8);
        for (int i = 0; i < lines; i++) {
            bool known = false;

            for (size_t k = 0; k < sizeof(operation) / sizeof(operation[0]); k++)
                known = known || is(line[i], "operation", operation[k]);
            assert_true(known);
            assert_true(is(line[i], "memory", "kernel guard_queue on the host"));
            assert_true(is(line[i], "mode", "threads") && is(line[i], "order", order[o]));
            assert_true(number(line[i], "min_us") > 0);
            assert_true(number(line[i], "median_us") >= number(line[i], "min_us"));
            near(number(line[i], "algorithm_gbs"), 4096 / number(line[i], "median_us") / 1e3,
                 ROUNDED);
        }
    }
    bench("bench comm --kernel guard_queue --ranks 2 --sizes 4Ki,8Ki --operation reduce");
    assert_int_equal(lines, 2);
    for (int i = 0; i < lines; i++)
        assert_true(is(line[i], "operation", "reduce"));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void case_refused(void **state)
{
    static const struct {
        const char *words;
        int code;
        const char *phrase[2];
    } table[] = {
        {"gpu",
         1,
         {"there is no device to measure: no device: the stand-in has none",
          "--kernel cpu measures the host's"}},
        {"gpu --kernel cuda", 1, {"no device", "--kernel cpu"}},
        {"gpu --device cuda:1", 1, {"no device", "--kernel cpu"}},
        {"gpu --device gpu", 2, {"--device 'gpu'", "cuda:N"}},
        {"gpu --device cuda:x", 2, {"--device 'cuda:x'", "cuda:N"}},
        {"gpu --device cuda --kernel ref", 2, {"--kernel ref computes on the host", "one of the"}},
        {"gpu --device cpu --kernel cuda", 2, {"--device cpu on the host", "one of the two"}},
        {"gpu --kernel xyz", 2, {"unknown kernel 'xyz'", "known are"}},
        {"gpu --kernel ref --bytes 100", 2, {"less than one sequence", "give 8192 or more"}},
        {"gpu --kernel ref --json /nowhere/x --quick", 1, {"cannot create a file", "/nowhere/x"}},
        {"kernels --kernel guard_queue", 2, {"memory of its own", "tessera bench gpu"}},
        {"comm --device cuda --sizes 4Ki", 1, {"no device", "the stand-in has none"}},
        {"comm --kernel ref --sizes 4Ki", 2, {"host's memory", "leave --kernel"}},
        {"comm --kernel guard_queue --mode processes", 2, {"threads of one", "leave --mode out"}},
    };

    (void)state;
    setenv("STANDIN_DEVICES", "0", 1);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char words[256];
        int code;

        snprintf(words, sizeof(words), "bench %s", table[i].words);
        code = spawn_words(&spawn, words);
        for (int p = 0; p < 2; p++)
            if (code != table[i].code || strstr(spawn.err, table[i].phrase[p]) == NULL ||
                spawn_count(spawn.err, "error: ") != 1)
                fail_msg("%s: exit %d, expected %d with '%s' once in:\n%s", words, code,
                         table[i].code, table[i].phrase[p], spawn.err);
    }
    setenv("STANDIN_DEVICES", "1", 1);
    assert_int_equal(spawn_words(&spawn, "bench gpu --device cuda:1 --quick"), 2);
    assert_non_null(strstr(spawn.err, "there is no device 1: this machine has 1"));
}

static void case_help(void **state)
{
    (void)state;
    /* Where there is not even a module for a device. */
    setenv("TESSERA_MODULE_PATH", "/nowhere", 1);
    assert_int_equal(spawn_words(&spawn, "bench kernels --help"), 0);
    assert_int_equal(spawn_words(&spawn, "bench comm --ranks 2 --help"), 0);
    assert_non_null(strstr(spawn.out, "usage: tessera bench comm"));
    assert_int_equal(spawn_words(&spawn, "bench gpu --quick --help"), 0);
    setenv("TESSERA_MODULE_PATH", STANDIN_FOLDER, 1);
    assert_non_null(strstr(spawn.out, "usage: tessera bench gpu"));
    assert_non_null(strstr(spawn.out, "--quick"));
    assert_int_equal(spawn_words(&spawn, "--help"), 0);
    assert_non_null(strstr(spawn.out, "  bench gpu "));
    assert_int_equal(spawn_words(&spawn, "bench comm --help"), 0);
    assert_non_null(strstr(spawn.out, "--device"));
    assert_non_null(strstr(spawn.out, "--operation"));
}

static int make_folder(void **state)
{
    (void)state;
    setenv("TESSERA_MODULE_PATH", STANDIN_FOLDER, 1);
    setenv("STANDIN_DEVICES", "0", 1);
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    drop_lines();
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_gpu),  cmocka_unit_test(case_parts),   cmocka_unit_test(case_device),
        cmocka_unit_test(case_comm), cmocka_unit_test(case_choices), cmocka_unit_test(case_refused),
        cmocka_unit_test(case_help),
    };

    return cmocka_run_group_tests_name("bench", tests, make_folder, remove_folder);
}
