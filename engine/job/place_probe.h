/*
 * Measuring the network between the hosts of a job, before its ranks start: one launcher of each
 * host sends to others, one to one, in rounds that topology/formats/measured.h asks for. Takes 1 to
 * 2 seconds, and little of the network: each round sends for as long as buffers need to empty a few
 * times over.
 */
#ifndef TESSERA_JOB_PLACE_PROBE_H
#define TESSERA_JOB_PLACE_PROBE_H

#include "job/place.h"
#include "topology/formats/measured.h"

struct tess__network_found {
    struct tess_measured measured;
    double seconds;
    char why[160]; /* why nothing could be measured; measured is an even network then */
};

/*
 * Collective over all launchers; what was found is known to process 0 alone. Hosts that cannot
 * reach each other fail nothing: that is `why`. Fails where the launchers do not reach each other.
 */
enum tess_status tess__place_probe(const struct tess_boot *boot, const struct tess__processes *job,
                                   struct tess__network_found *found_out);

#endif
