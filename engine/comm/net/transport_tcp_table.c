/* The table of transport_tcp_table.h: made at one rank, looked up at all. */
#include "comm/net/transport_tcp_table.h"

#include "base/hash.h"
#include "comm/net/net_hosts.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tcp_place *table_places(const struct tcp_table *table)
{
    return (const struct tcp_place *)(tess__tcp_table_host(table) + 2 * (size_t)table->rank_count);
}

static const uint16_t *table_ports(const struct tcp_table *table)
{
    return (const uint16_t *)(table_places(table) + table->place_count);
}

static const char *table_texts(const struct tcp_table *table)
{
    return (const char *)(table_ports(table) + table->rank_count);
}

static size_t table_bytes(int32_t ranks, int32_t places, size_t text_bytes)
{
    return sizeof(struct tcp_table) + (size_t)ranks * (2 * sizeof(int32_t) + sizeof(uint16_t)) +
           (size_t)places * sizeof(struct tcp_place) + text_bytes;
}

size_t tess__tcp_table_most(int32_t rank_count)
{
    return table_bytes(rank_count, rank_count,
                       (size_t)rank_count * (TCP_ADDRESS_BYTES + TCP_HOST_BYTES) + 1);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Tables of [rank_count]. */
struct making {
    const struct tcp_card *card;
    int32_t rank_count;
    uint64_t *key;
    int32_t *host, *name, *place; /* the first rank of the same host, name, place */
    bool *shared;                 /* of a name: several hosts have it */
};

static enum tess_status making_find_firsts(const struct making *making)
{
    const int32_t n = making->rank_count;
    const struct tcp_card *card = making->card;

    for (int32_t r = 0; r < n; r++)
        making->key[r] = card[r].host;
    TESS_TRY(tess__net_firsts(n, making->key, making->host));
    for (int32_t r = 0; r < n; r++)
        making->key[r] = tess_hash_bytes(card[r].name, strlen(card[r].name));
    TESS_TRY(tess__net_firsts(n, making->key, making->name));
    for (int32_t r = 0; r < n; r++)
        making->key[r] = card[r].host ^ tess_hash_bytes(card[r].address, strlen(card[r].address));
    TESS_TRY(tess__net_firsts(n, making->key, making->place));
    for (int32_t r = 0; r < n; r++)
        if (card[r].host != card[making->name[r]].host)
            making->shared[making->name[r]] = true;
    return TESS_OK;
}

/* Of a place's first rank; hosts of the same name differ by address. */
static size_t making_name(const struct making *making, int32_t r, char text[TCP_HOST_BYTES])
{
    const struct tcp_card *card = &making->card[r];

    if (making->shared[making->name[r]])
        snprintf(text, TCP_HOST_BYTES, "%s, %.30s", card->name, card->address);
    else
        snprintf(text, TCP_HOST_BYTES, "%s", card->name);
    return strlen(text) + 1;
}

static void making_fill(const struct making *making, struct tcp_table *table)
{
    int32_t *host = (int32_t *)(table + 1), *place = host + making->rank_count, places = 0;
    struct tcp_place *of = (struct tcp_place *)(place + making->rank_count);
    uint16_t *port = (uint16_t *)(of + table->place_count);
    char *text = (char *)(port + making->rank_count), name[TCP_HOST_BYTES];
    uint32_t at = 0;

    for (int32_t r = 0; r < making->rank_count; r++) {
        const struct tcp_card *card = &making->card[r];
        host[r] = making->host[r] == r ? table->host_count++ : host[making->host[r]];
        place[r] = making->place[r] == r ? places : place[making->place[r]];
        port[r] = card->port;
        if (making->place[r] != r)
            continue;
        const size_t name_bytes = making_name(making, r, name);
        const size_t address_bytes = strlen(card->address) + 1;
        of[places++] = (struct tcp_place){.address = at, .name = at + (uint32_t)address_bytes};
        memcpy(text + at, card->address, address_bytes);
        memcpy(text + at + address_bytes, name, name_bytes);
        at += (uint32_t)(address_bytes + name_bytes);
    }
}

static enum tess_status making_run(const struct making *making, struct tcp_table **table_out)
{
    char name[TCP_HOST_BYTES];
    size_t text_bytes = 1;
    int32_t places = 0;

    if (making->key == NULL || making->host == NULL || making->name == NULL ||
        making->place == NULL || making->shared == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the hosts of %d ranks", (int)making->rank_count);
    TESS_TRY(making_find_firsts(making));
    for (int32_t r = 0; r < making->rank_count; r++) {
        if (making->place[r] != r)
            continue;
        places++;
        text_bytes += strlen(making->card[r].address) + 1 + making_name(making, r, name);
    }
    const size_t bytes = table_bytes(making->rank_count, places, text_bytes);
    struct tcp_table *table = calloc(1, bytes);
    if (table == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of %d ranks",
                  (int)making->rank_count);
    *table = (struct tcp_table){.bytes = bytes,
                                .rank_count = making->rank_count,
                                .place_count = places,
                                .text_bytes = (uint32_t)text_bytes};
    making_fill(making, table);
    *table_out = table;
    return TESS_OK;
}

enum tess_status tess__tcp_table_make(const struct tcp_card *card, int32_t rank_count,
                                      struct tcp_table **table_out)
{
    const size_t n = (size_t)rank_count;
    const struct making making = {.card = card,
                                  .rank_count = rank_count,
                                  .key = calloc(n, sizeof(*making.key)),
                                  .host = calloc(n, sizeof(*making.host)),
                                  .name = calloc(n, sizeof(*making.name)),
                                  .place = calloc(n, sizeof(*making.place)),
                                  .shared = calloc(n, sizeof(*making.shared))};
    const enum tess_status status = making_run(&making, table_out);

    free(making.key);
    free(making.host);
    free(making.name);
    free(making.place);
    free(making.shared);
    return status;
}

enum tess_status tess__tcp_table_near(const struct tcp_card *card, int32_t rank_count,
                                      int32_t *first_out)
{
    uint64_t *key = malloc((size_t)rank_count * sizeof(*key));

    if (key == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the hosts of %d ranks", (int)rank_count);
    for (int32_t r = 0; r < rank_count; r++)
        key[r] = tess_hash_mix(card[r].host) + card[r].space;
    const enum tess_status status = tess__net_firsts(rank_count, key, first_out);
    free(key);
    return status;
}

/* ---- looking up ------------------------------------------------------------------------------ */

static const struct tcp_place *table_place(const struct tcp_table *table, int32_t rank)
{
    return &table_places(table)[tess__tcp_table_host(table)[table->rank_count + rank]];
}

static bool table_indices_are_sound(const struct tcp_table *table)
{
    const int32_t *host = tess__tcp_table_host(table), *place = host + table->rank_count;

    for (int32_t r = 0; r < table->rank_count; r++)
        if (host[r] < 0 || host[r] >= table->host_count || place[r] < 0 ||
            place[r] >= table->place_count)
            return false;
    for (int32_t p = 0; p < table->place_count; p++)
        if (table_places(table)[p].address >= table->text_bytes ||
            table_places(table)[p].name >= table->text_bytes)
            return false;
    return true;
}

bool tess__tcp_table_is_sound(const struct tcp_table *table, size_t bytes, int32_t rank_count)
{
    return bytes >= sizeof(*table) && table->bytes == bytes && table->rank_count == rank_count &&
           table->place_count >= 1 && table->place_count <= rank_count &&
           table->host_count <= table->place_count && table->text_bytes >= 1 &&
           table_bytes(rank_count, table->place_count, table->text_bytes) == bytes &&
           table_texts(table)[table->text_bytes - 1] == '\0' && table_indices_are_sound(table);
}

const int32_t *tess__tcp_table_host(const struct tcp_table *table)
{
    return (const int32_t *)(table + 1);
}

const char *tess__tcp_table_address(const struct tcp_table *table, int32_t rank)
{
    return table_texts(table) + table_place(table, rank)->address;
}

const char *tess__tcp_table_name(const struct tcp_table *table, int32_t rank)
{
    return table_texts(table) + table_place(table, rank)->name;
}

int32_t tess__tcp_table_port(const struct tcp_table *table, int32_t rank)
{
    return table_ports(table)[rank];
}
