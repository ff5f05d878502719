/*
 * What a file is that is neither text nor a shard of tokens, by its first bytes: any bytes can be
 * trained on as text, so a file of another format would give a model of nothing.
 */
#include "data/data_tokens.h"

#include "tessera/check.h"

#include <string.h>

#define FORMAT_TEXT "write its text to a .txt or .jsonl file first"

/* With a header, llm.c's: what nanoGPT and others write without one. */
#define FORMAT_ADD_HEADER                                                                          \
    "python3 -c \"import numpy as np; t = np.fromfile('%s', 'u2'); h = np.zeros(256, 'i4'); "      \
    "h[:3] = 20240520, 1, len(t); open('with_header.bin', 'wb').write(h.tobytes() + "              \
    "t.tobytes())\""

static const struct format {
    const char *magic;
    size_t bytes, at; /* of the magic, and where it stands */
    const char *name;
    const char *way;
} format_known[] = {
    {"PAR1", 4, 0, "a Parquet file",
     "write its text as JSON Lines, python3 -c \"import pandas as p; "
     "p.read_parquet('F')[['text']].to_json('F.jsonl', orient='records', lines=True)\""},
    {"ARROW1", 6, 0, "an Arrow file",
     "write its text as JSON Lines (pandas: read_feather, to_json)"},
    {"PK\x03\x04", 4, 0, "a zip archive (or an .npz or PyTorch file, which are zip archives)",
     "unpack it with unzip, and name the files in it"},
    {"\x93NUMPY", 6, 0, "a NumPy array (.npy)",
     "write its tokens behind a header of llm.c's, python3 -c \"import numpy as np; "
     "t = np.load('F').ravel().astype('u2'); h = np.zeros(256, 'i4'); h[:3] = 20240520, 1, len(t); "
     "open('tokens.bin', 'wb').write(h.tobytes() + t.tobytes())\" (below 50257), or its text to a "
     ".txt file"},
    {"\x1f\x8b", 2, 0, "compressed with gzip",
     "decompress it with gunzip -k (tessera data prepare reads it as it is)"},
    {"\x28\xb5\x2f\xfd", 4, 0, "compressed with zstd",
     "decompress it with zstd -d (tessera data prepare reads it as it is)"},
    {"\xfd"
     "7zXZ",
     5, 0, "compressed with xz", "decompress it with xz -dk"},
    {"1AY&SY", 6, 4, "compressed with bzip2", "decompress it with bzip2 -dk"},
    {"7z\xbc\xaf", 4, 0, "a 7z archive", "unpack it, and name the files in it"},
    {"ustar", 5, 257, "a tar archive", "unpack it with tar -xf, and name the files in it"},
    {"\x89HDF", 4, 0, "an HDF5 file", FORMAT_TEXT},
    {"SQLite format 3", 15, 0, "an SQLite database", FORMAT_TEXT},
    {"%PDF-", 5, 0, "a PDF document", "write its text with pdftotext first"},
    {"\x80\x02", 2, 0, "a Python pickle", FORMAT_TEXT},
    {"\x80\x04", 2, 0, "a Python pickle", FORMAT_TEXT},
    {"\x80\x05", 2, 0, "a Python pickle", FORMAT_TEXT},
    {"\x7f"
     "ELF",
     4, 0, "a program", FORMAT_TEXT},
    {"GGUF", 4, 0, "weights of a model (GGUF)", "name text or tokens"},
    {"\x89PNG", 4, 0, "an image (PNG)", "name text or tokens"},
    {"\xff\xd8\xff", 3, 0, "an image (JPEG)", "name text or tokens"},
    {"\xff\xfe", 2, 0, "text in UTF-16", "write it as UTF-8: iconv -f utf-16 -t utf-8"},
    {"\xfe\xff", 2, 0, "text in UTF-16", "write it as UTF-8: iconv -f utf-16 -t utf-8"},
};

/* What is looked at for NUL bytes: a file of many gigabytes must not be read when it is opened. */
#define FORMAT_HEAD    65536
#define FORMAT_WINDOW  4096
#define FORMAT_WINDOWS 16

enum tess_status tess__format_check_magic(const char *name, const void *bytes, size_t count)
{
    for (size_t i = 0; i < sizeof(format_known) / sizeof(*format_known); i++) {
        const struct format *format = &format_known[i];
        if (count >= format->at + format->bytes &&
            memcmp((const char *)bytes + format->at, format->magic, format->bytes) == 0)
            TESS_FAIL(TESS_ERR_DATA, "%s: %s, which cannot be trained on: %s", name, format->name,
                      format->way);
    }
    return TESS_OK;
}

/* Number of the first NUL byte among those that are looked at; `count`: none. */
static size_t format_find_nul(const char *bytes, size_t count)
{
    const size_t head = count < FORMAT_HEAD ? count : FORMAT_HEAD;
    const char *nul = memchr(bytes, '\0', head);
    for (size_t w = 1; w <= FORMAT_WINDOWS && nul == NULL && count > FORMAT_HEAD; w++) {
        const size_t end = FORMAT_HEAD + (count - FORMAT_HEAD) / FORMAT_WINDOWS * w;
        nul = memchr(bytes + end - FORMAT_WINDOW, '\0', FORMAT_WINDOW);
    }
    return nul != NULL ? (size_t)(nul - bytes) : count;
}

enum tess_status tess__format_check_text(const char *name, const void *bytes, size_t count)
{
    TESS_TRY(tess__format_check_magic(name, bytes, count));
    const size_t nul = format_find_nul(bytes, count);
    if (nul < count)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: not text: byte %zu (counted from 0) is NUL. If it holds tokens of 16 bits "
                  "without a header, write one before them: " FORMAT_ADD_HEADER,
                  name, nul, name);
    return TESS_OK;
}

enum tess_status tess__format_fail_shard(const char *name, int32_t magic)
{
    TESS_FAIL(TESS_ERR_DATA,
              "%s: wrong magic number %d: expected %d (GPT-2) or %d (Llama 3), the layouts of "
              "llm.c; a text's name must not end in .bin. If it holds tokens of 16 bits without a "
              "header, write one before them: " FORMAT_ADD_HEADER,
              name, (int)magic, TESS__SHARD_MAGIC_GPT2, TESS__SHARD_MAGIC_LLAMA3, name);
}
