/* What the files of tessera bench comm share: measuring (bench_comm.c), orders of ranks
 * (bench_comm_order.c) and printing (bench_comm_print.c). */
#ifndef TESSERA_BENCH_COMM_BENCH_COMM_H
#define TESSERA_BENCH_COMM_BENCH_COMM_H

#include "bench/bench.h"
#include "bench/bench_place.h"
#include "config/config_device.h"
#include "job/launch.h"

#include <stdio.h>

#define BENCH_ORDERS_MAX 6
#define BENCH_HOST_BYTES 64

struct bench_options {
    int64_t ranks;
    struct tess_ints sizes;
    int32_t order, mode, operation; /* operation: BENCH_COPY: all */
    bool rewrite, bind;
    const char *device, *kernel, *json;
    const char *comm; /* auto, or the name of a communicator */
    struct tess_comm_options comms;
    int64_t rack_hosts;
    const char *rank_orders;
};

enum bench_kind {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_TO_ALL,
    BENCH_SEND,
    BENCH_COPY,
    BENCH_KINDS
};

/* What rank 0 sends to the launcher, each once at first, then rows. */
enum bench_message_kind { BENCH_ROW, BENCH_HOSTS };

struct bench_hosts {
    int32_t count;
    char names[256]; /* "node1 (4), node2 (4)", cut where it is long */
};

struct bench_row {
    int32_t kind, size, samples, rank_order;
    double median_s, p99_s, least_s;
};

struct bench {
    struct bench_options options;
    struct tess__bench_log log;
    bool prints; /* else another process does */
    char machine[128];
    bool on_device;
    char memory[128];                /* whose: "host", or of what */
    struct tess__bench_target place; /* where on_device */
    const char *starter; /* the starter of the ranks, such as mpirun; NULL: this program */
    const struct tess_communicator_ops *comm;
    struct tess__peers *peers;
    /* Orders of ranks that are compared: words of --rank-orders. */
    char rank_order[BENCH_ORDERS_MAX][32];
    int rank_order_count;

    /* In the launcher, as rows come in. */
    struct bench_hosts hosts;
    double copy_gbs[TESS_INTS_MAX];
    double bus_gbs[BENCH_ORDERS_MAX]; /* of one row */
};

/* Bytes of the arrays of size `index`. */
static inline size_t tess__bench_size(const struct bench *bench, int index)
{
    return (size_t)bench->options.sizes.value[index];
}

/* bench_comm_print.c: take a message of rank 0. */
enum tess_status tess__bench_comm_message(void *context, const struct tess__message *message);

/*
 * bench_comm_order.c: --rank-orders, words separated by ';':
 *
 *     natural       0 1 2 ...: as the ranks were started
 *     interleaved   one rank of every host in turn; on one host one of each half in turn
 *     0,4,1,5       this order
 *
 * Checked here for this number of ranks. TESS_ERR_USAGE.
 */
enum tess_status tess__bench_order_read(struct bench *bench);
/* The place of every rank in order `index`: place_out[rank]. host, scratch: [ranks]. */
void tess__bench_order_places(const struct bench *bench, int index, const int32_t *host,
                              int32_t *scratch, int32_t *place_out);

#endif
