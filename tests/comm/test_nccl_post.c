/*
 * Letters between the threads of NCCL's ranks: they come, whatever strangers do on the same port,
 * and nothing else is taken for one. No part of NCCL runs.
 */
#include "comm/nccl/nccl_group.h"

#include "base/clock.h"
#include "comm/boot/boot_socket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS  2
#define SILENT 300
#define LETTER (sizeof(struct nccl_letter) + 48) /* with its number, who it is for, its proof */
#define SOON_S 20.0                              /* on a machine that is busy */

/* What each rank sends in a gather of addresses; the port follows the word. */
struct address {
    uint64_t word[2];
    int32_t port, zero;
    char host[256];
};

struct rank {
    struct nccl_family family;
    struct tess_boot boot;
    pthread_t thread;
    enum tess_status status;
};

static struct {
    pthread_barrier_t meets;
    struct address address[RANKS];
    int32_t port;  /* of rank 0 */
    int32_t relay; /* rank 1 is given this port for it; 0: its own */
    struct rank rank[RANKS];
} pair;

static enum tess_status gather(void *context, const void *mine, size_t bytes, void *all)
{
    const struct rank *rank = context;
    if (bytes != sizeof(pair.address[0]))
        return TESS_ERR_INTERNAL;
    memcpy(&pair.address[rank->boot.rank], mine, bytes);
    pthread_barrier_wait(&pair.meets);
    memcpy(all, pair.address, sizeof(pair.address));
    pair.port = pair.address[0].port;
    if (rank->boot.rank == 1 && pair.relay != 0)
        ((struct address *)all)[0].port = pair.relay;
    return TESS_OK;
}

static void *open_rank(void *context)
{
    struct rank *rank = context;
    rank->status = tess__nccl_post_open(&rank->family, &rank->boot);
    return NULL;
}

static void open_pair(int32_t relay)
{
    memset(&pair, 0, sizeof(pair));
    pair.relay = relay;
    pthread_barrier_init(&pair.meets, NULL, RANKS);
    for (int32_t r = 0; r < RANKS; r++) {
        struct rank *rank = &pair.rank[r];
        rank->family.rank = r;
        rank->family.rank_count = RANKS;
        rank->boot = (struct tess_boot){.rank = r,
                                        .rank_count = RANKS,
                                        .timeout_s = 10,
                                        .address = "127.0.0.1",
                                        .context = rank,
                                        .gather = gather};
        assert_int_equal(pthread_create(&rank->thread, NULL, open_rank, rank), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(pair.rank[r].thread, NULL);
        assert_int_equal(pair.rank[r].status, TESS_OK);
    }
}

static void close_pair(void)
{
    for (int32_t r = 0; r < RANKS; r++)
        tess__nccl_post_close(&pair.rank[r].family);
    pthread_barrier_destroy(&pair.meets);
}

static struct nccl_letter letter_of(uint64_t group)
{
    return (struct nccl_letter){
        .group = group, .kind = NCCL_REQUEST, .from = 1, .to = 0, .sender = 1};
}

static int call(int32_t port)
{
    char why[BOOT_WHY_BYTES];
    const int fd = tess__boot_connect("127.0.0.1", port, tess_clock_s() + 5, why, sizeof(why));
    assert_true(fd >= 0);
    return fd;
}

/* The next letter of rank 0 within so many seconds; false: none. */
static bool take(double limit_s, struct nccl_letter *letter)
{
    for (const double end_s = tess_clock_s() + limit_s; tess_clock_s() < end_s;)
        if (tess__nccl_post_take(&pair.rank[0].family, 0.05, letter))
            return true;
    return false;
}

/* Strangers are many, silent, and before the letter in the queue; others send what is none. */
static void case_strangers(void **state)
{
    static char noise[LETTER];
    struct nccl_letter letter;
    int fd[SILENT];
    (void)state;
    open_pair(0);
    for (int i = 0; i < SILENT; i++) {
        fd[i] = call(pair.port);
        if (i % 3 == 0)
            (void)!send(fd[i], noise, i % 2 == 0 ? sizeof(noise) : 7, MSG_NOSIGNAL);
    }
    for (uint64_t g = 1; g <= 3; g++) {
        const struct nccl_letter sent = letter_of(g);
        assert_true(tess__nccl_post_send(&pair.rank[1].family, 0, &sent));
    }
    for (uint64_t g = 1; g <= 3; g++) {
        assert_true(take(SOON_S, &letter));
        assert_int_equal(letter.group, g);
    }
    assert_false(take(0.3, &letter));
    for (int i = 0; i < SILENT; i++)
        close(fd[i]);
    close_pair();
}

/* A letter that was recorded on its way; the same once more; and others made of it, which nothing
 * but the signature shows. */
static void case_recorded(void **state)
{
    struct boot_listener relay = {.count = 0};
    struct nccl_letter letter = letter_of(5);
    char frame[LETTER], why[BOOT_WHY_BYTES];
    (void)state;
    assert_int_equal(tess__boot_listen("127.0.0.1", 0, &relay), TESS_OK);
    open_pair(tess__boot_port(&relay));
    assert_true(tess__nccl_post_send(&pair.rank[1].family, 0, &letter));
    int from = -1;
    while ((from = tess__boot_accept(&relay)) < 0)
        poll(NULL, 0, 5);
    assert_true(
        tess__boot_receive(from, frame, sizeof(frame), tess_clock_s() + 5, why, sizeof(why)));
    close(from);
    for (int i = 0; i < 4; i++) {
        char now[LETTER];
        const int fd = call(pair.port);
        memcpy(now, frame, sizeof(now));
        const uint64_t number = 50 + (uint64_t)i;
        if (i == 2) /* a number that has not come */
            memcpy(now + sizeof(letter), &number, sizeof(number));
        if (i == 3) /* another kind, as there is, and the next number */
            now[offsetof(struct nccl_letter, kind)] ^= 1, now[sizeof(letter)]++;
        assert_int_equal(send(fd, now, sizeof(now), MSG_NOSIGNAL), (int)sizeof(now));
        assert_int_equal(take(i == 0 ? SOON_S : 0.3, &letter), i == 0);
        close(fd);
    }
    tess__boot_unlisten(&relay);
    close_pair();
}

/* Two of one rank may overtake each other. */
static void case_order(void **state)
{
    struct boot_listener relay = {.count = 0};
    char frame[3][LETTER];
    struct nccl_letter letter;
    (void)state;
    assert_int_equal(tess__boot_listen("127.0.0.1", 0, &relay), TESS_OK);
    open_pair(tess__boot_port(&relay));
    for (uint64_t g = 0; g < 3; g++) {
        const struct nccl_letter sent = letter_of(g + 10);
        int from = -1;
        assert_true(tess__nccl_post_send(&pair.rank[1].family, 0, &sent));
        while ((from = tess__boot_accept(&relay)) < 0)
            poll(NULL, 0, 5);
        assert_true(tess__boot_receive(from, frame[g], LETTER, tess_clock_s() + 5, NULL, 0));
        close(from);
    }
    for (int g = 2; g >= 0; g--) {
        const int fd = call(pair.port);
        assert_int_equal(send(fd, frame[g], LETTER, MSG_NOSIGNAL), (int)LETTER);
        assert_true(take(SOON_S, &letter));
        assert_int_equal(letter.group, g + 10);
        close(fd);
    }
    tess__boot_unlisten(&relay);
    close_pair();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_strangers),
        cmocka_unit_test(case_recorded),
        cmocka_unit_test(case_order),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
