/*
 * Hosts are connected in a tree, so that none has many connections:
 *
 *     leader --- host 1 --- host 33, 34, ...        by the order in which they come
 *            |-- host 2 --- host 65, ...
 *            ...
 *
 * Those in between pass on what comes: orders to a host by its number, or to all; news with the
 * number of the host that they are of. A host whose way is lost comes to the leader again.
 */
#include "base/clock.h"
#include "run/hosts_room.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- those behind ---------------------------------------------------------------------------- */

static struct relay_child *relay_find(const struct hosts_relay *relay, int32_t number)
{
    for (int32_t c = 0; c < relay->count; c++)
        if (relay->child[c].number == number && relay->child[c].fd >= 0)
            return &relay->child[c];
    return NULL;
}

static void relay_drop(struct hosts_relay *relay, struct relay_child *child)
{
    tess__crew_unwatch(relay->crew, child->fd);
    close(child->fd);
    child->fd = -1;
    for (int32_t n = 0; n < relay->route_room; n++)
        if (relay->route[n] == child->number)
            relay->route[n] = 0;
}

/* False: no memory, or no host has this number. */
static bool relay_learn(struct hosts_relay *relay, int32_t number, int32_t child)
{
    if (number < 1 || number > HOSTS_NUMBER_MAX)
        return false;
    if (number >= relay->route_room) {
        const int32_t room = 2 * number;
        int32_t *grown = realloc(relay->route, (size_t)room * sizeof(*grown));
        if (grown == NULL)
            return false;
        memset(grown + relay->route_room, 0, (size_t)(room - relay->route_room) * sizeof(*grown));
        relay->route = grown;
        relay->route_room = room;
    }
    relay->route[number] = child;
    return true;
}

