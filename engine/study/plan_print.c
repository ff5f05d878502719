/* What tessera plan prints; see plan.h. */
#include "study/plan.h"

#include "text/screen.h"
#include "text/text.h"
#include "text/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PRINT_REJECTED_MAX 24 /* reasons */
#define PRINT_FAMILIES_MAX 12 /* of one of them */

const char *tess__plan_name(const struct tess__plan_layout *layout, char text[200])
{
    static const char *const axis_name[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};
    size_t used = (size_t)snprintf(text, 200, "%s", layout->strategy);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (layout->count[axis] > 1)
            used += (size_t)snprintf(text + used, 200 - used, ", %s %d", axis_name[axis],
                                     layout->count[axis]);
    if (layout->schedule != NULL)
        used += (size_t)snprintf(text + used, 200 - used, ", %s", layout->schedule);
    if (layout->chunks > 1)
        used +=
            (size_t)snprintf(text + used, 200 - used, " x %lld chunks", (long long)layout->chunks);
    if (layout->sequence)
        used += (size_t)snprintf(text + used, 200 - used, ", sequence parallel");
    return text;
}

const char *tess__plan_text(const struct tess__plan_layout *layout, char text[TESS__PLAN_TEXT])
{
    char name[200];
    const bool again = strcmp(layout->recompute, "none") != 0;
    snprintf(text, TESS__PLAN_TEXT, "%s, %" PRId64 " micro-batch%s%s%s%s%s%s%s",
             tess__plan_name(layout, name), layout->accumulate, layout->accumulate > 1 ? "es" : "",
             again ? ", recompute " : "", again ? layout->recompute : "",
             layout->precision != NULL ? ", " : "",
             layout->precision != NULL ? layout->precision : "",
             layout->extra[0] != '\0' ? ", " : "", layout->extra);
    return text;
}

const char *tess__plan_order_text(const struct tess__plan *plan,
                                  const struct tess__plan_layout *layout, char text[120])
{
    const int32_t ranks = plan->cluster.ranks, most = ranks < 16 ? ranks : 16;
    size_t used = 0;
    for (int32_t r = 0; r < most; r++)
        used += (size_t)snprintf(text + used, 120 - used, "%s%d", r > 0 ? " " : "",
                                 (int)layout->order->device[r]);
    if (ranks > most)
        snprintf(text + used, 120 - used, " ...");
    return text;
}

/* Columns before a layout's name, on its line, without that of --try; and before it, on a line of
 * its own. */
#define PRINT_BEFORE 49
#define PRINT_TRIED  14
#define PRINT_INDENT 5

/* The end of a layout's line; on the next one where the terminal has no room for it. */
static void print_name(const char *name, bool first, int before)
{
    const int columns = tess__screen_columns(stdout);
    const bool below = columns > 0 && before + tess__screen_width(name) > columns;
    printf(below ? "\n%*s%s%s%s\n" : "%*s%s%s%s\n", below ? PRINT_INDENT : 2, "",
           first ? tess__screen_colour(stdout, TESS__COLOUR_STRONG) : "", name,
           first ? tess__screen_colour(stdout, TESS__COLOUR_PLAIN) : "");
}

/* A step as far as it is known: measured, else predicted. */
static double print_step_s(const struct tess__plan_layout *layout)
{
    return layout->measured_s > 0 ? layout->measured_s : layout->step_s;
}

static void print_layout(const struct tess__plan *plan, const struct tess__words *words,
                         int64_t number)
{
    const struct tess__plan_layout *layout = &plan->layouts.item[number];
    char text[TESS__PLAN_TEXT], rate[TESS__TEXT_BYTES], memory[TESS__TEXT_BYTES],
        sent[TESS__TEXT_BYTES], order[120], limit[TESS_PREDICT_LIMIT];
    const double step_s = print_step_s(layout);
    const double samples_per_s = (double)plan->batch_size / step_s;
    const bool known = layout->predicted && !isnan(layout->mfu), tried = plan->given->try_count > 0;
    char mfu[16] = "-";
    if (known)
        snprintf(mfu, sizeof(mfu), "%.1f %%", 100 * layout->mfu * layout->step_s / step_s);
    printf("%3" PRId64, number + 1);
    if (layout->measured_s > 0)
        printf("  %9.3f ms", 1e3 * layout->measured_s);
    else if (tried)
        printf("  %12s", "-");
    printf("  %9.3f ms %10s %7s %10s", 1e3 * layout->step_s,
           tess__words_rate(words, samples_per_s, rate), mfu,
           tess__text_bytes((double)layout->device_bytes, memory));
    print_name(tess__plan_text(layout, text), number == 0,
               PRINT_BEFORE + (tried ? PRINT_TRIED : 0));
    if (!layout->predicted)
        return;
    printf("     exposed %.3f ms; sent by the rank that sends most: data %s",
           1e3 * layout->exposed_s,
           tess__text_bytes((double)layout->sent_bytes[TESS_AXIS_DATA], sent));
    printf(", tensor %s", tess__text_bytes((double)layout->sent_bytes[TESS_AXIS_TENSOR], sent));
    printf(", stage %s\n", tess__text_bytes((double)layout->sent_bytes[TESS_AXIS_STAGE], sent));
    printf("     limited by %s\n", tess_prediction_limit(&layout->loss, layout->step_s, limit));
    if (layout->order != NULL)
        printf("     ranks 0, 1, 2 ... on devices %s; %.3f ms in the natural order\n",
               tess__plan_order_text(plan, layout, order), 1e3 * layout->order->natural_s);
}

