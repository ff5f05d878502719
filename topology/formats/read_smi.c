/*
 * Reads the text of `nvidia-smi topo -m`: a matrix of words, one row and column for each GPU and
 * NIC, then columns of affinity and a legend. What is around it (a prompt, other output) is passed
 * over; escape codes of a terminal are too. How a graph is made of it: smi_graph.c.
 *
 *             GPU0   GPU1   mlx5_0   CPU Affinity   NUMA Affinity   GPU NUMA ID
 *     GPU0     X     NV12   PIX      0-31           0               N/A
 *     GPU1    NV12    X     SYS      32-63          1               N/A
 *     mlx5_0  PIX    SYS     X
 *
 * Of the affinities older and newer drivers print one, two or three, and rows may end early. Rows
 * of NICs may be missing, those of GPUs may not. The matrix must be the same both ways.
 */
#include "tessera/check.h"
#include "topology/formats/smi.h"
#include "topology/machine/assume.h"
#include "topology/machine/pool.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct smi_reader {
    struct tess__pool pool;
    struct tess__lines lines;
    struct tess__smi *smi;
    int32_t affinity_columns;
    int32_t cpu_column, numa_column; /* among the affinities; -1: none */
};

/* ---- words ---------------------------------------------------------------------------------- */

/* The text without escape codes, which never reach beyond their line. Returns its length. */
static size_t smi_clean(const char *text, size_t bytes, char *clean)
{
    size_t used = 0;
    for (size_t at = 0; at < bytes; at++) {
        if (text[at] != '\033') {
            clean[used++] = text[at];
            continue;
        }
        if (at + 1 == bytes || text[at + 1] != '[')
            continue;
        /* ESC [, parameters, and a last byte of 0x40 .. 0x7e. */
        size_t end = at + 2;
        while (end < bytes && text[end] >= 0x20 && text[end] < 0x40)
            end++;
        at = end < bytes && text[end] >= 0x40 && text[end] < 0x7f ? end : end - 1;
    }
    return used;
}

/* "GPU12" */
static bool smi_is_gpu(struct tess__word word, int32_t *number_out)
{
    if (word.length < 4 || memcmp(word.text, "GPU", 3) != 0)
        return false;
    return tess__word_number((struct tess__word){word.text + 3, word.length - 3}, 9999, number_out);
}

static bool smi_is_cell(struct tess__word word, struct tess__smi_cell *cell_out)
{
    static const char *const known[] = {
        [TESS__SMI_SELF] = "X",     [TESS__SMI_PIX] = "PIX",   [TESS__SMI_PXB] = "PXB",
        [TESS__SMI_PHB] = "PHB",    [TESS__SMI_NODE] = "NODE", [TESS__SMI_SYS] = "SYS",
        [TESS__SMI_SYS + 1] = "SOC" /* what drivers before 384 called it */
    };
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (known[k] != NULL && tess__word_is(word, known[k])) {
            *cell_out =
                (struct tess__smi_cell){.kind = (uint8_t)(k < TESS__SMI_SYS ? k : TESS__SMI_SYS)};
            return true;
        }
    }
    int32_t links;
    if (word.length < 3 || memcmp(word.text, "NV", 2) != 0 ||
        !tess__word_number((struct tess__word){word.text + 2, word.length - 2}, 255, &links) ||
        links == 0)
        return false;
    *cell_out = (struct tess__smi_cell){.kind = TESS__SMI_NVLINK, .links = (uint8_t)links};
    return true;
}

/* A header begins with a GPU that no word of a cell follows; a row with a GPU that one follows. */
static bool smi_is_header(struct tess__lines lines)
{
    struct tess__word word;
    struct tess__smi_cell cell;
    int32_t number;
    if (!tess__lines_word(&lines, &word) || !smi_is_gpu(word, &number))
        return false;
    return !tess__lines_word(&lines, &word) ||
           (!smi_is_cell(word, &cell) && word.text[word.length - 1] != ':');
}

