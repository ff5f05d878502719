/*
 * The bootstrap once its ranks are connected: gathering small blobs at rank 0 and handing them all
 * to all, along the tree; and the same over a communicator. How ranks find rank 0 is in
 * boot_meet.c.
 *
 *     to rank 0      part: magic, number, bytes of one | blobs of the rank and of those behind it
 *     from rank 0    whole: magic, number, bytes | N blobs
 *     both           failed: magic, status, bytes | text
 */
#include "comm/boot/boot.h"

#include "base/clock.h"
#include "comm/boot/boot_meet.h"
#include "comm/call.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOOT_PART   UINT64_C(0x7472617061726574) /* "terapart" */
#define BOOT_WHOLE  UINT64_C(0x6c6c616161726574) /* "teraaall" */
#define BOOT_FAILED UINT64_C(0x6c69616661726574) /* "terafail" */
#define BOOT_TEXT   240

struct boot_frame {
    uint64_t magic, number, bytes;
};

struct boot_meeting {
    struct tess_boot boot;
    uint64_t number; /* gathers so far */
    bool failed;     /* a gather failed: streams may be out of step */
    bool reported;   /* and the ranks behind this one have been sent why */
    struct tess_secret secret;
    char address[TESS_BOOT_ADDRESS_BYTES];
    struct boot_tree tree;
};

/* For each round of connections behind a rank: those behind have named who is missing by then. */
#define BOOT_ROUND_S 1.0

/* The reason that comes with BOOT_FAILED. */
static void boot_take_text(int fd, uint64_t bytes, double limit_s, char text[BOOT_TEXT])
{
    text[0] = '\0';
    if (bytes >= BOOT_TEXT || !tess__boot_receive(fd, text, (size_t)bytes, limit_s, NULL, 0))
        snprintf(text, BOOT_TEXT, "no reason came");
    else
        text[bytes] = '\0';
}

static bool boot_send(int fd, uint64_t magic, uint64_t number, const void *blob, size_t bytes,
                      size_t blob_bytes, double limit_s, char why[BOOT_WHY_BYTES])
{
    const struct boot_frame frame = {magic, number, bytes};
    return tess__boot_send(fd, &frame, sizeof(frame), limit_s, why, BOOT_WHY_BYTES) &&
           tess__boot_send(fd, blob, blob_bytes, limit_s, why, BOOT_WHY_BYTES);
}

/* ---- from the ranks behind ------------------------------------------------------------------- */

/* Send the reason to the ranks behind, and before this one where it does not come from there, so
 * that all report the same. */
static void boot_report(struct boot_meeting *meeting, bool up, enum tess_status status,
                        const char *text)
{
    const double limit_s = tess_clock_s() + 1;
    const struct boot_tree *tree = &meeting->tree;
    const size_t bytes = strnlen(text, BOOT_TEXT - 1);
    for (int32_t b = up && tree->up.fd >= 0 ? -1 : 0; b < tree->branch_count; b++)
        (void)boot_send(b < 0 ? tree->up.fd : tree->branch[b].fd, BOOT_FAILED, (uint64_t)status,
                        text, bytes, bytes, limit_s, NULL);
    meeting->reported = true;
}

static void boot_name_silent(const struct boot_meeting *meeting, int32_t first, char *text,
                             size_t text_bytes)
{
    const struct boot_tree *tree = &meeting->tree;
    bool *silent = calloc((size_t)tree->rank_count, sizeof(*silent));
    snprintf(text, text_bytes, "%d", (int)tree->branch[first].rank);
    if (silent == NULL)
        return;
    for (int32_t b = first; b < tree->branch_count; b++)
        silent[tree->branch[b].rank] = b == first || !tess__boot_ready(tree->branch[b].fd);
    tess__name_ranks(silent, tree->rank_count, text, text_bytes);
    free(silent);
}

/* The head of what comes through a branch; `text`: what is wrong with it. */
static enum tess_status boot_take_head(struct boot_meeting *meeting, int32_t b, size_t bytes,
                                       double limit_s, char text[BOOT_TEXT])
{
    const struct boot_branch *branch = &meeting->tree.branch[b];
    struct boot_frame frame;
    char why[BOOT_WHY_BYTES], names[100];
    if (!tess__boot_receive(branch->fd, &frame, sizeof(frame), limit_s, why, sizeof(why))) {
        const bool late = tess_clock_s() >= limit_s;
        boot_name_silent(meeting, b, names, sizeof(names));
        if (late)
            snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": nothing came from rank %s within %g s",
                     meeting->number, names, meeting->boot.timeout_s);
        else
            snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": rank %d has left: %s", meeting->number,
                     (int)branch->rank, why);
        return late ? TESS_ERR_TIMEOUT : TESS_ERR_COMM;
    }
    if (frame.magic == BOOT_FAILED) {
        boot_take_text(branch->fd, frame.bytes, limit_s, text);
        return frame.number == (uint64_t)TESS_ERR_TIMEOUT ? TESS_ERR_TIMEOUT : TESS_ERR_COMM;
    }
    if (frame.magic == BOOT_PART && frame.number == meeting->number && frame.bytes == bytes)
        return TESS_OK;
    snprintf(text, BOOT_TEXT,
             "exchange %" PRIu64 " of %zu bytes at rank %d: rank %d brings %" PRIu64
             " bytes as its number %" PRIu64 "; run the same build and options everywhere",
             meeting->number, bytes, (int)meeting->boot.rank, (int)branch->rank, frame.bytes,
             frame.number);
    return TESS_ERR_COMM;
}