/* Four digits at least, and all of those before the point. */
static const char *print_number(double number, char text[TESS__TEXT_BYTES])
{
    snprintf(text, TESS__TEXT_BYTES, number < 1000 ? "%.4g" : "%.0f", number);
    return text;
}

static void print_first(const struct tess__plan *plan, const struct tess__words *words)
{
    const struct tess__plan_layout *best = &plan->layouts.item[0];
    const struct tess__plan_options *given = plan->given;
    char text[TESS__TEXT_BYTES], cost[TESS__TEXT_BYTES];
    printf("\nmemory of the first, of its fullest rank\n");
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        if (best->memory.bytes[kind] > 0)
            printf("  %-11s %12" PRIu64 " B  %s\n",
                   tess_memory_kind_name((enum tess_memory_kind)kind), best->memory.bytes[kind],
                   tess__text_bytes((double)best->memory.bytes[kind], text));
    printf("  %-11s %12" PRIu64 " B  %s\n", "total", best->memory.total,
           tess__text_bytes((double)best->memory.total, text));
    if (plan->profile.beside_bytes > 0)
        printf("  driver and libraries take about %s beside it (%s)\n",
               tess__text_bytes(plan->profile.beside_bytes, text), plan->profile.source);
    if (given->tokens <= 0)
        return;
    const double seconds =
        given->tokens * print_step_s(best) / ((double)plan->batch_size * words->rate_of_row);
    const double hours = seconds / 3600 * plan->cluster.ranks;
    printf("\n%.4g %s take %.4g days", given->tokens, words->counted, seconds / 86400);
    if (given->price > 0)
        printf(" and cost %s: %s hours of a rank at %g", print_number(hours * given->price, cost),
               print_number(hours, text), given->price);
    putchar('\n');
}

/* Of the layouts that need less memory, the one that is predicted to be the fastest; NULL: there is
 * none. */
static const struct tess__plan_layout *print_smaller(const struct tess__plan *plan, uint64_t bytes)
{
    const struct tess__plan_layout *fastest = NULL;
    for (int64_t i = 0; i < plan->layouts.count; i++) {
        const struct tess__plan_layout *layout = &plan->layouts.item[i];
        if (!layout->predicted || layout->device_bytes >= bytes)
            continue;
        if (fastest == NULL || layout->step_s < fastest->step_s ||
            (layout->step_s == fastest->step_s && layout->device_bytes < fastest->device_bytes))
            fastest = layout;
    }
    return fastest;
}

/* Layouts that are the fastest of those that need no more memory. */
static void print_front(const struct tess__plan *plan)
{
    const struct tess__plan_layout *layout;
    char text[TESS__PLAN_TEXT], memory[TESS__TEXT_BYTES];
    printf("\nless memory costs time: no layout is both faster and smaller than one of these\n");
    for (uint64_t least = UINT64_MAX; (layout = print_smaller(plan, least)) != NULL;) {
        least = layout->device_bytes;
        printf("  %10s  %9.3f ms  %s\n", tess__text_bytes((double)least, memory),
               1e3 * layout->step_s, tess__plan_text(layout, text));
    }
}

/* What --cluster does not say and the plan had to assume, as tessera topo prints it. Of one host
 * the network does not matter. */
static void print_guesses(const struct tess__plan *plan)
{
    char text[TESS_CLUSTER_GUESS];
    const bool one_host = plan->cluster.ranks <= plan->cluster.host_ranks;
    bool options = false;
    int32_t at = 0;
    if (plan->guessed_device)
        printf("guessed: device %s, as %s names none that is built in (--device sets it)\n",
               plan->profile.name, plan->given->cluster);
    if (plan->topology == NULL)
        return;
    for (; tess_cluster_guess(plan->topology, one_host, at, text); at++) {
        printf(at == 0 ? "guessed: %s" : "; %s", text);
        options = options || strstr(text, "(--") != NULL;
    }
    if (at > 0)
        putchar('\n');
    if (options)
        printf("  by options of tessera topo --file: its --export yaml OUT writes a file that has "
               "it\n");
}

