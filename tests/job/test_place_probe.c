/*
 * Measuring the network between hosts: processes are threads that exchange through memory and send
 * to each other over the loopback. What rates mean is tests/topology/test_measured.c's.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/boot/boot_door.h"
#include "job/place_probe.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES_MAX 132
#define BYTES_MAX     512
#define HOSTS_MAX     8  /* with strangers */
#define STRANGERS     30 /* at each listener; each used to take half a second of two */

/* All are in the same exchange, or have come to its end and wait for the others. */
struct room {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int32_t count, waiting, turns;
    char blob[PROCESSES_MAX][BYTES_MAX];
    size_t bytes[PROCESSES_MAX];
    int32_t exchanges;
    /* Of a room with strangers, who come before hosts first send to each other. */
    bool disturbed;
    int silent[HOSTS_MAX * STRANGERS];
    int32_t silent_count, pretenders;
    struct pretender {
        struct tess__turn turn; /* of the host that it pretends to be */
        int32_t host;
        pthread_t thread;
    } pretender[HOSTS_MAX];
    int64_t to_first, from_first; /* bytes */
};

struct member {
    struct room *room;
    const struct tess__processes *job;
    struct tess__meeting meeting;
    struct tess__network_found *found;
    pthread_t thread;
    enum tess_status status;
};

static void room_wait(struct room *room)
{
    pthread_mutex_lock(&room->lock);
    const int32_t turn = room->turns;
    if (++room->waiting == room->count) {
        room->waiting = 0;
        room->turns++;
        pthread_cond_broadcast(&room->turned);
    }
    while (room->turns == turn)
        pthread_cond_wait(&room->turned, &room->lock);
    pthread_mutex_unlock(&room->lock);
}

static enum tess_status room_collect(void *context, const void *mine, size_t bytes,
                                     struct tess_boot_parts *parts_out)
{
    struct member *member = context;
    struct room *room = member->room;
    enum tess_status status = TESS_OK;
    *parts_out = (struct tess_boot_parts){0};
    room->bytes[member->meeting.rank] = bytes;
    if (bytes > 0)
        memcpy(room->blob[member->meeting.rank], mine, bytes < BYTES_MAX ? bytes : BYTES_MAX);
    room_wait(room);
    if (member->meeting.rank == 0) {
        status = tess_boot_parts_open(parts_out, room->count);
        for (int32_t r = 0; r < room->count && status == TESS_OK; r++) {
            memcpy(tess_boot_parts_add(parts_out, room->bytes[r]), room->blob[r], room->bytes[r]);
            room->to_first += (int64_t)room->bytes[r];
        }
        room->exchanges++;
    }
    room_wait(room);
    return status;
}

/* It knows all but the job's secret: which host is to come, and the word that launchers got. Not
 * NULL: it was admitted. */
static void *pretend(void *context)
{
    const struct pretender *own = context;
    const struct tess__turn *turn = &own->turn;
    const struct {
        uint64_t magic;
        int32_t from, to;
        uint64_t zero[2];
    } hello = {UINT64_C(0x65626f7270726574), own->host, turn->partner, {0}};
    const struct tess_secret none = {{0}};
    struct tess_secret secret;
    unsigned char bytes[TESS_GREETING_BYTES];
    char why[BOOT_WHY_BYTES];
    const double limit_s = tess_clock_s() + 5;
    memcpy(bytes, &hello, sizeof(bytes));
    tess_secret_derive(&none, turn->word, sizeof(turn->word), &secret);
    const int fd = tess__boot_connect(turn->address, turn->port, limit_s, why, sizeof(why));
    const bool admitted =
        fd >= 0 && tess__boot_knock(fd, &secret, bytes, limit_s, why, sizeof(why)) == TESS_OK;
    if (fd >= 0)
        close(fd);
    return admitted ? context : NULL;
}

/* At each port that a host is to connect to: silent connections, and one that greets as the host.
 * Rooms have a process on each host then. */
