/* Launchers of one rank each, connected to that of rank 0; see launch_env.h. */
#include "job/launch_env.h"

#include "comm/boot/boot_socket.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum tess_status tess__peers_find(struct tess_boot_env *env_out, struct tess_started *place_out)
{
    bool found;

    *place_out = (struct tess_started){.local_rank = -1};
    TESS_TRY(tess_boot_from_environment(env_out, &found));
    /* One alone is as if it had been started by hand. */
    if (!found || env_out->rank_count == 1)
        return TESS_OK;
    *place_out = (struct tess_started){.starter = env_out->starter,
                                       .rank = env_out->rank,
                                       .rank_count = env_out->rank_count,
                                       .local_rank = env_out->local_rank,
                                       .host_count = env_out->host_count};
    return TESS_OK;
}

/* The name of its host identifies a rank in messages. */
static enum tess_status peers_meet(struct tess__peers *peers)
{
    char host[TESS__PEER_HOST_BYTES] = "";

    TESS_TRY(tess_boot_find(&peers->env, peers->timeout_s));
    TESS_TRY(tess_boot_open(&peers->env, peers->timeout_s, &peers->boot));
    if (gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "a host without a name");
    return peers->boot->gather(peers->boot->context, host, sizeof(host), peers->host);
}

static void peers_find_links(struct tess__peers *peers)
{
    struct tess_boot_link link[TESS_BOOT_LINKS_MAX];

    peers->link_count = tess_boot_links(peers->boot, link);
    for (int32_t i = 0; i < peers->link_count; i++) {
        peers->link[i] =
            (struct tess__link){.fd = link[i].fd, .rank = link[i].rank, .count = link[i].count};
        tess__boot_keep_alive(link[i].fd, peers->timeout_s);
    }
}

static void peers_free(struct tess__peers *peers)
{
    tess_boot_close(peers->boot);
    free(peers->host);
    free(peers->spare);
    free(peers);
}

enum tess_status tess__peers_open(const struct tess_boot_env *env, double timeout_s,
                                  struct tess__peers **peers_out)
{
    const size_t count = (size_t)env->rank_count;
    struct tess__peers *peers = calloc(1, sizeof(*peers));
    enum tess_status status = TESS_OK;

