/*
 * The bootstrap once its ranks are connected: gathering small blobs at rank 0 and handing them all
 * to all; and the same over a communicator. How ranks find rank 0 is in boot_meet.c.
 *
 *     rank r    part: magic, number, bytes | blob
 *     rank 0                                  whole: magic, number, bytes | N blobs
 *                                             or failed: magic, number, bytes | text
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
#include <unistd.h>

#define BOOT_PART   UINT64_C(0x7472617061726574) /* "terapart" */
#define BOOT_WHOLE  UINT64_C(0x6c6c616161726574) /* "teraaall" */
#define BOOT_FAILED UINT64_C(0x6c69616661726574) /* "terafail" */
#define BOOT_TEXT   240

struct boot_frame {
    uint64_t magic, number, bytes;
};

struct boot_star {
    struct tess_boot boot;
    uint64_t number; /* gathers so far */
    bool failed;     /* a gather failed: streams may be out of step */
    struct tess_secret secret;
    char address[TESS_BOOT_ADDRESS_BYTES];
    int32_t fd_count;
    int fd[]; /* rank 0: [rank_count], [0] unused; else [1]: the connection with rank 0 */
};

static bool star_send(const struct boot_star *star, int32_t r, uint64_t magic, const void *blob,
                      size_t bytes, double limit_s, char why[BOOT_WHY_BYTES])
{
    const struct boot_frame frame = {magic, star->number, bytes};
    return tess__boot_send(star->fd[r], &frame, sizeof(frame), limit_s, why, BOOT_WHY_BYTES) &&
           tess__boot_send(star->fd[r], blob, bytes, limit_s, why, BOOT_WHY_BYTES);
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Send the reason to the ranks that are connected, so that all report the same. */
static void star_notify(const struct boot_star *star, const char *text)
{
    const double limit_s = tess_clock_s() + 1;
    for (int32_t r = 1; r < star->fd_count; r++)
        (void)star_send(star, r, BOOT_FAILED, text, strlen(text), limit_s, NULL);
}

static void star_name_silent(const struct boot_star *star, int32_t first, char *text,
                             size_t text_bytes)
{
    bool silent[TESS_BOOT_RANKS_MAX];
    for (int32_t r = 0; r < star->fd_count; r++)
        silent[r] = r == first || (r > first && !tess__boot_ready(star->fd[r]));
    tess__name_ranks(silent, star->fd_count, text, text_bytes);
}

/* Rank r's blob; `text`: what is wrong with it. */
static enum tess_status star_take(struct boot_star *star, int32_t r, size_t bytes, void *blob,
                                  double limit_s, char text[BOOT_TEXT])
{
    struct boot_frame frame;
    char why[BOOT_WHY_BYTES], names[100];
    if (!tess__boot_receive(star->fd[r], &frame, sizeof(frame), limit_s, why, sizeof(why))) {
        bool late = tess_clock_s() >= limit_s;
        star_name_silent(star, r, names, sizeof(names));
        if (late)
            snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": nothing came from rank %s within %g s",
                     star->number, names, star->boot.timeout_s);
        else
            snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": rank %d has left: %s", star->number,
                     (int)r, why);
        return late ? TESS_ERR_TIMEOUT : TESS_ERR_COMM;
    }
    if (frame.magic != BOOT_PART || frame.number != star->number || frame.bytes != bytes) {
        snprintf(text, BOOT_TEXT,
                 "exchange %" PRIu64 " of %zu bytes at rank 0: rank %d brings %" PRIu64
                 " bytes as its number %" PRIu64 "; run the same build and options everywhere",
                 star->number, bytes, (int)r, frame.bytes, frame.number);
        return TESS_ERR_COMM;
    }
    if (!tess__boot_receive(star->fd[r], blob, bytes, limit_s, why, sizeof(why))) {
        snprintf(text, BOOT_TEXT, "exchange %" PRIu64 ": only a part came from rank %d: %s",
                 star->number, (int)r, why);
        return TESS_ERR_COMM;
    }
    return TESS_OK;
}

