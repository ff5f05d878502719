/*
 * Inside the modules libtessera_mpi_*.so: what their files share. The one header that includes
 * MPI's; the same sources are compiled once for each MPI library, whose types and constants differ.
 */
#ifndef TESSERA_COMM_MPI_COMM_MPI_ROOM_H
#define TESSERA_COMM_MPI_COMM_MPI_ROOM_H

#include "comm/net/net_path.h"
#include "tessera/transport.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#define MPI_ROOM_REASON_BYTES 252
/* MPI counts in int; a longer message is several, which stay in order. */
#define MPI_ROOM_PART_BYTES ((size_t)1 << 30)
#define MPI_ROOM_PARTS      (2 * TESS_TRANSPORT_REQUESTS)

/* What goes over the control communicator: why all ranks are to stop. */
struct mpi_room_word {
    int32_t rank;
    char reason[MPI_ROOM_REASON_BYTES];
};

/* A request of the transport: one MPI request or, if it is long, several. */
struct mpi_room_slot {
    int32_t peer; /* -1: of a collective */
    uint32_t left;
    bool sends;
    /* Of a collective that the library could not give its target: copied there at the end. The
     * memory is the slot's for good. */
    void *target, *staged;
    size_t staged_bytes, staged_room;
};

#define MPI_ROOM_NAME_BYTES 128

enum mpi_room_abort { MPI_ROOM_GOES_ON, MPI_ROOM_TO_NOTIFY, MPI_ROOM_ABORTED };

struct mpi_room {
    struct tess_transport head;
    MPI_Comm comm;    /* ranks numbered as ours */
    MPI_Comm control; /* the same for words */
    int32_t *host;    /* [head.rank_count] */
    char *names;      /* of the hosts, one after the other */
    double timeout_s;
    pthread_t thread; /* that opened it, and alone may call MPI */

    struct mpi_room_slot slot[TESS_TRANSPORT_REQUESTS];
    uint32_t free_slot[TESS_TRANSPORT_REQUESTS], free_count;
    /* MPI's requests that are under way, without holes; [0] is the receive of a word. */
    MPI_Request request[1 + MPI_ROOM_PARTS];
    uint32_t owner[1 + MPI_ROOM_PARTS];
    int active, index[1 + MPI_ROOM_PARTS];
    MPI_Status status[1 + MPI_ROOM_PARTS];
    bool news;       /* something is done since the last wait */
    double moved_s;  /* since when nothing is */
    double looked_s; /* when a wait last looked */

    struct mpi_room_word received; /* the buffer of request[0] */
    pthread_mutex_t lock;          /* of `word` */
    struct mpi_room_word word;     /* why the ranks stop */
    _Atomic int aborted;           /* enum mpi_room_abort */
    MPI_Request *notice;           /* [head.rank_count] */
    bool broken;                   /* an error of MPI, after which nothing is finalised */
    char reason[640];              /* head.reason */

    MPI_Comm *group; /* of the native collectives; MPI_COMM_NULL: free */
    int32_t group_count;
};

extern const struct tess_transport_native tess__mpi_native;

/* Calls of tess_transport_ops (transport.h). */
enum tess_status tess__mpi_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                const void *data, size_t bytes, uint32_t *request_out);
enum tess_status tess__mpi_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                void *data, size_t bytes, uint32_t *request_out);
enum tess_status tess__mpi_test(struct tess_transport *transport, uint32_t request, bool *done_out);
enum tess_status tess__mpi_wait(struct tess_transport *transport, double timeout_s);
void tess__mpi_abort(struct tess_transport *transport, const char *reason);
const char *tess__mpi_host_name(const struct tess_transport *transport, int32_t rank);

/* What MPI's error code means becomes the reason. TESS_ERR_COMM; peer -1: no particular rank. */
enum tess_status tess__mpi_fail(struct mpi_room *room, int error, const char *what, int32_t peer);

/* A request with `parts` MPI requests to be added, TESS_ERR_INTERNAL when there are too many. */
enum tess_status tess__mpi_slot(struct mpi_room *room, uint32_t parts, uint32_t *slot_out);
void tess__mpi_slot_add(struct mpi_room *room, uint32_t slot, MPI_Request request);

/* Let MPI work, and see what is done. */
enum tess_status tess__mpi_progress(struct mpi_room *room);

/* Post the receive of a word; take and pass on words. Both in the thread of MPI. */
enum tess_status tess__mpi_listen(struct mpi_room *room);
enum tess_status tess__mpi_check(struct mpi_room *room);

#endif
