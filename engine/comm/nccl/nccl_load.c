/* NCCL as a kind of communicator. NCCL itself is in the devices' module (nccl.c). */
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

#include <string.h>

static enum tess_status nccl_open(const struct tess_comm_request *request,
                                  struct tess_comm **comm_out)
{
    /* The world counts only where it has all ranks. */
    return request->module->comm_open(request->boot, request->started ? NULL : request->world,
                                      request->order, request->timeout_s, request->options,
                                      comm_out);
}

static const struct tess_option nccl_option_table[] = {
    TESS_ROW_INT("max-ctas", offsetof(struct tess_comm_choices, max_ctas), "0", 0, 64,
                 "blocks that a call of NCCL takes at most: fewer leave more of a GPU to what it "
                 "computes beside; 0: NCCL's choice"),
    TESS_ROW_CHOICE("cta-policy", offsetof(struct tess_comm_choices, cta_policy), "default",
                    "default|efficiency|zero",
                    "how NCCL weighs speed against the blocks that it takes from a GPU; zero: "
                    "gathers within one node by copy engines, without any"),
    TESS_ROW_INT("scratch", offsetof(struct tess_comm_choices, scratch_bytes), "64Mi", 64 << 10,
                 (double)((int64_t)1 << 32),
                 "bytes of a GPU's memory for sums in canonical order, of each group of ranks"),
    TESS_ROW_END,
};

extern const struct tess_communicator_ops tess_communicator_nccl;

static enum tess_status nccl_check(const void *values, const struct tess_communicator_ops *chosen,
                                   enum tess_order order)
{
    const struct tess_comm_choices *choices = values;
    (void)order;
    if ((choices->max_ctas > 0 || choices->cta_policy > 0) && chosen != NULL &&
        strcmp(chosen->name, tess_communicator_nccl.name) != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm.nccl.%s is a choice of NCCL's, and these ranks use --comm %s: leave it "
                  "out",
                  choices->max_ctas > 0 ? "max-ctas" : "cta-policy", chosen->name);
    return TESS_OK;
}

const struct tess_communicator_ops tess_communicator_nccl = {
    .abi = TESS_ABI,
    .name = "nccl",
    .summary = "NVIDIA's library between devices, one device for each rank",
    .device = TESS_COMM_THREADS | TESS_COMM_PROCESSES | TESS_COMM_STARTED,
    .boot = true,
    .nccl = true,
    .options = nccl_option_table,
    .options_size = sizeof(struct tess_comm_choices),
    .check = nccl_check,
    .open = nccl_open,
};
