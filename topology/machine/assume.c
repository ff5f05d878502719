/*
 * What GPUs of a model are mostly built with, for formats that name neither PCIe generation nor
 * processor: a guess; readers print it and options overrule it.
 */
#include "topology/machine/assume.h"

#include <ctype.h>
#include <string.h>

struct assume_word {
    const char *word;
    int32_t value;
};

/* The value of the first word of the text that is one of known [count]; 0: none is. */
static int32_t assume_find(const char *text, size_t bytes, const struct assume_word *known,
                           size_t count)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = 0;
        while (at + length < bytes && isalnum((unsigned char)text[at + length]))
            length++;
        for (size_t m = 0; length > 1 && m < count; m++) {
            size_t part = strlen(known[m].word);
            /* "a100x8" names eight of them. */
            bool times = length > part + 1 && tolower((unsigned char)text[at + part]) == 'x' &&
                         isdigit((unsigned char)text[at + part + 1]);
            if ((length == part || times) && strncasecmp(text + at, known[m].word, part) == 0)
                return known[m].value;
        }
        at += length + 1;
    }
    return 0;
}

#define ASSUME_FIND(text, bytes, known)                                                            \
    assume_find(text, bytes, known, sizeof(known) / sizeof((known)[0]))

int32_t tess__sm_of_text(const char *text, size_t bytes)
{
    static const struct assume_word model[] = {
        {"p100", 60},  {"v100", 70},     {"rtx8000", 75}, {"rtx6000", 75},  {"t4", 75},
        {"a100", 80},  {"a800", 80},     {"a30", 80},     {"a40", 86},      {"a10", 86},
        {"a10g", 86},  {"a6000", 86},    {"a5000", 86},   {"3090", 86},     {"rtx3090", 86},
        {"4090", 89},  {"rtx4090", 89},  {"l40", 89},     {"l40s", 89},     {"l4", 89},
        {"h100", 90},  {"h100pcie", 90}, {"h100vm", 90},  {"a100pcie", 80}, {"a100mix", 80},
        {"h200", 90},  {"h800", 90},     {"h20", 90},     {"gh200", 90},    {"b100", 100},
        {"b200", 100}, {"gb200", 100},   {"b300", 103},   {"gb300", 103},   {"dgx1v", 70},
        {"5090", 120}, {"rtx5090", 120},
    };
    return ASSUME_FIND(text, bytes, model);
}

int32_t tess__sm_of_cloud(const char *path)
{
    static const struct assume_word machine[] = {
        {"ndv2", 70}, {"ndv4", 80}, {"ndv5", 90}, {"p3dn", 70}, {"p4d", 80},
        {"p4de", 80}, {"p5", 90},   {"p5e", 90},  {"p5en", 90}, {"p6", 100},
    };
    const char *base = strrchr(path, '/');
    base = base != NULL ? base + 1 : path;
    const int32_t sm = ASSUME_FIND(base, strlen(base), machine);
    return sm > 0 ? sm : tess__sm_of_text(base, strlen(base));
}

int32_t tess__gfx_of_text(const char *text, size_t bytes)
{
    static const struct assume_word model[] = {
        {"mi50", 0x906},   {"mi60", 0x906},   {"gfx906", 0x906}, {"mi100", 0x908},
        {"gfx908", 0x908}, {"mi210", 0x90a},  {"mi250", 0x90a},  {"mi250x", 0x90a},
        {"gfx90a", 0x90a}, {"mi300a", 0x942}, {"mi300x", 0x942}, {"mi300", 0x942},
        {"mi308x", 0x942}, {"mi325x", 0x942}, {"gfx940", 0x940}, {"gfx941", 0x941},
        {"gfx942", 0x942}, {"mi350x", 0x950}, {"mi355x", 0x950}, {"gfx950", 0x950},
    };
    return ASSUME_FIND(text, bytes, model);
}

int32_t tess__gfx_of_pci(uint32_t device)
{
    static const struct {
        uint32_t first, last;
        int32_t gfx;
    } range[] = {
        {0x66a0, 0x66af, 0x906}, /* Vega 20 */
        {0x738c, 0x738e, 0x908}, /* MI100 */
        {0x7408, 0x7410, 0x90a}, /* MI210, MI250 */
        {0x74a0, 0x74bf, 0x942}, /* MI300 */
        {0x75a0, 0x75bf, 0x950}, /* MI350 */
    };
    for (size_t r = 0; r < sizeof(range) / sizeof(range[0]); r++)
        if (device >= range[r].first && device <= range[r].last)
            return range[r].gfx;
    return 0;
}

bool tess__sm_has_nvlink(int32_t sm)
{
    return sm == 60 || sm == 70 || sm == 80 || (sm >= 90 && sm < 110);
}

bool tess__text_is_geforce(const char *text, size_t bytes)
{
    static const struct assume_word model[] = {
        {"geforce", 1}, {"2080", 1},    {"3060", 1}, {"3070", 1}, {"3080", 1},
        {"3090", 1},    {"rtx3090", 1}, {"4060", 1}, {"4070", 1}, {"4080", 1},
        {"4090", 1},    {"rtx4090", 1}, {"5080", 1}, {"5090", 1}, {"rtx5090", 1},
    };
    return ASSUME_FIND(text, bytes, model) != 0;
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
