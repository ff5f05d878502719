/*
 * How the ranks of the transport over sockets meet: each listens where the boot reaches its host,
 * and sends rank 0 a card; rank 0 sends all a table of where ranks are (transport_tcp_table.h),
 * with a word of this job that it has drawn, and each the cards of those that share memory with it.
 * From then on any rank can call any other (transport_tcp_call.c); each calls its parent in the
 * tree, and all wait until that has come about.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/host.h"
#include "comm/boot/boot_post.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEET_LOOK_MS 100 /* between two looks at the clock */
#define MEET_LATE_S  1.0 /* for which a rank that fails waits for its neighbours */

/* From rank 0 to all. */
struct meet_head {
    int32_t failed; /* a rank that cannot take part, -1: none; its host's name */
    int32_t near_most;
    uint64_t table_bytes, word[2];
    char name[TCP_NAME_BYTES];
};

_Static_assert(sizeof(struct meet_head) == 72, "what goes over the wire has no holes");

struct meet {
    struct tcp *tcp;
    const struct tess_boot *boot;
    struct tcp_card own;
    struct meet_head head;
    /* At rank 0, or where all cards are gathered, [rank_count] each: */
    struct tcp_card *card;
    int32_t *first, *next, *count; /* of those that share memory; count: at the first of them */
    struct tcp_table *table;
};

/* ---- what is known of all -------------------------------------------------------------------- */

/* Ranks reach each other without a network where kernel and network namespace are the same, and
 * may open each other's memory where the PID namespace is, too. */
static void meet_own_host(const char *name, struct tcp_card *card)
{
    char boot[TESS_HOST_BOOT];
    struct stat space = {.st_ino = 0};

    tess_host_boot(boot);
    (void)stat("/proc/self/ns/net", &space);
    const char *kernel = boot[0] != '\0' ? boot : name;
    card->host = tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
    space.st_ino = 0;
    (void)stat("/proc/self/ns/pid", &space);
    card->space = tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
}

/* A rank that cannot take part announces it: the others would wait for it. */
static void meet_own_card(struct meet *meet)
{
    const struct tess_boot *boot = meet->boot;
    struct tcp_card *own = &meet->own;
    char name[256] = "";
    const enum tess_status listens = tess__boot_listen(boot->address, 0, &meet->tcp->listener);

    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0')
        snprintf(name, sizeof(name), "rank-%d", (int)boot->rank);
    snprintf(own->name, sizeof(own->name), "%s", name);
    const int length = snprintf(own->address, sizeof(own->address), "%s", boot->address);
    if (length >= (int)sizeof(own->address))
        tess_log(TESS_LOG_ERROR, "the address '%s' is too long: up to %zu characters",
                 boot->address, sizeof(own->address) - 1);
    meet_own_host(name, own);
    tess__tcp_near_open(meet->tcp, &own->near);
    own->near.rank = boot->rank;
    own->port = (uint16_t)tess__boot_port(&meet->tcp->listener);
    own->failed = listens != TESS_OK || length >= (int)sizeof(own->address);
    if (getrandom(own->word, sizeof(own->word), 0) != (ssize_t)sizeof(own->word))
        own->failed = 1;
}

static enum tess_status meet_no_memory(const struct meet *meet)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of %d ranks",
              (int)meet->boot->rank_count);
}

/* Which ranks share memory: chains in their order, and how many of each have some. */
static enum tess_status meet_chain(struct meet *meet)
{
    const int32_t n = meet->boot->rank_count;

    meet->first = calloc((size_t)n * 3, sizeof(*meet->first));
    if (meet->first == NULL)
        return meet_no_memory(meet);
    meet->next = meet->first + n;
    meet->count = meet->next + n;
    memset(meet->next, -1, (size_t)n * sizeof(*meet->next));
    TESS_TRY(tess__tcp_table_near(meet->card, n, meet->first));
    for (int32_t r = n - 1; r >= 0; r--) {
        const int32_t first = meet->first[r];
        const int32_t count = meet->count[first] += meet->card[r].near.pid != 0;
        meet->head.near_most = count > meet->head.near_most ? count : meet->head.near_most;
        if (first == r)
            continue;
        meet->next[r] = meet->next[first];
        meet->next[first] = r;
    }
    return TESS_OK;
}

