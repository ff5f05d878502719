/*
 * How the connections of the transport over sockets come about: every rank listens where the boot
 * reaches its host, all addresses are gathered, each rank connects to those before it and is
 * connected to by those behind it, twice each. Both sides show the word of this job, which rank 0
 * has drawn: other connections are closed and do no harm.
 *
 *     rank r      listens; gathers address, port, host, word
 *     rank r > p  hello: magic, which, rank, word    -->  p
 *                 <--                                     welcome: magic, which, p, word
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"
#include "base/hash.h"
#include "comm/boot/boot.h"
#include "comm/boot/boot_door.h"
#include "comm/call.h"
#include "comm/net/net_hosts.h"
#include "tessera/check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEET_MAGIC UINT64_C(0x70637470746d6574) /* "temtptcp" */
/* Of what is written and not sent yet the system keeps as much as a slow link takes in a moment:
 * enough that a fast one does not run dry. */
#define MEET_UNSENT_BYTES (256 << 10)
#define MEET_NAME_BYTES   40 /* of a host; the rest of a longer one is left out */

struct meet_card {
    char address[TCP_ADDRESS_BYTES];
    char name[MEET_NAME_BYTES];
    uint64_t host;    /* the same for ranks of one host and one network namespace */
    uint64_t word[2]; /* rank 0's is the job's */
    uint16_t port;
    uint8_t failed, zero[5];
};

_Static_assert(sizeof(struct meet_card) == 168, "what goes over the wire has no holes");

struct meet_hello {
    uint64_t magic;
    uint32_t which; /* TCP_WORDS or TCP_DATA */
    int32_t rank;
    uint64_t word[2];
};

_Static_assert(sizeof(struct meet_hello) == BOOT_HELLO_BYTES,
               "what goes over the wire has no holes");

struct meet {
    struct tcp *tcp;
    struct boot_door door;
    struct meet_card *card; /* [rank_count] */
    double limit_s;
    int32_t missing; /* connections of ranks behind this one */
};

/* ---- hosts ----------------------------------------------------------------------------------- */

/* Ranks reach each other without a network where kernel and network namespace are the same. */
static uint64_t meet_own_host(const char *name)
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
    return tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
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

/* ---- one connection -------------------------------------------------------------------------- */

/*
 * Words are few, so that they are acknowledged at once by any host that is there, whatever its
 * ranks do: that they are not means that it has gone. Data may lie for as long as a rank computes.
 */
static void meet_tune(const struct tcp *tcp, int fd, uint32_t which)
{
    const int yes = 1, unsent = MEET_UNSENT_BYTES;
    const double silent_s = tcp->timeout_s / 2;
    const int silent_ms = silent_s > 1e6 ? 1000000000 : silent_s < 1 ? 1000 : (int)(silent_s * 1e3);
    const int idle_s = silent_ms / 4000 > 0 ? silent_ms / 4000 : 1;
    const int probes = silent_ms / 1000 / idle_s > 0 ? silent_ms / 1000 / idle_s : 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (which == TCP_DATA) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
        return;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
}

static struct meet_hello meet_hello(const struct meet *meet, uint32_t which)
{
    return (struct meet_hello){.magic = MEET_MAGIC,
                               .which = which,
                               .rank = meet->tcp->transport.rank,
                               .word = {meet->card[0].word[0], meet->card[0].word[1]}};
}

static bool meet_is_ours(const struct meet *meet, const struct meet_hello *hello)
{
    return hello->magic == MEET_MAGIC && hello->which < TCP_CONNECTIONS &&
           memcmp(hello->word, meet->card[0].word, sizeof(hello->word)) == 0;
}

/* ---- to those before ------------------------------------------------------------------------- */

static enum tess_status meet_failed(const struct meet *meet, int32_t rank, const char *what,
                                    const char *why)
{
    const struct tcp *tcp = meet->tcp;

    TESS_FAIL(TESS_ERR_COMM, "rank %d (%s) %s rank %d (%s) at %s, port %d: %s",
              (int)tcp->transport.rank, tcp->host_name[tcp->transport.rank], what, (int)rank,
              tcp->host_name[rank], meet->card[rank].address, (int)meet->card[rank].port, why);
}

static enum tess_status meet_connect(struct meet *meet, int32_t rank, uint32_t which)
{
    const struct meet_card *card = &meet->card[rank];
    const struct meet_hello hello = meet_hello(meet, which);
    char why[BOOT_WHY_BYTES] = "";
    int *fd = &meet->tcp->peer[rank]->fd[which];

    *fd = tess__boot_connect(card->address, card->port, meet->limit_s, why, sizeof(why));
    if (*fd < 0)
        return meet_failed(meet, rank, "cannot reach", why);
    meet_tune(meet->tcp, *fd, which);
    if (!tess__boot_send(*fd, &hello, sizeof(hello), meet->limit_s, why, sizeof(why)))
        return meet_failed(meet, rank, "cannot greet", why);
    return TESS_OK;
}

/* It answers our greeting after it has connected to those before it. */
static enum tess_status meet_welcome(struct meet *meet, int32_t rank, uint32_t which)
{
    struct meet_hello welcome = {.magic = 0};
    char why[BOOT_WHY_BYTES] = "what listens there is no rank of this job";

