/*
 * Process 0 leads a measurement: which hosts send to each other in a round and for how long, by
 * topology/formats/measured.h, and what came of it. Blocks of hosts that follow each other count as
 * one where there are many hosts: host i of a block sends to host i of another.
 */
#include "job/place_probe.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define LEAD_FIRST_S     0.05
#define LEAD_LONGEST_S   0.15
#define LEAD_EXPLORE_S   0.9 /* then no further tournament begins, nor goes on */
#define LEAD_SLOWEST     0.02
#define LEAD_TOURNAMENTS 3
#define LEAD_ROUNDS      (LEAD_TOURNAMENTS * TESS_MEASURED_HOSTS_MAX)
/* What a socket may hold: little on slow links, and as much as a fast one needs. */
#define LEAD_HOLD_S     0.01 /* at the slowest rate that was seen */
#define LEAD_HOLD_LEAST (64 << 10)
#define LEAD_HOLD_MOST  (4 << 20)
/* In the counted half at least so many bytes: a burst of a switch is 64 KiB. */
#define LEAD_COUNTED_BYTES (128 << 10)

struct lead {
    const struct tess__meeting *meeting;
    const struct tess__processes *job;
    struct tess__network_found *found;
    struct tess__probe *probe;       /* of this process, for host 0 */
    struct tess__probe_place *place; /* [host_count] */
    int32_t *partner;                /* [host_count] of a host, in the round at hand */
    int32_t blocks, block;           /* blocks of so many hosts, the last one may have fewer */
    int32_t between[TESS_MEASURED_HOSTS_MAX]; /* partners of blocks */
    struct tess__turn turn;                   /* what all get, but partner and address */
    struct tess_measured_round round[LEAD_ROUNDS + 2 * TESS_MEASURED_TURNS];
    int32_t round_count;
    double start_s, slowest_gbs, fastest_gbs;
};

static void lead_stop(struct lead *lead, int32_t host, const char *what, int32_t other,
                      const char *why)
{
    struct tess__network_found *found = lead->found;

    if (found->why[0] == '\0')
        snprintf(found->why, sizeof(found->why), "%.40s %s %.30s: %.40s",
                 lead->job->hosts[host].name, what, lead->job->hosts[other].name, why);
}

/* ---- a turn of all --------------------------------------------------------------------------- */

/* The turn of a process; returns its bytes. */
static size_t lead_write(const struct lead *lead, int32_t process, struct tess__turn *turn)
{
    const struct tess__processes *job = lead->job;
    const int32_t host = job->host[process];

    *turn = lead->turn;
    if (job->member[job->start[host]] != process)
        return TESS__TURN_SHORT;
    turn->partner = turn->kind == TESS__TURN_ROUND ? lead->partner[host] : -1;
    if (turn->partner >= 0) {
        turn->port = lead->place[turn->partner].port;
        memcpy(turn->address, lead->place[turn->partner].address, sizeof(turn->address));
    }
    return offsetof(struct tess__turn, address) + strlen(turn->address) + 1;
}

/* lead->turn to all; what came of it, to be closed. */
static enum tess_status lead_turn(struct lead *lead, struct tess_boot_parts *results)
{
    const struct tess__meeting *meeting = lead->meeting;
    struct tess_boot_parts turns;
    struct tess__turn turn;
    size_t bytes;
    enum tess_status status = tess_boot_parts_open(&turns, meeting->rank_count);

    *results = (struct tess_boot_parts){0};
    for (int32_t p = 0; p < meeting->rank_count && status == TESS_OK; p++) {
        bytes = lead_write(lead, p, &turn);
        void *at = tess_boot_parts_add(&turns, bytes);
        if (at == NULL)
            status = tess_fail(TESS_ERR_MEMORY, "no memory to measure the network");
        else
            memcpy(at, &turn, bytes);
    }
    memset(&turn, 0, sizeof(turn));
    if (status == TESS_OK)
        status = meeting->deal(meeting->context, &turns, &turn, sizeof(turn), &bytes);
    if (status == TESS_OK)
        status = tess__probe_play(lead->probe, &turn, results);
    tess_boot_parts_close(&turns);
    return status;
}

