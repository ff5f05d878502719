/*
 * tessera data prepare as a user meets it: the same shards for any number of processes, packing and
 * interruption, whose tokens are those of the texts; files that are damaged; training on the result
 * and text from it. Runs the built program.
 */
#include "base/clock.h"
#include "data/shard.h"
#include "harness/spawn.h"
#include "tokenizer/sentence_files.h"
#include "tokenizer/tokenizer_files.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

#define PREPARE "data prepare --tokenizer t.json --end <|end|> "

static char folder[] = "/tmp/tessera_prepare_XXXXXX";
static struct spawn spawn;
static char *lines; /* of a.jsonl */
static size_t lines_bytes;

static int run(const char *words)
{
    return spawn_words(&spawn, words);
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* A shard's header and tokens, to be freed. */
static uint16_t *read_shard(const char *path, struct tess__shard_header *header)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("no %s", path);
    assert_int_equal(fread(header, sizeof(*header), 1, file), 1);
    assert_int_equal(header->width, 2);
    uint16_t *token = malloc((size_t)header->tokens * sizeof(*token));
    assert_non_null(token);
    assert_int_equal(fread(token, sizeof(*token), (size_t)header->tokens, file), header->tokens);
    fclose(file);
    return token;
}

static void printed_id(char id[17])
{
    const char *at = strstr(spawn.out, "fingerprint ");
    if (at == NULL)
        fail_msg("no fingerprint in: %s%s", spawn.out, spawn.err);
    snprintf(id, 17, "%.16s", at + 12);
}

/* About 3 MB: three shards. */
static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0)
        return -1;
    tokenizer_write("t.json", "gpt2");
    lines = malloc(40000 * 100);
    for (int i = 0; lines && i < 40000; i++)
        lines_bytes +=
            (size_t)sprintf(lines + lines_bytes,
                            "{\"n\": %d, \"text\": \"hello the %d \\u00e9 \\n\xff wide %s\"}\n", i,
                            i * 7919, i % 3 ? "inging hello's" : "12312 \\ud83d\\ude00");
    write_file("a.jsonl", lines, lines_bytes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(lines);
    return spawn_remove(folder);
}

/* Three shards by one process and by three, and after one was removed and one damaged. */
static void case_processes(void **state)
{
    char first[17], id[17];
    struct tess__shard_header header;
    (void)state;
    assert_int_equal(run(PREPARE "--text a.jsonl --out one --processes 1"), 0);
    assert_non_null(strstr(spawn.out, "40.0 k documents"));
    assert_non_null(strstr(spawn.out, "in 3 shards"));
    printed_id(first);
    assert_int_equal(run(PREPARE "--text a.jsonl --out three --processes 3"), 0);
    printed_id(id);
    assert_string_equal(id, first);
    assert_int_equal(run(PREPARE "--text a.jsonl --out three"), 0);
    assert_non_null(strstr(spawn.out, "3 of 3 shards are there already"));
    assert_int_equal(unlink("three/tokens_000001.bin"), 0);
    assert_int_equal(truncate("three/tokens_000002.bin", 5000), 0);
    assert_int_equal(run(PREPARE "--text a.jsonl --out three"), 0);
    assert_non_null(strstr(spawn.out, "1 of 3 shards are there already"));
    printed_id(id);
    assert_string_equal(id, first);
    free(read_shard("three/tokens_000002.bin", &header));
    assert_int_equal(header.vocabulary, TOKENIZER_VOCABULARY);
    assert_int_equal(header.end, TOKENIZER_END);
}

/* Killed with all its processes at any time, it goes on: the same shards in the end. */
static void case_killed(void **state)
{
    char whole[17], id[17];
    (void)state;
    assert_int_equal(run(PREPARE "--text a.jsonl --out whole"), 0);
    printed_id(whole);
    for (int i = 0; i < 6; i++) {
        char *argv[] = {"tessera", "data",        "prepare", "--tokenizer", "t.json",
                        "--end",   "<|end|>",     "--text",  "a.jsonl",     "--out",
                        "killed",  "--processes", "2",       NULL};
        spawn_start(&spawn, argv, NULL);
        const struct timespec wait = {.tv_nsec = 4000000L << i};
        nanosleep(&wait, NULL);
        kill(spawn.pid, SIGKILL); /* the others end with it */
        (void)spawn_end(&spawn, 60);
        assert_true(spawn_gone(&spawn, 60));
    }
    assert_int_equal(run(PREPARE "--text a.jsonl --out killed"), 0);
    printed_id(id);
    assert_string_equal(id, whole);
}

