/* Sizes with a unit. */
#include "base/size.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

enum tess_status tess_size_parse(const char *option, const char *text, double *bytes_out)
{
    static const struct {
        const char *name;
        double bytes;
    } unit[] = {
        {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
        {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    };
    char *end = NULL;
    const double value = strtod(text, &end);
    if (strspn(text, "0123456789.") == (size_t)(end - text) && end > text)
        for (size_t u = 0; u < sizeof(unit) / sizeof(unit[0]); u++)
            if (strcmp(end + (*end == ' '), unit[u].name) == 0 && value * unit[u].bytes >= 1 &&
                value * unit[u].bytes < 0x1p60) {
                *bytes_out = value * unit[u].bytes;
                return TESS_OK;
            }
    TESS_FAIL(TESS_ERR_USAGE,
              "--%s: '%.60s' is not a size such as 512MiB or 2GB (B, KiB, MiB, GiB, TiB, KB, MB, "
              "GB, TB)",
              option, text);
}
