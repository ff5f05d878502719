/*
 * Where the ranks of a communicator meet: memory without a name in any folder, which the unique id
 * finds by the process that made it. Nothing is left of it once that process and the ranks are
 * gone, in whatever way they went.
 */
#include "device/madeup/nccl_madeup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_WORD 0x6d616465756e6363u
#define SEGMENT_PAGE ((size_t)4096)

struct segment_id {
    uint64_t word, key;
    int32_t process, descriptor;
};
_Static_assert(sizeof(struct segment_id) <= sizeof(ncclUniqueId), "it fits");

ncclResult_t madeup_segment_id(ncclUniqueId *id_out)
{
    struct segment_id id = {.word = SEGMENT_WORD, .process = (int32_t)getpid()};
    if (getrandom(&id.key, sizeof(id.key), 0) != (ssize_t)sizeof(id.key))
        return madeup_nccl_say(ncclSystemError, "no random number: %s", strerror(errno));
    id.descriptor = memfd_create("madeup-nccl", MFD_CLOEXEC);
    if (id.descriptor < 0 ||
        pwrite(id.descriptor, &id.key, sizeof(id.key), 0) != (ssize_t)sizeof(id.key))
        return madeup_nccl_say(ncclSystemError, "no shared memory: %s", strerror(errno));
    memset(id_out, 0, sizeof(*id_out));
    memcpy(id_out, &id, sizeof(id));
    return ncclSuccess;
}

static size_t segment_round(size_t bytes)
{
    return (bytes + SEGMENT_PAGE - 1) / SEGMENT_PAGE * SEGMENT_PAGE;
}

/* The descriptor may have been closed, and its number be another file's. */
static bool segment_is(int descriptor, const struct segment_id *id)
{
    uint64_t key = 0;
    return pread(descriptor, &key, sizeof(key), 0) == (ssize_t)sizeof(key) && key == id->key;
}

ncclResult_t madeup_segment_open(const ncclUniqueId *named, int count,
                                 struct madeup_segment *segment)
{
    struct segment_id id;
    char path[64];
    uint32_t none = 0;
    memcpy(&id, named, sizeof(id));
    if (id.word != SEGMENT_WORD)
        return madeup_nccl_say(ncclInvalidArgument, "this is no unique id");
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)id.process, (int)id.descriptor);
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    const size_t seats = segment_round(sizeof(struct madeup_seat) * (size_t)count);
    const size_t bytes = SEGMENT_PAGE + seats + sizeof(struct madeup_box) * (size_t)(count * count);
    char *memory = MAP_FAILED;
    if (descriptor >= 0 && segment_is(descriptor, &id) && ftruncate(descriptor, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (descriptor >= 0)
        close(descriptor);
    if (memory == MAP_FAILED)
        return madeup_nccl_say(ncclSystemError, "the process that made the unique id is gone");
    *segment = (struct madeup_segment){.head = (void *)memory,
                                       .seat = (void *)(memory + SEGMENT_PAGE),
                                       .box = (void *)(memory + SEGMENT_PAGE + seats),
                                       .bytes = bytes,
                                       .count = count};
    if (!atomic_compare_exchange_strong(&segment->head->count, &none, (uint32_t)count) &&
        none != (uint32_t)count)
        madeup_fail("ncclCommInitRankConfig: one rank says that there are %u ranks, another %d",
                    none, count);
    return ncclSuccess;
}

void madeup_segment_hide(const ncclUniqueId *named)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct segment_id id;
    memcpy(&id, named, sizeof(id));
    if (id.process != (int32_t)getpid())
        return;
    pthread_mutex_lock(&lock);
    if (segment_is(id.descriptor, &id))
        close(id.descriptor);
    pthread_mutex_unlock(&lock);
}

void madeup_segment_close(struct madeup_segment *segment)
{
    if (segment->head != NULL)
        munmap(segment->head, segment->bytes);
    segment->head = NULL;
}

uint32_t madeup_segment_bell(struct madeup_segment *segment)
{
    return atomic_load(&segment->head->bell);
}

void madeup_segment_ring(struct madeup_segment *segment)
{
    atomic_fetch_add(&segment->head->bell, 1);
    syscall(SYS_futex, &segment->head->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void madeup_segment_wait(struct madeup_segment *segment, uint32_t bell)
{
    struct timespec limit = {.tv_nsec = 1000000};
    syscall(SYS_futex, &segment->head->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
}
