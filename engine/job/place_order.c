/*
 * Files of --topology.order: which process is to be which rank, in the user's own words.
 *
 *     0 2 1 3              the processes of ranks 0, 1, 2, 3; blanks, commas or lines between them
 *
 *     0 dev2:0             or lines RANK HOST[:SLOT], SLOT counted over the processes of the host;
 *     1 dev2:1             without it, the next that has no rank yet
 *
 * '#' begins a comment.
 */
#include "job/place.h"

#include "base/file.h"
#include "tessera/check.h"
#include "topology/formats/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_BYTES_MAX (1 << 22)

struct order {
    const struct tess__processes *job;
    const char *path;
    int32_t *process;  /* [job->count] of a rank; -1: none yet */
    int32_t *rank_of;  /* [job->count] of a process; -1: none yet */
    int32_t *sorted;   /* [host_count] hosts by order_compare */
    int32_t *unranked; /* [host_count] of a host: where in job->member its next without one is */
    int32_t next;      /* rank that a list's next number is for */
};

/* By the part of the name before the first dot. */
static int order_compare_words(struct tess__word a, struct tess__word b)
{
    const int order = memcmp(a.text, b.text, a.length < b.length ? a.length : b.length);

    return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

static struct tess__word order_short(const struct tess__processes *job, int32_t host)
{
    const char *name = job->hosts[host].name;

    return (struct tess__word){name, strcspn(name, ".")};
}

static int order_compare(const void *a, const void *b, void *context)
{
    return order_compare_words(order_short(context, *(const int32_t *)a),
                               order_short(context, *(const int32_t *)b));
}

static enum tess_status order_set(struct order *order, int32_t line, int32_t rank, int32_t process)
{
    if (order->process[rank] >= 0)
        return tess__lines_fail(order->path, line, "rank %d is there twice", (int)rank);
    if (order->rank_of[process] >= 0)
        return tess__lines_fail(order->path, line, "process %d is rank %d already", (int)process,
                                (int)order->rank_of[process]);
    order->process[rank] = process;
    order->rank_of[process] = rank;
    return TESS_OK;
}

/* Of one host: the process at this slot, -1: the first that has no rank; -1: none. */
static int32_t order_find_on(const struct order *order, int32_t host, int32_t slot)
{
    const struct tess__processes *job = order->job;
    const int32_t end = job->start[host + 1];

    if (slot >= 0)
        return slot < end - job->start[host] ? job->seat[job->start[host] + slot] : -1;
    while (order->unranked[host] < end && order->rank_of[job->member[order->unranked[host]]] >= 0)
        order->unranked[host]++;
    return order->unranked[host] < end ? job->member[order->unranked[host]] : -1;
}

/* The lowest such process of all hosts of that name. Found by host and slot, which identify
 * processes, not by their numbers. */
static int32_t order_find(const struct order *order, struct tess__word host, int32_t slot)
{
    const struct tess__processes *job = order->job;
    const char *dot = memchr(host.text, '.', host.length);
    const struct tess__word name = {host.text, dot ? (size_t)(dot - host.text) : host.length};
    int32_t low = 0, high = job->host_count, lowest = -1;

    while (low < high) { /* the first that is not before the name */
        const int32_t middle = low + (high - low) / 2;

        if (order_compare_words(order_short(job, order->sorted[middle]), name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (int32_t i = low; i < job->host_count; i++) {
        const int32_t h = order->sorted[i];

        if (order_compare_words(order_short(job, h), name) != 0)
            break;
        if (dot != NULL && !tess__word_is(host, job->hosts[h].name))
            continue;
        const int32_t p = order_find_on(order, h, slot);
        lowest = p >= 0 && (lowest < 0 || p < lowest) ? p : lowest;
    }
    return lowest;
}

/* The word behind a rank: HOST or HOST:SLOT. */
static enum tess_status order_place(struct order *order, int32_t line, int32_t rank,
                                    struct tess__word word)
{
    const char *colon = memrchr(word.text, ':', word.length);
    struct tess__word host = word;
    int32_t slot = -1;

    if (colon != NULL) {
        host.length = (size_t)(colon - word.text);
        if (!tess__word_number((struct tess__word){colon + 1, word.length - host.length - 1},
                               INT32_MAX, &slot))
            return tess__lines_fail(order->path, line, "'%.*s' is no HOST:SLOT", TESS__SHOWN(word));
    }
    const int32_t process = order_find(order, host, slot);
    if (process < 0)
        return tess__lines_fail(order->path, line,
                                slot >= 0 ? "there is no process at '%.*s'"
                                          : "there is no further process on '%.*s'",
                                TESS__SHOWN(word));
    return order_set(order, line, rank, process);
}

static enum tess_status order_number(const struct order *order, int32_t line, const char *what,
                                     struct tess__word word, int32_t *number_out)
{
    if (!tess__word_number(word, order->job->count - 1, number_out))
        return tess__lines_fail(order->path, line,
                                "'%.*s': the number of a %s, 0 to %d, was "
                                "expected",
                                TESS__SHOWN(word), what, (int)order->job->count - 1);
    return TESS_OK;
}

/* Is it RANK HOST[:SLOT]? Its second word is no number then. */
static bool order_is_place(struct tess__lines lines)
{
    struct tess__word word;
    int32_t number;

    if (!tess__lines_word(&lines, &word)) /* the rank */
        return false;
    return tess__lines_word(&lines, &word) && !tess__word_number(word, INT32_MAX, &number);
}

static enum tess_status order_line(struct order *order, struct tess__lines *lines)
{
    struct tess__word word;
    int32_t number;

    if (order_is_place(*lines)) {
        (void)tess__lines_word(lines, &word);
        TESS_TRY(order_number(order, lines->line, "rank", word, &number));
        (void)tess__lines_word(lines, &word);
        TESS_TRY(order_place(order, lines->line, number, word));
        if (tess__lines_word(lines, &word))
            return tess__lines_fail(order->path, lines->line, "'%.*s' follows RANK HOST:SLOT",
                                    TESS__SHOWN(word));
        return TESS_OK;
    }
    while (tess__lines_word(lines, &word)) {
        TESS_TRY(order_number(order, lines->line, "process", word, &number));
        if (order->next == order->job->count)
            return tess__lines_fail(order->path, lines->line,
                                    "more than the %d processes there are", (int)order->job->count);
        TESS_TRY(order_set(order, lines->line, order->next++, number));
    }
    return TESS_OK;
}

static enum tess_status order_lines(struct order *order, char *text, size_t bytes)
{
    const struct tess__processes *job = order->job;
    struct tess__lines lines;

    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] == ',' ? ' ' : text[i];
    tess__lines_open(&lines, order->path, text, bytes);
    while (tess__lines_next(&lines)) {
        const char *comment = memchr(lines.rest.text, '#', lines.rest.length);

        if (comment != NULL)
            lines.rest.length = (size_t)(comment - lines.rest.text);
        TESS_TRY(order_line(order, &lines));
    }
    for (int32_t r = 0; r < job->count; r++)
        if (order->process[r] < 0)
            return tess__lines_fail(order->path, lines.line,
                                    "there is no process for rank %d of %d", (int)r,
                                    (int)job->count);
    if (order->process[0] != 0)
        return tess__lines_fail(order->path, 0,
                                "process 0, at %s:%d, where all meet, is to be rank 0, not process "
                                "%d",
                                tess__host_name(job, 0), (int)job->slot[0], (int)order->process[0]);
    return TESS_OK;
}

/* The whole file into text [ORDER_BYTES_MAX + 1]. */
static enum tess_status order_read(const char *path, char *text, size_t *bytes_out)
{
    const char *why;
    FILE *file = tess_file_open_input(path, &why);

    if (file == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read --topology.order file:%s: %s", path, why);
    *bytes_out = fread(text, 1, ORDER_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed)
        TESS_FAIL(TESS_ERR_IO, "cannot read --topology.order file:%s", path);
    if (*bytes_out > ORDER_BYTES_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s is no order: it has more than %d bytes", path,
                  ORDER_BYTES_MAX);
    return TESS_OK;
}

static enum tess_status order_take(struct order *order, char *text)
{
    const struct tess__processes *job = order->job;
    size_t bytes;

    TESS_TRY(order_read(order->path, text, &bytes));
    for (int32_t i = 0; i < job->count; i++)
        order->process[i] = order->rank_of[i] = -1;
    for (int32_t h = 0; h < job->host_count; h++) {
        order->sorted[h] = h;
        order->unranked[h] = job->start[h];
    }
    qsort_r(order->sorted, (size_t)job->host_count, sizeof(*order->sorted), order_compare,
            (void *)job);
    return order_lines(order, text, bytes);
}

enum tess_status tess__place_read_order(const struct tess__processes *job, const char *path,
                                        int32_t *process_out)
{
    struct order order = {.job = job, .path = path, .process = process_out};
    const size_t hosts = (size_t)job->host_count;
    char *text = malloc(ORDER_BYTES_MAX + 1);

    order.rank_of = malloc(((size_t)job->count + 2 * hosts) * sizeof(*order.rank_of));
    order.sorted = order.rank_of + job->count;
    order.unranked = order.sorted + hosts;
    const enum tess_status status =
        text != NULL && order.rank_of != NULL
            ? order_take(&order, text)
            : tess_fail(TESS_ERR_MEMORY, "no memory for --topology.order file:%s", path);
    free(order.rank_of);
    free(text);
    return status;
}
