/* See host.h. */
#include "base/host.h"

#include <stdio.h>

void tess_host_boot(char boot[TESS_HOST_BOOT])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file == NULL || fscanf(file, "%63s", boot) != 1)
        boot[0] = '\0';
    if (file != NULL)
        fclose(file);
}