/* near [meet->count[meet->first[r]]] */
static void meet_list(const struct meet *meet, int32_t r, struct tcp_near *near)
{
    for (int32_t one = meet->first[r]; one >= 0; one = meet->next[one])
        if (meet->card[one].near.pid != 0)
            *near++ = meet->card[one].near;
}

/* From all cards. */
static enum tess_status meet_make(struct meet *meet)
{
    struct meet_head *head = &meet->head;

    for (int32_t r = meet->boot->rank_count - 1; r >= 0; r--) {
        struct tcp_card *card = &meet->card[r];
        card->address[sizeof(card->address) - 1] = card->name[sizeof(card->name) - 1] = '\0';
        card->near.rank = r;
        if (card->failed == 0)
            continue;
        head->failed = r;
        memcpy(head->name, card->name, sizeof(head->name));
    }
    memcpy(head->word, meet->card[0].word, sizeof(head->word));
    if (head->failed >= 0)
        return TESS_OK;
    TESS_TRY(meet_chain(meet));
    TESS_TRY(tess__tcp_table_make(meet->card, meet->boot->rank_count, &meet->table));
    head->table_bytes = meet->table->bytes;
    return TESS_OK;
}

static enum tess_status meet_judge(const struct meet *meet)
{
    if (meet->own.failed != 0)
        TESS_FAIL(TESS_ERR_COMM, "rank %d cannot listen for others at %s", (int)meet->boot->rank,
                  meet->boot->address);
    if (meet->head.failed >= 0)
        TESS_FAIL(TESS_ERR_COMM, "rank %d (%s) cannot take part: see its log",
                  (int)meet->head.failed, meet->head.name);
    return TESS_OK;
}

/* ---- over a communicator: each rank gets all cards ------------------------------------------- */

static enum tess_status meet_gather(struct meet *meet)
{
    const struct tess_boot *boot = meet->boot;
    struct tcp *tcp = meet->tcp;

    meet->card = calloc((size_t)boot->rank_count, sizeof(*meet->card));
    if (meet->card == NULL)
        return meet_no_memory(meet);
    TESS_TRY(boot->gather(boot->context, &meet->own, sizeof(meet->own), meet->card));
    TESS_TRY(meet_make(meet));
    TESS_TRY(meet_judge(meet));
    tcp->near_count = meet->count[meet->first[boot->rank]];
    tcp->near = calloc((size_t)tcp->near_count + 1, sizeof(*tcp->near));
    if (tcp->near == NULL)
        return meet_no_memory(meet);
    meet_list(meet, boot->rank, tcp->near);
    return TESS_OK;
}

/* ---- over a meeting: rank 0 gets all cards, the others what they need -------------------------
 */

static enum tess_status meet_collect(struct meet *meet, struct tess_boot_post *post)
{
    const size_t n = (size_t)meet->boot->rank_count;
    struct tess_boot_parts parts;
    enum tess_status status = TESS_OK;

    TESS_TRY(tess_boot_collect(post, &meet->own, sizeof(meet->own), &parts));
    if (meet->boot->rank != 0)
        return TESS_OK;
    meet->card = calloc(n, sizeof(*meet->card));
    if (meet->card == NULL)
        status = meet_no_memory(meet);
    else if (parts.first[n] != n * sizeof(*meet->card))
        status = tess_fail(TESS_ERR_COMM, "ranks send something else: run the same build "
                                          "everywhere");
    else
        memcpy(meet->card, parts.bytes, n * sizeof(*meet->card));
    tess_boot_parts_close(&parts);
    return status == TESS_OK ? meet_make(meet) : status;
}

/* Lists of those that share memory, to each its own. */
static enum tess_status meet_deal(struct meet *meet, struct tess_boot_post *post)
{
    const int32_t n = meet->boot->rank_count;
    struct tess_boot_parts parts = {0};
    struct tcp *tcp = meet->tcp;
    struct tcp_near *near;
    size_t bytes;

