/*
 * A topology from a file: into memory, and which format it is. What is in the formats is for the
 * readers, read_<format>.c.
 */
#include "base/file.h"
#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/machine/remark.h"
#include "topology/machine/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES_MAX ((size_t)64 << 20)

/* Also from a pipe, whose size is unknown. The caller frees *text_out, also after a failure. */
static enum tess_status read_file(const char *path, char **text_out, size_t *bytes_out)
{
    static const char failed[] = "cannot read %s: %s";
    char part[16384];
    size_t got;
    const char *why;
    FILE *in = tess_file_open_input(path, &why);
    if (in == NULL)
        TESS_FAIL(TESS_ERR_IO, failed, path, why);
    FILE *out = open_memstream(text_out, bytes_out);
    while (out != NULL && (got = fread(part, 1, sizeof(part), in)) > 0 &&
           ftello(out) <= (off_t)READ_BYTES_MAX)
        fwrite(part, 1, got, out);
    int error = ferror(in) ? errno : 0;
    fclose(in);
    TESS_TRY(tess__text_close(out, text_out));
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, failed, path, strerror(error));
    if (*bytes_out == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:1: the file is empty", path);
    if (*bytes_out > READ_BYTES_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s:1: larger than 64 MiB, which is no topology", path);
    return TESS_OK;
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
 * Other text: our own begins with its name, Slurm's has lines SwitchName=..., BlockName=... or, in
 * YAML, "- topology: ...", Kubernetes' a key kind or items, rocm-smi's a title or keys that
 * begin with (Topology), nvidia-smi's a title or a heading with GPU0, possibly among escape
 * sequences of a terminal. Any other text gets the messages of our own format.
 */
static bool read_is_nodes(const char *at, const char *end)
{
    static const char *const key[] = {"apiVersion:",    "items:",    "kind: Node", "kind: List",
                                      "\"apiVersion\"", "\"items\"", "\"kind\"",   NULL};
    while (at < end && (*at == '{' || *at == ' '))
        at++;
    int k = 0;
    while (key[k] != NULL && !read_starts(at, end, key[k]))
        k++;
    return key[k] != NULL;
}

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
        if (read_starts(at, line_end, "- topology:"))
            return TESS_TOPOLOGY_SLURM;
        if (read_is_nodes(at, line_end))
            return TESS_TOPOLOGY_LABELS;
        if (at < line_end && *at == '=' &&
            (memmem(at, (size_t)(line_end - at), "between two GPUs", 16) != NULL ||
             memmem(at, (size_t)(line_end - at), "ROCm System", 11) != NULL))
            return TESS_TOPOLOGY_ROCM;
        if (memmem(at, (size_t)(line_end - at), "\"(Topology) ", 12) != NULL)
            return TESS_TOPOLOGY_ROCM; /* --json, in one line or in many */
        if (at < line_end && *at == '=' && memmem(at, (size_t)(line_end - at), "NVSMI LOG", 9))
            return TESS_TOPOLOGY_SMI;
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

static tess_topology_reader *const read_readers[TESS_TOPOLOGY_FORMAT_COUNT] = {
    [TESS_TOPOLOGY_NCCL] = tess_topology_read_nccl,
    [TESS_TOPOLOGY_HWLOC] = tess_topology_read_hwloc,
    [TESS_TOPOLOGY_SMI] = tess_topology_read_smi,
    [TESS_TOPOLOGY_SLURM] = tess_topology_read_slurm,
    [TESS_TOPOLOGY_YAML] = tess_topology_read_yaml,
    [TESS_TOPOLOGY_ROCM] = tess_topology_read_rocm,
    [TESS_TOPOLOGY_LABELS] = tess_topology_read_labels,
};

enum tess_status tess_topology_read(const char *path, enum tess_topology_format format,
                                    const struct tess_topology_options *options,
                                    struct tess_topology **topology_out)
{
    char *text = NULL;
    size_t bytes = 0;
    *topology_out = NULL;
    if ((unsigned)format >= TESS_TOPOLOGY_FORMAT_COUNT)
        TESS_FAIL(TESS_ERR_INTERNAL, "%s: there is no format %d", path, (int)format);
    struct tess_topology *topology = tess_topology_new();
    enum tess_status status = topology != NULL ? read_file(path, &text, &bytes)
                                               : tess_fail(TESS_ERR_MEMORY, "%s: no memory", path);
    if (status == TESS_OK && format == TESS_TOPOLOGY_AUTO)
        format = tess_topology_guess(text, bytes);
    if (status == TESS_OK)
        status = read_readers[format](path, text, bytes, options, topology);
    if (status == TESS_OK)
        tess_topology_warn(topology, path);
    free(text);
    return tess_topology_give(topology, status, topology_out);
}