static void gzip_file(const char *path, const char *bytes, size_t count)
{
    gzFile file = gzopen(path, "w");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)count), (int)count);
    assert_int_equal(gzclose(file), Z_OK);
}

static size_t zstd_file(const char *path, const char *bytes, size_t count)
{
    const size_t room = ZSTD_compressBound(count);
    char *packed = malloc(room);
    assert_non_null(packed);
    const size_t made = ZSTD_compress(packed, room, bytes, count, 3);
    assert_false(ZSTD_isError(made));
    write_file(path, packed, made);
    free(packed);
    return made;
}

/* Plain, by gzip and by zstd: the same tokens. Lines lie across the borders of pieces. */
static void case_packings(void **state)
{
    static const char *const name[] = {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"};
    uint16_t *whole = NULL;
    int64_t count = 0;
    (void)state;
    gzip_file("a.jsonl.gz", lines, lines_bytes);
    (void)zstd_file("a.jsonl.zst", lines, lines_bytes);
    for (size_t n = 3; n-- > 0;) {
        char words[256];
        struct tess__shard_header header;
        snprintf(words, sizeof(words), PREPARE "--text %s --out packed --overwrite", name[n]);
        assert_int_equal(run(words), 0);
        if (whole == NULL) {
            whole = read_shard("packed/tokens_000000.bin", &header);
            count = header.tokens;
            assert_int_equal(header.documents, 40000);
            continue;
        }
        int64_t at = 0;
        for (int shard = 0; at < count; shard++) {
            char path[64];
            snprintf(path, sizeof(path), "packed/tokens_%06d.bin", shard);
            uint16_t *token = read_shard(path, &header);
            assert_true(at + header.tokens <= count);
            assert_memory_equal(token, whole + at, (size_t)header.tokens * sizeof(*token));
            at += header.tokens;
            free(token);
        }
    }
    free(whole);
}

/* Documents by hand: a text is a file, an empty line is none, an empty text neither. */
static void case_documents(void **state)
{
    static const char text[] =
        "{\"text\": \"hello\"}\r\n\n{\"text\": \"\"}\n{\"body\": 1, \"text\": "
        "\"he\\u0000<|endx|>\"}";
    static const uint16_t expected[] = {259, 274, 256, 0, 275, 274, 257, 274};
    struct tess__shard_header header;
    int64_t ends[3];
    (void)state;
    write_file("b.jsonl", text, sizeof(text) - 1);
    write_file("c.txt", "ll", 2);
    assert_int_equal(run(PREPARE "--text b.jsonl,c.txt --out few"), 0);
    uint16_t *token = read_shard("few/tokens_000000.bin", &header);
    assert_int_equal(header.tokens, 8);
    assert_memory_equal(token, expected, sizeof(expected));
    assert_int_equal(header.documents, 3);
    FILE *file = fopen("few/tokens_000000.bin", "r");
    assert_int_equal(fseek(file, 1024 + 16, SEEK_SET), 0);
    assert_int_equal(fread(ends, sizeof(*ends), 3, file), 3);
    assert_true(ends[0] == 2 && ends[1] == 6 && ends[2] == 8);
    fclose(file);
    free(token);
    assert_int_equal(run(PREPARE "--text b.jsonl --out few"), 2);
    assert_non_null(strstr(spawn.err, "--overwrite"));
}

static void write_chat_tokenizer(const char *start, const char *end)
{
    char added[512];
    snprintf(added, sizeof(added),
             "\"added_tokens\": [{\"id\": 277, \"content\": \"%s\", \"special\": true}, {\"id\": "
             "278, \"content\": \"%s\", \"special\": true}, ",
             start, end);
    tokenizer_write_changed("t.json", "gpt2", "\"added_tokens\": [", added);
}

/* The tokens of a shard and the bits of its mask, as letters: '.' is not learnt. */
static void check_chat(const char *path, const uint16_t *expected, const char *learnt)
{
    struct tess__shard_header header;
    uint64_t mask;
    uint16_t *token = read_shard(path, &header);
    assert_int_equal(header.masked, 1);
    assert_int_equal(header.tokens, strlen(learnt));
    assert_memory_equal(token, expected, strlen(learnt) * sizeof(*token));
    FILE *file = fopen(path, "r");
    assert_int_equal(fseek(file, -8, SEEK_END), 0);
    assert_int_equal(fread(&mask, sizeof(mask), 1, file), 1);
    assert_int_equal(ftell(file), tess__shard_bytes(&header));
    for (int i = 0; i < 64; i++)
        assert_int_equal(mask >> i & 1, i < (int)strlen(learnt) && learnt[i] != '.');
    fclose(file);
    free(token);
}

/* Letters of GPT-2 for bytes are numbered by the byte here; "hello" is 259, "\n\n" 265. */
static void case_chat(void **state)
{
    static const char chats[] =
        "{\"messages\": [{\"role\": \"a\", \"content\": \"hello\"}, {\"role\": \"assistant\", "
        "\"content\": \" hello\\n\"}, {\"role\": \"b\", \"content\": \"\"}, {\"role\": "
        "\"assistant\", \"content\": \"x\"}]}\n"
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}\n";
#define ASSISTANT 'a', 's', 's', 'i', 's', 't', 'a', 'n', 't'
    static const uint16_t chatml[] = {277,  'a',       '\n', 259,       278,  '\n', 277, ASSISTANT,
                                      '\n', 262,       '\n', 278,       '\n', 277,  'b', '\n',
                                      278,  '\n',      277,  ASSISTANT, '\n', 'x',  278, '\n',
                                      277,  ASSISTANT, '\n', 278,       '\n'};
    (void)state;
    write_chat_tokenizer("<|im_start|>", "<|im_end|>");
    write_file("chat.jsonl", chats, sizeof(chats) - 1);
    assert_int_equal(
        run("data prepare --tokenizer t.json --text chat.jsonl --chat auto --out chat"), 0);
    check_chat("chat/tokens_000000.bin", chatml,
               "......"
               "..........."
               "LLL"
               "."
               "....."
               "..........."
               "LL"
               "."
               "..........."
               "L"
               ".");
    assert_int_equal(
        run("train --model gpt --gpt.layers 1 --gpt.width 16 --gpt.heads 2 --data chat "
            "--data.length 8 --batch-size 4 --steps 2 --strategy ddp --ranks 2"),
        0);
    write_chat_tokenizer("<|start_header_id|>", "<|eot_id|>");
    assert_int_equal(run("data prepare --tokenizer t.json --text chat.jsonl --chat auto --out two"),
                     0);
    /* Trimmed: hello and its end, the end alone of the empty answers. */
    struct tess__shard_header header;
    uint16_t *token = read_shard("two/tokens_000000.bin", &header);
    FILE *file = fopen("two/tokens_000000.bin", "r");
    uint16_t learnt[8];
    int count = 0;
    assert_int_equal(fseek(file, -tess__shard_mask_bytes(&header), SEEK_END), 0);
    for (int64_t i = 0, byte = 0; i < header.tokens; i++) {
        byte = i % 8 == 0 ? fgetc(file) : byte >> 1;
        if ((byte & 1) != 0 && count < 8)
            learnt[count++] = token[i];
    }
    const uint16_t llama3[] = {259, 278, 'x', 278, 278};
    assert_int_equal(count, 5);
    assert_memory_equal(learnt, llama3, sizeof(llama3));
    fclose(file);
    free(token);
    tokenizer_write("t.json", "gpt2");
}

