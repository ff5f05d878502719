/* tessera diff: the first step and tensor whose bits differ, by what two runs wrote down. */
#include "base/file.h"
#include "core/engine.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/screen.h"
#include "text/text.h"

#include <jansson.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Exit status, as that of diff(1). */
#define DIFF_APART   1
#define DIFF_TROUBLE 2

/*
 * Rounding alone. Two ways of adding the same n products differ by a relative error of about
 * n^(1/2) u to n u (Higham 2002, section 4.2), u = 2^-24 where gradients are computed from f32 and
 * 2^-8, 2^-11 where activations are bf16, f16; with 2^11 products that is up to 2^-13 of an update
 * for f32. Activations are rounded once per layer, not once per product: 16 u for the 16-bit types.
 * A different batch, rate or seed changes an update by about its own size.
 */
#define ROUNDING_F32  0x1p-13
#define ROUNDING_BF16 0x1p-4
#define ROUNDING_F16  0x1p-7

struct diff_run {
    const char *name; /* as the user wrote it */
    char path[PATH_MAX];
    json_t *head;   /* {"version", ..., "options": {}} */
    json_t *steps;  /* [{"step", "loss", ...}] */
    json_t *digest; /* [{"step", "tensors": {}}] */
    json_t *final;  /* NULL when the run did not end */
    long long lines_lost;
};

struct diff {
    struct diff_run run[2];
    bool differ;
};

static const char diff_usage[] =
    "usage: tessera diff RUN_A RUN_B\n\n"
    "Compare two runs by the folders that tessera train --run wrote: the options that differ,\n"
    "whether the data do, and the first step whose loss differs. Where both were trained with\n"
    "--hash-every K, also the first step and tensor whose bits differ, how far apart they are,\n"
    "and whether rounding alone (another order of additions) explains that. With --hash-every 1\n"
    "the step is exact.\n\n"
    "exit status: 0 the same bits in everything that both wrote, 1 they differ, 2 error\n\n"
    "examples\n"
    "  tessera train configs/labs/fashion_mlp.yaml --steps 20 --hash-every 1 --run a\n"
    "  tessera train configs/labs/fashion_mlp.yaml --steps 20 --hash-every 1 --run b --seed 2\n"
    "  tessera diff a b\n";

/* ---- reading --------------------------------------------------------------------------------- */

/* Keep the parts of one line that are compared. Other lines are ignored. */
static void diff_take_line(struct diff_run *run, json_t *line)
{
    json_t *head = json_object_get(line, "run"), *digest = json_object_get(line, "digest");
    json_t *final = json_object_get(line, "final");
    if (json_is_object(head) && !run->head)
        run->head = json_incref(head);
    else if (json_is_object(digest) && json_is_integer(json_object_get(digest, "step")) &&
             json_is_object(json_object_get(digest, "tensors")))
        json_array_append(run->digest, digest);
    else if (json_is_object(final))
        run->final = !run->final ? json_incref(final) : run->final;
    else if (json_is_integer(json_object_get(line, "step")) && json_object_get(line, "loss"))
        json_array_append(run->steps, line);
}

static enum tess_status diff_read(struct diff_run *run, const char *name)
{
    struct stat about;
    const char *file = stat(name, &about) == 0 && S_ISDIR(about.st_mode) ? "/metrics.jsonl" : "";
    int used = snprintf(run->path, sizeof(run->path), "%s%s", name, file);
    char *text = NULL;
    size_t room = 0;
    run->name = name;
    if (used < 0 || (size_t)used >= sizeof(run->path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run %s is too long", name);
    run->steps = json_array();
    run->digest = json_array();
    const char *why;
    FILE *stream = tess_file_open_input(run->path, &why);
    if (!run->steps || !run->digest || !stream) {
        if (stream)
            fclose(stream);
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s; train with --run FOLDER to have one", run->path,
                  stream ? "no memory" : why);
    }
    while (getline(&text, &room, stream) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        if (json_is_object(line))
            diff_take_line(run, line);
        else
            run->lines_lost++;
        json_decref(line);
    }
    free(text);
    fclose(stream);
    if (!run->head)
        TESS_FAIL(TESS_ERR_DATA, "%s holds no run: its line {\"run\": ...} is missing or broken",
                  run->path);
    if (run->lines_lost > 0)
        tess_log(TESS_LOG_WARN, "%s: %lld lines are no JSON and were skipped (cut short?)",
                 run->path, run->lines_lost);
    return TESS_OK;
}

static void diff_close(struct diff *diff)
{
    for (int i = 0; i < 2; i++) {
        json_decref(diff->run[i].head);
        json_decref(diff->run[i].steps);
        json_decref(diff->run[i].digest);
        json_decref(diff->run[i].final);
    }
}

/* ---- options and losses ---------------------------------------------------------------------- */

static const char *diff_text(const json_t *value)
{
    return json_is_string(value) ? json_string_value(value) : "-";
}

static void diff_options(struct diff *diff)
{
    json_t *a = json_object_get(diff->run[0].head, "options");
    json_t *b = json_object_get(diff->run[1].head, "options");
    json_t *all = json_object(), *either;
    const char *name;
    int shown = 0;
    json_object_update(all, a);
    json_object_update_missing(all, b);
    json_object_foreach(all, name, either)
    {
        const json_t *x = json_object_get(a, name), *y = json_object_get(b, name);
        if (strcmp(name, "run") != 0 && !json_equal(x, y))
            printf("%s%-24s %-24s %s\n", shown++ == 0 ? "options that differ\n  " : "  ", name,
                   diff_text(x), diff_text(y));
    }
    json_decref(all);
    if (shown == 0)
        printf("options: the same\n");
}

/* By their fingerprints; runs of earlier versions have none. */
static void diff_data(struct diff *diff)
{
    static const char *const set[] = {"train", "validation"};
    for (size_t i = 0; i < sizeof(set) / sizeof(*set); i++) {
        const json_t *a = json_object_get(json_object_get(diff->run[0].head, "data"), set[i]);
        const json_t *b = json_object_get(json_object_get(diff->run[1].head, "data"), set[i]);
        if (!a || !b)
            continue;
        const bool same = json_equal(a, b);
        diff->differ = diff->differ || !same;
        printf("data: %s set %s and %s: %s\n", set[i], diff_text(a), diff_text(b),
               same ? "the same" : "they differ");
    }
}

/* The element of an array of objects whose "step" is `step`, or NULL. Both are in rising order. */
static json_t *diff_find(const json_t *array, json_int_t step)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *entry = json_array_get(array, i);
        if (json_integer_value(json_object_get(entry, "step")) == step)
            return entry;
    }
    return NULL;
}

