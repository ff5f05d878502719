/*
 * Exchanges with rank 0 along the connections of a meeting, see boot_post.h.
 *
 *     to rank 0      part: magic, number, bytes | rank, bytes | blob | rank, bytes | blob ..
 *     from rank 0    own:  the same, of the ranks behind; or all: magic, number, bytes | data
 *     to neighbours  near: magic, number, bytes | data
 *     both           failed: magic, status, bytes | text
 */
#include "comm/boot/boot_post.h"

#include "base/clock.h"
#include "comm/boot/boot_socket.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POST_PART    UINT64_C(0x7472617020736f70) /* "pos part" */
#define POST_OWN     UINT64_C(0x206e776f20736f70) /* "pos own " */
#define POST_ALL     UINT64_C(0x206c6c6120736f70) /* "pos all " */
#define POST_NEAR    UINT64_C(0x7261656e20736f70) /* "pos near" */
#define POST_FAILED  UINT64_C(0x6c69616620736f70) /* "pos fail" */
#define POST_TEXT    240
#define POST_GRACE_S 2.0 /* for what others find out at their limit */

struct post_frame {
    uint64_t magic, number, bytes;
};

/* Before each blob of several. */
struct post_head {
    uint32_t rank, bytes;
};

/* Blobs with their heads, one after the other. */
struct post_blobs {
    char *bytes;
    size_t used, room;
};

struct tess_boot_post {
    const struct tess_boot *boot;
    uint64_t number;          /* exchanges so far */
    bool failed;              /* one failed: streams may be out of step */
    struct post_blobs *blobs; /* [links] of those behind each */
    int32_t *link_of; /* [ranks] link by which a rank is reached, -1; NULL: none are behind */
    struct tess_boot_link *link; /* [links] */
    int32_t links, down;         /* down: the first away from rank 0 */
};

/* ---- blobs ----------------------------------------------------------------------------------- */

