/*
 * The four macros that hide control flow; there are no others.
 *
 *   TESS_TRY(call)                 return the status if the call failed
 *   TESS_TRY_GOTO(status, l, call) store it and jump to the clean-up label
 *   TESS_KEEP(status, call)        go on, keep the first error (teardown)
 *   TESS_FAIL(code, fmt, ...)      log the message and return the code
 */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "tessera/log.h"
#include "tessera/status.h"

#define TESS_TRY(call)                                                                             \
    do {                                                                                           \
        enum tess_status tess_try_status_ = (call);                                                \
        if (tess_try_status_ != TESS_OK)                                                           \
            return tess_try_status_;                                                               \
    } while (0)

#define TESS_TRY_GOTO(status, label, call)                                                         \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) != TESS_OK)                                                                   \
            goto label;                                                                            \
    } while (0)

#define TESS_KEEP(status, call)                                                                    \
    do {                                                                                           \
        enum tess_status tess_keep_status_ = (call);                                               \
        if ((status) == TESS_OK)                                                                   \
            (status) = tess_keep_status_;                                                          \
    } while (0)

/* Returns the code itself, not tess_fail's result: so the compiler sees that it is not TESS_OK. */
#define TESS_FAIL(code, ...)                                                                       \
    do {                                                                                           \
        (void)tess_fail((code), __VA_ARGS__);                                                      \
        return (code);                                                                             \
    } while (0)

#endif
