/* The text that a grammar makes: its bytes, and that training and validation share no passage. */
#include "data/data_tokens.h"
#include "tessera/log.h"

#include "base/hash.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tess_dataset *open_text(double validation)
{
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_tokens("text", NULL, validation, 256, &set), TESS_OK);
    assert_int_equal(set->train.stream->piece_count, 1);
    assert_int_equal(set->test.stream->piece_count, 1);
    return set;
}

static const char *text_of(const struct tess_split *split)
{
    return split->stream->piece[0].token;
}

/* Counted without being made, by what was counted once. */
static void case_counts(void **state)
{
    static const double validation[] = {0.02, 0.1, 0.1234, 0.5};
    (void)state;
    for (size_t i = 0; i < sizeof(validation) / sizeof(*validation); i++) {
        struct tess_dataset *set = open_text(validation[i]);
        int64_t train, test;
        tess_dataset_text_counts(validation[i], 256, &train, &test);
        assert_int_equal(train, set->train.count);
        assert_int_equal(test, set->test.count);
        assert_int_equal(tess__text_made_bytes(TESS__TEXT_DOCUMENTS),
                         set->train.stream->count + set->test.stream->count);
        const struct tess__token_piece *piece = &set->train.stream->piece[0];
        for (int64_t d = 100; d <= piece->ends; d += 100)
            assert_int_equal(tess__text_made_bytes(d), piece->end[d - 1]);
        tess_dataset_close(set);
    }
}

/* What every machine must make. A change of them changes every run with --data text. */
static void case_bytes(void **state)
{
    (void)state;
    struct tess_dataset *set = open_text(0.02);
    const int64_t train = set->train.stream->count, test = set->test.stream->count;
    print_message("%lld and %lld bytes, hashes %016llx and %016llx, fingerprints %016llx and "
                  "%016llx\n",
                  (long long)train, (long long)test,
                  (unsigned long long)tess_hash_bytes(text_of(&set->train), (size_t)train),
                  (unsigned long long)tess_hash_bytes(text_of(&set->test), (size_t)test),
                  (unsigned long long)tess_dataset_id(set, &set->train),
                  (unsigned long long)tess_dataset_id(set, &set->test));
    assert_int_equal(train, 11865408);
    assert_int_equal(test, 245872);
    assert_int_equal(tess_hash_bytes(text_of(&set->train), (size_t)train),
                     UINT64_C(0xb8b0c880ba46dbe1));
    assert_int_equal(tess_hash_bytes(text_of(&set->test), (size_t)test),
                     UINT64_C(0x2e29d817a2de76a3));
    assert_int_equal(tess_dataset_id(set, &set->train), UINT64_C(0x4e13cbe0133505f6));
    assert_int_equal(tess_dataset_id(set, &set->test), UINT64_C(0x0ec1f8966df10a30));
    assert_int_equal(set->train.count, (train - 1) / 256);
    assert_int_equal(set->test.count, (test - 1) / 256);
    assert_int_equal(set->class_count, 256);
    /* The text, and where each of the 10,000 documents ends. */
    assert_int_equal(set->mapped_bytes, train + test + 10000 * (int64_t)sizeof(int64_t));
    tess_dataset_close(set);
}

/* Documents of lines that are ASCII, none of them cut, all others than those before. */
static void case_documents(void **state)
{
    (void)state;
    struct tess_dataset *set = open_text(0.02);
    const char *text = text_of(&set->train), *end = text + set->train.stream->count;
    int64_t documents = 0, longest = 0;
    while (text < end) {
        const char *next = memmem(text, (size_t)(end - text), "\n\n\n", 3);
        assert_non_null(next);
        next += 3;
        for (const char *c = text; c < next; c++)
            assert_true(*c == '\n' || (*c >= ' ' && *c <= '~'));
        assert_true(isupper(text[0]));
        longest = next - text > longest ? next - text : longest;
        documents++;
        text = next;
    }
    assert_int_equal(documents, 9800);
    assert_true(longest < 4096); /* the room of one: none was cut */
    tess_dataset_close(set);
}

/* ---- passages ------------------------------------------------------------------------------ */

