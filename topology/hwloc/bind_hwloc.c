/*
 * Binds threads to cores by libhwloc. Which cores: those next to the rank's GPU, or all that the
 * process was started on, shared out among the host's ranks (share.c). Only of a topology that is
 * this system's, since of any other hwloc "binds" without doing anything.
 *
 * The process may have been started bound (mpirun does that): where it has fewer cores
 * than ranks, and fewer than the machine allows, they belong to it and stay as they are.
 *
 * What a thread was bound to is kept for the thread, as ranks may be threads of one process; the
 * machine is loaded once for the whole process, with its PCI devices where a rank has one.
 */
#include "tessera/log.h"
#include "topology/hwloc/hwloc_machine.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/bus.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define BIND_WORDS (8192 / (8 * sizeof(unsigned long)))

static _Thread_local struct {
    bool bound;
    hwloc_topology_t machine;
    unsigned long cpus[BIND_WORDS]; /* not a bitmap of hwloc's, which would never be freed */
} bind_thread;

struct bind_place {
    hwloc_topology_t hwloc;
    const struct tess__bind_request *request;
    hwloc_const_bitmap_t own;
    hwloc_bitmap_t near, other, cpus, nodes; /* other: scratch */
};

/* Kept until the process ends; NULL: it cannot be seen. */
static hwloc_topology_t bind_machine(bool io)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static hwloc_topology_t machine[2];
    static bool tried[2];
    pthread_mutex_lock(&lock);
    if (!tried[io])
        (void)tess__hwloc_machine(io, &machine[io]); /* which stays NULL where it fails */
    tried[io] = true;
    hwloc_topology_t found = machine[io];
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- which cores ----------------------------------------------------------------------------- */

/* The CPUs near a PCI device that the process may use; all of these where that is not known. */
static void bind_near(const struct bind_place *place, int32_t at, hwloc_bitmap_t near)
{
    uint64_t number;
    hwloc_obj_t object = NULL;
    const char *bus = place->request->bus ? place->request->bus[at] : NULL;
    if (bus && tess__bus_parse(bus, strnlen(bus, 32), &number))
        object = hwloc_get_pcidev_by_busid(
            place->hwloc, (unsigned)(number >> 24), (unsigned)(number >> 16 & 0xff),
            (unsigned)(number >> 8 & 0xff), (unsigned)(number & 0xf));
    if (object)
        object = hwloc_get_non_io_ancestor_obj(place->hwloc, object);
    if (object && object->cpuset && hwloc_bitmap_intersects(object->cpuset, place->own))
        hwloc_bitmap_and(near, object->cpuset, place->own);
    else
        hwloc_bitmap_copy(near, place->own);
}

/* Among the places with the same CPUs near them: how many, and which of these this one is. */
static void bind_group(struct bind_place *place, int32_t *at_out, int32_t *count_out)
{
    *at_out = *count_out = 0;
    bind_near(place, place->request->at, place->near);
    for (int32_t i = 0; i < place->request->count; i++) {
        bind_near(place, i, place->other);
        if (!hwloc_bitmap_isequal(place->near, place->other))
            continue;
        *at_out += i < place->request->at;
        ++*count_out;
    }
}

/* The cores as text: their first CPUs' numbers, as taskset counts them. */
static void bind_describe(const struct bind_place *place, const struct tess__hwloc_cores *cores,
                          int32_t first, int32_t count, char text[TESS_BIND_TEXT])
{
    char list[48], numa[24];
    hwloc_bitmap_zero(place->other);
    for (int32_t i = first; i < first + count; i++)
        hwloc_bitmap_set(place->other, (unsigned)hwloc_bitmap_first(cores->core[i]->cpuset));
    hwloc_bitmap_list_snprintf(list, sizeof(list), place->other);
    hwloc_bitmap_list_snprintf(numa, sizeof(numa), place->nodes);
    snprintf(text, TESS_BIND_TEXT, "cores %s, NUMA %s", list, numa);
}

static bool bind_choose(struct bind_place *place, char text[TESS_BIND_TEXT])
{
    struct tess__hwloc_cores cores;
    int32_t at, count, first, share;
    bind_group(place, &at, &count);
    if (tess__hwloc_cores(place->hwloc, place->near, &cores) != TESS_OK || cores.count == 0) {
        snprintf(text, TESS_BIND_TEXT, "not bound: no core or no memory for it");
        return false;
    }
    tess__share(cores.numa, cores.count, at, count, &first, &share);
    for (int32_t i = first; i < first + share; i++) {
        hwloc_bitmap_or(place->cpus, place->cpus, cores.core[i]->cpuset);
        hwloc_bitmap_set(place->nodes, (unsigned)cores.numa[i]);
    }
    hwloc_bitmap_and(place->cpus, place->cpus, place->near);
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(place->hwloc);
    bool narrowed = cores.count < count && !hwloc_bitmap_isincluded(allowed, place->own);
    if (narrowed)
        snprintf(text, TESS_BIND_TEXT, "not bound: started on %d of the cores already",
                 (int)cores.count);
    else
        bind_describe(place, &cores, first, share, text);
    tess__hwloc_cores_free(&cores);
    return !narrowed;
}

