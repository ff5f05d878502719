/*
 * What launchers exchange before their ranks have numbers: small cards to process 0, which alone
 * knows all processes, and to each what concerns it.
 */
#include "job/place_probe.h"

#include "base/cgroup.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* On a host with more processes none gets the GPUs of all of them, to be bound beside its own. */
#define MEET_BUSES 1024

_Static_assert(sizeof(struct tess__process) == 56, "a card, sent by each process");

/* From process 0 to each, behind it the bus ids of the GPUs of its host, by slot; none where it has
 * none, or more than MEET_BUSES. */
struct meet_seat {
    int32_t host, host_count, host_size, slot;
    int32_t first; /* it sends what its host is called */
    int32_t bound;
    int32_t rank_cores;
};

struct meet {
    const struct tess__run *run;
    const struct tess_placing_options *options;
    const struct tess__meeting *meeting;
    struct tess__processes job; /* process 0 */
    int32_t *process;           /* process 0: [ranks] of a rank */
    struct meet_seat seat;
};

/* ---- who is where ---------------------------------------------------------------------------- */

/* Part r has this size, or what another build sent is of no use. */
static enum tess_status meet_check(const struct tess_boot_parts *parts, int32_t r, size_t bytes)
{
    const size_t came = parts->first[r + 1] - parts->first[r];

    if (came != bytes)
        TESS_FAIL(TESS_ERR_COMM,
                  "process %d sends %zu bytes of where it is, %zu were expected; run the same "
                  "build everywhere",
                  (int)r, came, bytes);
    return TESS_OK;
}

static enum tess_status meet_take_cards(struct meet *meet, const struct tess_boot_parts *parts)
{
    struct tess__processes *job = &meet->job;

    TESS_TRY(tess__processes_open(job, meet->meeting->rank_count));
    for (int32_t p = 0; p < job->count; p++) {
        struct tess__process *process = &job->process[p];

        TESS_TRY(meet_check(parts, p, sizeof(*process)));
        memcpy(process, parts->bytes + parts->first[p], sizeof(*process));
        process->bus[sizeof(process->bus) - 1] = '\0';
    }
    tess__place_find_hosts(job);
    return TESS_OK;
}

/* Of the process: its seat, and the GPUs of its host. */
static enum tess_status meet_write_seat(const struct tess__processes *job, int32_t process,
                                        struct tess_boot_parts *parts)
{
    const int32_t host = job->host[process], size = tess__host_size(job, host);
    const int32_t *seat = job->seat + job->start[host];
    const bool devices = job->process[seat[0]].bus[0] != '\0' && size <= MEET_BUSES;
    struct meet_seat mine = {.host = host,
                             .host_count = job->host_count,
                             .host_size = size,
                             .slot = job->slot[process],
                             .rank_cores = job->rank_cores,
                             .first = job->member[job->start[host]] == process};
    char *at = tess_boot_parts_add(parts, sizeof(mine) +
                                              (devices ? (size_t)size * TESS__PLACE_BUS_BYTES : 0));

    if (at == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for where %d processes are", (int)job->count);
    for (int32_t s = 0; s < size; s++)
        mine.bound = mine.bound || job->process[seat[s]].cores != job->process[process].cores;
    memcpy(at, &mine, sizeof(mine));
    at += sizeof(mine);
    for (int32_t s = 0; s < size && devices; s++)
        memcpy(at + s * TESS__PLACE_BUS_BYTES, job->process[seat[s]].bus, TESS__PLACE_BUS_BYTES);
    return TESS_OK;
}

static enum tess_status meet_write_seats(const struct tess__processes *job,
                                         struct tess_boot_parts *parts)
{
    TESS_TRY(tess_boot_parts_open(parts, job->count));
    for (int32_t p = 0; p < job->count; p++)
        TESS_TRY(meet_write_seat(job, p, parts));
    return TESS_OK;
}

/* What process 0 has found about this process, in run->placed. */
static enum tess_status meet_take_seat(struct meet *meet, const char *bytes, size_t count)
{
    struct tess__placement *placed = meet->run->placed;
    struct meet_seat *seat = &meet->seat;

