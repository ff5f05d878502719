/* Between the files of the crowd: who waits for what, and what happens when. */
#ifndef TESSERA_TESTS_JOB_CROWD_ROOM_H
#define TESSERA_TESTS_JOB_CROWD_ROOM_H

#include "job/crowd.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <ucontext.h>

#define CROWD_START_S 1000.0 /* of all clocks */

enum kind { KIND_FREE, KIND_PLAIN, KIND_LISTENER, KIND_STREAM, KIND_EPOLL, KIND_BELL };

struct watched {
    int fd;
    struct epoll_event event;
};

struct endpoint {
    enum kind kind;
    uint32_t life; /* number of its use: events for an earlier one are dropped */
    int32_t owner;
    in_addr_t address; /* of a listener, network order */
    uint16_t port;
    int next;                               /* listener of the same host; -1 */
    int *come, come_count, come_room, held; /* connections; held: also those under way */
    int peer;                               /* of a stream; -1: none, or closed */
    bool connecting, ended;                 /* ended: nothing comes any more */
    int error, tries;
    char *bytes; /* [room]: `used` from `at` on were not read */
    size_t at, used, room;
    size_t under_way; /* that were sent and not read */
    struct watched *watch;
    int watch_count, watch_room;
};

enum happens {
    HAPPENS_WAKE,
    HAPPENS_BYTES,
    HAPPENS_END,
    HAPPENS_CALL,
    HAPPENS_ANSWER,
    HAPPENS_ARRIVAL
};

struct event {
    double at_s;
    uint64_t number; /* order of those at the same time */
    enum happens what;
    int32_t who;   /* a member, or an endpoint */
    uint64_t life; /* of it */
    int other;     /* listener of an arrival, endpoint that called; error of an answer */
    struct sockaddr_in to;
    char *bytes;
    size_t count;
};

struct member {
    ucontext_t context;
    char *stack;
    bool over, waits;
    double now_s, sent_s, came_s; /* its clock; until when its lines are busy */
    double processor_s;
    uint64_t turn; /* of the event that wakes it */
    size_t live;
    int stage, connections;
    struct crowd_stage counts;
};

struct crowd {
    struct crowd_setup setup;
    void (*body)(void *context, int32_t p);
    void *context;
    struct crowd_stage *stage_out;
    struct member *member;
    int32_t current; /* -1: none runs */
    bool inside;     /* in this file: memory is not counted */
    double clock_s, processor_s;
    ucontext_t main;
    struct event *heap;
    size_t events, room;
    uint64_t number;
    struct endpoint **end;
    int end_count, free_count;
    int *free_end;
    int *listeners; /* [hosts] the first of each */
    uint16_t *port; /* [hosts] the last that was given */
    size_t stack_most;
};

extern struct crowd crowd;

/* From the code that runs into that of the crowd; NULL: it is no participant's. Then back. */
struct member *crowd_enter(void);
void crowd_leave(const struct member *member);
/* Run others until at_s, where `waits` until something comes for this one. */
void crowd_pause(struct member *member, double at_s, bool waits);
/* Before it looks whether something has come: all that has. */
void crowd_catch_up(struct member *member);
/* Something has come for a member that may wait for it. */
void crowd_stir(int32_t who, double at_s);
void crowd_post(struct event event);
in_addr_t crowd_address_of(int32_t p);
/* Room for one more than `count`. */
void *crowd_grown(void *memory, int count, int *room, size_t each);

/* crowd_memory.c: zeros, of which only pages that are touched take memory; NULL, with a word, where
 * there are no such addresses. */
void *crowd_reserve(size_t bytes);
/* Once: where participants' large blocks lie. */
bool crowd_memory_open(size_t bytes);

/* crowd_socket.c: an event of an endpoint; all of them are closed. */
void crowd_happen(const struct event *event);
void crowd_close_all(void);

#endif
