/*
 * Messages over MPI, by themselves: a program that mpirun starts. `test_mpi LIBRARY CASE`, with one
 * case a start, because MPI starts once in a process and some cases end it early. Every rank checks
 * what it receives against what it computes itself; the exit status is the verdict.
 */
#include "base/clock.h"
#include "comm/mpi/comm_mpi.h"
#include "comm/net/transport_native.h"
#include "tessera/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == TESS_OK)

static enum tess_status finish(struct tess_transport *t, uint32_t request)
{
    for (;;) {
        bool done;
        enum tess_status status = t->ops->test(t, request, &done);
        if (status != TESS_OK || done)
            return status;
        status = t->ops->wait(t, 1);
        if (status != TESS_OK)
            return status;
    }
}

static unsigned char value(int32_t from, int32_t to, uint32_t round, size_t i)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 17 + round * 7 + i * 3 + i / 251);
}

/* Every pair, sizes on both sides of what libraries send at once, several rounds under way. */
static int messages(struct tess_transport *t)
{
    static const size_t size[] = {0, 1, 7, 4096, 4097, 65537, 1 << 20, 3, 0, 100000};
    enum { ROUNDS = sizeof(size) / sizeof(*size) };
    const int32_t n = t->rank_count;
    uint32_t *request = calloc((size_t)n * ROUNDS * 2, sizeof(*request));
    unsigned char **data = calloc((size_t)n * ROUNDS * 2, sizeof(*data));
    int used = 0;
    CHECK(request != NULL && data != NULL);
    for (int32_t p = 0; p < n; p++)
        for (uint32_t round = 0; p != t->rank && round < ROUNDS; round++) {
            const size_t bytes = size[round];
            /* Two tags: order is promised within one. */
            const uint32_t tag = round % 2 == 0 ? 0 : (1u << 24) - 1;
            unsigned char *out = data[used] = malloc(bytes + 1);
            for (size_t i = 0; i < bytes; i++)
                out[i] = value(t->rank, p, round, i);
            OK(t->ops->send(t, p, tag, out, bytes, &request[used++]));
            data[used] = malloc(bytes + 1);
            memset(data[used], 0xa5, bytes + 1);
            OK(t->ops->recv(t, p, tag, data[used], bytes, &request[used]));
            used++;
        }
    for (int u = used - 1; u >= 0; u--) /* in another order than begun */
        OK(finish(t, request[u]));
    used = 0;
    for (int32_t p = 0; p < n; p++)
        for (uint32_t round = 0; p != t->rank && round < ROUNDS; round++) {
            const unsigned char *in = data[used + 1];
            for (size_t i = 0; i < size[round]; i++)
                CHECK(in[i] == value(p, t->rank, round, i));
            CHECK(in[size[round]] == 0xa5);
            used += 2;
        }
    for (int u = 0; u < used; u++)
        free(data[u]);
    free(data);
    free(request);
    return 0;
}

/* As many requests as are promised, in one direction, and all of them free again afterwards. */
static int many(struct tess_transport *t)
{
    static uint32_t request[TESS_TRANSPORT_REQUESTS];
    static int32_t number[TESS_TRANSPORT_REQUESTS];
    const bool sends = t->rank % 2 == 0;
    const int32_t peer = sends ? t->rank + 1 : t->rank - 1;
    if (peer >= t->rank_count)
        return 0;
    for (int turn = 0; turn < 3; turn++) {
        for (int32_t i = 0; i < TESS_TRANSPORT_REQUESTS; i++) {
            number[i] = sends ? i + turn : -1;
            OK(sends ? t->ops->send(t, peer, 5, &number[i], sizeof(*number), &request[i])
                     : t->ops->recv(t, peer, 5, &number[i], sizeof(*number), &request[i]));
        }
        for (int32_t i = 0; i < TESS_TRANSPORT_REQUESTS; i++) {
            OK(finish(t, request[i]));
            CHECK(number[i] == i + turn);
        }
    }
    return 0;
}

/* Rank 0 sends after a second: the others wait, and leave their core to others meanwhile. */
static int idle(struct tess_transport *t)
{
    int32_t word = 7;
    uint32_t request;
    const double start_s = tess_clock_s(), busy_s = tess_clock_thread_s();
    if (t->rank == 0) {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        for (int32_t p = 1; p < t->rank_count; p++) {
            OK(t->ops->send(t, p, 1, &word, sizeof(word), &request));
            OK(finish(t, request));
        }
        return 0;
    }
    word = 0;
    OK(t->ops->recv(t, 0, 1, &word, sizeof(word), &request));
    OK(finish(t, request));
    const double worked_s = tess_clock_thread_s() - busy_s, passed_s = tess_clock_s() - start_s;
    printf("rank %d waited %.3f s with %.3f s of a processor\n", (int)t->rank, passed_s, worked_s);
    CHECK(word == 7);
    CHECK(passed_s > 0.5);
    CHECK(worked_s < 0.2 * passed_s);
    return 0;
}

