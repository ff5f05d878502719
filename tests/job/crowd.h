/*
 * Many processes in this one: each is a context of its own (ucontext), which runs the code of a
 * process until that waits. Sockets are queues in memory and time is virtual, so that the code is
 * the engine's own and 16,384 of them meet in seconds. The functions of the C library that this
 * code calls are replaced by those of crowd.c, for participants alone.
 *
 * The model: a connection takes a round trip; a message arrives the latency after its sender has
 * written it; a process sends and gets so many bytes a second at most; a system call takes
 * CROWD_CALL_S. A listener holds CROWD_BACKLOG connections that were not accepted; a call that
 * finds no room is repeated after 1, 2, 4 s, as Linux does.
 */
#ifndef TESSERA_TESTS_JOB_CROWD_H
#define TESSERA_TESTS_JOB_CROWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CROWD_CALL_S  2e-6
#define CROWD_BACKLOG 4096
#define CROWD_STAGES  8

struct crowd_setup {
    int32_t count, each; /* participants, and how many of them a host has */
    double latency_s, bytes_per_s;
    bool processor; /* what the code takes of this machine's processor counts as time, too */
};

/* Of one participant from one mark to the next. */
struct crowd_stage {
    double at_s;               /* when it ended, since the beginning */
    double processor_s;        /* of this machine */
    int64_t messages, bytes;   /* that were sent and that came */
    int32_t connections;       /* that were open at a time */
    size_t memory, memory_end; /* allocated at a time; at the end */
};

/* All of them, until every body has returned. stage_out [CROWD_STAGES][count]. Fails the test where
 * they wait for each other. */
void crowd_run(const struct crowd_setup *setup, void (*body)(void *context, int32_t p),
               void *context, struct crowd_stage *stage_out);

/* For a body: the next stage begins. */
void crowd_mark(void);
/* "10.0.0.1": where others reach the host of a participant. */
void crowd_address(int32_t p, char text[16]);
/* Bytes of stack that a participant has used at most. */
size_t crowd_stack(void);

#endif
