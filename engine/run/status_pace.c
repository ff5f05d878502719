/* How fast the ranks of a run are, by the latest line {"pace": ...} of its metrics.jsonl. */
#include "run/status.h"

#include "base/file.h"
#include "run/fold.h"
#include "text/json.h"
#include "text/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* From the file's end, so much is read first: a line of 512 ranks and their links has about 1 MiB.
 * Where it has no whole line, ten times as much. */
#define PACE_TAIL_BYTES (4L << 20)
#define PACE_TAIL_MAX   (1L << 30)
#define PACE_SHOWN      8 /* of more ranks than TESS__FOLD_NONE: those with the highest scores */

/* The value of the latest whole line with one in `text`; a new reference, or NULL. */
static json_t *pace_latest(char *text)
{
    static const char begin[] = "{\"pace\"";
    for (char *end = strrchr(text, '\n'); end != NULL;) {
        *end = '\0';
        char *before = strrchr(text, '\n'), *line = before != NULL ? before + 1 : text;
        json_t *object =
            strncmp(line, begin, strlen(begin)) == 0 ? json_loads(line, 0, NULL) : NULL;
        json_t *pace = json_incref(json_object_get(object, "pace"));
        json_decref(object);
        if (json_is_array(json_object_get(pace, "ranks")))
            return pace;
        json_decref(pace);
        end = before;
    }
    return NULL;
}

json_t *tess__status_pace(const char *run)
{
    char path[PATH_MAX];
    const char *why;
    json_t *pace = NULL;
    if (snprintf(path, sizeof(path), "%s/metrics.jsonl", run) >= (int)sizeof(path))
        return NULL;
    FILE *file = tess_file_open_input(path, &why);
    bool whole = file == NULL;
    for (long bytes = PACE_TAIL_BYTES; pace == NULL && !whole && bytes < PACE_TAIL_MAX;
         bytes *= 10) {
        char *text = malloc((size_t)bytes + 1);
        if (text == NULL)
            break;
        whole = fseek(file, -bytes, SEEK_END) != 0;
        if (whole)
            rewind(file);
        text[fread(text, 1, (size_t)bytes, file)] = '\0';
        pace = pace_latest(text);
        free(text);
    }
    if (file != NULL)
        fclose(file);
    return pace;
}

static double pace_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *pace_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "-";
}

/* "1.083", or "-" where it is not known. */
static const char *pace_figure(double value, char text[TESS__TEXT_BYTES])
{
    snprintf(text, TESS__TEXT_BYTES, isnan(value) ? "-" : "%.4g", value);
    return text;
}

/* What the slow links have in common, where that was found. */
static void pace_print_network(const json_t *network, FILE *stream)
{
    char speed[TESS__TEXT_BYTES], usual[TESS__TEXT_BYTES];
    if (!json_is_integer(json_object_get(network, "since")))
        return;
    fprintf(stream,
            "slow network: %.512s since step %.0f, %s bytes per second for each of %.0f pairs of "
            "ranks, %s are usual\n",
            pace_text(network, "name"), pace_number(network, "since"),
            pace_figure(pace_number(network, "bytes_per_s"), speed), pace_number(network, "pairs"),
            pace_figure(pace_number(network, "usual_bytes_per_s"), usual));
}

static const char *const pace_column[] = {"step_s", "own_s", "late_s"};
#define PACE_COLUMNS (sizeof(pace_column) / sizeof(*pace_column))

static void pace_print_rank(const json_t *one, FILE *stream)
{
    char text[TESS__TEXT_BYTES];
    fprintf(stream, "%-4.0f", pace_number(one, "rank"));
    for (size_t c = 0; c < PACE_COLUMNS; c++)
        fprintf(stream, "  %-8s", pace_figure(1e3 * pace_number(one, pace_column[c]), text));
    fprintf(stream, "  %-8s  %-9.32s  %.64s\n", pace_figure(pace_number(one, "score"), text),
            pace_text(one, "late_in"), pace_text(one, "host"));
}

/* Late ones first, then by their scores; those that have none last. */
static int pace_compare(const void *a, const void *b)
{
    const json_t *left = *(json_t *const *)a, *right = *(json_t *const *)b;
    const bool left_late = json_is_string(json_object_get(left, "late_in"));
    const bool right_late = json_is_string(json_object_get(right, "late_in"));
    const double left_score = pace_number(left, "score"), right_score = pace_number(right, "score");
    if (left_late != right_late)
        return left_late ? -1 : 1;
    if (isnan(left_score) || isnan(right_score))
        return isnan(left_score) - isnan(right_score);
    return (left_score < right_score) - (left_score > right_score);
}

/* The latest ranks one by one; of the others the least and the greatest of each figure. */
static void pace_print_many(const json_t *ranks, FILE *stream)
{
    const size_t count = json_array_size(ranks);
    json_t **rank = calloc(count, sizeof(json_t *));
    if (rank == NULL)
        return;
    for (size_t i = 0; i < count; i++)
        rank[i] = json_array_get(ranks, i);
    qsort(rank, count, sizeof(json_t *), pace_compare);
    for (size_t i = 0; i < PACE_SHOWN; i++)
        pace_print_rank(rank[i], stream);
    fprintf(stream, "the other %zu ranks:", count - PACE_SHOWN);
    for (size_t c = 0; c < PACE_COLUMNS; c++) {
        char least_text[TESS__TEXT_BYTES], most_text[TESS__TEXT_BYTES];
        double least = NAN, most = NAN;
        for (size_t i = PACE_SHOWN; i < count; i++) {
            least = fmin(least, 1e3 * pace_number(rank[i], pace_column[c]));
            most = fmax(most, 1e3 * pace_number(rank[i], pace_column[c]));
        }
        fprintf(stream, "%s %.*s %s to %s", c > 0 ? "," : "", (int)strcspn(pace_column[c], "_"),
                pace_column[c], pace_figure(least, least_text), pace_figure(most, most_text));
    }
    fputc('\n', stream);
    free(rank);
}

void tess__status_print_pace(const json_t *pace, FILE *stream)
{
    const json_t *ranks = json_object_get(pace, "ranks");
    const double step = pace_number(pace, "step"), steps = pace_number(pace, "steps");
    const json_t *one;
    size_t i;
    if (isnan(step) || isnan(steps))
        return;
    fprintf(stream,
            "\npace of steps %.0f to %.0f, ms of a step; score: against ranks with the same work\n"
            "rank  step      own       late      score     late in    host\n",
            step - steps + 1, step);
    if (json_array_size(ranks) > TESS__FOLD_NONE)
        pace_print_many(ranks, stream);
    else
        json_array_foreach(ranks, i, one) pace_print_rank(one, stream);
    json_array_foreach(json_object_get(pace, "links"), i, one)
    {
        char speed[TESS__TEXT_BYTES], score[TESS__TEXT_BYTES];
        if (!json_is_integer(json_object_get(one, "since")))
            continue;
        fprintf(stream, "slow link: %.0f to %.0f (%.32s), %s bytes per second, %s of the usual\n",
                pace_number(one, "from"), pace_number(one, "to"), pace_text(one, "axis"),
                pace_figure(pace_number(one, "bytes_per_s"), speed),
                pace_figure(pace_number(one, "score"), score));
    }
    pace_print_network(json_object_get(pace, "network"), stream);
}