/* A wait ends at its limit, and a time of 0 does not sleep. */
static int limit(struct tess_transport *t)
{
    OK(t->ops->wait(t, 0)); /* what came before is no news any more */
    double start_s = tess_clock_s();
    OK(t->ops->wait(t, 0.1));
    CHECK(tess_clock_s() - start_s >= 0.1);
    start_s = tess_clock_s();
    for (int i = 0; i < 100; i++)
        OK(t->ops->wait(t, 0));
    CHECK(tess_clock_s() - start_s < 5); /* 100 sleeps of a limit would be more */
    return 0;
}

/* The last rank gives up; all others, which wait for something else, get the reason and the origin.
 */
static int gives_up(struct tess_transport *t)
{
    static const char reason[] = "the disk of this rank is full";
    const int32_t last = t->rank_count - 1;
    int32_t word;
    uint32_t request;
    char said[64];
    if (t->rank == last) {
        t->ops->abort(t, reason);
        t->ops->abort(t, "another reason, which is not the first");
    }
    const double start_s = tess_clock_s();
    enum tess_status status =
        t->ops->recv(t, (t->rank + 1) % t->rank_count, 3, &word, sizeof(word), &request);
    while (status == TESS_OK && tess_clock_s() - start_s < 20)
        status = t->ops->wait(t, 1);
    CHECK(status == TESS_ERR_ABORTED);
    CHECK(tess_clock_s() - start_s < 5);
    snprintf(said, sizeof(said), "rank %d on host ", (int)last);
    CHECK(strstr(t->reason, said) != NULL);
    CHECK(strstr(t->reason, t->ops->host_name(t, last)) != NULL);
    CHECK(strstr(t->reason, reason) != NULL);
    CHECK(t->ops->wait(t, 1) == TESS_ERR_ABORTED); /* and again */
    printf("received\n");
    fflush(stdout);
    t->ops->close(t);
    /* mpirun ends all with the first of them; a rank that has failed does not end well. */
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    exit(3);
}

/* ---- native collectives ---------------------------------------------------------------------- */

static enum tess_status native_run(struct tess_transport *t, int32_t group,
                                   enum tess_collective collective, const void *source,
                                   void *target, size_t count, int32_t peer)
{
    const struct tess_comm_call call = {.collective = collective,
                                        .reduce = TESS_REDUCE_SUM,
                                        .order = TESS_ORDER_FAST,
                                        .dtype = TESS_F32,
                                        .source = source,
                                        .target = target,
                                        .count = count,
                                        .peer = peer,
                                        .site = ""};
    uint32_t request;
    if (!t->ops->native->can(t, &call))
        return TESS_ERR_UNSUPPORTED;
    enum tess_status status = t->ops->native->begin(t, group, &call, &request);
    return status != TESS_OK ? status : finish(t, request);
}

