/*
 * Byte-level BPE against figures of the `tokenizers` package (reference.h), against a slow merge
 * written here, and files that are hostile, damaged or ask for more than is known.
 */
#include "data/token_files.h"
#include "tessera/log.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/tokenizer_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include <cmocka.h>

#include "tokenizer/reference.h"

static struct token_folder folder;

static struct tess__tokenizer *open_kind(const char *kind)
{
    struct tess__tokenizer *tokenizer = NULL;
    tokenizer_write(token_path(&folder, "tokenizer.json"), kind);
    assert_int_equal(tess__tokenizer_open(folder.path, &tokenizer), TESS_OK);
    return tokenizer;
}

static void check_ids(struct tess__tokenizer *tokenizer, const char *text, size_t bytes,
                      const uint32_t *id, size_t count)
{
    struct tess__ids ids = {0};
    assert_int_equal(tess__tokenizer_encode(tokenizer, text, bytes, &ids), TESS_OK);
    for (size_t i = 0; i < count && i < ids.count; i++)
        if (ids.id[i] != id[i])
            fail_msg("token %zu is %u, expected %u, of: %s", i, ids.id[i], id[i], text);
    assert_int_equal(ids.count, count);
    free(ids.id);
}

static void case_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(reference) / sizeof(*reference); i++) {
        struct tess__tokenizer *tokenizer = open_kind(reference[i].kind);
        assert_int_equal(tess__tokenizer_vocabulary(tokenizer), TOKENIZER_VOCABULARY);
        for (int again = 0; again < 2; again++) /* then from the table of words */
            check_ids(tokenizer, reference[i].text, strlen(reference[i].text), reference[i].id,
                      (size_t)reference[i].count);
        tess__tokenizer_close(tokenizer);
    }
}

/* reference.py has U+FFFD where Python's errors="replace" puts it. */
static void case_invalid(void **state)
{
    static const char text[] = "a\xff\xe2\x82 b\xc3";
    struct tess__tokenizer *tokenizer = open_kind("gpt2");
    struct tokenizer_buffer repaired = {0};
    (void)state;
    check_ids(tokenizer, text, sizeof(text) - 1, reference[1].id, (size_t)reference[1].count);
    tess__tokenizer_close(tokenizer);
    static const struct {
        const char *text;
        size_t count;
    } of[] = {/* b"...".decode(errors="replace").count("\ufffd") */
              {"\xc0\xaf", 2},     {"\xe0\x80\xaf", 3},     {"\xf0\x9f\x98", 1},
              {"\xed\xa0\x80", 3}, {"\xf4\x90\x80\x80", 4}, {"\xe2\x82\xe2\x82\xac", 1},
              {"\x80\x80", 2},     {"\xf5\x80", 2},         {"\xf1\x80\x80x", 1}};
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        size_t count = 0;
        assert_int_equal(tess__text_repair(of[i].text, strlen(of[i].text), &repaired), TESS_OK);
        for (size_t at = 0; at + 2 < repaired.count; at++)
            count += memcmp(repaired.at + at, "\xef\xbf\xbd", 3) == 0;
        assert_int_equal(count, of[i].count);
        assert_int_equal(tess__text_valid(repaired.at, repaired.count), repaired.count);
    }
    free(repaired.at);
}

/* Decoding gives the text back, whatever its bytes, where they are UTF-8. */
static void case_decode(void **state)
{
    (void)state;
    struct tess__tokenizer *tokenizer = open_kind("llama3");
    for (size_t i = 0; i < 3; i++) {
        const char *text = reference[i].text;
        struct tess__ids ids = {0};
        size_t at = 0, count;
        assert_int_equal(tess__tokenizer_encode(tokenizer, text, strlen(text), &ids), TESS_OK);
        for (size_t t = 0; t < ids.count; t++) {
            const char *bytes = tess__tokenizer_bytes(tokenizer, (int32_t)ids.id[t], &count);
            if (ids.id[t] == TOKENIZER_END + 2)
                break; /* what it took before and behind itself is gone */
            assert_memory_equal(bytes, text + at, count);
            at += count;
        }
        free(ids.id);
    }
    size_t count = 7;
    (void)tess__tokenizer_bytes(tokenizer, TOKENIZER_VOCABULARY, &count);
    assert_int_equal(count, 0);
    (void)tess__tokenizer_bytes(tokenizer, -1, &count);
    assert_int_equal(count, 0);
    assert_int_equal(tess__tokenizer_find(tokenizer, "<|end|>"), TOKENIZER_END);
    assert_int_equal(tess__tokenizer_find(tokenizer, "hello"), 259);
    assert_int_equal(tess__tokenizer_find(tokenizer, "none"), -1);
    tess__tokenizer_close(tokenizer);
}

