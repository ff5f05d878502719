/* A communicator that only writes down what it is asked and what was waited for. It moves nothing.
 */
#ifndef TESTS_STRATEGIES_NOTE_H
#define TESTS_STRATEGIES_NOTE_H

#include "tessera/comm.h"

#define NOTE_MAX 256

struct note_comm {
    struct tess_comm comm;
    struct tess_comm_call call[NOTE_MAX]; /* in order */
    bool done[NOTE_MAX];                  /* waited for */
    int32_t count;
};

void note_open(struct note_comm *note, int32_t rank, int32_t rank_count);

#endif
