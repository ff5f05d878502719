/*
 * How the ranks of the transport over sockets meet: each listens where the boot reaches its host,
 * and all addresses are gathered, with a word of this job that rank 0 has drawn. From then on any
 * rank can call any other (transport_tcp_call.c); each calls its parent in the tree, and all wait
 * until that has come about.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"
#include "base/hash.h"
#include "comm/boot/boot.h"
#include "comm/net/net_hosts.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEET_LOOK_MS    100 /* between two looks at the clock */
#define MEET_LATE_S     1.0 /* for which a rank that fails waits for its neighbours */
#define MEET_NAME_BYTES 40  /* of a host; the rest of a longer one is left out */

struct meet_card {
    char address[TCP_ADDRESS_BYTES];
    char name[MEET_NAME_BYTES];
    uint64_t host;    /* the same for ranks of one host and one network namespace */
    uint64_t word[2]; /* random; rank 0's is part of the secret */
    uint64_t space;   /* the same for ranks of one kernel and one PID namespace */
    struct tcp_near near;
    uint16_t port;
    uint8_t failed, zero[5];
};

_Static_assert(sizeof(struct meet_card) == 200, "what goes over the wire has no holes");

struct meet {
    struct tcp *tcp;
    struct meet_card *card; /* [rank_count] */
    double limit_s;
};

/* ---- hosts ----------------------------------------------------------------------------------- */

/* Ranks reach each other without a network where kernel and network namespace are the same, and
 * may open each other's memory where the PID namespace is, too. */
