/*
 * Communicators. What takes other ranks is done by a job, a thread, while the state is
 * ncclInProgress; calls on a communicator in that state are refused with ncclInvalidArgument, as
 * by NCCL's ncclCommEnsureReady. Destroying and aborting are not done by jobs, for NCCL blocks
 * there whatever the configuration says.
 */
#include "device/madeup/nccl_madeup.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMM_MAGIC 0x636f6d6d756e6963u

/* ---- words ----------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    char text[512];
} comm_words = {.lock = PTHREAD_MUTEX_INITIALIZER};

ncclResult_t madeup_nccl_say(ncclResult_t result, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&comm_words.lock);
    vsnprintf(comm_words.text, sizeof(comm_words.text), format, list);
    pthread_mutex_unlock(&comm_words.lock);
    va_end(list);
    return result;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static __thread char text[sizeof(comm_words.text)];
    (void)comm;
    pthread_mutex_lock(&comm_words.lock);
    memcpy(text, comm_words.text, sizeof(text));
    pthread_mutex_unlock(&comm_words.lock);
    return text;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

ncclResult_t ncclGetVersion(int *version)
{
    const int injected = madeup_injected("ncclGetVersion", ncclSystemError);
    if (injected != 0)
        return (ncclResult_t)injected;
    *version = madeup_nccl_version();
    return ncclSuccess;
}

int madeup_nccl_version(void)
{
    const char *text = getenv("MADEUP_NCCL_VERSION");
    const int version = text != NULL ? atoi(text) : NCCL_VERSION_CODE;
    if (version < 22200 || version > NCCL_VERSION_CODE)
        madeup_fail("MADEUP_NCCL_VERSION is '%s', not a code from 22200 to %d", text,
                    NCCL_VERSION_CODE);
    return version;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const int injected = madeup_injected("ncclGetUniqueId", ncclSystemError);
    return injected != 0 ? (ncclResult_t)injected : madeup_segment_id(id);
}

/* ---- states and jobs ------------------------------------------------------------------------- */

/* What every function of a communicator begins with. */
static ncclResult_t comm_valid(const struct ncclComm *comm, const char *function)
{
    const int injected = madeup_injected(function, ncclSystemError);
    if (injected != 0)
        return (ncclResult_t)injected;
    if (comm == NULL)
        return madeup_nccl_say(ncclInvalidArgument, "%s: the communicator is NULL", function);
    if (comm->magic != COMM_MAGIC)
        madeup_fail("%s: this is no communicator, or none any more", function);
    return ncclSuccess;
}

ncclResult_t madeup_comm_check(struct ncclComm *comm, const char *function)
{
    ncclResult_t result = comm_valid(comm, function);
    if (result != ncclSuccess)
        return result;
    if (comm->finalized)
        return madeup_nccl_say(ncclInvalidArgument, "%s: the communicator has been finalized",
                               function);
    result = (ncclResult_t)atomic_load(&comm->state);
    if (result == ncclInProgress)
        return madeup_nccl_say(ncclInvalidArgument,
                               "%s: attempt to use the communicator before the previous operation "
                               "returned ncclSuccess",
                               function);
    return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result_out)
{
    const ncclResult_t result = comm_valid(comm, "ncclCommGetAsyncError");
    if (result == ncclSuccess)
        *result_out = (ncclResult_t)atomic_load(&comm->state);
    return result;
}

static void *job_thread(void *context)
{
    struct madeup_job job = *(struct madeup_job *)context;
    free(context);
    const ncclResult_t result = job.run(job.comm, &job);
    atomic_store(&job.comm->state, (int)result);
    return NULL;
}

static void job_join(struct ncclComm *comm)
{
    if (comm->threaded)
        pthread_join(comm->thread, NULL);
    comm->threaded = false;
}

