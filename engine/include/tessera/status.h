/* Status codes. What went wrong in detail was logged where the error was detected. */
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

#include "tessera/linkage.h"

TESS_BEGIN_DECLS

/* X(name, value, text). The one list of codes; tess_status_text() is generated from it. */
#define TESS_STATUS_LIST(X)                                                                        \
    X(TESS_OK, 0, "ok")                                                                            \
    X(TESS_ERR_USAGE, -1, "bad option or configuration")                                           \
    X(TESS_ERR_UNSUPPORTED, -2, "not supported by this part")                                      \
    X(TESS_ERR_NOT_FOUND, -3, "not found")                                                         \
    X(TESS_ERR_IO, -4, "input or output failed")                                                   \
    X(TESS_ERR_DATA, -5, "malformed data")                                                         \
    X(TESS_ERR_MEMORY, -6, "out of memory")                                                        \
    X(TESS_ERR_COMM, -7, "communication failed")                                                   \
    X(TESS_ERR_TIMEOUT, -8, "time limit passed")                                                   \
    X(TESS_ERR_ABORTED, -9, "another rank failed")                                                 \
    X(TESS_ERR_INTERRUPTED, -10, "interrupted")                                                    \
    X(TESS_ERR_NUMERIC, -11, "not a number or infinite")                                           \
    X(TESS_ERR_INTERNAL, -12, "internal error")                                                    \
    X(TESS_ERR_DEVICE, -13, "the device failed")

enum tess_status {
#define TESS_STATUS_ENUM(name, value, text) name = value,
    TESS_STATUS_LIST(TESS_STATUS_ENUM)
#undef TESS_STATUS_ENUM
};

/* Text of a code, never NULL. */
const char *tess_status_text(enum tess_status status);

/* Exit status for a program that ends with `status`: 0, 2 (usage), 130 (interrupted) or 1. */
int tess_status_exit_code(enum tess_status status);

TESS_END_DECLS
#endif