static void room_disturb(struct room *room)
{
    for (int32_t r = 0; r < room->count; r++) {
        struct pretender *own = &room->pretender[room->pretenders];
        char why[BOOT_WHY_BYTES];
        memset(&own->turn, 0, sizeof(own->turn));
        memcpy(&own->turn, room->blob[r], room->bytes[r]);
        if (own->turn.kind != TESS__TURN_ROUND || own->turn.partner < 0 || own->turn.partner > r)
            continue;
        for (int i = 0; i < STRANGERS; i++) {
            const int fd = tess__boot_connect(own->turn.address, own->turn.port, tess_clock_s() + 5,
                                              why, sizeof(why));
            if (fd >= 0)
                room->silent[room->silent_count++] = fd;
        }
        own->host = r;
        room->disturbed = pthread_create(&own->thread, NULL, pretend, own) != 0;
        room->pretenders++;
    }
}

static enum tess_status room_deal(void *context, const struct tess_boot_parts *parts, void *mine,
                                  size_t room_bytes, size_t *bytes_out)
{
    struct member *member = context;
    struct room *room = member->room;
    const int32_t own = member->meeting.rank;
    for (int32_t r = 0; r < room->count && own == 0; r++) {
        room->bytes[r] = parts->first[r + 1] - parts->first[r];
        memcpy(room->blob[r], parts->bytes + parts->first[r], room->bytes[r]);
        room->from_first += (int64_t)room->bytes[r];
    }
    if (own == 0 && room->disturbed)
        room_disturb(room);
    room_wait(room);
    *bytes_out = room->bytes[own];
    if (*bytes_out <= room_bytes)
        memcpy(mine, room->blob[own], *bytes_out);
    room_wait(room);
    return *bytes_out <= room_bytes ? TESS_OK : TESS_ERR_INTERNAL;
}

/* ---- processes ------------------------------------------------------------------------------- */

static enum tess_status lead(struct member *member)
{
    const struct tess__turn placed = {.kind = TESS__TURN_PLACED};
    struct tess__turn turn;
    struct tess_boot_parts parts;
    size_t bytes;
    enum tess_status status = tess__place_probe(&member->meeting, member->job, member->found);
    if (status == TESS_OK)
        status = tess_boot_parts_open(&parts, member->room->count);
    for (int32_t p = 0; p < member->room->count && status == TESS_OK; p++)
        memcpy(tess_boot_parts_add(&parts, TESS__TURN_SHORT), &placed, TESS__TURN_SHORT);
    if (status == TESS_OK)
        status = room_deal(member, &parts, &turn, sizeof(turn), &bytes);
    tess_boot_parts_close(&parts);
    return status;
}

static enum tess_status follow(struct member *member)
{
    const int32_t p = member->meeting.rank, host = member->job->host[p];
    const bool first = member->job->member[member->job->start[host]] == p;
    struct tess_boot_parts none;
    struct tess__probe *probe;
    struct tess__turn turn = {.kind = TESS__TURN_ROUND};
    size_t bytes;
    enum tess_status status =
        tess__probe_open(&member->meeting, first ? host : -1, member->job->host_count, &probe);
    while (status == TESS_OK) {
        memset(&turn, 0, sizeof(turn));
        status = room_deal(member, NULL, &turn, sizeof(turn), &bytes);
        if (status != TESS_OK || turn.kind == TESS__TURN_PLACED)
            break;
        status = tess__probe_play(probe, &turn, &none);
    }
    tess__probe_close(probe);
    return status;
}

static void *start(void *context)
{
    struct member *member = context;
    member->status = member->meeting.rank == 0 ? lead(member) : follow(member);
    return NULL;
}

/* `each` processes on each of so many hosts; the address of host 1, NULL: it is as the others'.
 */
