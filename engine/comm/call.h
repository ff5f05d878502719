/* Calls in words, for the messages of this room. */
#ifndef TESSERA_COMM_CALL_H
#define TESSERA_COMM_CALL_H

#include "tessera/comm.h"

/* "all_reduce at fit.c:87"; without a site "all_reduce". */
void tess__call_name(const struct tess_comm_call *call, char *text, size_t text_bytes);

/* "reduce of 4096 f32 (sum) with root 2 at fit.c:87". */
void tess__call_describe(const struct tess_comm_call *call, char *text, size_t text_bytes);

#endif