enum tess_status tess_boot_parts_open(struct tess_boot_parts *parts, int32_t ranks)
{
    *parts = (struct tess_boot_parts){.first = calloc((size_t)ranks + 1, sizeof(*parts->first))};
    if (parts->first == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what %d ranks exchange", (int)ranks);
    return TESS_OK;
}

/* Room for so many bytes more behind `used`; a byte at least, so that there is an address. */
static bool post_grow(char **bytes, size_t used, size_t more, size_t *room)
{
    if (used + more < *room)
        return true;
    const size_t wanted = 2 * (used + more) + 64;
    char *grown = realloc(*bytes, wanted);
    if (grown == NULL)
        return false;
    *bytes = grown;
    *room = wanted;
    return true;
}

void *tess_boot_parts_add(struct tess_boot_parts *parts, size_t bytes)
{
    const size_t at = parts->first[parts->count];
    if (!post_grow(&parts->bytes, at, bytes, &parts->room))
        return NULL;
    parts->first[++parts->count] = at + bytes;
    return parts->bytes + at;
}

void tess_boot_parts_close(struct tess_boot_parts *parts)
{
    free(parts->first);
    free(parts->bytes);
    *parts = (struct tess_boot_parts){0};
}

static bool post_add(struct post_blobs *blobs, int32_t rank, const void *blob, size_t bytes)
{
    const struct post_head head = {(uint32_t)rank, (uint32_t)bytes};
    if (!post_grow(&blobs->bytes, blobs->used, sizeof(head) + bytes, &blobs->room))
        return false;
    memcpy(blobs->bytes + blobs->used, &head, sizeof(head));
    if (bytes > 0)
        memcpy(blobs->bytes + blobs->used + sizeof(head), blob, bytes);
    blobs->used += sizeof(head) + bytes;
    return true;
}

/* The blob at *at, which moves on behind it; NULL: there is none, or it is cut. */
static const char *post_next(const struct post_blobs *blobs, size_t *at, struct post_head *head)
{
    if (blobs->used - *at < sizeof(*head))
        return NULL;
    memcpy(head, blobs->bytes + *at, sizeof(*head));
    const char *blob = blobs->bytes + *at + sizeof(*head);
    if (blobs->used - *at - sizeof(*head) < head->bytes)
        return NULL;
    *at += sizeof(*head) + head->bytes;
    return blob;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* To the neighbours from `first` on but one, so that all report the same reason. */
static void post_report(struct tess_boot_post *post, int32_t first, int32_t but,
                        enum tess_status status, const char *text)
{
    const struct post_frame frame = {POST_FAILED, (uint64_t)status, strlen(text)};
    const double limit_s = tess_clock_s() + 1;
    post->failed = true;
    for (int32_t i = first; i < post->links; i++)
        if (i != but && tess__boot_send(post->link[i].fd, &frame, sizeof(frame), limit_s, NULL, 0))
            (void)tess__boot_send(post->link[i].fd, text, frame.bytes, limit_s, NULL, 0);
}

static enum tess_status post_fail(struct tess_boot_post *post, int32_t but, enum tess_status status,
                                  const char *text)
{
    post_report(post, 0, but, status, text);
    TESS_FAIL(status, "%s", text);
}

/* The reason that comes from a neighbour, and on to the others. */
static enum tess_status post_failed(struct tess_boot_post *post, int32_t link,
                                    const struct post_frame *frame, double limit_s)
{
    const enum tess_status status =
        frame->number == (uint64_t)TESS_ERR_TIMEOUT ? TESS_ERR_TIMEOUT : TESS_ERR_COMM;
    char text[POST_TEXT] = "";
    if (frame->bytes >= sizeof(text) ||
        !tess__boot_receive(post->link[link].fd, text, (size_t)frame->bytes, limit_s, NULL, 0))
        snprintf(text, sizeof(text), "no reason came");
    if (link >= post->down)
        return post_fail(post, link, status, text);
    post_report(post, post->down, -1, status, text);
    TESS_FAIL(TESS_ERR_COMM, "rank %d gave up: %s", (int)post->link[link].rank, text);
}

/* Those further from rank 0 come to their limits first. */
static double post_limit(const struct tess_boot_post *post, int32_t link)
{
    double extra_s = 0;
    for (int32_t count = link < post->down ? post->boot->rank_count : post->link[link].count;
         count > 1; count /= 2)
        extra_s += 0.25;
    return tess_clock_s() + post->boot->timeout_s + extra_s +
           (link < post->down ? POST_GRACE_S : 0);
}

static enum tess_status post_send(struct tess_boot_post *post, int32_t link, uint64_t magic,
                                  const void *data, size_t bytes)
{
    const struct post_frame frame = {magic, post->number, bytes};
    const double limit_s = post_limit(post, link);
    struct post_frame reason;
    char why[BOOT_WHY_BYTES], text[POST_TEXT];
    const int fd = post->link[link].fd;
    if (tess__boot_send(fd, &frame, sizeof(frame), limit_s, why, sizeof(why)) &&
        tess__boot_send(fd, data, bytes, limit_s, why, sizeof(why)))
        return TESS_OK;
    /* Where it takes nothing any more, it has sent the reason before. */
    if (tess__boot_receive(fd, &reason, sizeof(reason), tess_clock_s() + 1, NULL, 0) &&
        reason.magic == POST_FAILED)
        return post_failed(post, link, &reason, tess_clock_s() + 1);
    snprintf(text, sizeof(text), "exchange %" PRIu64 ": rank %d has left: %.150s", post->number,
             (int)post->link[link].rank, why);
    return post_fail(post, link, TESS_ERR_COMM, text);
}

/* What a message has to begin with; *bytes_out follow, at most `most`. */
static enum tess_status post_begin(struct tess_boot_post *post, int32_t link, uint64_t magic,
                                   size_t most, size_t *bytes_out)
{
    const double limit_s = post_limit(post, link);
    const int32_t rank = post->link[link].rank;
    struct post_frame frame;
    char why[BOOT_WHY_BYTES], text[POST_TEXT];
    if (!tess__boot_receive(post->link[link].fd, &frame, sizeof(frame), limit_s, why,
                            sizeof(why))) {
        const bool late = tess_clock_s() >= limit_s;
        if (late)
            snprintf(text, sizeof(text),
                     "exchange %" PRIu64 ": nothing came from rank %d within %g s", post->number,
                     (int)rank, post->boot->timeout_s);
        else
            snprintf(text, sizeof(text), "exchange %" PRIu64 ": rank %d has left: %.150s",
                     post->number, (int)rank, why);
        return post_fail(post, link, late ? TESS_ERR_TIMEOUT : TESS_ERR_COMM, text);
    }
    if (frame.magic == POST_FAILED)
        return post_failed(post, link, &frame, limit_s);
    *bytes_out = (size_t)frame.bytes;
    if (frame.magic == magic && frame.number == post->number && frame.bytes <= most)
        return TESS_OK;
    snprintf(text, sizeof(text),
             "exchange %" PRIu64 ": rank %d brings %" PRIu64 " bytes as its number %" PRIu64
             "; run the same build and options everywhere",
             post->number, (int)rank, frame.bytes, frame.number);
    return post_fail(post, link, TESS_ERR_COMM, text);
}

/* The bytes themselves. */
static enum tess_status post_take(struct tess_boot_post *post, int32_t link, void *data,
                                  size_t bytes)
{
    char why[BOOT_WHY_BYTES], text[POST_TEXT];
    if (tess__boot_receive(post->link[link].fd, data, bytes, post_limit(post, link), why,
                           sizeof(why)))
        return TESS_OK;
    snprintf(text, sizeof(text), "exchange %" PRIu64 ": only a part came from rank %d: %.150s",
             post->number, (int)post->link[link].rank, why);
    return post_fail(post, link, TESS_ERR_COMM, text);
}

static enum tess_status post_no_memory(struct tess_boot_post *post)
{
    return post_fail(post, -1, TESS_ERR_MEMORY, "no memory for what ranks exchange");
}

/* A message of blobs, whose heads are there and name ranks. */
static enum tess_status post_take_blobs(struct tess_boot_post *post, int32_t link, uint64_t magic,
                                        int32_t ranks)
{
    struct post_blobs *blobs = &post->blobs[link];
    size_t bytes, at = 0;
    int32_t found = 0;
    TESS_TRY(post_begin(post, link, magic,
                        (size_t)ranks * (sizeof(struct post_head) + TESS_BOOT_BLOB_MAX), &bytes));
    blobs->used = 0;
    if (!post_grow(&blobs->bytes, 0, bytes, &blobs->room))
        return post_no_memory(post);
    TESS_TRY(post_take(post, link, blobs->bytes, bytes));
    blobs->used = bytes;
    for (struct post_head head; post_next(blobs, &at, &head) != NULL; found++)
        if (head.rank >= (uint32_t)post->boot->rank_count || head.bytes > TESS_BOOT_BLOB_MAX)
            break;
    if (at == bytes && found == ranks)
        return TESS_OK;
    return post_fail(post, -1, TESS_ERR_COMM,
                     "ranks exchange something else: run the same build and options everywhere");
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static enum tess_status post_start(struct tess_boot_post *post, size_t bytes)
{
    if (bytes > TESS_BOOT_BLOB_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "an exchange of %zu bytes with rank 0; at most %zu", bytes,
                  TESS_BOOT_BLOB_MAX);
    if (post->failed)
        TESS_FAIL(TESS_ERR_COMM, "an earlier exchange between the ranks failed");
    post->number++;
    return TESS_OK;
}

/* Rank 0: all blobs in the order of ranks. `where` [ranks]: scratch. */
static enum tess_status post_order(struct tess_boot_post *post, const void *mine, size_t bytes,
                                   const char **where, struct tess_boot_parts *parts)
{
    struct post_head head;
    for (int32_t i = 0; i < post->links; i++) {
        size_t at = 0;
        for (const char *blob; (blob = post_next(&post->blobs[i], &at, &head)) != NULL;)
            where[head.rank] = blob;
    }
    TESS_TRY(tess_boot_parts_open(parts, post->boot->rank_count));
    for (int32_t r = 0; r < post->boot->rank_count; r++) {
        if (r > 0 && where[r] == NULL)
            return post_fail(post, -1, TESS_ERR_COMM, "a rank has sent nothing, another one twice");
        if (r > 0)
            memcpy(&head, where[r] - sizeof(head), sizeof(head));
        const size_t own = r > 0 ? head.bytes : bytes;
        void *to = tess_boot_parts_add(parts, own);
        if (to == NULL)
            return post_no_memory(post);
        if (own > 0)
            memcpy(to, r > 0 ? where[r] : mine, own);
    }
    return TESS_OK;
}

static enum tess_status post_collect_root(struct tess_boot_post *post, const void *mine,
                                          size_t bytes, struct tess_boot_parts *parts)
{
    const char **where = calloc((size_t)post->boot->rank_count, sizeof(*where));
    const enum tess_status status =
        where != NULL ? post_order(post, mine, bytes, where, parts) : post_no_memory(post);
    free((void *)where);
    if (status != TESS_OK)
        tess_boot_parts_close(parts);
    return status;
}

enum tess_status tess_boot_collect(struct tess_boot_post *post, const void *mine, size_t bytes,
                                   struct tess_boot_parts *parts_out)
{
    struct post_blobs *up = post->blobs; /* that of the first link, where it leads to rank 0 */
    *parts_out = (struct tess_boot_parts){0};
    TESS_TRY(post_start(post, bytes));
    for (int32_t i = post->down; i < post->links; i++) {
        size_t at = 0;
        TESS_TRY(post_take_blobs(post, i, POST_PART, post->link[i].count));
        for (struct post_head head; post_next(&post->blobs[i], &at, &head) != NULL;)
            post->link_of[head.rank] = i;
    }
    if (post->boot->rank == 0)
        return post_collect_root(post, mine, bytes, parts_out);
    up->used = 0;
    bool room = post_add(up, post->boot->rank, mine, bytes);
    for (int32_t i = post->down; i < post->links && room; i++) {
        const struct post_blobs *blobs = &post->blobs[i];
        room = post_grow(&up->bytes, up->used, blobs->used, &up->room);
        if (room)
            memcpy(up->bytes + up->used, blobs->bytes, blobs->used);
        up->used += blobs->used;
    }
    return room ? post_send(post, 0, POST_PART, up->bytes, up->used) : post_no_memory(post);
}

/* Each blob to the link that its rank is behind; this rank's own into `mine`. */
static enum tess_status post_part(struct tess_boot_post *post, int32_t rank, const char *blob,
                                  size_t bytes, void *mine, size_t room, size_t *bytes_out)
{
    if (rank == post->boot->rank) {
        if (bytes > room)
            return post_fail(post, -1, TESS_ERR_COMM, "rank 0 deals out more than was expected");
        if (bytes > 0)
            memcpy(mine, blob, bytes);
        *bytes_out = bytes;
        return TESS_OK;
    }
    if (post->link_of == NULL || post->link_of[rank] < 0)
        return post_fail(post, -1, TESS_ERR_COMM, "what is for a rank elsewhere came here");
    return post_add(&post->blobs[post->link_of[rank]], rank, blob, bytes) ? TESS_OK
                                                                          : post_no_memory(post);
}

enum tess_status tess_boot_deal(struct tess_boot_post *post, const struct tess_boot_parts *parts,
                                void *mine, size_t room, size_t *bytes_out)
{
    const int32_t ranks = post->boot->rank_count;
    *bytes_out = 0;
    TESS_TRY(post_start(post, 0));
    for (int32_t i = post->down; i < post->links; i++)
        post->blobs[i].used = 0;
    if (post->boot->rank == 0) {
        for (int32_t r = 0; r < ranks; r++)
            TESS_TRY(post_part(post, r, parts->bytes + parts->first[r],
                               parts->first[r + 1] - parts->first[r], mine, room, bytes_out));
    } else {
        const char *blob;
        struct post_head head;
        size_t at = 0;
        TESS_TRY(post_take_blobs(post, 0, POST_OWN, post->boot->rank_count - post->link[0].count));
        while ((blob = post_next(&post->blobs[0], &at, &head)) != NULL)
            TESS_TRY(post_part(post, (int32_t)head.rank, blob, head.bytes, mine, room, bytes_out));
    }
    for (int32_t i = post->down; i < post->links; i++)
        TESS_TRY(post_send(post, i, POST_OWN, post->blobs[i].bytes, post->blobs[i].used));
    return TESS_OK;
}

/* A message of just so many bytes. */
static enum tess_status post_take_whole(struct tess_boot_post *post, int32_t link, uint64_t magic,
                                        void *data, size_t bytes)
{
    size_t came;
    TESS_TRY(post_begin(post, link, magic, bytes, &came));
    if (came != bytes)
        return post_fail(post, -1, TESS_ERR_COMM,
                         "ranks send something else: run the same build everywhere");
    return post_take(post, link, data, bytes);
}

enum tess_status tess_boot_share(struct tess_boot_post *post, void *data, size_t bytes)
{
    TESS_TRY(post_start(post, bytes));
    if (post->boot->rank != 0)
        TESS_TRY(post_take_whole(post, 0, POST_ALL, data, bytes));
    for (int32_t i = post->down; i < post->links; i++)
        TESS_TRY(post_send(post, i, POST_ALL, data, bytes));
    return TESS_OK;
}

enum tess_status tess_boot_least(struct tess_boot_post *post, int64_t *number)
{
    TESS_TRY(post_start(post, sizeof(*number)));
    for (int32_t i = post->down; i < post->links; i++) {
        int64_t theirs;
        TESS_TRY(post_take_whole(post, i, POST_PART, &theirs, sizeof(theirs)));
        *number = theirs < *number ? theirs : *number;
    }
    if (post->down > 0)
        TESS_TRY(post_send(post, 0, POST_PART, number, sizeof(*number)));
    return tess_boot_share(post, number, sizeof(*number));
}

enum tess_status tess_boot_swap(struct tess_boot_post *post, const void *mine, size_t bytes,
                                void *theirs)
{
    TESS_TRY(post_start(post, bytes));
    for (int32_t i = 0; i < post->links; i++)
        TESS_TRY(post_send(post, i, POST_NEAR, mine, bytes));
    for (int32_t i = 0; i < post->links; i++)
        TESS_TRY(post_take_whole(post, i, POST_NEAR, (char *)theirs + (size_t)i * bytes, bytes));
    return TESS_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

enum tess_status tess_boot_post_open(const struct tess_boot *boot, struct tess_boot_post **post_out)
{
    const size_t count = (size_t)boot->rank_count;
    struct tess_boot_post *post = calloc(1, sizeof(*post));
    if (post == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what %d ranks exchange", (int)boot->rank_count);
    post->boot = boot;
    post->down = boot->rank != 0;
    post->link = calloc(TESS_BOOT_LINKS_MAX, sizeof(*post->link));
    if (post->link != NULL)
        post->links = tess_boot_links(boot, post->link);
    const bool behind = post->links > post->down;
    if (behind)
        post->link_of = malloc(count * sizeof(*post->link_of));
    post->blobs = calloc((size_t)post->links + 1, sizeof(*post->blobs));
    if (post->link == NULL || (behind && post->link_of == NULL) || post->blobs == NULL) {
        tess_boot_post_close(post);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what %d ranks exchange", (int)boot->rank_count);
    }
    if (behind)
        memset(post->link_of, -1, count * sizeof(*post->link_of));
    *post_out = post;
    return TESS_OK;
}

void tess_boot_post_close(struct tess_boot_post *post)
{
    if (post == NULL)
        return;
    for (int32_t i = 0; i < post->links && post->blobs != NULL; i++)
        free(post->blobs[i].bytes);
    free(post->blobs);
    free(post->link_of);
    free(post->link);
    free(post);
}
