/* The table of net_hosts.h, and which ranks of a group are on one host (net_path.h). */
#include "comm/net/net_hosts.h"

#include "base/hash.h"
#include "comm/net/net_path.h"
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

struct net_shape tess__net_shape(int32_t rank, int32_t rank_count, const int32_t *host)
{
    struct net_shape shape = {rank, rank_count, 1, rank_count, NULL};
    int32_t places = 1;
    bool ordered = true;

    while (places < rank_count && host[places] == host[0])
        places++;
    if (rank_count % places != 0)
        return shape;
    for (int32_t r = 0; r < rank_count; r++) {
        if (host[r] != host[r / places * places])
            return shape;
    }
    /* Hosts that come in the order of their numbers come once each. */
    for (int32_t r = places; r < rank_count; r += places)
        ordered = ordered && host[r] > host[r - places];
    for (int32_t r = 0; r < rank_count && !ordered; r += places)
        for (int32_t q = 0; q < r; q += places)
            if (host[q] == host[r])
                return shape;
    shape.hosts = rank_count / places;
    shape.places = places;
    return shape;
}
