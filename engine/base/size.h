/* Sizes as people write them: "512MiB", "2 GB". */
#ifndef TESSERA_BASE_SIZE_H
#define TESSERA_BASE_SIZE_H

#include "tessera/status.h"

/* Bytes, at least 1 and below 2^60. TESS_ERR_USAGE names the option, without its dashes. */
enum tess_status tess_size_parse(const char *option, const char *text, double *bytes_out);

#endif
