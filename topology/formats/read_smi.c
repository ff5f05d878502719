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
 * The text of `nvidia-smi topo -p2p r` may stand before or behind it: a matrix of the GPUs alone,
 * whose words say which pairs have peer-to-peer; a GPU that has it with none but those that it has
 * NVLinks to sends by way of memory. Without it GeForces, if the text or the file's name has one,
 * are taken for such.
 *
 * That of `nvidia-smi -q` may, too: smi_query.c.
 *
 * Of the affinities older and newer drivers print one, two or three, and rows may end early. Rows
 * of NICs may be missing, those of GPUs may not. The matrix must be the same both ways, but that
 * the rows of GPUs behind NVSwitches may show each GPU's own number of links.
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
    uint8_t *p2p; /* [SMI_P2P_MAX][SMI_P2P_MAX] by numbers of GPUs, enum smi_p2p */
    bool p2p_seen;
};

#define SMI_P2P_MAX TESS__SMI_MAX

enum smi_p2p { SMI_P2P_UNKNOWN, SMI_P2P_NONE, SMI_P2P_OK };

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

/* Of kinds of cells, but for NVLinks. */
static const char *const smi_words[] = {
    [TESS__SMI_SELF] = "X",     [TESS__SMI_PIX] = "PIX",   [TESS__SMI_PXB] = "PXB",
    [TESS__SMI_PHB] = "PHB",    [TESS__SMI_NODE] = "NODE", [TESS__SMI_SYS] = "SYS",
    [TESS__SMI_SYS + 1] = "SOC" /* what drivers before 384 called it */
};

