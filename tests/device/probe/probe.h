/*
 * Probes of a machine's device, for the first seconds of bench/gpu_check.sh: small questions, each
 * answered by a process of its own, so that one that hangs or dies answers for itself alone.
 *
 *   probe_cuda NAME   CUDA's runtime, without this project's module
 *   probe_nccl NAME   NCCL, without it: two processes on one device
 *   probe NAME        the module, through the table of kernels: results beside those of `ref`
 *
 * `--list` prints the names. Exit status 0: yes, 1: no, 77: there is nothing to ask here. What is
 * printed is for the table: how far it came, and the library's own words where it failed.
 */
#ifndef TESTS_DEVICE_PROBE_H
#define TESTS_DEVICE_PROBE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct probe {
    const char *name;
    void (*run)(void);
};

/* The process ends; after `status` 1 the answer is no. */
__attribute__((noreturn, format(printf, 2, 3))) static inline void probe_end(int status,
                                                                             const char *format,
                                                                             ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    exit(status);
}

/* Printed at once: the next step may never end. */
__attribute__((format(printf, 1, 2))) static inline void probe_note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

static inline int probe_main(const struct probe *probe, size_t count, int argc, char **argv)
{
    const char *name = argc == 2 ? argv[1] : "";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, "--list") == 0)
            printf("%s\n", probe[i].name);
        else if (strcmp(name, probe[i].name) == 0)
            return probe[i].run(), printf("\n"), 0;
    }
    if (strcmp(name, "--list") == 0)
        return 0;
    fprintf(stderr, "usage: %s --list | NAME\n", argv[0]);
    return 2;
}

#endif
