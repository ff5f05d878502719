/* See host.h. */
#include "base/host.h"

#include <stdio.h>
#include <string.h>

void tess_host_boot(char boot[TESS_HOST_BOOT])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file == NULL || fscanf(file, "%63s", boot) != 1)
        boot[0] = '\0';
    if (file != NULL)
        fclose(file);
}

double tess_host_number(const char *path, const char *label)
{
    char line[256];
    double value = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    while (value < 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, label, strlen(label)) == 0 &&
            sscanf(line + strlen(label), "%lf", &value) != 1)
            value = -1;
    fclose(file);
    return value;
}
