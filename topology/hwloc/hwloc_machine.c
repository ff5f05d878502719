/*
 * Loads this machine into libhwloc and lists the cores that the process may use. live_hwloc.c
 * describes the machine from it, bind_hwloc.c binds ranks to it.
 */
#include "topology/hwloc/hwloc_machine.h"
#include "tessera/check.h"

#include <pthread.h>
#include <stdlib.h>

/*
 * Parts of hwloc that query drivers would start CUDA in a process that is still to be forked, or
 * open a display; other files query the driver. Nor is libpciaccess ("pci") needed, which never
 * gives its memory back: without it hwloc reads PCI from /sys. Names that it does not have are no
 * errors.
 */
static const char *const machine_left_out[] = {"cuda",   "nvml", "rsmi", "levelzero",
                                               "opencl", "gl",   "pci"};

enum tess_status tess__hwloc_machine(bool io, hwloc_topology_t *hwloc_out)
{
    hwloc_topology_t hwloc;
    if (hwloc_topology_init(&hwloc) != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for this machine");
    for (size_t i = 0; i < sizeof(machine_left_out) / sizeof(machine_left_out[0]); i++)
        hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      machine_left_out[i]);
    if (hwloc_topology_set_io_types_filter(hwloc, io ? HWLOC_TYPE_FILTER_KEEP_ALL
                                                     : HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_load(hwloc) != 0) {
        hwloc_topology_destroy(hwloc);
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "hwloc cannot load this machine: try lstopo, and unset "
                                        "HWLOC_XMLFILE where it names no file of hwloc's");
    }
    *hwloc_out = hwloc;
    return TESS_OK;
}

void tess__hwloc_own(hwloc_topology_t hwloc, hwloc_bitmap_t cpus)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static hwloc_bitmap_t first; /* kept until the process ends */
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(hwloc);
    hwloc_bitmap_copy(cpus, allowed);
    if (!hwloc_topology_is_thissystem(hwloc))
        return;
    pthread_mutex_lock(&lock);
    if (!first && (first = hwloc_bitmap_alloc()) &&
        hwloc_get_cpubind(hwloc, first, HWLOC_CPUBIND_THREAD) != 0)
        hwloc_bitmap_copy(first, allowed);
    if (first && hwloc_bitmap_intersects(first, allowed))
        hwloc_bitmap_and(cpus, first, allowed);
    pthread_mutex_unlock(&lock);
}

enum tess_status tess__hwloc_cores(hwloc_topology_t hwloc, hwloc_const_bitmap_t cpus,
                                   struct tess__hwloc_cores *cores_out)
{
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int total = hwloc_get_nbobjs_by_type(hwloc, type);
    size_t room = total > 0 ? (size_t)total : 1;
    struct tess__hwloc_cores cores = {.core = malloc(room * sizeof(*cores.core)),
                                      .numa = malloc(room * sizeof(*cores.numa))};
    hwloc_bitmap_t left = hwloc_bitmap_dup(cpus); /* memory nodes may share their cores */
    if (!cores.core || !cores.numa || !left) {
        hwloc_bitmap_free(left);
        tess__hwloc_cores_free(&cores);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the machine's cores");
    }
    for (hwloc_obj_t numa = NULL;
         (numa = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, numa));) {
        for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(hwloc, type, core));) {
            if (!hwloc_bitmap_intersects(core->cpuset, left) ||
                !hwloc_bitmap_intersects(core->cpuset, numa->cpuset))
                continue;
            hwloc_bitmap_andnot(left, left, core->cpuset);
            cores.core[cores.count] = core;
            cores.numa[cores.count++] = (int32_t)numa->os_index;
        }
    }
    hwloc_bitmap_free(left);
    *cores_out = cores;
    return TESS_OK;
}

void tess__hwloc_cores_free(struct tess__hwloc_cores *cores)
{
    free(cores->core);
    free(cores->numa);
    *cores = (struct tess__hwloc_cores){.count = 0};
}
