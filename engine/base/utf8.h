/* UTF-8, as RFC 3629 has it. */
#ifndef TESSERA_BASE_UTF8_H
#define TESSERA_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the sequence at `text` (1 .. 4), 0 when it is not one; its code point. */
int tess__utf8_length(const char *text, size_t left, uint32_t *code_out);

#endif
