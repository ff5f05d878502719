/* Connections to the mirror of another host; see mirror.h. */
#include "job/mirror.h"

#include "base/clock.h"
#include "comm/boot/boot.h"
#include "state/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the partner of this host ---------------------------------------------------------------- */

void tess__mirror_text(const struct tess__mirror *mirror, char text[TESS__MIRROR_TEXT])
{
    char secret[TESS_SECRET_TEXT_BYTES];
    tess_secret_text(&mirror->secret, secret);
    snprintf(text, TESS__MIRROR_TEXT, "%d %d %s %s", mirror->port, mirror->attempt, secret,
             mirror->address);
}

void tess__mirror_from_environment(double silent_s, struct tess__mirror *mirror)
{
    const char *text = getenv(TESS_BOOT_MIRROR);
    char secret[TESS_SECRET_TEXT_BYTES];
    *mirror = (struct tess__mirror){.silent_s = silent_s, .fd = -1};
    if (text == NULL ||
        sscanf(text, "%d %d %64[0-9a-f] %63s", &mirror->port, &mirror->attempt, secret,
               mirror->address) != 4 ||
        strlen(secret) != sizeof(secret) - 1 || mirror->port < 1 || mirror->port > 65535) {
        mirror->port = 0;
        return;
    }
    for (int i = 0; i < TESS_SECRET_KEY_BYTES; i++) {
        const char digits[] = {secret[2 * i], secret[2 * i + 1], '\0'};
        mirror->secret.key[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static double mirror_limit(const struct tess__mirror *mirror)
{
    return tess_clock_s() + mirror->silent_s;
}

static bool mirror_connect(struct tess__mirror *mirror, char *why, size_t why_bytes)
{
    struct tess__mirror_hello hello = {.attempt = mirror->attempt};
    unsigned char greeting[TESS_GREETING_BYTES];
    if (mirror->fd >= 0)
        return true;
    memcpy(hello.magic, TESS__MIRROR_MAGIC, sizeof(hello.magic));
    memcpy(greeting, &hello, sizeof(greeting));
    mirror->fd =
        tess__boot_connect(mirror->address, mirror->port, mirror_limit(mirror), why, why_bytes);
    if (mirror->fd < 0)
        return false;
    tess__boot_keep_alive(mirror->fd, 2 * mirror->silent_s);
    return tess__boot_knock(mirror->fd, &mirror->secret, greeting, mirror_limit(mirror), why,
                            why_bytes) == TESS_OK;
}

static bool mirror_ask(struct tess__mirror *mirror, const struct tess__mirror_ask *ask, char *why,
                       size_t why_bytes)
{
    return mirror_connect(mirror, why, why_bytes) &&
           tess__boot_send(mirror->fd, ask, sizeof(*ask), mirror_limit(mirror), why, why_bytes);
}

static bool mirror_answered(struct tess__mirror *mirror, char *why, size_t why_bytes)
{
    int32_t failed;
    if (!tess__boot_receive(mirror->fd, &failed, sizeof(failed), mirror_limit(mirror), why,
                            why_bytes))
        return false;
    if (failed != 0)
        snprintf(why, why_bytes, "it is refused there");
    return failed == 0;
}

/* `why` with the mirror's address before it. */
static bool mirror_end(struct tess__mirror *mirror, bool done, char *why, size_t why_bytes)
{
    char reason[BOOT_WHY_BYTES];
    if (done)
        return true;
    tess__mirror_close(mirror);
    snprintf(reason, sizeof(reason), "%s", why);
    snprintf(why, why_bytes, "%s, port %d: %s", mirror->address, mirror->port, reason);
    return false;
}

bool tess__mirror_push(struct tess__mirror *mirror, const char *run, int64_t step, char *why,
                       size_t why_bytes)
{
    const struct tess__mirror_ask ask = {.verb = TESS__MIRROR_PUSH, .step = step};
    char folder[TESS_CHECKPOINT_PATH];
    why[0] = '\0';
    const bool done =
        tess_checkpoint_path(run, step, false, folder) == TESS_OK &&
        mirror_ask(mirror, &ask, why, why_bytes) &&
        tess__mirror_send_files(mirror->fd, folder, mirror->silent_s, why, why_bytes) &&
        mirror_answered(mirror, why, why_bytes);
    return mirror_end(mirror, done, why, why_bytes);
}

bool tess__mirror_fetch(struct tess__mirror *mirror, int64_t step, bool replica, const char *folder,
                        char *why, size_t why_bytes)
{
    const struct tess__mirror_ask ask = {
        .verb = TESS__MIRROR_FETCH, .replica = replica, .step = step};
    const bool done =
        mirror_ask(mirror, &ask, why, why_bytes) && mirror_answered(mirror, why, why_bytes) &&
        tess__mirror_receive_files(mirror->fd, folder, mirror->silent_s, why, why_bytes);
    return mirror_end(mirror, done, why, why_bytes);
}

void tess__mirror_cut(struct tess__mirror *mirror)
{
    if (mirror->port > 0 && mirror->fd >= 0)
        (void)shutdown(mirror->fd, SHUT_RDWR);
}

void tess__mirror_close(struct tess__mirror *mirror)
{
    if (mirror->port > 0 && mirror->fd >= 0)
        close(mirror->fd);
    mirror->fd = -1;
}
