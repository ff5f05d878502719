/* PCI bus ids as one number, in the order in which NVML counts devices: domain, bus, device and, in
 * the last byte, function. */
#ifndef TOPOLOGY_BUS_H
#define TOPOLOGY_BUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* dddd:bb:dd.f, hexadecimal, of any case; a domain of 4 to 8 digits. */
bool tess__bus_parse(const char *text, size_t length, uint64_t *bus_out);
/* As nodes have it: "0000:17:00.0". */
void tess__bus_text(uint64_t bus, char *text, size_t room);

/* All of text[length] as a number in this base, up to 16 digits. */
bool tess__digits(const char *text, size_t length, int base, uint64_t *value_out);

#endif
