/*
 * The mesh of a run, from its options: sizes that were left out, contradictions, words
 * that are no mesh; and where each rank stands.
 */
#include "config/config.h"
#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CONFIG_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Words are divided by '|', so that values may have blanks. */
static enum tess_status config_open(const char *words, struct tess_config **config_out)
{
    char text[512], *argv[32] = {"--model", "gpt", "--data", "synthetic"};
    int argc = 4;
    snprintf(text, sizeof(text), "%s", words);
    for (char *rest = text, *word; (word = strsep(&rest, "|")) != NULL;)
        argv[argc++] = word;
    return tess_config_open(argc, argv, NULL, 0, config_out);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* rank = (stage * data_count + data) * tensor_count + tensor, as tessera/strategy.h has it, and
 * back, for every mesh of up to 4 x 4 x 4. */
static void case_places(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 64; i++) {
        struct tess_mesh mesh = {.count = {[TESS_AXIS_DATA] = 1 + i % 4,
                                           [TESS_AXIS_TENSOR] = 1 + i / 4 % 4,
                                           [TESS_AXIS_STAGE] = 1 + i / 16}};
        const int32_t *count = mesh.count;
        mesh.rank_count = count[0] * count[1] * count[2];
        for (int32_t rank = 0; rank < mesh.rank_count; rank++) {
            const struct tess_mesh here = tess_mesh_at(&mesh, rank);
            const int32_t *at = here.at;
            assert_int_equal(here.rank, rank);
            assert_int_equal((at[TESS_AXIS_STAGE] * count[TESS_AXIS_DATA] + at[TESS_AXIS_DATA]) *
                                     count[TESS_AXIS_TENSOR] +
                                 at[TESS_AXIS_TENSOR],
                             rank);
            for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
                assert_in_range(at[axis], 0, count[axis] - 1);
            assert_memory_equal(here.count, mesh.count, sizeof(mesh.count));
            assert_int_equal(tess_mesh_rank(&mesh, at), rank);
        }
    }
}

/* ---- what fits ------------------------------------------------------------------------------- */

static void case_sizes(void **state)
{
    static const struct {
        const char *words;
        int32_t data, tensor, stage, accumulate;
    } wanted[] = {
        {"--strategy|single", 1, 1, 1, 1},
        {"--strategy|ddp|--ranks|4", 4, 1, 1, 1},
        {"--strategy|tp|--ranks|4", 1, 4, 1, 1},
        {"--strategy|pp|--ranks|4", 1, 1, 4, 4},
        {"--strategy|tp|--tensor.ranks|2", 1, 2, 1, 1},
        {"--strategy|pp|--pp.stages|4|--accumulate|8", 1, 1, 4, 8},
        {"--strategy|single+tp|--ranks|2", 1, 2, 1, 1},
        {"--strategy|pp+single|--ranks|2", 1, 1, 2, 2},
        /* Two for each but the last of tensor, stage and data, which has what is left. */
        {"--strategy|ddp+tp|--ranks|8", 4, 2, 1, 1},
        {"--strategy|tp+pp|--ranks|8", 1, 2, 4, 4},
        {"--strategy|fsdp+tp+pp|--ranks|8", 2, 2, 2, 2},
        {"--strategy|pp+tp+fsdp|--ranks|16", 4, 2, 2, 2},
        {"--strategy|fsdp+tp+pp|--ranks|4", 1, 2, 2, 2},
        {"--strategy|fsdp+tp+pp|--ranks|2", 1, 2, 1, 1},
        {"--strategy|fsdp+tp+pp|--ranks|1", 1, 1, 1, 1},
        {"--strategy|ddp+tp+pp|--ranks|6|--batch-size|24", 3, 2, 1, 1},
        /* One axis given, in whichever way. */
        {"--strategy|fsdp+tp|--ranks|8|--tensor.ranks|4", 2, 4, 1, 1},
        {"--strategy|fsdp+pp|--ranks|8|--pp.stages|4", 2, 1, 4, 4},
        {"--strategy|fsdp+tp+pp|--ranks|8|--mesh|data=4", 4, 2, 1, 1},
        {"--strategy|fsdp+tp+pp|--ranks|16|--mesh|stage=4", 2, 2, 4, 4},
        {"--strategy|fsdp+tp+pp|--ranks|8|--mesh|tensor=1", 4, 1, 2, 2},
        /* All of them: the ranks follow. */
        {"--strategy|fsdp+tp+pp|--mesh|data=2,tensor=4,stage=2", 2, 4, 2, 2},
        {"--strategy|fsdp+tp+pp|--mesh|stage=2,data=2,tensor=4", 2, 4, 2, 2},
        {"--strategy|fsdp+tp|--mesh|data=2|--tensor.ranks|2", 2, 2, 1, 1},
        {"--strategy|pp+tp|--mesh|tensor=2|--pp.stages|2", 1, 2, 2, 2},
        {"--strategy|ddp+tp+pp|--mesh|data=4,tensor=4,stage=4|--batch-size|256", 4, 4, 4, 4},
        {"--strategy|ddp|--mesh|data=4", 4, 1, 1, 1},
        {"--strategy|ddp|--mesh|data=4,tensor=1,stage=1", 4, 1, 1, 1},
        {"--strategy|ddp|--mesh||--ranks|4", 4, 1, 1, 1},
        {"--strategy|ddp|--mesh|data=004", 4, 1, 1, 1},
    };
    (void)state;
    for (int i = 0; i < CONFIG_COUNT(wanted); i++) {
        struct tess_config *config;
        if (config_open(wanted[i].words, &config) != TESS_OK)
            fail_msg("refused: %s", wanted[i].words);
        const int32_t *count = config->mesh.count;
        if (count[TESS_AXIS_DATA] != wanted[i].data ||
            count[TESS_AXIS_TENSOR] != wanted[i].tensor ||
            count[TESS_AXIS_STAGE] != wanted[i].stage ||
            config->run.accumulate != wanted[i].accumulate)
            fail_msg("%s: data %d, tensor %d, stage %d, accumulate %d", wanted[i].words,
                     (int)count[TESS_AXIS_DATA], (int)count[TESS_AXIS_TENSOR],
                     (int)count[TESS_AXIS_STAGE], (int)config->run.accumulate);
        assert_int_equal(config->run.ranks, (int64_t)count[0] * count[1] * count[2]);
        assert_int_equal(config->mesh.rank_count, config->run.ranks);
        tess_config_close(config);
    }
}

