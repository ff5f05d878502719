/* The table of net_hosts.h. */
#include "comm/net/net_hosts.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <stdlib.h>

enum tess_status tess__net_firsts(int32_t rank_count, const uint64_t *key, int32_t *first_out)
{
    size_t places = 2;

    while (places < (size_t)rank_count * 2)
        places *= 2;
    int32_t *place = malloc(places * sizeof(*place));
    if (place == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to number the hosts of %d ranks", (int)rank_count);
    for (size_t i = 0; i < places; i++)
        place[i] = -1;
    for (int32_t r = 0; r < rank_count; r++) {
        size_t at = (size_t)tess_hash_mix(key[r]) & (places - 1);
        while (place[at] >= 0 && key[place[at]] != key[r])
            at = (at + 1) & (places - 1);
        place[at] = place[at] >= 0 ? place[at] : r;
        first_out[r] = place[at];
    }
    free(place);
    return TESS_OK;
}