static bool smi_plain_name(struct tess__word word)
{
    for (size_t i = 0; i < word.length; i++)
        if (!isalnum((unsigned char)word.text[i]) && !memchr("_-.:/", word.text[i], 5))
            return false;
    return word.length > 0 && word.length < TESS_TOPO_NAME_MAX;
}

static void smi_copy_name(struct tess__smi_entry *entry, struct tess__word word)
{
    snprintf(entry->name, sizeof(entry->name), "%.*s", (int)word.length, word.text);
}

/* -1: no row or column of that name. */
static int32_t smi_find(const struct tess__smi *smi, struct tess__word word)
{
    for (int32_t i = 0; i < smi->count; i++)
        if (tess__word_is(word, smi->entry[i].name))
            return i;
    return -1;
}

/* ---- header and rows ------------------------------------------------------------------------ */

static enum tess_status smi_column(struct smi_reader *reader, struct tess__word word)
{
    struct tess__smi *smi = reader->smi;
    int32_t line = reader->lines.line;
    if (!smi_plain_name(word))
        return tess__lines_fail(smi->name, line,
                                "'%.*s' is no name of a GPU or a NIC: letters, digits and _-.:/ "
                                "were expected, %d at most",
                                TESS__SHOWN(word), TESS_TOPO_NAME_MAX - 1);
    if (smi_find(smi, word) >= 0)
        return tess__lines_fail(smi->name, line, "two columns are named %.*s", TESS__SHOWN(word));
    if (smi->count == TESS__SMI_MAX)
        return tess__lines_fail(smi->name, line, "more than %d columns", TESS__SMI_MAX);
    struct tess__smi_entry *entry = &smi->entry[smi->count];
    *entry = (struct tess__smi_entry){.numa = -1};
    smi_copy_name(entry, word);
    entry->gpu = smi_is_gpu(word, &entry->number);
    if (!entry->gpu) {
        for (int32_t i = 0; i < smi->count; i++)
            entry->number += !smi->entry[i].gpu;
    }
    smi->count++;
    return TESS_OK;
}

/* "CPU Affinity", "NUMA Affinity", "GPU NUMA ID", in any order, after the devices. */
static enum tess_status smi_header(struct smi_reader *reader)
{
    struct tess__word word, second;
    reader->affinity_columns = 0;
    reader->cpu_column = reader->numa_column = -1;
    bool affinities = false;
    while (tess__lines_word(&reader->lines, &word)) {
        bool cpu = tess__word_is(word, "CPU"), numa = tess__word_is(word, "NUMA");
        if (cpu || numa || tess__word_is(word, "GPU")) {
            affinities = true;
            struct tess__lines ahead = reader->lines;
            while (tess__lines_word(&ahead, &second) &&
                   (tess__word_is(second, "Affinity") || tess__word_is(second, "ID") ||
                    (!cpu && !numa && tess__word_is(second, "NUMA"))))
                reader->lines = ahead;
            if (cpu)
                reader->cpu_column = reader->affinity_columns;
            if (numa)
                reader->numa_column = reader->affinity_columns;
            reader->affinity_columns++;
        } else if (affinities) {
            return tess__lines_fail(reader->smi->name, reader->lines.line,
                                    "'%.*s' after the columns of affinity: CPU Affinity, NUMA "
                                    "Affinity or GPU NUMA ID were expected",
                                    TESS__SHOWN(word));
        } else {
            TESS_TRY(smi_column(reader, word));
        }
    }
    return TESS_OK;
}