static void diff_losses(struct diff *diff)
{
    size_t common = 0;
    for (size_t i = 0; i < json_array_size(diff->run[0].steps); i++) {
        json_t *a = json_array_get(diff->run[0].steps, i);
        json_int_t step = json_integer_value(json_object_get(a, "step"));
        json_t *b = diff_find(diff->run[1].steps, step);
        json_t *x = json_object_get(a, "loss"), *y = b ? json_object_get(b, "loss") : NULL;
        if (!y)
            continue;
        common++;
        if (json_equal(x, y))
            continue;
        printf("loss: first differs at step %lld: %.17g and %.17g\n", (long long)step,
               json_number_value(x), json_number_value(y));
        diff->differ = true;
        return;
    }
    if (common == 0)
        printf("loss: no step was logged by both runs; use the same --log-every\n");
    else
        printf("loss: the same bits at all %zu steps that both logged\n", common);
}

/* ---- digests --------------------------------------------------------------------------------- */

/* Estimate of the distance of two versions of a tensor, from their sketches; NaN without them. */
static double diff_distance(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "sketch"), *y = json_object_get(b, "sketch");
    size_t count = json_array_size(x);
    double sum = 0;
    if (count == 0 || count != json_array_size(y))
        return NAN;
    for (size_t i = 0; i < count; i++) {
        double apart =
            json_number_value(json_array_get(x, i)) - json_number_value(json_array_get(y, i));
        sum += apart * apart;
    }
    return sqrt(sum / (double)count);
}

/* The rounding that the first run's precision allows, as a share of an update. */
static double diff_rounding(const struct diff *diff)
{
    double most = ROUNDING_F32;
    for (int i = 0; i < 2; i++) {
        const char *precision = diff_text(json_object_get(diff->run[i].head, "precision"));
        double own = strcmp(precision, "bf16") == 0  ? ROUNDING_BF16
                     : strcmp(precision, "f16") == 0 ? ROUNDING_F16
                                                     : ROUNDING_F32;
        most = fmax(most, own);
    }
    return most;
}

/* Into how many parts a run cuts the width of layers. */
static json_int_t diff_parts(const struct diff_run *run)
{
    const json_t *canonical =
        json_object_get(json_object_get(run->head, "options"), "tensor.canonical");
    const json_t *ranks = json_object_get(json_object_get(run->head, "mesh"), "tensor");
    const long long parts = atoll(diff_text(canonical));
    return parts > 0 ? parts : json_is_integer(ranks) ? json_integer_value(ranks) : 1;
}

static void diff_print_verdict(const struct diff *diff, double apart, double limit)
{
    const json_int_t parts[2] = {diff_parts(&diff->run[0]), diff_parts(&diff->run[1])};
    const char *verdict = "NOT rounding: different data, rate, seed or code";
    if (apart <= limit)
        verdict = "within rounding: another order of additions, not another computation";
    else if (parts[0] != parts[1])
        verdict = "beyond rounding, but layers are added up in other parts";
    printf("  verdict: %s (rounding would explain up to %.3g)\n", verdict, limit);
    if (apart > limit && parts[0] != parts[1])
        printf(
            "    in %lld and in %lld; an optimizer that divides by the gradient's size, as adamw, "
            "magnifies that where\n    gradients are near zero. With one --tensor.canonical in "
            "both the bits are the same, or it is a bug\n",
            (long long)parts[0], (long long)parts[1]);
}