ncclResult_t madeup_job_start(struct ncclComm *comm, const struct madeup_job *job)
{
    struct madeup_job *copy = malloc(sizeof(*copy));
    if (copy == NULL)
        madeup_fail("NCCL: no memory");
    *copy = *job;
    copy->comm = comm;
    job_join(comm);
    atomic_store(&comm->state, ncclInProgress);
    if (comm->blocking) {
        (void)job_thread(copy);
        return (ncclResult_t)atomic_load(&comm->state);
    }
    if (pthread_create(&comm->thread, NULL, job_thread, copy) != 0)
        madeup_fail("NCCL: no thread");
    comm->threaded = true;
    return ncclInProgress;
}

ncclResult_t madeup_comm_exchange(struct ncclComm *comm, const void *mine, size_t bytes, void *all)
{
    struct madeup_segment *segment = &comm->segment;
    const uint64_t number = ++comm->exchanged;
    struct madeup_seat *own = &segment->seat[comm->rank];
    if (bytes > 0)
        memcpy(own->hello[number % 2], mine, bytes);
    atomic_store(&own->exchanged, number);
    madeup_segment_ring(segment);
    for (int r = 0; r < comm->count; r++) {
        for (;;) {
            const uint32_t bell = madeup_segment_bell(segment);
            if (atomic_load(&segment->seat[r].exchanged) >= number)
                break;
            if (atomic_load(&comm->aborted))
                return ncclInternalError;
            madeup_segment_wait(segment, bell);
        }
        if (bytes > 0)
            memcpy((char *)all + (size_t)r * bytes, segment->seat[r].hello[number % 2], bytes);
    }
    return ncclSuccess;
}

struct madeup_nccl_facts madeup_facts;

