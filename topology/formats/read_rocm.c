/*
 * Reads the text of `rocm-smi --showtopo`: matrices of the GPUs under titles, then a list of NUMA
 * nodes. What else is in it (weights, product names, a prompt) is passed over.
 *
 *     ======================== Hops between two GPUs =========================
 *            GPU0         GPU1
 *     GPU0   0            1
 *     GPU1   1            0
 *     ====================== Link Type between two GPUs ======================
 *            GPU0         GPU1
 *     GPU0   0            XGMI
 *     GPU1   XGMI         0
 *     ============================== Numa Nodes ==============================
 *     GPU[0]          : (Topology) Numa Node: 0
 *
 * Needed is the matrix of link types. A pair of XGMI and one hop has a link; of more hops it is
 * reached over other GPUs, and has none. How many links side by side a pair has is only in the
 * matrix of `--shownodesbw` ("Bandwidth between two GPUs", 50000-200000: up to four of 50,000
 * MB/s); without it, one, and 0-0 is no direct link. Other pairs are as far as their NUMA nodes. A
 * pair of which `--showtopoaccess` says False has no link either; a GPU that reaches no other one
 * sends by way of memory. The generation of xGMI is that of the first GPU model in the text
 * (--showproductname) or in the file's name.
 *
 * With --json the same comes as keys and values: rocm_json.c.
 */
#include "tessera/check.h"
#include "topology/formats/rocm.h"
#include "topology/machine/assume.h"

#include <stdio.h>
#include <string.h>

/* "GPU12", or "GPU[12]" of the list of NUMA nodes. */
static bool rocm_gpu(struct tess__word word, bool list, int32_t *number_out)
{
    const size_t skip = list ? 4 : 3;
    if (word.length < skip + 1 + list || memcmp(word.text, "GPU[", skip) != 0 ||
        (list && word.text[word.length - 1] != ']'))
        return false;
    return tess__word_number((struct tess__word){word.text + skip, word.length - skip - list}, 9999,
                             number_out);
}

/* "==== Link Type between two GPUs ====": which matrix comes. */
static bool rocm_title(struct tess__lines lines, enum rocm_section *section_out)
{
    struct tess__word word;
    *section_out = ROCM_OTHER;
    if (!tess__lines_word(&lines, &word) || word.text[0] != '=')
        return false;
    if (!tess__lines_word(&lines, &word))
        return true;
    if (tess__word_is(word, "Hops"))
        *section_out = ROCM_HOPS;
    else if (tess__word_is(word, "Link"))
        *section_out = tess__lines_word(&lines, &word) && tess__word_is(word, "accessibility")
                           ? ROCM_ACCESS
                           : ROCM_TYPE;
    else if (tess__word_is(word, "Bandwidth"))
        *section_out = ROCM_BANDWIDTH;
    return true;
}

/* The columns: the first matrix gives them, the others have the same. */
static enum tess_status rocm_header(struct rocm_reader *reader)
{
    struct tess__smi *smi = reader->smi;
    const bool first = smi->count == 0;
    const int32_t line = reader->lines.line;
    struct tess__word word;
    int32_t number, columns = 0;
    for (; tess__lines_word(&reader->lines, &word); columns++) {
        if (!rocm_gpu(word, false, &number))
            return tess__lines_fail(smi->name, line, "column '%.*s': GPU and a number was expected",
                                    TESS__SHOWN(word));
        if (!first && (columns >= smi->count || smi->entry[columns].number != number))
            return tess__lines_fail(smi->name, line, "column %.*s is not that of the matrix above",
                                    TESS__SHOWN(word));
        for (int32_t i = 0; i < columns && first; i++)
            if (smi->entry[i].number == number)
                return tess__lines_fail(smi->name, line, "two columns are named %.*s",
                                        TESS__SHOWN(word));
        if (first)
            TESS_TRY(tess__rocm_gpu_add(reader, number, line));
    }
    reader->header = true;
    reader->rows = 0;
    return TESS_OK;
}

