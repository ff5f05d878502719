/* Which rank has which device, and what follows from it; and the options that say so. */
#include "base/options.h"
#include "config/config.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* The communicators with their default options. */
static const struct tess_comm_options *kinds(void)
{
    static struct tess_comm_options all;
    static struct tess_options *options;

    if (options == NULL) {
        assert_int_equal(tess_options_open(&options), TESS_OK);
        assert_int_equal(tess_comm_options_add(options, &all), TESS_OK);
    }
    return &all;
}

/* D devices that all reach each other, or none the other. */
static const struct tess_devices *devices_of(int32_t count, bool reach)
{
    static struct tess_devices devices;

    memset(&devices, 0, sizeof(devices));
    devices.count = count;
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = 0; b < count; b++)
            devices.reaches[a][b] = reach && a != b;
    return &devices;
}

/* For all numbers of ranks and devices: every device in use has a rank, blocks are consecutive and
 * differ by one rank at most, and ranks share only where there are too few devices. */
static void case_blocks(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= TESS_DEVICE_MAX; n++)
        for (int32_t d = 1; d <= TESS_DEVICE_MAX; d++) {
            struct tess_device_plan plan = {.comm_options = kinds()};
            int32_t load[TESS_DEVICE_MAX] = {0}, least = n, most = 0;

            assert_int_equal(
                tess_device_plan_make(devices_of(d, true), n, TESS_RANKS_PROCESSES, "auto", &plan),
                TESS_OK);
            assert_int_equal(plan.count, n < d ? n : d);
            assert_int_equal(plan.shared, n > d);
            assert_int_equal(plan.of_rank[0], 0);
            for (int32_t r = 0; r < n; r++) {
                assert_in_range(plan.of_rank[r], 0, plan.count - 1);
                if (r > 0)
                    assert_in_range(plan.of_rank[r] - plan.of_rank[r - 1], 0, 1);
                load[plan.of_rank[r]]++;
            }
            for (int32_t i = 0; i < plan.count; i++) {
                least = load[i] < least ? load[i] : least;
                most = load[i] > most ? load[i] : most;
            }
            assert_in_range(most - least, 0, 1);
            assert_true(least >= 1);
            tess_device_plan_free(&plan);
        }
}

/* The drawing in config_device.h. */
static void case_drawing(void **state)
{
    static const int32_t drawn[] = {0, 0, 0, 1, 1};
    struct tess_device_plan plan = {.comm_options = kinds()};

    (void)state;
    assert_int_equal(
        tess_device_plan_make(devices_of(2, true), 5, TESS_RANKS_PROCESSES, "auto", &plan),
        TESS_OK);
    assert_memory_equal(plan.of_rank, drawn, sizeof(drawn));
    tess_device_plan_free(&plan);
}

static void case_choice(void **state)
{
    static const struct {
        int32_t devices;
        bool reach;
        int32_t ranks;
        enum tess_rank_mode mode;
        const char *asked, *comm;
        enum tess_rank_mode run;
        const char *refused;
    } wanted[] = {
        {1, true, 1, TESS_RANKS_PROCESSES, "auto", "self", TESS_RANKS_PROCESSES, 0},
        {1, true, 1, TESS_RANKS_PROCESSES, "nccl", "self", TESS_RANKS_PROCESSES, 0},
        /* Several on one device. */
        {1, true, 4, TESS_RANKS_PROCESSES, "auto", "local", TESS_RANKS_THREADS, 0},
        {1, true, 4, TESS_RANKS_PROCESSES, "nccl", "nccl", 0, "--ranks 1 or fewer"},
        /* One each. */
        {4, true, 4, TESS_RANKS_PROCESSES, "auto", "nccl", TESS_RANKS_PROCESSES, 0},
        {4, true, 4, TESS_RANKS_PROCESSES, "local", "local", TESS_RANKS_THREADS, 0},
        {4, false, 4, TESS_RANKS_PROCESSES, "local", "nccl", 0, "--comm nccl"},
        {8, true, 2, TESS_RANKS_PROCESSES, "auto", "nccl", TESS_RANKS_PROCESSES, 0},
        /* What carries the host's memory alone. */
        {4, true, 4, TESS_RANKS_PROCESSES, "tcp", "tcp", 0, "--comm tcp carries"},
        {1, true, 1, TESS_RANKS_PROCESSES, "mpi", "mpi", 0, "--comm mpi carries"},
        /* Threads by the strategy. */
        {4, true, 4, TESS_RANKS_THREADS, "auto", "local", TESS_RANKS_THREADS, 0},
        {4, false, 4, TESS_RANKS_THREADS, "auto", "nccl", TESS_RANKS_THREADS, 0},
        {4, true, 4, TESS_RANKS_THREADS, "nccl", "nccl", TESS_RANKS_THREADS, 0},
        /* Several on each of several. */
        {2, true, 8, TESS_RANKS_PROCESSES, "auto", "local", TESS_RANKS_THREADS, 0},
        {2, false, 8, TESS_RANKS_PROCESSES, "auto", "local", 0, "--ranks 2"},
    };

    (void)state;
    for (int i = 0; i < COUNT(wanted); i++) {
        struct tess_device_plan plan = {.comm_options = kinds()};
        enum tess_status status =
            tess_device_plan_make(devices_of(wanted[i].devices, wanted[i].reach), wanted[i].ranks,
                                  wanted[i].mode, wanted[i].asked, &plan);

        if (wanted[i].refused != NULL) {
            assert_int_equal(status, TESS_ERR_USAGE);
            if (strstr(tess_log_last_error(), wanted[i].refused) == NULL)
                fail_msg("%d: '%s' does not contain '%s'", i, tess_log_last_error(),
                         wanted[i].refused);
            tess_device_plan_free(&plan);
            continue;
        }
        assert_int_equal(status, TESS_OK);
        if (strcmp(plan.comm->name, wanted[i].comm) != 0 || plan.rank_mode != wanted[i].run)
            fail_msg("%d: %s, mode %d", i, plan.comm->name, (int)plan.rank_mode);
        tess_device_plan_free(&plan);
    }
}

