#include "tokenizer/tokenizer_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* As in reference.py; \u0120 is a space, \u010a a line end, of GPT-2's letters for bytes. */
static const char *const merge[] = {"h e",
                                    "l l",
                                    "he ll",
                                    "hell o",
                                    "\u0120 t",
                                    "\u0120t he",
                                    "\u0120 hello",
                                    "1 2",
                                    "12 3",
                                    "\u010a \u010a",
                                    "\u0120 \u0120",
                                    "\u00f0 \u0141",
                                    "\u00c3 \u00a9",
                                    "i n",
                                    "in g",
                                    "' s",
                                    "\u0120\u0120 \u0120\u0120"};

static const char split[] =
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|%s| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
    "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
    "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}";

static void write_word(FILE *file, const char *text)
{
    for (; *text; text++)
        fprintf(file, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
}

static void write_vocab(FILE *file)
{
    int others = 0;
    fputs("\"vocab\": {", file);
    for (int byte = 0; byte < 256; byte++) {
        const int own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        const int code = own ? byte : 256 + others++;
        const char text[3] = {(char)(code < 128 ? code : 0xc0 | code >> 6),
                              (char)(code < 128 ? 0 : 0x80 | (code & 0x3f)), '\0'};
        fputs(byte > 0 ? ", \"" : "\"", file);
        write_word(file, text);
        fprintf(file, "\": %d", byte);
    }
    for (int i = 0; i < (int)(sizeof(merge) / sizeof(*merge)); i++) {
        const char *space = strchr(merge[i], ' ');
        fprintf(file, ", \"%.*s%s\": %d", (int)(space - merge[i]), merge[i], space + 1, 256 + i);
    }
    fprintf(file, ", \"xyz\": %d}", TOKENIZER_END - 1);
}

static void write_added(FILE *file, int id, const char *text, const char *strip)
{
    fprintf(file,
            "{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": %s, "
            "\"rstrip\": %s, \"normalized\": false, \"special\": true}",
            id, text, strip, strip);
}

void tokenizer_write(const char *path, const char *kind)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"version\": \"1.0\", \"added_tokens\": [", file);
    write_added(file, TOKENIZER_END, "<|end|>", "false");
    fputs(", ", file);
    write_added(file, TOKENIZER_END + 1, "<|endx|>", "false");
    fputs(", ", file);
    write_added(file, TOKENIZER_END + 2, "wide", "true");
    fprintf(file, "], \"normalizer\": %s, \"pre_tokenizer\": ",
            strcmp(kind, "qwen") == 0 ? "{\"type\": \"NFC\"}" : "null");
    if (strcmp(kind, "gpt2") == 0)
        fputs("{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}",
              file);
    else
        fprintf(file, split, strcmp(kind, "qwen") == 0 ? "\\\\p{N}" : "\\\\p{N}{1,3}");
    fprintf(file, ", \"model\": {\"type\": \"BPE\", \"ignore_merges\": %s, ",
            strcmp(kind, "llama3") == 0 ? "true" : "false");
    write_vocab(file);
    fputs(", \"merges\": [", file);
    for (size_t i = 0; i < sizeof(merge) / sizeof(*merge); i++) {
        /* Both ways in which such files have them. */
        const char *space = strchr(merge[i], ' ');
        if (i % 2 == 0)
            fprintf(file, "%s\"%s\"", i > 0 ? ", " : "", merge[i]);
        else
            fprintf(file, ", [\"%.*s\", \"%s\"]", (int)(space - merge[i]), merge[i], space + 1);
    }
    fputs("]}}\n", file);
    assert_int_equal(fclose(file), 0);
}

void tokenizer_write_changed(const char *path, const char *kind, const char *from, const char *to)
{
    static char text[32768];
    tokenizer_write(path, kind);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    char *at = strstr(text, from);
    if (at == NULL)
        fail_msg("the tokenizer has no %s", from);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_int_equal(fclose(file), 0);
}
