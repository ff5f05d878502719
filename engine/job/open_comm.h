/* Opening the communicator of a rank. */
#ifndef TESSERA_JOB_OPEN_COMM_H
#define TESSERA_JOB_OPEN_COMM_H

#include "job/launch.h"
#include "tessera/communicator.h"

struct tess__open_comm {
    const struct tess_communicator_ops *kind;
    const void *options;              /* the kind's */
    const struct tess_module *module; /* of the rank's device, which is selected; NULL: host */
    const struct tess__peers *peers;  /* NULL: this program started all ranks */
    enum tess_order order;
    double timeout_s;
    int32_t rack_hosts; /* as tess_comm_request has it */
};

/* Collective over the ranks of the job, in their own processes or threads. */
enum tess_status tess__open_comm(const struct tess__open_comm *how, const struct tess__rank *rank,
                                 struct tess_comm **comm_out);

#endif
