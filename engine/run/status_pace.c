/* How fast the ranks of a run are, by the latest line {"pace": ...} of its metrics.jsonl. */
#include "run/status.h"

#include "base/file.h"
#include "text/json.h"
#include "text/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PACE_TAIL_BYTES (4L << 20) /* a line of 64 ranks and all their links has 0.6 MiB */

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
    char *text = file != NULL ? malloc(PACE_TAIL_BYTES + 1) : NULL;
    if (text != NULL) {
        if (fseek(file, -PACE_TAIL_BYTES, SEEK_END) != 0)
            rewind(file);
        text[fread(text, 1, PACE_TAIL_BYTES, file)] = '\0';
        pace = pace_latest(text);
    }
    if (file != NULL)
        fclose(file);
    free(text);
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

void tess__status_print_pace(const json_t *pace, FILE *stream)
{
    static const char *const column[] = {"step_s", "own_s", "late_s"};
    const double step = pace_number(pace, "step"), steps = pace_number(pace, "steps");
    const json_t *one;
    size_t i;
    if (isnan(step) || isnan(steps))
        return;
    fprintf(stream,
            "\npace of steps %.0f to %.0f, ms of a step; score: against ranks with the same work\n"
            "rank  step      own       late      score     late in    host\n",
            step - steps + 1, step);
    json_array_foreach(json_object_get(pace, "ranks"), i, one)
    {
        char text[TESS__TEXT_BYTES];
        fprintf(stream, "%-4.0f", pace_number(one, "rank"));
        for (size_t c = 0; c < sizeof(column) / sizeof(*column); c++)
            fprintf(stream, "  %-8s", pace_figure(1e3 * pace_number(one, column[c]), text));
        fprintf(stream, "  %-8s  %-9.32s  %.64s\n", pace_figure(pace_number(one, "score"), text),
                pace_text(one, "late_in"), pace_text(one, "host"));
    }
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