/* How many were trained, and how often. */
static void print_tried(const struct tess__plan *plan)
{
    int least = 0, most = 0, count = 0;
    for (int64_t i = 0; i < plan->layouts.count; i++) {
        const int rounds = plan->layouts.item[i].rounds;
        count += rounds > 0;
        most = rounds > most ? rounds : most;
        least = rounds > 0 && (least == 0 || rounds < least) ? rounds : least;
    }
    if (count == 0) {
        printf("none of the first could be trained here\n");
        return;
    }
    printf("%d of them trained here in %.1f s, in %d", count, plan->try_seconds, least);
    if (most > least)
        printf(" to %d", most);
    printf(" rounds: in order of what was measured\n");
}

/* The same text but for numbers? */
static bool print_alike(const char *a, const char *b)
{
    static const char digits[] = "0123456789";
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        const size_t one = strspn(a, digits), other = strspn(b, digits);
        a += one;
        b += other;
        if ((one > 0) != (other > 0) || *a != *b)
            return false;
        if (*a == '\0')
            break;
    }
    return *a == *b;
}

/* Is their reason one: the same, or sizes of one axis or schedules whose reasons differ in numbers
 * alone? */
static bool print_one_reason(const struct tess__plan_rejected *a,
                             const struct tess__plan_rejected *b)
{
    return strcmp(a->why, b->why) == 0 ||
           (a->shape && b->shape && print_alike(a->family, b->family) &&
            print_alike(a->why, b->why));
}

/* One line for each reason, with the first families that have it. */
static void print_rejected(const struct tess__plan *plan)
{
    const struct tess__plan_rejected *all = plan->rejected;
    const int32_t count = plan->rejected_count;
    int32_t reasons = 0;
    if (count > 0)
        printf("\nrefused\n");
    for (int32_t i = 0, first, more; i < count; i++) {
        for (first = 0; !print_one_reason(&all[first], &all[i]);)
            first++;
        if (first < i || reasons++ >= PRINT_REJECTED_MAX)
            continue;
        printf("  %s", all[i].family);
        more = 0;
        for (int32_t j = i + 1; j < count; j++)
            if (print_one_reason(&all[i], &all[j]) && ++more < PRINT_FAMILIES_MAX)
                printf("; %s", all[j].family);
        if (more >= PRINT_FAMILIES_MAX)
            printf(" and %d more", more + 1 - PRINT_FAMILIES_MAX);
        printf(": %s\n", all[i].why);
    }
    if (reasons > PRINT_REJECTED_MAX)
        printf("  and %d reasons more, which --json lists\n", reasons - PRINT_REJECTED_MAX);
}

void tess__plan_print(const struct tess__plan *plan)
{
    const struct tess__words words = tess__words_of(plan->dataset);
    char limit[TESS__TEXT_BYTES];
    FILE *former = tess__screen_begin();
    printf("%s, batch %" PRId64 ", on %d rank%s: %s\n", plan->model, plan->batch_size,
           plan->cluster.ranks, plan->cluster.ranks > 1 ? "s" : "", plan->cluster.source);
    printf("device %s: %s\n", plan->profile.name, plan->profile.source);
    print_guesses(plan);
    if (plan->memory_limit > 0)
        printf("at most %s of %s memory for a rank\n", tess__text_bytes(plan->memory_limit, limit),
               strcmp(plan->profile.kernel, "cuda") == 0 ? "a device's" : "the host's");
    printf("%" PRId64 " layouts tried in %.2f s, %" PRId64 " fit\n", plan->searched, plan->seconds,
           plan->layouts.count);
    if (plan->given->try_count > 0)
        print_tried(plan);
    if (plan->layouts.count > 0) {
        printf("\n%3s", "");
        if (plan->given->try_count > 0)
            printf("  %12s", "measured");
        printf("  %12s %10s %7s %10s  %s\n", plan->given->try_count > 0 ? "predicted" : "step",
               words.rate_short, "MFU", "memory", "layout");
        for (int64_t i = 0; i < plan->layouts.count && i < plan->given->top; i++)
            print_layout(plan, &words, i);
        print_first(plan, &words);
        print_front(plan);
    }
    print_rejected(plan);
    tess__screen_end(former);
}