static enum tess_status star_gather_root(struct boot_star *star, const void *mine, size_t bytes,
                                         void *all, double limit_s)
{
    char text[BOOT_TEXT], why[BOOT_WHY_BYTES];
    memmove(all, mine, bytes);
    for (int32_t r = 1; r < star->fd_count; r++) {
        enum tess_status status =
            star_take(star, r, bytes, (char *)all + (size_t)r * bytes, limit_s, text);
        if (status != TESS_OK) {
            star_notify(star, text);
            TESS_FAIL(status, "%s", text);
        }
    }
    limit_s += BOOT_GRACE_S;
    for (int32_t r = 1; r < star->fd_count; r++)
        if (!star_send(star, r, BOOT_WHOLE, all, bytes * (size_t)star->fd_count, limit_s, why))
            TESS_FAIL(TESS_ERR_COMM, "exchange %" PRIu64 ": rank %d has left: %s", star->number,
                      (int)r, why);
    return TESS_OK;
}

/* ---- the others ------------------------------------------------------------------------------ */

static enum tess_status star_failed(struct boot_star *star, uint64_t bytes, double limit_s)
{
    char text[BOOT_TEXT] = "";
    if (bytes >= sizeof(text) ||
        !tess__boot_receive(star->fd[1], text, (size_t)bytes, limit_s, NULL, 0))
        snprintf(text, sizeof(text), "no reason came");
    TESS_FAIL(TESS_ERR_COMM, "rank 0 gave up: %s", text);
}

