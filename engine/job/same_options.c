/*
 * Ranks compare their options before they do anything together. Hashes are compared first; where
 * they differ the ranks exchange the options as text, "name\0value\0" for each.
 */
#include "job/place.h"

#include "base/options.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

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

/* Has rank `b` all options of rank `a`, with the same values? Logs the first that differs. */
static bool same_compare(const char *text_a, int32_t a, const char *text_b, int32_t b, size_t bytes)
{
    for (size_t at = 0; at < bytes && text_a[at] != '\0';) {
        const char *name = text_a + at, *value = name + strlen(name) + 1;
        const char *other = same_find(text_b, bytes, name);
        if (other == NULL)
            tess_log(TESS_LOG_ERROR,
                     "ranks have different options: rank %d has --%s, rank %d has not: start all "
                     "ranks with the same options, configuration file and environment",
                     (int)a, name, (int)b);
        else if (strcmp(other, value) != 0)
            tess_log(TESS_LOG_ERROR,
                     "ranks have different options: --%s is '%s' on rank %d and '%s' on rank %d: "
                     "start all ranks with the same options, configuration file and environment",
                     name, value, (int)a, other, (int)b);
        if (other == NULL || strcmp(other, value) != 0)
            return false;
        at = (size_t)(value - text_a) + strlen(value) + 1;
    }
    return true;
}

/* Exchange the texts, of at most `bytes` each, and name the first difference. */
static enum tess_status same_exchange(const struct tess_options *options,
                                      const struct tess_boot *boot, size_t bytes)
{
    const size_t ranks = (size_t)boot->rank_count;
    char *all = calloc(ranks + 1, bytes);
    struct same_text mine = {.text = all, .room = bytes};
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of %d ranks", (int)boot->rank_count);
    tess_options_visit(options, same_visit, &mine);
    enum tess_status status = boot->gather(boot->context, mine.text, bytes, all + bytes);
    const char *zero = all + bytes;
    bool same = true;
    for (size_t r = 1; r < ranks && status == TESS_OK && same; r++)
        same = same_compare(zero, 0, zero + r * bytes, (int32_t)r, bytes) &&
               same_compare(zero + r * bytes, (int32_t)r, zero, 0, bytes);
    free(all);
    return status != TESS_OK || same ? status : TESS_ERR_USAGE;
}

enum tess_status tess__same_options(const struct tess_options *options,
                                    const struct tess_boot *boot)
{
    struct same_text size = {.room = 0};
    tess_options_visit(options, same_visit, &size);
    const uint64_t mine[2] = {tess_options_hash(options), size.used};
    uint64_t all[TESS_WORLD_RANKS_MAX][2], bytes = 0;
    bool same = true;
    TESS_TRY(boot->gather(boot->context, mine, sizeof(mine), all));
    for (int32_t r = 0; r < boot->rank_count; r++) {
        same = same && all[r][0] == all[0][0];
        bytes = all[r][1] > bytes ? all[r][1] : bytes;
    }
    return same ? TESS_OK : same_exchange(options, boot, (size_t)bytes + 1);
}
