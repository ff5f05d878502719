/* The processes of a job by hosts, and the names in the options of placing; see place.h. */
#include "job/place.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char place_file_word[] = "file:";

const char *tess__place_order_file(const struct tess_placing_options *options)
{
    const size_t length = sizeof(place_file_word) - 1;

    return strncmp(options->order, place_file_word, length) == 0 ? options->order + length : NULL;
}

void tess__place_bus(const char *from, char bus[TESS__PLACE_BUS_BYTES])
{
    unsigned domain, number, device, function = 0;

    bus[0] = '\0';
    if (sscanf(from, "%x:%x:%x.%x", &domain, &number, &device, &function) >= 3)
        snprintf(bus, TESS__PLACE_BUS_BYTES, "%04x:%02x:%02x.%x", domain, number, device, function);
}

/* ---- processes by hosts ---------------------------------------------------------------------- */

enum tess_status tess__processes_open(struct tess__processes *job, int32_t count)
{
    const size_t n = (size_t)count;
    char *block = calloc(1, n * (sizeof(*job->process) + sizeof(*job->hosts)) +
                                (5 * n + 1) * sizeof(int32_t));

    *job = (struct tess__processes){.count = count};
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the places of %d processes", (int)count);
    job->process = (struct tess__process *)block;
    job->hosts = (struct tess__host *)(job->process + n);
    job->host = (int32_t *)(job->hosts + n);
    job->slot = job->host + n;
    job->start = job->slot + n;
    job->member = job->start + n + 1;
    job->seat = job->member + n;
    return TESS_OK;
}

void tess__processes_close(struct tess__processes *job)
{
    free(job->process);
    *job = (struct tess__processes){0};
}

static int place_order_of(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int place_by_host(const void *a, const void *b, void *context)
{
    const struct tess__processes *job = context;
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    const uint64_t x = job->process[i].host, y = job->process[k].host;

    return x != y ? (x > y) - (x < y) : place_order_of(i, k);
}

static int place_by_local_rank(const void *a, const void *b, void *context)
{
    const struct tess__processes *job = context;
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    const int order = place_order_of(job->process[i].local_rank, job->process[k].local_rank);

    return order != 0 ? order : place_order_of(i, k);
}

/* host[]: the groups of equal hashes, numbered as processes come to them. */
static void place_number_hosts(struct tess__processes *job)
{
    int32_t *sorted = job->seat, *first = job->slot; /* first: of a process's host */

    for (int32_t p = 0; p < job->count; p++)
        sorted[p] = p;
    qsort_r(sorted, (size_t)job->count, sizeof(*sorted), place_by_host, job);
    for (int32_t i = 0; i < job->count; i++) {
        const bool same = i > 0 && job->process[sorted[i]].host == job->process[sorted[i - 1]].host;

        first[sorted[i]] = same ? first[sorted[i - 1]] : sorted[i];
    }
    job->host_count = 0;
    for (int32_t p = 0; p < job->count; p++)
        job->host[p] = first[p] == p ? job->host_count++ : job->host[first[p]];
}

/* A host's slots: by local ranks, or by numbers where one is not known. */
static void place_number_slots(struct tess__processes *job, int32_t host)
{
    int32_t *seat = job->seat + job->start[host];
    const int32_t size = tess__host_size(job, host);
    bool known = true;

    memcpy(seat, job->member + job->start[host], (size_t)size * sizeof(*seat));
    for (int32_t s = 0; s < size; s++)
        known = known && job->process[seat[s]].local_rank >= 0;
    if (known)
        qsort_r(seat, (size_t)size, sizeof(*seat), place_by_local_rank, job);
    for (int32_t s = 0; s < size; s++)
        job->slot[seat[s]] = s;
}

/* What gives a process its cores. */
struct place_source {
    const struct tess__processes *job;
    bool quota; /* its control group's, else its affinity */
};

static uint64_t place_key(const struct place_source *source, int32_t process)
{
    const struct tess__process *from = &source->job->process[process];

    return source->quota ? from->quota : from->cores;
}

static int place_by_key(const void *a, const void *b, void *context)
{
    const uint64_t x = place_key(context, *(const int32_t *)a);
    const uint64_t y = place_key(context, *(const int32_t *)b);

    return (x > y) - (x < y);
}

static int32_t place_least_share(const struct place_source *source, int32_t *sorted)
{
    const struct tess__processes *job = source->job;
    int32_t least = INT32_MAX;

    for (int32_t p = 0; p < job->count; p++)
        sorted[p] = p;
    qsort_r(sorted, (size_t)job->count, sizeof(*sorted), place_by_key, (void *)source);
    for (int32_t i = 0, end; i < job->count; i = end) {
        const struct tess__process *first = &job->process[sorted[i]];
        const uint64_t key = place_key(source, sorted[i]);
        const int32_t cores = source->quota ? first->quota_count : first->core_count;

        for (end = i + 1; end < job->count && place_key(source, sorted[end]) == key;)
            end++;
        if (!(source->quota && key == 0) && cores / (end - i) < least)
            least = cores / (end - i);
    }
    return least;
}

/* Those that may use the same cores of one machine divide them, whichever host each takes its
 * container for, and those of one control group its quota. */
static int32_t place_rank_cores(const struct tess__processes *job)
{
    const int32_t cores = place_least_share(&(struct place_source){.job = job}, job->seat);
    const int32_t quota =
        place_least_share(&(struct place_source){.job = job, .quota = true}, job->seat);

    return cores < quota ? cores : quota;
}

void tess__place_find_hosts(struct tess__processes *job)
{
    job->rank_cores = place_rank_cores(job); /* in seat, which is not filled yet */
    place_number_hosts(job);
    memset(job->start, 0, ((size_t)job->count + 1) * sizeof(*job->start));
    for (int32_t p = 0; p < job->count; p++)
        job->start[job->host[p] + 1]++;
    for (int32_t h = 0; h < job->host_count; h++)
        job->start[h + 1] += job->start[h];
    for (int32_t p = 0; p < job->count; p++)
        job->member[job->start[job->host[p]]++] = p;
    for (int32_t h = job->host_count; h > 0; h--)
        job->start[h] = job->start[h - 1];
    job->start[0] = 0;
    for (int32_t h = 0; h < job->host_count; h++)
        place_number_slots(job, h);
}
