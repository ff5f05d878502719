/*
 * What GPUs of a model are mostly built with, for formats that name neither PCIe generation nor
 * processor: a guess; readers print it and options overrule it.
 */
#include "topology/machine/assume.h"

#include <ctype.h>
#include <string.h>

int32_t tess__sm_of_text(const char *text, size_t bytes)
{
    static const struct {
        const char *word;
        int32_t sm;
    } model[] = {
        {"p100", 60},  {"v100", 70},     {"rtx8000", 75}, {"rtx6000", 75},  {"t4", 75},
        {"a100", 80},  {"a800", 80},     {"a30", 80},     {"a40", 86},      {"a10", 86},
        {"a10g", 86},  {"a6000", 86},    {"a5000", 86},   {"3090", 86},     {"rtx3090", 86},
        {"4090", 89},  {"rtx4090", 89},  {"l40", 89},     {"l40s", 89},     {"l4", 89},
        {"h100", 90},  {"h100pcie", 90}, {"h100vm", 90},  {"a100pcie", 80}, {"a100mix", 80},
        {"h200", 90},  {"h800", 90},     {"h20", 90},     {"gh200", 90},    {"b100", 100},
        {"b200", 100}, {"gb200", 100},   {"b300", 103},   {"gb300", 103},   {"dgx1v", 70},
    };
    for (size_t at = 0; at < bytes;) {
        size_t length = 0;
        while (at + length < bytes && isalnum((unsigned char)text[at + length]))
            length++;
        for (size_t m = 0; length > 1 && m < sizeof(model) / sizeof(model[0]); m++) {
            size_t known = strlen(model[m].word);
            /* "a100x8" names eight of them. */
            bool times = length > known + 1 && tolower((unsigned char)text[at + known]) == 'x' &&
                         isdigit((unsigned char)text[at + known + 1]);
            if ((length == known || times) && strncasecmp(text + at, model[m].word, known) == 0)
                return model[m].sm;
        }
        at += length + 1;
    }
    return 0;
}

int32_t tess__sm_of_pci(uint32_t device)
{
    static const struct {
        uint32_t first, last;
        int32_t sm;
    } range[] = {
        {0x15f0, 0x15ff, 60},  /* GP100 */
        {0x1db0, 0x1dff, 70},  /* GV100 */
        {0x1e00, 0x1fff, 75},  /* TU10x */
        {0x20b0, 0x20ff, 80},  /* GA100 */
        {0x2200, 0x22ff, 86},  /* GA102 */
        {0x2300, 0x23ff, 90},  /* GH100 */
        {0x2680, 0x27ff, 89},  /* AD102 .. AD104 */
        {0x2900, 0x29ff, 100}, /* GB100 */
    };
    for (size_t r = 0; r < sizeof(range) / sizeof(range[0]); r++)
        if (device >= range[r].first && device <= range[r].last)
            return range[r].sm;
    return 0;
}

int32_t tess__nvlink_links(int32_t sm)
{
    if (sm >= 90)
        return 18;
    if (sm == 86)
        return 4;
    if (sm >= 80)
        return 12;
    return sm >= 70 ? 6 : 4;
}

int32_t tess__pci_gen(int32_t sm)
{
    if (sm >= 90)
        return 5;
    return sm >= 80 ? 4 : 3;
}

int32_t tess__intel_model(int32_t sm)
{
    if (sm >= 90)
        return 0x8f;               /* Sapphire Rapids */
    return sm >= 75 ? 0x55 : 0x4f; /* Skylake; Broadwell */
}
