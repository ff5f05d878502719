/* The processes of a job by hosts, and the names in the options of placing; see place.h. */
#include "job/place.h"

#include <stdio.h>
#include <string.h>

static const char place_file_word[] = "file:";

const char *tess__place_order_file(const struct tess_placing_options *options)
{
    const size_t length = sizeof(place_file_word) - 1;

    return strncmp(options->order, place_file_word, length) == 0 ? options->order + length : NULL;
}

void tess__place_bus(const char *from, char bus[32])
{
    unsigned domain, number, device, function = 0;

    bus[0] = '\0';
    if (sscanf(from, "%x:%x:%x.%x", &domain, &number, &device, &function) >= 3)
        snprintf(bus, 32, "%04x:%02x:%02x.%x", domain, number, device, function);
}

/* Behind those of its host with a lower local rank, or a lower number where that is not known. */
static int32_t place_slot(const struct tess__processes *job, int32_t process)
{
    const int32_t own = job->process[process].local_rank;
    int32_t slot = 0;

    for (int32_t p = 0; p < job->count; p++) {
        const int32_t other = job->process[p].local_rank;
        const bool known = own >= 0 && other >= 0 && own != other;
        if (job->host[p] == job->host[process])
            slot += known ? other < own : p < process;
    }
    return slot;
}

void tess__place_find_hosts(struct tess__processes *job)
{
    job->host_count = 0;
    for (int32_t p = 0; p < job->count; p++) {
        int32_t h = 0;

        while (h < job->host_count &&
               strcmp(job->process[job->host_first[h]].key, job->process[p].key) != 0)
            h++;
        if (h == job->host_count) {
            job->host_first[job->host_count++] = p;
            job->host_size[h] = 0;
        }
        job->host[p] = h;
        job->host_size[h]++;
    }
    for (int32_t p = 0; p < job->count; p++)
        job->slot[p] = place_slot(job, p);
}