static enum tess_status rocm_row(struct rocm_reader *reader, int32_t number)
{
    const struct tess__smi *smi = reader->smi;
    const char *expected;
    struct tess__word word;
    if (reader->rows == smi->count || smi->entry[reader->rows].number != number)
        return tess__lines_fail(smi->name, reader->lines.line,
                                "row GPU%d: rows in the order of the columns were expected",
                                (int)number);
    for (int32_t column = 0; column < smi->count; column++) {
        if (!tess__lines_word(&reader->lines, &word))
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "row GPU%d ends after %d words; the header has %d columns",
                                    (int)number, (int)column, (int)smi->count);
        if (!tess__rocm_cell(reader, reader->section, word, reader->rows * smi->count + column,
                             &expected))
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "'%.*s' in row %s, column %s: %s was expected",
                                    TESS__SHOWN(word), smi->entry[reader->rows].name,
                                    smi->entry[column].name, expected);
    }
    reader->seen[reader->section] |= ++reader->rows == smi->count;
    return TESS_OK;
}

/* "GPU[0] : (Topology) Numa Node: 0", or "GPU 0 : ..." */
static void rocm_numa(struct rocm_reader *reader, struct tess__lines line)
{
    struct tess__smi *smi = reader->smi;
    struct tess__word word, before = {"", 0};
    int32_t gpu, numa;
    if (!tess__lines_word(&line, &word))
        return;
    if (!rocm_gpu(word, true, &gpu) &&
        (!tess__word_is(word, "GPU") || !tess__lines_word(&line, &word) ||
         !tess__word_number(word, 9999, &gpu)))
        return;
    for (; tess__lines_word(&line, &word); before = word)
        if (tess__word_is(before, "Numa") && tess__word_is(word, "Node:") &&
            tess__lines_word(&line, &word) && tess__word_number(word, 9999, &numa))
            for (int32_t i = 0; i < smi->count; i++)
                if (smi->entry[i].number == gpu)
                    smi->entry[i].numa = numa;
}

static enum tess_status rocm_open(struct rocm_reader *reader)
{
    const size_t cells = (size_t)TESS__SMI_MAX * TESS__SMI_MAX;
    struct tess__pool *pool = &reader->pool;
    reader->smi->entry = tess__pool_array(pool, TESS__SMI_MAX, sizeof(*reader->smi->entry));
    reader->smi->cell = tess__pool_array(pool, cells, sizeof(*reader->smi->cell));
    reader->xgmi = tess__pool_array(pool, cells, sizeof(*reader->xgmi));
    reader->apart = tess__pool_array(pool, cells, sizeof(*reader->apart));
    reader->hops = tess__pool_array(pool, cells, sizeof(*reader->hops));
    reader->links = tess__pool_array(pool, cells, sizeof(*reader->links));
    return pool->failed ? tess__no_memory("the matrices of rocm-smi") : TESS_OK;
}

static enum tess_status rocm_lines(struct rocm_reader *reader)
{
    while (tess__lines_next(&reader->lines)) {
        struct tess__lines line = reader->lines;
        struct tess__word word;
        int32_t number;
        enum rocm_section section;
        if (rocm_title(line, &section)) {
            reader->section = section;
            reader->header = false;
        } else if (!tess__lines_word(&line, &word) || reader->section == ROCM_OTHER ||
                   !rocm_gpu(word, false, &number)) {
            rocm_numa(reader, reader->lines);
        } else if (!reader->header) {
            TESS_TRY(rocm_header(reader));
        } else {
            reader->lines = line;
            TESS_TRY(rocm_row(reader, number));
        }
    }
    if (!reader->seen[ROCM_TYPE])
        return tess__lines_fail(reader->smi->name, reader->lines.line,
                                "no whole matrix under 'Link Type between two GPUs', which "
                                "rocm-smi --showtopo prints");
    return TESS_OK;
}

