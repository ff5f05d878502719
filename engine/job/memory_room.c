/* What there is of a memory (memory_room.h): sysinfo(2), cgroups of both versions, devices. */
#include "job/memory_room.h"

#include "tessera/check.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#define ROOM_LINE 4096

/* A file with one number of bytes; HUGE_VAL: it is not there, or has another word ("max"). */
static double room_read_limit(const char *path)
{
    char text[64] = "", *end = text;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return HUGE_VAL;
    const bool read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    const double bytes = read ? strtod(text, &end) : 0;
    /* Version 1 writes that there is no limit as the greatest number of whole pages. */
    return end > text && bytes >= 0 && bytes < 0x1p62 ? bytes : HUGE_VAL;
}

/* Of a group and of all that hold it. `below` is where groups lie, `name` the file of the limit. */
static double room_walk(const char *below, const char *name, char *group, char path_out[64])
{
    double least = HUGE_VAL;
    for (;;) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof(path), "%s%s/%s", below, group, name);
        const double limit = length < (int)sizeof(path) ? room_read_limit(path) : HUGE_VAL;
        if (limit < least) {
            least = limit;
            snprintf(path_out, 64, "%.63s", group[0] != '\0' ? group : "/");
        }
        char *last = strrchr(group, '/');
        if (last == NULL)
            return least;
        *last = '\0';
    }
}

double tess__memory_group_limit(const char *proc, const char *sys, char path_out[64])
{
    char line[ROOM_LINE], below[PATH_MAX], path[64];
    double least = HUGE_VAL;
    FILE *file = fopen(proc, "re");
    path_out[0] = '\0';
    /* "0::/user.slice/x" of version 2, "9:memory:/user.slice/x" of version 1. */
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        const bool second = strncmp(line, "0:", 2) == 0;
        if (!second && strcmp(controllers + 1, "memory") != 0)
            continue;
        snprintf(below, sizeof(below), "%s%s", sys, second ? "" : "/memory");
        if (strcmp(group, "/") == 0)
            *group = '\0';
        const double limit =
            room_walk(below, second ? "memory.max" : "memory.limit_in_bytes", group, path);
        if (limit < least) {
            least = limit;
            memcpy(path_out, path, sizeof(path));
        }
    }
    if (file != NULL)
        fclose(file);
    return least;
}

static void room_add(struct tess__memory_room *room, double bytes)
{
    room->need += bytes;
    room->fullest = fmax(room->fullest, bytes);
    room->ranks++;
}

double tess__memory_of_host(char where[96])
{
    char group[64];
    struct sysinfo host;
    if (sysinfo(&host) != 0)
        return 0;
    const double unit = host.mem_unit, swap = (double)host.totalswap * unit;
    const double limit = tess__memory_group_limit("/proc/self/cgroup", "/sys/fs/cgroup", group);
    const double have = (double)host.totalram * unit + swap;
    snprintf(where, 96, "this machine");
    if (limit + swap >= have)
        return have;
    snprintf(where, 96, "the control group %s", group);
    return limit + swap;
}

static bool room_of_host(const struct tess__run *run, struct tess__memory_room *room)
{
    for (int32_t r = 0; r < run->rank_count; r++)
        if (run->config->started.starter == NULL || r == run->config->started.rank)
            room_add(room, (double)tess__run_predicted(run, r)->total);
    room->have = tess__memory_of_host(room->where);
    return room->have > 0;
}

/* Staging and copies are the host's. */
static bool room_of_devices(const struct tess__run *run, struct tess__memory_room *room_out)
{
    const struct tess_device_plan *plan = &run->config->device;
    bool known = false;
    for (int32_t d = 0; d < plan->count && plan->of_rank != NULL && !plan->missing; d++) {
        struct tess__memory_room room = {.have = (double)plan->info[d].memory_bytes};
        for (int32_t r = 0; r < run->rank_count; r++) {
            const struct tess_job_memory *memory = tess__run_predicted(run, r);
            if (plan->of_rank[r] == d)
                room_add(&room, (double)(memory->total - memory->bytes[TESS_MEMORY_STAGING] -
                                         memory->bytes[TESS_MEMORY_REDUNDANCY]));
        }
        if (room.have <= 0 || (known && room.need - room.have <= room_out->need - room_out->have))
            continue;
        snprintf(room.where, sizeof(room.where), "device %d (%.64s)", (int)d, plan->info[d].name);
        *room_out = room;
        known = true;
    }
    return known;
}

bool tess__memory_room_of(const struct tess__run *run, struct tess__memory_room *room_out)
{
    *room_out = (struct tess__memory_room){.need = 0};
    return run->config->device.module != NULL ? room_of_devices(run, room_out)
                                              : room_of_host(run, room_out);
}

enum tess_status tess__memory_check(const struct tess__run *run,
                                    void (*advise)(void *context, char *text, size_t bytes),
                                    void *context)
{
    const double gib = 1024.0 * 1024 * 1024;
    struct tess__memory_room room;
    char advice[512] = "use a smaller batch or model, or more hosts";
    if (!tess__memory_room_of(run, &room) || room.need <= room.have)
        return TESS_OK;
    if (advise != NULL)
        advise(context, advice, sizeof(advice));
    TESS_FAIL(
        TESS_ERR_MEMORY,
        "%d rank%s under --strategy %s need%s %.1f GiB of %s, which has %.1f GiB (the fullest "
        "rank needs %.1f GiB): %s; tessera plan lists layouts that fit, --explain prints "
        "this one",
        room.ranks, room.ranks == 1 ? "" : "s", run->config->run.strategy,
        room.ranks == 1 ? "s" : "", room.need / gib, room.where, room.have / gib,
        room.fullest / gib, advice);
}
