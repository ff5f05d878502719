/* What communicators share of calls and groups; see call.h. */
#include "comm/call.h"

#include <stdio.h>

static const char *const call_collective_text[] = {
#define CALL_COLLECTIVE_TEXT(word, text) text,
    TESS_COLLECTIVE_LIST(CALL_COLLECTIVE_TEXT)
#undef CALL_COLLECTIVE_TEXT
};

const char *tess_collective_name(enum tess_collective collective)
{
    return (unsigned)collective < TESS_COLLECTIVE_COUNT ? call_collective_text[collective]
                                                        : "unknown";
}

void tess__call_name(const struct tess_comm_call *call, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s%s%s", tess_collective_name(call->collective),
             call->site[0] != '\0' ? " at " : "", call->site);
}

void tess__call_describe(const struct tess_comm_call *call, char *text, size_t text_bytes)
{
    static const char *const reduce_text[] = {" (sum)", " (max)", " (min)"};
    enum tess_collective kind = call->collective;
    bool sums = kind == TESS_COLLECTIVE_ALL_REDUCE || kind == TESS_COLLECTIVE_REDUCE_SCATTER ||
                kind == TESS_COLLECTIVE_REDUCE;
    char what[64] = "", with[40] = "";
    if (kind != TESS_COLLECTIVE_BARRIER)
        snprintf(what, sizeof(what), " of %zu %s%s%s", call->count, tess_dtype_name(call->dtype),
                 sums ? reduce_text[(unsigned)call->reduce % 3] : "",
                 call->device ? " in device memory" : "");
    if (kind == TESS_COLLECTIVE_BROADCAST || kind == TESS_COLLECTIVE_REDUCE)
        snprintf(with, sizeof(with), " with root %d", (int)call->peer);
    snprintf(text, text_bytes, "%s%s%s%s%s", tess_collective_name(kind), what, with,
             call->site[0] != '\0' ? " at " : "", call->site);
}

void tess__call_differs(uint64_t number, int32_t rank, const char *own, int32_t peer,
                        const char *theirs, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes,
             "call %llu of the group differs between ranks: rank %d called %s, rank %d called %s; "
             "every rank must make the same calls in the same order",
             (unsigned long long)number, (int)rank, own, (int)peer, theirs);
}

void tess__message_differs(uint64_t number, const struct tess__message_end *send,
                           const struct tess__message_end *recv, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes,
             "message %llu from rank %d to rank %d differs: rank %d sends %llu %s%s, rank %d "
             "receives %llu %s%s; both sides must give the same count, dtype and kind of memory",
             (unsigned long long)number, (int)send->rank, (int)recv->rank, (int)send->rank,
             (unsigned long long)send->count, tess_dtype_name((enum tess_dtype)send->dtype),
             send->device ? " in device memory" : "", (int)recv->rank,
             (unsigned long long)recv->count, tess_dtype_name((enum tess_dtype)recv->dtype),
             recv->device ? " in device memory" : "");
}
