/* Packed samples: whole documents, labels within them, the same bits on every layout. */
#include "data/data_tokens.h"
#include "data/token_files.h"
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

static char folder[] = "/tmp/tessera_pack_XXXXXX";
static struct spawn spawn;

static void write_file(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    static const char *const text[] = {"aaa", "bb", "cccccc", "d", "eeee"};
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0)
        return -1;
    for (int i = 0; i < 5; i++) {
        const char name[] = {text[i][0], '\0'};
        write_file(name, text[i], strlen(text[i]));
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

/* Letters; '0' a zero behind the tokens, '.' a label that is ignored. */
static void check_sample(const struct tess_dataset *set, const struct tess_split *split,
                         int64_t sample, const char *inputs, const char *labels,
                         const char *documents)
{
    const struct tess_loader_options plain = {0};
    int32_t input[4], label[4], begin[5];
    int counted = 0;
    assert_int_equal(
        tess_load_rows(set, split, &plain, 1, 0, true, &sample, 1, TESS_I32, input, label), 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(input[i], inputs[i] == '0' ? 0 : inputs[i]);
        assert_int_equal(label[i], labels[i] == '.' ? -1 : labels[i]);
        counted += labels[i] != '.';
    }
    assert_int_equal(tess_dataset_labels(set, split, sample), counted);
    assert_int_equal(tess_dataset_documents(set, split, sample, begin), strlen(documents));
    for (size_t d = 0; d < strlen(documents); d++)
        assert_int_equal(begin[d], documents[d] - '0');
    /* As it fills up a short batch, no label counts. */
    sample |= TESS_SAMPLE_IGNORED;
    assert_int_equal(tess_dataset_labels(set, split, sample), 0);
    assert_int_equal(
        tess_load_rows(set, split, &plain, 1, 0, true, &sample, 1, TESS_I32, input, label), 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(label[i], -1);
}

/* The example of data_pack.c. */
static void case_samples(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_packed("a,b,c,d,e", NULL, 0, 4, &set), TESS_OK);
    assert_int_equal(set->train.count, 4);
    assert_int_equal(set->test.count, 1);
    check_sample(set, &set->train, 0, "aaa0", "aa..", "03");
    check_sample(set, &set->train, 1, "bb00", "b...", "02");
    check_sample(set, &set->train, 2, "cccc", "cccc", "0");
    check_sample(set, &set->train, 3, "ccd0", "c...", "023");
    check_sample(set, &set->test, 0, "eeee", "eee.", "0");
    tess_dataset_close(set);
    assert_int_equal(tess_dataset_open_packed("c,a", "d,b", 0, 4, &set), TESS_OK);
    assert_int_equal(set->train.count, 3);
    check_sample(set, &set->train, 1, "cc00", "c...", "02");
    check_sample(set, &set->test, 0, "dbb0", ".b..", "013");
    tess_dataset_close(set);
}

/* Of the text that a grammar makes: every document is whole, in one sample where it fits. */
static void case_text(void **state)
{
    (void)state;
    enum { LENGTH = 4096 };
    struct tess_dataset *set = NULL;
    static int32_t begin[LENGTH + 1];
    int64_t documents = 0, tokens = 0;
    assert_int_equal(tess_dataset_open_packed("text", NULL, 0.02, LENGTH, &set), TESS_OK);
    const char *text = set->train.stream->piece[0].token;
    for (int64_t s = 0; s < set->train.count; s++) {
        const int64_t at = set->train.start[s], count = set->train.start[s + 1] - at;
        const int32_t parts = tess_dataset_documents(set, &set->train, s, begin);
        assert_true(count > 0 && count <= LENGTH);
        documents += parts - (count < LENGTH);
        tokens += count;
        for (int32_t d = 0; d < parts && begin[d] < count; d++)
            assert_true(at + begin[d] == 0 || memcmp(text + at + begin[d] - 3, "\n\n\n", 3) == 0);
    }
    assert_int_equal(documents, 9800);
    assert_int_equal(tokens, set->train.stream->count);
    print_message("%.1f %% of the positions have tokens\n",
                  100 * (double)tokens / (double)(set->train.count * LENGTH));
    tess_dataset_close(set);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void write_shard(const int64_t ends[3])
{
    static struct {
        struct tess__shard_header header;
        uint16_t token[8];
        int64_t end[3];
        uint64_t mask;
    } shard;
    shard.header = (struct tess__shard_header){.magic = TESS__SHARD_MAGIC,
                                               .version = TESS__SHARD_VERSION,
                                               .masked = 1,
                                               .width = 2,
                                               .tokens = 8,
                                               .documents = 3,
                                               .vocabulary = 300,
                                               .end = -1};
    for (int i = 0; i < 8; i++)
        shard.token[i] = (uint16_t)('p' + i);
    memcpy(shard.end, ends, sizeof(shard.end));
    shard.mask = 0xd6; /* not tokens 0, 3 and 5 */
    write_file("s.bin", &shard, sizeof(shard));
}

/* Masks of chats hold as well: label i is token i + 1. */
static void case_shard(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL;
    write_shard((const int64_t[]){3, 4, 8});
    assert_int_equal(tess_dataset_open_packed("s.bin", NULL, 0, 4, &set), TESS_OK);
    assert_int_equal(set->train.count, 1);
    check_sample(set, &set->train, 0, "pqrs", "qr..", "03");
    check_sample(set, &set->test, 0, "tuvw", ".vw.", "0");
    tess_dataset_close(set);
}

static void check_refused(const char *source, const char *phrase)
{
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_packed(source, NULL, 0, 4, &set), TESS_ERR_DATA);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("no \"%s\" in: %s", phrase, tess_log_last_error());
}

static void case_refusals(void **state)
{
    (void)state;
    uint32_t token[64];
    struct token_folder files;
    write_shard((const int64_t[]){3, 2, 8});
    check_refused("s.bin", "damaged: document 1 ends at token 2");
    write_shard((const int64_t[]){3, 9, 8});
    check_refused("s.bin", "damaged: document 1 ends at token 9");
    write_shard((const int64_t[]){3, 4, 7});
    check_refused("s.bin", "damaged: the last document ends at token 7 of 8");
    token_folder_open(&files);
    token_draw(TOKEN_GPT2, 1, 64, token);
    token_write(&files, "g.bin", TOKEN_GPT2, token, 64);
    check_refused(token_path(&files, "g.bin"), "does not say where documents end");
    token_folder_close(&files);
    check_refused("a", "leaves none of 1 samples for training");
}

/* ---- training -------------------------------------------------------------------------------- */

/* The second step begins with weights that the first has changed. Sanitizers: minutes; fewer
 * and shorter samples make the same accesses. */
#if TESTS_DIVISOR > 1
#define STEPS  "--batch-size 4 --grid 4 --steps 2 --evaluate-every 2 "
#define LENGTH "--data.length 200 --gpt.context 200 "
#else
#define STEPS  "--batch-size 8 --grid 8 --steps 2 --evaluate-every 2 "
#define LENGTH "--data.length 600 --gpt.context 600 "
#endif

static const char *result(const char *words)
{
    static char found[4][256];
    static int turn;
    char line[512], *text = found[turn++ % 4];
    snprintf(
        line, sizeof(line),
        "train --model gpt --gpt.layers 2 --gpt.width 32 --gpt.heads 4 --data text " LENGTH STEPS
        "--learning-rate 0.1 %s",
        words);
    const int code = spawn_words(&spawn, line);
    const char *hash = strstr(spawn.out, "hash of all parameters ");
    const char *loss = strstr(spawn.out, "val loss ");
    if (code != 0 || hash == NULL || loss == NULL)
        fail_msg("%s: %s%s", line, spawn.out, spawn.err);
    snprintf(text, 256, "%.16s %.15s", hash + 23, loss);
    return text;
}

static void case_layouts(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        static const char *const layouts[] = {
            "--strategy single --accumulate 4",         "--strategy ddp --ranks 4",
            "--strategy fsdp --ranks 2 --accumulate 2", "--strategy tp --ranks 2",
            "--strategy pp --ranks 2 --accumulate 4",   "--strategy dp --ranks 2",
            "--strategy single --recompute full",
        };
        const char *style = llama ? "--gpt.style llama --data.packing on --tensor.canonical 2 "
                                  : "--data.packing on --tensor.canonical 2 ";
        char words[160];
        snprintf(words, sizeof(words), "%s--strategy single", style);
        const char *one = result(words);
        snprintf(words, sizeof(words), "%s--strategy single",
                 llama ? "--gpt.style llama --tensor.canonical 2 " : "--tensor.canonical 2 ");
        if (TESTS_DIVISOR == 1)
            assert_string_not_equal(result(words), one);
        /* Other layouts of each style; sanitizers: fewer. */
        const size_t turn = TESTS_FULL ? 1 : TESTS_DIVISOR > 1 ? 3 : 2;
        for (size_t i = turn > 1 && llama; i < sizeof(layouts) / sizeof(*layouts); i += turn) {
            snprintf(words, sizeof(words), "%s%s", style, layouts[i]);
            const char *other = result(words);
            if (strcmp(other, one) != 0)
                fail_msg("%s: %s, and on one rank %s", words, other, one);
        }
    }
}