/* ---- what does not --------------------------------------------------------------------------- */

static void check_refused(const char *words, const char *why)
{
    struct tess_config *config;
    if (config_open(words, &config) != TESS_ERR_USAGE)
        fail_msg("not refused: %s", words);
    if (strstr(tess_log_last_error(), why) == NULL)
        fail_msg("%s: expected '%s' in: %s", words, why, tess_log_last_error());
}

static void case_contradictions(void **state)
{
    static const struct {
        const char *words, *why;
    } bad[] = {
        {"--strategy|ddp+fsdp|--ranks|4", "ddp and fsdp both are for the same axis"},
        {"--strategy|tp+tp|--ranks|4", "tp and tp both are for the same axis"},
        {"--strategy|single|--ranks|2", "strategy single runs on 1 rank"},
        {"--strategy|single|--mesh|data=2", "2 ranks along the data axis"},
        {"--strategy|single+tp|--mesh|data=2,tensor=2", "2 ranks along the data axis"},
        {"--strategy|ddp|--mesh|tensor=2", "no strategy for it: add one by '+': tp"},
        {"--strategy|ddp|--mesh|stage=2", "no strategy for it: add one by '+': pp"},
        {"--strategy|ddp|--tensor.ranks|2", "2 ranks along the tensor axis"},
        {"--strategy|tp|--mesh|data=2", "2 ranks along the data axis"},
        {"--strategy|ddp|--mesh|data=2|--ranks|4",
         "do not fill a mesh of data=2,tensor=1,stage=1: use --ranks 2"},
        {"--strategy|ddp+tp|--mesh|data=2,tensor=2|--ranks|8",
         "8 ranks do not fill a mesh of data=2,tensor=2,stage=1"},
        {"--strategy|ddp+tp|--mesh|tensor=4|--ranks|6", "use --ranks 4 or a multiple of it"},
        {"--strategy|tp|--mesh|tensor=2|--tensor.ranks|4",
         "an option that begins with --tensor gives it 4"},
        {"--strategy|pp|--mesh|stage=2|--pp.stages|4",
         "an option that begins with --pp gives it 4"},
        {"--strategy|ddp+tp|--mesh|data=65536,tensor=2",
         "has 131072 ranks: there may be up to 65536"},
        {"--strategy|ddp+tp+pp|--mesh|data=64,tensor=64,stage=64", "there may be up to 65536"},
        {"--strategy|tp|--ranks|2|--tensor.canonical|3", "the ranks must divide the parts"},
        {"--strategy|tp|--ranks|3|--tensor.canonical|4", "the ranks must divide the parts"},
        {"--strategy|tp|--ranks|2|--tensor.canonical|6", "is not a power of two"},
        {"--strategy|tp|--ranks|2|--tensor.canonical|4|--tensor.sequence-parallel|on",
         "do not go together"},
        {"--strategy|ddp+tp|--ranks|6|--batch-size|16",
         "(3 ranks of the data axis x accumulate 1); ranks of the data axis that fit: 1, 2, 4, 8, "
         "16"},
        {"--strategy|ddp|--ranks|3|--batch-size|16", "(3 ranks x accumulate 1); ranks that fit: 1"},
    };
    (void)state;
    for (int i = 0; i < CONFIG_COUNT(bad); i++)
        check_refused(bad[i].words, bad[i].why);
}

