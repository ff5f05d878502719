/* What the files of the communicator test share. */
#ifndef TESSERA_TESTS_COMM_CASES_H
#define TESSERA_TESTS_COMM_CASES_H

#include "harness/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The backend and the number of ranks, from the command line; what every case is run for. */
struct case_setup {
    bool self;
    bool debug; /* on the comparing communicator, over that backend */
    /* Ranks compute on the queue of guard_queue, and calls are on device memory: on the kernels'
     * own queue, which has always done what it was given, or on a lazy one in its stead. */
    bool device, late;
    const struct tess_module *module; /* of a device in place of guard_queue's memory; or NULL */
    bool nccl;                        /* on the module's communicator, over that backend */
    bool tcp;                         /* on sockets, between ranks of that backend */
    enum tess_rank_mode mode;
    int32_t ranks;
    enum tess_order order;
};

/* Run fn on every rank of the setup and assert that none fails. */
void case_run(void **state, world_function fn, void *arg);
/* The same with a time limit for each wait, 0: the usual one; returns how many ranks failed. */
/* The same on the backend itself, with limits of the world's own; fills the report. */
int case_run_plain(const struct case_setup *setup, const struct world_setup *world,
                   world_function fn, void *arg, struct world_report *report);
int case_run_limited(const struct case_setup *setup, double timeout_s, world_function fn, void *arg,
                     double *seconds_out);

/*
 * place.c: memory for calls, on the device where comm has a queue. Cases work on `host`, zeroed;
 * put copies it to where calls are made, place_at(...), in the order of the queue; get waits for
 * the copy back. Host memory is the same for both, of the communicator's alloc where `shared`.
 */
struct place {
    struct tess_comm *comm;
    char *at, *host;
    bool shared;
};

enum tess_status place_open(struct tess_comm *comm, size_t bytes, bool shared, struct place *place);
void place_close(struct place *place);
void *place_at(const struct place *place, const void *host);
enum tess_status place_put(const struct place *place, const void *host, size_t bytes);
enum tess_status place_get(const struct place *place, void *host, size_t bytes);
/* From the beginning of one to that of another; on a device `host` stays as it is. */
enum tess_status place_copy(const struct place *from, const struct place *to, size_t bytes);

/* In a seed: values of 16 bits are any pattern at all, infinities, NaN and subnormals among them.
 */
#define VALUE_WILD ((uint64_t)1 << 63)

/*
 * values.c: element `i` of the array that rank `rank` hands in under `seed`, written to *out as
 * dtype. The same everywhere, so that each rank can compute what it must receive.
 */
void value_put(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t i, void *out);
void value_fill(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t count, void *array);
/* Compare one element with the tree over `ranks` values computed one by one. TESS_ORDER_CANONICAL:
 * the same bits; TESS_ORDER_FAST: within the rounding that any order may have. */
bool value_is_reduced(enum tess_dtype dtype, enum tess_reduce reduce, enum tess_order order,
                      uint64_t seed, int32_t ranks, size_t i, const void *actual);
bool value_is(enum tess_dtype dtype, uint64_t seed, int32_t rank, size_t i, const void *actual);
uint64_t value_hash(uint64_t a, uint64_t b, uint64_t c);

/* Cases. */
void case_collectives(void **state);
void case_large(void **state);
void case_halves(void **state);
void case_traffic(void **state);
void case_traffic_net(void **state);
void case_outstanding(void **state);
void case_groups(void **state);
void case_messages(void **state);
void case_queues(void **state);
void case_registered(void **state);
void case_random(void **state);
void case_share(void **state);
void case_memory(void **state);
void case_idle(void **state);
void case_arguments(void **state);
void case_places(void **state);
void case_mismatch(void **state);
void case_abort(void **state);
void case_reason(void **state);
void case_time_out(void **state);
void case_time_out_chain(void **state);
void case_takes_nothing(void **state);
void case_killed(void **state);
void case_board(void **state);
void case_observed(void **state);
void case_flight(void **state);
void case_family(void **state);
void case_device_unwaited(void **state);
void case_device_overwritten(void **state);
void case_device_unfenced(void **state);
void case_device_mixed(void **state);
void case_device_mismatch(void **state);
void case_device_processes(void **state);
void case_device_absent(void **state);
void case_device_abort(void **state);
void case_device_settle(void **state);
void case_device_open(void **state);
void case_device_many(void **state);
void case_debug_mismatch(void **state);
void case_debug_agreement(void **state);
void case_debug_group(void **state);
void case_debug_absent(void **state);
void case_debug_stats(void **state);

#endif
