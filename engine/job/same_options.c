/*
 * Ranks compare their options before they do anything together, each its own with those of rank 0:
 *
 *     rank 0     hash of its options             -->  all
 *     all        the least rank that differs     -->  all
 *
 * Where there is one, the same goes on with the options as text, "name\0value\0" for each:
 *
 *     rank 0     its options                     -->  all
 *     that rank  the first difference            -->  rank 0  -->  all, which log it
 *
 * So a rank has a few numbers from each neighbour of the tree, however many ranks there are.
 */
#include "job/place.h"

#include "base/options.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAME_WHY 600

/* Options as text; bytes beyond `room` are counted but not written. */
struct same_text {
    char *text;
    size_t room, used;
};

static void same_append(struct same_text *text, const char *word)
{
    const size_t bytes = strlen(word) + 1;
    if (text->used + bytes <= text->room)
        memcpy(text->text + text->used, word, bytes);
    text->used += bytes;
}

static void same_visit(void *context, const char *name, const char *value, const char *origin,
                       const struct tess_option *option)
{
    (void)origin, (void)option;
    same_append(context, name);
    same_append(context, value);
}

/* The value of an option in a text of `bytes` bytes, NULL where it is not there. */
static const char *same_find(const char *text, size_t bytes, const char *name)
{
    for (size_t at = 0; at < bytes && text[at] != '\0';) {
        const char *value = text + at + strlen(text + at) + 1;
        if (strcmp(text + at, name) == 0)
            return value;
        at = (size_t)(value - text) + strlen(value) + 1;
    }
    return NULL;
}

/* Has rank `b` all options of rank `a`, with the same values? Else `why`: the first that differs.
 */
static bool same_compare(const char *text_a, int32_t a, const char *text_b, int32_t b, size_t bytes,
                         char why[SAME_WHY])
{
    static const char advice[] =
        "start all ranks with the same options, configuration file and environment";
    for (size_t at = 0; at < bytes && text_a[at] != '\0';) {
        const char *name = text_a + at, *value = name + strlen(name) + 1;
        const char *other = same_find(text_b, bytes, name);
        if (other == NULL)
            snprintf(why, SAME_WHY,
                     "ranks have different options: rank %d has --%.80s, rank %d has not: %s",
                     (int)a, name, (int)b, advice);
        else if (strcmp(other, value) != 0)
            snprintf(why, SAME_WHY,
                     "ranks have different options: --%.80s is '%.150s' on rank %d and '%.150s' on "
                     "rank %d: %s",
                     name, value, (int)a, other, (int)b, advice);
        if (other == NULL || strcmp(other, value) != 0)
            return false;
        at = (size_t)(value - text_a) + strlen(value) + 1;
    }
    return true;
}

/* The first difference between the options of rank 0, `zero`, and this rank's, `own`: texts of less
 * than so many bytes, zeros behind them. `why` stays where there is none. */
static void same_name(const char *zero, const char *own, int32_t rank, size_t bytes,
                      char why[SAME_WHY])
{
    if (same_compare(zero, 0, own, rank, bytes, why))
        (void)same_compare(own, rank, zero, 0, bytes, why);
}

/* All log the same. `zero` [bytes]: room for the options of rank 0; `own` [bytes]. */
static enum tess_status same_report(struct tess_boot_post *post, int32_t rank, int32_t other,
                                    char *zero, const char *own, size_t bytes)
{
    struct tess_boot_parts parts;
    char why[SAME_WHY] = "";
    if (rank == 0)
        memcpy(zero, own, bytes);
    TESS_TRY(tess_boot_share(post, zero, bytes));
    if (rank == other)
        same_name(zero, own, rank, bytes, why);
    TESS_TRY(tess_boot_collect(post, why, rank == other ? sizeof(why) : 0, &parts));
    if (rank == 0 && parts.first[other + 1] - parts.first[other] == sizeof(why))
        memcpy(why, parts.bytes + parts.first[other], sizeof(why));
    tess_boot_parts_close(&parts);
    TESS_TRY(tess_boot_share(post, why, sizeof(why)));
    why[sizeof(why) - 1] = '\0';
    if (why[0] == '\0') /* the same ones in another order */
        return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE, "%s", why);
}

/* Where the texts are longer than a share may be, the rest counts as equal. */
static enum tess_status same_exchange(const struct tess_options *options,
                                      struct tess_boot_post *post, int32_t rank, int32_t other,
                                      size_t used)
{
    struct same_text mine = {.room = TESS_BOOT_BLOB_MAX};
    int64_t least = -(int64_t)used;
    TESS_TRY(tess_boot_least(post, &least));
    const size_t longest = (size_t)-least + 1;
    const size_t bytes = longest < mine.room ? longest : mine.room;
    char *text = calloc(2, bytes);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of two ranks");
    mine.text = text;
    mine.room = bytes - 1;
    tess_options_visit(options, same_visit, &mine);
    const enum tess_status status = same_report(post, rank, other, text + bytes, text, bytes);
    free(text);
    return status;
}

enum tess_status tess__same_options(const struct tess_options *options, struct tess_boot_post *post,
                                    int32_t rank)
{
    const uint64_t own = tess_options_hash(options);
    struct same_text size = {.room = 0};
    uint64_t zero = own;
    tess_options_visit(options, same_visit, &size);
    TESS_TRY(tess_boot_share(post, &zero, sizeof(zero)));
    int64_t other = own == zero ? INT64_MAX : rank;
    TESS_TRY(tess_boot_least(post, &other));
    if (other == INT64_MAX)
        return TESS_OK;
    return same_exchange(options, post, rank, (int32_t)other, size.used);
}
