/* Shards of tokens, as data/shard.h has them. Tokens go to the disk as they come: a shard may be
 * larger than memory. */
#include "prepare/shard_write.h"

#include "base/array.h"
#include "base/hash.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARD_BUFFER ((size_t)1 << 18)

enum tess_status tess__shard_create(struct shard_writer *writer, const char *path,
                                    const struct tess__shard_header *about)
{
    *writer = (struct shard_writer){.header = *about};
    writer->header.magic = TESS__SHARD_MAGIC;
    writer->header.version = TESS__SHARD_VERSION;
    writer->buffer = malloc(SHARD_BUFFER);
    if (writer->buffer == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write %s", path);
    const enum tess_status status = tess_file_create(path, &writer->file);
    if (status != TESS_OK) {
        free(writer->buffer);
        return status;
    }
    writer->error = tess_file_append(writer->file.fd, &writer->header, sizeof(writer->header));
    return TESS_OK;
}

static void shard_flush(struct shard_writer *writer)
{
    struct tess__shard_header *header = &writer->header;
    header->id = tess_hash_run(writer->buffer, writer->buffered, header->id);
    if (writer->error == 0)
        writer->error = tess_file_append(writer->file.fd, writer->buffer, writer->buffered);
    writer->buffered = 0;
}

static void shard_put(struct shard_writer *writer, uint32_t token)
{
    const uint16_t low = (uint16_t)token;
    const size_t width = (size_t)writer->header.width;
    memcpy(writer->buffer + writer->buffered, width == 2 ? (const void *)&low : &token, width);
    writer->buffered += width;
    writer->header.tokens++;
    if (writer->buffered == SHARD_BUFFER)
        shard_flush(writer);
}

/* Room for the bits of `count` more tokens, in whole words of 8 bytes, and those to be learnt. */
static enum tess_status shard_put_mask(struct shard_writer *writer, size_t count, const size_t *cut,
                                       size_t cut_count)
{
    const size_t first = (size_t)writer->header.tokens;
    const size_t had = (first + 63) / 64 * 8, needs = (first + count + 63) / 64 * 8;
    uint8_t *more = needs > had ? realloc(writer->mask, needs) : writer->mask;
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the mask of %zu tokens", first + count);
    writer->mask = more;
    memset(more + had, 0, needs - had);
    for (size_t c = 0; c + 1 < cut_count; c += 2)
        for (size_t i = first + cut[c]; i < first + cut[c + 1]; i++)
            more[i / 8] |= (uint8_t)(1 << i % 8);
    return TESS_OK;
}

enum tess_status tess__shard_add(struct shard_writer *writer, const struct tess__ids *ids,
                                 const size_t *cut, size_t cut_count)
{
    struct tess__shard_header *header = &writer->header;
    int64_t *more = tess__array_grow(writer->ends, (size_t)header->documents, sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the ends of the documents");
    writer->ends = more;
    if (header->masked)
        TESS_TRY(shard_put_mask(writer, ids->count + 1, cut, cut_count));
    for (size_t i = 0; i < ids->count; i++)
        shard_put(writer, ids->id[i]);
    if (header->end >= 0)
        shard_put(writer, (uint32_t)header->end);
    writer->ends[header->documents++] = header->tokens;
    if (writer->error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", writer->file.name, strerror(writer->error));
    return TESS_OK;
}

enum tess_status tess__shard_commit(struct shard_writer *writer, enum tess_status status)
{
    struct tess__shard_header *header = &writer->header;
    while (writer->buffered % 8 != 0)
        writer->buffer[writer->buffered++] = 0;
    shard_flush(writer);
    const size_t ends = (size_t)header->documents * sizeof(*writer->ends);
    header->id = tess_hash_run(writer->ends, ends, header->id);
    if (writer->error == 0)
        writer->error = tess_file_append(writer->file.fd, writer->ends, ends);
    const size_t mask = (size_t)tess__shard_mask_bytes(header);
    if (mask > 0)
        header->id = tess_hash_run(writer->mask, mask, header->id);
    if (writer->error == 0 && mask > 0)
        writer->error = tess_file_append(writer->file.fd, writer->mask, mask);
    if (writer->error == 0)
        writer->error = tess_file_write_at(writer->file.fd, header, sizeof(*header), 0);
    free(writer->buffer);
    free(writer->ends);
    free(writer->mask);
    /* A failure of another kind was reported already: only the temporary file is removed. */
    if (status != TESS_OK) {
        close(writer->file.fd);
        (void)unlink(writer->file.temporary);
        return status;
    }
    return tess_file_commit(&writer->file, writer->error);
}

bool tess__shard_look(const char *path, struct tess__shard_header *header_out)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    const bool read = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                      tess_file_read(fd, header_out, sizeof(*header_out), 0) == sizeof(*header_out);
    close(fd);
    return read && header_out->magic == TESS__SHARD_MAGIC &&
           header_out->version == TESS__SHARD_VERSION &&
           (header_out->tokens == 0 || tess__shard_fault(header_out) == NULL) &&
           header_out->tokens >= 0 && header_out->documents >= 0 &&
           header_out->documents <= header_out->tokens &&
           about.st_size == tess__shard_bytes(header_out);
}
