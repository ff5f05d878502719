/* How the ranks of a job come to be connected to rank 0: between boot_meet.c and boot.c. */
#ifndef TESSERA_COMM_BOOT_BOOT_MEET_H
#define TESSERA_COMM_BOOT_BOOT_MEET_H

#include "comm/boot/boot.h"
#include "comm/boot/boot_socket.h"

/* Time in which rank 0's verdict reaches the others, after its own limit has passed. */
#define BOOT_GRACE_S 5.0

/* Rank 0: fd_out[r] becomes the connection with rank r, for 1 <= r < rank_count. */
enum tess_status tess__boot_gather_members(const struct tess_boot_env *env, double timeout_s,
                                           int *fd_out);
/* Any other rank: the connection with rank 0, once all have come. */
enum tess_status tess__boot_join(const struct tess_boot_env *env, double timeout_s, int *fd_out);

#endif
