/*
 * How many nodes, and what of them, Slurm has given: to the step that this process is a task of,
 * and to the job where it is in no step. Only reads the environment; what nothing else needs is
 * left out where it is not understood.
 */
#include "comm/boot/boot_find.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Steps that Slurm makes itself, such as the one of salloc's own shell, have the last numbers. */
#define SLURM_STEP_OWN 0xfffffff0UL

/* 0: it is not set, or no number from 1 on. */
static int32_t slurm_number(const char *name, const char *name_else)
{
    const char *text = tess__boot_variable(name);
    char *end = NULL;
    if (text == NULL)
        text = tess__boot_variable(name_else);
    const long number = text != NULL ? strtol(text, &end, 10) : 0;
    return text == NULL || end == text || *end != '\0' || number < 1 || number > INT_MAX
               ? 0
               : (int32_t)number;
}

int32_t tess__boot_slurm_tasks(const char *list, int32_t node)
{
    for (const char *at = list; *at != '\0'; at++) {
        char *end;
        const long tasks = strtol(at, &end, 10);
        long nodes = 1;
        if (end == at || tasks < 1 || tasks > TESS_RANKS_MAX)
            return -1;
        if (strncmp(end, "(x", 2) == 0) {
            nodes = strtol(end + 2, &end, 10);
            if (*end++ != ')' || nodes < 1)
                return -1;
        }
        if (*end != ',' && *end != '\0')
            return -1;
        if (node < nodes)
            return (int32_t)tasks;
        if (*end == '\0')
            return -1;
        node -= (int32_t)nodes;
        at = end;
    }
    return -1;
}

void tess__boot_slurm_hosts(struct tess_boot_env *env)
{
    const char *list = tess__boot_variable("SLURM_STEP_TASKS_PER_NODE"),
               *node = tess__boot_variable("SLURM_NODEID");
    char *end = NULL;
    if (list == NULL)
        list = tess__boot_variable("SLURM_TASKS_PER_NODE");
    env->host_count = slurm_number("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
    env->host_cores = slurm_number("SLURM_CPUS_ON_NODE", NULL);
    env->rank_cores = slurm_number("SLURM_CPUS_PER_TASK", NULL);
    env->host_devices = slurm_number("SLURM_GPUS_ON_NODE", NULL);
    const long number = node != NULL ? strtol(node, &end, 10) : -1;
    if (list == NULL || number < 0 || number > INT_MAX || *end != '\0')
        return;
    const int32_t tasks = tess__boot_slurm_tasks(list, (int32_t)number);
    if (tasks > env->local_rank && tasks <= env->rank_count)
        env->local_count = tasks;
}

int32_t tess_boot_idle_nodes(void)
{
    const char *step = tess__boot_variable("SLURM_STEP_ID");
    const int32_t nodes = slurm_number("SLURM_JOB_NUM_NODES", "SLURM_NNODES");
    if (tess__boot_variable("SLURM_JOB_ID") == NULL || nodes < 2 ||
        (step != NULL && strtoul(step, NULL, 10) < SLURM_STEP_OWN))
        return 0;
    return nodes - 1;
}