static void check_refused(const char *words, const char *phrase)
{
    char all[256];
    snprintf(all, sizeof(all), "data prepare --tokenizer t.json --out no %s", words);
    assert_true(run(all) > 0);
    if (strstr(spawn.err, phrase) == NULL)
        fail_msg("%s: no \"%s\" in: %s", words, phrase, spawn.err);
    assert_int_not_equal(access("no/index.json", F_OK), 0);
}

static void case_refusals(void **state)
{
    (void)state;
    write_file("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"a}\n", 27);
    write_file("key.jsonl", "{\"text\": \"a\"}\n{\"body\": \"a\"}\n", 29);
    write_file("half.jsonl", "{\"text\": \"\\ud83d\"}\n", 19);
    write_file("nul.txt", "a\0b", 3);
    write_file("p.parquet", "PAR1....", 8);
    write_file("empty.txt", "", 0);
    write_file("cut.zst", lines, zstd_file("whole.zst", lines, lines_bytes));
    gzip_file("cut.gz", lines, 100000);
    assert_int_equal(truncate("cut.gz", 3000), 0);
    FILE *whole = fopen("whole.zst", "r"), *cut = fopen("cut.zst", "w");
    for (int i = 0; i < 5000; i++)
        fputc(fgetc(whole), cut);
    fclose(whole);
    fclose(cut);
    check_refused("--text a.jsonl", "which token ends a document");
    check_refused("--end <|none|> --text a.jsonl", "no token <|none|>");
    check_refused("--end none --text bad.jsonl", "bad.jsonl:2: not a line of JSON");
    check_refused("--end none --text key.jsonl", "key.jsonl:2: no text under the key \"text\"");
    check_refused("--end none --text half.jsonl", "half.jsonl:1: not a line of JSON");
    check_refused("--end none --text nul.txt", "nul.txt: not text: byte 1");
    check_refused("--end none --text p.parquet", "a Parquet file");
    check_refused("--end none --text empty.txt", "all files are empty");
    check_refused("--end none --text cut.zst", "cut.zst: truncated");
    check_refused("--end none --text cut.gz", "cut.gz: truncated");
    check_refused("--end none --text no*.txt", "no file matches");
    check_refused("--chat auto --text a.jsonl", "the tokens of no known template");
    check_refused("--chat llama3 --text a.jsonl", "has no token <|start_header_id|>");
    check_refused("--chat other --text a.jsonl", "expected none, auto, chatml or llama3");
    write_chat_tokenizer("<|im_start|>", "<|im_end|>");
    write_file("role.jsonl", "{\"messages\": [{\"role\": \"user\"}]}\n", 33);
    write_file("user.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}\n", 48);
    check_refused("--chat auto --text a.jsonl", "a.jsonl:1: no list of messages under the key");
    check_refused("--chat auto --text role.jsonl", "role.jsonl:1: message 1 has no text under");
    check_refused("--chat auto --text user.jsonl", "user.jsonl:1: no message of the assistant");
    check_refused("--chat auto --text c.txt", "c.txt: chats are read from JSON Lines");
    tokenizer_write("t.json", "gpt2");
    check_refused("--end none --text .", "not a regular file");
}

