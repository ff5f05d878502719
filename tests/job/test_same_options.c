/* Options of many ranks are compared before these do anything together. Ranks are threads that meet
 * over the loopback, in a tree. */
#include "job/place.h"

#include "base/log_sink.h"
#include "config/config.h"
#include "harness/free_port.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS 96

struct rank {
    struct tess_boot_env env;
    struct tess_config *config;
    enum tess_status status;
    char text[1024]; /* the message */
    pthread_t thread;
};

static struct rank ranks[RANKS];

static void take_line(void *context, enum tess_log_level level, const char *text)
{
    (void)level;
    snprintf(((struct rank *)context)->text, sizeof(ranks[0].text), "%s", text);
}

static void *compare(void *context)
{
    struct rank *rank = context;
    const struct tess__log_sink sink = {take_line, rank};
    struct tess_boot *boot = NULL;
    struct tess_boot_post *post = NULL;
    tess__log_redirect(&sink);
    rank->status = tess_boot_open(&rank->env, 60, &boot);
    if (rank->status == TESS_OK)
        rank->status = tess_boot_post_open(boot, &post);
    if (rank->status == TESS_OK)
        rank->status = tess__same_options(rank->config->options, post, rank->env.rank);
    tess_boot_post_close(post);
    tess_boot_close(boot);
    return NULL;
}

/* Rank `odd` has other words; -1: none. */
static void compare_all(int32_t odd, const char *word)
{
    char *words[] = {"--model", "mlp", (char *)word};
    const int32_t port = free_port();
    for (int32_t r = 0; r < RANKS; r++) {
        struct tess_config *config = NULL;
        if (r == 0 || r == odd) {
            assert_int_equal(tess_config_open(r == odd ? 3 : 2, words, NULL, 0, &config), TESS_OK);
            ranks[r].config = config;
        } else {
            ranks[r].config = ranks[0].config;
        }
        ranks[r].text[0] = '\0';
        ranks[r].env = (struct tess_boot_env){.starter = "test",
                                              .rank = r,
                                              .rank_count = RANKS,
                                              .port = port,
                                              .address = "127.0.0.1",
                                              .job = 9};
    }
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, compare, &ranks[r]), 0);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    if (odd > 0)
        tess_config_close(ranks[odd].config);
    tess_config_close(ranks[0].config);
}

static void case_same(void **state)
{
    (void)state;
    compare_all(-1, NULL);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(ranks[r].status, TESS_OK);
}

/* All say the same of the one that differs, wherever in the tree it is. */
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_same), cmocka_unit_test(case_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
