/* Which devices code runs on; see archs.h. */
#include "cuda/archs.h"

#include <stdlib.h>
#include <string.h>

static bool archs_one_runs(const char *arch, int major, int minor)
{
    if (strncmp(arch, "ptx", 3) == 0)
        return major >= 8;
    char *end = NULL;
    const long number = strtol(arch, &end, 10);
    const int own_major = (int)(number / 10), own_minor = (int)(number % 10);
    if (*end == 'a')
        return major == own_major && minor == own_minor;
    return major == own_major && minor >= own_minor;
}

bool tess__cuda_runs_on(const char *archs, int major, int minor)
{
    while (*archs != '\0') {
        if (archs_one_runs(archs, major, minor))
            return true;
        archs += strcspn(archs, " ");
        archs += strspn(archs, " ");
    }
    return false;
}
