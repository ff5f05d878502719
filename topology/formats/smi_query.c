/*
 * The text of `nvidia-smi -q` before or behind the matrix. It says nothing of what GPUs are joined
 * by; of each it has the bus id, and the generation and the width that its PCIe link can have in
 * its slot. GPUs come in the order of their numbers.
 *
 *     GPU 00000000:19:00.0
 *         PCI
 *             Bus Id                            : 00000000:19:00.0
 *             GPU Link Info
 *                 PCIe Generation
 *                     Max                       : 5      (Current: less while the GPU is idle)
 *                 Link Width
 *                     Max                       : 16x
 */
#include "tessera/check.h"
#include "topology/formats/smi.h"
#include "topology/machine/bus.h"
#include "topology/machine/rates.h"

#include <string.h>

#define QUERY_GENERATIONS 7
#define QUERY_LANES       32

struct query_gpu {
    uint64_t bus;
    int32_t generation, lanes; /* 0: unknown */
};

enum query_part { QUERY_OTHER, QUERY_GENERATION, QUERY_WIDTH };

/* "GPU 00000000:19:00.0" alone in its line. */
static bool query_is_gpu(struct tess__lines line, uint64_t *bus_out)
{
    struct tess__word word, bus;
    return tess__lines_word(&line, &word) && tess__word_is(word, "GPU") &&
           tess__lines_word(&line, &bus) && tess__bus_parse(bus.text, bus.length, bus_out) &&
           !tess__lines_word(&line, &word);
}

static enum query_part query_part(struct tess__lines line, enum query_part before)
{
    struct tess__word first, second, third;
    if (!tess__lines_word(&line, &first) || !tess__lines_word(&line, &second) ||
        tess__lines_word(&line, &third)) /* a heading has two words here */
        return before;
    return tess__word_is(first, "PCIe") && tess__word_is(second, "Generation") ? QUERY_GENERATION
           : tess__word_is(first, "Link") && tess__word_is(second, "Width")    ? QUERY_WIDTH
                                                                               : QUERY_OTHER;
}

/* "Max : 16x" of a part; N/A is unknown. */
static enum tess_status query_max(struct tess__lines line, enum query_part part,
                                  struct query_gpu *gpu)
{
    struct tess__word word;
    int32_t number;
    if (part == QUERY_OTHER || !tess__lines_word(&line, &word) || !tess__word_is(word, "Max") ||
        !tess__lines_word(&line, &word) || !tess__word_is(word, ":") ||
        !tess__lines_word(&line, &word) || tess__word_is(word, "N/A"))
        return TESS_OK;
    if (part == QUERY_WIDTH && word.length > 0 && word.text[word.length - 1] == 'x')
        word.length--;
    if (!tess__word_number(word, part == QUERY_WIDTH ? QUERY_LANES : QUERY_GENERATIONS, &number) ||
        number == 0)
        return tess__lines_fail(line.name, line.line, "'%.*s': %s was expected", TESS__SHOWN(word),
                                part == QUERY_WIDTH ? "a number of lanes, as in 16x"
                                                    : "a generation of PCIe, as in 4");
    *(part == QUERY_WIDTH ? &gpu->lanes : &gpu->generation) = number;
    return TESS_OK;
}

/* gpu [TESS__SMI_MAX]. */
static enum tess_status query_read(struct tess__lines *lines, struct query_gpu *gpu,
                                   int32_t *count_out)
{
    enum query_part part = QUERY_OTHER;
    int32_t count = 0;
    while (tess__lines_next(lines)) {
        uint64_t bus;
        if (query_is_gpu(*lines, &bus)) {
            if (count == TESS__SMI_MAX)
                return tess__lines_fail(lines->name, lines->line, "more than %d GPUs", count);
            gpu[count++] = (struct query_gpu){.bus = bus};
            part = QUERY_OTHER;
        }
        part = query_part(*lines, part);
        if (count > 0)
            TESS_TRY(query_max(*lines, part, &gpu[count - 1]));
    }
    *count_out = count;
    return TESS_OK;
}

enum tess_status tess__smi_query(struct tess__smi *smi, struct tess__word text)
{
    struct query_gpu gpu[TESS__SMI_MAX];
    struct tess__lines lines;
    int32_t count = 0, gpus = 0;
    tess__lines_open(&lines, smi->name, text.text, text.length);
    TESS_TRY(query_read(&lines, gpu, &count));
    for (int32_t i = 0; i < smi->count; i++)
        gpus += smi->entry[i].gpu;
    if (count == 0)
        return TESS_OK;
    if (count != gpus)
        return tess__lines_fail(smi->name, 0,
                                "%d GPUs in the text of nvidia-smi -q, and %d in the matrix of "
                                "nvidia-smi topo -m: those of one host were expected",
                                (int)count, (int)gpus);
    for (int32_t i = 0, k = 0; i < smi->count; i++) {
        struct tess__smi_entry *entry = &smi->entry[i];
        if (!entry->gpu)
            continue;
        tess__bus_text(gpu[k].bus, entry->bus, sizeof(entry->bus));
        entry->pci_gen = gpu[k].generation;
        entry->pci_lanes = gpu[k++].lanes;
    }
    return TESS_OK;
}