const struct madeup_nccl_facts *madeup_nccl_facts(void)
{
    return &madeup_facts;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

struct comm_hello {
    uint64_t host;
    int32_t device;
};

/* What distinguishes hosts for NCCL: the name, or what the user calls it. */
static uint64_t comm_host(int device)
{
    const char *name = getenv("NCCL_HOSTID");
    uint64_t hash = 1469598103934665603u;
    if (name == NULL)
        hash += (uint64_t)madeup_host(device);
    for (; name != NULL && *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

static ncclResult_t comm_compare(const struct ncclComm *comm, const struct comm_hello *all)
{
    const char *many = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (many != NULL && strcmp(many, "1") == 0)
        return ncclSuccess;
    for (int r = 0; r < comm->count; r++)
        if (r != comm->rank && all[r].host == all[comm->rank].host &&
            all[r].device == all[comm->rank].device)
            return madeup_nccl_say(ncclInvalidUsage,
                                   "Duplicate GPU detected : rank %d and rank %d both on CUDA "
                                   "device %d",
                                   comm->rank, r, (int)all[r].device);
    return ncclSuccess;
}

static ncclResult_t comm_meet(struct ncclComm *comm)
{
    struct comm_hello mine, all[MADEUP_RANKS];
    uint32_t none = 0;
    ncclResult_t result = madeup_segment_open(&comm->id, comm->count, &comm->segment);
    if (result != ncclSuccess)
        return result;
    if (!atomic_compare_exchange_strong(&comm->segment.seat[comm->rank].taken, &none, 1))
        madeup_fail("ncclCommInitRankConfig: two ranks are rank %d", comm->rank);
    memset(&mine, 0, sizeof(mine));
    mine.host = comm->host;
    mine.device = comm->device;
    result = madeup_comm_exchange(comm, &mine, sizeof(mine), all);
    if (result != ncclSuccess)
        return result;
    for (int r = 0; r < comm->count; r++)
        comm->hosts[r] = all[r].host;
    madeup_segment_hide(&comm->id);
    result = comm_compare(comm, all);
    if (result == ncclSuccess)
        madeup_wait_idle(comm->device); /* its buffers are allocated */
    /* No rank is done before all are. */
    return result == ncclSuccess ? madeup_comm_exchange(comm, NULL, 0, NULL) : result;
}

static ncclResult_t comm_init_job(struct ncclComm *comm, struct madeup_job *job)
{
    (void)job;
    return comm_meet(comm);
}

/* Of a configuration. */
struct comm_wish {
    bool blocking, copies;
};

static struct ncclComm *comm_new(int rank, int count, int device, const struct comm_wish *wish)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        madeup_fail("NCCL: no memory");
    comm->magic = COMM_MAGIC;
    comm->rank = rank;
    comm->count = count;
    comm->device = device;
    comm->blocking = wish->blocking;
    comm->copies = wish->copies;
    comm->host = comm_host(device);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->idle, NULL);
    return comm;
}

static ncclResult_t comm_check_config(const ncclConfig_t *config, struct comm_wish *wish)
{
    *wish = (struct comm_wish){.blocking = true};
    if (config == NULL)
        return ncclSuccess;
    if (config->magic != 0xcafebeef)
        return madeup_nccl_say(ncclInvalidArgument, "the configuration was not initialized");
    if (config->size > sizeof(*config))
        return madeup_nccl_say(ncclInvalidArgument, "a configuration of a newer NCCL");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        return madeup_nccl_say(ncclInvalidArgument, "blocking is %d", config->blocking);
    if ((config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs <= 0) ||
        (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs <= 0) ||
        config->minCTAs > config->maxCTAs)
        return madeup_nccl_say(ncclInvalidArgument, "minCTAs is %d, maxCTAs %d", config->minCTAs,
                               config->maxCTAs);
    const bool has_policy = config->size > offsetof(ncclConfig_t, CTAPolicy);
    if (has_policy && config->CTAPolicy != NCCL_CONFIG_UNDEF_INT &&
        (config->CTAPolicy < NCCL_CTA_POLICY_DEFAULT || config->CTAPolicy > NCCL_CTA_POLICY_ZERO))
        return madeup_nccl_say(ncclInvalidArgument, "CTAPolicy is %d", config->CTAPolicy);
    madeup_facts.max_ctas = config->maxCTAs;
    madeup_facts.cta_policy = has_policy ? config->CTAPolicy : NCCL_CONFIG_UNDEF_INT;
    wish->blocking = config->blocking != 0;
    wish->copies = has_policy && config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_out, int count, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct comm_wish wish;
    const int injected = madeup_injected("ncclCommInitRankConfig", ncclSystemError);
    if (injected != 0)
        return (ncclResult_t)injected;
    madeup_stall_call("ncclCommInitRankConfig");
    if (madeup_group_is_open())
        madeup_fail("ncclCommInitRankConfig in a group is not modelled");
    if (count > MADEUP_RANKS)
        madeup_fail("NCCL: %d ranks, and %d are modelled", count, MADEUP_RANKS);
    if (count < 1 || rank < 0 || rank >= count)
        return madeup_nccl_say(ncclInvalidArgument, "rank %d of %d", rank, count);
    const ncclResult_t result = comm_check_config(config, &wish);
    if (result != ncclSuccess)
        return result;
    struct ncclComm *comm = comm_new(rank, count, madeup_device(), &wish);
    comm->id = id;
    *comm_out = comm;
    return madeup_job_start(comm, &(struct madeup_job){.run = comm_init_job});
}

/* ---- splits ---------------------------------------------------------------------------------- */

struct comm_split {
    int32_t color, key;
};

/* The members of this rank's color, by key and rank. */
static int split_members(const struct ncclComm *comm, const struct comm_split *all, int *member,
                         int *rank_out)
{
    const struct comm_split mine = all[comm->rank];
    int count = 0;
    *rank_out = 0;
    for (int r = 0; r < comm->count; r++) {
        int at = count;
        if (all[r].color != mine.color)
            continue;
        while (at > 0 && all[member[at - 1]].key > all[r].key) {
            member[at] = member[at - 1];
            at--;
        }
        member[at] = r;
        count++;
    }
    for (int i = 0; i < count; i++)
        if (member[i] == comm->rank)
            *rank_out = i;
    return count;
}

static ncclResult_t comm_split_job(struct ncclComm *comm, struct madeup_job *job)
{
    struct comm_split mine = {job->color, job->key}, all[MADEUP_RANKS];
    int member[MADEUP_RANKS], rank;
    ncclUniqueId id = {{0}}, ids[MADEUP_RANKS];
    ncclResult_t result = madeup_comm_exchange(comm, &mine, sizeof(mine), all);
    if (result != ncclSuccess)
        return result;
    const int count = split_members(comm, all, member, &rank);
    if (job->color != NCCL_SPLIT_NOCOLOR && rank == 0)
        result = madeup_segment_id(&id);
    if (result == ncclSuccess)
        result = madeup_comm_exchange(comm, &id, sizeof(id), ids);
    if (result != ncclSuccess || job->color == NCCL_SPLIT_NOCOLOR)
        return result;
    struct ncclComm *child = job->argument;
    child->rank = rank;
    child->count = count;
    child->id = ids[member[0]];
    result = comm_meet(child);
    atomic_store(&child->state, (int)result);
    __atomic_store_n(job->child, child, __ATOMIC_RELEASE);
    return result;
}

/*
 * NCCL writes *child_out when the child is there, beside the caller, and returns ncclSuccess of a
 * call that is in progress.
 */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child_out,
                           ncclConfig_t *config)
{
    struct comm_wish wish = {.blocking = comm->blocking, .copies = comm->copies};
    ncclResult_t result = madeup_comm_check(comm, "ncclCommSplit");
    if (result == ncclSuccess && config != NULL)
        result = comm_check_config(config, &wish);
    if (result != ncclSuccess)
        return result;
    if (madeup_group_is_open())
        madeup_fail("ncclCommSplit in a group is not modelled");
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return madeup_nccl_say(ncclInvalidArgument, "ncclCommSplit: color %d", color);
    *child_out = NULL;
    struct madeup_job job = {.run = comm_split_job, .color = color, .key = key, .child = child_out};
    if (color != NCCL_SPLIT_NOCOLOR) {
        job.argument = comm_new(0, 1, comm->device, &wish);
        atomic_store(&((struct ncclComm *)job.argument)->state, ncclInProgress);
    }
    result = madeup_job_start(comm, &job);
    return result == ncclInProgress ? ncclSuccess : result;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Also of graphs that it is part of: NCCL waits for those to be destroyed. */
static void comm_wait_idle(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->work > 0)
        pthread_cond_wait(&comm->idle, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

/* All ranks of a machine end together. */
static ncclResult_t comm_finalize_job(struct ncclComm *comm, struct madeup_job *job)
{
    (void)job;
    comm_wait_idle(comm);
    return madeup_comm_exchange(comm, NULL, 0, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const ncclResult_t result = madeup_comm_check(comm, "ncclCommFinalize");
    if (result != ncclSuccess)
        return result;
    if (madeup_group_is_open())
        madeup_fail("ncclCommFinalize in a group is not modelled");
    comm->finalized = true;
    return madeup_job_start(comm, &(struct madeup_job){.run = comm_finalize_job});
}

void madeup_comm_free(struct ncclComm *comm)
{
    job_join(comm);
    comm_wait_idle(comm);
    if (comm->windows > 0 && !atomic_load(&comm->aborted))
        madeup_fail("ncclCommDestroy: %d windows are registered", comm->windows);
    madeup_segment_close(&comm->segment);
    pthread_cond_destroy(&comm->idle);
    pthread_mutex_destroy(&comm->lock);
    comm->magic = 0;
    free(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const ncclResult_t result = comm_valid(comm, "ncclCommDestroy");
    if (result != ncclSuccess)
        return result;
    if (madeup_group_is_open())
        madeup_fail("ncclCommDestroy in a group is not modelled");
    job_join(comm);
    if (!comm->finalized && atomic_load(&comm->state) == ncclSuccess)
        (void)comm_finalize_job(comm, NULL);
    madeup_comm_free(comm);
    return ncclSuccess;
}

/* Its kernels and its job end; the peers' do not. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const ncclResult_t result = comm_valid(comm, "ncclCommAbort");
    if (result != ncclSuccess)
        return result;
    atomic_store(&comm->aborted, true);
    if (!madeup_group_ends(comm))
        madeup_comm_free(comm);
    return ncclSuccess;
}