static enum tess_status smi_cell_fail(const struct smi_reader *reader, int32_t row, int32_t column,
                                      struct tess__word word)
{
    static const char *const p2p[] = {"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"};
    const struct tess__smi *smi = reader->smi;
    for (size_t k = 0; k < sizeof(p2p) / sizeof(p2p[0]); k++)
        if (tess__word_is(word, p2p[k]))
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "'%s' is a word of nvidia-smi topo -p2p; the matrix of "
                                    "nvidia-smi topo -m was expected",
                                    p2p[k]);
    return tess__lines_fail(smi->name, reader->lines.line,
                            "'%.*s' in row %s, column %s: X, NV and a number, PIX, PXB, PHB, NODE "
                            "or SYS was expected",
                            TESS__SHOWN(word), smi->entry[row].name, smi->entry[column].name);
}

static void smi_affinities(struct smi_reader *reader, struct tess__smi_entry *entry)
{
    struct tess__word word;
    for (int32_t column = 0; tess__lines_word(&reader->lines, &word); column++) {
        if (column == reader->cpu_column && !tess__word_is(word, "N/A"))
            entry->cpus = word;
        if (column == reader->numa_column && !tess__word_number(word, 9999, &entry->numa))
            entry->numa = -1; /* N/A, or several nodes: no single one */
    }
}

static enum tess_status smi_row(struct smi_reader *reader, int32_t row)
{
    struct tess__smi *smi = reader->smi;
    struct tess__smi_entry *entry = &smi->entry[row];
    int32_t line = reader->lines.line;
    if (entry->line > 0)
        return tess__lines_fail(smi->name, line, "a second row %s; the first is in line %d",
                                entry->name, (int)entry->line);
    entry->line = line;
    for (int32_t column = 0; column < smi->count; column++) {
        struct tess__smi_cell *cell = &smi->cell[row * smi->count + column];
        struct tess__word word;
        if (!tess__lines_word(&reader->lines, &word))
            return tess__lines_fail(smi->name, line,
                                    "row %s ends after %d words; the header has %d columns",
                                    entry->name, (int)column, (int)smi->count);
        if (!smi_is_cell(word, cell))
            return smi_cell_fail(reader, row, column, word);
        if ((cell->kind == TESS__SMI_SELF) != (row == column))
            return tess__lines_fail(smi->name, line,
                                    "'%.*s' in row %s, column %s: X belongs where a device meets "
                                    "itself, and nowhere else",
                                    TESS__SHOWN(word), entry->name, smi->entry[column].name);
        if (cell->kind == TESS__SMI_NVLINK && !(entry->gpu && smi->entry[column].gpu))
            return tess__lines_fail(smi->name, line, "'%.*s' from %s to %s: only GPUs have NVLinks",
                                    TESS__SHOWN(word), entry->name, smi->entry[column].name);
        const struct tess__smi_cell *mirror = &smi->cell[column * smi->count + row];
        if (mirror->kind != TESS__SMI_UNKNOWN &&
            (mirror->kind != cell->kind || mirror->links != cell->links))
            return tess__lines_fail(smi->name, line,
                                    "'%.*s' from %s to %s, but another word from %s to %s in line "
                                    "%d: a matrix that is the same both ways was expected",
                                    TESS__SHOWN(word), entry->name, smi->entry[column].name,
                                    smi->entry[column].name, entry->name,
                                    (int)smi->entry[column].line);
    }
    smi_affinities(reader, entry);
    return TESS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* "NIC0: mlx5_0" below the matrix: the name that other programs use. */
static void smi_legend(struct smi_reader *reader)
{
    struct tess__word word, name;
    if (!tess__lines_word(&reader->lines, &word) || word.text[word.length - 1] != ':' ||
        !tess__lines_word(&reader->lines, &name) || !smi_plain_name(name))
        return;
    int32_t at = smi_find(reader->smi, (struct tess__word){word.text, word.length - 1});
    if (at >= 0 && !reader->smi->entry[at].gpu && smi_find(reader->smi, name) < 0)
        smi_copy_name(&reader->smi->entry[at], name);
}

static enum tess_status smi_rows(struct smi_reader *reader)
{
    struct tess__smi *smi = reader->smi;
    while (tess__lines_next(&reader->lines)) {
        if (smi_is_header(reader->lines))
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "a second matrix begins here; that of one host was expected");
        struct tess__lines line = reader->lines;
        struct tess__word word;
        int32_t row = tess__lines_word(&line, &word) ? smi_find(smi, word) : -1, number;
        if (row >= 0) {
            reader->lines = line;
            TESS_TRY(smi_row(reader, row));
        } else if (word.length > 0 && smi_is_gpu(word, &number)) {
            return tess__lines_fail(smi->name, line.line, "row %.*s has no column",
                                    TESS__SHOWN(word));
        } else {
            smi_legend(reader);
        }
    }
    for (int32_t i = 0; i < smi->count; i++) {
        if (smi->entry[i].gpu && smi->entry[i].line == 0)
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "the text ends and there is no row for column %s",
                                    smi->entry[i].name);
    }
    return TESS_OK;
}

