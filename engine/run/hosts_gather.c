/*
 * After a failure the state is in the memory of the hosts that are left: which step, and where.
 * Each host of the next attempt gets the whole of it, as it does not matter then which ranks it
 * has.
 */
#include "run/copies.h"
#include "run/hosts_room.h"
#include "state/checkpoint.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which step ------------------------------------------------------------------------------ */

static bool gather_has(const int64_t steps[HOSTS_COPIES], int64_t step)
{
    for (int i = 0; i < HOSTS_COPIES; i++)
        if (steps[i] == step)
            return true;
    return false;
}

static void gather_note(const struct hosts_held *host, bool replica, struct hosts_source *source)
{
    if (source == NULL)
        return;
    *source = (struct hosts_source){.port = host->port, .replica = replica};
    memcpy(source->address, host->address, sizeof(source->address));
}

/* Who has this part, or, where `whole`, all of them? source NULL: whoever it is. */
static bool gather_find(const struct hosts_held *const *host, int32_t count, int32_t parts,
                        int64_t step, int32_t part, bool whole, struct hosts_source *source)
{
    for (int32_t h = 0; h < count; h++)
        if ((whole ? host[h]->part >= 0 : host[h]->part == part) &&
            gather_has(host[h]->copies.own, step)) {
            gather_note(host[h], false, source);
            return true;
        }
    for (int32_t h = 0; h < count && !whole; h++)
        if (host[h]->part == (part + 1) % parts && gather_has(host[h]->copies.replica, step)) {
            gather_note(host[h], true, source);
            return true;
        }
    return false;
}

int64_t tess__gather_choose(const struct hosts_held *const *host, int32_t count, int32_t parts,
                            int64_t whole, int64_t after, struct hosts_source *source,
                            int32_t *source_count)
{
    int64_t best = -1;
    for (int32_t h = 0; h < count; h++)
        for (int i = 0; i < 2 * HOSTS_COPIES; i++) {
            const int64_t step = i < HOSTS_COPIES ? host[h]->copies.own[i]
                                                  : host[h]->copies.replica[i - HOSTS_COPIES];
            const int32_t needed = step == whole ? 1 : parts;
            int32_t part = 0;
            if (host[h]->part < 0 || step <= after || step <= best)
                continue;
            while (part < needed &&
                   gather_find(host, count, parts, step, part, step == whole, NULL))
                part++;
            if (part < needed)
                continue;
            best = step;
            *source_count = needed;
            for (part = 0; part < needed; part++)
                (void)gather_find(host, count, parts, step, part, step == whole, &source[part]);
        }
    return best;
}

bool tess__gather_is_own(const struct hosts_held *host, const struct hosts_source *source)
{
    return !source->replica && source->port == host->port &&
           strcmp(source->address, host->address) == 0;
}

/* ---- on each host ---------------------------------------------------------------------------- */

static void gather_list(const char *run, int64_t steps[HOSTS_COPIES])
{
    int64_t *step = NULL;
    int32_t count = 0;
    (void)tess_checkpoint_list(run, &step, &count);
    for (int i = 0; i < HOSTS_COPIES; i++)
        steps[i] = i < count ? step[count - 1 - i] : -1;
    free(step);
}

void tess__gather_list(const char *folder, struct hosts_steps *copies)
{
    char replica[TESS__COPIES_PATH];
    tess__copies_replica(folder, replica);
    gather_list(folder, copies->own);
    gather_list(replica, copies->replica);
}

/* A part that is complete stays so while others are merged into it: what is read of it meanwhile
 * has that part's bytes. Without one the folder gets its name at the end. */
int tess__gather_run(const char *folder, const struct hosts_order *order,
                     const struct hosts_source *source, const struct tess_secret *secret,
                     double timeout_s)
{
    struct hosts_steps copies;
    char path[TESS_CHECKPOINT_PATH], into[TESS_CHECKPOINT_PATH], why[BOOT_WHY_BYTES + 64];
    tess__gather_list(folder, &copies);
    const bool part = !gather_has(copies.own, order->step);
    if (tess_checkpoint_path(folder, order->step, false, path) != TESS_OK ||
        tess_checkpoint_path(folder, order->step, part, into) != TESS_OK ||
        tess_file_make_folders(into, "the copy") != TESS_OK)
        return tess_status_exit_code(TESS_ERR_IO);
    for (int32_t s = 0; s < order->source_count; s++) {
        struct tess__mirror mirror = {
            .port = source[s].port, .attempt = order->attempt, .silent_s = timeout_s / 2, .fd = -1};
        memcpy(mirror.address, source[s].address, sizeof(mirror.address));
        mirror.secret = *secret;
        if (s != order->skip && !tess__mirror_fetch(&mirror, order->step, source[s].replica != 0,
                                                    into, why, sizeof(why))) {
            tess_log(TESS_LOG_WARN, "the copy after step %lld is not whole here: %s",
                     (long long)order->step, why);
            return tess_status_exit_code(TESS_ERR_COMM);
        }
        tess__mirror_close(&mirror);
    }
    if (part && rename(into, path) != 0)
        return tess_status_exit_code(
            tess_fail(TESS_ERR_IO, "cannot name %s: %s", path, strerror(errno)));
    return 0;
}
