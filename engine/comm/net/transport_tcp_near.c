/*
 * Messages between ranks of one host, by one copy: the receiver reads the sender's memory. Whether
 * the system allows that (Yama, seccomp, namespaces, a kernel without the call) is tried once for
 * each pair: each rank has drawn a mark that others find at the address which it has announced.
 * Where they do not, messages go over the socket.
 *
 * The mark stands as long as the sender holds what it has offered. Why that is enough: a sender
 * clears its mark before its caller gets an error, and so before memory is used for something
 * else; a receiver reads the payload first and the mark afterwards. If it finds the mark, the
 * payload was read before it was cleared.
 */
#include "comm/net/transport_tcp.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>

/* gcc's thread sanitizer refuses fences. */
static void near_fence(void)
{
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static ssize_t near_read(int32_t pid, void *to, uint64_t from, size_t bytes)
{
    const struct iovec here = {to, bytes};
    const struct iovec there = {(void *)(uintptr_t)from, bytes};

    return process_vm_readv(pid, &here, 1, &there, 1, 0);
}

/* Is the mark there? Else errno: 0 where it is another one. */
static bool near_finds(const struct tcp_near *near)
{
    uint64_t mark = 0;

    errno = 0;
    return near_read(near->pid, &mark, near->address, sizeof(mark)) == (ssize_t)sizeof(mark) &&
           mark == near->mark;
}

bool tess__tcp_near_open(struct tcp *tcp)
{
    uint64_t mark = 0;
    const bool drawn = getrandom(&mark, sizeof(mark), 0) == (ssize_t)sizeof(mark);

    atomic_store(&tcp->mark, mark | 1);
    /* Yama lets ancestors alone read a process that does not say otherwise. Without it: EINVAL. */
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    return drawn;
}

uint64_t tess__tcp_near_space(const char *kernel)
{
    struct stat space = {.st_ino = 0};

    (void)stat("/proc/self/ns/pid", &space);
    return tess_hash_mix(tess_hash_bytes(kernel, strlen(kernel)) + (uint64_t)space.st_ino);
}

bool tess__tcp_near_reads(struct tcp *tcp, int32_t r)
{
    const struct tcp_near *near = &tcp->near[r];

    if (near->pid == 0 || near_finds(near))
        return near->pid != 0;
    tess_log(TESS_LOG_DEBUG, "messages from rank %d come over a socket, not by memory: %s", (int)r,
             errno != 0 ? strerror(errno) : "its memory has other contents");
    return false;
}

void tess__tcp_near_end(struct tcp *tcp)
{
    atomic_store(&tcp->mark, 0);
    near_fence(); /* before what its memory has next */
}

/* After a copy, or one that failed. EFAULT: the process has another program, or is about to end;
 * ESRCH: it has ended. Other errors are of what this process may. */
static enum tcp_near_copy near_check(const struct tcp_near *near, enum tcp_near_copy found)
{
    near_fence(); /* first the payload, then the mark */
    if (near_finds(near))
        return found;
    return errno == 0 || errno == EFAULT || errno == ESRCH ? TCP_COPY_LOST : TCP_COPY_REFUSED;
}

enum tcp_near_copy tess__tcp_near_copy(const struct tcp *tcp, struct tcp_request *request,
                                       size_t *room)
{
    const struct tcp_near *near = &tcp->near[request->peer];
    const size_t left = request->head.bytes - request->moved, bytes = left < *room ? left : *room;
    const ssize_t got = near_read(near->pid, request->data + request->moved,
                                  request->offered + request->moved, bytes);

    if (got <= 0)
        return near_check(near, TCP_COPY_REFUSED);
    request->moved += (size_t)got;
    *room -= (size_t)got;
    return request->moved < request->head.bytes ? TCP_COPY_PART : near_check(near, TCP_COPY_DONE);
}
