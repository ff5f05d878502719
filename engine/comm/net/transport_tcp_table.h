/*
 * Where the ranks of the transport over sockets are: one table of all, the same on each, in one
 * block of memory. Rank 0 makes it from what each rank sends of itself; the ranks of a host then
 * use one copy of it (transport_tcp_near.c).
 */
#ifndef TESSERA_COMM_NET_TRANSPORT_TCP_TABLE_H
#define TESSERA_COMM_NET_TRANSPORT_TCP_TABLE_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCP_HOST_BYTES    80 /* of a host's name, in messages */
#define TCP_ADDRESS_BYTES 96
#define TCP_NAME_BYTES    40 /* of what a host calls itself; the rest of a longer one is left out */

/* A rank that has shared memory for others of its host; pid 0: it has none. */
struct tcp_near {
    uint64_t mark;            /* its inbox has it, too */
    int32_t pid, inbox, bell; /* its process, and descriptors there */
    int32_t rank;
};

/* What each rank sends of itself. */
struct tcp_card {
    char address[TCP_ADDRESS_BYTES];
    char name[TCP_NAME_BYTES];
    uint64_t host;    /* the same for ranks of one host and one network namespace */
    uint64_t word[2]; /* random; rank 0's is part of the secret */
    uint64_t space;   /* the same for ranks of one kernel and one PID namespace */
    struct tcp_near near;
    uint16_t port;
    uint8_t failed, zero[5];
};

_Static_assert(sizeof(struct tcp_near) == 24 && sizeof(struct tcp_card) == 200,
               "what goes over the wire has no holes");

/* An address of a host: where its texts are. */
struct tcp_place {
    uint32_t address, name;
};

/* Behind it: host, place [rank_count] (int32_t); struct tcp_place [place_count]; port [rank_count]
 * (uint16_t); text. */
struct tcp_table {
    uint64_t bytes; /* of all */
    int32_t rank_count, place_count, host_count;
    uint32_t text_bytes; /* the last one is 0 */
};

/* Bytes that a table has at most. */
size_t tess__tcp_table_most(int32_t rank_count);
/* From the cards of all ranks; hosts and places are numbered in the order of their first ranks.
 * *table_out is to be freed. TESS_ERR_MEMORY. */
enum tess_status tess__tcp_table_make(const struct tcp_card *card, int32_t rank_count,
                                      struct tcp_table **table_out);
/* Does what came from elsewhere have this form? */
bool tess__tcp_table_is_sound(const struct tcp_table *table, size_t bytes, int32_t rank_count);

/* Of a sound table. */
const int32_t *tess__tcp_table_host(const struct tcp_table *table); /* [rank_count] */
const char *tess__tcp_table_address(const struct tcp_table *table, int32_t rank);
const char *tess__tcp_table_name(const struct tcp_table *table, int32_t rank);
int32_t tess__tcp_table_port(const struct tcp_table *table, int32_t rank);

/* first_out[r]: the lowest rank whose memory rank r may open, or that may open its. */
enum tess_status tess__tcp_table_near(const struct tcp_card *card, int32_t rank_count,
                                      int32_t *first_out);

#endif
