/* In place of header_layout.cpp where there is no C++ compiler. */
#include "header_layout.h"

const struct header_size *header_sizes_cxx(void)
{
    return NULL;
}

const char *header_status_text_cxx(enum tess_status status)
{
    (void)status;
    return NULL;
}
