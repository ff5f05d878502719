/* Which tables of own loops and of own kernels this x86 processor runs. */
#include "cpu/cpu.h"

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux keeps the tiles of a process only if it asked for them, once, before it uses them. */
#define OWN_REQUEST_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM of asm/prctl.h */
#define OWN_TILE_DATA     18     /* the part of a thread's state */

static const struct cpu_loops *own_loops;
static const struct cpu_own *own_f32, *own_bf16; /* or NULL */
static bool own_has_tiles;
static struct cpu_own own_tiles;
static pthread_once_t own_looked = PTHREAD_ONCE_INIT;

static const struct cpu_loops *own_loops_of(void)
{
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && tess__cpu_library_avx512() && __builtin_cpu_supports("avx512f") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return v4 ? &tess__cpu_loops_v4 : v3 ? &tess__cpu_loops_v3 : &tess__cpu_loops_base;
}

/* Once: virtual machines trap the instruction, and every product asks. */
static void own_look(void)
{
    /* AMX-BF16 and AMX-TILE, for which not all compilers have names. */
    const unsigned wanted = 1u << 22 | 1u << 24;
    unsigned a, b, c, d;
    own_loops = own_loops_of();
    if (own_loops == &tess__cpu_loops_base)
        return;
    own_f32 = own_loops == &tess__cpu_loops_v4 ? &tess__cpu_v4_own : &tess__cpu_v3_own;
    own_bf16 = __builtin_cpu_supports("avx512bf16") ? own_f32 : &tess__cpu_v3_own;
    own_has_tiles = own_bf16 == &tess__cpu_v4_own && tess__cpu_library_tiles() &&
                    __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
                    syscall(SYS_arch_prctl, OWN_REQUEST_STATE, OWN_TILE_DATA) == 0;
    if (!own_has_tiles)
        return;
    own_tiles = tess__cpu_v4_own;
#define OWN_ENTRY(type, name) own_tiles.name = tess__amx_##name;
    CPU_AMX_LIST(OWN_ENTRY)
#undef OWN_ENTRY
    own_bf16 = &own_tiles;
}

const struct cpu_loops *tess__cpu_loops_best(void)
{
    (void)pthread_once(&own_looked, own_look);
    return own_loops;
}

const struct cpu_own *tess__cpu_own(enum tess_dtype dtype)
{
    (void)pthread_once(&own_looked, own_look);
    return dtype == TESS_F32 ? own_f32 : own_bf16;
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