    if (!tess__boot_receive(meet->tcp->peer[rank]->fd[which], &welcome, sizeof(welcome),
                            meet->limit_s, why, sizeof(why)) ||
        !meet_is_ours(meet, &welcome) || welcome.rank != rank || welcome.which != which)
        return meet_failed(meet, rank, "is not answered by", why);
    return TESS_OK;
}

/* ---- from those behind ----------------------------------------------------------------------- */

/* False: a stranger, or one that is there already. */
static bool meet_greet(void *context, int fd, const unsigned char *bytes)
{
    struct meet *meet = context;
    struct tcp *tcp = meet->tcp;
    struct meet_hello hello;

    memcpy(&hello, bytes, sizeof(hello));
    if (!meet_is_ours(meet, &hello) || hello.rank <= tcp->transport.rank ||
        hello.rank >= tcp->transport.rank_count || tcp->peer[hello.rank]->fd[hello.which] >= 0)
        return false;
    const struct meet_hello welcome = meet_hello(meet, hello.which);
    if (!tess__boot_send(fd, &welcome, sizeof(welcome), meet->limit_s, NULL, 0))
        return false;
    meet_tune(tcp, fd, hello.which);
    tcp->peer[hello.rank]->fd[hello.which] = fd;
    meet->missing--;
    return true;
}

static enum tess_status meet_time_out(const struct meet *meet)
{
    const struct tcp *tcp = meet->tcp;
    bool *missing = calloc((size_t)tcp->transport.rank_count, sizeof(*missing));
    char names[100] = "?", others[60] = "";

    for (int32_t r = tcp->transport.rank + 1; missing != NULL && r < tcp->transport.rank_count; r++)
        missing[r] = tcp->peer[r]->fd[TCP_WORDS] < 0 || tcp->peer[r]->fd[TCP_DATA] < 0;
    if (missing != NULL)
        tess__name_ranks(missing, tcp->transport.rank_count, names, sizeof(names));
    free(missing);
    if (meet->door.strangers > 0)
        snprintf(others, sizeof(others), "; %d of others turned away", meet->door.strangers);
    TESS_FAIL(TESS_ERR_TIMEOUT, "no connection from rank %s came to rank %d (%s) within %g s%s",
              names, (int)tcp->transport.rank, tcp->host_name[tcp->transport.rank], tcp->timeout_s,
              others);
}

static enum tess_status meet_accept(struct meet *meet)
{
    while (meet->missing > 0) {
        if (tess_clock_s() > meet->limit_s)
            return meet_time_out(meet);
        tess__boot_door_look(&meet->door);
    }
    return TESS_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static enum tess_status meet_gather(struct meet *meet, const struct tess_boot *boot)
{
    struct meet_card own = {.port = 0};
    char name[256] = "";
    const enum tess_status listens = tess__boot_listen(boot->address, 0, &meet->door.listener);

    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0')
        snprintf(name, sizeof(name), "rank-%d", (int)boot->rank);
    snprintf(own.name, sizeof(own.name), "%s", name);
    const int length = snprintf(own.address, sizeof(own.address), "%s", boot->address);
    if (length >= (int)sizeof(own.address))
        tess_log(TESS_LOG_ERROR, "the address '%s' is too long: up to %zu characters",
                 boot->address, sizeof(own.address) - 1);
    own.host = meet_own_host(name);
    own.port = (uint16_t)tess__boot_port(&meet->door.listener);
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

static enum tess_status meet_peers(struct tcp *tcp)
{
    for (int32_t r = 0; r < tcp->transport.rank_count; r++) {
        if (r == tcp->transport.rank)
            continue;
        struct tcp_peer *peer = calloc(1, sizeof(*peer));
        if (peer == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the connection with rank %d", (int)r);
        peer->fd[TCP_WORDS] = peer->fd[TCP_DATA] = -1;
        TAILQ_INIT(&peer->sends);
        TAILQ_INIT(&peer->sending);
        TAILQ_INIT(&peer->receives);
        tcp->peer[r] = peer;
    }
    return TESS_OK;
}

static enum tess_status meet_all(struct meet *meet, const struct tess_boot *boot)
{
    TESS_TRY(meet_gather(meet, boot));
    TESS_TRY(meet_number_hosts(meet));
    TESS_TRY(meet_peers(meet->tcp));
    meet->missing = (boot->rank_count - 1 - boot->rank) * 2;
    for (int32_t p = 0; p < boot->rank; p++)
        for (uint32_t which = 0; which < TCP_CONNECTIONS; which++)
            TESS_TRY(meet_connect(meet, p, which));
    TESS_TRY(meet_accept(meet));
    for (int32_t p = 0; p < boot->rank; p++)
        for (uint32_t which = 0; which < TCP_CONNECTIONS; which++)
            TESS_TRY(meet_welcome(meet, p, which));
    return TESS_OK;
}

enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot)
{
    struct meet meet = {.tcp = tcp,
                        .door = {.greet = meet_greet, .context = &meet},
                        .card = calloc((size_t)boot->rank_count, sizeof(*meet.card)),
                        .limit_s = tess_clock_s() + tcp->timeout_s};
    if (meet.card == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of %d ranks",
                  (int)boot->rank_count);
    const enum tess_status status = meet_all(&meet, boot);

    tess__boot_door_close(&meet.door);
    free(meet.card);
    return status;
}
