/* The folder of a prepared data set. */
#include "prepare/index.h"

#include "base/file.h"
#include "base/hash.h"
#include "prepare/shard_write.h"
#include "tessera/check.h"
#include "text/text.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum tess_status index_path(const char *folder, const char *name, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "--out: the path %s is too long", folder);
    return TESS_OK;
}

enum tess_status tess__index_shard_path(const char *folder, int32_t shard, char path[PATH_MAX])
{
    char name[32];
    snprintf(name, sizeof(name), "tokens_%06d.bin", shard);
    return index_path(folder, name, path);
}

enum tess_status tess__index_clear(const char *folder, bool all)
{
    char path[PATH_MAX];
    enum tess_status status = TESS_OK;
    DIR *list = opendir(folder);
    if (list == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read the folder %s: %s", folder, strerror(errno));
    for (struct dirent *entry = readdir(list); entry != NULL && status == TESS_OK;
         entry = readdir(list)) {
        const bool part = fnmatch("tokens_[0-9]*.bin.*.tmp", entry->d_name, 0) == 0;
        const bool whole = fnmatch("tokens_[0-9]*.bin", entry->d_name, 0) == 0 ||
                           strcmp(entry->d_name, "index.json") == 0;
        if (!part && !(all && whole))
            continue;
        status = index_path(folder, entry->d_name, path);
        if (status == TESS_OK && unlink(path) != 0)
            status = tess_fail(TESS_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    closedir(list);
    return status;
}

/* All bytes of a stream, to be freed. */
static char *index_read(FILE *stream, size_t *count_out)
{
    size_t room = 1 << 20, count = 0;
    char *bytes = malloc(room), *more = bytes;
    while (more != NULL && !feof(stream) && !ferror(stream)) {
        count += fread(bytes + count, 1, room - count, stream);
        if (count == room && (more = realloc(bytes, room *= 2)) != NULL)
            bytes = more;
    }
    *count_out = more != NULL && !ferror(stream) ? count : 0;
    return bytes;
}

/* A file beside the tokenizer's, if it is there, under its own name. */
static enum tess_status index_copy(const char *folder, const char *from, const char *name)
{
    char path[PATH_MAX];
    const char *why;
    size_t count = 0;
    FILE *stream = tess_file_open_input(from, &why);
    if (stream == NULL)
        return TESS_OK;
    char *bytes = index_read(stream, &count);
    fclose(stream);
    enum tess_status status = index_path(folder, name, path);
    if (status == TESS_OK && count > 0)
        status = tess_file_write(path, bytes, count);
    free(bytes);
    return status;
}

/* The tokenizer of an earlier preparation, of the other kind, is not the one of these shards. */
static enum tess_status index_copy_tokenizer(const char *folder,
                                             const struct tess__tokenizer *tokenizer)
{
    char from[PATH_MAX], other[PATH_MAX];
    const char *file = tess__tokenizer_file(tokenizer), *slash = strrchr(file, '/');
    const char *name = tess__tokenizer_file_name(tokenizer);
    TESS_TRY(index_copy(folder, file, name));
    TESS_TRY(index_path(
        folder, strcmp(name, "tokenizer.json") == 0 ? "tokenizer.model" : "tokenizer.json", other));
    unlink(other);
    snprintf(from, sizeof(from), "%.*s%stokenizer_config.json", slash ? (int)(slash - file) : 0,
             file, slash ? "/" : "");
    return index_copy(folder, from, "tokenizer_config.json");
}

static json_t *index_hex(uint64_t number)
{
    char text[17];
    snprintf(text, sizeof(text), "%016" PRIx64, number);
    return json_string(text);
}

struct index_sum {
    int64_t tokens, documents, bytes;
    uint64_t id;
    struct tess__shard_header last;
};

static enum tess_status index_add(const char *folder, int32_t shard, json_t *list,
                                  struct index_sum *sum)
{
    char path[PATH_MAX];
    struct tess__shard_header *header = &sum->last;
    TESS_TRY(tess__index_shard_path(folder, shard, path));
    if (!tess__shard_look(path, header))
        TESS_FAIL(TESS_ERR_IO, "%s is not there or damaged: run the same command again", path);
    sum->tokens += header->tokens;
    sum->documents += header->documents;
    sum->bytes += header->text_bytes;
    sum->id = tess_hash_mix(sum->id + header->id);
    json_array_append_new(
        list,
        json_pack("{s:s, s:I, s:I, s:I, s:o}", "file", strrchr(path, '/') + 1, "tokens",
                  (json_int_t)header->tokens, "documents", (json_int_t)header->documents, "bytes",
                  (json_int_t)header->text_bytes, "fingerprint", index_hex(header->id)));
    return TESS_OK;
}

static enum tess_status index_write_file(const char *folder, json_t *list,
                                         const struct index_sum *sum)
{
    char path[PATH_MAX];
    const struct tess__shard_header *header = &sum->last;
    TESS_TRY(index_path(folder, "index.json", path));
    json_t *index = json_pack(
        "{s:s, s:i, s:o, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:O}", "format", "tessera tokens",
        "version", TESS__SHARD_VERSION, "tokenizer", index_hex(header->tokenizer), "vocabulary",
        header->vocabulary, "token_bytes", header->width, "end", header->end, "tokens",
        (json_int_t)sum->tokens, "documents", (json_int_t)sum->documents, "bytes",
        (json_int_t)sum->bytes, "fingerprint", index_hex(sum->id), "shards", list);
    char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write %s", path);
    const enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}

static void index_print(const char *folder, int32_t shard_count, const struct index_sum *sum,
                        double time_s)
{
    char documents[TESS__TEXT_BYTES], bytes[TESS__TEXT_BYTES], tokens[TESS__TEXT_BYTES];
    char time[TESS__TEXT_BYTES];
    printf("%s documents, %s of text: %s tokens of %d bits, vocabulary %d, in %d shard%s; %s\n"
           "fingerprint %016" PRIx64 "\n"
           "train on them: tessera train CONFIG --data %s\n",
           tess__text_count((double)sum->documents, documents),
           tess__text_bytes((double)sum->bytes, bytes),
           tess__text_count((double)sum->tokens, tokens), 8 * sum->last.width, sum->last.vocabulary,
           shard_count, shard_count > 1 ? "s" : "", tess__text_time(time_s, time), sum->id, folder);
}

enum tess_status tess__index_write(const char *folder, int32_t shard_count,
                                   const struct tess__tokenizer *tokenizer, double time_s)
{
    struct index_sum sum = {0};
    json_t *list = json_array();
    enum tess_status status = index_copy_tokenizer(folder, tokenizer);
    for (int32_t shard = 0; shard < shard_count && status == TESS_OK; shard++)
        status = index_add(folder, shard, list, &sum);
    if (status == TESS_OK && sum.tokens == 0)
        status = tess_fail(TESS_ERR_DATA, "the files have no text");
    if (status == TESS_OK)
        status = index_write_file(folder, list, &sum);
    json_decref(list);
    if (status == TESS_OK)
        index_print(folder, shard_count, &sum, time_s);
    return status;
}