/* The parts of all behind this rank, after its own; on rank 0 each in its place. */
static enum tess_status boot_collect(struct boot_meeting *meeting, const void *mine, size_t bytes,
                                     char *all, double limit_s, char text[BOOT_TEXT])
{
    const struct boot_tree *tree = &meeting->tree;
    char why[BOOT_WHY_BYTES];
    size_t n = 1;
    memmove(all, mine, bytes);
    for (int32_t b = 0; b < tree->branch_count; b++) {
        const struct boot_branch *branch = &tree->branch[b];
        TESS_TRY(boot_take_head(meeting, b, bytes, limit_s, text));
        for (int32_t k = 0; k < branch->count; k++, n++) {
            const size_t at = tree->order != NULL ? (size_t)tree->order[n] : n;
            if (tess__boot_receive(branch->fd, all + at * bytes, bytes, limit_s, why, sizeof(why)))
                continue;
            snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": only a part came from rank %d: %s",
                     meeting->number, (int)branch->rank, why);
            return TESS_ERR_COMM;
        }
    }
    return TESS_OK;
}

static enum tess_status boot_send_whole(const struct boot_meeting *meeting, size_t bytes,
                                        const void *all, double limit_s)
{
    const struct boot_tree *tree = &meeting->tree;
    const size_t whole_bytes = bytes * (size_t)tree->rank_count;
    char why[BOOT_WHY_BYTES];
    for (int32_t b = 0; b < tree->branch_count; b++)
        if (!boot_send(tree->branch[b].fd, BOOT_WHOLE, meeting->number, all, whole_bytes,
                       whole_bytes, limit_s, why))
            TESS_FAIL(TESS_ERR_COMM, "exchange %" PRIu64 ": rank %d has left: %s", meeting->number,
                      (int)tree->branch[b].rank, why);
    return TESS_OK;
}

/* ---- to and from the rank before this one ---------------------------------------------------- */

static enum tess_status boot_failed(struct boot_meeting *meeting, uint64_t bytes, double limit_s)
{
    char text[BOOT_TEXT];
    boot_take_text(meeting->tree.up.fd, bytes, limit_s, text);
    boot_report(meeting, false, TESS_ERR_COMM, text);
    TESS_FAIL(TESS_ERR_COMM, "rank %d gave up: %s", (int)meeting->tree.up.rank, text);
}

