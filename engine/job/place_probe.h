/* Measuring the network between hosts: what a process plays (place_probe.c), and what process 0
 * reads of it (place_probe_lead.c). */
#ifndef TESSERA_JOB_PLACE_PROBE_H
#define TESSERA_JOB_PLACE_PROBE_H

#include "job/place.h"

#define TESS__PROBE_WARM 0.5 /* of a round, not counted */

/* From process 0 to each, until PLACED is the last word. */
enum { TESS__TURN_PLACED, TESS__TURN_LISTEN, TESS__TURN_ROUND };
struct tess__turn {
    int32_t kind;
    int32_t status, rank; /* PLACED: of the decision; of the process that gets it */
    int32_t rack_hosts;   /* PLACED: of struct tess__placement */
    /* ROUND: a host, -1 none; of two that have not met the one with the higher number connects, to
     * this address; what a socket may hold, and for how long to send. */
    int32_t partner, hold, port;
    double seconds;
    uint64_t word[2]; /* random; with the job's secret that of these connections */
    char address[TESS_BOOT_ADDRESS_BYTES];
};
/* Bytes of a turn to a process that does not measure. */
#define TESS__TURN_SHORT offsetof(struct tess__turn, partner)

/* Of a process that measures, after LISTEN; cut behind its text. */
struct tess__probe_place {
    int32_t port; /* 0: it cannot listen */
    char address[TESS_BOOT_ADDRESS_BYTES];
};

/* After ROUND; cut behind its text. */
struct tess__probe_result {
    double gbs, latency_us;
    int32_t not_reached; /* why: no connection came, else this process does not reach the other */
    char why[160];       /* "": all went well */
};

struct tess__probe;
/* `host`: that the process measures for, -1: it only listens to process 0. */
enum tess_status tess__probe_open(const struct tess__meeting *meeting, int32_t host,
                                  int32_t host_count, struct tess__probe **probe_out);
/* What a turn asks for, and its result to process 0, which has them all in *parts_out. */
enum tess_status tess__probe_play(struct tess__probe *probe, const struct tess__turn *turn,
                                  struct tess_boot_parts *parts_out);
void tess__probe_close(struct tess__probe *probe); /* NULL is allowed */

#endif
