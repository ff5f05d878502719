/* Which table of own loops this x86 processor runs, and whether it runs the own kernels. */
#include "cpu/cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

const struct cpu_loops *tess__cpu_loops_best(void)
{
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return v4 ? &tess__cpu_loops_v4 : v3 ? &tess__cpu_loops_v3 : &tess__cpu_loops_base;
}

static const struct cpu_own own_vectors = {
#define OWN_ENTRY(type, name) .name = tess__cpu_##name,
    CPU_OWN_LIST(OWN_ENTRY)
#undef OWN_ENTRY
};

/* Linux keeps the tiles of a process only if it asked for them, once, before it uses them. */
#define OWN_REQUEST_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM of asm/prctl.h */
#define OWN_TILE_DATA     18     /* the part of a thread's state */

static bool own_has_bf16, own_has_tiles;
static struct cpu_own own_tiles;
static pthread_once_t own_looked = PTHREAD_ONCE_INIT;

/* Once: virtual machines trap the instruction, and every product asks. */
static void own_look(void)
{
    /* AMX-BF16 and AMX-TILE, for which not all compilers have names. */
    const unsigned wanted = 1u << 22 | 1u << 24;
    unsigned a, b, c, d;
    own_has_bf16 =
        tess__cpu_loops_best() == &tess__cpu_loops_v4 && __builtin_cpu_supports("avx512bf16") != 0;
    own_has_tiles = own_has_bf16 && tess__cpu_library_tiles() &&
                    __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
                    syscall(SYS_arch_prctl, OWN_REQUEST_STATE, OWN_TILE_DATA) == 0;
    own_tiles = own_vectors;
#define OWN_ENTRY(type, name) own_tiles.name = tess__amx_##name;
    CPU_AMX_LIST(OWN_ENTRY)
    CPU_TILE_LIST(OWN_ENTRY)
#undef OWN_ENTRY
}

const struct cpu_own *tess__cpu_own(enum tess_dtype dtype)
{
    if (dtype == TESS_F32)
        return tess__cpu_loops_best() == &tess__cpu_loops_v4 ? &own_vectors : NULL;
    if (tess__cpu_tiles())
        return &own_tiles;
    return own_has_bf16 ? &own_vectors : NULL;
}

bool tess__cpu_tiles(void)
{
    (void)pthread_once(&own_looked, own_look);
    return own_has_tiles;
}

bool tess__cpu_bf16_available(void)
{
    return tess__cpu_loops_best() == &tess__cpu_loops_v4;
}
