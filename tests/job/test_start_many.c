/*
 * The start of a job of very many ranks, all of whose processes are in this one (crowd.h), by the
 * code of the engine: launchers meet, compare options and decide which process is which rank; their
 * ranks meet; those over sockets connect, split into the groups of a mesh and add something up in
 * each. Prints when each stage has ended, and what the busiest process sends, gets and keeps.
 *
 *     test_start_many [RANKS [RANKS OVER SOCKETS [processor]]]
 *
 * With `processor` what the code takes of this machine's processor counts as time, too.
 */
#include "job/crowd.h"

#include "comm/net/net.h"
#include "config/config.h"
#include "job/place.h"
#include "tessera/check.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EACH    8 /* ranks on a host */
#define FAN     TESS_BOOT_FAN
#define PORT    29500
#define STAGES  4 /* of the mesh */
#define AXES    3
#define LIMIT_S 300

struct start {
    int32_t ranks;
    bool connects; /* over sockets */
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

/* The ranks' own meeting, as in open_comm.c, then what a step needs: a group for each axis of the
 * mesh, and a sum in each, after which all connections of its tree are there. */
static enum tess_status connect_rank(const struct start *start, const struct tess__peers *peers)
{
    const int32_t rank = peers->env.rank, tensor = EACH, stage = STAGES;
    const int32_t at[AXES] = {rank / (tensor * stage), rank % tensor, rank / tensor % stage};
    const int32_t color[AXES] = {rank % (tensor * stage), rank / tensor, at[0] * tensor + at[1]};
    struct tess_boot *boot = NULL;
    struct tess_transport *transport;
    struct tess_comm *comm = NULL, *axis[AXES] = {NULL};
    float sum[AXES] = {1, 1, 1};