static void meet_own_host(const char *name, struct meet_card *card)
{
    char boot[64] = "";
    struct stat space = {.st_ino = 0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (file != NULL) {
        if (fgets(boot, sizeof(boot), file) == NULL)
            boot[0] = '\0';
        fclose(file);
    }
    (void)stat("/proc/self/ns/net", &space);
    const char *kernel = boot[0] != '\0' ? boot : name;
    card->host = tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
    space.st_ino = 0;
    (void)stat("/proc/self/ns/pid", &space);
    card->space = tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
}

/* Tables of [rank_count]. */
struct meet_tables {
    uint64_t *key;
    int32_t *host, *name, *place; /* the first rank of the same host, name, place */
    bool *shared;                 /* of a name: several hosts have it */
};

static enum tess_status meet_find_firsts(const struct meet *meet, const struct meet_tables *tables)
{
    const int32_t n = meet->tcp->transport.rank_count;
    const struct meet_card *card = meet->card;

    for (int32_t r = 0; r < n; r++)
        tables->key[r] = card[r].host;
    TESS_TRY(tess__net_firsts(n, tables->key, tables->host));
    for (int32_t r = 0; r < n; r++)
        tables->key[r] = tess_hash_bytes(card[r].name, strlen(card[r].name));
    TESS_TRY(tess__net_firsts(n, tables->key, tables->name));
    for (int32_t r = 0; r < n; r++)
        tables->key[r] = card[r].host ^ tess_hash_bytes(card[r].address, strlen(card[r].address));
    TESS_TRY(tess__net_firsts(n, tables->key, tables->place));
    for (int32_t r = 0; r < n; r++)
        if (card[r].host != card[tables->name[r]].host)
            tables->shared[tables->name[r]] = true;
    return TESS_OK;
}

/* Numbers in the order of appearance; hosts of the same name differ by address. */
static enum tess_status meet_fill(struct meet *meet, const struct meet_tables *tables)
{
    struct tcp *tcp = meet->tcp;
    const int32_t n = tcp->transport.rank_count;
    int32_t hosts = 0, places = 0;

    for (int32_t r = 0; r < n; r++)
        tcp->place_of[r] = tables->place[r] == r ? places++ : tcp->place_of[tables->place[r]];
    tcp->place = calloc((size_t)places, sizeof(*tcp->place));
    if (tcp->place == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of %d ranks", (int)n);
    for (int32_t r = 0; r < n; r++) {
        const struct meet_card *card = &meet->card[r];
        struct tcp_place *place = &tcp->place[tcp->place_of[r]];
        tcp->host[r] = tables->host[r] == r ? hosts++ : tcp->host[tables->host[r]];
        tcp->port[r] = card->port;
        tcp->host_name[r] = place->text;
        if (tables->place[r] != r)
            continue;
        memcpy(place->address, card->address, sizeof(place->address));
        if (tables->shared[tables->name[r]])
            snprintf(place->text, TCP_HOST_BYTES, "%s, %.30s", card->name, card->address);
        else
            snprintf(place->text, TCP_HOST_BYTES, "%s", card->name);
    }
    return TESS_OK;
}

static enum tess_status meet_number_hosts(struct meet *meet)
{
    const size_t n = (size_t)meet->tcp->transport.rank_count;
    const struct meet_tables tables = {.key = calloc(n, sizeof(*tables.key)),
                                       .host = calloc(n, sizeof(*tables.host)),
                                       .name = calloc(n, sizeof(*tables.name)),
                                       .place = calloc(n, sizeof(*tables.place)),
                                       .shared = calloc(n, sizeof(*tables.shared))};
    enum tess_status status = TESS_OK;

    if (tables.key == NULL || tables.host == NULL || tables.name == NULL || tables.place == NULL ||
        tables.shared == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the hosts of %zu ranks", n);
    if (status == TESS_OK)
        status = meet_find_firsts(meet, &tables);
    if (status == TESS_OK)
        status = meet_fill(meet, &tables);
    free(tables.key);
    free(tables.host);
    free(tables.name);
    free(tables.place);
    free(tables.shared);
    return status;
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* The tree over all ranks that small collectives go by (net_path.c): a rank's parent has its number
 * without the last bit that is set. */
static int32_t meet_parent(int32_t rank)
{
    return rank & (rank - 1);
}

static bool meet_is_there(const struct tcp *tcp, int32_t r)
{
    return tcp->peer[r] != NULL && tcp->peer[r]->met[TCP_WORDS] && tcp->peer[r]->met[TCP_DATA];
}

/* The first neighbour from `from` on that is not connected; rank_count: none. */
static int32_t meet_missing(const struct tcp *tcp, int32_t from)
{
    const int32_t rank = tcp->transport.rank, n = tcp->transport.rank_count;

    if (rank > 0 && from <= meet_parent(rank) && !meet_is_there(tcp, meet_parent(rank)))
        return meet_parent(rank);
    for (int32_t bit = 1; rank + bit < n && (rank & bit) == 0; bit *= 2)
        if (rank + bit >= from && !meet_is_there(tcp, rank + bit))
            return rank + bit;
    return n;
}

static enum tess_status meet_time_out(const struct tcp *tcp)
{
    const int32_t rank = tcp->transport.rank, n = tcp->transport.rank_count;
    char names[100] = "", others[60] = "";
    int used = 0;

    for (int32_t r = meet_missing(tcp, 0); r < n && used < (int)sizeof(names) - 16;
         r = meet_missing(tcp, r + 1))
        used += snprintf(names + used, sizeof(names) - (size_t)used, "%s%d (%.20s)",
                         used > 0 ? ", " : "", (int)r, tcp->host_name[r]);
    if (tcp->strangers > 0)
        snprintf(others, sizeof(others), "; %d of others turned away", tcp->strangers);
    TESS_FAIL(TESS_ERR_TIMEOUT,
              "no connection with rank %s came about at rank %d (%s) within %g s%s", names,
              (int)rank, tcp->host_name[rank], tcp->timeout_s, others);
}

static enum tess_status meet_neighbours(struct tcp *tcp, double limit_s)
{
    const int32_t rank = tcp->transport.rank, n = tcp->transport.rank_count;
    enum tess_status status = rank > 0 ? tess__tcp_reach(tcp, meet_parent(rank)) : TESS_OK;

    while (status == TESS_OK && meet_missing(tcp, 0) < n) {
        if (tess_clock_s() > limit_s)
            return meet_time_out(tcp);
        tess__tcp_move(tcp, MEET_LOOK_MS);
        status = tcp->status;
    }
    if (status == TESS_OK)
        return TESS_OK;
    /* Neighbours that come late are to learn the reason, not that this rank has gone. */
    limit_s = tess_clock_s() + MEET_LATE_S;
    while (meet_missing(tcp, 0) < n && tess_clock_s() < limit_s)
        tess__tcp_move(tcp, MEET_LOOK_MS);
    if (tcp->reason[0] != '\0')
        TESS_FAIL(status, "%s", tcp->reason);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static enum tess_status meet_gather(struct meet *meet, const struct tess_boot *boot)
{
    struct meet_card own = {.port = 0};
    char name[256] = "";
    const enum tess_status listens = tess__boot_listen(boot->address, 0, &meet->tcp->listener);

    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0')
        snprintf(name, sizeof(name), "rank-%d", (int)boot->rank);
    snprintf(own.name, sizeof(own.name), "%s", name);
    const int length = snprintf(own.address, sizeof(own.address), "%s", boot->address);
    if (length >= (int)sizeof(own.address))
        tess_log(TESS_LOG_ERROR, "the address '%s' is too long: up to %zu characters",
                 boot->address, sizeof(own.address) - 1);
    meet_own_host(name, &own);
    tess__tcp_near_open(meet->tcp, &own.near);
    own.port = (uint16_t)tess__boot_port(&meet->tcp->listener);
    own.failed = listens != TESS_OK || length >= (int)sizeof(own.address);
    if (getrandom(own.word, sizeof(own.word), 0) != (ssize_t)sizeof(own.word))
        own.failed = 1;
    /* A rank that cannot take part announces it: the others would wait for it. */
    TESS_TRY(boot->gather(boot->context, &own, sizeof(own), meet->card));
    for (int32_t r = 0; r < boot->rank_count; r++) {
        struct meet_card *card = &meet->card[r];
        card->address[sizeof(card->address) - 1] = card->name[sizeof(card->name) - 1] = '\0';
        if (card->failed != 0 && r != boot->rank)
            TESS_FAIL(TESS_ERR_COMM, "rank %d (%s) cannot listen: see its log", (int)r, card->name);
    }
    if (own.failed != 0)
        TESS_FAIL(TESS_ERR_COMM, "rank %d cannot listen for others at %s", (int)boot->rank,
                  boot->address);
    return TESS_OK;
}

/* With which ranks may memory be shared? */
static void meet_near(struct meet *meet)
{
    struct tcp *tcp = meet->tcp;
    const struct meet_card *own = &meet->card[tcp->transport.rank];

    for (int32_t r = 0; r < tcp->transport.rank_count; r++) {
        const struct meet_card *card = &meet->card[r];
        if (card != own && card->host == own->host && card->space == own->space)
            tcp->near[r] = card->near;
    }
}

/* Calls of others are answered from here on. */
static enum tess_status meet_watch(struct tcp *tcp)
{
    for (int i = 0; i < tcp->listener.count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = TCP_TAG_DOOR | (uint64_t)i};
        if (epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->listener.fd[i], &event) != 0)
            TESS_FAIL(TESS_ERR_COMM, "cannot watch a socket: %s", strerror(errno));
    }
    return TESS_OK;
}

static enum tess_status meet_all(struct meet *meet, const struct tess_boot *boot)
{
    struct tcp *tcp = meet->tcp;

    TESS_TRY(meet_gather(meet, boot));
    tess_boot_secret(boot, meet->card[0].word, sizeof(meet->card[0].word), &tcp->secret);
    TESS_TRY(meet_number_hosts(meet));
    meet_near(meet);
    TESS_TRY(meet_watch(tcp));
    return meet_neighbours(tcp, meet->limit_s);
}

enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot)
{
    struct meet meet = {.tcp = tcp,
                        .card = calloc((size_t)boot->rank_count, sizeof(*meet.card)),
                        .limit_s = tess_clock_s() + tcp->timeout_s};

    if (meet.card == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of %d ranks",
                  (int)boot->rank_count);
    const enum tess_status status = meet_all(&meet, boot);
    free(meet.card);
    return status;
}