/* A rank that others started has the device of its place on its host, and is a process. */
static void case_placed(void **state)
{
    static const struct {
        int32_t devices, rank, local;
        enum tess_rank_mode mode;
        const char *asked;
        int32_t own;
        const char *refused;
    } wanted[] = {
        {8, 13, 5, TESS_RANKS_PROCESSES, "auto", 5, NULL},
        {8, 0, 0, TESS_RANKS_PROCESSES, "nccl", 0, NULL},
        {1, 3, 0, TESS_RANKS_PROCESSES, "auto", 0, NULL},
        {1, 3, 3, TESS_RANKS_PROCESSES, "auto", 0, NULL},  /* each is shown its own */
        {8, 7, -1, TESS_RANKS_PROCESSES, "auto", 7, NULL}, /* one host: its number */
        {8, 8, -1, TESS_RANKS_PROCESSES, "auto", 0, "LOCAL_RANK"},
        {2, 6, 2, TESS_RANKS_PROCESSES, "auto", 0, "this machine has 2"},
        {8, 6, 2, TESS_RANKS_PROCESSES, "local", 0, "--comm local needs"},
        {8, 6, 2, TESS_RANKS_THREADS, "auto", 0, "this strategy needs"},
    };

    (void)state;
    for (int i = 0; i < COUNT(wanted); i++) {
        const struct tess_started place = {.starter = "torchrun",
                                           .rank = wanted[i].rank,
                                           .rank_count = 16,
                                           .local_rank = wanted[i].local};
        struct tess_device_plan plan = {.comm_options = kinds()};
        enum tess_status status = tess_device_plan_placed(
            devices_of(wanted[i].devices, true), &place, wanted[i].mode, wanted[i].asked, &plan);

        if (wanted[i].refused != NULL) {
            assert_int_equal(status, TESS_ERR_USAGE);
            if (strstr(tess_log_last_error(), wanted[i].refused) == NULL)
                fail_msg("%d: '%s' does not contain '%s'", i, tess_log_last_error(),
                         wanted[i].refused);
            tess_device_plan_free(&plan);
            continue;
        }
        assert_int_equal(status, TESS_OK);
        assert_int_equal(plan.own, wanted[i].own);
        assert_int_equal(plan.count, 16);
        assert_string_equal(plan.comm->name, "nccl");
        assert_int_equal(plan.rank_mode, TESS_RANKS_PROCESSES);
        for (int32_t r = 0; r < 16; r++)
            assert_int_equal(plan.of_rank[r], r);
        tess_device_plan_free(&plan);
    }
}

/* A rank that gets another number keeps its device, and is found by its new one. */
static void case_renumbered(void **state)
{
    static const struct tess_module module = {.name = "made up"};
    const struct tess_started place = {
        .starter = "torchrun", .rank = 1, .rank_count = 4, .local_rank = 1};
    struct tess_config *config = calloc(1, sizeof(*config));

    (void)state;
    assert_non_null(config);
    config->started = place;
    config->device.module = &module;
    config->device.comm_options = kinds();
    assert_int_equal(tess_device_plan_placed(devices_of(4, true), &place, TESS_RANKS_PROCESSES,
                                             "auto", &config->device),
                     TESS_OK);
    snprintf(config->device.info[1].bus, sizeof(config->device.info[1].bus), "0000:17:00.0");
    tess_config_renumber(config, 3);
    assert_int_equal(config->started.rank, 3);
    assert_int_equal(config->device.own, 1);
    assert_string_equal(config->device.info[3].bus, "0000:17:00.0");
    assert_string_equal(config->device.info[1].bus, "");
    tess_config_renumber(config, 3);
    assert_string_equal(config->device.info[3].bus, "0000:17:00.0");
    tess_device_plan_free(&config->device);
    free(config);
}