static void case_words(void **state)
{
    static const char *const no_axis[] = {
        " ",
        "data",
        "data,tensor=2",
        "=2",
        "2",
        "x=2",
        "Data=2",
        "datas=2",
        "dat=2",
        ",data=2",
        "data=2,",
        "data:2",
        "data=2,,tensor=2",
        " data=2",
        "data =2",
        "data=2, tensor=2",
    };
    static const char *const no_number[] = {
        "data=",
        "data=0",
        "data=-1",
        "data=+2",
        "data= 2",
        "data=2 ",
        "data=2.0",
        "data=2x",
        "data=0x2",
        "data=two",
        "data=2;tensor=2",
        "data=65537",
        "data=1e1",
        "data=99999999999999999999",
        "data=2 ,tensor=2",
        "data==2",
        "data=,tensor=2",
    };
    static const char *const no_strategy[] = {"",       "+",      "ddp+",    "+ddp",   "ddp++tp",
                                              "ddp,tp", "ddp tp", "ddp+tp+", "tp+none"};
    char words[128];
    (void)state;
    for (int i = 0; i < CONFIG_COUNT(no_axis); i++) {
        snprintf(words, sizeof(words), "--strategy|ddp+tp|--mesh|%s", no_axis[i]);
        check_refused(words, "is not an axis and its ranks: write data=2,tensor=2,stage=2");
    }
    for (int i = 0; i < CONFIG_COUNT(no_number); i++) {
        snprintf(words, sizeof(words), "--strategy|ddp+tp|--mesh|%s", no_number[i]);
        check_refused(words, "the ranks of axis data must be 1 to 65536, not '");
    }
    check_refused("--strategy|ddp+tp|--mesh|data=2,data=2", "--mesh names axis data twice");
    for (int i = 0; i < CONFIG_COUNT(no_strategy); i++) {
        struct tess_config *config;
        snprintf(words, sizeof(words), "--ranks|4|--strategy|%s", no_strategy[i]);
        if (config_open(words, &config) == TESS_OK)
            fail_msg("not refused: %s", words);
        assert_non_null(strstr(tess_log_last_error(), "unknown strategy '"));
    }
}

/* ---- recompute ------------------------------------------------------------------------------- */

static void case_recompute(void **state)
{
    static const struct {
        const char *words;
        enum tess_recompute what;
        int32_t every;
    } wanted[] = {
        {"--strategy|single", TESS_RECOMPUTE_NONE, 1},
        {"--recompute|none", TESS_RECOMPUTE_NONE, 1},
        {"--recompute|selective", TESS_RECOMPUTE_SELECTIVE, 1},
        {"--recompute|full", TESS_RECOMPUTE_FULL, 1},
        {"--recompute|every:1", TESS_RECOMPUTE_FULL, 1},
        {"--recompute|every:12", TESS_RECOMPUTE_FULL, 12},
        {"--recompute|every:4096", TESS_RECOMPUTE_FULL, 4096},
    };
    static const char *const bad[] = {
        "",           "every",    "every:", "every:0", "every:-1",   "every:2x",
        "every:4097", "every: 2", "full:2", "Full",    "selective ", "every:99999999999999999999",
        "every:+2",
    };
    struct tess_config *config;
    char words[64];
    (void)state;
    for (int i = 0; i < CONFIG_COUNT(wanted); i++) {
        assert_int_equal(config_open(wanted[i].words, &config), TESS_OK);
        assert_int_equal(config->recompute, wanted[i].what);
        assert_int_equal(config->recompute_every, wanted[i].every);
        tess_config_close(config);
    }
    for (int i = 0; i < CONFIG_COUNT(bad); i++) {
        snprintf(words, sizeof(words), "--recompute|%s", bad[i]);
        check_refused(words, "is not none, selective, full or every:K with K from 1 to 4096");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_places),         cmocka_unit_test(case_sizes),
        cmocka_unit_test(case_contradictions), cmocka_unit_test(case_words),
        cmocka_unit_test(case_recompute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