/* What a host's first process has sent, into `result` of so many bytes, zero where it has not. */
static void lead_read(const struct lead *lead, const struct tess_boot_parts *parts, int32_t host,
                      void *result, size_t bytes)
{
    const int32_t p = lead->job->member[lead->job->start[host]];
    const size_t came = parts->first[p + 1] - parts->first[p];

    memset(result, 0, bytes);
    memcpy(result, parts->bytes + parts->first[p], came < bytes ? came : bytes);
}

static enum tess_status lead_listen(struct lead *lead)
{
    struct tess_boot_parts parts;

    lead->turn.kind = TESS__TURN_LISTEN;
    enum tess_status status = lead_turn(lead, &parts);
    for (int32_t h = 0; h < lead->job->host_count && status == TESS_OK; h++) {
        struct tess__probe_place *place = &lead->place[h];

        lead_read(lead, &parts, h, place, sizeof(*place));
        place->address[sizeof(place->address) - 1] = '\0';
        if (place->port == 0)
            lead_stop(lead, h, "cannot be reached by", 0, "it does not listen");
    }
    tess_boot_parts_close(&parts);
    return status;
}

/* Of all hosts of a block in the mean, into the round. */
static void lead_count(struct lead *lead, const struct tess_boot_parts *parts,
                       struct tess_measured_round *round)
{
    int32_t seen[TESS_MEASURED_HOSTS_MAX] = {0};

    memset(round, 0, sizeof(*round));
    for (int32_t h = 0; h < lead->job->host_count; h++) {
        struct tess__probe_result result;
        const int32_t b = h / lead->block, partner = lead->partner[h];

        if (partner < 0)
            continue;
        lead_read(lead, parts, h, &result, sizeof(result));
        result.why[sizeof(result.why) - 1] = '\0';
        if (result.why[0] != '\0')
            lead_stop(lead, h, result.not_reached ? "was not reached by" : "does not reach",
                      partner, result.why);
        seen[b]++;
        round->gbs[b] += (result.gbs - round->gbs[b]) / seen[b];
        round->latency_us[b] += (result.latency_us - round->latency_us[b]) / seen[b];
    }
    for (int32_t b = 0; b < lead->blocks; b++) {
        round->partner[b] = seen[b] > 0 ? lead->between[b] : -1;
        if (seen[b] == 0)
            continue;
        lead->slowest_gbs = fmin(lead->slowest_gbs, round->gbs[b]);
        lead->fastest_gbs = fmax(lead->fastest_gbs, round->gbs[b]);
    }
}

/* One round of all by lead->between. */
static enum tess_status lead_round(struct lead *lead)
{
    const int32_t hosts = lead->job->host_count;
    struct tess_boot_parts parts;

    lead->turn.kind = TESS__TURN_ROUND;
    for (int32_t h = 0; h < hosts; h++) {
        const int32_t b = lead->between[h / lead->block];
        const int32_t partner = b * lead->block + h % lead->block;

        lead->partner[h] = b >= 0 && partner < hosts ? partner : -1;
    }
    const enum tess_status status = lead_turn(lead, &parts);
    if (status == TESS_OK)
        lead_count(lead, &parts, &lead->round[lead->round_count++]);
    tess_boot_parts_close(&parts);
    return status;
}

/* ---- the measurement ------------------------------------------------------------------------- */

/* As long as it takes to count enough at the slowest rate, holding as much as it needs. What is
 * slower than LEAD_SLOWEST of the fastest has stalled. */
static void lead_pace(struct lead *lead)
{
    const double rate = 1e9 * fmax(lead->slowest_gbs, LEAD_SLOWEST * lead->fastest_gbs);
    const double seconds = LEAD_COUNTED_BYTES / (1 - TESS__PROBE_WARM) / fmax(rate, 1);

    lead->turn.hold = (int)fmin(fmax(rate * LEAD_HOLD_S, LEAD_HOLD_LEAST), LEAD_HOLD_MOST);
    lead->turn.seconds = fmin(fmax(seconds, LEAD_FIRST_S), LEAD_LONGEST_S);
}