enum { PASSAGE = 64, TABLE = 1 << 20 };

/* A polynomial of the PASSAGE bytes before `at`, kept as it moves: modulo 2^64, odd factor. */
struct rolling {
    uint64_t hash, lead;
};

static uint64_t roll(struct rolling *rolling, const char *text, int64_t at)
{
    static const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    if (at == 0) {
        *rolling = (struct rolling){.hash = 0, .lead = 1};
        for (int i = 0; i < PASSAGE; i++)
            rolling->lead *= factor;
    }
    rolling->hash = rolling->hash * factor + (uint8_t)text[at] + 1;
    if (at >= PASSAGE)
        rolling->hash -= rolling->lead * ((uint64_t)(uint8_t)text[at - PASSAGE] + 1);
    return tess_hash_mix(rolling->hash);
}

/* The first place in `text` of PASSAGE bytes that `other` has too; -1: none. */
static int64_t find_shared(const char *text, int64_t count, const char *other, int64_t other_count)
{
    int32_t *table = malloc(TABLE * sizeof(*table));
    struct rolling rolling;
    int64_t found = -1;
    assert_non_null(table);
    assert_true(other_count < TABLE / 2);
    memset(table, 0xff, TABLE * sizeof(*table));
    for (int64_t i = 0; i < other_count; i++) {
        uint64_t slot = roll(&rolling, other, i) % TABLE;
        while (table[slot] >= 0)
            slot = (slot + 1) % TABLE;
        table[slot] = i + 1 >= PASSAGE ? (int32_t)(i + 1 - PASSAGE) : table[slot];
    }
    for (int64_t i = 0; i < count && found < 0; i++) {
        uint64_t slot = roll(&rolling, text, i) % TABLE;
        for (; i + 1 >= PASSAGE && table[slot] >= 0; slot = (slot + 1) % TABLE)
            if (memcmp(other + table[slot], text + i + 1 - PASSAGE, PASSAGE) == 0)
                found = i + 1 - PASSAGE;
    }
    free(table);
    return found;
}

static void case_no_shared_passage(void **state)
{
    (void)state;
    struct tess_dataset *set = open_text(0.02);
    const int64_t train = set->train.stream->count, test = set->test.stream->count;
    char *planted = malloc((size_t)test);
    /* Whether the text is right does not depend on sanitizers. */
    if (TESTS_DIVISOR == 1)
        assert_int_equal(find_shared(text_of(&set->train), train, text_of(&set->test), test), -1);
    /* What would be found. */
    memcpy(planted, text_of(&set->test), (size_t)test);
    memcpy(planted + 100001, text_of(&set->train) + 7000003, PASSAGE);
    assert_int_equal(find_shared(text_of(&set->train), train, planted, test), 7000003);
    free(planted);
    tess_dataset_close(set);
}

/* Another share divides the same documents elsewhere. */
static void case_share(void **state)
{
    (void)state;
    struct tess_dataset *set = open_text(0.02), *more = open_text(0.1234), *one = open_text(0);
    const int64_t all = set->train.stream->count + set->test.stream->count;
    assert_int_equal(more->train.stream->count + more->test.stream->count, all);
    assert_int_equal(one->train.stream->count + one->test.stream->count, all);
    assert_true(one->test.stream->count < 4096);
    assert_memory_equal(text_of(&more->train), text_of(&set->train), more->train.stream->count);
    /* Its validation begins within documents that are counted together. */
    assert_memory_equal(text_of(&more->test), text_of(&set->train) + more->train.stream->count,
                        set->train.stream->count - more->train.stream->count);
    assert_memory_equal(text_of(&more->test) + more->test.stream->count - one->test.stream->count,
                        text_of(&one->test), one->test.stream->count);
    tess_dataset_close(set);
    tess_dataset_close(more);
    tess_dataset_close(one);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bytes),     cmocka_unit_test(case_counts),
        cmocka_unit_test(case_documents), cmocka_unit_test(case_no_shared_passage),
        cmocka_unit_test(case_share),
    };
    return cmocka_run_group_tests_name("text", cases, NULL, NULL);
}
