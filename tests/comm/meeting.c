/* Ranks that meet over TCP; see meeting.h. */
#include "meeting.h"

#include "base/clock.h"
#include "harness/free_port.h"
#include "tessera/log.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct meeting meeting_of(int32_t ranks, const char *address)
{
    struct meeting meeting = {.timeout_s = 20, .absent = -1};
    meeting.env = (struct tess_boot_env){
        .starter = "test", .rank_count = ranks, .port = free_port(), .job = 77};
    snprintf(meeting.env.address, sizeof(meeting.env.address), "%s", address);
    meeting.outcome = mmap(NULL, RANKS_MAX * sizeof(*meeting.outcome), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meeting.outcome != MAP_FAILED);
    return meeting;
}

void meeting_free(struct meeting *meeting)
{
    munmap(meeting->outcome, RANKS_MAX * sizeof(*meeting->outcome));
}

enum tess_status gather_checked(struct tess_boot *boot, size_t bytes)
{
    unsigned char *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)boot->rank_count + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = (unsigned char)(37 * boot->rank + 11 * (int)(i % 251) + (int)bytes);
    enum tess_status status = boot->gather(boot->context, mine, bytes, all);
    for (int32_t r = 0; status == TESS_OK && r < boot->rank_count; r++)
        for (size_t i = 0; i < bytes; i++)
            if (all[(size_t)r * bytes + i] !=
                (unsigned char)(37 * r + 11 * (int)(i % 251) + (int)bytes))
                status = tess_fail(TESS_ERR_DATA, "rank %d: byte %zu of rank %d", (int)boot->rank,
                                   i, (int)r);
    free(mine);
    free(all);
    return status;
}

enum tess_status gather_many(struct tess_boot *boot)
{
    static const size_t bytes[] = {8, 0, 1, 300000, 128};
    enum tess_status status = TESS_OK;
    for (size_t i = 0; i < sizeof(bytes) / sizeof(*bytes) && status == TESS_OK; i++)
        status = gather_checked(boot, bytes[i]);
    return status;
}

void meet_as(struct meeting *meeting, int32_t rank)
{
    struct outcome *outcome = &meeting->outcome[rank];
    struct tess_boot *boot = NULL;
    double start_s = tess_clock_s();
    meeting->env.rank = rank;
    outcome->status = tess_boot_open(&meeting->env, meeting->timeout_s, &boot);
    /* On rank 0's host, seen by the loopback: found by its address. */
    if (outcome->status == TESS_OK && strncmp(meeting->env.address, "127.", 4) == 0 &&
        strcmp(boot->address, meeting->env.address) != 0)
        outcome->status = tess_fail(TESS_ERR_DATA, "rank %d is at %s", (int)rank, boot->address);
    if (outcome->status == TESS_OK)
        outcome->status = (meeting->then != NULL ? meeting->then : gather_many)(boot);
    outcome->seconds = tess_clock_s() - start_s;
    if (outcome->status != TESS_OK)
        snprintf(outcome->error, sizeof(outcome->error), "%s", tess_log_last_error());
    tess_boot_close(boot);
}

pid_t meet_fork(struct meeting *meeting, int32_t rank)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        tess_log_set_level(TESS_LOG_ERROR);
        meet_as(meeting, rank);
        _exit(0);
    }
    return pid;
}

void meet_all(struct meeting *meeting)
{
    pid_t pid[RANKS_MAX] = {0};
    /* Rank 0 last: the others find no listener at first. */
    for (int32_t r = meeting->env.rank_count - 1; r >= 0; r--)
        if (r != meeting->absent)
            pid[r] = meet_fork(meeting, r);
    for (int32_t r = 0; r < meeting->env.rank_count; r++)
        if (pid[r] > 0) {
            int status = -1;
            assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
            assert_int_equal(status, 0);
        }
}

int stray_connect(int32_t port)
{
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int tries = 0; tries < 100; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0)
            return fd;
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return -1;
}
