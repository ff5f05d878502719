/* Files of text and tokens for tests. */
#include "data/token_files.h"

#include "base/rng.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void token_folder_open(struct token_folder *folder)
{
    snprintf(folder->path, sizeof(folder->path), "/tmp/tessera-test-tokens-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
}

static int folder_remove(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

void token_folder_close(struct token_folder *folder)
{
    assert_int_equal(nftw(folder->path, folder_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

const char *token_path(const struct token_folder *folder, const char *name)
{
    static char path[8][512];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof(path[at]), "%s/%s", folder->path, name);
    return path[at];
}

void token_write_bytes(const struct token_folder *folder, const char *name, const void *bytes,
                       size_t count)
{
    FILE *file = fopen(token_path(folder, name), "w");
    assert_non_null(file);
    if (count > 0)
        assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static size_t token_width(enum token_layout layout)
{
    return layout == TOKEN_TEXT ? 1 : layout == TOKEN_GPT2 ? 2 : 4;
}

uint32_t token_vocabulary(enum token_layout layout)
{
    return layout == TOKEN_TEXT ? 256 : layout == TOKEN_GPT2 ? 50257 : 128256;
}

uint8_t *token_make(enum token_layout layout, const uint32_t *token, size_t count,
                    size_t *bytes_out)
{
    const size_t width = token_width(layout), header = layout == TOKEN_TEXT ? 0 : 256 * 4;
    const int32_t word[3] = {layout == TOKEN_GPT2 ? 20240520 : 20240801,
                             layout == TOKEN_GPT2 ? 1 : 7, (int32_t)count};
    uint8_t *byte = calloc(1, header + count * width + 1);
    assert_non_null(byte);
    if (header > 0)
        memcpy(byte, word, sizeof(word));
    for (size_t i = 0; i < count; i++)
        for (size_t b = 0; b < width; b++)
            byte[header + i * width + b] = (uint8_t)(token[i] >> 8 * b);
    *bytes_out = header + count * width;
    return byte;
}

void token_write(const struct token_folder *folder, const char *name, enum token_layout layout,
                 const uint32_t *token, size_t count)
{
    size_t bytes;
    uint8_t *byte = token_make(layout, token, count, &bytes);
    token_write_bytes(folder, name, byte, bytes);
    free(byte);
}

void token_draw(enum token_layout layout, uint64_t stream, size_t count, uint32_t *token_out)
{
    const struct tess_rng_key key = tess_rng_key(17, TESS_RNG_TEST, stream);
    const uint32_t vocabulary = token_vocabulary(layout);
    const uint32_t low = layout == TOKEN_TEXT ? 1 : 0; /* a text has no NUL byte */
    /* Its ends are in every draw. */
    for (size_t i = 0; i < count; i++)
        token_out[i] = i == 1   ? vocabulary - 1
                       : i == 2 ? low
                                : low + tess_rng_word(key, i, layout) % (vocabulary - low);
}

int token_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

int token_mappings(const struct token_folder *folder)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int count = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, folder->path) != NULL;
    fclose(maps);
    return count;
}
