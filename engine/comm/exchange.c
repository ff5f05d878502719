/* What the ranks of a group exchange about their calls, which the user's counters leave out. */
#include "comm/call.h"
#include "tessera/check.h"

enum tess_status tess__call_exchange(struct tess_comm *comm, const void *mine, size_t bytes,
                                     void *all)
{
    /* Taken back, not restored: calls of the user may go on meanwhile. */
    const uint64_t exchanged = (uint64_t)(comm->rank_count - 1) * bytes;
    TESS_TRY(tess_comm_all_gather(comm, mine, all, bytes, TESS_U8, NULL));
    comm->stats.sent_bytes -= exchanged;
    comm->stats.received_bytes -= exchanged;
    return TESS_OK;
}
