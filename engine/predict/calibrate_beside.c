/* How much of the processors other programs take while they are measured; see calibrate_op.h. */
#include "predict/calibrate_op.h"

#include "base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What a processor does not count as idle, in ticks, of a line of /proc/stat; negative: it is not
 * one of a processor that may be used here. */
static double beside_ticks(const char *line, const cpu_set_t *here)
{
    unsigned long long user, nice, system, idle, wait, irq, soft, steal;
    unsigned core;
    if (sscanf(line, "cpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &core, &user, &nice, &system,
               &idle, &wait, &irq, &soft, &steal) != 9 ||
        core >= CPU_SETSIZE || !CPU_ISSET(core, here))
        return -1;
    return (double)(user + nice + system + irq + soft + steal);
}

static double beside_own_s(int who)
{
    struct rusage usage;
    if (getrusage(who, &usage) != 0)
        return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

struct calibrate_beside calibrate_beside_now(void)
{
    struct calibrate_beside now = {.cores = 0};
    char line[512];
    cpu_set_t here;
    double ticks = 0;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL)
        return now;
    if (sched_getaffinity(0, sizeof(here), &here) == 0)
        while (fgets(line, sizeof(line), file) != NULL && strncmp(line, "cpu", 3) == 0) {
            const double more = beside_ticks(line, &here);
            ticks += more > 0 ? more : 0;
            now.cores += more >= 0;
        }
    fclose(file);
    now.wall_s = tess_clock_s();
    now.busy_s = ticks / (double)sysconf(_SC_CLK_TCK);
    now.own_s = beside_own_s(RUSAGE_SELF) + beside_own_s(RUSAGE_CHILDREN);
    return now;
}

double calibrate_beside_share(const struct calibrate_beside *from,
                              const struct calibrate_beside *to)
{
    const double all_s = (to->wall_s - from->wall_s) * to->cores;
    const double others_s = (to->busy_s - from->busy_s) - (to->own_s - from->own_s);
    if (from->cores != to->cores || !(all_s > 0) || others_s <= 0)
        return 0;
    return others_s < all_s ? others_s / all_s : 1;
}
