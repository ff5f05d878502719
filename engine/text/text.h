/* Numbers as text for readers. Each fills and returns the caller's buffer. */
#ifndef TESSERA_TEXT_TEXT_H
#define TESSERA_TEXT_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define TESS__TEXT_BYTES 32

/* "812 B", "4.0 KiB", "13.1 MiB". */
const char *tess__text_bytes(double bytes, char text[TESS__TEXT_BYTES]);
/* "812", "17.3 k", "1.20 M". */
const char *tess__text_count(double count, char text[TESS__TEXT_BYTES]);
/* "4.2 ms", "0.42 s", "58 s", "3:05", "1:02:03". */
const char *tess__text_time(double seconds, char text[TESS__TEXT_BYTES]);

/*
 * One unit for a whole table of byte counts, by its greatest: "KiB", "MiB" or "GiB", so that no
 * figure needs more than three digits before the point (below a terabyte).
 */
const char *tess__text_unit(double bytes_max, double *divisor_out);

/* The processor's name as the kernel gives it, or "unknown". */
void tess__text_machine(char text[128]);

#endif
