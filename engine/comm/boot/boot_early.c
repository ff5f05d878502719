/*
 * A process that fails before it meets the others: they would wait for it. It sends why to rank
 * 0, which sends it to all (boot_meet.c). Where several fail for the same reason (an option that is
 * wrong in the command that all were started with), one of them prints it.
 */
#include "base/log_sink.h"
#include "comm/boot/boot_meet.h"
#include "tessera/log.h"

#include <stdio.h>
#include <string.h>

#define EARLY_TEXT 4096

/* Of this thread, from tess_boot_begin on. */
static _Thread_local struct early {
    const struct tess_boot_env *env;     /* NULL: it has not begun, or has met the others */
    const struct tess__log_sink *former; /* where its messages went before */
    struct tess__log_sink sink;
    bool keeps;            /* its errors are kept */
    char text[EARLY_TEXT]; /* these, each ends in '\n' */
    size_t used;
} early;

/* Do several hosts write to one terminal, or several ranks of this host, and this is not the first
 * of them? Then that one has printed what all have to report. */
static bool early_shares_output(const struct tess_boot_env *env)
{
    return env->rank > 0 && (env->local_rank > 0 || strcmp(env->starter, "mpirun") == 0 ||
                             strcmp(env->starter, "Slurm") == 0);
}

static void early_line(void *context, enum tess_log_level level, const char *text)
{
    const size_t length = strlen(text);
    (void)context;
    if (level == TESS_LOG_ERROR && early.used + length + 1 < EARLY_TEXT) {
        memcpy(early.text + early.used, text, length);
        early.used += length;
        early.text[early.used++] = '\n';
        return;
    }
    (void)tess__log_redirect(early.former);
    tess_log(level, "%s", text);
    (void)tess__log_redirect(&early.sink);
}

/* Messages go where they went before. `shows`: those that were kept, too. */
static void early_stop(bool shows)
{
    if (early.keeps)
        (void)tess__log_redirect(early.former);
    for (size_t at = 0, length; at < early.used && shows; at += length + 1) {
        length = strcspn(early.text + at, "\n");
        tess_log(TESS_LOG_ERROR, "%.*s", (int)length, early.text + at);
    }
    early = (struct early){.env = NULL};
}

static void early_meets(void)
{
    early_stop(true);
}

static enum tess_status early_fails(const struct tess_boot_env *env, const char *reason)
{
    const struct tess__log_sink *former = NULL;
    const bool shares = early_shares_output(env);
    if (shares)
        former = tess__log_redirect(&tess__log_silence);
    tess_fail(TESS_ERR_COMM, "%s", reason);
    if (shares)
        (void)tess__log_redirect(former);
    return TESS_ERR_COMM;
}

void tess_boot_begin(const struct tess_boot_env *env)
{
    early_stop(true);
    if (env->rank_count < 2)
        return;
    tess__boot_early = (struct boot_early_calls){early_meets, early_fails};
    early.env = env;
    early.keeps = early_shares_output(env);
    early.sink.line = early_line;
    if (early.keeps)
        early.former = tess__log_redirect(&early.sink);
}

void tess_boot_end(enum tess_status status)
{
    char answer[BOOT_FAILURE_TEXT] = "", own[EARLY_TEXT];
    if (early.env == NULL)
        return;
    snprintf(own, sizeof(own), "%s", tess_log_last_error());
    if (status != TESS_OK && status != TESS_ERR_INTERRUPTED) {
        const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
        tess__boot_meet_failed(early.env, own, answer);
        tess_fail(status, "%s", own); /* still the latest error */
        (void)tess__log_redirect(former);
    }
    early_stop(answer[0] == '\0' || strncmp(own, answer, BOOT_FAILURE_TEXT - 1) != 0);
}
