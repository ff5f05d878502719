/* Connections that have not shown yet whose they are; see boot_door.h. */
#include "comm/boot/boot_door.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DOOR_HELLO_S 1.0 /* after which a connection without a greeting is closed */
#define DOOR_LEAST   16  /* connections that there is room for at first; 2^n times that is most */
#define DOOR_WAIT_MS 100 /* callers and silent connections have limits of their own */

static void door_wait(const struct boot_door *door)
{
    struct pollfd watch[BOOT_LISTEN_MAX + BOOT_PENDING];
    nfds_t count = 0;
    for (int i = 0; i < door->listener.count; i++)
        watch[count++] = (struct pollfd){.fd = door->listener.fd[i], .events = POLLIN};
    for (int i = 0; i < door->pending_count; i++)
        watch[count++] = (struct pollfd){.fd = door->pending[i].fd, .events = POLLIN};
    (void)poll(watch, count, DOOR_WAIT_MS);
}

/* ---- taking connections ---------------------------------------------------------------------- */

/* The oldest has had the longest time to greet. */
static void door_drop_oldest(struct boot_door *door)
{
    close(door->pending[0].fd);
    door->strangers++;
    door->pending_count--;
    memmove(door->pending, door->pending + 1, (size_t)door->pending_count * sizeof(*door->pending));
}

/* -1: none. Where no descriptor is left, a silent connection gives its own. */
static int door_accept(struct boot_door *door)
{
    int fd = tess__boot_accept(&door->listener);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
        return fd;
    if (door->pending_count > 0) {
        door_drop_oldest(door);
        return tess__boot_accept(&door->listener);
    }
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* poll() would return at once */
    return -1;
}

/* Room for one more, if there is memory; some at least. */
static bool door_grow(struct boot_door *door)
{
    const int room = door->pending_room == 0 ? DOOR_LEAST : 2 * door->pending_room;
    if (door->pending_count < door->pending_room || door->pending_room == BOOT_PENDING)
        return true;
    struct boot_pending *grown = realloc(door->pending, (size_t)room * sizeof(*grown));
    if (grown == NULL)
        return door->pending_room > 0;
    door->pending = grown;
    door->pending_room = room;
    return true;
}

static void door_add(struct boot_door *door, int fd)
{
    struct boot_pending one = {.fd = fd, .since_s = tess_clock_s()};
    if (door->secret != NULL &&
        (!tess_secret_challenge(&one.challenge) ||
         send(fd, &one.challenge, sizeof(one.challenge), MSG_NOSIGNAL | MSG_DONTWAIT) !=
             (ssize_t)sizeof(one.challenge))) {
        close(fd);
        return;
    }
    if (door->pending_count == door->pending_room)
        door_drop_oldest(door);
    door->pending[door->pending_count++] = one;
}

/* ---- reading greetings ----------------------------------------------------------------------- */

/* A whole greeting has come. One that does not have the secret is sent zeros in place of a proof:
 * so it can report what is wrong. */
static bool door_admit(struct boot_door *door, struct boot_pending *pending)
{
    unsigned char proof[TESS_SECRET_PROOF_BYTES] = {0};
    if (door->secret == NULL)
        return door->greet(door->context, pending->fd, pending->hello);
    const bool proved =
        tess_secret_check(door->secret, &pending->challenge, &pending->answer, proof);
    if (!proved)
        memset(proof, 0, sizeof(proof));
    if (send(pending->fd, proof, sizeof(proof), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(proof))
        return false;
    door->unproved += !proved;
    return proved && door->greet(door->context, pending->fd, pending->answer.greeting);
}

/* Read what has come. False: this connection is no longer pending. */
static bool door_read(struct boot_door *door, struct boot_pending *pending)
{
    const size_t wanted = door->secret != NULL ? sizeof(pending->answer) : door->hello_bytes;
    const ssize_t got =
        recv(pending->fd, pending->hello + pending->got, wanted - pending->got, MSG_DONTWAIT);
    const bool later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (got > 0)
        pending->got += (size_t)got;
    const bool whole = pending->got == wanted;
    if (whole && door_admit(door, pending))
        return false;
    if ((got > 0 || later) && !whole && tess_clock_s() - pending->since_s <= DOOR_HELLO_S)
        return true;
    door->strangers++;
    close(pending->fd);
    return false;
}

/* ---- both ------------------------------------------------------------------------------------ */

void tess__boot_door_take(struct boot_door *door)
{
    int kept = 0, fd = -1;
    for (int i = 0; i < BOOT_PENDING && door_grow(door) && (fd = door_accept(door)) >= 0; i++)
        door_add(door, fd);
    const int count = door->pending_count;
    for (int i = 0; i < count; i++)
        if (door_read(door, &door->pending[i]))
            door->pending[kept++] = door->pending[i];
    door->pending_count = kept;
}

void tess__boot_door_look(struct boot_door *door)
{
    door_wait(door);
    tess__boot_door_take(door);
}

void tess__boot_door_others(const struct boot_door *door, char *text, size_t bytes)
{
    text[0] = '\0';
    if (door->unproved > 0)
        snprintf(text, bytes, "; turned away: %d connection%s without this job's secret (%s)",
                 door->unproved, door->unproved > 1 ? "s" : "", TESS_SECRET);
    else if (door->strangers > 0)
        snprintf(text, bytes, "; %d connection%s of others %s turned away", door->strangers,
                 door->strangers > 1 ? "s" : "", door->strangers > 1 ? "were" : "was");
}

void tess__boot_door_close(struct boot_door *door)
{
    for (int i = 0; i < door->pending_count; i++)
        close(door->pending[i].fd);
    free(door->pending);
    door->pending = NULL;
    door->pending_count = door->pending_room = 0;
    tess__boot_unlisten(&door->listener);
}

enum tess_status tess__boot_knock(int fd, const struct tess_secret *secret,
                                  const unsigned char greeting[TESS_GREETING_BYTES], double limit_s,
                                  char *why, size_t why_bytes)
{
    struct tess_secret_challenge challenge;
    struct tess_secret_answer answer;
    unsigned char proof[TESS_SECRET_PROOF_BYTES];
    if (!tess__boot_receive(fd, &challenge, sizeof(challenge), limit_s, NULL, 0)) {
        snprintf(why, why_bytes, "no greeting came: another program may have that port");
        return TESS_ERR_COMM;
    }
    if (!tess_secret_prove(secret, &challenge, greeting, &answer)) {
        snprintf(why, why_bytes, "what listens there is not of this program");
        return TESS_ERR_DATA;
    }
    if (!tess__boot_send(fd, &answer, sizeof(answer), limit_s, why, why_bytes) ||
        !tess__boot_receive(fd, proof, sizeof(proof), limit_s, why, why_bytes))
        return TESS_ERR_COMM;
    if (tess_secret_confirm(secret, &challenge, &answer, proof))
        return TESS_OK;
    snprintf(why, why_bytes, "what listens there does not have this job's secret (%s)",
             TESS_SECRET);
    return TESS_ERR_USAGE;
}
