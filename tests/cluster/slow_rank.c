/*
 * Preloaded into ranks: rank $SLOW_RANK computes slower, as with a throttled processor. After every
 * 10 ms of work a signal takes it another 20 ms. Waiting for others is not longer.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SLOW_EVERY_US 30000
#define SLOW_FOR_NS   20000000

static long long slow_worked_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void slow_down(int signal)
{
    const long long end_ns = slow_worked_ns() + SLOW_FOR_NS;
    (void)signal;
    while (slow_worked_ns() < end_ns)
        continue;
}

/* A rank gives its thread a name. */
int prctl(int option, ...)
{
    const struct sigaction action = {.sa_handler = slow_down, .sa_flags = SA_RESTART};
    const struct itimerval every = {{0, SLOW_EVERY_US}, {0, SLOW_EVERY_US}};
    const char *rank = getenv("SLOW_RANK");
    unsigned long argument[4];
    char name[32];
    va_list rest;

    va_start(rest, option);
    for (int i = 0; i < 4; i++)
        argument[i] = va_arg(rest, unsigned long);
    va_end(rest);
    if (option == PR_SET_NAME && rank != NULL) {
        snprintf(name, sizeof(name), "tessera rank %s", rank);
        if (strcmp(name, (const char *)argument[0]) == 0) {
            sigaction(SIGPROF, &action, NULL);
            setitimer(ITIMER_PROF, &every, NULL);
        }
    }
    return (int)syscall(SYS_prctl, option, argument[0], argument[1], argument[2], argument[3]);
}
