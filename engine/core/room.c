/* Host memory that an engine keeps until it is closed. */
#include "core/state.h"

#include "tessera/check.h"

#include <stdlib.h>

void *tess__engine_room(struct tess_engine *engine, int64_t count, size_t size)
{
    void *room = calloc((size_t)count + 1, size);
    engine->no_room = engine->no_room || room == NULL;
    engine->owned[engine->owned_count++] = room;
    return room;
}

enum tess_status tess__engine_has_room(const struct tess_engine *engine)
{
    if (engine->no_room)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the engine's tables");
    return TESS_OK;
}