/* Of all pairs the one of the lowest rank, the leftmost first, one merge after the other. */
static size_t merge_slowly(const char *text, uint32_t *id)
{
    static const uint32_t rule[][3] = {{'h', 'e', 256}, {'l', 'l', 257}, {256, 257, 258},
                                       {258, 'o', 259}, {'i', 'n', 269}, {269, 'g', 270}};
    size_t count = strlen(text);
    for (size_t i = 0; i < count; i++)
        id[i] = (uint8_t)text[i];
    for (size_t r = 0; r < sizeof(rule) / sizeof(*rule); r++) {
        for (size_t i = 0; i + 1 < count; i++) {
            if (id[i] != rule[r][0] || id[i + 1] != rule[r][1])
                continue;
            id[i] = rule[r][2];
            memmove(id + i + 1, id + i + 2, (--count - i - 1) * sizeof(*id));
        }
    }
    return count;
}

/* Up to 64 bytes are merged by search, longer words by a heap: as one by one. */
static void case_long(void **state)
{
    (void)state;
    struct tess__tokenizer *tokenizer = open_kind("gpt2");
    uint32_t random = 1;
    for (size_t length = 20; length < 400; length++) {
        char text[512] = "";
        uint32_t expected[512];
        while (strlen(text) < length) {
            static const char *const part[] = {"hello", "hell", "he", "ll", "l", "ing", "in", "o"};
            random = random * 1664525 + 1013904223;
            strcat(text, part[random >> 29]);
        }
        const size_t count = merge_slowly(text, expected);
        check_ids(tokenizer, text, strlen(text), expected, count);
    }
    tess__tokenizer_close(tokenizer);
}

/* The characters that are taken for plain stay as they are in NFC, after any and before any mark
 * that combines. */
static void case_plain(void **state)
{
    (void)state;
    for (utf8proc_int32_t code = 1; code < 0x110000; code++) {
        char text[8];
        if (code >= 0xd800 && code < 0xe000)
            continue;
        const size_t bytes = (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)text);
        if (!tess__text_is_plain(text, bytes))
            continue;
        const utf8proc_property_t *property = utf8proc_get_property(code);
        text[bytes] = '\0';
        utf8proc_uint8_t *made = utf8proc_NFC((utf8proc_uint8_t *)text);
        if (property->combining_class != 0 || strcmp((char *)made, text) != 0)
            fail_msg("U+%04X is not plain", (unsigned)code);
        free(made);
    }
    static const char *const composed[][2] = {{"e\u0301", "\u00e9"},
                                              {"xe\u0323\u0301y", "x\u1eb9\u0301y"},
                                              {"\u1112\u1161\u11ab", "\ud55c"},
                                              {"\uac00\u11a8", "\uac01"},
                                              {"\u304b\u3099", "\u304c"},
                                              {"\u0301e\u0301", "\u0301\u00e9"},
                                              {"\u212b\u2126", "\u00c5\u03a9"}};
    struct tokenizer_buffer made = {0};
    for (size_t i = 0; i < sizeof(composed) / sizeof(*composed); i++) {
        assert_int_equal(tess__text_compose(composed[i][0], strlen(composed[i][0]), &made),
                         TESS_OK);
        assert_int_equal(made.count, strlen(composed[i][1]));
        assert_memory_equal(made.at, composed[i][1], made.count);
    }
    free(made.at);
}

/* ---- files -------------------------------------------------------------------------------------
 */

static void check_refused(const char *path, enum tess_status expected, const char *word)
{
    struct tess__tokenizer *tokenizer = NULL;
    const int files = token_open_files();
    const enum tess_status status = tess__tokenizer_open(path, &tokenizer);
    if (status != expected || strstr(tess_log_last_error(), word) == NULL)
        fail_msg("status %d, expected %d; message \"%s\" without \"%s\"", status, expected,
                 tess_log_last_error(), word);
    assert_null(tokenizer);
    assert_int_equal(token_open_files(), files);
}

