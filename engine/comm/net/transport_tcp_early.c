/*
 * Small messages go before their receives are announced: they take one way in the place of two, and
 * announcements can wait and go together. A sender may have TCP_EARLY_ROOM of them under way to a
 * peer, so that what arrives before its receive has a place there; READY, which comes for each as
 * for other messages, makes room again. Where there is none they go as others do.
 *
 * Of one tag, early messages are those that were begun first: a receiver takes them in order, and
 * the sender takes announcements in order.
 */
#include "comm/net/transport_tcp.h"

#include <stdlib.h>
#include <string.h>

bool tess__tcp_early_is(uint64_t bytes)
{
    return bytes <= TCP_EARLY_MOST;
}

/* ---- announcements --------------------------------------------------------------------------- */

bool tess__tcp_readies_add(struct tcp_readies *readies, const struct tcp_ready *ready)
{
    const int32_t room = readies->room > 0 ? 2 * readies->room : 16;

    if (readies->count == readies->room) {
        struct tcp_ready *of = realloc(readies->of, (size_t)room * sizeof(*of));
        if (of == NULL)
            return false;
        readies->of = of;
        readies->room = room;
    }
    readies->of[readies->count++] = *ready;
    return true;
}

bool tess__tcp_readies_take(struct tcp_readies *readies, uint32_t tag, struct tcp_ready *ready_out)
{
    int32_t k = 0;

    while (k < readies->count && readies->of[k].tag != tag)
        k++;
    if (k == readies->count)
        return false;
    *ready_out = readies->of[k];
    readies->count--;
    memmove(&readies->of[k], &readies->of[k + 1],
            (size_t)(readies->count - k) * sizeof(*readies->of));
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

bool tess__tcp_early_goes(struct tcp_peer *peer, uint32_t tag, uint64_t bytes)
{
    const struct tcp_request *waits;
    const size_t cost = tess__tcp_early_cost(bytes);

    if (!tess__tcp_early_is(bytes) || peer->early_bytes + cost > TCP_EARLY_ROOM)
        return false;
    TAILQ_FOREACH(waits, &peer->sends, link)
    if (waits->head.tag == tag)
        return false;
    if (!tess__tcp_readies_add(&peer->early, &(struct tcp_ready){.tag = tag, .bytes = bytes}))
        return false;
    peer->early_bytes += cost;
    return true;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static size_t early_size(int size)
{
    return (size_t)128 << size;
}

_Static_assert((128u << (TCP_EARLY_SIZES - 1)) >= TCP_EARLY_MOST + sizeof(struct tcp_request),
               "the largest buffer holds the largest early message");

/* The number of the least size that holds a message. */
static int early_size_of(uint64_t bytes)
{
    int size = 0;
    while (early_size(size) < sizeof(struct tcp_request) + bytes)
        size++;
    return size;
}

static struct tcp_request *early_buffer(struct tcp *tcp, uint64_t bytes)
{
    const int size = early_size_of(bytes);
    struct tcp_request *spare = TAILQ_FIRST(&tcp->spare[size]);

    if (spare == NULL)
        return malloc(early_size(size));
    TAILQ_REMOVE(&tcp->spare[size], spare, link);
    tcp->spare_bytes -= early_size(size);
    return spare;
}

/* Delivered: it is kept, or freed where enough are. */
static void early_drop(struct tcp *tcp, struct tcp_request *arrived)
{
    const int size = early_size_of(arrived->head.bytes);

    if (tcp->spare_bytes + early_size(size) > TCP_EARLY_ROOM) {
        free(arrived);
        return;
    }
    tcp->spare_bytes += early_size(size);
    TAILQ_INSERT_HEAD(&tcp->spare[size], arrived, link);
}

void tess__tcp_early_open(struct tcp *tcp)
{
    for (int size = 0; size < TCP_EARLY_SIZES; size++)
        TAILQ_INIT(&tcp->spare[size]);
}

static void early_free_all(struct tcp_list *list)
{
    struct tcp_request *request;

    while ((request = TAILQ_FIRST(list)) != NULL) {
        TAILQ_REMOVE(list, request, link);
        free(request);
    }
}

void tess__tcp_early_close(struct tcp *tcp)
{
    for (int size = 0; size < TCP_EARLY_SIZES; size++)
        early_free_all(&tcp->spare[size]);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The message is there, and so is its receive. */
static void early_deliver(struct tcp *tcp, struct tcp_request *arrived)
{
    struct tcp_request *receive = arrived->claimed;

    if (arrived->head.bytes > 0)
        memcpy(receive->data, arrived->data, (size_t)arrived->head.bytes);
    receive->state = TCP_DONE;
    tcp->moved = true;
    early_drop(tcp, arrived);
}

bool tess__tcp_early_claim(struct tcp *tcp, struct tcp_request *receive)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, receive->peer);
    struct tcp_request *arrived = tess__tcp_take(&peer->arrived, receive->head.tag);

    if (arrived == NULL) {
        TAILQ_INSERT_TAIL(&peer->expects, receive, link);
        return true;
    }
    if (arrived->head.bytes != receive->head.bytes) {
        TAILQ_INSERT_HEAD(&peer->arrived, arrived, link);
        tess__tcp_differ(tcp, receive->peer, false, receive->head.bytes, arrived->head.bytes);
        return false;
    }
    peer->arrived_bytes -= tess__tcp_early_cost(arrived->head.bytes);
    receive->state = TCP_MOVES;
    arrived->claimed = receive;
    if (arrived->state == TCP_DONE)
        early_deliver(tcp, arrived);
    return true;
}

struct tcp_request *tess__tcp_early_begin(struct tcp *tcp, int32_t r)
{
    struct tcp_peer *peer = tess__tcp_at(tcp, r);
    const struct tcp_head *head = &peer->head;
    struct tcp_request *request = tess__tcp_take(&peer->expects, head->tag);

    if (request != NULL && request->head.bytes != head->bytes) {
        tess__tcp_differ(tcp, r, false, request->head.bytes, head->bytes);
        return NULL;
    }
    if (request != NULL) {
        request->state = TCP_MOVES;
        return request;
    }
    const bool fits = tess__tcp_early_is(head->bytes) &&
                      peer->arrived_bytes + tess__tcp_early_cost(head->bytes) <= TCP_EARLY_ROOM;
    request = fits ? early_buffer(tcp, head->bytes) : NULL;
    if (request == NULL) {
        tess__tcp_stranger(tcp, r,
                           fits ? "there is no memory for what it sends"
                                : "it sends more than there is room for");
        return NULL;
    }
    *request = (struct tcp_request){
        .state = TCP_MOVES, .peer = r, .data = (char *)(request + 1), .head = *head};
    TAILQ_INSERT_TAIL(&peer->arrived, request, link);
    peer->arrived_bytes += tess__tcp_early_cost(head->bytes);
    return request;
}

void tess__tcp_early_end(struct tcp *tcp, struct tcp_request *request)
{
    request->state = TCP_DONE;
    if (request->claimed != NULL)
        early_deliver(tcp, request);
}

void tess__tcp_early_free(struct tcp_peer *peer)
{
    early_free_all(&peer->arrived);
    if (peer->receiving != NULL && peer->receiving->claimed != NULL)
        free(peer->receiving);
    free(peer->early.of);
    free(peer->ready.of);
}
