/*
 * A rank's place from the variables of those who start processes on several machines. Only reads
 * and checks; who uses it meets in boot.c.
 */
#include "base/hash.h"
#include "comm/boot/boot.h"
#include "comm/boot/boot_find.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of one starter's variables; NULL: it has none. */
struct env_names {
    const char *starter;
    const char *rank, *count, *count_else, *local_rank, *local_count;
    const char *needs; /* must be there too for the others to count */
    const char *job;   /* which job it is */
    /* Where MASTER_ADDR is missing; NULL: it must be there. */
    enum tess_status (*find)(struct tess_boot_env *env);
};

static const struct env_names env_starter[] = {
    {"tessera --hosts", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     TESS_BOOT_MEETING, TESS_BOOT_MEETING, NULL},
    {"torchrun", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL,
     "TORCHELASTIC_RUN_ID", NULL},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "PMIX_NAMESPACE", tess__boot_find_openmpi},
    {"mpirun", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL,
     "PMI_JOBID", tess__boot_find_pmi},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", NULL,
     "SLURM_STEP_ID", "SLURM_JOB_ID", tess__boot_find_slurm},
};

static enum tess_status env_number(const char *name, int32_t least, int32_t most,
                                   int32_t *number_out)
{
    const char *text = getenv(name);
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < least || number > most)
        TESS_FAIL(TESS_ERR_USAGE, "%s is '%.40s': it must be a number from %d to %d", name, text,
                  (int)least, (int)most);
    *number_out = (int32_t)number;
    return TESS_OK;
}

/* A number that may be left out: then *number_out stays. */
static enum tess_status env_optional(const char *name, int32_t least, int32_t most,
                                     int32_t *number_out)
{
    return tess__boot_variable(name) == NULL ? TESS_OK : env_number(name, least, most, number_out);
}

/* Whose variables are there? One that has half of them is an error where nothing else needs them
 * to count. */
static const struct env_names *env_find(void)
{
    for (size_t i = 0; i < sizeof(env_starter) / sizeof(*env_starter); i++) {
        const struct env_names *names = &env_starter[i];
        /* Slurm offers PMI too, to MPI's programs; then Slurm's variables have the hosts. */
        if (names->find == tess__boot_find_pmi && tess__boot_variable("SLURM_STEP_ID") != NULL &&
            tess__boot_variable("MPI_LOCALRANKID") == NULL)
            continue;
        bool counts = tess__boot_variable(names->needs) != NULL;
        if (names->needs != NULL
                ? counts
                : tess__boot_variable(names->rank) || tess__boot_variable(names->count))
            return names;
    }
    return NULL;
}

static enum tess_status env_read_place(const struct env_names *names, struct tess_boot_env *env)
{
    const char *count =
        tess__boot_variable(names->count) != NULL ? names->count : names->count_else;
    bool has_rank = tess__boot_variable(names->rank) != NULL,
         has_count = tess__boot_variable(count) != NULL;
    if (!has_rank || !has_count)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "%s is set but %s is not: a rank of several needs both (%s sets them); unset both "
            "to start the ranks from here",
            has_rank    ? names->rank
            : has_count ? count
                        : names->needs,
            has_rank ? names->count : names->rank, names->starter);
    TESS_TRY(env_number(count, 1, TESS_RANKS_MAX, &env->rank_count));
    TESS_TRY(env_number(names->rank, 0, TESS_RANKS_MAX - 1, &env->rank));
    if (env->rank >= env->rank_count)
        TESS_FAIL(TESS_ERR_USAGE, "%s is %d, but %s is %d: ranks are numbered from 0", names->rank,
                  (int)env->rank, count, (int)env->rank_count);
    TESS_TRY(env_optional(names->local_count, 1, env->rank_count, &env->local_count));
    int32_t most = env->local_count > 0 ? env->local_count : env->rank_count;
    TESS_TRY(env_optional(names->local_rank, 0, most - 1, &env->local_rank));
    if (names->find == tess__boot_find_slurm)
        tess__boot_slurm_hosts(env);
    return TESS_OK;
}

static enum tess_status env_read_address(const struct env_names *names, struct tess_boot_env *env)
{
    const char *address = tess__boot_variable("MASTER_ADDR"),
               *port = tess__boot_variable("MASTER_PORT");
    if (names->find != NULL && port == NULL)
        tess__boot_find_port(env);
    if (names->find != NULL && address == NULL)
        TESS_TRY(names->find(env));
    if (names->find == NULL && (address == NULL || port == NULL))
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s gives this process rank %d of %d, but %s is not set: give all ranks the host "
                  "of rank 0 and a free port of it in MASTER_ADDR and MASTER_PORT",
                  names->starter, (int)env->rank, (int)env->rank_count,
                  address == NULL ? "MASTER_ADDR" : "MASTER_PORT");
    if (address != NULL && strlen(address) >= sizeof(env->address))
        TESS_FAIL(TESS_ERR_USAGE,
                  "MASTER_ADDR is %zu characters long: it must be a host's name or "
                  "number",
                  strlen(address));
    if (address != NULL)
        memcpy(env->address, address, strlen(address) + 1);
    TESS_TRY(env_optional("MASTER_PORT", 1, 65535, &env->port));
    const char *taken = tess__boot_variable("TORCHELASTIC_USE_AGENT_STORE");
    if (taken == NULL || strcmp(taken, "True") != 0)
        return TESS_OK;
    if (env->port == 65535)
        TESS_FAIL(TESS_ERR_USAGE, "MASTER_PORT is 65535 and torchrun itself listens there: give "
                                  "torchrun a lower --master-port, the next one is ours");
    env->port++;
    return TESS_OK;
}

/* Steps of one job of Slurm may run at the same time. */
static uint64_t env_job(const struct env_names *names)
{
    const char *job = tess__boot_variable(names->job), *step = tess__boot_variable(names->needs);
    if (job == NULL)
        return 0;
    uint64_t hash = tess_hash_bytes(job, strlen(job));
    return step == NULL ? hash : hash * 31 + tess_hash_bytes(step, strlen(step));
}

enum tess_status tess_boot_from_environment(struct tess_boot_env *env_out, bool *found_out)
{
    const struct env_names *names = env_find();
    *found_out = false;
    if (names == NULL)
        return TESS_OK;
    struct tess_boot_env env = {.starter = names->starter, .local_rank = -1, .local_count = -1};
    TESS_TRY(env_read_place(names, &env));
    env.job = env_job(names);
    int32_t restarts = 0;
    if (strcmp(names->starter, "torchrun") == 0)
        TESS_TRY(env_optional("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, &restarts));
    env.again = restarts > 0;
    TESS_TRY(tess_secret_from_environment(&env.secret));
    if (env.rank_count > 1)
        TESS_TRY(env_read_address(names, &env));
    *env_out = env;
    *found_out = true;
    return TESS_OK;
}
