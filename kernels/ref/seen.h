/*
 * How the thread sanitizer sees ref's inner loops: the arrays as a whole, which finds what their
 * elements one by one would, in a fraction of the time. Without it, nothing.
 */
#ifndef KERNELS_REF_SEEN_H
#define KERNELS_REF_SEEN_H

#include <stdint.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REF_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define REF_THREAD_SANITIZER
#endif

#ifdef REF_THREAD_SANITIZER
/* Of its run-time library. */
void __tsan_read_range(void *array, unsigned long bytes);
void __tsan_write_range(void *array, unsigned long bytes);

/* A function that reports its accesses by the two below. */
#define REF_SEEN __attribute__((no_sanitize("thread"), noinline, unused))

REF_SEEN static void ref_reads(const float *x, int64_t count)
{
    if (count > 0)
        __tsan_read_range((void *)(uintptr_t)x, (unsigned long)count * sizeof(*x));
}

REF_SEEN static void ref_changes(float *x, int64_t count)
{
    if (count > 0)
        __tsan_write_range(x, (unsigned long)count * sizeof(*x));
}
#else
#define REF_SEEN inline

static inline void ref_reads(const float *x, int64_t count)
{
    (void)x, (void)count;
}

static inline void ref_changes(float *x, int64_t count)
{
    (void)x, (void)count;
}
#endif

#endif
