/* The public headers as a C++ program sees them. Uses nothing of the C++ library. */
#include "header_layout.h"

static const struct header_size header_size_table[] = HEADER_SIZES;

const struct header_size *header_sizes_cxx(void)
{
    return header_size_table;
}

const char *header_status_text_cxx(enum tess_status status)
{
    return tess_status_text(status);
}