static struct room *measure(int32_t hosts, int32_t each, const char *odd, bool disturbed,
                            struct tess__network_found *found)
{
    struct room *room = calloc(1, sizeof(*room));
    struct member *member = calloc((size_t)(hosts * each), sizeof(*member));
    struct tess__processes job;
    assert_true(room != NULL && member != NULL && hosts * each <= PROCESSES_MAX);
    room->count = hosts * each;
    room->disturbed = disturbed;
    pthread_mutex_init(&room->lock, NULL);
    pthread_cond_init(&room->turned, NULL);
    assert_int_equal(tess__processes_open(&job, room->count), TESS_OK);
    for (int32_t p = 0; p < room->count; p++)
        job.process[p].host = tess_hash_mix((uint64_t)(p / each));
    tess__place_find_hosts(&job);
    assert_int_equal(job.host_count, hosts);
    for (int32_t h = 0; h < hosts; h++)
        snprintf(job.hosts[h].name, sizeof(job.hosts[h].name), "host%d", (int)h);
    for (int32_t p = 0; p < room->count; p++) {
        member[p] = (struct member){.room = room, .job = &job, .found = found};
        member[p].meeting =
            (struct tess__meeting){.rank = p,
                                   .rank_count = room->count,
                                   .secret = {{3, 1, 4}},
                                   .address = odd != NULL && job.host[p] == 1 ? odd : "127.0.0.1",
                                   .context = &member[p],
                                   .collect = room_collect,
                                   .deal = room_deal};
        assert_int_equal(pthread_create(&member[p].thread, NULL, start, &member[p]), 0);
    }
    for (int32_t p = 0; p < room->count; p++) {
        assert_int_equal(pthread_join(member[p].thread, NULL), 0);
        assert_int_equal(member[p].status, TESS_OK);
    }
    tess__processes_close(&job);
    free(member);
    return room;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void case_few(void **state)
{
    (void)state;
    struct tess__network_found found;
    struct room *room = measure(3, 2, NULL, false, &found);
    assert_string_equal(found.why, "");
    assert_int_equal(found.measured.host_count, 3);
    assert_int_equal(found.measured.block, 1);
    assert_true(found.measured.edge_gbs > 0);
    assert_true(found.measured.group_count >= 1);
    /* Where to connect to, three tournaments of three rounds, and six to judge at most. */
    assert_in_range(room->exchanges, 1 + 3, 1 + 9 + 6);
    free(room);
}

static void case_out_of_reach(void **state)
{
    (void)state;
    struct tess__network_found found;
    struct room *room = measure(3, 1, "240.0.0.1", false, &found);
    assert_string_equal(found.why, "host1 was not reached by host2: no connection came");
    assert_int_equal(found.measured.group_count, 1);
    assert_in_range(room->exchanges, 2, 1 + 3);
    free(room);
}

/* Strangers come first, many of them silent, one of them well informed: no round fails. */
static void case_strangers(void **state)
{
    (void)state;
    struct tess__network_found found;
    struct room *room = measure(4, 1, NULL, true, &found);
    void *admitted = NULL;
    assert_string_equal(found.why, "");
    assert_true(found.measured.edge_gbs > 0);
    assert_int_equal(room->pretenders, 2);
    assert_int_equal(room->silent_count, 2 * STRANGERS);
    for (int32_t i = 0; i < room->pretenders; i++) {
        assert_int_equal(pthread_join(room->pretender[i].thread, &admitted), 0);
        assert_null(admitted);
    }
    for (int32_t i = 0; i < room->silent_count; i++)
        close(room->silent[i]);
    free(room);
}

#if PLACE_PROBE_MANY
/* Two hosts that follow each other are one of 33: rounds are as many as for these. */
static void case_many(void **state)
{
    (void)state;
    struct tess__network_found found;
    struct room *room = measure(66, 2, NULL, false, &found);
    assert_string_equal(found.why, "");
    assert_int_equal(found.measured.host_count, 33);
    assert_int_equal(found.measured.block, 2);
    assert_true(found.measured.edge_gbs > 0);
    assert_in_range(room->exchanges, 1 + 16, 1 + 3 * 33 + 6);
    printf("66 hosts: %d exchanges in %.1f s, %lld bytes to process 0, %lld from it\n",
           (int)room->exchanges, found.seconds, (long long)room->to_first,
           (long long)room->from_first);
    free(room);
}
#endif

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_few),
        cmocka_unit_test(case_out_of_reach),
        cmocka_unit_test(case_strangers),
#if PLACE_PROBE_MANY
        cmocka_unit_test(case_many),
#endif
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