/* The parts of this rank and of those behind it lie at `all`. */
static enum tess_status boot_ask(struct boot_meeting *meeting, size_t bytes, char *all,
                                 double limit_s)
{
    const struct boot_tree *tree = &meeting->tree;
    const int32_t up = tree->up.rank;
    const size_t whole_bytes = bytes * (size_t)tree->rank_count;
    const size_t own_bytes = bytes * (size_t)(tree->rank_count - tree->up.count);
    struct boot_frame whole;
    char why[BOOT_WHY_BYTES];
    const bool sent =
        boot_send(tree->up.fd, BOOT_PART, meeting->number, all, bytes, own_bytes, limit_s, why);
    /* Where it takes nothing any more, it has sent the reason before. */
    const bool answered = tess__boot_receive(tree->up.fd, &whole, sizeof(whole), limit_s,
                                             sent ? why : NULL, sizeof(why));
    if (!answered || (!sent && whole.magic != BOOT_FAILED))
        TESS_FAIL(tess_clock_s() >= limit_s ? TESS_ERR_TIMEOUT : TESS_ERR_COMM,
                  "exchange %" PRIu64 ": rank %d does not answer rank %d: %s", meeting->number,
                  (int)up, (int)meeting->boot.rank, why);
    if (whole.magic == BOOT_FAILED)
        return boot_failed(meeting, whole.bytes, limit_s);
    if (whole.magic != BOOT_WHOLE || whole.number != meeting->number || whole.bytes != whole_bytes)
        TESS_FAIL(TESS_ERR_COMM,
                  "exchange %" PRIu64 " of %zu bytes: rank %d answers with %" PRIu64
                  " bytes as its number %" PRIu64,
                  meeting->number, whole_bytes, (int)up, whole.bytes, whole.number);
    if (!tess__boot_receive(tree->up.fd, all, whole_bytes, limit_s, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_COMM, "exchange %" PRIu64 ": only a part came from rank %d: %s",
                  meeting->number, (int)up, why);
    return TESS_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static enum tess_status boot_exchange(struct boot_meeting *meeting, const void *mine, size_t bytes,
                                      void *all)
{
    const struct boot_tree *tree = &meeting->tree;
    const double limit_s = tess_clock_s() + meeting->boot.timeout_s;
    const int32_t rounds = tess__tree_height(0, tree->rank_count, tree->fan);
    const int32_t behind = tess__tree_height(tree->place, tree->rank_count, tree->fan);
    const double last_s = limit_s + (rounds - 1) * BOOT_ROUND_S + BOOT_GRACE_S;
    char text[BOOT_TEXT];
    const enum tess_status status =
        boot_collect(meeting, mine, bytes, all, limit_s + (behind - 1) * BOOT_ROUND_S, text);
    if (status != TESS_OK) {
        boot_report(meeting, true, status, text);
        TESS_FAIL(status, "%s", text);
    }
    enum tess_status answered = TESS_OK;
    if (meeting->boot.rank != 0) /* rank 0 has the list of missing ranks */
        answered = boot_ask(meeting, bytes, all, last_s);
    if (answered == TESS_OK)
        answered = boot_send_whole(meeting, bytes, all, last_s);
    if (answered != TESS_OK && !meeting->reported)
        boot_report(meeting, false, answered, tess_log_last_error());
    return answered;
}

static enum tess_status boot_gather(void *context, const void *mine, size_t bytes, void *all)
{
    struct boot_meeting *meeting = context;
    if (bytes > TESS_BOOT_BLOB_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "an exchange of %zu bytes a rank; at most %zu", bytes,
                  TESS_BOOT_BLOB_MAX);
    if (meeting->failed)
        TESS_FAIL(TESS_ERR_COMM, "an earlier exchange between the ranks failed");
    meeting->number++;
    const enum tess_status status = boot_exchange(meeting, mine, bytes, all);
    meeting->failed = status != TESS_OK;
    return status;
}

enum tess_status tess_boot_open(const struct tess_boot_env *env, double timeout_s,
                                struct tess_boot **boot_out)
{
    if (tess__boot_early.meets != NULL)
        tess__boot_early.meets();
    if (env->rank_count < 1 || env->rank_count > TESS_RANKS_MAX || env->rank < 0 ||
        env->rank >= env->rank_count)
        TESS_FAIL(TESS_ERR_USAGE, "there is no rank %d of %d; at most %d ranks", (int)env->rank,
                  (int)env->rank_count, TESS_RANKS_MAX);
    struct boot_meeting *meeting = calloc(1, sizeof(*meeting));
    if (meeting == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to meet %d ranks", (int)env->rank_count);
    meeting->secret = env->secret;
    snprintf(meeting->address, sizeof(meeting->address), "%s",
             env->address[0] != '\0' ? env->address : "127.0.0.1");
    tess__tree_begin(&meeting->tree, env, 0);
    enum tess_status status = TESS_OK;
    if (env->rank_count > 1)
        status = tess__boot_meet(env, timeout_s, &meeting->tree, meeting->address);
    if (status != TESS_OK) {
        tess__tree_close(&meeting->tree);
        free(meeting);
        return status;
    }
    meeting->boot = (struct tess_boot){.rank = env->rank,
                                       .rank_count = env->rank_count,
                                       .timeout_s = timeout_s,
                                       .address = meeting->address,
                                       .context = meeting,
                                       .gather = boot_gather};
    *boot_out = &meeting->boot;
    return TESS_OK;
}

static enum tess_status boot_gather_over(void *context, const void *mine, size_t bytes, void *all)
{
    return tess_comm_all_gather(context, mine, all, bytes, TESS_U8, NULL);
}

enum tess_status tess_boot_over(struct tess_comm *comm, double timeout_s,
                                struct tess_boot **boot_out)
{
    struct tess_boot *boot = malloc(sizeof(*boot));
    if (boot == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bootstrap of %d ranks",
                  (int)comm->rank_count);
    *boot = (struct tess_boot){.rank = comm->rank,
                               .rank_count = comm->rank_count,
                               .timeout_s = timeout_s,
                               .address = "127.0.0.1",
                               .context = comm,
                               .gather = boot_gather_over};
    *boot_out = boot;
    return TESS_OK;
}

int32_t tess_boot_links(const struct tess_boot *boot,
                        struct tess_boot_link link_out[TESS_BOOT_LINKS_MAX])
{
    const struct boot_meeting *meeting = boot->context;
    int32_t count = 0;
    if (boot->gather != boot_gather)
        return 0;
    for (int32_t b = boot->rank > 0 ? -1 : 0; b < meeting->tree.branch_count; b++) {
        const struct boot_branch *branch = b < 0 ? &meeting->tree.up : &meeting->tree.branch[b];
        link_out[count++] = (struct tess_boot_link){branch->fd, branch->rank, branch->count};
    }
    return count;
}

void tess_boot_secret(const struct tess_boot *boot, const void *word, size_t bytes,
                      struct tess_secret *secret_out)
{
    static const struct tess_secret none; /* on one host: the word has not been on the network */
    const struct boot_meeting *meeting = boot->context;
    tess_secret_derive(boot->gather == boot_gather ? &meeting->secret : &none, word, bytes,
                       secret_out);
}

void tess_boot_close(struct tess_boot *boot)
{
    if (boot == NULL)
        return;
    if (boot->gather == boot_gather)
        tess__tree_close(&((struct boot_meeting *)boot->context)->tree);
    free(boot); /* the first member of a meeting */
}