/* Whole numbers: sums are exact in any order. Ranks of the group are first, first + step, ... */
static int native_group(struct tess_transport *t, int32_t first, int32_t step)
{
    enum { COUNT = 1000 };
    int32_t rank[64], n = 0, own = -1, group;
    for (int32_t r = first; r < t->rank_count; r += step) {
        own = r == t->rank ? n : own;
        rank[n++] = r;
    }
    if (own < 0)
        return 0;
    float *a = calloc((size_t)n * COUNT, sizeof(*a)), *b = calloc((size_t)n * COUNT, sizeof(*b));
    const float sum = (float)(n * (n - 1) / 2);
    CHECK(a != NULL && b != NULL);
    OK(t->ops->native->group_open(t, rank, n, &group));
    for (int turn = 0; turn < 2; turn++) { /* in place, and not */
        for (int i = 0; i < COUNT; i++)
            a[i] = (float)(own + n * i);
        float *to = turn == 0 ? a : b;
        OK(native_run(t, group, TESS_COLLECTIVE_ALL_REDUCE, a, to, COUNT, -1));
        for (int i = 0; i < COUNT; i++)
            CHECK(to[i] == sum + (float)(n * n * i));

        for (int i = 0; i < n * COUNT; i++)
            a[i] = (float)(own + i);
        to = turn == 0 ? a + own * COUNT : b;
        OK(native_run(t, group, TESS_COLLECTIVE_REDUCE_SCATTER, a, to, COUNT, -1));
        for (int i = 0; i < COUNT; i++)
            CHECK(to[i] == sum + (float)(n * (own * COUNT + i)));
        for (int i = 0; i < n * COUNT; i++)
            CHECK(a[i] == (float)(own + i) || (turn == 0 && i / COUNT == own));

        float *from = turn == 0 ? b + own * COUNT : a;
        for (int i = 0; i < COUNT; i++)
            from[i] = (float)(own * COUNT + i);
        OK(native_run(t, group, TESS_COLLECTIVE_ALL_GATHER, from, b, COUNT, -1));
        for (int i = 0; i < n * COUNT; i++)
            CHECK(b[i] == (float)i);

        for (int i = 0; i < COUNT; i++)
            a[i] = (float)(own == n - 1 ? i : -1);
        OK(native_run(t, group, TESS_COLLECTIVE_BROADCAST, a, a, COUNT, n - 1));
        for (int i = 0; i < COUNT; i++)
            CHECK(a[i] == (float)i);

        for (int i = 0; i < COUNT; i++)
            a[i] = (float)(own + i);
        to = own != n - 1 ? NULL : turn == 0 ? a : b;
        OK(native_run(t, group, TESS_COLLECTIVE_REDUCE, a, to, COUNT, n - 1));
        for (int i = 0; i < COUNT && own == n - 1; i++)
            CHECK(to[i] == sum + (float)(n * i));
    }
    for (int i = 0; i < n * COUNT; i++)
        a[i] = (float)(own * 1000000 + i);
    OK(native_run(t, group, TESS_COLLECTIVE_ALL_TO_ALL, a, b, COUNT, -1));
    for (int i = 0; i < n * COUNT; i++)
        CHECK(b[i] == (float)(i / COUNT * 1000000 + own * COUNT + i % COUNT));
    OK(native_run(t, group, TESS_COLLECTIVE_BARRIER, NULL, NULL, 0, -1));
    t->ops->native->group_close(t, group);
    free(a);
    free(b);
    return 0;
}

static int native(struct tess_transport *t)
{
    const struct tess_comm_call half = {
        .collective = TESS_COLLECTIVE_ALL_REDUCE, .dtype = TESS_BF16, .count = 4, .site = ""};
    CHECK(t->ops->native != NULL);
    CHECK(!t->ops->native->can(t, &half)); /* MPI has no such sum */
    CHECK(native_group(t, 0, 1) == 0);
    CHECK(native_group(t, t->rank % 2, 2) == 0); /* even and odd ranks at once */
    return native_group(t, 0, 1);
}

/* The ranks numbered backwards by a boot, as an order of ranks does. */

static enum tess_status gather_nothing(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context, (void)mine, (void)bytes, (void)all;
    return TESS_ERR_INTERNAL;
}

static int renumbered(struct tess_transport *t, enum tess_mpi_library library)
{
    const struct tess_boot boot = {.rank = t->rank_count - 1 - t->rank,
                                   .rank_count = t->rank_count,
                                   .timeout_s = 20,
                                   .address = "127.0.0.1",
                                   .gather = gather_nothing};
    struct tess_transport *other;
    OK(tess_transport_mpi_open(library, &boot, 20, &other));
    CHECK(other->rank == boot.rank && other->rank_count == t->rank_count);
    CHECK(messages(other) == 0);
    CHECK(native(other) == 0);
    other->ops->close(other);
    return messages(t);
}

/* ---- the program ----------------------------------------------------------------------------- */

static int run(struct tess_transport *t, enum tess_mpi_library library, const char *name)
{
    if (strcmp(name, "messages") == 0)
        return messages(t) != 0 || many(t) != 0 || limit(t) != 0;
    if (strcmp(name, "idle") == 0)
        return idle(t);
    if (strcmp(name, "abort") == 0)
        return gives_up(t);
    if (strcmp(name, "renumbered") == 0)
        return renumbered(t, library);
    if (strcmp(name, "native") == 0)
        return native(t);
    fprintf(stderr, "there is no case '%s'\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    struct tess_transport *transport;
    char why[512];
    if (argc != 3) {
        fprintf(stderr, "usage: mpirun -n N test_mpi openmpi|mpich CASE\n");
        return 2;
    }
    const enum tess_mpi_library library =
        strcmp(argv[1], "mpich") == 0 ? TESS_MPI_MPICH : TESS_MPI_OPENMPI;
    enum tess_mpi_library found;
    if (!tess_comm_mpi_there(TESS_MPI_AUTO, &found, why, sizeof(why))) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    CHECK(found == library);
    OK(tess_transport_mpi_open(TESS_MPI_AUTO, NULL, 30, &transport));
    CHECK(transport->host[0] == 0 &&
          transport->ops->host_name(transport, transport->rank)[0] != '\0');
    int failed = run(transport, library, argv[2]);
    if (failed == 0)
        transport->ops->close(transport);
    return failed;
}
