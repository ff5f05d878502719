/* Which ranks have something in common, found in one pass: hosts of a job. */
#ifndef TESSERA_COMM_NET_NET_HOSTS_H
#define TESSERA_COMM_NET_NET_HOSTS_H

#include "tessera/status.h"

#include <stdint.h>

/* first_out[r]: the lowest rank with the key of rank r. Keys are hashes: equal ones are the same.
 */
enum tess_status tess__net_firsts(int32_t rank_count, const uint64_t *key, int32_t *first_out);

#endif