static enum tess_status smi_matrix(struct smi_reader *reader)
{
    struct tess__smi *smi = reader->smi;
    do {
        if (!tess__lines_next(&reader->lines))
            return tess__lines_fail(smi->name, reader->lines.line,
                                    "no matrix of nvidia-smi topo -m in it: a line of column "
                                    "names was expected, GPU0 first");
    } while (!smi_is_header(reader->lines));
    TESS_TRY(smi_header(reader));
    return smi_rows(reader);
}

/* Which GPUs these are: by the options, by the text around the matrix (nvidia-smi -L), or
 * by the file's name. A full set of 18 links is Hopper's. */
static void smi_guess(struct tess__smi *smi, const struct tess_topology_options *options,
                      struct tess__word text)
{
    const char *base = strrchr(smi->name, '/');
    base = base ? base + 1 : smi->name;
    smi->sm = options->sm;
    if (smi->sm <= 0)
        smi->sm = tess__sm_of_text(text.text, text.length);
    if (smi->sm <= 0)
        smi->sm = tess__sm_of_text(base, strlen(base));
    smi->sm_known = smi->sm > 0;
    for (int32_t i = 0; smi->sm <= 0 && i < smi->count * smi->count; i++)
        if (smi->cell[i].links > 12)
            smi->sm = 90;
    if (smi->sm <= 0)
        smi->sm = 80;
    smi->pci_gen = options->pci_gen > 0 ? options->pci_gen : tess__pci_gen(smi->sm);
    if (options->sm <= 0)
        tess_log(TESS_LOG_INFO,
                 "%s: the matrix names neither GPUs nor PCIe: taken for sm %d (%s) on PCIe %d; "
                 "options set both",
                 smi->name, (int)smi->sm, smi->sm_known ? "a name in it or of it" : "assumed",
                 (int)smi->pci_gen);
}

enum tess_status tess_topology_read_smi(const char *name, const char *text, size_t bytes,
                                        const struct tess_topology_options *options,
                                        struct tess_topology *topology)
{
    static const struct tess_topology_options none;
    struct tess__smi smi = {.name = name};
    struct smi_reader reader = {.smi = &smi};
    char *clean = tess__pool_array(&reader.pool, bytes, 1);
    smi.entry = tess__pool_array(&reader.pool, TESS__SMI_MAX, sizeof(*smi.entry));
    smi.cell = tess__pool_array(&reader.pool, TESS__SMI_MAX * TESS__SMI_MAX, sizeof(*smi.cell));
    enum tess_status status = reader.pool.failed ? tess__no_memory("the matrix") : TESS_OK;
    if (status == TESS_OK) {
        size_t length = smi_clean(text, bytes, clean);
        tess__lines_open(&reader.lines, name, clean, length);
        status = smi_matrix(&reader);
        if (status == TESS_OK)
            smi_guess(&smi, options != NULL ? options : &none, (struct tess__word){clean, length});
    }
    if (status == TESS_OK)
        status = tess__smi_build(&smi, topology);
    tess__pool_release(&reader.pool);
    return tess__lines_named(name, status);
}