static bool smi_is_cell(struct tess__word word, struct tess__smi_cell *cell_out)
{
    for (size_t k = 0; k < sizeof(smi_words) / sizeof(smi_words[0]); k++) {
        if (smi_words[k] != NULL && tess__word_is(word, smi_words[k])) {
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

/* A word of topo -p2p: OK, or why it is not; U is unknown. */
static bool smi_is_p2p(struct tess__word word, enum smi_p2p *p2p_out)
{
    static const char *const none[] = {"NS", "CNS", "GNS", "TNS", "DR"};
    *p2p_out = tess__word_is(word, "OK") ? SMI_P2P_OK : SMI_P2P_UNKNOWN;
    for (size_t k = 0; k < sizeof(none) / sizeof(none[0]); k++)
        if (tess__word_is(word, none[k]))
            *p2p_out = SMI_P2P_NONE;
    return *p2p_out != SMI_P2P_UNKNOWN || tess__word_is(word, "U");
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
    const struct tess__smi *smi = reader->smi;
    enum smi_p2p p2p;
    if (smi_is_p2p(word, &p2p))
        return tess__lines_fail(smi->name, reader->lines.line,
                                "'%.*s' is a word of nvidia-smi topo -p2p; the matrix of "
                                "nvidia-smi topo -m was expected",
                                TESS__SHOWN(word));
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

/* One word there, another one back; the later row is at fault. */
static enum tess_status smi_mirror_fail(const struct tess__smi *smi, int32_t row, int32_t column)
{
    const struct tess__smi_entry *entry = &smi->entry[row], *other = &smi->entry[column];
    const struct tess__smi_cell *cell = &smi->cell[row * smi->count + column];
    char word[16];
    if (cell->kind == TESS__SMI_NVLINK)
        snprintf(word, sizeof(word), "NV%d", (int)cell->links);
    else
        snprintf(word, sizeof(word), "%s", smi_words[cell->kind]);
    return tess__lines_fail(
        smi->name, entry->line,
        "'%s' from %s to %s, but another word from %s to %s in line %d: a matrix "
        "that is the same both ways was expected",
        word, entry->name, other->name, other->name, entry->name, (int)other->line);
}

/* Are all NVLinks of the row, several, the same number? */
static bool smi_row_even(const struct tess__smi *smi, int32_t row)
{
    int32_t links = 0, count = 0;
    for (int32_t i = 0; i < smi->count; i++) {
        const struct tess__smi_cell *cell = &smi->cell[row * smi->count + i];
        if (cell->kind != TESS__SMI_NVLINK)
            continue;
        if (count++ > 0 && cell->links != links)
            return false;
        links = cell->links;
    }
    return count > 1;
}

/* NVLinks have as many ends as beginnings, but to switches: there a row may show what its GPU has,
 * which is less than another's where links are dead. */
static enum tess_status smi_check_nvlinks(const struct tess__smi *smi)
{
    for (int32_t i = 0; i < smi->count; i++) {
        for (int32_t j = 0; j < i; j++) {
            const struct tess__smi_cell *there = &smi->cell[i * smi->count + j];
            const struct tess__smi_cell *back = &smi->cell[j * smi->count + i];
            if (there->kind != TESS__SMI_NVLINK || back->kind != TESS__SMI_NVLINK ||
                there->links == back->links || (smi_row_even(smi, i) && smi_row_even(smi, j)))
                continue;
            return smi->entry[i].line > smi->entry[j].line ? smi_mirror_fail(smi, i, j)
                                                           : smi_mirror_fail(smi, j, i);
        }
    }
    return TESS_OK;
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
        if (mirror->kind != TESS__SMI_UNKNOWN && mirror->kind != cell->kind)
            return smi_mirror_fail(smi, row, column);
    }
    smi_affinities(reader, entry);
    return TESS_OK;
}

/* ---- peer-to-peer --------------------------------------------------------------------------- */

/* Is the header of a matrix of topo -p2p at hand? By the row below it. */
static bool smi_is_p2p_header(struct tess__lines lines)
{
    struct tess__word word;
    enum smi_p2p p2p;
    int32_t number;
    if (!tess__lines_next(&lines) || !tess__lines_word(&lines, &word) || !smi_is_gpu(word, &number))
        return false;
    while (tess__lines_word(&lines, &word))
        if (!tess__word_is(word, "X"))
            return smi_is_p2p(word, &p2p);
    return false;
}

static enum tess_status smi_p2p_row(struct smi_reader *reader, struct tess__lines line, int32_t row,
                                    const int32_t *column, int32_t columns)
{
    const char *name = reader->smi->name;
    struct tess__word word;
    enum smi_p2p p2p;
    for (int32_t i = 0; i < columns; i++) {
        if (!tess__lines_word(&line, &word))
            return tess__lines_fail(name, line.line,
                                    "the row ends after %d words; the header has %d columns",
                                    (int)i, (int)columns);
        bool self = column[i] == row;
        if (self != tess__word_is(word, "X") || (!self && !smi_is_p2p(word, &p2p)))
            return tess__lines_fail(name, line.line,
                                    "'%.*s' from GPU%d to GPU%d: a word of nvidia-smi topo -p2p "
                                    "was expected (X OK NS CNS GNS TNS DR U)",
                                    TESS__SHOWN(word), (int)row, (int)column[i]);
        /* Of several matrices, for reading and for writing, one that says OK is enough. */
        uint8_t *at = &reader->p2p[row * SMI_P2P_MAX + column[i]];
        if (!self && *at < (uint8_t)p2p)
            *at = (uint8_t)p2p;
    }
    return TESS_OK;
}

/* The matrix whose header is at hand: rows as far as they begin with a GPU. */
static enum tess_status smi_p2p(struct smi_reader *reader)
{
    int32_t column[SMI_P2P_MAX], columns = 0, row;
    struct tess__word word;
    while (tess__lines_word(&reader->lines, &word)) {
        if (!smi_is_gpu(word, &row) || row >= SMI_P2P_MAX || columns == SMI_P2P_MAX)
            return tess__lines_fail(reader->smi->name, reader->lines.line,
                                    "'%.*s' in the heading of nvidia-smi topo -p2p: GPU0 to "
                                    "GPU%d were expected",
                                    TESS__SHOWN(word), SMI_P2P_MAX - 1);
        column[columns++] = row;
    }
    reader->p2p_seen = true;
    for (;;) {
        struct tess__lines line = reader->lines;
        int32_t other;
        if (!tess__lines_next(&line) || !tess__lines_word(&line, &word) ||
            !smi_is_gpu(word, &row) || row >= SMI_P2P_MAX)
            return TESS_OK;
        struct tess__lines ahead = line;
        if (!tess__lines_word(&ahead, &word) || smi_is_gpu(word, &other))
            return TESS_OK; /* the next header */
        TESS_TRY(smi_p2p_row(reader, line, row, column, columns));
        reader->lines = line;
    }
}

/* Of each GPU: peer-to-peer over PCIe with another one, or with none that is known of. */
static void smi_stage(struct smi_reader *reader)
{
    const struct tess__smi *smi = reader->smi;
    for (int32_t i = 0; i < smi->count; i++) {
        struct tess__smi_entry *entry = &smi->entry[i];
        enum smi_p2p best = SMI_P2P_UNKNOWN;
        for (int32_t j = 0; j < smi->count; j++) {
            const struct tess__smi_entry *other = &smi->entry[j];
            if (!entry->gpu || !other->gpu || entry->number >= SMI_P2P_MAX ||
                other->number >= SMI_P2P_MAX ||
                smi->cell[i * smi->count + j].kind == TESS__SMI_NVLINK)
                continue;
            uint8_t p2p = reader->p2p[entry->number * SMI_P2P_MAX + other->number];
            best = p2p > (uint8_t)best ? (enum smi_p2p)p2p : best;
        }
        entry->staged = best == SMI_P2P_NONE;
    }
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
        if (smi_is_header(reader->lines) && smi_is_p2p_header(reader->lines)) {
            TESS_TRY(smi_p2p(reader));
            continue;
        }
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
    for (;;) {
        if (!tess__lines_next(&reader->lines))
            return tess__lines_fail(
                smi->name, reader->lines.line,
                reader->p2p_seen ? "only the matrix of nvidia-smi topo -p2p, which names no "
                                   "links: the text of nvidia-smi topo -m before it was "
                                   "expected"
                                 : "no matrix of nvidia-smi topo -m in it, which alone says how "
                                   "GPUs are joined: a line of column names was expected, "
                                   "GPU0 first");
        if (!smi_is_header(reader->lines))
            continue;
        if (!smi_is_p2p_header(reader->lines))
            break;
        TESS_TRY(smi_p2p(reader));
    }
    TESS_TRY(smi_header(reader));
    TESS_TRY(smi_rows(reader));
    TESS_TRY(smi_check_nvlinks(smi));
    smi_stage(reader);
    return TESS_OK;
}

static void smi_guess_p2p(const struct smi_reader *reader, struct tess__word text,
                          uint32_t *remarks)
{
    const struct tess__smi *smi = reader->smi;
    const char *base = strrchr(smi->name, '/');
    base = base ? base + 1 : smi->name;
    if (reader->p2p_seen || (!tess__text_is_geforce(text.text, text.length) &&
                             !tess__text_is_geforce(base, strlen(base))))
        return;
    *remarks |= TESS_REMARK_P2P;
    for (int32_t i = 0; i < smi->count; i++)
        smi->entry[i].staged = smi->entry[i].gpu;
}

/* Which GPUs these are: by the options, by the text around the matrix (nvidia-smi -L), or
 * by the file's name. A full set of 18 links is Hopper's. */
static void smi_guess(struct tess__smi *smi, const struct tess_topology_options *options,
                      struct tess__word text, uint32_t *remarks)
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
    *remarks |= smi->sm_known ? 0 : TESS_REMARK_SM;
    smi->pci_gen = options->pci_gen;
    for (int32_t i = 0; i < smi->count && options->pci_gen <= 0; i++) /* switches': as the best */
        if (smi->entry[i].pci_gen > smi->pci_gen)
            smi->pci_gen = smi->entry[i].pci_gen;
    *remarks |= smi->pci_gen > 0 ? 0 : TESS_REMARK_PCI;
    if (smi->pci_gen <= 0)
        smi->pci_gen = tess__pci_gen(smi->sm);
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
    reader.p2p = tess__pool_array(&reader.pool, SMI_P2P_MAX * SMI_P2P_MAX, 1);
    enum tess_status status = reader.pool.failed ? tess__no_memory("the matrix") : TESS_OK;
    if (status == TESS_OK) {
        struct tess__word whole = {clean, smi_clean(text, bytes, clean)};
        tess__lines_open(&reader.lines, name, clean, whole.length);
        status = smi_matrix(&reader);
        if (status == TESS_OK)
            status = tess__smi_query(&smi, whole);
        if (status == TESS_OK)
            smi_guess_p2p(&reader, whole, &topology->remarks);
        if (status == TESS_OK)
            smi_guess(&smi, options != NULL ? options : &none, whole, &topology->remarks);
    }
    if (status == TESS_OK)
        status = tess__smi_build(&smi, topology);
    tess__pool_release(&reader.pool);
    return tess__lines_named(name, status);
}
