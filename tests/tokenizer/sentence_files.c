#include "tokenizer/sentence_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* As in sentence.py. */
static const char *const pieces[] = {
    "\u2581t", "he",          "ll",     "\u2581the", "hell",
    "hello",   "\u2581hello", "in",     "ing",       "\u2581\u2581",
    "12",      "123",         "\u2581", "h",         "e",
    "l",       "o",           "t",      "i",         "n",
    "g",       "1",           "2",      "3",         "'",
    "s",       ".",           "\u00e9", "<"};

enum { UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6, NORMAL = 1 };

/* Numbers of more than 7 bits are the tag of field 35 alone. */
static void put_piece(FILE *file, const char *text, float score, int kind)
{
    const size_t length = strlen(text);
    const char head[4] = {1 << 3 | 2, (char)(2 + length + 5 + 2), 1 << 3 | 2, (char)length};
    const char tail[3] = {2 << 3 | 5, 3 << 3, (char)kind};
    fwrite(head, 1, 4, file);
    fwrite(text, 1, length, file);
    fwrite(tail, 1, 1, file);
    fwrite(&score, sizeof(score), 1, file);
    fwrite(tail + 1, 1, 2, file);
}

void sentence_write(const char *path, const char *kind)
{
    const int bpe = strcmp(kind, "bpe") == 0;
    const char trainer[] = {2 << 3 | 2, 5, 3 << 3, (char)(bpe ? 2 : 1), (char)0x98, 2, (char)bpe};
    const char normalizer[] = {3 << 3 | 2, 16,  1 << 3 | 2, 8,          'i',    'd',
                               'e',        'n', 't',        'i',        't',    'y',
                               3 << 3,     1,   4 << 3,     (char)!bpe, 5 << 3, 1};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    put_piece(file, "<unk>", 0, UNKNOWN);
    put_piece(file, "<s>", 0, CONTROL);
    put_piece(file, "</s>", 0, CONTROL);
    for (int byte = 0; byte < 256 && bpe; byte++) {
        char text[8];
        snprintf(text, sizeof(text), "<0x%02X>", byte);
        put_piece(file, text, 0, BYTE);
    }
    put_piece(file, "<|im|>", 0, USER);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++)
        put_piece(file, pieces[i], -(float)i - 1, NORMAL);
    fwrite(trainer, 1, sizeof(trainer), file);
    fwrite(normalizer, 1, sizeof(normalizer), file);
    assert_int_equal(fclose(file), 0);
}
