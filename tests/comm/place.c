/* Memory for the calls of a test: the host's, or a device's with a copy of it on the host. */
#include "comm/cases.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

enum tess_status place_open(struct tess_comm *comm, size_t bytes, bool shared, struct place *place)
{
    *place = (struct place){.comm = comm, .shared = shared};
    void *memory = NULL;
    if (comm->queue != NULL) {
        struct tess_kernel *kernel = comm->queue->kernel;
        TESS_TRY(kernel->ops->alloc(kernel, bytes, &memory));
        place->host = calloc(bytes + 1, 1);
    } else if (shared) {
        TESS_TRY(tess_comm_alloc(comm, bytes, &memory));
        place->host = memory;
    } else {
        place->host = memory = calloc(bytes + 1, 1);
    }
    place->at = memory;
    return place->host != NULL ? TESS_OK : TESS_ERR_MEMORY;
}

void place_close(struct place *place)
{
    if (place->comm->queue != NULL) {
        struct tess_kernel *kernel = place->comm->queue->kernel;
        kernel->ops->free(kernel, place->at);
        free(place->host);
    } else if (place->shared) {
        tess_comm_release(place->comm, place->at);
    } else {
        free(place->host);
    }
}

void *place_at(const struct place *place, const void *host)
{
    return place->at + ((const char *)host - place->host);
}

enum tess_status place_put(const struct place *place, const void *host, size_t bytes)
{
    struct tess_queue *queue = place->comm->queue;
    if (queue == NULL || bytes == 0)
        return TESS_OK;
    return queue->ops->copy(queue, bytes, host, place_at(place, host));
}

enum tess_status place_get(const struct place *place, void *host, size_t bytes)
{
    struct tess_queue *queue = place->comm->queue;
    if (queue == NULL || bytes == 0)
        return TESS_OK;
    struct tess_fence *fence;
    TESS_TRY(queue->ops->copy(queue, bytes, place_at(place, host), host));
    TESS_TRY(queue->ops->fence_open(queue->kernel, &fence));
    enum tess_status status = queue->ops->record(queue, fence);
    TESS_KEEP(status, queue->ops->wait(fence));
    queue->ops->fence_close(fence);
    return status;
}

enum tess_status place_copy(const struct place *from, const struct place *to, size_t bytes)
{
    struct tess_queue *queue = from->comm->queue;
    if (bytes == 0)
        return TESS_OK;
    if (queue != NULL)
        return queue->ops->copy(queue, bytes, from->at, to->at);
    memcpy(to->at, from->at, bytes);
    return TESS_OK;
}
