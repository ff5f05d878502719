/*
 * The flight record: what each rank does and its last 256 calls, in one file per rank below the
 * run's folder (flight_file.h). It outlives the ranks, so a run can be asked what it does or did
 * (tessera status). Files are made and mapped before the ranks start. A call costs two looks at the
 * clock and some stores: no lock, no allocation, no system call.
 */
#ifndef TESSERA_COMM_FLIGHT_H
#define TESSERA_COMM_FLIGHT_H

#include "comm/world.h"

struct tess_flight;

struct tess_flight_about {
    int32_t rank_count;
    int32_t first, end; /* ranks whose files are made here: [first, end) */
    const char *const *unit_name;
    int32_t unit_count;
};

/* ---- the launcher ---------------------------------------------------------------------------- */

/*
 * Make RUN/flight and the files of the ranks, in the place of those of an earlier run. Before the
 * ranks start, which inherit the mapping. NULL after a warning: a run goes on without its record.
 */
struct tess_flight *tess_flight_open(const char *run, const struct tess_flight_about *about);
/* The files stay. NULL is allowed; after the ranks have ended. */
void tess_flight_close(struct tess_flight *flight);

/* "RUN/flight/rank-00007"; false where it does not fit. */
bool tess_flight_path(const char *run, int32_t rank, char *path, size_t path_bytes);

/* From here on the boards of these ranks are in the files. After tess_world_open. NULL is allowed.
 */
void tess_flight_boards(struct tess_flight *flight, struct tess_world *world);

/* ---- the rank; NULL: nothing is recorded ----------------------------------------------------- */

/* Record the calls of the communicator of all ranks, and of groups that are split from it later.
 * The observer that it has is called as well. */
void tess_flight_watch(struct tess_flight *flight, struct tess_comm *comm);
/* The rank has ended by itself. */
void tess_flight_end(struct tess_flight *flight, int32_t rank, enum tess_status status);

/* ---- of any communicator; without effect where it is not recorded ---------------------------- */

/* The group is along this axis of the mesh, and so are those that are split from it later. */
void tess_flight_axis(const struct tess_comm *comm, enum tess_axis axis);
/* `child` has been split from `parent`. */
void tess__flight_split(const struct tess_comm *parent, const struct tess_comm *child,
                        int32_t color);

#endif
