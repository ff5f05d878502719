/*
 * A run that needs more memory than there is: refused before any rank starts, with the options that
 * would make it fit. Models are made as large as this machine's memory asks for; nothing is
 * allocated.
 */
#include "base/cgroup.h"
#include "harness/spawn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include <cmocka.h>

#define LAYERS 16
#define GIB    (1024.0 * 1024 * 1024)

static struct spawn spawn;

/* What the program compares with. */
static double memory_here(void)
{
    struct sysinfo host;
    char group[64];
    assert_int_equal(sysinfo(&host), 0);
    const double swap = (double)host.totalswap * host.mem_unit;
    return fmin((double)host.totalram * host.mem_unit,
                tess_cgroup_limit(TESS_CGROUP_MEMORY, "/proc/self/cgroup", "/sys/fs/cgroup",
                                  group)) +
           swap;
}

/* Train an mlp of so many bytes of parameters on 4 ranks. */
static int train(double param_bytes, const char *words)
{
    char layers[LAYERS * 8] = "";
    const int width = (int)sqrt(param_bytes / 4 / (LAYERS - 1));
    for (int i = 0; i < LAYERS; i++)
        snprintf(layers + strlen(layers), sizeof(layers) - strlen(layers), "%s%d", i ? "," : "",
                 width);
    return spawn_format(&spawn,
                        "train --data synthetic --synthetic-rows 64 --batch-size 32 --steps 1 "
                        "--model mlp --mlp.hidden %s --optimizer momentum --ranks 4 %s",
                        layers, words);
}

static double number_after(const char *text, const char *before)
{
    const char *at = strstr(text, before);
    if (at == NULL)
        fail_msg("no '%s' in: %s", before, text);
    return strtod(at + strlen(before), NULL);
}

/* The greatest total of the table of planned memory, whose unit its head names. */
static double planned_gib(void)
{
    const char *table = strstr(spawn.out, "\nmemory per rank, ");
    double most = 0;
    assert_non_null(table);
    const double unit = strstr(table, "MiB, as planned") ? 1 / 1024.0 : 1;
    for (const char *line = strchr(strchr(table + 1, '\n') + 1, '\n'); line && line[1];
         line = strchr(line + 1, '\n')) {
        const char *end = line + 1 + strcspn(line + 1, "\n"), *last = end;
        while (last > line && last[-1] != ' ')
            last--;
        most = fmax(most, unit * strtod(last, NULL));
    }
    return most;
}

/* Parameters, gradients and momentum on each of 4 ranks are more than there is; shares of them are
 * not. */
static void case_fits_in_shares(void **state)
{
    const double param_bytes = 1.6 * memory_here() / 12;
    (void)state;
    assert_int_equal(train(param_bytes, "--strategy ddp"), 1);
    assert_null(strstr(spawn.out, "rank 0 of 4"));
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    const double need = number_after(spawn.err, "4 ranks under --strategy ddp need ");
    const double rank = number_after(spawn.err, "(the fullest rank needs ");
    assert_true(fabs(need - 12 * param_bytes / GIB) < 0.2 * need);
    assert_true(fabs(need - 4 * rank) < 0.3);
    assert_true(fabs(number_after(spawn.err, "which has ") - memory_here() / GIB) < 0.06);
    assert_non_null(strstr(spawn.err, "tessera plan lists layouts"));
    /* The advice is what the planner says of that run. */
    const double advised = number_after(spawn.err, "--strategy fsdp would need ");
    assert_true(advised < memory_here() / GIB);
    const double share = number_after(strstr(spawn.err, "--strategy fsdp would need "), "(");
    assert_true(fabs(advised - 4 * share) < 0.3);
    assert_int_equal(train(param_bytes, "--strategy fsdp --explain"), 0);
    assert_true(fabs(planned_gib() - share) < 0.06);
}

/* Where nothing is enough, it says so. */
static void case_fits_in_no_way(void **state)
{
    (void)state;
    assert_int_equal(train(40 * memory_here() / 12, "--strategy ddp"), 1);
    assert_non_null(strstr(spawn.err, "--strategy fsdp "));
    assert_non_null(strstr(
        spawn.err, ", which is too much as well: use a smaller batch or model, or more hosts; "));
}

/* A change that refuses the run's other options is no advice. */
static void case_single_rank(void **state)
{
    (void)state;
    assert_int_equal(train(4 * memory_here() / 12, "--strategy single --ranks 1"), 1);
    assert_non_null(strstr(spawn.err, "1 rank under --strategy single needs "));
    assert_null(strstr(spawn.err, "--strategy fsdp would"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_fits_in_shares),
        cmocka_unit_test(case_fits_in_no_way),
        cmocka_unit_test(case_single_rank),
    };
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
