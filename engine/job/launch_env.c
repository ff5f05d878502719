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
    if (env_out->rank_count > TESS_WORLD_RANKS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%s has started %d ranks: there may be up to %d",
                  env_out->starter, (int)env_out->rank_count, TESS_WORLD_RANKS_MAX);
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

enum tess_status tess__peers_open(const struct tess_boot_env *env, double timeout_s,
                                  struct tess__peers **peers_out)
{
    struct tess__peers *peers = calloc(1, sizeof(*peers));

    if (peers == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the launchers of %d ranks", (int)env->rank_count);
    peers->env = *env;
    peers->timeout_s = timeout_s;
    const enum tess_status status = peers_meet(peers);
    if (status != TESS_OK) {
        tess_boot_close(peers->boot);
        free(peers);
        return status;
    }
    for (int32_t r = 0; r < TESS_WORLD_RANKS_MAX; r++)
        if ((peers->peer[r].fd = tess_boot_socket(peers->boot, r)) >= 0)
            tess__boot_keep_alive(peers->peer[r].fd, timeout_s);
    *peers_out = peers;
    return TESS_OK;
}

/* A connection whose buffer is full is one that nobody reads: nothing waits for it. */
static void peers_send_last(const struct tess__peers *peers, int32_t r,
                            const struct tess__ended *why)
{
    struct tess__message message = {.rank = peers->env.rank};
    message.kind = peers->env.rank == 0 ? TESS__MESSAGE_STOP : TESS__MESSAGE_ENDED;
    if (peers->env.rank != 0 && peers->peer[0].ended)
        return;
    memcpy(message.payload, why, sizeof(*why));
    (void)!send(peers->peer[r].fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void tess__peers_leave(struct tess__peers *peers, const struct tess__ended *why)
{
    /* The rank's process has copies of these descriptors: closing would not end them. */
    for (int32_t r = 0; r < TESS_WORLD_RANKS_MAX; r++) {
        if (peers->peer[r].fd < 0)
            continue;
        if (why != NULL && !peers->left)
            peers_send_last(peers, r, why);
        (void)shutdown(peers->peer[r].fd, SHUT_RDWR);
    }
    peers->left = true;
}

void tess__peers_close(struct tess__peers *peers)
{
    if (peers == NULL)
        return;
    tess__peers_leave(peers, NULL);
    tess_boot_close(peers->boot);
    tess_boot_leave(&peers->env);
    free(peers);
}

void tess__peers_renumber(struct tess__peers *peers, const int32_t *rank_of)
{
    char host[TESS_WORLD_RANKS_MAX][TESS__PEER_HOST_BYTES];
    int fd[TESS_WORLD_RANKS_MAX];

    memcpy(host, peers->host, sizeof(host));
    for (int32_t r = 0; r < TESS_WORLD_RANKS_MAX; r++)
        fd[r] = peers->peer[r].fd;
    for (int32_t p = 0; p < peers->env.rank_count; p++) {
        memcpy(peers->host[rank_of[p]], host[p], sizeof(host[p]));
        /* Only rank 0 is connected with others than rank 0; nothing has come from them so far. */
        if (peers->env.rank == 0)
            peers->peer[rank_of[p]].fd = fd[p];
    }
    peers->env.rank = rank_of[peers->env.rank];
}

enum tess_status tess__peers_send(struct tess__peers *peers, const struct tess__message *message)
{
    const char *from = (const char *)message;
    size_t left = sizeof(*message);
    struct pollfd watch = {.fd = peers->peer[0].fd, .events = POLLOUT};

    if (peers->env.rank == 0)
        return TESS_OK;
    /* Its own last word: rank 0 may go from then on. */
    peers->peer[0].ended = message->kind == TESS__MESSAGE_ENDED;
    while (left > 0) {
        ssize_t sent = watch.fd >= 0 ? send(watch.fd, from, left, MSG_NOSIGNAL) : -1;

        if (sent > 0) {
            from += sent;
            left -= (size_t)sent;
        } else if (watch.fd < 0 || (errno != EAGAIN && errno != EINTR)) {
            peers->peer[0].ended = false; /* it has gone too early: tess__peers_read finds why */
            return TESS_OK;
        } else if (poll(&watch, 1, (int)(peers->timeout_s * 1e3)) == 0) {
            TESS_FAIL(TESS_ERR_TIMEOUT, "rank 0 has taken nothing for %g s", peers->timeout_s);
        }
    }
    return TESS_OK;
}

int tess__peers_watch(const struct tess__peers *peers, struct pollfd watch[TESS_WORLD_RANKS_MAX])
{
    int count = 0;

    for (int32_t r = 0; r < TESS_WORLD_RANKS_MAX; r++)
        if (peers->peer[r].fd >= 0)
            watch[count++] = (struct pollfd){.fd = peers->peer[r].fd, .events = POLLIN};
    return count;
}

/* Sockets bring bytes, not messages; what names another rank is dropped. */
static void peers_take(struct tess__peers *peers, int32_t r, void *context,
                       void (*take)(void *context, const struct tess__message *message))
{
    struct tess__peer *peer = &peers->peer[r];

    peer->used = 0;
    if (peer->message.rank != r ||
        (peers->env.rank != 0 && peer->message.kind != TESS__MESSAGE_STOP))
        return;
    peer->ended = peer->ended || peer->message.kind == TESS__MESSAGE_ENDED ||
                  peer->message.kind == TESS__MESSAGE_STOP;
    take(context, &peer->message);
}

enum tess_status tess__peers_read(struct tess__peers *peers, void *context,
                                  void (*take)(void *context, const struct tess__message *message))
{
    for (int32_t r = 0; r < TESS_WORLD_RANKS_MAX; r++) {
        struct tess__peer *peer = &peers->peer[r];

        while (peer->fd >= 0 && !peers->left) { /* what it takes may be the reason to leave */
            ssize_t count = recv(peer->fd, (char *)&peer->message + peer->used,
                                 sizeof(peer->message) - peer->used, MSG_DONTWAIT);

            if (count < 0 && errno == EAGAIN)
                break;
            if (count <= 0) {
                peer->fd = -1;
                if (!peer->ended)
                    TESS_FAIL(TESS_ERR_COMM, "rank %d has gone (host %s): see its log there",
                              (int)r, peers->host[r]);
                break;
            }
            peer->used += (size_t)count;
            if (peer->used == sizeof(peer->message))
                peers_take(peers, r, context, take);
        }
    }
    return TESS_OK;
}

bool tess__peers_ended(const struct tess__peers *peers)
{
    for (int32_t r = 1; r < peers->env.rank_count && peers->env.rank == 0; r++)
        if (!peers->peer[r].ended)
            return false;
    return true;
}
