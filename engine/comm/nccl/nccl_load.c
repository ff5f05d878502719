/* NCCL as a kind of communicator. NCCL itself is in the devices' module (nccl.c). */
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

static enum tess_status nccl_open(const struct tess_comm_request *request,
                                  struct tess_comm **comm_out)
{
    /* The world counts only where it has all ranks. */
    return request->module->comm_open(request->boot, request->started ? NULL : request->world,
                                      request->order, request->timeout_s, comm_out);
}

extern const struct tess_communicator_ops tess_communicator_nccl;
const struct tess_communicator_ops tess_communicator_nccl = {
    .abi = TESS_ABI,
    .name = "nccl",
    .summary = "NVIDIA's library between devices, one device for each rank",
    .device = TESS_COMM_THREADS | TESS_COMM_PROCESSES | TESS_COMM_STARTED,
    .boot = true,
    .open = nccl_open,
};