static void case_hostile(void **state)
{
    static const struct {
        const char *kind, *from, *to, *word;
        enum tess_status status;
    } change[] = {
        {"gpt2", "\"BPE\"", "\"Unigram\"", "model.type Unigram", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"ignore_merges\"", "\"byte_fallback\": true, \"ignore_merges\"",
         "model.byte_fallback", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"ignore_merges\"", "\"dropout\": 0.1, \"ignore_merges\"", "model.dropout",
         TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"ignore_merges\"", "\"end_of_word_suffix\": \"</w>\", \"ignore_merges\"",
         "model.end_of_word_suffix", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}",
         "normalizer Lowercase", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space",
         TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"ByteLevel\"", "\"Metaspace\"", "pre_tokenizer Metaspace", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"single_word\": false", "\"single_word\": true", "single_word of <|end|>",
         TESS_ERR_UNSUPPORTED},
        {"qwen", "Isolated", "Removed", "behavior Removed", TESS_ERR_UNSUPPORTED},
        {"qwen", "(?!\\\\S)", "(?!\\\\w)", "\\w, which is not read", TESS_ERR_UNSUPPORTED},
        {"qwen", "(?!\\\\S)", "$", "has $", TESS_ERR_UNSUPPORTED},
        {"qwen", "(?!\\\\S)", "(?!\\\\S", "is wrong: ", TESS_ERR_DATA},
        {"qwen", "(?!\\\\S)", "(*FAIL)(?R)(*UTF8)", "is wrong: ", TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"hello\": -1", "the number of hello", TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"hello\": 1e3", "the number of hello", TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"hello\": 99999999999", "the number of hello", TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"hello\": 258", "two tokens have the number 258",
         TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"hello\": 259, \"hello\": 300", "duplicate", TESS_ERR_DATA},
        {"gpt2", "\"hello\": 259", "\"help\": 259", "has a token that vocab lacks", TESS_ERR_DATA},
        {"gpt2", "\"A\": 65", "\"AA\": 65", "no token for the byte 65", TESS_ERR_DATA},
        {"gpt2", "\"he ll\"", "\"hell\"", "number 2 is not two tokens", TESS_ERR_DATA},
        {"gpt2", "\"he ll\"", "7", "number 2 is not two tokens", TESS_ERR_DATA},
        {"gpt2", "\"id\": 274", "\"id\": -4", "the id of <|end|>", TESS_ERR_DATA},
        {"gpt2", "\"id\": 274", "\"id\": 99999999", "the id of <|end|>", TESS_ERR_DATA},
        {"gpt2", "\"<|end|>\"", "\"\"", "one without a content", TESS_ERR_DATA},
        {"gpt2", "\"merges\": [", "\"merges\": {}, \"unk_token\": [", "merges (a list)",
         TESS_ERR_DATA},
        {"gpt2", "\"merges\": [", "\"merges\": [\"\\u0000 a\", ", ": ", TESS_ERR_DATA},
        {"gpt2", "\"model\": ", "\"model\": [], \"decoder\": ", "model.type is missing",
         TESS_ERR_UNSUPPORTED},
        /* Keys that are not known. */
        {"gpt2", "\"model\": ", "\"modal\": ", "the key modal", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"ignore_merges\"", "\"cut\": 7, \"ignore_merges\"", "the key model.cut",
         TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"single_word\"", "\"fuzzy\": true, \"single_word\"",
         "the key added_tokens.fuzzy", TESS_ERR_UNSUPPORTED},
        {"gpt2", "\"trim_offsets\"", "\"lower\": \"a\", \"trim_offsets\"",
         "the key pre_tokenizer.lower", TESS_ERR_UNSUPPORTED},
        {"qwen", "\"behavior\"", "\"flags\": [1], \"behavior\"", "the key pre_tokenizer.flags",
         TESS_ERR_UNSUPPORTED},
        {"qwen", "{\"Regex\"", "{\"Flags\": 1, \"Regex\"", "the key pre_tokenizer.pattern.Flags",
         TESS_ERR_UNSUPPORTED},
        {"qwen", "\"pretokenizers\"", "\"reverse\": true, \"pretokenizers\"",
         "the key pre_tokenizer.reverse", TESS_ERR_UNSUPPORTED},
        {"qwen", "{\"type\": \"NFC\"", "{\"type\": \"NFC\", \"strict\": true",
         "the key normalizer.strict", TESS_ERR_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(change) / sizeof(*change); i++) {
        const char *path = token_path(&folder, "tokenizer.json");
        tokenizer_write_changed(path, change[i].kind, change[i].from, change[i].to);
        check_refused(path, change[i].status, change[i].word);
        assert_non_null(strstr(tess_log_last_error(),
                               strstr(change[i].word, "two tokens have") ? "" : "tokenizer.json"));
    }
}