/* What was prepared is trained on, and text comes out by its tokenizer; a damaged shard is not. */
static void case_train(void **state)
{
    (void)state;
    assert_int_equal(run(PREPARE "--text a.jsonl --out data"), 0);
    assert_int_equal(
        run("train --model gpt --gpt.layers 1 --gpt.width 16 --gpt.heads 2 --data data "
            "--data.length 16 --batch-size 8 --steps 2 --run r"),
        0);
    assert_int_equal(run("generate r --prompt hello<|end|>the --tokens 1 --temperature 0"), 0);
    assert_int_equal(strncmp(spawn.out, "hello<|end|>the", 15), 0);
    assert_non_null(strstr(spawn.err, "after a prompt of 4")); /* hello, the end, t, he */
    tokenizer_write_changed("u.json", "gpt2", "\"hello\": 259", "\"hello\": 259, \"QQ\": 277");
    assert_int_equal(run("data prepare --tokenizer u.json --end none --text c.txt --out other"), 0);
    assert_int_equal(run("train --model gpt --data data/tokens_000000.bin,other/tokens_000000.bin"),
                     1);
    assert_non_null(strstr(spawn.err, "one data set is of one kind"));
    assert_int_equal(truncate("data/tokens_000001.bin", 4096), 0);
    assert_int_equal(run("train --model gpt --data data"), 1);
    assert_non_null(strstr(spawn.err, "tokens_000001.bin: truncated"));
}

static void check_out(const char *phrase)
{
    if (strstr(spawn.out, phrase) == NULL)
        fail_msg("no '%s' in: %s%s", phrase, spawn.out, spawn.err);
}

/* The lines of a text's score, with the number of a document before each, are in that of all. */
static void check_document(const char *all, int document, const char *command)
{
    char wanted[256];
    assert_int_equal(run(command), 0);
    for (char *line = strtok(spawn.out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strstr(line, "\"at\"") == NULL)
            continue;
        snprintf(wanted, sizeof(wanted), "{\"document\":%d,%s\n", document, line + 1);
        if (strstr(all, wanted) == NULL)
            fail_msg("no %s in: %s", wanted, all);
    }
}

