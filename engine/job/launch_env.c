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
                                       .rank_cores = env_out->rank_cores,
                                       .host_count = env_out->host_count};
    return TESS_OK;
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

/* Rank 0 has the names of all ranks' hosts. */
static enum tess_status peers_take_hosts(struct tess__peers *peers,
                                         const struct tess_boot_parts *parts)
{
    const size_t count = (size_t)peers->env.rank_count;

    peers->host = calloc(count, sizeof(*peers->host));
    if (peers->host == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of %zu hosts", count);
    for (size_t r = 0; r < count; r++) {
        const size_t bytes = parts->first[r + 1] - parts->first[r];

        memcpy(peers->host[r], parts->bytes + parts->first[r],
               bytes < sizeof(*peers->host) ? bytes : sizeof(*peers->host) - 1);
    }
    return TESS_OK;
}

/* The name of its host identifies a rank in messages: rank 0 has all names, others those of their
 * neighbours. */
static enum tess_status peers_name_hosts(struct tess__peers *peers)
{
    char near[TESS_BOOT_LINKS_MAX][TESS__PEER_HOST_BYTES];
    char *own = peers->own_host;
    struct tess_boot_parts parts;

    if (gethostname(own, sizeof(peers->own_host) - 1) != 0)
        snprintf(own, sizeof(peers->own_host), "a host without a name");
    TESS_TRY(tess_boot_collect(peers->post, own, strlen(own), &parts));
    enum tess_status status = TESS_OK;
    if (peers->env.rank == 0)
        status = peers_take_hosts(peers, &parts);
    tess_boot_parts_close(&parts);
    if (status == TESS_OK)
        status = tess_boot_swap(peers->post, own, sizeof(near[0]), near);
    for (int32_t i = 0; i < peers->link_count && status == TESS_OK; i++) {
        memcpy(peers->link[i].host, near[i], sizeof(near[i]));
        peers->link[i].host[sizeof(near[i]) - 1] = '\0';
    }
    return status;
}

static enum tess_status peers_meet(struct tess__peers *peers)
{
    TESS_TRY(tess_boot_find(&peers->env, peers->timeout_s));
    TESS_TRY(tess_boot_open(&peers->env, peers->timeout_s, &peers->boot));
    TESS_TRY(tess_boot_post_open(peers->boot, &peers->post));
    peers_find_links(peers);
    return peers_name_hosts(peers);
}

static void peers_free(struct tess__peers *peers)
{
    tess_boot_post_close(peers->post);
    tess_boot_close(peers->boot);
    free(peers->host);
    free(peers);
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
        peers_free(peers);
        return status;
    }
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

enum tess_status tess__peers_renumber(struct tess__peers *peers, int32_t rank,
                                      const int32_t *rank_of)
{
    const int32_t count = peers->env.rank_count;
    int32_t near[TESS_BOOT_LINKS_MAX];

    TESS_TRY(tess_boot_swap(peers->post, &rank, sizeof(rank), near));
    for (int32_t i = 0; i < peers->link_count; i++) {
        if (near[i] < 0 || near[i] >= count)
            TESS_FAIL(TESS_ERR_COMM, "rank %d has become rank %d of %d", (int)peers->link[i].rank,
                      (int)near[i], (int)count);
        peers->link[i].rank = near[i]; /* no message has come through it so far */
    }
    peers->env.rank = rank;
    if (rank != 0)
        return TESS_OK;
    char(*before)[TESS__PEER_HOST_BYTES] = peers->host;
    peers->host = calloc((size_t)count, sizeof(*peers->host));
    for (int32_t p = 0; p < count && peers->host != NULL; p++)
        memcpy(peers->host[rank_of[p]], before[p], sizeof(before[p]));
    free(before);
    if (peers->host == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of %d hosts", (int)count);
    return TESS_OK;
}

const char *tess__peers_host(const struct tess__peers *peers, int32_t rank)
{
    if (peers->host != NULL)
        return peers->host[rank];
    if (rank == peers->env.rank)
        return peers->own_host;
    for (int32_t i = 0; i < peers->link_count; i++)
        if (peers->link[i].rank == rank)
            return peers->link[i].host;
    return "another host";
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
              tess__peers_host(peers, rank));
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
