/* Where rank 0 is, when MASTER_ADDR is not set: between boot_env.c and boot_find.c. */
#ifndef TESSERA_COMM_BOOT_BOOT_FIND_H
#define TESSERA_COMM_BOOT_BOOT_FIND_H

#include "comm/boot/boot.h"

/* A variable of the environment that is there and not empty, else NULL; NULL is allowed. */
const char *tess__boot_variable(const char *name);

/* Ports that the ranks of a job come to on their own. */
void tess__boot_find_port(struct tess_boot_env *env);

/* Fill env->address, or leave it "" for tess_boot_find. TESS_ERR_USAGE with what to set where it
 * cannot be known. */
enum tess_status tess__boot_find_openmpi(struct tess_boot_env *env);
enum tess_status tess__boot_find_pmi(struct tess_boot_env *env);
enum tess_status tess__boot_find_slurm(struct tess_boot_env *env);

/* "tcp://10.0.0.1,10.0.0.2:99;tcp6://[fd00::1]:98" as "10.0.0.1,10.0.0.2,fd00::1", and the first
 * name of "gpu[07-09,12],login" as "gpu07". False: that is not in it, or too long. */
bool tess__boot_uri_hosts(const char *uri, char *hosts, size_t bytes);
bool tess__boot_first_host(const char *list, char *host, size_t bytes);

/* boot_slurm.c: tasks of a node, numbered from 0, in "4(x2),3"; -1: the list has none for it. */
int32_t tess__boot_slurm_tasks(const char *list, int32_t node);
/* What Slurm gives of hosts: env->local_count, host_count, host_cores, rank_cores,
 * host_devices. */
void tess__boot_slurm_hosts(struct tess_boot_env *env);

/* "login,r[1:0-1]h0@0(3)" adds login, r0h0 and r1h0 to a list joined by ',', as many as fit; what
 * is not of this form, and what follows it, is left out. */
void tess__boot_add_nodes(const char *regex, char *hosts, size_t bytes);

/*
 * boot_pmi.c: by PMI 1, over the connection PMI_FD that mpirun keeps with this process: the name of
 * the job's space, and, unless `address` is NULL, rank 0's value of it on all ranks. Collective.
 */
enum tess_status tess__boot_pmi(int32_t rank, double timeout_s, char name[TESS_BOOT_ADDRESS_BYTES],
                                char address[TESS_BOOT_ADDRESS_BYTES]);
void tess__boot_pmi_leave(void);

#endif
