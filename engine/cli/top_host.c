/* Reading cores, memory and ranks from /proc; see top.h. Formats are those of proc(5). */
#include "cli/top.h"

#include "base/clock.h"
#include "base/host.h"
#include "job/launch.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 320
#define LINE_BYTES 1024

/* ---- cores and memory ------------------------------------------------------------------------ */

/* "cpu3 user nice system idle iowait irq softirq steal ...": waiting for a disk is no work. */
static void top_cores(struct tess__top_host *host, const char *root)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    const int32_t known = host->core_count;
    snprintf(path, sizeof(path), "%s/stat", root);
    FILE *file = fopen(path, "r");
    host->core_count = 0;
    while (file && host->core_count < TESS__TOP_CORES_MAX && fgets(line, sizeof(line), file)) {
        unsigned long long part[8] = {0}, total = 0;
        const int32_t c = host->core_count;
        uint64_t busy;
        if (strncmp(line, "cpu", 3) != 0 || !isdigit((unsigned char)line[3]))
            continue;
        sscanf(line, "cpu%*d %llu %llu %llu %llu %llu %llu %llu %llu", &part[0], &part[1], &part[2],
               &part[3], &part[4], &part[5], &part[6], &part[7]);
        for (int i = 0; i < 8; i++)
            total += part[i];
        busy = total - part[3] - part[4];
        host->core_percent[c] =
            c < known && total > host->core_total[c] && busy >= host->core_busy[c]
                ? 100 * (double)(busy - host->core_busy[c]) / (double)(total - host->core_total[c])
                : NAN;
        host->core_busy[c] = busy;
        host->core_total[c] = total;
        host->core_count++;
    }
    if (file)
        fclose(file);
}

static void top_memory(struct tess__top_host *host, const char *root)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/meminfo", root);
    const double total = tess_host_number(path, "MemTotal:");
    const double available = tess_host_number(path, "MemAvailable:");
    host->memory_total_bytes = total >= 0 ? 1024 * (int64_t)total : -1;
    host->memory_used_bytes =
        total >= 0 && available >= 0 ? 1024 * (int64_t)(total - available) : -1;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static bool top_read(const char *path, char text[LINE_BYTES])
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t count = fread(text, 1, LINE_BYTES - 1, file);
    fclose(file);
    text[count] = '\0';
    return count > 0;
}

static int32_t top_number(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 10 && !text[digits] ? (int32_t)atoi(text) : -1;
}

/* Parent and processor time out of ".../stat": the name, field 2, may hold anything, so count from
 * its closing bracket. Fields 4, 14 and 15. */
static bool top_stat(const char *path, int32_t *parent_out, uint64_t *ticks_out)
{
    char text[LINE_BYTES];
    unsigned long long user = 0, kernel = 0;
    const char *rest;
    if (!top_read(path, text) || !(rest = strrchr(text, ')')))
        return false;
    if (sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", parent_out, &user,
               &kernel) != 3)
        return false;
    *ticks_out = user + kernel;
    return true;
}

