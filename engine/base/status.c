/* Status codes as text and as exit status. What went wrong in detail is in the log, not here. */
#include "tessera/status.h"

const char *tess_status_text(enum tess_status status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        TESS_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

int tess_status_exit_code(enum tess_status status)
{
    switch (status) {
    case TESS_OK:
        return 0;
    case TESS_ERR_USAGE:
        return 2;
    case TESS_ERR_INTERRUPTED:
        return 130; /* 128 + SIGINT, as shells report it */
    default:
        return 1;
    }
}
