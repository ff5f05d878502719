/*
 * The start of a job of very many ranks, all of whose processes are in this one (crowd.h): their
 * launchers meet, compare options, decide which process is which rank, then the ranks meet and
 * connect. Prints what each stage takes, and what the busiest process sends and keeps.
 *
 *     test_start_many [RANKS [RANKS THAT CONNECT]]
 */
#include "job/crowd.h"

#include "comm/net/net.h"
#include "config/config.h"
#include "job/place.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EACH 8 /* ranks on a host */
#define PORT 29500

struct start {
    int32_t ranks;
    bool connects; /* ranks follow their launchers */
    struct tess_config *config;
    enum tess_status *status; /* [ranks] */
    char why[400];            /* of the first that fails */
};

static char order_option[] = "--topology.order=file:/tmp/tessera-start-many-XXXXXX";
static char *const order_path = order_option + sizeof("--topology.order=file:") - 1;

/* Process 0, then all others from the last on. */
static int32_t rank_wanted(int32_t process, int32_t ranks)
{
    return process == 0 ? 0 : ranks - process;
}

static enum tess_status launch(const struct start *start, struct tess_config *config,
                               struct tess__run *run, int32_t p)
{
    struct tess_boot_env env = {.starter = "crowd",
                                .rank = p,
                                .rank_count = start->ranks,
                                .local_rank = p % EACH,
                                .local_count = EACH,
                                .port = PORT,
                                .job = 7};
    crowd_address(0, env.address);
    memset(env.secret.key, 5, sizeof(env.secret.key));
    return tess__place_ranks(run, config, &env);
}

static void body(void *context, int32_t p)
{
    struct start *start = context;
    struct tess_config config = *start->config;
    struct tess__run run = {.config = &config, .rank_count = start->ranks};
    config.started.rank = p;
    config.started.local_rank = p % EACH;
    run.placed = tess__placed_open();
    enum tess_status status = run.placed != NULL ? TESS_OK : TESS_ERR_MEMORY;
    if (status == TESS_OK)
        status = launch(start, &config, &run, p);
    crowd_mark();
    if (status == TESS_OK && (config.started.rank != rank_wanted(p, start->ranks) ||
                              run.placed->host_count != start->ranks / EACH))
        status = TESS_ERR_INTERNAL;
    start->status[p] = status;
    if (status != TESS_OK && start->why[0] == '\0')
        snprintf(start->why, sizeof(start->why), "process %d: %s", (int)p, tess_log_last_error());
    tess__peers_close(run.peers);
    tess__placed_close(run.placed);
}

static void open_config(struct start *start)
{
    char ranks[32], batch[32], grid[32];
    char *words[] = {"--model=mlp", "--strategy=ddp", "--data=synthetic", order_option,
                     ranks,         batch,            grid};
    const struct tess_started place = {.starter = "crowd",
                                       .rank_count = start->ranks,
                                       .local_rank = 0,
                                       .host_count = start->ranks / EACH};
    snprintf(ranks, sizeof(ranks), "--ranks=%d", (int)start->ranks);
    snprintf(batch, sizeof(batch), "--batch-size=%d", (int)start->ranks);
    snprintf(grid, sizeof(grid), "--grid=%d", (int)start->ranks);
    assert_int_equal(tess_config_open_placed(sizeof(words) / sizeof(*words), words, NULL, 0, &place,
                                             &start->config),
                     TESS_OK);
    FILE *file = fopen(order_path, "w");
    assert_non_null(file);
    for (int32_t r = 0; r < start->ranks; r++)
        fprintf(file, "%d\n", (int)rank_wanted(r, start->ranks));
    assert_int_equal(fclose(file), 0);
}

static void print_stage(const char *name, const struct crowd_stage *stage, int32_t ranks)
{
    struct crowd_stage most = {.at_s = 0}, others = {.at_s = 0};
    double bytes = 0;
    for (int32_t p = 0; p < ranks; p++) {
        const struct crowd_stage *own = &stage[p];
        most.at_s = own->at_s > most.at_s ? own->at_s : most.at_s;
        most.messages = own->messages > most.messages ? own->messages : most.messages;
        most.bytes = own->bytes > most.bytes ? own->bytes : most.bytes;
        most.connections =
            own->connections > most.connections ? own->connections : most.connections;
        others.memory = p > 0 && own->memory > others.memory ? own->memory : others.memory;
        bytes += (double)own->bytes / 2;
    }
    printf("%-9s %6d | %7.3f | %9.2f | %8lld %8.3f %6d %7.3f | %8.1f %8.1f\n", name, (int)ranks,
           most.at_s, bytes / 1e6, (long long)most.messages, (double)most.bytes / 1e6,
           (int)most.connections, stage[0].processor_s, (double)stage[0].memory / 1024,
           (double)others.memory / 1024);
}

static void run(int32_t ranks, bool connects, bool processor)
{
    const struct crowd_setup setup = {.count = ranks,
                                      .each = EACH,
                                      .latency_s = 20e-6,
                                      .bytes_per_s = 1.25e9,
                                      .processor = processor};
    struct start start = {.ranks = ranks,
                          .connects = connects,
                          .status = calloc((size_t)ranks, sizeof(enum tess_status))};
    struct crowd_stage *stage =
        calloc((size_t)ranks * CROWD_STAGES, sizeof(struct crowd_stage));
    assert_non_null(start.status);
    assert_non_null(stage);
    open_config(&start);
    crowd_run(&setup, body, &start, stage);
    print_stage("launchers", stage, ranks);
    if (start.why[0] != '\0')
        fail_msg("%s", start.why);
    printf("stack of others: %.1f KiB\n", (double)crowd_stack() / 1024);
    tess_config_close(start.config);
    free(start.status);
    free(stage);
}

static int32_t ranks_wanted = 512;
static bool processor_wanted;

static void case_start(void **state)
{
    (void)state;
    run(ranks_wanted, false, processor_wanted);
}

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(order_path);
    return fd >= 0 ? close(fd) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(order_path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_start)};
    if (argc > 1)
        ranks_wanted = (int32_t)strtol(argv[1], NULL, 10);
    processor_wanted = argc > 2;
    return cmocka_run_group_tests(cases, make_file, remove_file);
}
