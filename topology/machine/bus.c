/* See bus.h. */
#include "topology/machine/bus.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool tess__digits(const char *text, size_t length, int base, uint64_t *value_out)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        const char *digit = memchr(digits, tolower((unsigned char)text[i]), (size_t)base);
        if (digit == NULL)
            return false;
        value = value * (uint64_t)base + (uint64_t)(digit - digits);
    }
    *value_out = value;
    return length > 0 && length <= 16;
}

bool tess__bus_parse(const char *text, size_t length, uint64_t *bus_out)
{
    uint64_t domain, bus, device, function;
    const char *colon = memchr(text, ':', length);
    size_t before = colon ? (size_t)(colon - text) : 0;
    if (before < 4 || before > 8 || length != before + 8 || colon[3] != ':' || colon[6] != '.')
        return false;
    if (!tess__digits(text, before, 16, &domain) || !tess__digits(colon + 1, 2, 16, &bus) ||
        !tess__digits(colon + 4, 2, 16, &device) || !tess__digits(colon + 7, 1, 16, &function))
        return false;
    *bus_out = domain << 24 | bus << 16 | device << 8 | function;
    return true;
}

void tess__bus_text(uint64_t bus, char *text, size_t room)
{
    snprintf(text, room, "%04x:%02x:%02x.%x", (unsigned)(bus >> 24), (unsigned)(bus >> 16 & 0xff),
             (unsigned)(bus >> 8 & 0xff), (unsigned)(bus & 0xf));
}