    if (count >= sizeof(*seat))
        memcpy(seat, bytes, sizeof(*seat));
    const size_t buses = (size_t)seat->host_size * TESS__PLACE_BUS_BYTES;
    if (seat->host_size < 1 || seat->host_size > meet->meeting->rank_count || seat->slot < 0 ||
        seat->slot >= seat->host_size || seat->host < 0 || seat->host >= seat->host_count ||
        (count != sizeof(*seat) && count != sizeof(*seat) + buses))
        TESS_FAIL(TESS_ERR_COMM, "process 0 sends %zu bytes of where process %d is", count,
                  (int)meet->meeting->rank);
    placed->bus = calloc((size_t)seat->host_size, sizeof(*placed->bus));
    if (placed->bus == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d processes of this host", (int)seat->host_size);
    if (count > sizeof(*seat))
        memcpy(placed->bus, bytes + sizeof(*seat), buses);
    for (int32_t s = 0; s < seat->host_size; s++)
        placed->bus[s][TESS__PLACE_BUS_BYTES - 1] = '\0';
    placed->slot = seat->slot;
    placed->host_size = seat->host_size;
    placed->host_count = seat->host_count;
    placed->bound = seat->bound != 0;
    placed->rank_cores = seat->rank_cores;
    return TESS_OK;
}

/* Cards to process 0, seats back. */
static enum tess_status meet_seats(struct meet *meet, const struct tess__process *process)
{
    const struct tess__meeting *meeting = meet->meeting;
    const size_t buses =
        (size_t)(meeting->rank_count < MEET_BUSES ? meeting->rank_count : MEET_BUSES);
    const size_t room = sizeof(struct meet_seat) + buses * TESS__PLACE_BUS_BYTES;
    struct tess_boot_parts cards = {0}, seats = {0};
    char *mine = malloc(room);
    size_t bytes = 0;
    enum tess_status status =
        mine != NULL ? TESS_OK : tess_fail(TESS_ERR_MEMORY, "no memory to place this process");

    if (status == TESS_OK)
        status = meeting->collect(meeting->context, process, sizeof(*process), &cards);
    if (status == TESS_OK && meeting->rank == 0) {
        status = meet_take_cards(meet, &cards);
        if (status == TESS_OK)
            status = meet_write_seats(&meet->job, &seats);
    }
    if (status == TESS_OK)
        status = meeting->deal(meeting->context, &seats, mine, room, &bytes);
    if (status == TESS_OK)
        status = meet_take_seat(meet, mine, bytes);
    tess_boot_parts_close(&cards);
    tess_boot_parts_close(&seats);
    free(mine);
    return status;
}

/* What each host is called, from its first process. */
static enum tess_status meet_hosts(struct meet *meet, const struct tess__host *host)
{
    const struct tess__meeting *meeting = meet->meeting;
    const size_t bytes = meet->seat.first ? sizeof(*host) : 0;
    struct tess__processes *job = &meet->job;
    struct tess_boot_parts parts;
    enum tess_status status = meeting->collect(meeting->context, host, bytes, &parts);

    for (int32_t h = 0; h < job->host_count && status == TESS_OK; h++) {
        const int32_t p = job->member[job->start[h]];
        struct tess__host *own = &job->hosts[h];

        status = meet_check(&parts, p, sizeof(*own));
        if (status == TESS_OK)
            memcpy(own, parts.bytes + parts.first[p], sizeof(*own));
        own->name[sizeof(own->name) - 1] = '\0';
        own->slurm_address[sizeof(own->slurm_address) - 1] = '\0';
        own->slurm_pattern[sizeof(own->slurm_pattern) - 1] = '\0';
    }
    tess_boot_parts_close(&parts);
    return status;
}

/* ---- which rank ------------------------------------------------------------------------------ */

static enum tess_status meet_decide(struct meet *meet)
{
    const struct tess__processes *job = &meet->job;
    struct tess__network_found found;
    const bool measures = tess__place_measures(meet->options, job);

