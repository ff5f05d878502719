/* Cores, memory and ranks by /proc. Rates are over the time since the sample before. */
#ifndef TESSERA_CLI_TOP_H
#define TESSERA_CLI_TOP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define TESS__TOP_CORES_MAX 1024

/* A rank of a run on this machine, with all threads that it started. */
struct tess__top_rank {
    int32_t pid, rank;
    int32_t launcher;       /* pid of the process that started it: one per run */
    uint64_t ticks;         /* of processor time, so far */
    double cpu_percent;     /* of one core; NaN in its first sample */
    int64_t resident_bytes; /* of the process, which ranks that are threads share; -1: unknown */
};

/* What a run reports about itself in its metrics.jsonl, which its launcher has open. */
struct tess__top_run {
    int64_t step, steps; /* the latest step line, of so many */
    double loss;         /* of that step; NaN: null */
    char folder[PATH_MAX];
};

/* Zeroed before the first sample. */
struct tess__top_host {
    double time_s; /* of this sample, on the monotonic clock; 0: none yet */
    int32_t core_count;
    uint64_t core_busy[TESS__TOP_CORES_MAX], core_total[TESS__TOP_CORES_MAX]; /* ticks so far */
    double core_percent[TESS__TOP_CORES_MAX];      /* NaN in the first sample */
    int64_t memory_total_bytes, memory_used_bytes; /* used: what programs could not have; -1 */
    int32_t rank_count, rank_room;
    struct tess__top_rank *rank; /* [rank_count] by launcher, then rank */
};

/* Read /proc, or what stands at `root` in its place. */
void tess__top_sample(struct tess__top_host *host, const char *root);

void tess__top_close(struct tess__top_host *host);

/* The run of a launcher, by its pid, from /proc or what stands at `root`. False where it writes no
 * metrics, has none of a step yet, or belongs to another user. */
bool tess__top_find_run(const char *root, int32_t launcher, struct tess__top_run *run_out);

/* Does this process exist, as far as this one can see? */
bool tess__top_has_process(const char *root, int32_t pid);

#endif