/* Documents are scored as if each were the only text, whatever file they are in. */
static void case_score(void **state)
{
    static const char docs[] = "{\"text\": \"hello the\"}\n{\"text\": \"\"}\n{\"text\": \"a\"}\n"
                               "{\"text\": \"123 ing hello's\"}\n";
    static char all[SPAWN_TEXT_BYTES];
    (void)state;
    write_file("docs.jsonl", docs, sizeof(docs) - 1);
    write_file("one.txt", "hello the", 9);
    write_file("two.txt", "123 ing hello's", 15);
    assert_int_equal(run("score r --text docs.jsonl --chunk 3"), 0);
    snprintf(all, sizeof(all), "%s", spawn.out);
    check_out("{\"document\":1,\"tokens\":0,\"log_prob\":0}\n{\"document\":2,\"tokens\":0,");
    check_out("{\"documents\":4,\"tokens\":");
    check_document(all, 0, "score r --text one.txt");
    check_document(all, 3, "score r --text two.txt");
    assert_int_equal(run("score r --text docs.jsonl --documents off --output sum"), 0);
    assert_null(strstr(spawn.out, "documents"));
    assert_int_equal(run("score r --text docs.jsonl --key body"), 1);
    assert_non_null(strstr(spawn.err, "docs.jsonl:1: no text under the key \"body\""));
    assert_int_equal(run("score r --text docs.jsonl --limit 2"), 0);
    check_out("{\"documents\":1,\"tokens\":1,");

    /* Prepared, with the token that ends each; and written out in a text. */
    assert_int_equal(run(PREPARE "--text docs.jsonl --out scored"), 0);
    assert_int_equal(run("score r --text scored/tokens_000000.bin"), 0);
    snprintf(all, sizeof(all), "%s", spawn.out);
    check_out("{\"documents\":3,"); /* the empty one has no token */
    write_file("one.txt", "hello the<|end|>", 16);
    write_file("two.txt", "123 ing hello's<|end|>", 22);
    check_document(all, 0, "score r --text one.txt");
    check_document(all, 2, "score r --text two.txt");
    write_file("tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}", 24);
    write_file("both.txt", "hello the<|end|>a<|end|>123 ing hello's<|end|>", 46);
    assert_int_equal(run("score r --tokenizer t.json --text both.txt"), 0);
    assert_string_equal(spawn.out, all);
    assert_int_equal(run("score r --tokenizer t.json --text both.txt --output table"), 0);
    check_out("  document          at     token");
    check_out("tokens of 3 documents, log-probability -");
    assert_int_equal(unlink("tokenizer_config.json"), 0);
}

#ifdef TESTS_SENTENCEPIECE
/* A tokenizer.model: its tokens, training on them, and the text of a chat whose <s> is a token. */
static void case_sentence(void **state)
{
    static const char config[] = "{\"chat_template\": \"{{ bos_token }}{{ '[INST] ' + "
                                 "messages[0]['content'] + ' [/INST]' }}\"}";
    const uint16_t wanted[] = {260 + 6, 260 + 3, 2, 260 + 6, 2};
    struct tess__shard_header header;
    (void)state;
    sentence_write("s.model", "bpe");
    write_file("tokenizer_config.json", config, sizeof(config) - 1);
    write_file("s.jsonl", "{\"text\": \"hello the\"}\n{\"text\": \"hello\"}\n", 40);
    tokenizer_write("t.json", "gpt2");
    assert_int_equal(run("data prepare --tokenizer s.model --text s.jsonl --out sentence"), 0);
    uint16_t *token = read_shard("sentence/tokens_000000.bin", &header);
    assert_int_equal(header.tokens, 5);
    assert_int_equal(header.vocabulary, SENTENCE_BPE_VOCABULARY);
    assert_memory_equal(token, wanted, sizeof(wanted));
    free(token);
    assert_int_equal(access("sentence/tokenizer.model", R_OK), 0);
    assert_int_equal(
        run("train --model gpt --gpt.layers 1 --gpt.width 16 --gpt.heads 2 --data sentence "
            "--data.length 2 --gpt.context 32 --batch-size 1 --steps 1 --run rs"),
        0);
    assert_int_equal(run("generate rs --prompt hello --tokens 1 --context 32"), 0);
    assert_non_null(strstr(spawn.err, "after a prompt of 1"));
    assert_int_equal(run("generate rs --chat --prompt the --tokens 1 --context 32"), 0);
    assert_non_null(strstr(spawn.err, "after a prompt of 17"));
    /* Replaced by tokens of the other kind, whose tokenizer is then the folder's. */
    assert_int_equal(run(PREPARE "--text s.jsonl --out sentence --overwrite"), 0);
    assert_int_not_equal(access("sentence/tokenizer.model", R_OK), 0);
    assert_int_equal(access("sentence/tokenizer.json", R_OK), 0);
    assert_int_equal(unlink("tokenizer_config.json"), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_processes), cmocka_unit_test(case_killed),
        cmocka_unit_test(case_packings),  cmocka_unit_test(case_documents),
        cmocka_unit_test(case_chat),      cmocka_unit_test(case_refusals),
        cmocka_unit_test(case_train),     cmocka_unit_test(case_score),
#ifdef TESTS_SENTENCEPIECE
        cmocka_unit_test(case_sentence),
#endif
    };
    return cmocka_run_group_tests_name("prepare", cases, set_up, tear_down);
}
