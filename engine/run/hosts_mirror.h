/*
 * The mirror of a host, on the serving side of job/mirror.h: a process that lives as long as the
 * supervisor, and keeps copies of another host's part of the state in memory beside this host's:
 *
 *     FOLDER/checkpoints/step-N           this host's part of the copy after step N
 *     FOLDER/replica/checkpoints/step-N   the other host's
 *
 * A part has the whole files of the checkpoint, with holes where other hosts have the bytes.
 */
#ifndef TESSERA_RUN_HOSTS_MIRROR_H
#define TESSERA_RUN_HOSTS_MIRROR_H

#include "job/mirror.h"

#include <sys/types.h>

struct hosts_mirror {
    pid_t pid;                      /* 0: there is none */
    int32_t port;                   /* 0: likewise */
    struct hosts_mirror_pass *pass; /* whom it serves, shared with it */
};

/* folder: of copies.h. address: of the leader; the mirror listens at this host's. timeout_s: of the
 * training. No threads may run. TESS_ERR_COMM, TESS_ERR_MEMORY. */
enum tess_status tess__hosts_mirror_open(struct hosts_mirror *mirror, const char *folder,
                                         const char *address, double timeout_s);
void tess__hosts_mirror_close(struct hosts_mirror *mirror); /* zero is allowed */

/* Serve those who have the secret, from here on; copies of an earlier attempt are not taken. */
void tess__hosts_mirror_admit(const struct hosts_mirror *mirror, const struct tess_secret *secret,
                              int32_t attempt);

#endif
