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

/* Racks of a group on hosts in a row, by one rank of each host; 0: they are not equal. */
static int32_t hosts_of_rack(const int32_t *host, int32_t hosts, int32_t places, int32_t rack_hosts)
{
    int32_t size = 1;

    while (size < hosts && host[size * places] / rack_hosts == host[0] / rack_hosts)
        size++;
    for (int32_t h = 0; h < hosts && hosts % size == 0; h++) {
        const int32_t rack = host[h * places] / rack_hosts;
        if (rack != host[h / size * size * places] / rack_hosts ||
            (h >= size && rack == host[(h / size - 1) * size * places] / rack_hosts))
            return 0;
    }
    return hosts % size == 0 ? size : 0;
}

struct net_shape tess__net_shape(int32_t rank, int32_t rank_count, const int32_t *host,
                                 int32_t rack_hosts)
{
    struct net_shape shape = {rank, rank_count, 1, rank_count, 0, NULL};
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
    if (rack_hosts > 0)
        shape.rack_hosts = hosts_of_rack(host, shape.hosts, places, rack_hosts);
    return shape;
}
