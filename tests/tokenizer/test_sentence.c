/*
 * Models of SentencePiece against figures of its Python package (sentence_reference.h); what they
 * write in chats, which file of a folder is read, and models that are damaged.
 */
#include "data/token_files.h"
#include "tessera/log.h"
#include "tokenizer/sentence_files.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tokenizer/sentence_reference.h"

enum { UNKNOWN, BEGIN, END, BYTE, IM = BYTE + 256, PIECE };

static struct token_folder folder;

static struct tess__tokenizer *open_path(const char *path)
{
    struct tess__tokenizer *tokenizer = NULL;
    if (tess__tokenizer_open(path, &tokenizer) != TESS_OK)
        fail_msg("%s", tess_log_last_error());
    return tokenizer;
}

static struct tess__tokenizer *open_kind(const char *kind)
{
    sentence_write(token_path(&folder, "t.model"), kind);
    return open_path(token_path(&folder, "t.model"));
}

static void check_ids(const struct tess__ids *ids, const uint32_t *id, int count, const char *text)
{
    for (int i = 0; i < count && i < (int)ids->count; i++)
        if (ids->id[i] != id[i])
            fail_msg("token %d is %u, expected %u, of: %s", i, ids->id[i], id[i], text);
    assert_int_equal(ids->count, count);
}

static void case_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(reference) / sizeof(*reference); i++) {
        struct tess__tokenizer *tokenizer = open_kind(reference[i].kind);
        struct tess__ids ids = {0};
        const char *text = reference[i].text;
        const bool special = strstr(text, "</s>") != NULL; /* which chats read in another way */
        if (reference[i].begins) {
            assert_int_equal(tess__tokenizer_encode(tokenizer, text, reference[i].bytes, &ids),
                             TESS_OK);
            check_ids(&ids, reference[i].id, reference[i].count, text);
            ids.count = 0;
        }
        assert_int_equal(tess__tokenizer_encode_chat(tokenizer, text, reference[i].bytes,
                                                     reference[i].begins, &ids),
                         TESS_OK);
        if (!special)
            check_ids(&ids, reference[i].id, reference[i].count, text);
        free(ids.id);
        tess__tokenizer_close(tokenizer);
    }
}

/* The tokens' bytes are the text, with the space that is put before it. */
static void case_decode(void **state)
{
    static const char text[] = "hello the  hello's 12345\n\n  the\thello \u00e9 \U0001f600.";
    struct tess__tokenizer *tokenizer = open_kind("bpe");
    struct tess__ids ids = {0};
    size_t at = 0, count;
    char made[128];
    (void)state;
    assert_int_equal(tess__tokenizer_vocabulary(tokenizer), SENTENCE_BPE_VOCABULARY);
    assert_int_equal(tess__tokenizer_encode(tokenizer, text, strlen(text), &ids), TESS_OK);
    for (size_t t = 0; t < ids.count; t++, at += count) {
        const char *bytes = tess__tokenizer_bytes(tokenizer, (int32_t)ids.id[t], &count);
        memcpy(made + at, bytes, count);
    }
    made[at] = '\0';
    assert_string_equal(made + 1, text);
    assert_int_equal(made[0], ' ');
    free(ids.id);
    assert_memory_equal(tess__tokenizer_bytes(tokenizer, UNKNOWN, &count), " \u2047 ", 5);
    assert_int_equal(count, 5);
    assert_int_equal(*tess__tokenizer_bytes(tokenizer, BYTE + 10, &count), '\n');
    assert_int_equal(count, 1);
    assert_memory_equal(tess__tokenizer_bytes(tokenizer, END, &count), "</s>", 4);
    (void)tess__tokenizer_bytes(tokenizer, SENTENCE_BPE_VOCABULARY, &count);
    assert_int_equal(count, 0);
    assert_int_equal(tess__tokenizer_find(tokenizer, "<|im|>"), IM);
    assert_int_equal(tess__tokenizer_find(tokenizer, "hello"), PIECE + 5);
    assert_int_equal(tess__tokenizer_find(tokenizer, "none"), -1);
    assert_int_equal(tess__tokenizer_end(tokenizer), END);
    tess__tokenizer_close(tokenizer);
}

