/*
 * A topology from a file: into memory, and which format it is. What is in the formats is for the
 * readers, read_<format>.c.
 */
#include "tessera/check.h"
#include "topology/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES_MAX ((size_t)64 << 20)

static enum tess_status read_failed(const char *path, int error)
{
    TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, strerror(error));
}

/* Also from a pipe, whose size nobody tells: it doubles until the end or the limit. */
static enum tess_status read_all(const char *path, int fd, char **text_out, size_t *bytes_out)
{
    size_t room = 0, bytes = 0;
    char *text = NULL;
    for (;;) {
        if (bytes == room) {
            const size_t more = room == 0 ? 1 << 16 : 2 * room;
            char *grown = bytes > READ_BYTES_MAX ? NULL : realloc(text, more);
            if (grown == NULL) {
                free(text);
                if (bytes <= READ_BYTES_MAX)
                    TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory to read it", path);
                TESS_FAIL(TESS_ERR_DATA, "%s:1: larger than 64 MiB, which is no topology", path);
            }
            text = grown;
            room = more;
        }
        const ssize_t n = read(fd, text + bytes, room - bytes);
        if (n < 0 && errno != EINTR) {
            const int error = errno;
            free(text);
            return read_failed(path, error);
        }
        if (n == 0)
            break;
        bytes += n > 0 ? (size_t)n : 0;
    }
    if (bytes > READ_BYTES_MAX) {
        free(text);
        TESS_FAIL(TESS_ERR_DATA, "%s:1: larger than 64 MiB, which is no topology", path);
    }
    *text_out = text;
    *bytes_out = bytes;
    return TESS_OK;
}

static enum tess_status read_file(const char *path, char **text_out, size_t *bytes_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return read_failed(path, errno);
    const enum tess_status status = read_all(path, fd, text_out, bytes_out);
    close(fd);
    return status;
}

/* ---- which format ---------------------------------------------------------------------------- */

static bool read_starts(const char *at, const char *end, const char *word)
{
    const size_t length = strlen(word);
    return (size_t)(end - at) >= length && strncasecmp(at, word, length) == 0;
}

/* Of XML: by its first element, behind declarations and comments. */
static enum tess_topology_format read_xml_format(const char *at, const char *end)
{
    while (at < end) {
        const char *open = memchr(at, '<', (size_t)(end - at));
        if (open == NULL)
            break;
        at = open + 1;
        if (read_starts(open, end, "<!--")) {
            const char *close = memmem(open, (size_t)(end - open), "-->", 3);
            at = close != NULL ? close : end;
        } else if (at < end && *at != '?' && *at != '!') {
            /* hwloc's element is <topology>; anything else gets NCCL's clearer messages. */
            return read_starts(at, end, "topology") ? TESS_TOPOLOGY_HWLOC : TESS_TOPOLOGY_NCCL;
        }
    }
    return TESS_TOPOLOGY_NCCL;
}

/*
 * Other text: our own says so, Slurm's has lines SwitchName=... or BlockName=..., that of
 * nvidia-smi a heading with GPU0, possibly among escape sequences of a terminal. What remains gets
 * the messages of our own format.
 */
static enum tess_topology_format read_text_format(const char *at, const char *end)
{
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL)
            line_end = end;
        while (at < line_end && (*at == ' ' || *at == '\t'))
            at++;
        if (read_starts(at, line_end, "tessera-topology"))
            return TESS_TOPOLOGY_YAML;
        if (read_starts(at, line_end, "SwitchName=") || read_starts(at, line_end, "BlockName="))
            return TESS_TOPOLOGY_SLURM;
        if (at < line_end && *at != '#' && memmem(at, (size_t)(line_end - at), "GPU0", 4) != NULL)
            return TESS_TOPOLOGY_SMI;
        at = line_end < end ? line_end + 1 : end;
    }
    return TESS_TOPOLOGY_YAML;
}

enum tess_topology_format tess_topology_guess(const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;
    if (read_starts(at, end, "\xef\xbb\xbf"))
        at += 3;
    while (at < end && strchr(" \t\r\n", *at) != NULL && *at != '\0')
        at++;
    return at < end && *at == '<' ? read_xml_format(at, end) : read_text_format(at, end);
}

typedef enum tess_status read_text_fn(const char *name, const char *text, size_t bytes,
                                      const struct tess_topology_options *options,
                                      struct tess_topology *topology);

static read_text_fn *const read_readers[TESS_TOPOLOGY_FORMAT_COUNT] = {
    [TESS_TOPOLOGY_NCCL] = tess_topology_read_nccl,
    [TESS_TOPOLOGY_HWLOC] = tess_topology_read_hwloc,
    [TESS_TOPOLOGY_SMI] = tess_topology_read_smi,
    [TESS_TOPOLOGY_SLURM] = tess_topology_read_slurm,
    [TESS_TOPOLOGY_YAML] = tess_topology_read_yaml,
};

enum tess_status tess_topology_read(const char *path, enum tess_topology_format format,
                                    const struct tess_topology_options *options,
                                    struct tess_topology **topology_out)
{
    char *text = NULL;
    size_t bytes = 0;
    enum tess_status status;
    *topology_out = NULL;
    if ((unsigned)format >= TESS_TOPOLOGY_FORMAT_COUNT)
        TESS_FAIL(TESS_ERR_INTERNAL, "%s: there is no format %d", path, (int)format);
    TESS_TRY(read_file(path, &text, &bytes));
    struct tess_topology *topology = tess_topology_new();
    if (topology == NULL) {
        status = tess_fail(TESS_ERR_MEMORY, "%s: no memory to read it", path);
    } else if (bytes == 0) {
        status = tess_fail(TESS_ERR_DATA, "%s:1: the file is empty", path);
    } else {
        if (format == TESS_TOPOLOGY_AUTO)
            format = tess_topology_guess(text, bytes);
        status = read_readers[format](path, text, bytes, options, topology);
    }
    free(text);
    if (status != TESS_OK) {
        tess_topology_free(topology);
        return status;
    }
    *topology_out = topology;
    return TESS_OK;
}
