/* Rates between ranks: every pair alone, and all at once, beside the model of a machine. */
#ifndef TESSERA_CLI_TOPO_MEASURE_H
#define TESSERA_CLI_TOPO_MEASURE_H

#include "config/config_comm.h"
#include "job/open_comm.h"
#include "topology/draw/topo.h"

#define TESS__MEASURE_REPEATS 5
#define TESS__MEASURE_BYTES   ((size_t)4 << 20) /* of a message, at most */

/* Of two ranks that send to each other at the same time. GB/s in each direction; 0: not measured.
 */
struct tess__measured_pair {
    double alone_gbs, together_gbs, latency_us;
};

struct tess__measure {
    int32_t rank_count;
    struct tess__open_comm how;
    struct tess_options *options; /* defaults of the communicators */
    struct tess_comm_options comm;
    struct tess__peers *peers; /* NULL: ranks are started here; how.peers is the same */
    int32_t slot, slot_count;  /* with peers: this rank's place on its host; 0 of 0: unknown */
    struct tess__measured_pair *pair; /* [rank_count * rank_count] both ways the same */
};

/* For qsort, of doubles. */
int tess__measure_compare(const void *a, const void *b);

/* topo: the model, with as many devices as there are ranks; NULL: none. */
enum tess_status tess__measure_print(const struct tess__measure *measure,
                                     const struct tess__topo *topo, FILE *out);

#endif
