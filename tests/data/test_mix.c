/* A mix of sets: shares, which samples, the same for every layout and after --resume. */
#include "data/data_tokens.h"
#include "harness/spawn.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LENGTH = 8, SETS = 3, EPOCHS = 5 };

static char folder[] = "/tmp/tessera_mix_XXXXXX";
static struct spawn spawn;
static const int64_t bytes[SETS] = {4001, 1601, 811};
static const double weight[SETS] = {0.5, 0.3, 0.2};

/* Every byte of set k is 'a' + k but for the number of its sample, in 3 digits at its beginning. */
static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0)
        return -1;
    for (int k = 0; k < SETS; k++) {
        const char name[] = {(char)('a' + k), '\0'};
        FILE *file = fopen(name, "w");
        for (int64_t i = 0; i < bytes[k] && file; i++)
            fputc(i % LENGTH < 3 ? (int)('0' + i / LENGTH /
                                                   (i % LENGTH == 0   ? 100
                                                    : i % LENGTH == 1 ? 10
                                                                      : 1) %
                                                   10)
                                 : 'a' + k,
                  file);
        if (!file || fclose(file) != 0)
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

static struct tess_dataset *open_mix(void)
{
    struct tess_dataset *set[SETS], *mix = NULL;
    for (int k = 0; k < SETS; k++) {
        const char name[] = {(char)('a' + k), '\0'};
        assert_int_equal(tess_dataset_open_tokens(name, NULL, 0.1, LENGTH, &set[k]), TESS_OK);
    }
    assert_int_equal(tess_dataset_mix(set, weight, SETS, &mix), TESS_OK);
    return mix;
}

/* The set and the number in it that a loaded sample shows. */
static int64_t load(const struct tess_dataset *mix, const struct tess_split *split, int64_t sample,
                    int *set_out)
{
    const struct tess_loader_options plain = {0};
    int32_t input[LENGTH], label[LENGTH];
    assert_int_equal(
        tess_load_rows(mix, split, &plain, 1, 0, true, &sample, 1, TESS_I32, input, label), 1);
    for (int i = 3; i < LENGTH; i++)
        assert_int_equal(input[i], input[3]);
    assert_memory_equal(label, input + 1, (LENGTH - 1) * sizeof(*label));
    *set_out = input[3] - 'a';
    return (input[0] - '0') * 100 + (input[1] - '0') * 10 + input[2] - '0';
}

/*
 * In every epoch each set has its share, to within 2: each of two floors loses less than one. Over
 * all epochs a set's training samples were drawn equally often, to within 1, and none of its
 * validation samples.
 */
static void case_shares(void **state)
{
    (void)state;
    struct tess_dataset *mix = open_mix();
    int64_t seen[SETS][512] = {{0}}, train[SETS], all = mix->train.count;
    for (int k = 0; k < SETS; k++) {
        const int64_t samples = (bytes[k] - 1) / LENGTH;
        train[k] = samples - samples / 10;
    }
    assert_int_equal(all, train[0] + train[1] + train[2]);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int64_t of[SETS] = {0};
        for (int64_t position = 0; position < all; position++) {
            int k;
            const int64_t sample = tess_dataset_sample(mix, 7, epoch, position, true);
            const int64_t number = load(mix, &mix->train, sample, &k);
            assert_int_equal(tess_dataset_sample(mix, 7, epoch, position, true), sample);
            assert_int_equal(tess_dataset_labels(mix, &mix->train, sample), LENGTH);
            seen[k][number]++;
            of[k]++;
        }
        for (int k = 0; k < SETS; k++) {
            const double want = weight[k] * (double)all;
            if ((double)of[k] < want - 2 || (double)of[k] > want + 2)
                fail_msg("epoch %d: set %d has %d samples, expected %g", (int)epoch, k, (int)of[k],
                         want);
        }
    }
    for (int k = 0; k < SETS; k++) {
        for (int64_t i = 1; i < 512; i++)
            assert_true(i < train[k] ? llabs(seen[k][i] - seen[k][0]) <= 1 : seen[k][i] == 0);
        assert_true(seen[k][0] >= 1);
    }
    assert_int_equal(tess_dataset_sample(mix, 7, 0, all, true), -1);
    tess_dataset_close(mix);
}

