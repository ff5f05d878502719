/* Text as tokenizers take it: valid UTF-8, and in normal form C where they ask for it. */
#include "base/utf8.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>
#include <utf8proc.h>

#define TEXT_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

enum tess_status tess__tokenizer_room(struct tokenizer_buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->room - buffer->count)
        return TESS_OK;
    const size_t room =
        2 * buffer->room > buffer->count + bytes ? 2 * buffer->room : buffer->count + bytes + 64;
    char *more = realloc(buffer->at, room);
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a text of %zu bytes", room);
    buffer->at = more;
    buffer->room = room;
    return TESS_OK;
}

enum tess_status tess__tokenizer_append(struct tokenizer_buffer *buffer, const void *bytes,
                                        size_t count)
{
    TESS_TRY(tess__tokenizer_room(buffer, count));
    if (count > 0)
        memcpy(buffer->at + buffer->count, bytes, count);
    buffer->count += count;
    return TESS_OK;
}

/* Bytes of ASCII at the beginning. */
static size_t text_ascii(const char *text, size_t bytes)
{
    size_t at = 0;
    for (uint64_t word; at + sizeof(word) <= bytes; at += sizeof(word)) {
        memcpy(&word, text + at, sizeof(word));
        if ((word & UINT64_C(0x8080808080808080)) != 0)
            break;
    }
    while (at < bytes && (text[at] & 0x80) == 0)
        at++;
    return at;
}

size_t tess__text_valid(const char *text, size_t bytes)
{
    size_t at = text_ascii(text, bytes);
    while (at < bytes) {
        uint32_t code;
        const int length = tess__utf8_length(text + at, bytes - at, &code);
        if (length == 0)
            break;
        at += (size_t)length;
        at += text_ascii(text + at, bytes - at);
    }
    return at;
}

/* Bytes that begin a character and do not complete it: at least 1. */
static size_t text_broken(const char *text, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)text;
    const unsigned char lead = byte[0];
    const size_t more = lead < 0xc2 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : 0;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    size_t count = 1;
    while (count <= more && count < bytes && byte[count] >= low && byte[count] <= high) {
        low = 0x80;
        high = 0xbf;
        count++;
    }
    return count;
}

enum tess_status tess__text_repair(const char *text, size_t bytes, struct tokenizer_buffer *target)
{
    target->count = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t valid = tess__text_valid(text + at, bytes - at);
        TESS_TRY(tess__tokenizer_append(target, text + at, valid));
        at += valid;
        if (at < bytes) {
            TESS_TRY(tess__tokenizer_append(target, TEXT_REPLACEMENT, 3));
            at += text_broken(text + at, bytes - at);
        }
    }
    return TESS_OK;
}

bool tess__text_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* ---- normal form C --------------------------------------------------------------------------- */

/*
 * Characters that stay as they are in NFC whatever stands beside them, of the most common scripts:
 * they have no decomposition that NFC replaces, combine with none before them and have combining
 * class 0 (UnicodeData.txt; a test compares all with utf8proc).
 */
static bool text_is_plain(uint32_t code)
{
    static const uint32_t range[][2] = {
        {0, 0x2ff},       {0x391, 0x3ce},     {0x400, 0x482},     {0x48a, 0x52f},
        {0x5d0, 0x5ea},   {0x621, 0x64a},     {0x2010, 0x205e},   {0x20a0, 0x20bf},
        {0x2190, 0x2328}, {0x2500, 0x2adb},   {0x3041, 0x3096},   {0x30a1, 0x30fa},
        {0x3001, 0x3029}, {0x4e00, 0x9fff},   {0xac00, 0xd7a3},   {0xff01, 0xff9d},
        {0xfffd, 0xfffd}, {0x1f300, 0x1faff}, {0x20000, 0x2a6df}, {0x30fb, 0x30ff}};
    for (size_t i = 0; i < sizeof(range) / sizeof(*range); i++)
        if (code >= range[i][0] && code <= range[i][1])
            return true;
    return false;
}

/* Bytes of plain characters at the beginning; *last_out: where the last of them begins. */
static size_t text_plain(const char *text, size_t bytes, size_t *last_out)
{
    size_t at = 0;
    *last_out = 0;
    while (at < bytes) {
        uint32_t code;
        const size_t ascii = text_ascii(text + at, bytes - at);
        if (ascii > 0)
            *last_out = at + ascii - 1;
        at += ascii;
        if (at == bytes)
            break;
        const int length = tess__utf8_length(text + at, bytes - at, &code);
        if (length == 0 || !text_is_plain(code))
            break;
        *last_out = at;
        at += (size_t)length;
    }
    return at;
}

bool tess__text_is_plain(const char *text, size_t bytes)
{
    size_t last;
    return text_plain(text, bytes, &last) == bytes;
}

/* Bytes of characters at the beginning that are not plain. */
static size_t text_other(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint32_t code;
        const int length = tess__utf8_length(text + at, bytes - at, &code);
        if (length == 0 || text_is_plain(code))
            break;
        at += (size_t)length;
    }
    return at;
}

static enum tess_status text_compose_run(const char *text, size_t bytes,
                                         struct tokenizer_buffer *target)
{
    utf8proc_uint8_t *made = NULL;
    const utf8proc_ssize_t count =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &made,
                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (count < 0)
        TESS_FAIL(count == UTF8PROC_ERROR_NOMEM ? TESS_ERR_MEMORY : TESS_ERR_INTERNAL,
                  "a text cannot be normalised: %s", utf8proc_errmsg(count));
    const enum tess_status status = tess__tokenizer_append(target, made, (size_t)count);
    free(made);
    return status;
}

/* A character combines with those before it back to the last plain one, and no further. */
enum tess_status tess__text_compose(const char *text, size_t bytes, struct tokenizer_buffer *target)
{
    target->count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t last;
        const size_t plain = text_plain(text + at, bytes - at, &last);
        const size_t other = text_other(text + at + plain, bytes - at - plain);
        const size_t kept = other > 0 && plain > 0 ? last : plain;
        TESS_TRY(tess__tokenizer_append(target, text + at, kept));
        if (other > 0)
            TESS_TRY(text_compose_run(text + at + kept, plain - kept + other, target));
        at += plain + other;
    }
    return TESS_OK;
}
