/* Which communicator connects the ranks of a run, and the options of all communicators. */
#ifndef TESSERA_CONFIG_CONFIG_COMM_H
#define TESSERA_CONFIG_CONFIG_COMM_H

#include "tessera/communicator.h"
#include "tessera/strategy.h"

struct tess_options;

#define TESS_COMM_KINDS_MAX 64

/* The options of every registered communicator, read before one is chosen. */
struct tess_comm_options {
    int count;
    struct {
        const struct tess_communicator_ops *kind;
        char prefix[64]; /* "comm.NAME" */
        void *values;
    } of[TESS_COMM_KINDS_MAX];
};

/* Adds the tables of all communicators to an option set, and allocates their values. */
enum tess_status tess_comm_options_add(struct tess_options *options,
                                       struct tess_comm_options *comm_out);
void tess_comm_options_free(struct tess_comm_options *comm);
const void *tess_comm_options_of(const struct tess_comm_options *comm,
                                 const struct tess_communicator_ops *kind);

/* Do all options fit the communicator that was chosen, and the order of sums? TESS_ERR_USAGE. */
enum tess_status tess_comm_options_check(const struct tess_comm_options *comm,
                                         const struct tess_communicator_ops *chosen,
                                         enum tess_order order);

/* Ranks that are to be connected, and the reason why a kind of such ranks cannot be. */
struct tess_comm_ask {
    const struct tess_comm_options *options;
    bool device;         /* they compute on devices, else on the host */
    bool all_reach;      /* each device reaches the memory of all others */
    const char *starter; /* NULL: this program starts the ranks */
    uint32_t ranks;      /* one of enum tess_comm_ranks */
    char why[256];       /* set by tess_comm_first; "" where no such kind was tried */
};

/* The kind of that name, NULL for "auto". TESS_ERR_USAGE for an unknown name. */
enum tess_status tess_comm_named(const char *name, const struct tess_communicator_ops **kind_out);

/* The first kind that fits; NULL: there is none, and ask->why has the reason of the last one. */
const struct tess_communicator_ops *tess_comm_first(struct tess_comm_ask *ask);

#endif