/* Control pieces that a template writes are those tokens, and a text begins behind them. */
static void case_chat(void **state)
{
    static const char text[] = "<s>hello</s><s> the";
    static const uint32_t wanted[] = {BEGIN, PIECE + 6, END, BEGIN, PIECE + 12, PIECE + 3};
    struct tess__tokenizer *tokenizer = open_kind("bpe");
    struct tess__ids ids = {0}, plain = {0};
    (void)state;
    assert_int_equal(tess__tokenizer_encode_chat(tokenizer, text, strlen(text), true, &ids),
                     TESS_OK);
    check_ids(&ids, wanted, 6, text);
    assert_int_equal(tess__tokenizer_encode(tokenizer, text, strlen(text), &plain), TESS_OK);
    for (size_t i = 0; i < plain.count; i++)
        assert_true(plain.id[i] != BEGIN && plain.id[i] != END);
    free(ids.id);
    free(plain.id);
    tess__tokenizer_close(tokenizer);
}

/* Which of both files a folder's tokenizer is. */
static void case_places(void **state)
{
    struct tess__tokenizer *tokenizer;
    (void)state;
    sentence_write(token_path(&folder, "tokenizer.model"), "bpe");
    tokenizer = open_path(folder.path);
    assert_string_equal(tess__tokenizer_file_name(tokenizer), "tokenizer.model");
    assert_non_null(strstr(tess__tokenizer_file(tokenizer), "/tokenizer.model"));
    const uint64_t id = tess__tokenizer_id(tokenizer);
    tess__tokenizer_close(tokenizer);
    /* transformers writes one for Llama 2 that is not of byte-level BPE. */
    token_write_bytes(&folder, "tokenizer.json", "{\"model\": {\"byte_fallback\": true}}", 34);
    tokenizer = open_path(folder.path);
    assert_true(tess__tokenizer_id(tokenizer) == id);
    tess__tokenizer_close(tokenizer);
    tokenizer_write(token_path(&folder, "tokenizer.json"), "gpt2");
    tokenizer = open_path(folder.path);
    assert_string_equal(tess__tokenizer_file_name(tokenizer), "tokenizer.json");
    tess__tokenizer_close(tokenizer);
    unlink(token_path(&folder, "tokenizer.json"));
    token_write_bytes(&folder, "tokenizer_config.json", "{\"eos_token\": \"<|im|>\"}", 23);
    tokenizer = open_path(folder.path);
    assert_int_equal(tess__tokenizer_end(tokenizer), IM);
    tess__tokenizer_close(tokenizer);
    unlink(token_path(&folder, "tokenizer_config.json"));
    unlink(token_path(&folder, "tokenizer.model"));
}

/* Cut anywhere and with any byte changed, it opens and encodes, or is refused with its name. */
static void case_damage(void **state)
{
    static char whole[16384];
    static const char text[] = "hello the  hello's 12345\n\n  the\thello \u00e9 \U0001f600.";
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        sentence_write(token_path(&folder, "whole.model"), kind ? "unigram" : "bpe");
        FILE *file = fopen(token_path(&folder, "whole.model"), "rb");
        assert_non_null(file);
        const size_t bytes = fread(whole, 1, sizeof(whole), file);
        fclose(file);
        for (size_t i = 0; i < 600 / TESTS_DIVISOR; i++) {
            struct tess__tokenizer *tokenizer = NULL;
            const size_t at = i * 7919 % bytes;
            const char before = whole[at];
            whole[at] ^= (char)(1 + i % 255);
            token_write_bytes(&folder, "bad.model", whole, i % 3 == 0 ? at : bytes);
            whole[at] = before;
            if (tess__tokenizer_open(token_path(&folder, "bad.model"), &tokenizer) == TESS_OK) {
                struct tess__ids ids = {0};
                (void)tess__tokenizer_encode(tokenizer, text, sizeof(text) - 1, &ids);
                for (size_t t = 0; t < ids.count; t++)
                    assert_true(ids.id[t] < (uint32_t)tess__tokenizer_vocabulary(tokenizer));
                free(ids.id);
            } else if (strstr(tess_log_last_error(), "bad.model") == NULL) {
                fail_msg("no name in: %s", tess_log_last_error());
            }
            tess__tokenizer_close(tokenizer);
        }
    }
    struct tess__tokenizer *tokenizer = NULL;
    token_write_bytes(&folder, "empty.model", "", 0);
    assert_int_equal(tess__tokenizer_open(token_path(&folder, "empty.model"), &tokenizer),
                     TESS_ERR_DATA);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_reference), cmocka_unit_test(case_decode),
        cmocka_unit_test(case_chat),      cmocka_unit_test(case_places),
        cmocka_unit_test(case_damage),
    };
    token_folder_open(&folder);
    const int failed = cmocka_run_group_tests_name("sentence", cases, NULL, NULL);
    token_folder_close(&folder);
    return failed;
}
