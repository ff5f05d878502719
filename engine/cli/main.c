/* The program: the commands and their options are in command.c and its kin. */
#include "text/command.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#define MAIN_STACK_BYTES ((size_t)8 << 20)
#define MAIN_STACK_LEAST ((size_t)1 << 20) /* functions need a few hundred KiB */

struct main_call {
    int argc;
    char **argv;
    int code;
};

static void *main_run(void *context)
{
    struct main_call *call = context;
    call->code = tess__main(call->argc, call->argv);
    return NULL;
}

/* Where a limit (ulimit -s) leaves too little stack, the program and all threads that it starts run
 * on stacks of the usual size. */
int main(int argc, char **argv)
{
    struct main_call call = {argc, argv, 1};
    struct rlimit limit;
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= MAIN_STACK_LEAST)
        return tess__main(argc, argv);
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, MAIN_STACK_BYTES);
    (void)pthread_setattr_default_np(&attr);
    /* Signals go to the program's thread: here one that it waits for (SIGCHLD) would be lost. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_setsigmask_np(&attr, &before);
    const int error = pthread_create(&thread, &attr, main_run, &call);
    pthread_attr_destroy(&attr);
    if (error != 0) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return tess__main(argc, argv);
    }
    pthread_join(thread, NULL);
    return call.code;
}