/* Sequence parallel rounds otherwise; the losses are those of tp to the four digits printed. */
static void case_sequence(void **state)
{
    (void)state;
    const char *tensor = result("--data.packing on --strategy tp --ranks 2");
    const char *sequence = result("--data.packing on --strategy tp+sp --ranks 2");
    assert_string_equal(strstr(sequence, "val loss"), strstr(tensor, "val loss"));
}

static void case_words(void **state)
{
    (void)state;
    assert_int_equal(spawn_words(&spawn, "train --model gpt --data synthetic --data.packing on"),
                     2);
    assert_non_null(strstr(spawn.err, "synthetic has no documents"));
    assert_int_equal(spawn_words(&spawn, "train --model mlp --data.packing on --steps 1"), 2);
}

/* Kernels whose memory the host must not touch, far memory with a queue: as ref, to the bit. */
static void case_kernels(void **state)
{
    (void)state;
    static const char *const kernel[] = {"guard", "guard_queue"};
    const char *ref = result("--gpt.width 16 --data.packing on --strategy single --kernel ref "
                             "--steps 1 --evaluate-every 1");
    for (size_t i = TESTS_DIVISOR > 1; i < 2; i++) { /* sanitizers catch in ref what guard does */
        char line[256];
        snprintf(line, sizeof(line),
                 "--gpt.width 16 --data.packing on --strategy single --kernel %s --steps 1 "
                 "--evaluate-every 1",
                 kernel[i]);
        assert_string_equal(result(line), ref);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_samples), cmocka_unit_test(case_text),
        cmocka_unit_test(case_shard),   cmocka_unit_test(case_refusals),
        cmocka_unit_test(case_layouts), cmocka_unit_test(case_sequence),
        cmocka_unit_test(case_words),   cmocka_unit_test(case_kernels),
    };
    return cmocka_run_group_tests_name("packing", cases, set_up, tear_down);
}
