/* The choice of a communicator from the registry, by what it connects; see config_comm.h. */
#include "config/config_comm.h"

#include "base/options.h"
#include "config/registry.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum tess_status tess_comm_options_add(struct tess_options *options,
                                       struct tess_comm_options *comm_out)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_COMMUNICATOR, &count);

    for (int i = 0; i < count && i < TESS_COMM_KINDS_MAX; i++) {
        const struct tess_communicator_ops *kind;

        TESS_TRY(tess_registry_get_communicator(name[i], &kind));
        comm_out->of[i].kind = kind;
        comm_out->of[i].values = calloc(1, kind->options_size + 1);
        if (comm_out->of[i].values == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the options of communicator %s", kind->name);
        comm_out->count = i + 1;
        snprintf(comm_out->of[i].prefix, sizeof(comm_out->of[i].prefix), "comm.%s", kind->name);
        TESS_TRY(tess_options_add(options, comm_out->of[i].prefix, kind->options,
                                  comm_out->of[i].values));
    }
    return TESS_OK;
}

void tess_comm_options_free(struct tess_comm_options *comm)
{
    for (int i = 0; i < comm->count; i++)
        free(comm->of[i].values);
    comm->count = 0;
}

const void *tess_comm_options_of(const struct tess_comm_options *comm,
                                 const struct tess_communicator_ops *kind)
{
    for (int i = 0; i < comm->count; i++)
        if (comm->of[i].kind == kind)
            return comm->of[i].values;
    return NULL;
}

enum tess_status tess_comm_options_check(const struct tess_comm_options *comm,
                                         const struct tess_communicator_ops *chosen,
                                         enum tess_order order)
{
    for (int i = 0; i < comm->count; i++)
        TESS_TRY(comm->of[i].kind->check(comm->of[i].values, chosen, order));
    return TESS_OK;
}

enum tess_status tess_comm_named(const char *name, const struct tess_communicator_ops **kind_out)
{
    *kind_out = NULL;
    return strcmp(name, "auto") == 0 ? TESS_OK : tess_registry_get_communicator(name, kind_out);
}

const struct tess_communicator_ops *tess_comm_first(struct tess_comm_ask *ask)
{
    for (int i = 0; i < ask->options->count; i++) {
        const struct tess_communicator_ops *kind = ask->options->of[i].kind;
        const uint32_t connects = ask->device ? kind->device : kind->host;

        if ((connects & ask->ranks) == 0 || (ask->device && kind->all_reach && !ask->all_reach))
            continue;
        if (kind->starter != NULL &&
            (ask->starter == NULL || strcmp(kind->starter, ask->starter) != 0))
            continue;
        if (kind->usable(ask->options->of[i].values, ask->why, sizeof(ask->why)))
            return kind;
    }
    return NULL;
}