static int64_t top_resident(const char *root, int32_t pid)
{
    char path[PATH_BYTES], text[LINE_BYTES];
    long long pages = -1;
    snprintf(path, sizeof(path), "%s/%d/statm", root, pid);
    if (!top_read(path, text) || sscanf(text, "%*d %lld", &pages) != 1)
        return -1;
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* The entry of this process and rank, made if it is not there; NULL without memory. */
static struct tess__top_rank *top_entry(struct tess__top_host *host, int32_t pid, int32_t rank)
{
    for (int32_t i = 0; i < host->rank_count; i++)
        if (host->rank[i].pid == pid && host->rank[i].rank == rank)
            return &host->rank[i];
    if (host->rank_count == host->rank_room) {
        const int32_t room = host->rank_room > 0 ? 2 * host->rank_room : 64;
        struct tess__top_rank *more = realloc(host->rank, (size_t)room * sizeof(*more));
        if (!more)
            return NULL;
        host->rank = more;
        host->rank_room = room;
    }
    host->rank[host->rank_count] = (struct tess__top_rank){.pid = pid, .rank = rank};
    return &host->rank[host->rank_count++];
}

/* Threads have the name of the one that started them: loaders and kernels' helpers count for their
 * rank. */
static void top_process(struct tess__top_host *host, const char *root, int32_t pid)
{
    char path[PATH_BYTES], name[LINE_BYTES];
    const struct dirent *entry;
    DIR *tasks;
    snprintf(path, sizeof(path), "%s/%d/task", root, pid);
    tasks = opendir(path);
    while (tasks && (entry = readdir(tasks))) {
        const int32_t task = top_number(entry->d_name);
        struct tess__top_rank *found;
        int32_t rank = -1, parent = -1;
        uint64_t ticks;
        if (task < 0)
            continue;
        snprintf(path, sizeof(path), "%s/%d/task/%d/comm", root, pid, task);
        if (!top_read(path, name) || sscanf(name, TESS__RANK_THREAD_NAME, &rank) != 1)
            continue;
        snprintf(path, sizeof(path), "%s/%d/task/%d/stat", root, pid, task);
        found = top_stat(path, &parent, &ticks) ? top_entry(host, pid, rank) : NULL;
        if (!found)
            continue;
        found->launcher = parent;
        found->ticks += ticks;
        found->resident_bytes = top_resident(root, pid);
    }
    if (tasks)
        closedir(tasks);
}

static int top_compare(const void *a, const void *b)
{
    const struct tess__top_rank *left = a, *right = b;
    if (left->launcher != right->launcher)
        return left->launcher < right->launcher ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* Only what looks like a rank's process is opened further: a machine has thousands of others. */
static void top_ranks(struct tess__top_host *host, const char *root)
{
    char path[PATH_BYTES], name[LINE_BYTES];
    const struct dirent *entry;
    DIR *processes = opendir(root);
    host->rank_count = 0;
    while (processes && (entry = readdir(processes))) {
        const int32_t pid = top_number(entry->d_name);
        snprintf(path, sizeof(path), "%s/%d/comm", root, pid);
        if (pid >= 0 && top_read(path, name) && strncmp(name, "tessera", 7) == 0)
            top_process(host, root, pid);
    }
    if (processes)
        closedir(processes);
    if (host->rank_count > 0)
        qsort(host->rank, (size_t)host->rank_count, sizeof(host->rank[0]), top_compare);
}

/* By the sample before, where the rank was in it. */
static void top_rates(struct tess__top_host *host, const struct tess__top_rank *before,
                      int32_t before_count, double passed_s)
{
    const double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    for (int32_t i = 0; i < host->rank_count; i++) {
        struct tess__top_rank *rank = &host->rank[i];
        rank->cpu_percent = NAN;
        for (int32_t b = 0; b < before_count; b++)
            if (before[b].pid == rank->pid && before[b].rank == rank->rank && passed_s > 0)
                rank->cpu_percent =
                    rank->ticks > before[b].ticks
                        ? 100 * tick_s * (double)(rank->ticks - before[b].ticks) / passed_s
                        : 0;
    }
}

void tess__top_sample(struct tess__top_host *host, const char *root)
{
    struct tess__top_rank *before = host->rank;
    const int32_t before_count = host->rank_count;
    const double now_s = tess_clock_s();
    host->rank = NULL;
    host->rank_room = 0;
    top_cores(host, root);
    top_memory(host, root);
    top_ranks(host, root);
    top_rates(host, before, before_count, host->time_s > 0 ? now_s - host->time_s : 0);
    host->time_s = now_s;
    free(before);
}

void tess__top_close(struct tess__top_host *host)
{
    free(host->rank);
    host->rank = NULL;
}

bool tess__top_has_process(const char *root, int32_t pid)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%d", root, pid);
    return access(path, F_OK) == 0;
}