/* The words of nvidia-smi's matrix that mean the same. */
static enum tess_status rocm_cells(struct rocm_reader *reader)
{
    struct tess__smi *smi = reader->smi;
    for (int32_t i = 0; i < smi->count; i++) {
        bool alone = smi->count > 1;
        for (int32_t j = 0; j < smi->count; j++) {
            const int32_t at = i * smi->count + j, mirror = j * smi->count + i;
            const struct tess__smi_entry *a = &smi->entry[i], *b = &smi->entry[j];
            struct tess__smi_cell *cell = &smi->cell[at];
            if (reader->xgmi[at] != reader->xgmi[mirror] ||
                reader->apart[at] != reader->apart[mirror] ||
                reader->hops[at] != reader->hops[mirror])
                return tess__lines_fail(smi->name, a->line,
                                        "%s to %s is not as %s to %s: matrices that are the same "
                                        "both ways were expected",
                                        a->name, b->name, b->name, a->name);
            cell->kind = i == j               ? TESS__SMI_SELF
                         : a->numa == b->numa ? TESS__SMI_NODE
                                              : TESS__SMI_SYS;
            alone = alone && (i == j || reader->apart[at]);
            if (i == j || !reader->xgmi[at] || reader->apart[at] || reader->hops[at] > 1)
                continue;
            const int32_t links = reader->links[at] < reader->links[mirror] ? reader->links[mirror]
                                                                            : reader->links[at];
            *cell = (struct tess__smi_cell){.kind = TESS__SMI_NVLINK,
                                            .links = (uint8_t)(links > 0 ? links : 1)};
        }
        smi->entry[i].staged = alone;
    }
    return TESS_OK;
}

static void rocm_guess(struct tess__smi *smi, const struct tess_topology_options *options,
                       struct tess__word text, uint32_t *remarks)
{
    const char *base = strrchr(smi->name, '/');
    base = base ? base + 1 : smi->name;
    smi->gfx = tess__gfx_of_text(text.text, text.length);
    if (smi->gfx == 0)
        smi->gfx = tess__gfx_of_text(base, strlen(base));
    *remarks |= smi->gfx > 0 ? 0 : TESS_REMARK_GFX;
    *remarks |= options->pci_gen > 0 ? 0 : TESS_REMARK_PCI;
    if (smi->gfx == 0)
        smi->gfx = 0x906;
    smi->pci_gen = options->pci_gen > 0 ? options->pci_gen : smi->gfx >= 0x940 ? 5 : 4;
}

/* Where a line begins with a brace, behind warnings: JSON; NULL: there is none. */
static const char *rocm_brace(const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;
    while (at < end && *at != '{') {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        at = line_end != NULL ? line_end + 1 : end;
    }
    return at < end ? at : NULL;
}

enum tess_status tess_topology_read_rocm(const char *name, const char *text, size_t bytes,
                                         const struct tess_topology_options *options,
                                         struct tess_topology *topology)
{
    static const struct tess_topology_options none;
    struct tess__smi smi = {.name = name};
    struct rocm_reader reader = {.smi = &smi};
    enum tess_status status = rocm_open(&reader);
    const char *brace = rocm_brace(text, bytes);
    tess__lines_open(&reader.lines, name, text, bytes);
    if (status == TESS_OK && brace != NULL)
        status =
            tess__rocm_json(&reader, (struct tess__word){brace, bytes - (size_t)(brace - text)});
    else if (status == TESS_OK)
        status = rocm_lines(&reader);
    if (status == TESS_OK)
        status = rocm_cells(&reader);
    if (status == TESS_OK) {
        rocm_guess(&smi, options != NULL ? options : &none, (struct tess__word){text, bytes},
                   &topology->remarks);
        status = tess__smi_build(&smi, topology);
    }
    tess__pool_release(&reader.pool);
    return tess__lines_named(name, status);
}