/* A place for one more; NULL: no memory. */
static struct relay_child *relay_add(struct hosts_relay *relay)
{
    for (int32_t c = 0; c < relay->count; c++)
        if (relay->child[c].fd < 0)
            return &relay->child[c];
    if (relay->count == relay->room) {
        const int32_t room = 2 * relay->room + 4;
        struct relay_child *grown = realloc(relay->child, (size_t)room * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        relay->child = grown;
        relay->room = room;
    }
    return &relay->child[relay->count++];
}

/* A greeting has come; see boot_door.h. */
static bool relay_greet(void *context, int fd, const unsigned char *bytes)
{
    struct hosts_relay *relay = context;
    struct hosts_hello hello;
    memcpy(&hello, bytes, sizeof(hello));
    if (memcmp(hello.magic, HOSTS_VIA, sizeof(hello.magic)) != 0)
        return false;
    struct relay_child *child = relay_find(relay, hello.number);
    if (child != NULL) /* it did not wait for this one's answer */
        relay_drop(relay, child);
    child = relay_add(relay);
    if (child == NULL)
        return false;
    *child = (struct relay_child){.fd = fd, .number = hello.number};
    if (!relay_learn(relay, hello.number, hello.number)) {
        child->fd = -1;
        return false;
    }
    tess__boot_keep_alive(fd, relay->timeout_s);
    tess__crew_watch(relay->crew, fd);
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */

bool tess__relay_open(struct hosts_relay *relay, struct hosts_crew *crew,
                      const struct tess__hosts *hosts, int fd)
{
    char own[BOOT_TEXT_BYTES];
    *relay = (struct hosts_relay){.crew = crew, .timeout_s = hosts->timeout_s};
    relay->door =
        (struct boot_door){.greet = relay_greet, .context = relay, .secret = &hosts->secret};
    tess__boot_own_text(fd, own);
    errno = tess__boot_try_listen(tess__boot_is_loopback(own) ? hosts->address : own, 0,
                                  &relay->door.listener);
    return errno == 0;
}

void tess__relay_close(struct hosts_relay *relay)
{
    for (int32_t c = 0; c < relay->count; c++)
        if (relay->child[c].fd >= 0)
            relay_drop(relay, &relay->child[c]);
    for (int i = 0; i < relay->door.listener.count; i++)
        tess__crew_unwatch(relay->crew, relay->door.listener.fd[i]);
    tess__boot_door_close(&relay->door);
    free(relay->child);
    free(relay->route);
    *relay = (struct hosts_relay){.count = 0};
}

int32_t tess__relay_port(const struct hosts_relay *relay)
{
    return relay->door.listener.count > 0 ? tess__boot_port(&relay->door.listener) : 0;
}

/* ---- passing on ------------------------------------------------------------------------------ */

/* One that takes nothing any more is found by the next read. */
static void relay_send(const struct relay_child *child, const struct hosts_order *order,
                       const void *sources, size_t bytes)
{
    const double limit_s = tess_clock_s() + HOSTS_SEND_S;
    if (child->fd < 0)
        return;
    if (!tess__boot_send(child->fd, order, sizeof(*order), limit_s, NULL, 0) ||
        !tess__boot_send(child->fd, sources, bytes, limit_s, NULL, 0))
        (void)shutdown(child->fd, SHUT_RDWR);
}

void tess__relay_pass(struct hosts_relay *relay, const struct hosts_order *order,
                      const void *sources, size_t bytes)
{
    const int32_t to = order->to;
    for (int32_t c = 0; c < relay->count; c++)
        if (to == HOSTS_ALL ||
            (to > 0 && to < relay->route_room && relay->route[to] == relay->child[c].number))
            relay_send(&relay->child[c], order, sources, bytes);
}

static void relay_report(int up, const struct hosts_news *news)
{
    (void)tess__boot_send(up, news, sizeof(*news), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
}

static void relay_read(struct hosts_relay *relay, struct relay_child *child, int up, int32_t number)
{
    struct hosts_news news;
    if (child->fd < 0 || !tess__crew_is_ready(relay->crew, child->fd))
        return;
    if (tess__boot_receive(child->fd, &news, sizeof(news), tess_clock_s() + HOSTS_SEND_S, NULL,
                           0)) {
        if (news.kind == HOSTS_BYE)
            child->bye = true;
        else if (relay_learn(relay, news.from, child->number))
            relay_report(up, &news);
        return;
    }
    news = (struct hosts_news){.kind = HOSTS_LOST, .from = number, .about = child->number};
    if (!child->bye)
        relay_report(up, &news);
    relay_drop(relay, child);
}

void tess__relay_look(struct hosts_relay *relay, int up, int32_t number)
{
    bool calls = relay->door.pending_count > 0;
    for (int32_t c = 0; c < relay->count; c++)
        relay_read(relay, &relay->child[c], up, number);
    for (int i = 0; i < relay->door.listener.count; i++)
        calls = calls || tess__crew_is_ready(relay->crew, relay->door.listener.fd[i]);
    if (calls)
        tess__boot_door_take(&relay->door);
}

void tess__relay_pause(struct hosts_relay *relay, bool pauses)
{
    void (*const set)(struct hosts_crew *, int) = pauses ? tess__crew_unwatch : tess__crew_watch;
    for (int i = 0; i < relay->door.listener.count; i++)
        set(relay->crew, relay->door.listener.fd[i]);
    for (int32_t c = 0; c < relay->count; c++)
        if (relay->child[c].fd >= 0)
            set(relay->crew, relay->child[c].fd);
}

void tess__relay_end(struct hosts_relay *relay, int up, int32_t number)
{
    const double limit_s = tess_clock_s() + HOSTS_END_S;
    bool left = true;
    while (left && tess_clock_s() < limit_s) {
        left = false;
        for (int32_t c = 0; c < relay->count; c++)
            left = left || relay->child[c].fd >= 0;
        if (!left)
            return;
        (void)tess__crew_wait(relay->crew, 100);
        tess__relay_look(relay, up, number);
    }
}