bool tess__bind_choose(hwloc_topology_t hwloc, hwloc_const_bitmap_t own,
                       const struct tess__bind_request *request, hwloc_bitmap_t cpus,
                       hwloc_bitmap_t nodes, char text[TESS_BIND_TEXT])
{
    struct bind_place place = {.hwloc = hwloc,
                               .request = request,
                               .own = own,
                               .near = hwloc_bitmap_alloc(),
                               .other = hwloc_bitmap_alloc(),
                               .cpus = cpus,
                               .nodes = nodes};
    hwloc_bitmap_zero(cpus);
    hwloc_bitmap_zero(nodes);
    snprintf(text, TESS_BIND_TEXT, "not bound: no memory for it");
    bool chosen = place.near != NULL && place.other != NULL && bind_choose(&place, text);
    hwloc_bitmap_free(place.near);
    hwloc_bitmap_free(place.other);
    return chosen;
}

/* ---- binding --------------------------------------------------------------------------------- */

static bool bind_cpus(hwloc_topology_t hwloc, hwloc_const_bitmap_t cpus)
{
    return hwloc_set_cpubind(hwloc, cpus, HWLOC_CPUBIND_THREAD) == 0;
}

/* Memory goes elsewhere only where these nodes have none left: not STRICT. What may not be bound
 * (containers often forbid it) still comes from the node of the core that touches it first. */
static void bind_memory(hwloc_topology_t hwloc, hwloc_const_bitmap_t nodes,
                        char text[TESS_BIND_TEXT])
{
    size_t used = strlen(text);
    if (hwloc_set_membind(hwloc, nodes, HWLOC_MEMBIND_BIND,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
        snprintf(text + used, TESS_BIND_TEXT - used, ", memory free");
}

static bool bind_place(hwloc_topology_t hwloc, const struct tess__bind_request *request,
                       char text[TESS_BIND_TEXT])
{
    hwloc_bitmap_t own = hwloc_bitmap_alloc(), cpus = hwloc_bitmap_alloc();
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    bool bound = false;
    snprintf(text, TESS_BIND_TEXT, "not bound: no memory for it");
    if (own && cpus && nodes) {
        tess__hwloc_own(hwloc, own);
        bound = tess__bind_choose(hwloc, own, request, cpus, nodes, text);
    }
    if (bound && !bind_cpus(hwloc, cpus)) {
        snprintf(text, TESS_BIND_TEXT, "not bound: %s", strerror(errno));
        bound = false;
    }
    if (bound) {
        for (unsigned i = 0; i < BIND_WORDS; i++)
            bind_thread.cpus[i] = hwloc_bitmap_to_ith_ulong(cpus, i);
        bind_thread.bound = true;
        bind_thread.machine = hwloc;
        bind_memory(hwloc, nodes, text);
    }
    hwloc_bitmap_free(own);
    hwloc_bitmap_free(cpus);
    hwloc_bitmap_free(nodes);
    return bound;
}

bool tess_bind_place(int32_t at, int32_t count, const char *const *bus, char text[TESS_BIND_TEXT])
{
    const char *why = NULL;
    bool devices = false;
    for (int32_t i = 0; bus && i < count; i++)
        devices = devices || bus[i];
    hwloc_topology_t hwloc = bind_machine(devices);
    if (!hwloc)
        why = "hwloc cannot load this machine";
    else if (!hwloc_topology_is_thissystem(hwloc))
        why = "hwloc describes another machine than this";
    else if (!hwloc_topology_get_support(hwloc)->cpubind->set_thisthread_cpubind)
        why = "this system binds no threads";
    else if (count < 1 || at < 0 || at >= count)
        why = "no such place";
    if (why) {
        snprintf(text, TESS_BIND_TEXT, "not bound: %s", why);
        return false;
    }
    return bind_place(hwloc, &(struct tess__bind_request){.bus = bus, .at = at, .count = count},
                      text);
}

bool tess_bind_check(void)
{
    if (!bind_thread.bound)
        return true;
    hwloc_bitmap_t ours = hwloc_bitmap_alloc(), now = hwloc_bitmap_alloc();
    bool kept = true;
    if (ours && now) {
        for (unsigned i = 0; i < BIND_WORDS; i++)
            hwloc_bitmap_set_ith_ulong(ours, i, bind_thread.cpus[i]);
        kept = hwloc_get_cpubind(bind_thread.machine, now, HWLOC_CPUBIND_THREAD) == 0 &&
               hwloc_bitmap_isequal(ours, now);
        if (!kept && !bind_cpus(bind_thread.machine, ours))
            tess_log(TESS_LOG_WARN,
                     "a rank's thread lost its cores, and binding it again failed: "
                     "%s",
                     strerror(errno));
    }
    hwloc_bitmap_free(ours);
    hwloc_bitmap_free(now);
    return kept;
}
