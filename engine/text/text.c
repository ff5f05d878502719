/* Numbers as text for readers. */
#include "text/text.h"

#include <stdio.h>
#include <string.h>

const char *tess__text_bytes(double bytes, char text[TESS__TEXT_BYTES])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes >= 1024 && u + 1 < sizeof(unit) / sizeof(unit[0])) {
        bytes /= 1024;
        u++;
    }
    snprintf(text, TESS__TEXT_BYTES, u == 0 ? "%.0f %s" : "%.1f %s", bytes, unit[u]);
    return text;
}

const char *tess__text_count(double count, char text[TESS__TEXT_BYTES])
{
    if (count < 1e3)
        snprintf(text, TESS__TEXT_BYTES, "%.0f", count);
    else if (count < 1e6)
        snprintf(text, TESS__TEXT_BYTES, "%.1f k", count / 1e3);
    else
        snprintf(text, TESS__TEXT_BYTES, "%.2f M", count / 1e6);
    return text;
}

const char *tess__text_time(double seconds, char text[TESS__TEXT_BYTES])
{
    long long whole = (long long)(seconds + 0.5);
    if (seconds < 0.0995)
        snprintf(text, TESS__TEXT_BYTES, "%.3g ms", 1e3 * seconds);
    else if (seconds < 10)
        snprintf(text, TESS__TEXT_BYTES, "%.2f s", seconds);
    else if (whole < 60)
        snprintf(text, TESS__TEXT_BYTES, "%lld s", whole);
    else if (whole < 3600)
        snprintf(text, TESS__TEXT_BYTES, "%lld:%02lld", whole / 60, whole % 60);
    else
        snprintf(text, TESS__TEXT_BYTES, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                 whole % 60);
    return text;
}

const char *tess__text_unit(double bytes_max, double *divisor_out)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB"};
    size_t u = 0;
    for (*divisor_out = 1024; u < 2 && bytes_max >= 1000 * *divisor_out; u++)
        *divisor_out *= 1024;
    return unit[u];
}

void tess__text_machine(char text[128])
{
    char line[256];
    FILE *info = fopen("/proc/cpuinfo", "r");
    snprintf(text, 128, "unknown");
    if (!info)
        return;
    while (fgets(line, sizeof(line), info))
        if (sscanf(line, "model name : %127[^\n]", text) == 1)
            break;
    fclose(info);
}
