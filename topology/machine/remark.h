/* What is to be said about a topology: what its reader had to assume, and what is wrong with the
 * machine or missing in its source. */
#ifndef TOPOLOGY_REMARK_H
#define TOPOLOGY_REMARK_H

#include "topology/machine/topology.h"

#define TESS__REMARK_TEXT 400

/* NVLinks that a device has, and as many as it should have; of 0: nothing is known of it. */
struct tess__nvlinks {
    int32_t has, of;
};

/*
 * [node_count], of devices; malloc'd, the caller's; NULL without memory. A device should have as
 * many as another one of its kind at the same NVSwitches has; or, where all lack one or two and
 * where there is no switch, as many as its kind has. part: devices were left out, and links to
 * them.
 */
struct tess__nvlinks *tess__nvlinks_open(const struct tess_topology *topology, bool part);
static inline bool tess__nvlinks_dead(const struct tess__nvlinks *links)
{
    return links->has < links->of;
}

/* Number `at`, from 0 on, of what was assumed; false: there are no more. Half a sentence: "sm 80".
 */
bool tess__remark_guess(const struct tess_topology *topology, int32_t at,
                        char text[TESS__REMARK_TEXT]);
/* The same of warnings, sentences. */
bool tess__remark_warning(const struct tess_topology *topology, const struct tess__nvlinks *nvlinks,
                          int32_t at, char text[TESS__REMARK_TEXT]);
/* Logs the warnings; `name` is for the messages. */
void tess_topology_warn(const struct tess_topology *topology, const char *name);

#endif