/* Keys that change no number, and those that are not known and off. */
static void case_known_keys(void **state)
{
    static const char *const change[][2] = {
        {"{\"version\"", "{\"truncation\": {\"max_length\": 2}, \"padding\": null, \"version\""},
        {"{\"version\"", "{\"post_processor\": {\"type\": \"X\"}, \"other\": null, \"version\""},
        {"\"ignore_merges\"", "\"unk_token\": \"<u>\", \"fuse_unk\": true, \"ignore_merges\""},
        {"\"ignore_merges\"", "\"cut\": false, \"limit\": 0, \"ignore_merges\""},
    };
    struct tess__tokenizer *tokenizer = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof(change) / sizeof(*change); i++) {
        const char *path = token_path(&folder, "tokenizer.json");
        tokenizer_write_changed(path, "gpt2", change[i][0], change[i][1]);
        if (tess__tokenizer_open(path, &tokenizer) != TESS_OK)
            fail_msg("%s", tess_log_last_error());
        check_ids(tokenizer, reference[0].text, strlen(reference[0].text), reference[0].id,
                  (size_t)reference[0].count);
        tess__tokenizer_close(tokenizer);
    }
}

/* Cut at any byte, and with any byte changed, it opens or is refused, with a message. */
static void case_damage(void **state)
{
    static char text[32768];
    (void)state;
    tokenizer_write(token_path(&folder, "whole.json"), "qwen");
    FILE *file = fopen(token_path(&folder, "whole.json"), "r");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof(text), file);
    fclose(file);
    for (size_t at = 0; at + 2 < bytes; at += 97) {
        token_write_bytes(&folder, "cut.json", text, at);
        check_refused(token_path(&folder, "cut.json"), TESS_ERR_DATA, "cut.json");
        struct tess__tokenizer *tokenizer = NULL;
        const char before = text[at];
        text[at] ^= (char)(1 + at % 127);
        token_write_bytes(&folder, "bad.json", text, bytes);
        text[at] = before;
        if (tess__tokenizer_open(token_path(&folder, "bad.json"), &tokenizer) == TESS_OK) {
            struct tess__ids ids = {0};
            assert_int_equal(tess__tokenizer_encode(tokenizer, text, bytes, &ids), TESS_OK);
            free(ids.id);
        }
        tess__tokenizer_close(tokenizer);
    }
}

static void case_places(void **state)
{
    struct tess__tokenizer *tokenizer = NULL;
    (void)state;
    check_refused("/nonexistent", TESS_ERR_NOT_FOUND, "/nonexistent");
    check_refused("/usr", TESS_ERR_NOT_FOUND, "save_pretrained");
    check_refused("/dev/zero", TESS_ERR_IO, "device");
    tokenizer_write(token_path(&folder, "tokenizer.json"), "gpt2");
    assert_int_equal(tess__tokenizer_open(folder.path, &tokenizer), TESS_OK);
    assert_int_equal(tess__tokenizer_end(tokenizer), -1); /* none of the usual names */
    tess__tokenizer_close(tokenizer);
    /* The last one as transformers writes a length without a limit. */
    static const char *const config[] = {
        "{\"eos_token\": \"<|endx|>\"}", "{\"eos_token\": {\"content\": \"<|endx|>\"}}",
        "{\"eos_token\": \"<|endx|>\", \"model_max_length\": 1000000000000000019884624838656}"};
    for (int i = 0; i < 3; i++) {
        token_write_bytes(&folder, "tokenizer_config.json", config[i], strlen(config[i]));
        assert_int_equal(tess__tokenizer_open(folder.path, &tokenizer), TESS_OK);
        assert_int_equal(tess__tokenizer_end(tokenizer), TOKENIZER_END + 1);
        tess__tokenizer_close(tokenizer);
    }
    token_write_bytes(&folder, "tokenizer_config.json", "{", 1);
    check_refused(folder.path, TESS_ERR_DATA, "tokenizer_config.json:1");
    unlink(token_path(&folder, "tokenizer_config.json"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_reference),  cmocka_unit_test(case_invalid),
        cmocka_unit_test(case_decode),     cmocka_unit_test(case_long),
        cmocka_unit_test(case_plain),      cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_damage),     cmocka_unit_test(case_places),
        cmocka_unit_test(case_known_keys),
    };
    token_folder_open(&folder);
    const int failed = cmocka_run_group_tests_name("tokenizer", cases, NULL, NULL);
    token_folder_close(&folder);
    return failed;
}
