/* Ranks that meet over TCP, each in a process of its own, which leaves its status and its last
 * error in shared memory. */
#ifndef TESSERA_TESTS_COMM_MEETING_H
#define TESSERA_TESTS_COMM_MEETING_H

#include "comm/boot/boot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/types.h>

#define RANKS_MAX 48

struct outcome {
    enum tess_status status;
    char error[600];
    double seconds;
};

struct meeting {
    struct tess_boot_env env; /* without the rank */
    double timeout_s;
    int32_t absent; /* this rank is not started; -1: all are */
    /* After the meeting; NULL: one gather that is checked. */
    enum tess_status (*then)(struct tess_boot *boot);
    struct outcome *outcome; /* [RANKS_MAX], shared */
};

struct meeting meeting_of(int32_t ranks, const char *address);
void meeting_free(struct meeting *meeting);

/* Every rank brings `bytes` bytes that only it can have made, and finds those of all. */
enum tess_status gather_checked(struct tess_boot *boot, size_t bytes);
enum tess_status gather_many(struct tess_boot *boot);

void meet_as(struct meeting *meeting, int32_t rank);
pid_t meet_fork(struct meeting *meeting, int32_t rank);
void meet_all(struct meeting *meeting);

/* A connection that says nothing, as soon as somebody listens; -1: nobody does. */
int stray_connect(int32_t port);

#define assert_contains(text, words)                                                               \
    do {                                                                                           \
        if (strstr((text), (words)) == NULL)                                                       \
            fail_msg("'%s' does not contain '%s'", (text), (words));                               \
    } while (0)

#endif
