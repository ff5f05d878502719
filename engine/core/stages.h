/*
 * Activations and gradients between the stages of a pipeline: their memory, and what is sent and
 * received when.
 *
 *     input     | chunk 0: slots + 1 buffers | chunk 1 ...   requested one ahead
 *     grad      | in 0 | in 1 | out 0 | out 1 |              in turn
 *
 * Activations go over one group and gradients over another, so that in each the messages between
 * two ranks come in the order of the forward, or backward, actions of both.
 */
#ifndef TESSERA_CORE_STAGES_H
#define TESSERA_CORE_STAGES_H

#include "core/schedule.h"

/* A micro-batch under way in a chunk. */
struct tess_flight {
    const void *input;      /* of the chunk's first unit */
    const int32_t *label;   /* of its rows, where the loss is computed */
    struct tess_event sent; /* of the last unit's output */
};

struct tess_stages {
    /* Borrowed. */
    struct tess_schedule *schedule;
    const struct tess_sizes *sizes;
    const struct tess_declare *declare;
    struct tess_memory *memory;
    enum tess_dtype dtype;

    struct tess_flight *flight; /* [chunk_count, slot_max] */
    struct tess_block input, grad[4];
    int64_t *input_begin;                 /* [chunk_count] bytes, of its buffers in `input` */
    struct tess_comm *forward, *backward; /* the stage axis, for activations and for gradients;
                                             NULL where there is one stage */
    struct tess_event *input_event;       /* [chunk_count, slot_max + 1] */
    struct tess_event grad_event[4];
    int32_t input_posted, grad_cursor;             /* actions before these have been requested */
    int32_t grad_posted, grad_received, grad_sent; /* in this step; parity chooses the buffer */
};

/* Reserve memory for the schedule. The borrowed fields are set. close accepts a zeroed one. */
enum tess_status tess__stages_reserve(struct tess_stages *stages);
/* The groups for messages. Collective over `axis`, the group of the stage axis. */
enum tess_status tess__stages_open(struct tess_stages *stages, struct tess_comm *axis);
void tess__stages_close(struct tess_stages *stages);

static inline struct tess_flight *tess__stages_flight(const struct tess_stages *stages,
                                                      int32_t chunk, int32_t slot)
{
    return &stages->flight[chunk * stages->schedule->slot_max + slot];
}

/* Elements of a chunk's input from the stage before, in a micro-batch. */
int64_t tess__stages_input_count(const struct tess_stages *stages, int32_t chunk);

/* A step begins; ends: buffers that were sent must have arrived before they are filled again. */
void tess__stages_begin(struct tess_stages *stages);
enum tess_status tess__stages_end(struct tess_stages *stages);

/* Request the activations of all actions up to number `upto`, and of the next one if its buffer is
 * free; the same for gradients. Nothing with one stage. */
enum tess_status tess__stages_post_inputs(struct tess_stages *stages, int32_t upto);
enum tess_status tess__stages_post_grads(struct tess_stages *stages, int32_t upto);

/* The input of a chunk for a micro-batch: its place, and waiting for it. */
void *tess__stages_input(const struct tess_stages *stages, int32_t chunk, int32_t micro);
enum tess_status tess__stages_wait_input(struct tess_stages *stages, int32_t chunk, int32_t micro);
/* Send the output of a chunk's last unit on. */
enum tess_status tess__stages_send_output(struct tess_stages *stages, int32_t chunk,
                                          const void *output, struct tess_flight *flight);

/* The gradient that arrives next, before and after waiting for it. */
enum tess_status tess__stages_wait_grad(struct tess_stages *stages, void **grad_out);
/* A buffer for the gradient of a chunk's input, when what it held has been sent; and sending it. */
enum tess_status tess__stages_take_grad(struct tess_stages *stages, void **grad_out);
enum tess_status tess__stages_send_grad(struct tess_stages *stages, int32_t chunk,
                                        const void *grad);

#endif
