/* Options of many ranks are compared before these do anything together: threads in their place. */
#include "job/place.h"

#include "base/log_sink.h"
#include "config/config.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 96
#define SHARE ((size_t)1 << 16) /* of a rank in a gather, at most */

static pthread_barrier_t meets;
static unsigned char *shared;
static size_t most_bytes; /* of all ranks in one gather */

struct rank {
    struct tess_boot boot;
    struct tess_config *config;
    enum tess_status status;
    char text[1024]; /* the message */
    pthread_t thread;
};

static struct rank ranks[RANKS];

/* What each has comes to all of them. */
static enum tess_status gather(void *context, const void *mine, size_t bytes, void *all)
{
    const struct rank *rank = context;
    if (bytes > SHARE)
        return TESS_ERR_INTERNAL;
    memcpy(shared + (size_t)rank->boot.rank * bytes, mine, bytes);
    if (rank->boot.rank == 0)
        most_bytes = bytes * RANKS > most_bytes ? bytes * RANKS : most_bytes;
    pthread_barrier_wait(&meets);
    memcpy(all, shared, bytes * RANKS);
    pthread_barrier_wait(&meets);
    return TESS_OK;
}

static void take_line(void *context, enum tess_log_level level, const char *text)
{
    (void)level;
    snprintf(((struct rank *)context)->text, sizeof(ranks[0].text), "%s", text);
}

static void *compare(void *context)
{
    struct rank *rank = context;
    const struct tess__log_sink sink = {take_line, rank};
    tess__log_redirect(&sink);
    rank->status = tess__same_options(rank->config->options, &rank->boot);
    return NULL;
}

/* Rank `odd` has other words; -1: none. */
static void compare_all(int32_t odd, const char *word)
{
    char *words[] = {"--model", "mlp", (char *)word};
    pthread_barrier_init(&meets, NULL, RANKS);
    shared = calloc(RANKS, SHARE);
    assert_non_null(shared);
    most_bytes = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        struct tess_config *config = NULL;
        if (r == 0 || r == odd) {
            assert_int_equal(tess_config_open(r == odd ? 3 : 2, words, NULL, 0, &config), TESS_OK);
            ranks[r].config = config;
        } else {
            ranks[r].config = ranks[0].config;
        }
        ranks[r].text[0] = '\0';
        ranks[r].boot = (struct tess_boot){
            .rank = r, .rank_count = RANKS, .context = &ranks[r], .gather = gather};
    }
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, compare, &ranks[r]), 0);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    if (odd > 0)
        tess_config_close(ranks[odd].config);
    tess_config_close(ranks[0].config);
    free(shared);
    pthread_barrier_destroy(&meets);
}

static void case_same(void **state)
{
    (void)state;
    compare_all(-1, NULL);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(ranks[r].status, TESS_OK);
    assert_int_equal(most_bytes, 16 * RANKS); /* a hash and a length each */
}

/* All say the same of the one that differs, and the texts of all ranks are never in one place. */
static void case_differs(void **state)
{
    (void)state;
    compare_all(77, "--learning-rate=0.3");
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].status, TESS_ERR_USAGE);
        assert_string_equal(ranks[r].text, ranks[0].text);
    }
    assert_non_null(
        strstr(ranks[0].text, "--learning-rate is '0.05' on rank 0 and '0.3' on rank 77"));
    assert_true(most_bytes <= (size_t)1 << 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_same), cmocka_unit_test(case_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
