/* How long the operations of a virtual kernel take; see virtual_slots.h. */
#include "predict/virtual_slots.h"

#include <math.h>

void kernel_pass(struct tess_kernel *kernel, double bytes)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const double seconds = tess_profile_pass_s(rank->world->profile, bytes);
    virtual_work(rank, VIRTUAL_PASS, seconds);
}

/* `arrays` of so many elements. */
void kernel_arrays(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, double arrays)
{
    kernel_pass(kernel, arrays * kernel_bytes(dtype, count));
}

/* What the operation before has touched comes after as many bytes again. */
#define NEAR_TIMES 2

double kernel_near_s(const struct virtual_rank *rank, double bytes)
{
    const struct virtual_world *world = rank->world;
    return tess_profile_lost_s(&world->profile->cache_one,
                               NEAR_TIMES * bytes * fmax(1, world->alike));
}

/* Of what such operations read and write the share that was last touched a step ago: what forward
 * writes for backward, and what backward reads of it. */
#define WORK_FAR 0.5

/* An operation that may have a time of its own for an element. `math`: of a function of each. */
void kernel_work(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype, bool math,
                 double elements, double bytes)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const int width = dtype == TESS_F32 ? TESS_WIDTH_32 : TESS_WIDTH_16;
    const struct tess_profile *profile = rank->world->profile;
    const double near_s = tess_profile_work_s(profile, work, width, math, elements, bytes);
    virtual_work(rank, VIRTUAL_PASS,
                 near_s + WORK_FAR * bytes * rank->far_s +
                     (1 - WORK_FAR) * bytes * kernel_near_s(rank, bytes));
}

/* `arrays` of `count` elements each. */
void kernel_plain(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype,
                  int64_t count, double arrays)
{
    kernel_work(kernel, work, dtype, false, (double)count, arrays * kernel_bytes(dtype, count));
}

/* The same with a function of each element. */
void kernel_math(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype,
                 int64_t count, double arrays)
{
    kernel_work(kernel, work, dtype, true, (double)count, arrays * kernel_bytes(dtype, count));
}

void kernel_far(struct tess_kernel *kernel, enum tess_work work, int width, double calls,
                double elements, double bytes, double far_bytes)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    const struct tess_profile *profile = rank->world->profile;
    const bool host = profile->work_s[work][TESS_WIDTH_32] > 0;
    const int measured = profile->work_s[work][width] > 0 ? width : TESS_WIDTH_32;
    const double near_s = tess_profile_work_s(profile, work, measured, false, elements, bytes);
    const double seconds = near_s + far_bytes * rank->far_s;
    virtual_work(rank, VIRTUAL_PASS, seconds + (host ? (calls - 1) * profile->start_s : 0));
}
