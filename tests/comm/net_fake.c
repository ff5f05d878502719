/* The transport of net_fake.h: one list of requests behind one lock. */
#include "comm/net_fake.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_KINDS 8

struct fake_request {
    struct fake_request *next; /* of those that wait, in the order in which they were begun */
    bool used, send, done;
    int32_t from, to;
    uint32_t tag;
    void *data;
    size_t bytes;
    uint32_t late; /* how often it is reported as not done though it is */
};

struct fake_end {
    struct tess_transport transport; /* first */
    struct fake_net *net;
    struct fake_request request[TESS_TRANSPORT_REQUESTS];
    uint64_t draws;
};

struct fake_net {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int32_t rank_count;
    int32_t host[FAKE_RANKS_MAX];
    struct fake_request *waits[FAKE_RANKS_MAX][FAKE_RANKS_MAX]; /* [from][to] */
    uint64_t bytes[FAKE_RANKS_MAX][FAKE_RANKS_MAX][FAKE_KINDS];
    int32_t left;
    bool aborted;
    char reason[TESS_TRANSPORT_REASON_BYTES];
};

static uint32_t fake_draw(struct fake_end *end)
{
    /* The generator of SplitMix64 (Steele et al. 2014). */
    uint64_t x = (end->draws += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 33);
}

/* The counterpart of a request, if it was begun: the first of the same tag. */
static struct fake_request *fake_match(struct fake_net *net, const struct fake_request *request)
{
    struct fake_request **at = &net->waits[request->from][request->to];
    for (; *at != NULL; at = &(*at)->next) {
        struct fake_request *other = *at;
        if (other->send == request->send || other->tag != request->tag)
            continue;
        *at = other->next;
        return other;
    }
    return NULL;
}

static enum tess_status fake_begin(struct fake_end *end, bool send, int32_t peer, uint32_t tag,
                                   void *data, size_t bytes, uint32_t *request_out)
{
    struct fake_net *net = end->net;
    uint32_t number = 0;
    while (number < TESS_TRANSPORT_REQUESTS && end->request[number].used)
        number++;
    if (number == TESS_TRANSPORT_REQUESTS || tag >> 24 != 0)
        return TESS_ERR_INTERNAL;
    struct fake_request *own = &end->request[number];
    const int32_t rank = end->transport.rank;
    *own = (struct fake_request){.used = true,
                                 .send = send,
                                 .from = send ? rank : peer,
                                 .to = send ? peer : rank,
                                 .tag = tag,
                                 .data = data,
                                 .bytes = bytes,
                                 .late = fake_draw(end) % 4};
    *request_out = number;
    pthread_mutex_lock(&net->lock);
    net->left++;
    struct fake_request *other = fake_match(net, own);
    enum tess_status status = TESS_OK;
    if (other == NULL) {
        struct fake_request **at = &net->waits[own->from][own->to];
        while (*at != NULL)
            at = &(*at)->next;
        *at = own;
    } else if (other->bytes != bytes) {
        status = TESS_ERR_COMM;
    } else {
        if (bytes > 0)
            memcpy(send ? other->data : data, send ? data : other->data, bytes);
        net->bytes[own->from][own->to][tag >> 21 & 7] += bytes;
        own->done = other->done = true;
        pthread_cond_broadcast(&net->moved);
    }
    pthread_mutex_unlock(&net->lock);
    return status;
}

static enum tess_status fake_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  const void *data, size_t bytes, uint32_t *request_out)
{
    return fake_begin((struct fake_end *)transport, true, peer, tag, (void *)data, bytes,
                      request_out);
}

static enum tess_status fake_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  void *data, size_t bytes, uint32_t *request_out)
{
    return fake_begin((struct fake_end *)transport, false, peer, tag, data, bytes, request_out);
}

static enum tess_status fake_test(struct tess_transport *transport, uint32_t request,
                                  bool *done_out)
{
    struct fake_end *end = (struct fake_end *)transport;
    struct fake_request *own = &end->request[request];
    pthread_mutex_lock(&end->net->lock);
    *done_out = own->done && own->late == 0;
    own->late -= own->done && own->late > 0 ? 1 : 0;
    own->used = !*done_out;
    end->net->left -= *done_out ? 1 : 0;
    enum tess_status status = end->net->aborted ? TESS_ERR_ABORTED : TESS_OK;
    pthread_mutex_unlock(&end->net->lock);
    return *done_out ? TESS_OK : status;
}

static enum tess_status fake_wait(struct tess_transport *transport, double timeout_s)
{
    struct fake_end *end = (struct fake_end *)transport;
    const struct timespec limit = tess_clock_soon(0.001);
    (void)timeout_s;
    pthread_mutex_lock(&end->net->lock);
    if (!end->net->aborted)
        pthread_cond_timedwait(&end->net->moved, &end->net->lock, &limit);
    enum tess_status status = end->net->aborted ? TESS_ERR_ABORTED : TESS_OK;
    pthread_mutex_unlock(&end->net->lock);
    return status;
}

static void fake_abort(struct tess_transport *transport, const char *reason)
{
    struct fake_net *net = ((struct fake_end *)transport)->net;
    pthread_mutex_lock(&net->lock);
    if (!net->aborted)
        strncpy(net->reason, reason, sizeof(net->reason) - 1);
    net->aborted = true;
    pthread_cond_broadcast(&net->moved);
    pthread_mutex_unlock(&net->lock);
}

static void fake_close(struct tess_transport *transport)
{
    free(transport);
}

static const char *fake_host_name(const struct tess_transport *transport, int32_t rank)
{
    (void)transport;
    (void)rank;
    return "somewhere";
}

static const struct tess_transport_ops fake_ops = {.name = "fake",
                                                   .send = fake_send,
                                                   .recv = fake_recv,
                                                   .test = fake_test,
                                                   .wait = fake_wait,
                                                   .abort = fake_abort,
                                                   .close = fake_close,
                                                   .host_name = fake_host_name};

struct fake_net *fake_net_open(int32_t rank_count, const int32_t *host)
{
    struct fake_net *net = calloc(1, sizeof(*net));
    if (net == NULL)
        abort();
    net->rank_count = rank_count;
    for (int32_t r = 0; r < rank_count; r++)
        net->host[r] = host[r];
    pthread_mutex_init(&net->lock, NULL);
    pthread_cond_init(&net->moved, NULL);
    return net;
}

void fake_net_close(struct fake_net *net)
{
    pthread_cond_destroy(&net->moved);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

struct tess_transport *fake_net_transport(struct fake_net *net, int32_t rank)
{
    struct fake_end *end = calloc(1, sizeof(*end));
    if (end == NULL)
        abort();
    end->transport = (struct tess_transport){.ops = &fake_ops,
                                             .rank = rank,
                                             .rank_count = net->rank_count,
                                             .host = net->host,
                                             .reason = net->reason};
    end->net = net;
    end->draws = (uint64_t)rank + 1;
    return &end->transport;
}

uint64_t fake_net_bytes(struct fake_net *net, int32_t from, int32_t to, uint32_t kinds)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&net->lock);
    for (uint32_t k = 0; k < kinds; k++)
        bytes += net->bytes[from][to][k];
    pthread_mutex_unlock(&net->lock);
    return bytes;
}

int32_t fake_net_left(struct fake_net *net)
{
    pthread_mutex_lock(&net->lock);
    int32_t left = net->left;
    pthread_mutex_unlock(&net->lock);
    return left;
}
