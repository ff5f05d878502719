/*
 * Supervisors of very many hosts, all in this process (job/crowd.h): they join, start their ranks,
 * which run for a moment and end, and leave. Their tree is the engine's own; in the place of the
 * processes of a host there is a clock. Prints when each stage has ended, and what the busiest
 * supervisor sends, gets and keeps.
 *
 *     test_hosts_many [HOSTS]
 */
#include "job/crowd.h"

#include "base/clock.h"
#include "run/hosts_room.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS_S 0.05
#define PORT   29500

static int32_t many = 1500;

/* ---- in the place of hosts_crew.c ------------------------------------------------------------ */

int32_t tess__hosts_slots(const struct tess__hosts *hosts)
{
    return hosts->slots;
}

int32_t tess__hosts_room(const struct tess__hosts *hosts)
{
    return hosts->count + HOSTS_SPARE;
}

enum tess_status tess__crew_open(struct hosts_crew *crew, const struct tess__hosts *hosts)
{
    *crew = (struct hosts_crew){
        .hosts = hosts, .slots = hosts->slots, .history = calloc(1, sizeof(*crew->history))};
    return crew->history != NULL ? TESS_OK : TESS_ERR_MEMORY;
}

void tess__crew_close(struct hosts_crew *crew)
{
    free(crew->history);
    free(crew->watch);
}

/* When its ranks end: in microseconds, where a real one keeps steps. */
bool tess__crew_start(struct hosts_crew *crew, const struct hosts_order *order)
{
    crowd_mark();
    crew->news = (struct hosts_news){.kind = HOSTS_ENDED, .done = true, .may_help = true};
    crew->count = crew->alive = order->count;
    crew->history->step = (int64_t)((tess_clock_s() + RUNS_S) * 1e6);
    return true;
}

bool tess__crew_gather(struct hosts_crew *crew, const struct hosts_order *order,
                       const struct hosts_source *source)
{
    (void)crew;
    (void)order;
    (void)source;
    return false;
}

void tess__crew_secret(const struct hosts_crew *crew, const struct hosts_order *order,
                       struct tess_secret *secret_out)
{
    tess_secret_derive(&crew->hosts->secret, order->key, sizeof(order->key), secret_out);
}

void tess__crew_kill(const struct hosts_crew *crew, int number)
{
    (void)crew;
    (void)number;
}

void tess__crew_watch(struct hosts_crew *crew, int fd)
{
    if (crew->watched == crew->watch_room) {
        crew->watch_room = 2 * crew->watch_room + 8;
        crew->watch = realloc(crew->watch, (size_t)crew->watch_room * sizeof(*crew->watch));
        assert_non_null(crew->watch);
    }
    crew->watch[crew->watched++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

void tess__crew_unwatch(struct hosts_crew *crew, int fd)
{
    for (int32_t i = 0; i < crew->watched; i++)
        if (crew->watch[i].fd == fd)
            crew->watch[i--] = crew->watch[--crew->watched];
}

bool tess__crew_is_ready(struct hosts_crew *crew, int fd)
{
    for (int32_t i = 0; i < crew->watched; i++)
        if (crew->watch[i].fd == fd)
            return crew->watch[i].revents != 0;
    return false;
}

struct hosts_wish tess__crew_wait(struct hosts_crew *crew, int limit_ms)
{
    const double end_s = (double)crew->history->step * 1e-6;
    const double left_ms = crew->alive > 0 ? fmax(0, (end_s - tess_clock_s()) * 1e3) : INFINITY;
    struct hosts_wish wish = {.ended = false};
    const int ms =
        left_ms < 1e6 && (limit_ms < 0 || left_ms < limit_ms) ? (int)left_ms + 1 : limit_ms;
    for (int32_t i = 0; i < crew->watched; i++)
        crew->watch[i].revents = 0;
    (void)poll(crew->watch, (nfds_t)crew->watched, ms);
    wish.ended = crew->alive > 0 && tess_clock_s() >= end_s;
    if (wish.ended) {
        crew->alive = 0;
        crowd_mark();
    }
    return wish;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void body(void *context, int32_t p)
{
    int *code = context;
    struct tess__hosts hosts = {.count = many,
                                .timeout_s = 600,
                                .port = PORT,
                                .slots = 1,
                                .secret.key = {9},
                                .restart = {.run = "", .copies = "", .ranks = many}};
    char address[16];
    crowd_address(0, address);
    snprintf(hosts.address, sizeof(hosts.address), "%s", address);
    code[p] = tess__hosts_run(&hosts);
}

static void most_of(struct crowd_stage *most, const struct crowd_stage *own)
{
    most->at_s = fmax(most->at_s, own->at_s);
    most->messages = own->messages > most->messages ? own->messages : most->messages;
    most->bytes = own->bytes > most->bytes ? own->bytes : most->bytes;
    most->connections = own->connections > most->connections ? own->connections : most->connections;
    most->memory = own->memory > most->memory ? own->memory : most->memory;
}

static void case_many(void **state)
{
    enum { STAGES = 3 };
    static const char *const name[STAGES] = {"joined", "ran", "left"};
    const struct crowd_setup setup = {
        .count = many, .each = 1, .latency_s = 20e-6, .bytes_per_s = 1.25e9};
    struct crowd_stage *stage = calloc((size_t)many * CROWD_STAGES, sizeof(*stage));
    int *code = calloc((size_t)many, sizeof(*code));
    (void)state;
    assert_non_null(stage);
    assert_non_null(code);
    tess_log_set_level(TESS_LOG_WARN);
    crowd_run(&setup, body, code, stage);
    printf("               |    end | leader:      MB    KiB proc.     | others:  MB   KiB conn-\n"
           "stage    hosts |      s | msgs   both ways        s  conn. | msgs          ections\n");
    for (int s = 0; s < STAGES; s++) {
        const struct crowd_stage *own = stage + (size_t)s * (size_t)many;
        struct crowd_stage others = {.at_s = 0};
        for (int32_t p = 1; p < many; p++)
            most_of(&others, &own[p]);
        printf("%-8s %5d | %6.3f | %6lld %6.2f %6.0f %5.2f %5d | %5lld %6.2f %5.0f %5d\n", name[s],
               (int)many, fmax(own->at_s, others.at_s), (long long)own->messages,
               (double)own->bytes / 1e6, (double)own->memory / 1024, own->processor_s,
               own->connections, (long long)others.messages, (double)others.bytes / 1e6,
               (double)others.memory / 1024, others.connections);
        assert_true(others.at_s < 10);
        assert_true(others.messages < 8 * many);
        /* One more while it goes from the leader to another one, and those that have not proved
         * themselves yet. */
        assert_true(others.connections <= TESS_BOOT_FAN + 3);
    }
    for (int32_t p = 0; p < many; p++)
        assert_int_equal(code[p], 0);
    free(stage);
    free(code);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_many)};
    if (argc > 1)
        many = (int32_t)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(cases, NULL, NULL);
}