/* On the host: memory where ranks share it, else what carries messages. */
static void case_host_plan(void **state)
{
    static const struct {
        const char *starter;
        int32_t ranks;
        enum tess_rank_mode mode;
        const char *asked, *comm;
        const char *refused;
    } wanted[] = {
        {NULL, 4, TESS_RANKS_PROCESSES, "auto", "local", NULL},
        {NULL, 4, TESS_RANKS_PROCESSES, "tcp", "tcp", NULL},
        {NULL, 1, TESS_RANKS_PROCESSES, "tcp", "self", NULL},
        {NULL, 4, TESS_RANKS_PROCESSES, "mpi", NULL, "mpirun -n 4"},
        {NULL, 4, TESS_RANKS_THREADS, "tcp", NULL, "--comm tcp connects processes"},
        {"torchrun", 4, TESS_RANKS_PROCESSES, "auto", "tcp", NULL},
        {"Slurm", 4, TESS_RANKS_PROCESSES, "tcp", "tcp", NULL},
        {"mpirun", 4, TESS_RANKS_PROCESSES, "tcp", "tcp", NULL},
        {"torchrun", 4, TESS_RANKS_PROCESSES, "local", NULL, "--comm local needs"},
        {"torchrun", 4, TESS_RANKS_THREADS, "auto", 0, "this strategy needs"},
    };

    (void)state;
    for (int i = 0; i < COUNT(wanted); i++) {
        const struct tess_started place = {.starter = wanted[i].starter,
                                           .rank_count = wanted[i].ranks};
        struct tess_device_plan plan = {.comm_options = kinds()};
        enum tess_status status =
            tess_device_plan_host(&place, wanted[i].ranks, wanted[i].mode, wanted[i].asked, &plan);

        assert_int_equal(status, wanted[i].refused != NULL ? TESS_ERR_USAGE : TESS_OK);
        if (wanted[i].refused == NULL)
            assert_string_equal(plan.comm->name, wanted[i].comm);
        else if (strstr(tess_log_last_error(), wanted[i].refused) == NULL)
            fail_msg("%d: '%s' does not contain '%s'", i, tess_log_last_error(), wanted[i].refused);
        tess_device_plan_free(&plan);
    }
}

/* ---- options --------------------------------------------------------------------------------- */

static void refused(int argc, char **argv, enum tess_status wanted, const char *phrase)
{
    struct tess_config *config = NULL;

    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &config), wanted);
    assert_null(config);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' does not contain '%s'", tess_log_last_error(), phrase);
}

static void case_host(void **state)
{
    char *cpu[] = {"--device", "cpu", "--strategy", "ddp", "--ranks", "4"};
    char *threads[] = {"--kernel", "ref", "--strategy", "dp"};
    struct tess_config *config = NULL;

    (void)state;
    assert_int_equal(tess_config_open(COUNT(cpu), cpu, NULL, 0, &config), TESS_OK);
    assert_null(config->device.module);
    assert_int_equal(config->device.count, 0);
    assert_int_equal(config->device.of_rank[2], -1);
    assert_string_equal(config->device.comm->name, "local");
    assert_int_equal(config->device.rank_mode, TESS_RANKS_PROCESSES);
    assert_int_equal(tess_config_select_device(config, 2), TESS_OK);
    tess_config_close(config);
    assert_int_equal(tess_config_open(COUNT(threads), threads, NULL, 0, &config), TESS_OK);
    assert_string_equal(config->kernel->name, "ref");
    assert_int_equal(config->device.rank_mode, TESS_RANKS_THREADS);
    assert_non_null(strstr(config->device.why, "--kernel ref"));
    tess_config_close(config);
}

static void case_contradictions(void **state)
{
    char *kernel[] = {"--device", "cuda", "--kernel", "ref"};
    char *host[] = {"--device", "cpu", "--kernel", "cuda"};
    char *comm[] = {"--device", "cpu", "--comm", "nccl"};
    char *narrow[] = {"--device", "cpu", "--fp8", "now"};
    char *widen[] = {"--device",    "cpu",  "--fp8",     "now",
                     "--precision", "bf16", "--f32-ops", "linear"};
    char *unknown[] = {"--device", "tpu"};

    (void)state;
    refused(COUNT(kernel), kernel, TESS_ERR_USAGE, "--kernel ref computes on the host");
    refused(COUNT(host), host, TESS_ERR_USAGE, "give one of the two");
    refused(COUNT(comm), comm, TESS_ERR_USAGE, "computes on the host");
    refused(COUNT(narrow), narrow, TESS_ERR_USAGE, "--precision bf16");
    refused(COUNT(widen), widen, TESS_ERR_USAGE, "--f32-ops linear");
    refused(COUNT(unknown), unknown, TESS_ERR_USAGE, "device");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_blocks),         cmocka_unit_test(case_placed),
        cmocka_unit_test(case_renumbered),     cmocka_unit_test(case_drawing),
        cmocka_unit_test(case_choice),         cmocka_unit_test(case_host),
        cmocka_unit_test(case_contradictions), cmocka_unit_test(case_host_plan),
    };

    return cmocka_run_group_tests_name("device_plan", tests, NULL, NULL);
}
