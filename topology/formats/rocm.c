/* Cells of rocm-smi's matrices: see rocm.h. */
#include "topology/formats/rocm.h"

#include <stdio.h>
#include <string.h>

#define ROCM_LINK_MBS 50000 /* of one link in the matrix of bandwidths */

enum tess_status tess__rocm_gpu_add(struct rocm_reader *reader, int32_t number, int32_t line)
{
    struct tess__smi *smi = reader->smi;
    if (smi->count == TESS__SMI_MAX)
        return tess__lines_fail(smi->name, line, "more than %d columns", TESS__SMI_MAX);
    struct tess__smi_entry *entry = &smi->entry[smi->count++];
    *entry = (struct tess__smi_entry){.gpu = true, .number = number, .line = line, .numa = -1};
    snprintf(entry->name, sizeof(entry->name), "GPU%d", (int)number);
    return TESS_OK;
}

/* "50000-200000": links of the upper figure; "N/A": 0, also "0-0", which is as two hops. */
static bool rocm_bandwidth(struct tess__word word, int32_t *links_out, int32_t *hops)
{
    const char *dash = memchr(word.text, '-', word.length);
    int32_t mbs;
    *links_out = 0;
    if (tess__word_is(word, "N/A"))
        return true;
    if (dash != NULL) {
        const size_t skip = (size_t)(dash - word.text) + 1;
        word = (struct tess__word){word.text + skip, word.length - skip};
    }
    if (!tess__word_number(word, 255 * ROCM_LINK_MBS, &mbs))
        return false;
    *links_out = (mbs + ROCM_LINK_MBS / 2) / ROCM_LINK_MBS;
    *hops = mbs == 0 && *hops < 2 ? 2 : *hops;
    return true;
}

bool tess__rocm_cell(struct rocm_reader *reader, enum rocm_section section, struct tess__word word,
                     int32_t at, const char **expected_out)
{
    switch (section) {
    case ROCM_TYPE:
        *expected_out = "XGMI, PCIE, N/A or 0";
        reader->xgmi[at] = tess__word_is(word, "XGMI");
        return reader->xgmi[at] || tess__word_is(word, "PCIE") || tess__word_is(word, "0") ||
               tess__word_is(word, "N/A");
    case ROCM_HOPS:
        *expected_out = "a number of hops";
        return tess__word_number(word, 1000, &reader->hops[at]) || tess__word_is(word, "N/A");
    case ROCM_ACCESS:
        *expected_out = "True, False, N/A or 0";
        reader->apart[at] = tess__word_is(word, "False");
        return reader->apart[at] || tess__word_is(word, "True") || tess__word_is(word, "0") ||
               tess__word_is(word, "N/A");
    default:
        *expected_out = "MB/s, as in 50000-100000";
        return rocm_bandwidth(word, &reader->links[at], &reader->hops[at]);
    }
}