    TESS_TRY(tess_boot_open(&peers->env, LIMIT_S, &boot));
    crowd_mark();
    if (!start->connects) {
        tess_boot_close(boot);
        return TESS_OK;
    }
    enum tess_status status = tess_transport_tcp_open(boot, LIMIT_S, &transport);
    if (status == TESS_OK)
        status = tess_comm_net_open(transport, NULL, TESS_ORDER_CANONICAL, LIMIT_S, &comm);
    tess_boot_close(boot);
    crowd_mark();
    for (int a = 0; a < AXES && status == TESS_OK; a++)
        status = tess_comm_split(comm, color[a], at[a], &axis[a]);
    crowd_mark();
    for (int a = 0; a < AXES && status == TESS_OK; a++)
        status =
            tess_comm_all_reduce(axis[a], &sum[a], &sum[a], 1, TESS_F32, TESS_REDUCE_SUM, NULL);
    crowd_mark();
    const float wanted[AXES] = {(float)(start->ranks / (tensor * stage)), (float)tensor,
                                (float)stage};
    if (status == TESS_OK && memcmp(sum, wanted, sizeof(sum)) != 0)
        status = TESS_ERR_INTERNAL;
    for (int a = 0; a < AXES; a++)
        tess_comm_close(axis[a]);
    tess_comm_close(comm);
    return status;
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
    if (status == TESS_OK)
        status = connect_rank(start, run.peers);
    start->status[p] = status;
    if (status != TESS_OK && start->why[0] == '\0')
        snprintf(start->why, sizeof(start->why), "process %d: %s", (int)p, tess_log_last_error());
    tess__peers_close(run.peers);
    tess__placed_close(run.placed);
}

static void open_config(struct start *start)
{
    char ranks[32], batch[32], grid[32];
    char *words[] = {
        "--model=mlp", "--strategy=ddp", "--data=synthetic", order_option, ranks, batch, grid};
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

/* Of all in a stage. */
struct sums {
    struct crowd_stage most, others; /* others: without process 0 */
    double bytes;                    /* sent */
};

static void most_of(struct crowd_stage *most, const struct crowd_stage *own)
{
    most->at_s = fmax(most->at_s, own->at_s);
    most->messages = own->messages > most->messages ? own->messages : most->messages;
    most->bytes = own->bytes > most->bytes ? own->bytes : most->bytes;
    most->connections = own->connections > most->connections ? own->connections : most->connections;
    most->memory = own->memory > most->memory ? own->memory : most->memory;
}

static struct sums print_stage(const char *name, const struct crowd_stage *stage, int32_t ranks)
{
    struct sums sums = {.bytes = 0};
    for (int32_t p = 0; p < ranks; p++) {
        most_of(&sums.most, &stage[p]);
        if (p > 0)
            most_of(&sums.others, &stage[p]);
        sums.bytes += (double)stage[p].bytes / 2;
    }
    printf("%-9s %6d | %7.3f %9.2f | %6lld %8.3f %8.1f %6.3f | %6lld %8.3f %8.1f\n", name,
           (int)ranks, sums.most.at_s, sums.bytes / 1e6, (long long)stage[0].messages,
           (double)stage[0].bytes / 1e6, (double)stage[0].memory / 1024, stage[0].processor_s,
           (long long)sums.others.messages, (double)sums.others.bytes / 1e6,
           (double)sums.others.memory / 1024);
    return sums;
}

static bool processor_wanted;

/* sums_out [stages]: STAGES_MET, or with `connects` STAGES_ALL. */
enum { STAGES_MET = 2, STAGES_ALL = 5 };
static void run(int32_t ranks, bool connects, struct sums sums_out[STAGES_ALL])
{
    static const char *const name[STAGES_ALL] = {"launchers", "ranks", "connected", "groups",
                                                 "sums"};
    const struct crowd_setup setup = {.count = ranks,
                                      .each = EACH,
                                      .latency_s = 20e-6,
                                      .bytes_per_s = 1.25e9,
                                      .processor = processor_wanted};
    struct start start = {.ranks = ranks,
                          .connects = connects,
                          .status = calloc((size_t)ranks, sizeof(enum tess_status))};
    struct crowd_stage *stage = calloc((size_t)ranks * CROWD_STAGES, sizeof(*stage));
    assert_non_null(start.status);
    assert_non_null(stage);
    open_config(&start);
    crowd_run(&setup, body, &start, stage);
    printf("                 |     end       all | process 0:     MB      KiB  proc. | others:"
           "      MB      KiB\n"
           "stage      ranks |       s        MB | msgs   both ways  allocated s | msgs   both ways"
           " allocated\n");
    for (int i = 0; i < (connects ? STAGES_ALL : STAGES_MET); i++)
        sums_out[i] = print_stage(name[i], stage + i * ranks, ranks);
    printf("stack of another process than 0: %.1f KiB\n", (double)crowd_stack() / 1024);
    tess_config_close(start.config);
    free(start.status);
    free(stage);
    if (start.why[0] != '\0')
        fail_msg("%s", start.why);
}

static int32_t ranks_met = 512, ranks_connected = 192;

/* Within 10 s, though all begin at once, and what a launcher sends and keeps is of its neighbours
 * and of those behind it: a table of all would be 64 bytes for each. */
static void case_meet(void **state)
{
    struct sums sums[STAGES_ALL];
    (void)state;
    /* A launcher passes on what is for those behind it: FAN * FAN where there are as many. */
    const double behind = ranks_met > FAN * FAN ? 200.0 * FAN * FAN : 0;
    const double most = 48 * 1024.0 + 16.0 * ranks_met + behind;
    run(ranks_met, false, sums);
    for (int i = 0; i < STAGES_MET; i++)
        assert_true(sums[i].most.at_s < 10);
    assert_true(sums[0].bytes < 3000.0 * ranks_met);
    assert_true(sums[0].others.messages <= 40 * FAN);
    assert_true((double)sums[0].others.memory < most);
    assert_true(sums[1].bytes < 2000.0 * ranks_met);
    assert_true((double)sums[1].others.memory < most);
}

/* Sockets connect when they are needed: a rank has those of the trees of four groups. */
static void case_connect(void **state)
{
    struct sums sums[STAGES_ALL];
    (void)state;
    run(ranks_connected, true, sums);
    assert_true(sums[STAGES_ALL - 1].most.at_s < 10);
    assert_true(sums[STAGES_ALL - 1].others.connections < FAN + 1 + 2 * 4 * 16);
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
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_meet), cmocka_unit_test(case_connect)};
    if (argc > 1)
        ranks_met = (int32_t)strtol(argv[1], NULL, 10);
    if (argc > 2)
        ranks_connected = (int32_t)strtol(argv[2], NULL, 10);
    processor_wanted = argc > 3 && strcmp(argv[3], "processor") == 0;
    return cmocka_run_group_tests(cases, make_file, remove_file);
}
