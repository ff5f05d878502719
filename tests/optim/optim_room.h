/* The optimizer's room in host memory, and its steps one by one, for tests of kernels that are done
 * when they return. */
#ifndef TESSERA_TESTS_OPTIM_OPTIM_ROOM_H
#define TESSERA_TESTS_OPTIM_OPTIM_ROOM_H

#include "optim/optim.h"
#include "tessera/registry.h"

#include <stdlib.h>
#include <string.h>

struct optim_room {
    _Alignas(64) char room[16384], upload[1024];
    struct tess_verdict verdict; /* of the latest step */
};

/* The optimizers of list.h, in the order of enum tess_update_kind. */
static const char *const optim_name[] = {"sgd", "momentum", "adamw", "novograd", "lamb"};

static inline const struct tess_optimizer_ops *optim_ops(const char *name)
{
    const struct tess_optimizer_ops *ops = NULL;
    if (tess_registry_get_optimizer(name, &ops) != TESS_OK)
        abort();
    return ops;
}

/* optim's other fields are set before the first step. */
static inline void optim_place(struct tess_optim *optim, struct optim_room *room)
{
    optim->verdict = &room->verdict;
}

/* What was there must not matter. */
static inline enum tess_status optim_open(struct tess_optim *optim)
{
    struct optim_room *room = (struct optim_room *)(void *)((char *)optim->verdict -
                                                            offsetof(struct optim_room, verdict));
    size_t upload;
    if (tess_optim_room(optim->ops, optim->param_count, &upload) > sizeof(room->room) ||
        upload > sizeof(room->upload))
        abort();
    memset(room->room, 0, sizeof(room->room));
    enum tess_status status = tess_optim_open(optim, room->room, room->upload);
    memset(optim->sum, 0x5a, 2 * (size_t)optim->param_count * sizeof(*optim->sum));
    return status;
}

/* TESS_ERR_NUMERIC where a norm is not finite. */
static inline enum tess_status optim_step(struct tess_optim *optim, double rate)
{
    enum tess_status status = optim->update == NULL ? optim_open(optim) : TESS_OK;
    memset(optim->verdict, 0, sizeof(*optim->verdict));
    if (status == TESS_OK)
        tess_optim_prepare(optim, rate);
    if (status == TESS_OK)
        status = tess_optim_step(optim);
    if (status == TESS_OK)
        tess_optim_end(optim, optim->verdict);
    return status == TESS_OK && optim->verdict->norm_bad > 0 ? TESS_ERR_NUMERIC : status;
}

/* The first parameter that failed a norm, or -1. */
static inline int32_t optim_bad(const struct tess_optim *optim)
{
    return optim->verdict->norm_bad > 0 ? optim->param_count - optim->verdict->norm_bad : -1;
}

#endif
