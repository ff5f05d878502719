/*
 * Exchanges with rank 0 alone: blobs of all sizes there and back, and what happens where a rank has
 * left or brings something else. Ranks are threads that meet over the loopback.
 */
#include "comm/boot/boot_post.h"
#include "harness/free_port.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 40 /* more than are connected behind one */

struct member {
    struct tess_boot_env env;
    enum tess_status (*then)(struct tess_boot_post *post, int32_t rank);
    enum tess_status status;
    pthread_t thread;
};

static void *member_run(void *context)
{
    struct member *member = context;
    struct tess_boot *boot = NULL;
    struct tess_boot_post *post = NULL;
    member->status = tess_boot_open(&member->env, 5, &boot);
    if (member->status == TESS_OK)
        member->status = tess_boot_post_open(boot, &post);
    if (member->status == TESS_OK)
        member->status = member->then(post, member->env.rank);
    tess_boot_post_close(post);
    tess_boot_close(boot);
    return NULL;
}

static void meet(enum tess_status (*then)(struct tess_boot_post *post, int32_t rank),
                 enum tess_status status_out[RANKS])
{
    struct member member[RANKS];
    const int32_t port = free_port();
    for (int32_t r = 0; r < RANKS; r++) {
        member[r] = (struct member){.then = then};
        member[r].env = (struct tess_boot_env){.starter = "test",
                                               .rank = r,
                                               .rank_count = RANKS,
                                               .port = port,
                                               .address = "127.0.0.1",
                                               .job = 5};
        assert_int_equal(pthread_create(&member[r].thread, NULL, member_run, &member[r]), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(pthread_join(member[r].thread, NULL), 0);
        status_out[r] = member[r].status;
    }
}

/* ---- all goes well --------------------------------------------------------------------------- */

/* Rank 3 brings nothing, and rank 4 a lot. */
static size_t size_of(int32_t rank, int round)
{
    return rank == 3 ? 0 : rank == 4 ? 300000 : (size_t)(100 * rank + round + 1);
}

static char byte_of(int32_t rank, int round, size_t at)
{
    return (char)(31 * rank + 7 * round + (int)(at % 101));
}

static bool filled(const char *bytes, size_t count, int32_t rank, int round)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte_of(rank, round, i))
            return false;
    return count == size_of(rank, round);
}

static enum tess_status one_round(struct tess_boot_post *post, int32_t rank, int round, char *mine)
{
    struct tess_boot_parts came, own = {0};
    size_t bytes = size_of(rank, round);
    bool good = true;
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(rank, round, i);
    enum tess_status status = tess_boot_collect(post, mine, bytes, &came);
    if (status == TESS_OK && rank == 0)
        status = tess_boot_parts_open(&own, RANKS);
    for (int32_t r = 0; r < RANKS && rank == 0 && status == TESS_OK; r++) {
        good =
            good && filled(came.bytes + came.first[r], came.first[r + 1] - came.first[r], r, round);
        /* What rank r gets is rank r's of the next round. */
        char *to = tess_boot_parts_add(&own, size_of(r, round + 1));
        for (size_t i = 0; i < size_of(r, round + 1); i++)
            to[i] = byte_of(r, round + 1, i);
    }
    if (status == TESS_OK)
        status = tess_boot_deal(post, &own, mine, 300000, &bytes);
    good = good && (status != TESS_OK || filled(mine, bytes, rank, round + 1));
    tess_boot_parts_close(&came);
    tess_boot_parts_close(&own);
    int32_t word[3] = {rank == 0 ? 11 + round : -1, 12, rank == 0 ? 13 : -1};
    if (status == TESS_OK)
        status = tess_boot_share(post, word, sizeof(word));
    good = good && (status != TESS_OK || (word[0] == 11 + round && word[2] == 13));
    return status == TESS_OK && !good ? TESS_ERR_DATA : status;
}

static enum tess_status three_rounds(struct tess_boot_post *post, int32_t rank)
{
    char *mine = malloc(300000);
    enum tess_status status = mine != NULL ? TESS_OK : TESS_ERR_MEMORY;
    for (int round = 0; round < 3 && status == TESS_OK; round++)
        status = one_round(post, rank, round, mine);
    free(mine);
    return status;
}

static void case_exchanges(void **state)
{
    (void)state;
    enum tess_status status[RANKS];
    meet(three_rounds, status);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(status[r], TESS_OK);
}

/* ---- something goes wrong -------------------------------------------------------------------- */

/* A collection, and the next word of rank 0; rank 2 has left before. */
static enum tess_status without_one(struct tess_boot_post *post, int32_t rank)
{
    struct tess_boot_parts parts;
    int32_t word = 0;
    if (rank == 2)
        return TESS_OK;
    enum tess_status status = tess_boot_collect(post, &word, sizeof(word), &parts);
    if (status == TESS_OK)
        status = tess_boot_share(post, &word, sizeof(word));
    tess_boot_parts_close(&parts);
    return status;
}

static void case_one_has_left(void **state)
{
    (void)state;
    enum tess_status status[RANKS];
    meet(without_one, status);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(status[r], r == 2 ? TESS_OK : TESS_ERR_COMM);
}

/* Rank 0 shares more than rank 1 expects; afterwards nothing is exchanged. */
static enum tess_status other_sizes(struct tess_boot_post *post, int32_t rank)
{
    char word[16] = "";
    const enum tess_status first = tess_boot_share(post, word, rank == 1 ? 8 : 16);
    const enum tess_status second = tess_boot_share(post, word, 16);
    return rank == 1 && first == TESS_OK ? TESS_ERR_DATA : second;
}

static void case_other_sizes(void **state)
{
    (void)state;
    enum tess_status status[RANKS];
    meet(other_sizes, status);
    assert_int_equal(status[1], TESS_ERR_COMM);
}

/* A deal that has no room at its rank, and blobs that are too large. */
static enum tess_status no_room(struct tess_boot_post *post, int32_t rank)
{
    static char large[TESS_BOOT_BLOB_MAX + 1];
    struct tess_boot_parts came, own = {0};
    char mine[9];
    size_t bytes;
    if (tess_boot_collect(post, large, sizeof(large), &came) != TESS_ERR_INTERNAL)
        return TESS_ERR_DATA;
    enum tess_status status = tess_boot_collect(post, mine, 0, &came);
    if (status == TESS_OK && rank == 0)
        status = tess_boot_parts_open(&own, RANKS);
    for (int32_t r = 0; r < RANKS && rank == 0; r++)
        memset(tess_boot_parts_add(&own, 9), 0, 9);
    if (status == TESS_OK)
        status = tess_boot_deal(post, &own, mine, rank == RANKS - 1 ? 8 : 9, &bytes);
    tess_boot_parts_close(&came);
    tess_boot_parts_close(&own);
    return status;
}

static void case_no_room(void **state)
{
    (void)state;
    enum tess_status status[RANKS];
    meet(no_room, status);
    assert_int_equal(status[RANKS - 1], TESS_ERR_COMM);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_exchanges),
        cmocka_unit_test(case_one_has_left),
        cmocka_unit_test(case_other_sizes),
        cmocka_unit_test(case_no_room),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
