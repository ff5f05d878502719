/* Stands in for nccl.c where this was built without NCCL: ranks on different devices cannot be
 * connected, ranks that are threads of one process can (local). */
#include "comm/nccl/nccl.h"
#include "tessera/check.h"

enum tess_status tess__nccl_open(const struct tess_boot *boot, struct tess_world *world,
                                 enum tess_order order, double timeout_s,
                                 const struct tess_comm_choices *choices,
                                 struct tess_comm **comm_out)
{
    (void)boot, (void)world, (void)order, (void)timeout_s, (void)choices, (void)comm_out;
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "this build has no NCCL: install it and configure with -DTESS_NCCL=ON, or run the "
              "ranks as threads of one process with --comm local");
}