    tcp->near = calloc((size_t)meet->head.near_most + 1, sizeof(*tcp->near));
    enum tess_status status = tcp->near != NULL ? TESS_OK : meet_no_memory(meet);
    if (status == TESS_OK && meet->boot->rank == 0)
        status = tess_boot_parts_open(&parts, n);
    for (int32_t r = 0; r < n && meet->boot->rank == 0 && status == TESS_OK; r++) {
        near = tess_boot_parts_add(&parts, (size_t)meet->count[meet->first[r]] * sizeof(*near));
        if (near != NULL)
            meet_list(meet, r, near);
        else
            status = meet_no_memory(meet);
    }
    if (status == TESS_OK)
        status = tess_boot_deal(post, &parts, tcp->near,
                                (size_t)meet->head.near_most * sizeof(*tcp->near), &bytes);
    tess_boot_parts_close(&parts);
    if (status == TESS_OK)
        tcp->near_count = (int32_t)(bytes / sizeof(*tcp->near));
    return status;
}

static enum tess_status meet_share(struct meet *meet, struct tess_boot_post *post)
{
    const size_t bytes = (size_t)meet->head.table_bytes;

    if (meet->boot->rank != 0)
        meet->table = malloc(bytes);
    if (meet->table == NULL)
        return meet_no_memory(meet);
    for (size_t at = 0; at < bytes; at += TESS_BOOT_BLOB_MAX)
        TESS_TRY(
            tess_boot_share(post, (char *)meet->table + at,
                            bytes - at < TESS_BOOT_BLOB_MAX ? bytes - at : TESS_BOOT_BLOB_MAX));
    if (!tess__tcp_table_is_sound(meet->table, bytes, meet->boot->rank_count))
        TESS_FAIL(TESS_ERR_COMM, "rank 0 sends something else: run the same build everywhere");
    return TESS_OK;
}

static enum tess_status meet_post(struct meet *meet, struct tess_boot_post *post)
{
    const enum tess_status status = meet_collect(meet, post);

    if (meet->boot->rank == 0 && status != TESS_OK) /* the others would wait */
        meet->head.failed = 0;
    if (meet->boot->rank == 0 || status == TESS_OK)
        TESS_TRY(tess_boot_share(post, &meet->head, sizeof(meet->head)));
    TESS_TRY(status);
    TESS_TRY(meet_judge(meet));
    if (meet->head.near_most < 0 || meet->head.near_most > meet->boot->rank_count ||
        meet->head.table_bytes > tess__tcp_table_most(meet->boot->rank_count))
        TESS_FAIL(TESS_ERR_COMM, "rank 0 sends something else: run the same build everywhere");
    TESS_TRY(meet_deal(meet, post));
    return meet_share(meet, post);
}

static enum tess_status meet_exchange(struct meet *meet)
{
    struct tess_boot_link link[TESS_BOOT_LINKS_MAX];
    struct tess_boot_post *post;

    if (meet->boot->rank_count > 1 && tess_boot_links(meet->boot, link) == 0)
        return meet_gather(meet);
    TESS_TRY(tess_boot_post_open(meet->boot, &post));
    const enum tess_status status = meet_post(meet, post);
    tess_boot_post_close(post);
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
    const struct tcp_peer *peer = tess__tcp_at(tcp, r);

    return peer != NULL && peer->met[TCP_WORDS] && peer->met[TCP_DATA];
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
                         used > 0 ? ", " : "", (int)r, tess__tcp_host_name(&tcp->transport, r));
    if (tcp->strangers > 0)
        snprintf(others, sizeof(others), "; %d of others turned away", tcp->strangers);
    TESS_FAIL(TESS_ERR_TIMEOUT,
              "no connection with rank %s came about at rank %d (%s) within %g s%s", names,
              (int)rank, tess__tcp_host_name(&tcp->transport, rank), tcp->timeout_s, others);
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

enum tess_status tess__tcp_meet(struct tcp *tcp, const struct tess_boot *boot)
{
    struct meet meet = {.tcp = tcp, .boot = boot, .head.failed = -1};
    const double limit_s = tess_clock_s() + tcp->timeout_s;

    meet_own_card(&meet);
    enum tess_status status = meet_exchange(&meet);
    free(meet.card);
    free(meet.first);
    tcp->table = meet.table;
    if (status != TESS_OK)
        return status;
    tcp->transport.host = tess__tcp_table_host(tcp->table);
    tess__tcp_near_give_table(tcp);
    tess_boot_secret(boot, meet.head.word, sizeof(meet.head.word), &tcp->secret);
    TESS_TRY(meet_watch(tcp));
    TESS_TRY(meet_neighbours(tcp, limit_s));
    tess__tcp_near_take_table(tcp);
    return TESS_OK;
}
