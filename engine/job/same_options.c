/*
 * Ranks compare their options before they do anything together. Hashes are compared first; where
 * they differ the ranks exchange the options as text, "name\0value\0" for each.
 */
#include "job/place.h"

#include "base/options.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

#define SAME_BYTES ((size_t)1 << 16)

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

/* Parts of all ranks' texts, of which those of rank 0 and rank `other` are kept: text [2][bytes].
 * However many ranks there are, they take no more memory than SAME_BYTES, or 64 bytes each. */
static enum tess_status same_gather(const struct tess_boot *boot, char *mine, size_t bytes,
                                    int32_t other, char *text)
{
    const size_t ranks = (size_t)boot->rank_count;
    const size_t share = SAME_BYTES / ranks < 64 ? 64 : SAME_BYTES / ranks;
    const size_t part = share < bytes ? share : bytes;
    char *all = malloc(ranks * part);
    enum tess_status status = TESS_OK;
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of %d ranks", (int)boot->rank_count);
    for (size_t at = 0; at < bytes && status == TESS_OK; at += part) {
        const size_t count = part < bytes - at ? part : bytes - at;
        status = boot->gather(boot->context, mine + at, count, all);
        if (status != TESS_OK)
            break;
        memcpy(text + at, all, count);
        memcpy(text + bytes + at, all + (size_t)other * count, count);
    }
    free(all);
    return status;
}

/* Name the first difference between the options of rank 0 and rank `other`; their texts, and this
 * rank's, have less than `bytes`. */
static enum tess_status same_exchange(const struct tess_options *options,
                                      const struct tess_boot *boot, int32_t other, size_t bytes)
{
    char *text = calloc(3, bytes);
    struct same_text mine = {.text = text, .room = bytes};
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of two ranks");
    tess_options_visit(options, same_visit, &mine);
    const char *zero = text + bytes, *others = zero + bytes;
    enum tess_status status = same_gather(boot, text, bytes, other, text + bytes);
    if (status == TESS_OK)
        status = same_compare(zero, 0, others, other, bytes) &&
                         same_compare(others, other, zero, 0, bytes)
                     ? TESS_OK
                     : TESS_ERR_USAGE;
    free(text);
    return status;
}

enum tess_status tess__same_options(const struct tess_options *options,
                                    const struct tess_boot *boot)
{
    struct same_text size = {.room = 0};
    tess_options_visit(options, same_visit, &size);
    const uint64_t mine[2] = {tess_options_hash(options), size.used};
    uint64_t(*all)[2] = calloc((size_t)boot->rank_count, sizeof(*all));
    uint64_t bytes = 0;
    int32_t other = 0; /* the first that differs from rank 0 */
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of %d ranks", (int)boot->rank_count);
    const enum tess_status status = boot->gather(boot->context, mine, sizeof(mine), all);
    for (int32_t r = 0; r < boot->rank_count && status == TESS_OK; r++) {
        other = other == 0 && all[r][0] != all[0][0] ? r : other;
        bytes = all[r][1] > bytes ? all[r][1] : bytes;
    }
    free(all);
    if (status != TESS_OK || other == 0)
        return status;
    return same_exchange(options, boot, other, (size_t)bytes + 1);
}