static enum tess_status star_gather_member(struct boot_star *star, const void *mine, size_t bytes,
                                           void *all, double limit_s)
{
    const size_t whole_bytes = bytes * (size_t)star->boot.rank_count;
    struct boot_frame whole;
    char why[BOOT_WHY_BYTES];
    int fd = star->fd[1];
    limit_s += BOOT_GRACE_S; /* rank 0 has the list of missing ranks */
    const bool sent = star_send(star, 1, BOOT_PART, mine, bytes, limit_s, why);
    /* Where rank 0 takes nothing any more, it has sent the reason before. */
    const bool answered =
        tess__boot_receive(fd, &whole, sizeof(whole), limit_s, sent ? why : NULL, sizeof(why));
    if (!answered || (!sent && whole.magic != BOOT_FAILED))
        TESS_FAIL(tess_clock_s() >= limit_s ? TESS_ERR_TIMEOUT : TESS_ERR_COMM,
                  "exchange %" PRIu64 ": rank 0 does not answer rank %d: %s", star->number,
                  (int)star->boot.rank, why);
    if (whole.magic == BOOT_FAILED)
        return star_failed(star, whole.bytes, limit_s);
    if (whole.magic != BOOT_WHOLE || whole.number != star->number || whole.bytes != whole_bytes)
        TESS_FAIL(TESS_ERR_COMM,
                  "exchange %" PRIu64 " of %zu bytes: rank 0 answers with %" PRIu64
                  " bytes as its number %" PRIu64,
                  star->number, whole_bytes, whole.bytes, whole.number);
    if (!tess__boot_receive(fd, all, whole_bytes, limit_s, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_COMM, "exchange %" PRIu64 ": only a part came from rank 0: %s",
                  star->number, why);
    return TESS_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

static enum tess_status star_gather(void *context, const void *mine, size_t bytes, void *all)
{
    struct boot_star *star = context;
    const struct tess_boot *boot = &star->boot;
    double limit_s = tess_clock_s() + boot->timeout_s;
    if (bytes > TESS_BOOT_BLOB_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "an exchange of %zu bytes a rank; at most %zu", bytes,
                  TESS_BOOT_BLOB_MAX);
    if (star->failed)
        TESS_FAIL(TESS_ERR_COMM, "an earlier exchange between the ranks failed");
    star->number++;
    enum tess_status status = boot->rank == 0 ? star_gather_root(star, mine, bytes, all, limit_s)
                                              : star_gather_member(star, mine, bytes, all, limit_s);
    star->failed = status != TESS_OK;
    return status;
}

static void star_close(struct boot_star *star)
{
    for (int32_t r = 1; r < star->fd_count; r++)
        if (star->fd[r] >= 0)
            close(star->fd[r]);
    free(star);
}

static enum tess_status star_meet(struct boot_star *star, const struct tess_boot_env *env,
                                  double timeout_s)
{
    if (env->rank_count == 1)
        return TESS_OK;
    if (env->rank == 0)
        TESS_TRY(tess__boot_gather_members(env, timeout_s, star->fd));
    else
        TESS_TRY(tess__boot_join(env, timeout_s, &star->fd[1]));
    /* A rank that reaches rank 0 without leaving the host is on its host, whose name is often that
     * of the loopback there (127.0.1.1): others find it as they find rank 0. Rank 0 itself has the
     * address that it was given, or of several the one that rank 1 has found it at. */
    const bool several = strchr(env->address, ',') != NULL;
    char own[BOOT_TEXT_BYTES];
    if (env->rank == 0 && !several)
        return TESS_OK;
    tess__boot_own_text(star->fd[1], own);
    if (several || !tess__boot_is_loopback(own))
        snprintf(star->address, sizeof(star->address), "%s", own);
    return TESS_OK;
}

enum tess_status tess_boot_open(const struct tess_boot_env *env, double timeout_s,
                                struct tess_boot **boot_out)
{
    if (env->rank_count < 1 || env->rank_count > TESS_BOOT_RANKS_MAX || env->rank < 0 ||
        env->rank >= env->rank_count)
        TESS_FAIL(TESS_ERR_USAGE, "there is no rank %d of %d; at most %d ranks", (int)env->rank,
                  (int)env->rank_count, TESS_BOOT_RANKS_MAX);
    const int32_t fd_count = env->rank == 0 ? env->rank_count : 2;
    struct boot_star *star = calloc(1, sizeof(*star) + (size_t)fd_count * sizeof(star->fd[0]));
    if (star == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to meet %d ranks", (int)env->rank_count);
    star->fd_count = fd_count;
    star->secret = env->secret;
    for (int32_t r = 0; r < fd_count; r++)
        star->fd[r] = -1;
    snprintf(star->address, sizeof(star->address), "%s",
             env->address[0] != '\0' ? env->address : "127.0.0.1");
    enum tess_status status = star_meet(star, env, timeout_s);
    if (status != TESS_OK) {
        star_close(star);
        return status;
    }
    star->boot = (struct tess_boot){.rank = env->rank,
                                    .rank_count = env->rank_count,
                                    .timeout_s = timeout_s,
                                    .address = star->address,
                                    .context = star,
                                    .gather = star_gather};
    *boot_out = &star->boot;
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

int tess_boot_socket(const struct tess_boot *boot, int32_t peer)
{
    const struct boot_star *star = boot->context;
    if (boot->gather != star_gather || peer < 0 || peer >= boot->rank_count || peer == boot->rank)
        return -1;
    if (boot->rank == 0)
        return star->fd[peer];
    return peer == 0 ? star->fd[1] : -1;
}

void tess_boot_secret(const struct tess_boot *boot, const void *word, size_t bytes,
                      struct tess_secret *secret_out)
{
    static const struct tess_secret none; /* on one host: the word has not been on the network */
    const struct boot_star *star = boot->context;
    tess__secret_derive(boot->gather == star_gather ? &star->secret : &none, word, bytes,
                        secret_out);
}

void tess_boot_close(struct tess_boot *boot)
{
    if (boot == NULL)
        return;
    if (boot->gather == star_gather)
        star_close(boot->context);
    else
        free(boot);
}