/* Validation samples are those of the sets, one set after the other. */
static void case_validation(void **state)
{
    (void)state;
    struct tess_dataset *mix = open_mix();
    int64_t at = 0;
    for (int k = 0; k < SETS; k++) {
        const int64_t samples = (bytes[k] - 1) / LENGTH;
        for (int64_t i = samples - samples / 10; i < samples; i++, at++) {
            int found;
            assert_int_equal(load(mix, &mix->test, at, &found), i);
            assert_int_equal(found, k);
        }
    }
    assert_int_equal(mix->test.count, at);
    tess_dataset_close(mix);
}

/* Each of two fingerprints sees another share; a set alone is as without a mix. */
static void case_fingerprint(void **state)
{
    (void)state;
    struct tess_dataset *set[2], *mix[2];
    for (int i = 0; i < 2; i++) {
        const double shares[] = {0.5, i ? 0.5 : 0.25};
        assert_int_equal(tess_dataset_open_tokens("a", NULL, 0.1, LENGTH, &set[0]), TESS_OK);
        assert_int_equal(tess_dataset_open_tokens("b", NULL, 0.1, LENGTH, &set[1]), TESS_OK);
        assert_int_equal(tess_dataset_mix(set, shares, 2, &mix[i]), TESS_OK);
    }
    assert_true(tess_dataset_id(mix[0], &mix[0]->train) != tess_dataset_id(mix[1], &mix[1]->train));
    assert_true(tess_dataset_id(mix[0], &mix[0]->test) == tess_dataset_id(mix[1], &mix[1]->test));
    tess_dataset_close(mix[0]);
    tess_dataset_close(mix[1]);
}

#define TRAIN                                                                                      \
    "train --model gpt --gpt.layers 1 --gpt.width 16 --gpt.heads 2 --data.length 8 --batch-size "  \
    "16 --grid 8 --data.mix a:0.5,b:0.3,c:0.2 "

static uint64_t train(const char *words)
{
    char line[512];
    unsigned long long hash = 0;
    snprintf(line, sizeof(line), TRAIN "%s", words);
    const int code = spawn_words(&spawn, line);
    const char *at = strstr(spawn.out, "hash of all parameters ");
    if (code != 0 || at == NULL || sscanf(at + 23, "%llx", &hash) != 1)
        fail_msg("%s: %s%s", line, spawn.out, spawn.err);
    return hash;
}

/* 60 steps of 16 are more than an epoch of 725 samples; the run is stopped in the second one. */
static void case_layouts(void **state)
{
    (void)state;
    unsigned long long hash = 0;
    const uint64_t one = train("--steps 60 --strategy single");
    assert_true(train("--steps 60 --strategy fsdp --ranks 4") == one);
    assert_true(train("--steps 60 --strategy ddp --ranks 2 --accumulate 2 --data.workers 2") ==
                one);
    assert_true(train("--steps 50 --run r --save-every 50 --strategy single") != one);
    assert_int_equal(
        spawn_words(&spawn, "train --run r --resume --steps 60 --strategy zero1 --ranks 2"), 0);
    const char *at = strstr(spawn.out, "hash of all parameters ");
    assert_non_null(at);
    assert_int_equal(sscanf(at + 23, "%llx", &hash), 1);
    assert_true(hash == one);
}

static void check_refused(const char *words, const char *phrase)
{
    char line[256];
    snprintf(line, sizeof(line), "train --steps 1 %s", words);
    assert_true(spawn_words(&spawn, line) > 0);
    if (strstr(spawn.err, phrase) == NULL)
        fail_msg("%s: no \"%s\" in: %s", words, phrase, spawn.err);
}

static void case_refusals(void **state)
{
    (void)state;
    check_refused("--model gpt --data.mix a", "'a': expected a set, a colon and its share");
    check_refused("--model gpt --data.mix a:1,b:", "'b:': expected a set");
    check_refused("--model gpt --data.mix a:1,:1", "':1': expected a set");
    check_refused("--model gpt --data.mix a:0", "'a:0': expected a set");
    check_refused("--model gpt --data.mix a:nan", "'a:nan': expected a set");
    check_refused("--model gpt --data.mix a:1x", "'a:1x': expected a set");
    check_refused("--model gpt --data.mix a:1,no:1", "cannot open no");
    check_refused("--model gpt --data.mix a:1 --data.validation-files b", "takes validation");
    check_refused("--model mlp --data synthetic --data.mix a:1", "text and tokens only");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_shares),      cmocka_unit_test(case_validation),
        cmocka_unit_test(case_fingerprint), cmocka_unit_test(case_layouts),
        cmocka_unit_test(case_refusals),
    };
    return cmocka_run_group_tests_name("mix", cases, set_up, tear_down);
}
