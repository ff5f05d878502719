/* What the files of the made-up device's runtime share among themselves; madeup.h is what the
 * stand-ins for the libraries see. */
#ifndef TESTS_DEVICE_MADEUP_RUNTIME_H
#define TESTS_DEVICE_MADEUP_RUNTIME_H

#include "device/madeup/madeup.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device.c ------------------------------------------------------------------------------- */

struct madeup_settings {
    int devices, places;
    size_t memory;   /* bytes of each */
    double late_s;   /* see MADEUP_LATE */
    int connections; /* hardware queues of each */
    bool lazy;       /* a kernel is loaded at its first launch */
};

const struct madeup_settings *madeup_settings(void);

/*
 * Every function of the runtime begins with enter and ends with leave, which keeps the error as the
 * thread's last one. enter: the error that it must return at once (injected, of a broken device, of
 * a forked process), noted already. `usual` is what an injected failure is by default.
 */
cudaError_t madeup_enter(const char *function, cudaError_t usual);
cudaError_t madeup_leave(cudaError_t error);

/* The error that a device keeps for ever, or cudaSuccess. */
cudaError_t madeup_broken(int device);
void madeup_break(int device, cudaError_t error);

/* May work of `device` use memory of `peer`? */
bool madeup_reaches(int device, int peer);

/* Is this the n-th piece of work that MADEUP_STALL names? Of the calling thread's device. */
bool madeup_stalls(const char *work);
/* What MADEUP_SLOW adds to work of this name on the calling thread's device, in s. */
double madeup_delay_s(const char *work);

/* For MADEUP_COUNT: a piece of work runs; print how many did. */
void madeup_count(const char *work);
void madeup_report(void);

/* ---- queue.c -------------------------------------------------------------------------------- */

/* A point of a queue: reached when all work before it has ended. Shared by those that wait. */
struct madeup_mark;
struct madeup_queue;

/* A piece of work, or a wait, or a point. Where `owner` is given, it is released in place of the
 * work's context. */
struct madeup_item {
    struct madeup_work work;
    struct madeup_mark *wait;  /* kept until it is done */
    struct madeup_mark *reach; /* kept until it is done */
    void (*release)(void *owner);
    void *owner;
};

struct madeup_queue *madeup_queue_of(int device, int index);
int madeup_queue_device(const struct madeup_queue *queue);

/* Appended; the number by which it can be waited for. All fields NULL but one or two. */
uint64_t madeup_put(struct madeup_queue *queue, const struct madeup_item *item);
uint64_t madeup_put_wait(struct madeup_queue *queue, struct madeup_mark *mark);
/* A new mark at the end of the queue, which the caller drops. */
struct madeup_mark *madeup_put_mark(struct madeup_queue *queue);

/* A mark that is put in a queue by madeup_put later; until then nobody may wait for it. */
struct madeup_mark *madeup_mark_new(struct madeup_queue *queue);
struct madeup_mark *madeup_mark_keep(struct madeup_mark *mark); /* NULL: NULL */
void madeup_mark_drop(struct madeup_mark *mark);
bool madeup_mark_reached(struct madeup_mark *mark, double *at_s);
void madeup_mark_await(struct madeup_mark *mark);
void madeup_mark_rest(struct madeup_mark *mark, int most_us); /* as madeup_queue_rest */

bool madeup_queue_done(struct madeup_queue *queue, uint64_t number);
void madeup_queue_await(struct madeup_queue *queue, uint64_t number);
/* Until the item has ended, or so long; nothing that is late is hurried. */
void madeup_queue_rest(struct madeup_queue *queue, uint64_t number, int most_us);

/* ---- stream.c, graph.c ---------------------------------------------------------------------- */

struct madeup_record; /* a stream capture in progress */
struct madeup_points; /* nodes of one that others come after */

struct CUstream_st {
    uint32_t magic;
    int device, priority;
    struct madeup_queue *queue;
    uint64_t last; /* the number of its latest item */
    struct madeup_record *record;
    struct madeup_points *tail; /* what its next node comes after; with a record */
};

struct CUevent_st {
    uint32_t magic;
    int device;
    bool timed;
    struct madeup_mark *mark;     /* NULL: never recorded */
    struct madeup_points *points; /* recorded in a stream that was being recorded */
};

/* The stream, checked; ends the program where it is none. */
struct CUstream_st *madeup_stream(cudaStream_t stream);
/* The event is recorded: outside of a graph, or in one. It takes what it is given. */
void madeup_event_set(cudaEvent_t event, struct madeup_mark *mark);
void madeup_event_set_points(cudaEvent_t event, struct madeup_points *points);
struct madeup_mark *madeup_event_mark(cudaEvent_t event); /* kept for the caller, may be NULL */
bool madeup_event_in_record(cudaEvent_t event);

/* Of streams that are being recorded; each returns the error that CUDA gives. */
cudaError_t madeup_record_work(cudaStream_t stream, const struct madeup_work *work);
cudaError_t madeup_record_event(cudaStream_t stream, cudaEvent_t event, bool external);
cudaError_t madeup_record_wait(cudaStream_t stream, cudaEvent_t event, bool external);
/* A call that must not be made of a recorded stream or event: the record is of no use any more. */
cudaError_t madeup_record_spoil(cudaStream_t stream);
cudaError_t madeup_record_spoil_event(cudaEvent_t event);
cudaError_t madeup_record_spoil_device(int device);

/* ---- memory.c ------------------------------------------------------------------------------- */

/* As madeup_check_range, for copies, which may be between any two devices. */
void madeup_check_copy(const char *work, const void *memory, size_t bytes);
/* The program ends and all queues have stopped: its table is freed, memory stays. */
void madeup_memory_end(void);

#ifdef __cplusplus
}
#endif
#endif