    if (measures)
        TESS_TRY(tess__place_probe(meet->meeting, job, &found));
    return tess__place_decide(meet->run, meet->options, job, measures ? &found : NULL,
                              meet->process);
}

/* The last word to each process, which has its rank where one was decided. */
static enum tess_status meet_deal(const struct tess__meeting *meeting, enum tess_status decided,
                                  const struct tess__placement *placed)
{
    struct tess__turn own, turn = {.kind = TESS__TURN_PLACED,
                                   .status = (int32_t)decided,
                                   .rack_hosts = placed->rack_hosts};
    struct tess_boot_parts parts;
    size_t bytes;
    enum tess_status status = tess_boot_parts_open(&parts, meeting->rank_count);

    for (int32_t p = 0; p < meeting->rank_count && status == TESS_OK; p++) {
        void *at = tess_boot_parts_add(&parts, TESS__TURN_SHORT);

        turn.rank = decided == TESS_OK ? placed->rank[p] : -1;
        if (at == NULL)
            status = tess_fail(TESS_ERR_MEMORY, "no memory for the order of ranks");
        else
            memcpy(at, &turn, TESS__TURN_SHORT);
    }
    if (status == TESS_OK)
        status = meeting->deal(meeting->context, &parts, &own, sizeof(own), &bytes);
    tess_boot_parts_close(&parts);
    return status;
}

/* rank_out [count] of each process, from the process of each rank: an order, with process 0 first.
 */
static enum tess_status meet_invert(const int32_t *process, int32_t count, int32_t *rank_out)
{
    for (int32_t p = 0; p < count; p++)
        rank_out[p] = -1;
    for (int32_t r = 0; r < count; r++) {
        const int32_t p = process[r];

        if (p < 0 || p >= count || rank_out[p] >= 0 || (p == 0) != (r == 0))
            TESS_FAIL(TESS_ERR_INTERNAL, "process %d is to be rank %d of %d", (int)p, (int)r,
                      (int)count);
        rank_out[p] = r;
    }
    return TESS_OK;
}

/* The others: measure as process 0 says, until it has decided. */
static enum tess_status meet_follow(const struct meet *meet)
{
    const struct tess__meeting *meeting = meet->meeting;
    const struct meet_seat *seat = &meet->seat;
    struct tess__probe *probe = NULL;
    enum tess_status status = TESS_OK;
    struct tess_boot_parts none;
    struct tess__turn turn;

    for (;;) {
        size_t bytes = 0;

        memset(&turn, 0, sizeof(turn));
        status = meeting->deal(meeting->context, NULL, &turn, sizeof(turn), &bytes);
        if (status == TESS_OK && bytes < TESS__TURN_SHORT)
            status = tess_fail(TESS_ERR_COMM, "process 0 sends %zu bytes of the order", bytes);
        if (status != TESS_OK || turn.kind == TESS__TURN_PLACED)
            break;
        if (probe == NULL)
            status =
                tess__probe_open(meeting, seat->first ? seat->host : -1, seat->host_count, &probe);
        if (status == TESS_OK)
            status = tess__probe_play(probe, &turn, &none);
        if (status != TESS_OK)
            break;
    }
    tess__probe_close(probe);
    TESS_TRY(status);
    if (turn.status != TESS_OK)
        return TESS_ERR_ABORTED;
    meet->run->placed->own = turn.rank;
    meet->run->placed->rack_hosts = turn.rack_hosts;
    if (turn.rack_hosts < 0 || turn.rack_hosts > seat->host_count)
        TESS_FAIL(TESS_ERR_COMM, "process 0 sends racks of %d hosts, of %d", (int)turn.rack_hosts,
                  (int)seat->host_count);
    if (turn.rank < 1 || turn.rank >= meeting->rank_count)
        TESS_FAIL(TESS_ERR_INTERNAL, "process %d is to be rank %d of %d", (int)meeting->rank,
                  (int)turn.rank, (int)meeting->rank_count);
    return TESS_OK;
}

static enum tess_status meet_lead(struct meet *meet)
{
    struct tess__placement *placed = meet->run->placed;
    const size_t count = (size_t)meet->job.count;

    meet->process = calloc(count, sizeof(*meet->process));
    placed->rank = calloc(count, sizeof(*placed->rank));
    if (meet->process == NULL || placed->rank == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the order of %zu ranks", count);
    enum tess_status decided = meet_decide(meet);
    if (decided == TESS_OK)
        decided = meet_invert(meet->process, meet->job.count, placed->rank);
    const enum tess_status status = meet_deal(meet->meeting, decided, placed);
    return decided != TESS_OK ? decided : status;
}

enum tess_status tess__place_meet(const struct tess__run *run,
                                  const struct tess_placing_options *options,
                                  const struct tess__meeting *meeting,
                                  const struct tess__process *process,
                                  const struct tess__host *host)
{
    struct meet meet = {.run = run, .options = options, .meeting = meeting};
    struct tess__placement *placed = run->placed;

    placed->core_count = tess_cores();
    enum tess_status status = meet_seats(&meet, process);
    if (status == TESS_OK)
        status = meet_hosts(&meet, host);
    if (status == TESS_OK)
        status = meeting->rank == 0 ? meet_lead(&meet) : meet_follow(&meet);
    free(meet.process);
    tess__processes_close(&meet.job);
    return status;
}