    if (peers == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the launchers of %zu ranks", count);
    peers->env = *env;
    peers->timeout_s = timeout_s;
    peers->host = calloc(count, sizeof(*peers->host));
    peers->spare = calloc(count, sizeof(*peers->spare));
    if (peers->host == NULL || peers->spare == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the names of %zu hosts", count);
    if (status == TESS_OK)
        status = peers_meet(peers);
    if (status != TESS_OK) {
        peers_free(peers);
        return status;
    }
    peers_find_links(peers);
    *peers_out = peers;
    return TESS_OK;
}

/* The one towards rank 0, NULL on rank 0; and the first away from it. */
static struct tess__link *peers_up(struct tess__peers *peers)
{
    return peers->env.rank == 0 || peers->link_count == 0 ? NULL : &peers->link[0];
}

static struct tess__link *peers_down(struct tess__peers *peers)
{
    return &peers->link[peers->env.rank != 0];
}

/* A connection whose buffer is full is one that nobody reads: nothing waits for it. */
static void peers_send_last(const struct tess__link *link, const struct tess__message *message)
{
    if (link->fd >= 0)
        (void)!send(link->fd, message, sizeof(*message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Why all are to stop, to those away from rank 0. */
static void peers_stop(struct tess__peers *peers, const struct tess__message *message)
{
    for (struct tess__link *link = peers_down(peers); link < peers->link + peers->link_count;
         link++) {
        if (!link->stopped)
            peers_send_last(link, message);
        link->stopped = true;
    }
}

void tess__peers_leave(struct tess__peers *peers, const struct tess__ended *why)
{
    struct tess__message message = {.rank = peers->env.rank, .kind = TESS__MESSAGE_STOP};
    const struct tess__link *up = peers_up(peers);

    if (why != NULL && !peers->left) {
        memcpy(message.payload, why, sizeof(*why));
        peers_stop(peers, &message);
        message.kind = TESS__MESSAGE_ENDED;
        if (up != NULL && !peers->ended)
            peers_send_last(up, &message);
    }
    /* The rank's process has copies of these descriptors: closing would not end them. */
    for (int32_t i = 0; i < peers->link_count; i++)
        if (peers->link[i].fd >= 0)
            (void)shutdown(peers->link[i].fd, SHUT_RDWR);
    peers->left = true;
}

void tess__peers_close(struct tess__peers *peers)
{
    if (peers == NULL)
        return;
    tess__peers_leave(peers, NULL);
    tess_boot_leave(&peers->env);
    peers_free(peers);
}

void tess__peers_renumber(struct tess__peers *peers, const int32_t *rank_of)
{
    char(*before)[TESS__PEER_HOST_BYTES] = peers->host;

    peers->host = peers->spare;
    peers->spare = before;
    for (int32_t p = 0; p < peers->env.rank_count; p++)
        memcpy(peers->host[rank_of[p]], before[p], sizeof(before[p]));
    for (int32_t i = 0; i < peers->link_count; i++) /* nothing has come through them so far */
        peers->link[i].rank = rank_of[peers->link[i].rank];
    peers->env.rank = rank_of[peers->env.rank];
}

/* Towards rank 0. */
static enum tess_status peers_pass(struct tess__peers *peers, const struct tess__message *message)
{
    const char *from = (const char *)message;
    size_t left = sizeof(*message);
    struct pollfd watch = {.fd = peers->link[0].fd, .events = POLLOUT};

    while (left > 0) {
        ssize_t sent = watch.fd >= 0 ? send(watch.fd, from, left, MSG_NOSIGNAL) : -1;

        if (sent > 0) {
            from += sent;
            left -= (size_t)sent;
        } else if (watch.fd < 0 || (errno != EAGAIN && errno != EINTR)) {
            peers->ended = false; /* the way has gone too early: tess__peers_read finds why */
            return TESS_OK;
        } else if (poll(&watch, 1, (int)(peers->timeout_s * 1e3)) == 0) {
            TESS_FAIL(TESS_ERR_TIMEOUT, "rank %d has taken nothing for %g s",
                      (int)peers->link[0].rank, peers->timeout_s);
        }
    }
    return TESS_OK;
}

enum tess_status tess__peers_send(struct tess__peers *peers, const struct tess__message *message)
{
    if (peers_up(peers) == NULL)
        return TESS_OK;
    /* Its own last word: those before may go from then on. */
    peers->ended = message->kind == TESS__MESSAGE_ENDED;
    return peers_pass(peers, message);
}

int tess__peers_watch(const struct tess__peers *peers, struct pollfd watch[TESS_BOOT_LINKS_MAX])
{
    int count = 0;

    for (int32_t i = 0; i < peers->link_count; i++)
        if (peers->link[i].fd >= 0)
            watch[count++] = (struct pollfd){.fd = peers->link[i].fd, .events = POLLIN};
    return count;
}

static enum tess_status peers_fail_gone(const struct tess__peers *peers, int32_t rank)
{
    TESS_FAIL(TESS_ERR_COMM, "rank %d has gone (host %s): see its log there", (int)rank,
              peers->host[rank]);
}

/* From a rank behind this one. What cannot be from there is dropped. */
static enum tess_status peers_take_up(struct tess__peers *peers, struct tess__link *link,
                                      void *context,
                                      void (*take)(void *context,
                                                   const struct tess__message *message))
{
    const struct tess__message *message = &link->message;

    if (message->rank < 1 || message->rank >= peers->env.rank_count ||
        message->kind < TESS__MESSAGE_GONE || message->kind == TESS__MESSAGE_STOP ||
        (link->count == 1 && message->rank != link->rank))
        return TESS_OK;
    link->ended += message->kind == TESS__MESSAGE_ENDED;
    if (peers->env.rank != 0)
        return peers_pass(peers, message);
    if (message->kind == TESS__MESSAGE_GONE)
        return peers_fail_gone(peers, message->rank);
    take(context, message);
    return TESS_OK;
}

static void peers_take_down(struct tess__peers *peers, struct tess__link *link, void *context,
                            void (*take)(void *context, const struct tess__message *message))
{
    if (link->message.kind != TESS__MESSAGE_STOP)
        return;
    link->stopped = true;
    peers_stop(peers, &link->message);
    take(context, &link->message);
}

/* The launcher at the other end has closed its connection: in order, or it has gone. */
static enum tess_status peers_take_end(struct tess__peers *peers, struct tess__link *link)
{
    struct tess__message gone = {.rank = link->rank, .kind = TESS__MESSAGE_GONE};
    const bool up = link == peers_up(peers);

    link->fd = -1;
    if (up ? peers->ended || link->stopped : link->ended >= link->count)
        return TESS_OK;
    if (up || peers->env.rank == 0)
        return peers_fail_gone(peers, link->rank);
    link->ended = link->count; /* there is nothing to wait for but rank 0's answer to this */
    return peers_pass(peers, &gone);
}

enum tess_status tess__peers_read(struct tess__peers *peers, void *context,
                                  void (*take)(void *context, const struct tess__message *message))
{
    for (struct tess__link *link = peers->link; link < peers->link + peers->link_count; link++)
        while (link->fd >= 0 && !peers->left) { /* what it takes may be the reason to leave */
            ssize_t count = recv(link->fd, (char *)&link->message + link->used,
                                 sizeof(link->message) - link->used, MSG_DONTWAIT);

            if (count < 0 && errno == EAGAIN)
                break;
            if (count <= 0) {
                TESS_TRY(peers_take_end(peers, link));
                break;
            }
            link->used += (size_t)count;
            if (link->used < sizeof(link->message))
                continue;
            link->used = 0;
            if (link == peers_up(peers))
                peers_take_down(peers, link, context, take);
            else
                TESS_TRY(peers_take_up(peers, link, context, take));
        }
    return TESS_OK;
}

bool tess__peers_ended(const struct tess__peers *peers)
{
    for (int32_t i = peers->env.rank != 0; i < peers->link_count; i++)
        if (peers->link[i].ended < peers->link[i].count)
            return false;
    return true;
}