/*
 * What became of the first tensor that differs: its distance beside the update that run A made
 * since the digest before (the first digest has none: then beside the tensor's norm, and
 * initial values have no update at all), and beside
 * what storing it in f32 loses in so many steps.
 */
static void diff_print_tensor(const struct diff *diff, const char *name, json_int_t step,
                              const json_t *a, const json_t *b, const json_t *before,
                              json_int_t step_before)
{
    double apart = diff_distance(a, b), norm = json_number_value(json_object_get(a, "norm"));
    double update = before ? diff_distance(before, a) : step > 0 ? norm : 0;
    double limit = diff_rounding(diff) * update + 0x1p-24 * norm * (double)(step - step_before);
    printf("parameters: first differ at step %lld, tensor '%s'\n", (long long)step, name);
    if (before)
        printf("  the same bits at step %lld, the digest before\n", (long long)step_before);
    if (!isfinite(apart) || !isfinite(limit)) {
        printf("  the distance is unknown: a value is missing or not finite\n");
        return;
    }
    printf("  distance about %.3g, norm %.6g, update since then about %.3g\n", apart, norm, update);
    diff_print_verdict(diff, apart, limit);
}

/* Do tensors differ at this step? Prints the first. */
static bool diff_tensors(const struct diff *diff, const json_t *a, const json_t *b,
                         const json_t *before)
{
    json_int_t step = json_integer_value(json_object_get(a, "step"));
    json_t *all = json_object_get(a, "tensors"), *others = json_object_get(b, "tensors");
    const char *name;
    json_t *tensor;
    int count = 0;
    json_object_foreach(all, name, tensor)
    {
        const json_t *other = json_object_get(others, name);
        if (!other) {
            printf("parameters: '%s' is in the first run only: the models differ\n", name);
            return true;
        }
        if (json_equal(json_object_get(tensor, "hash"), json_object_get(other, "hash")))
            continue;
        if (count++ == 0)
            diff_print_tensor(diff, name, step, tensor, other,
                              json_object_get(json_object_get(before, "tensors"), name),
                              json_integer_value(json_object_get(before, "step")));
    }
    if (count > 0)
        printf("  %d of %zu tensors differ at that step\n", count, json_object_size(all));
    return count > 0;
}

static void diff_digests(struct diff *diff)
{
    const json_t *before = NULL;
    size_t common = 0;
    for (size_t i = 0; i < json_array_size(diff->run[0].digest); i++) {
        json_t *a = json_array_get(diff->run[0].digest, i);
        json_t *b = diff_find(diff->run[1].digest, json_integer_value(json_object_get(a, "step")));
        if (!b)
            continue;
        common++;
        if (diff_tensors(diff, a, b, before)) {
            diff->differ = true;
            return;
        }
        before = a;
    }
    if (common == 0)
        printf("parameters: no digest that both runs wrote; train both with --hash-every 1 to have "
               "the step and the tensor named\n");
    else
        printf("parameters: the same bits at all %zu digests that both runs wrote\n", common);
}

static void diff_final(struct diff *diff)
{
    const json_t *a = json_object_get(diff->run[0].final, "hash");
    const json_t *b = json_object_get(diff->run[1].final, "hash");
    for (int i = 0; i < 2; i++)
        if (!diff->run[i].final)
            printf("final: %s did not end\n", diff->run[i].name);
    if (!a || !b)
        return;
    diff->differ = diff->differ || !json_equal(a, b);
    printf("final: hash %s and %s: %s\n", diff_text(a), diff_text(b),
           json_equal(a, b) ? "the same" : "they differ");
}

static int diff_command(struct tess__call *call)
{
    struct diff diff = {0};
    enum tess_status status = TESS_OK;
    if (call->word_count != 2)
        status = tess_fail(TESS_ERR_USAGE, "diff needs two runs: tessera diff RUN_A RUN_B");
    for (int i = 0; i < 2 && status == TESS_OK; i++)
        status = diff_read(&diff.run[i], call->word[i]);
    if (status == TESS_OK) {
        FILE *former = tess__screen_begin();
        printf("A %s\nB %s\n", diff.run[0].path, diff.run[1].path);
        diff_options(&diff);
        diff_data(&diff);
        diff_losses(&diff);
        diff_digests(&diff);
        diff_final(&diff);
        tess__screen_end(former);
    }
    diff_close(&diff);
    return status != TESS_OK ? DIFF_TROUBLE : diff.differ ? DIFF_APART : 0;
}

const struct tess__command tess__command_diff = {
    .name = "diff",
    .summary = "where two runs differ: options, first step and tensor, rounding or not",
    .usage = diff_usage,
    .words_max = 2,
    .run = diff_command,
};
