/* What there is of a memory (memory_room.h): sysinfo(2), control groups, devices. */
#include "job/memory_room.h"

#include "base/cgroup.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <sys/sysinfo.h>

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
    const double bytes = tess_memory(group);
    snprintf(where, 96, "%s%s", group[0] != '\0' ? "the control group " : "this machine", group);
    return bytes + (double)host.totalswap * host.mem_unit;
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
