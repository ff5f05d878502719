/* Marks: what calls on device memory took, by fences; see marks.c. Private to this room. */
#ifndef TESSERA_COMM_MARKS_H
#define TESSERA_COMM_MARKS_H

#include "tessera/comm.h"

struct comm_marks;
struct comm_mark;

/* Marks of `comm`, which groups split from it share. */
enum tess_status tess__marks_open(struct tess_comm *comm, struct tess_queue *queue,
                                  struct comm_marks **marks_out);

/* While paused no call is marked. */
void tess__marks_pause(struct comm_marks *marks, bool on);

/* A call is about to be made. Where nothing is kept it is counted by the host's clock. */
enum tess_status tess__marks_begin(struct tess_comm *comm);
/* The call failed. */
void tess__marks_cancel(struct comm_marks *marks);
/* Does the call that is being made, or a ticket, have a mark? The first gives it the ticket, the
 * second takes it as complete. marks may be NULL. */
bool tess__marks_called(struct tess_comm *comm, uint64_t ticket);
bool tess__marks_completed(struct tess_comm *comm, uint64_t ticket);
/* The mark of a call that has not been waited for; NULL: none. */
struct comm_mark *tess__marks_find(const struct tess_comm *comm, uint64_t ticket);
/* Around the wait, on the queue of the kernels. */
enum tess_status tess__marks_wait(struct comm_marks *marks, struct comm_mark *mark);
enum tess_status tess__marks_waited(struct comm_marks *marks, struct comm_mark *mark);

/* The group that this one descends from. */
static inline struct tess_comm *tess__comm_root(struct tess_comm *comm)
{
    return comm->root != NULL ? comm->root : comm;
}
/* Count exposed waiting. */
static inline void tess__comm_waited(struct tess_comm *comm, int32_t phase, double wait_s)
{
    comm->stats.wait_s += wait_s;
    tess__comm_root(comm)->phase_wait_s[phase] += wait_s;
}
/* Count what has come to an end. */
enum tess_status tess__marks_settle(struct comm_marks *marks);
/* The group is closed, and so are the marks where they were opened for it. NULL is allowed. */
void tess__marks_leave(struct comm_marks *marks, const struct tess_comm *comm);

#endif