/* Tournaments; the last one may be cut short. Ends where a process failed: no reason to go on. */
static enum tess_status lead_explore(struct lead *lead)
{
    const int32_t each = lead->blocks + lead->blocks % 2 - 1;

    for (int32_t r = 0; r < LEAD_TOURNAMENTS * each; r++) {
        const bool late = tess_clock_s() - lead->start_s > LEAD_EXPLORE_S;

        /* With few hosts all pairs are seen before that. */
        if (lead->found->why[0] != '\0' || (late && (r >= each || r >= 16)))
            break;
        if (r == each) {
            lead_pace(lead);
            /* An even network is seen to be one at once. */
            if (lead->fastest_gbs < 1.2 * lead->slowest_gbs)
                break;
        }
        tess_measured_tournament(lead->blocks, r, lead->between);
        TESS_TRY(lead_round(lead));
    }
    return TESS_OK;
}

static enum tess_status lead_measure(struct lead *lead)
{
    struct tess_measured *measured = &lead->found->measured;

    TESS_TRY(lead_listen(lead));
    TESS_TRY(lead_explore(lead));
    if (lead->found->why[0] == '\0')
        tess_measured_find(lead->round, lead->round_count, measured);
    const struct tess_measured_round *by_turns = &lead->round[lead->round_count];
    for (int32_t t = 0; t < TESS_MEASURED_TURNS && measured->group_count > 1; t++) {
        tess_measured_within(measured, t, lead->between);
        TESS_TRY(lead_round(lead));
        tess_measured_across(measured, t, lead->between);
        TESS_TRY(lead_round(lead));
    }
    if (lead->found->why[0] != '\0') {
        *measured = (struct tess_measured){
            .host_count = lead->blocks, .block = lead->block, .group_count = 1};
    } else if (measured->group_count > 1) {
        /* By turns in time, one after the other for the verdict. */
        struct tess_measured_round within[TESS_MEASURED_TURNS], across[TESS_MEASURED_TURNS];
        for (int32_t t = 0; t < TESS_MEASURED_TURNS; t++) {
            within[t] = by_turns[2 * t];
            across[t] = by_turns[2 * t + 1];
        }
        tess_measured_judge(within, across, measured);
    }
    lead->found->seconds = tess_clock_s() - lead->start_s;
    return TESS_OK;
}

static enum tess_status lead_open(struct lead *lead)
{
    const int32_t hosts = lead->job->host_count;

    lead->block = tess_measured_block(hosts);
    lead->blocks = (hosts + lead->block - 1) / lead->block;
    lead->slowest_gbs = 1e9;
    lead->start_s = tess_clock_s();
    lead->turn = (struct tess__turn){.hold = LEAD_HOLD_LEAST, .seconds = LEAD_FIRST_S};
    if (getrandom(lead->turn.word, sizeof(lead->turn.word), 0) != (ssize_t)sizeof(lead->turn.word))
        TESS_FAIL(TESS_ERR_IO, "no random numbers for the hosts' connections");
    *lead->found = (struct tess__network_found){
        .measured = {.host_count = lead->blocks, .block = lead->block, .group_count = 1}};
    lead->place = calloc((size_t)hosts, sizeof(*lead->place));
    lead->partner = calloc((size_t)hosts, sizeof(*lead->partner));
    if (lead->place == NULL || lead->partner == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure the network");
    return tess__probe_open(lead->meeting, 0, hosts, &lead->probe);
}

enum tess_status tess__place_probe(const struct tess__meeting *meeting,
                                   const struct tess__processes *job,
                                   struct tess__network_found *found_out)
{
    struct lead *lead = calloc(1, sizeof(*lead));

    if (lead == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure the network");
    lead->meeting = meeting;
    lead->job = job;
    lead->found = found_out;
    enum tess_status status = lead_open(lead);
    if (status == TESS_OK)
        status = lead_measure(lead);
    tess__probe_close(lead->probe);
    free(lead->place);
    free(lead->partner);
    free(lead);
    return status;
}
