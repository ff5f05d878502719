/* The leader's table of hosts, and the tree by which it reaches them (hosts_relay.c). */
#include "base/clock.h"
#include "run/hosts_leader.h"
#include "tessera/check.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the table ------------------------------------------------------------------------------- */

/* NULL: there is none, or it has gone. */
static struct host *table_find(const struct leader *leader, int32_t number)
{
    int32_t low = 0, high = leader->count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (leader->host[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < leader->count && leader->host[low].number == number && !leader->host[low].gone
               ? &leader->host[low]
               : NULL;
}

int32_t tess__leader_joined(const struct leader *leader)
{
    int32_t count = 0;
    for (int32_t h = 0; h < leader->count; h++)
        count += leader->host[h].slots > 0;
    return count;
}

int32_t tess__leader_slots(const struct leader *leader)
{
    int32_t slots = 0;
    for (int32_t h = 0; h < leader->count; h++)
        slots += leader->host[h].slots;
    return slots;
}

bool tess__leader_waits(const struct leader *leader)
{
    for (int32_t h = 1; h < leader->count; h++)
        if (leader->host[h].limit_s > 0 && leader->host[h].slots > 0 && !leader->host[h].gone)
            return true;
    return false;
}

/* Those behind a host have lost their way, and come again. */
static void table_cut(struct leader *leader, int32_t number)
{
    for (int32_t h = 1; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        if (host->up != number || host->gone)
            continue;
        host->up = -1;
        host->limit_s = tess_clock_s() + HOSTS_ORPHAN_S;
    }
}

static void table_hang_up(struct leader *leader, struct host *host)
{
    if (host->fd < 0)
        return;
    tess__crew_unwatch(leader->crew, host->fd);
    close(host->fd);
    host->fd = -1;
}

/* There is room for another one where it was. */
static void table_leave(struct leader *leader, const struct host *host)
{
    struct host *up = host->up >= 0 ? table_find(leader, host->up) : NULL;
    if (up == NULL)
        return;
    up->children--;
    leader->open = up->number < leader->open ? up->number : leader->open;
}

/* Nothing comes from it any more. */
static void table_lose(struct leader *leader, struct host *host)
{
    if (!host->bye && host->slots > 0)
        tess_log(TESS_LOG_WARN, "host %s has gone", host->name);
    table_leave(leader, host);
    host->gone = true;
    host->news.done = host->news.done && !host->runs;
    host->runs = false;
    host->limit_s = 0;
    table_hang_up(leader, host);
    if (!host->bye)
        table_cut(leader, host->number);
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* The connection by which a host is reached; NULL: its way is lost, and it comes again. */
static struct host *table_way(const struct leader *leader, struct host *host)
{
    while (host != NULL && host->up > 0)
        host = table_find(leader, host->up);
    return host != NULL && host->fd >= 0 ? host : NULL;
}

static void table_send(struct leader *leader, struct host *way, const struct hosts_order *order,
                       const void *sources, size_t bytes)
{
    const double limit_s = tess_clock_s() + HOSTS_SEND_S;
    if (!tess__boot_send(way->fd, order, sizeof(*order), limit_s, NULL, 0) ||
        !tess__boot_send(way->fd, sources, bytes, limit_s, NULL, 0))
        table_lose(leader, way);
}

void tess__leader_send(struct leader *leader, struct host *host, const struct hosts_order *order)
{
    if (host->gone)
        return;
    host->order = *order;
    host->order.to = host->number;
    host->order.number = ++leader->orders;
    struct host *way = table_way(leader, host);
    if (way != NULL)
        table_send(leader, way, &host->order, NULL, 0);
}

static void table_send_all(struct leader *leader, const struct hosts_order *order,
                           const void *sources, size_t bytes)
{
    for (int32_t h = 1; h < leader->count; h++)
        if (leader->host[h].fd >= 0 && !leader->host[h].gone)
            table_send(leader, &leader->host[h], order, sources, bytes);
}

void tess__leader_send_all(struct leader *leader, const struct hosts_order *order)
{
    struct hosts_order all = *order;
    all.to = HOSTS_ALL;
    all.number = ++leader->orders;
    if (order->kind == HOSTS_KILL)
        leader->killed = all.number;
    for (int32_t h = 1; h < leader->count && order->kind != HOSTS_KILL; h++)
        leader->host[h].order = all;
    table_send_all(leader, &all, NULL, 0);
}

static struct hosts_order table_sources(const struct leader *leader)
{
    return (struct hosts_order){
        .kind = HOSTS_SOURCES, .to = HOSTS_ALL, .source_count = leader->source_count};
}

void tess__leader_send_sources(struct leader *leader)
{
    const struct hosts_order order = table_sources(leader);
    table_send_all(leader, &order, leader->source,
                   (size_t)leader->source_count * sizeof(*leader->source));
}

/* ---- places ---------------------------------------------------------------------------------- */

static int32_t table_fan(const struct leader *leader)
{
    return leader->hosts->fan > 0 ? leader->hosts->fan : TESS_BOOT_FAN;
}

/* The first host that has room behind it, and is there or on its way; those before leader->open
 * have none. */
static struct host *table_open(struct leader *leader)
{
    for (int32_t h = 0; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        if (host->number < leader->open || host->children >= table_fan(leader) || host->gone ||
            host->leaves || (h > 0 && host->port == 0))
            continue;
        if (h > 0 && table_way(leader, host) == NULL)
            continue;
        leader->open = host->number;
        return host;
    }
    return &leader->host[0];
}

static void table_stays(struct leader *leader, struct host *host, int fd)
{
    host->fd = fd;
    host->up = 0;
    host->limit_s = 0;
    tess__boot_keep_alive(fd, leader->hosts->timeout_s);
    tess__crew_watch(leader->crew, fd);
}

static void table_joins(struct leader *leader, struct host *host)
{
    host->limit_s = 0;
    if (host->slots > 0)
        return;
    host->slots = host->offers;
    host->is_new = true;
    const int32_t joined = tess__leader_joined(leader);
    tess_log(TESS_LOG_INFO, "host %s has joined: %d host%s, room for %d ranks", host->name, joined,
             joined == 1 ? "" : "s", tess__leader_slots(leader));
}

/* To whom a new host goes: one that is behind another one is sent there. */
static void table_place(struct leader *leader, struct host *host, int fd)
{
    struct hosts_order order = {.kind = HOSTS_PLACE};
    struct host *up = table_open(leader);
    up->children++;
    if (up->number == 0) {
        table_stays(leader, host, fd);
        tess__leader_send(leader, host, &order);
        table_joins(leader, host);
        return;
    }
    host->up = up->number;
    host->limit_s = tess_clock_s() + HOSTS_ORPHAN_S;
    order.to = host->number;
    order.partner_port = up->port;
    if (!tess__boot_is_loopback(up->held.address))
        memcpy(order.partner, up->held.address, sizeof(order.partner));
    (void)tess__boot_send(fd, &order, sizeof(order), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
    close(fd);
}

static void table_answer(int fd, enum hosts_order_kind kind)
{
    const struct hosts_order order = {.kind = kind, .to = HOSTS_ALL};
    (void)tess__boot_send(fd, &order, sizeof(order), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
    close(fd);
}

/* To a host, and those behind it, whose way was lost: some get an order twice, and ignore that. */
static void table_send_missed(struct leader *leader, struct host *way, int32_t seen)
{
    const struct hosts_order sources = table_sources(leader);
    const struct hosts_order kill = {.kind = HOSTS_KILL, .to = HOSTS_ALL, .number = leader->killed};
    if (leader->source_count > 0 && !way->gone)
        table_send(leader, way, &sources, leader->source,
                   (size_t)leader->source_count * sizeof(*leader->source));
    for (int32_t h = 1; h < leader->count && !way->gone; h++) {
        struct host *host = &leader->host[h];
        if (host->runs && (host != way || host->order.number > seen) &&
            table_way(leader, host) == way)
            table_send(leader, way, &host->order, NULL, 0);
    }
    if (leader->over && !way->gone)
        table_send(leader, way, &way->order, NULL, 0);
    if (leader->killed > seen && !way->gone)
        table_send(leader, way, &kill, NULL, 0);
}

/* It has lost the one before it, or has not reached it: it stays with the leader, with all that are
 * behind it, and gets what it has missed. */
static bool table_again(struct leader *leader, int fd, const struct hosts_hello *hello)
{
    const struct hosts_order place = {.kind = HOSTS_PLACE, .to = hello->number};
    struct host *host = table_find(leader, hello->number);
    if (host == NULL || host->number == 0) {
        table_answer(fd, HOSTS_FORGET);
        return true;
    }
    table_hang_up(leader, host);
    table_leave(leader, host);
    leader->host[0].children++;
    table_stays(leader, host, fd);
    table_send(leader, host, &place, NULL, 0);
    table_joins(leader, host);
    table_send_missed(leader, host, hello->seen);
    return true;
}

static void table_name(const struct hosts_hello *hello, char name[HOSTS_NAME])
{
    memset(name, 0, HOSTS_NAME);
    for (int i = 0; i < HOSTS_NAME - 1 && hello->name[i] != '\0'; i++)
        name[i] = isgraph((unsigned char)hello->name[i]) ? hello->name[i] : '?';
}

/* The training does not begin without it. One that goes on needs nobody. */
static bool table_take_failure(struct leader *leader, int fd, const struct hosts_hello *hello)
{
    char name[HOSTS_NAME], why[HOSTS_WHY];
    if (leader->begun || leader->why[0] != '\0' ||
        !tess__boot_receive(fd, why, sizeof(why), tess_clock_s() + 1, NULL, 0))
        return false;
    close(fd);
    table_name(hello, name);
    snprintf(leader->why, sizeof(leader->why), "host %s has failed: %.*s", name, HOSTS_WHY - 64,
             why);
    return true;
}

bool tess__leader_greet(void *context, int fd, const unsigned char *bytes)
{
    struct leader *leader = context;
    struct hosts_hello hello;
    _Static_assert(sizeof(hello) == BOOT_HELLO_BYTES, "the greeting that is read");
    memcpy(&hello, bytes, sizeof(hello));
    if (memcmp(hello.magic, HOSTS_AGAIN, sizeof(hello.magic)) == 0)
        return table_again(leader, fd, &hello);
    if (memcmp(hello.magic, HOSTS_FAILS, sizeof(hello.magic)) == 0)
        return table_take_failure(leader, fd, &hello);
    if (memcmp(hello.magic, HOSTS_MAGIC, sizeof(hello.magic)) != 0 || hello.slots < 1 ||
        hello.slots > TESS_RANKS_MAX || leader->count == leader->room || leader->over ||
        leader->number == HOSTS_NUMBER_MAX)
        return false;
    struct host *host = &leader->host[leader->count];
    *host = (struct host){.fd = -1, .number = leader->number + 1, .offers = hello.slots};
    host->port = hello.port;
    host->news = (struct hosts_news){.done = true, .may_help = true}; /* nothing has failed there */
    host->held = (struct hosts_held){.part = -1, .port = hello.mirror};
    tess__boot_peer_text(fd, host->held.address);
    if (leader->host[0].held.address[0] == '\0') /* as others see it */
        tess__boot_own_text(fd, leader->host[0].held.address);
    table_name(&hello, host->name);
    if (leader->begun && !leader->hosts->elastic) {
        tess_log(TESS_LOG_WARN, "host %s may not join: that needs --elastic", host->name);
        table_answer(fd, HOSTS_REFUSE);
        return true;
    }
    leader->count++;
    leader->number++;
    table_place(leader, host, fd);
    return true;
}

/* ---- news ------------------------------------------------------------------------------------ */

static void table_take(struct leader *leader, const struct hosts_news *news)
{
    struct host *host = table_find(leader, news->from);
    if (host == NULL || host->number == 0)
        return;
    switch (news->kind) {
    case HOSTS_ENDED:
        if (!host->runs || news->answer != host->order.number)
            return; /* it was sent twice */
        host->news = *news;
        host->held.copies = news->copies;
        host->runs = false;
        return;
    case HOSTS_LEAVES:
        if (!host->leaves)
            tess_log(TESS_LOG_INFO, "host %s leaves", host->name);
        host->leaves = true;
        return;
    case HOSTS_JOINED:
        table_joins(leader, host);
        return;
    case HOSTS_LOST:
        host = table_find(leader, news->about);
        if (host != NULL && host->up == news->from) /* it has not come again meanwhile */
            table_lose(leader, host);
        return;
    case HOSTS_BYE:
        host->bye = true;
    }
}

void tess__leader_read(struct leader *leader)
{
    const double now_s = tess_clock_s();
    bool calls = leader->door.pending_count > 0;
    for (int32_t h = 1; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        struct hosts_news news;
        if (host->limit_s > 0 && host->limit_s < now_s)
            table_lose(leader, host);
        if (host->fd < 0 || !tess__crew_is_ready(leader->crew, host->fd))
            continue;
        if (tess__boot_receive(host->fd, &news, sizeof(news), now_s + HOSTS_SEND_S, NULL, 0))
            table_take(leader, &news);
        else
            table_lose(leader, host);
    }
    for (int i = 0; i < leader->door.listener.count; i++)
        calls = calls || tess__crew_is_ready(leader->crew, leader->door.listener.fd[i]);
    if (calls)
        tess__boot_door_look(&leader->door);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void table_drop(struct leader *leader, int32_t h)
{
    struct host *host = &leader->host[h];
    const struct hosts_order quit = {.kind = HOSTS_QUIT,
                                     .code = tess_status_exit_code(TESS_ERR_INTERRUPTED)};
    if (!host->gone)
        table_leave(leader, host);
    tess__leader_send(leader, host, &quit);
    table_cut(leader, host->number);
    table_hang_up(leader, host);
    leader->count--;
    memmove(host, host + 1, (size_t)(leader->count - h) * sizeof(*host));
}

void tess__leader_drop_gone(struct leader *leader)
{
    for (int32_t h = leader->count - 1; h > 0; h--)
        if (leader->host[h].gone || leader->host[h].leaves)
            table_drop(leader, h);
}

/* Have all hosts left that were reached, and is none cut off? */
static bool table_is_left(const struct leader *leader)
{
    for (int32_t h = 1; h < leader->count; h++)
        if (leader->host[h].fd >= 0 || leader->host[h].limit_s > 0)
            return false;
    return true;
}

void tess__leader_end(struct leader *leader, int code)
{
    struct hosts_order quit = {.kind = HOSTS_QUIT, .code = code};
    memcpy(quit.why, leader->why, sizeof(quit.why));
    const double limit_s = tess_clock_s() + HOSTS_END_S;
    leader->over = true;
    tess__leader_send_all(leader, &quit);
    while (!table_is_left(leader) && tess_clock_s() < limit_s) {
        (void)tess__crew_wait(leader->crew, 100);
        tess__leader_read(leader);
    }
    for (int32_t h = 1; h < leader->count; h++)
        table_hang_up(leader, &leader->host[h]);
}
