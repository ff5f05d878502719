/*
 * A transport in memory between threads, for tests: it counts what goes from whom to whom, and
 * gives messages over as late and as mixed as a transport may.
 */
#ifndef TESSERA_TESTS_COMM_NET_FAKE_H
#define TESSERA_TESTS_COMM_NET_FAKE_H

#include "tessera/transport.h"

#define FAKE_RANKS_MAX 64

struct fake_net;

/* host[r]: of each rank, numbered in the order in which they first appear. */
struct fake_net *fake_net_open(int32_t rank_count, const int32_t *host);
void fake_net_close(struct fake_net *net);
/* The end of one rank; freed by its own close. */
struct tess_transport *fake_net_transport(struct fake_net *net, int32_t rank);

/* Bytes that went from one rank to another in messages whose tags have a kind below `kinds` (see
 * tess__net_tag), since the beginning. */
uint64_t fake_net_bytes(struct fake_net *net, int32_t from, int32_t to, uint32_t kinds);
/* Requests that were begun and not seen to be done. */
int32_t fake_net_left(struct fake_net *net);

#endif
