/* The leader: takes hosts in, starts attempts on all of them, and decides what follows an end. */
#include "run/hosts.h"

#include "base/clock.h"
#include "run/copies.h"
#include "run/hosts_leader.h"
#include "tessera/check.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- hosts ----------------------------------------------------------------------------------- */

enum tess_status tess__hosts_read_meet(const char *text, struct tess__hosts *hosts)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const long port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof(hosts->address) || !isdigit((unsigned char)colon[1]) ||
        *end != '\0' || port < 1 || port > 65535)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--meet is '%.80s': it must be HOST:PORT, the host that leads and a free port of "
                  "it, the same on all hosts",
                  text);
    if (text[0] == '[' && colon[-1] == ']') { /* IPv6 */
        text++;
        length -= 2;
    }
    snprintf(hosts->address, sizeof(hosts->address), "%.*s", (int)length, text);
    hosts->port = (int32_t)port;
    return TESS_OK;
}

/* Does the name mean this host? Then one of its addresses can be bound here. */
static bool hosts_is_here(const char *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    bool here = false;
    if (getaddrinfo(address, NULL, &hints, &found) != 0)
        return false;
    for (struct addrinfo *at = found; at != NULL && !here; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    return here;
}

/* Signals, greetings and news, once something came. False: the leader is to end. */
static bool leader_look(struct leader *leader, int limit_ms)
{
    const struct hosts_wish wish = tess__crew_wait(leader->crew, limit_ms);
    if (wish.ended) {
        leader->host[0].news = leader->crew->news;
        leader->host[0].held.copies = leader->crew->news.copies;
        leader->host[0].runs = false;
    }
    if (wish.again) {
        tess__crew_kill(leader->crew, SIGKILL);
        tess__leader_send_all(leader, &(struct hosts_order){.kind = HOSTS_KILL});
    }
    tess__leader_read(leader);
    return !leader->crew->ends;
}

/* The same for as long as nothing is due. */
static bool leader_wait(struct leader *leader)
{
    bool due = leader->door.pending_count > 0 || leader->unmet_s > 0;
    for (int32_t h = 1; h < leader->count && !due; h++)
        due = leader->host[h].limit_s > 0;
    return leader_look(leader, due ? 100 : -1);
}

static bool leader_lacks_any(const struct leader *leader)
{
    for (int32_t h = 0; h < leader->count; h++)
        if (leader->host[h].gone || leader->host[h].leaves)
            return true;
    return false;
}

/* ---- an attempt ------------------------------------------------------------------------------ */

/* The layout of so many ranks is looked for in a process of its own, which may use devices. */
static bool leader_choose(struct leader *leader, int32_t left)
{
    const struct tess__restart *restart = &leader->hosts->restart;
    struct tess__history *history = &leader->crew->history[0];
    int wait_status;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0)
        exit(restart->choose(restart->context, left, history));
    return pid > 0 && waitpid(pid, &wait_status, 0) == pid && WIFEXITED(wait_status) &&
           WEXITSTATUS(wait_status) == 0 &&
           sscanf(history->layout[0], "--ranks=%d", &leader->order.ranks) == 1;
}

/* Which hosts take part in the next attempt, with how many processes? */
static void leader_deal(struct leader *leader)
{
    int32_t first = 0;
    for (int32_t h = 0; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        const int32_t rest = leader->order.ranks - first;
        host->first = first;
        host->share = host->slots < rest ? host->slots : rest;
        host->is_new = false;
        first += host->share;
    }
}

static bool leader_find_layout(struct leader *leader)
{
    const struct tess__restart *restart = &leader->hosts->restart;
    const int32_t left = tess__leader_slots(leader);
    struct tess__history *history = &leader->crew->history[0];
    memset(history->layout, 0, sizeof(history->layout));
    leader->order.ranks = restart->ranks;
    if (left < restart->ranks &&
        (restart->least == 0 || left < restart->least || !leader_choose(leader, left)))
        return false;
    memcpy(leader->order.layout, history->layout, sizeof(history->layout));
    leader_deal(leader);
    return true;
}

/* The next host of the attempt in a ring keeps this one's copies; none: it is the only one. */
static void leader_set_partner(struct leader *leader, int32_t h)
{
    struct hosts_order *order = &leader->order;
    const struct host *host = &leader->host[h];
    order->partner_port = 0;
    for (int32_t i = 1; i < leader->count && order->partner_port == 0; i++) {
        const struct host *next = &leader->host[(h + i) % leader->count];
        if (next->held.part != (host->held.part + 1) % leader->parts)
            continue;
        order->partner_port = next->held.port;
        memcpy(order->partner, next->held.address, sizeof(order->partner));
    }
}

static void leader_number_parts(struct leader *leader)
{
    leader->parts = 0;
    leader->whole = leader->order.step;
    for (int32_t h = 0; h < leader->count; h++) {
        struct hosts_held *held = &leader->host[h].held;
        held->part = leader->host[h].share > 0 ? leader->parts++ : -1;
        for (int i = 0; i < HOSTS_COPIES; i++) /* until it reports */
            held->copies.own[i] = held->copies.replica[i] = -1;
    }
}

/* TESS_ERR_COMM: there is no port. */
static enum tess_status leader_start(struct leader *leader)
{
    struct boot_listener listener;
    const int error = tess__boot_try_listen(leader->hosts->address, 0, &listener);
    if (error != 0)
        TESS_FAIL(TESS_ERR_COMM, "no free port for the ranks: %s", strerror(error));
    leader->order.kind = HOSTS_START;
    leader->order.port = tess__boot_port(&listener);
    tess__boot_unlisten(&listener);
    leader->begun = true;
    leader->stops = false;
    leader->unmet_s = 0;
    leader_number_parts(leader);
    for (int32_t h = 0; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        leader->order.first = host->first;
        leader->order.count = host->share;
        host->news = (struct hosts_news){.done = true, .may_help = true};
        host->runs = host->share > 0;
        leader_set_partner(leader, h);
        if (h > 0 && host->runs)
            tess__leader_send(leader, host, &leader->order);
        else if (h == 0 && !tess__crew_start(leader->crew, &leader->order))
            leader->host[0].runs = false;
    }
    leader->order.attempt++;
    return TESS_OK;
}

static bool leader_runs(const struct leader *leader)
{
    for (int32_t h = 0; h < leader->count; h++)
        if (leader->host[h].runs)
            return true;
    return false;
}

/* Where a host leaves, or one has come while there was room for more ranks, the attempt saves and
 * ends: a request at one rank is one at all. */
static void leader_may_stop(struct leader *leader)
{
    const struct hosts_crew *crew = leader->crew;
    const int32_t most = leader->hosts->restart.ranks;
    const int32_t ranks = leader->order.ranks;
    bool leaves = false, joins = false;
    for (int32_t h = 1; h < leader->count; h++) {
        leaves = leaves || (leader->host[h].leaves && leader->host[h].runs);
        joins =
            joins || (leader->host[h].is_new && ranks < most && tess__leader_slots(leader) > ranks);
    }
    if ((!leaves && !joins) || leader->stops || crew->ends)
        return;
    /* The signal that makes a host leave may have ended all ranks before its news is here. */
    if (crew->alive == 0 && (!leaves || crew->news.done))
        return;
    leader->stops = true;
    tess__crew_kill(crew, SIGTERM);
}

/* Where a rank has failed before it met the others, they wait for it: it has sent them why, and
 * they end, unless it was killed. */
static void leader_end_unmet(struct leader *leader)
{
    const struct host *host = leader->host;
    while (host < leader->host + leader->count && !host->news.unmet)
        host++;
    if (host == leader->host + leader->count)
        return;
    if (leader->unmet_s == 0)
        leader->unmet_s = tess_clock_s() + HOSTS_UNMET_S;
    if (tess_clock_s() < leader->unmet_s)
        return;
    tess_log(TESS_LOG_WARN,
             "a rank of host %s has ended before it met the others (exit status %d): ending them",
             host->name, (int)host->news.code);
    leader->unmet_s = INFINITY;
    tess__crew_kill(leader->crew, SIGKILL);
    tess__leader_send_all(leader, &(struct hosts_order){.kind = HOSTS_KILL});
}

static void leader_watch(struct leader *leader)
{
    while (leader_runs(leader)) {
        (void)leader_wait(leader);
        leader_may_stop(leader);
        leader_end_unmet(leader);
    }
    /* Process 0, whose launcher has asked for other numbers, is the first of this host. */
    leader->stops = leader->stops || tess__restart_renumbers(&leader->crew->history[0]);
}

/* ---- the state from copies (--redundancy) ---------------------------------------------------- */

static int64_t leader_choose_step(struct leader *leader, int32_t *source_count)
{
    if (leader->crew->mirror.pid <= 0 || leader->parts == 0)
        return -1;
    for (int32_t h = 0; h < leader->count; h++)
        leader->held[h] = &leader->host[h].held;
    return tess__gather_choose(leader->held, leader->count, leader->parts, leader->whole,
                               tess__restart_saved(&leader->hosts->restart), leader->source,
                               source_count);
}

static void leader_start_gather(struct leader *leader, int32_t source_count)
{
    const struct hosts_source *source = leader->source;
    struct hosts_order order = leader->order;
    order.kind = HOSTS_GATHER;
    order.source_count = leader->source_count = source_count;
    tess__leader_send_sources(leader);
    for (int32_t h = 0; h < leader->count; h++) {
        struct host *host = &leader->host[h];
        order.skip = -1;
        for (int32_t s = 0; s < source_count; s++)
            if (tess__gather_is_own(&host->held, &source[s]) ||
                (source_count == 1 && leader->whole == order.step && host->held.part >= 0))
                order.skip = s;
        host->news = (struct hosts_news){.done = true};
        host->runs = host->share > 0 && (source_count > 1 || order.skip < 0);
        if (host->runs && h > 0)
            tess__leader_send(leader, host, &order);
        else if (host->runs && !tess__crew_gather(leader->crew, &order, source))
            leader->host[0].runs = host->news.done = false;
    }
}

/*
 * The newest state that the hosts of the next attempt have together, on each of them: order.step;
 * -1: there is none that is newer than the newest checkpoint, from which they go on then. False: a
 * host has gone meanwhile, or this one is to end.
 */
static bool leader_gather(struct leader *leader)
{
    int32_t source_count = 0;
    bool done = true;
    leader->order.step = leader_choose_step(leader, &source_count);
    if (leader->order.step < 0)
        return true;
    leader_start_gather(leader, source_count);
    while (leader_runs(leader) && (!leader->crew->ends || leader->crew->alive > 0))
        (void)leader_wait(leader);
    if (leader->crew->ends || leader_lacks_any(leader))
        return false;
    for (int32_t h = 0; h < leader->count; h++)
        done = done && leader->host[h].news.done;
    if (!done) {
        tess_log(TESS_LOG_WARN, "the copies after step %lld cannot be gathered",
                 (long long)leader->order.step);
        leader->order.step = -1;
    }
    return true;
}

/* ---- what follows ---------------------------------------------------------------------------- */

/* The attempts of all hosts as one: *code_out is of one that failed. */
static void leader_sum(const struct leader *leader, struct hosts_news *sum_out)
{
    *sum_out = (struct hosts_news){.done = !leader->stops, .may_help = true};
    for (int32_t h = 0; h < leader->count; h++) {
        const struct host *host = &leader->host[h];
        sum_out->done = sum_out->done && host->news.done;
        sum_out->may_help = sum_out->may_help && host->news.may_help;
        if (sum_out->code == 0 || (host->news.code != 0 && !host->news.may_help))
            sum_out->code = host->news.code != 0 ? host->news.code : sum_out->code;
    }
    if (!sum_out->done && sum_out->code == 0)
        sum_out->code = tess_status_exit_code(TESS_ERR_COMM);
}

/* Until the table has those alone that are there. */
static void leader_settle(struct leader *leader)
{
    do {
        tess__leader_drop_gone(leader);
        while (tess__leader_waits(leader) && leader_look(leader, 100))
            ;
    } while (!leader->crew->ends && leader_lacks_any(leader));
}

/* With the hosts that are left, or come. False: there is no next attempt. */
static bool leader_find_hosts(struct leader *leader)
{
    const struct tess__restart *restart = &leader->hosts->restart;
    const double limit_s = tess_clock_s() + HOSTS_JOIN_S;
    while (!leader_find_layout(leader)) {
        const int32_t slots = tess__leader_slots(leader);
        if (!leader->hosts->elastic || tess_clock_s() > limit_s) {
            tess_log(TESS_LOG_WARN, "no restart: there is room for %d ranks of %d%s", slots,
                     restart->ranks,
                     leader->hosts->elastic ? ""
                     : restart->least > 0
                         ? ""
                         : "; --min-ranks M goes on with fewer, --elastic waits for hosts");
            return false;
        }
        tess_log(TESS_LOG_INFO, "waits for hosts to join: there is room for %d ranks of %d", slots,
                 restart->ranks);
        while (tess__leader_slots(leader) <= slots && tess_clock_s() < limit_s) {
            if (!leader_look(leader, 100))
                return false;
            tess__leader_drop_gone(leader);
        }
    }
    return true;
}

/* After an attempt: true, another one follows; else *code_out is the exit status. */
static bool leader_next(struct leader *leader, int *code_out)
{
    const struct tess__restart *restart = &leader->hosts->restart;
    struct tess__history *history = &leader->crew->history[0];
    struct hosts_news sum;
    bool leaves = false;
    leader_sum(leader, &sum);
    for (int32_t h = 1; h < leader->count; h++)
        leaves = leaves || leader->host[h].leaves;
    *code_out = sum.code;
    if (sum.done || leader->crew->ends)
        return false;
    if (leaves && !leader->hosts->elastic) {
        *code_out = tess_status_exit_code(TESS_ERR_INTERRUPTED);
        return false;
    }
    if (!leader->stops && (!sum.may_help || !tess__restart_is_left(restart, history)))
        return false;
    for (int32_t h = 0; h < leader->count && restart->least > 0; h++)
        leader->host[h].slots -= leader->host[h].news.lost;
    do {
        leader_settle(leader);
        if (leader->crew->ends || !leader_find_hosts(leader))
            return false;
    } while (!leader_gather(leader));
    if (leader->crew->mirror.pid > 0)
        tess__copies_keep(restart->copies, leader->order.step);
    leader->order.begin = tess__restart_next(restart, !leader->stops, history);
    return true;
}

static int leader_run(struct leader *leader)
{
    int code = tess_status_exit_code(TESS_ERR_INTERRUPTED);
    if (leader->hosts->count > 1)
        tess_log(TESS_LOG_INFO, "waits at %s:%d for %d more host%s%s", leader->hosts->address,
                 leader->hosts->port, leader->hosts->count - 1,
                 leader->hosts->count == 2 ? "" : "s",
                 tess__boot_is_loopback(leader->hosts->address)
                     ? " on this machine, as no other one can reach that address"
                     : "");
    const double limit_s = tess_clock_s() + HOSTS_JOIN_S;
    while (tess__leader_joined(leader) < leader->hosts->count) {
        if (!leader_look(leader, 100))
            return code;
        tess__leader_drop_gone(leader);
        if (leader->why[0] != '\0')
            return tess_status_exit_code(tess_fail(TESS_ERR_COMM, "%s", leader->why));
        if (tess_clock_s() > limit_s) {
            char others[120];
            tess__boot_door_others(&leader->door, others, sizeof(others));
            return tess_status_exit_code(
                tess_fail(TESS_ERR_TIMEOUT, "%d of %d hosts have joined at %s:%d within %g s%s",
                          tess__leader_joined(leader), leader->hosts->count, leader->hosts->address,
                          leader->hosts->port, HOSTS_JOIN_S, others));
        }
    }
    if (!leader_find_layout(leader))
        return tess_status_exit_code(tess_fail(
            TESS_ERR_USAGE,
            "%d hosts have joined with room for %d ranks of %d: start all with the same "
            "--ranks and --hosts",
            leader->hosts->count, tess__leader_slots(leader), leader->hosts->restart.ranks));
    do {
        const enum tess_status status = leader_start(leader);
        if (status != TESS_OK)
            return tess_status_exit_code(status);
        leader_watch(leader);
    } while (leader_next(leader, &code));
    return code;
}

/* What grows with the number of hosts, which only the leader has. */
static enum tess_status leader_open(struct leader *leader, struct hosts_crew *crew,
                                    const struct hosts_hello *hello)
{
    const size_t room = (size_t)tess__hosts_room(crew->hosts);
    leader->crew = crew;
    leader->count = 1;
    leader->room = (int32_t)room;
    leader->order.step = -1;
    leader->host = calloc(room, sizeof(*leader->host));
    leader->held = calloc(room, sizeof(*leader->held));
    leader->source = calloc(room, sizeof(*leader->source));
    if (leader->host == NULL || leader->held == NULL || leader->source == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d hosts", crew->hosts->count);
    leader->host[0] = (struct host){.fd = -1, .slots = hello->slots, .offers = hello->slots};
    leader->host[0].held.port = crew->mirror.port;
    memcpy(leader->host[0].name, hello->name, sizeof(hello->name));
    if (getrandom(leader->order.key, sizeof(leader->order.key), 0) < 0)
        TESS_FAIL(TESS_ERR_IO, "no random numbers for a key: %s", strerror(errno));
    for (int i = 0; i < leader->door.listener.count; i++)
        tess__crew_watch(crew, leader->door.listener.fd[i]);
    return tess__boot_need_files((int64_t)room, "the hosts' meeting");
}

static int leader_lead(struct leader *leader, struct hosts_crew *crew,
                       const struct hosts_hello *hello)
{
    const enum tess_status status = leader_open(leader, crew, hello);
    int code = tess_status_exit_code(status);
    if (status == TESS_OK) {
        code = leader_run(leader);
        tess__leader_end(leader, code);
    }
    free(leader->host);
    free(leader->held);
    free(leader->source);
    return code;
}

/* As the leader where this host is the one that is named, and is the first there. */
static int hosts_run(const struct tess__hosts *hosts, struct hosts_crew *crew,
                     const struct hosts_hello *hello)
{
    struct leader leader = {.hosts = hosts};
    const bool here = hosts_is_here(hosts->address);
    int error, code = HOSTS_MAY_LEAD;
    leader.door = (struct boot_door){
        .greet = tess__leader_greet, .context = &leader, .secret = &hosts->secret};
    do {
        error = here ? tess__boot_try_listen(hosts->address, hosts->port, &leader.door.listener)
                     : EADDRNOTAVAIL;
        if (error == EADDRINUSE || error == EADDRNOTAVAIL)
            code = tess__hosts_member(hosts, crew, hello, error == EADDRINUSE);
    } while (error != 0 && code == HOSTS_MAY_LEAD);
    if (code != HOSTS_MAY_LEAD)
        return code;
    if (error != 0)
        return tess_status_exit_code(tess_fail(TESS_ERR_COMM, "cannot listen at %s:%d: %s",
                                               hosts->address, hosts->port, strerror(error)));
    code = leader_lead(&leader, crew, hello);
    tess__boot_door_close(&leader.door);
    return code;
}

static void hosts_name(struct hosts_hello *hello)
{
    if (gethostname(hello->name, sizeof(hello->name) - 1) != 0)
        snprintf(hello->name, sizeof(hello->name), "?");
}

/* ---- a host that has failed ------------------------------------------------------------------ */

static bool hosts_answer_failure(void *context, int fd, const unsigned char *bytes)
{
    struct hosts_hello hello;
    memcpy(&hello, bytes, sizeof(hello));
    if (memcmp(hello.magic, HOSTS_MAGIC, sizeof(hello.magic)) != 0)
        return false;
    (void)tess__boot_send(fd, context, sizeof(struct hosts_order), tess_clock_s() + 1, NULL, 0);
    close(fd);
    return true;
}

/* Those that wait for this host, which was to lead, try again and again. */
static void hosts_fail_as_leader(const struct tess__hosts *hosts, const char *name, const char *why)
{
    struct hosts_order quit = {.kind = HOSTS_QUIT, .code = tess_status_exit_code(TESS_ERR_COMM)};
    struct boot_door door = {
        .greet = hosts_answer_failure, .context = &quit, .secret = &hosts->secret};
    const double limit_s = tess_clock_s() + HOSTS_FAIL_S;
    snprintf(quit.why, sizeof(quit.why), "host %s has failed: %.*s", name, HOSTS_WHY - 64, why);
    if (tess__boot_try_listen(hosts->address, hosts->port, &door.listener) != 0)
        return;
    while (tess_clock_s() < limit_s)
        tess__boot_door_look(&door);
    tess__boot_door_close(&door);
}

void tess__hosts_fail(const struct tess__hosts *hosts, const char *why)
{
    const double limit_s = tess_clock_s() + HOSTS_FAIL_S;
    struct hosts_hello hello = {.slots = 0};
    unsigned char greeting[TESS_GREETING_BYTES];
    char text[HOSTS_WHY] = "", ignored[BOOT_WHY_BYTES];
    hosts_name(&hello);
    if (hosts_is_here(hosts->address))
        hosts_fail_as_leader(hosts, hello.name, why);
    const int fd =
        tess__boot_connect(hosts->address, hosts->port, limit_s, ignored, sizeof(ignored));
    if (fd < 0)
        return;
    memcpy(hello.magic, HOSTS_FAILS, sizeof(hello.magic));
    memcpy(greeting, &hello, sizeof(greeting));
    snprintf(text, sizeof(text), "%s", why);
    if (tess__boot_knock(fd, &hosts->secret, greeting, limit_s, ignored, sizeof(ignored)) ==
        TESS_OK)
        (void)tess__boot_send(fd, text, sizeof(text), limit_s, NULL, 0);
    close(fd);
}

int tess__hosts_run(const struct tess__hosts *hosts)
{
    struct hosts_crew crew;
    struct hosts_hello hello = {.slots = tess__hosts_slots(hosts)};
    memcpy(hello.magic, HOSTS_MAGIC, sizeof(hello.magic));
    hosts_name(&hello);
    const enum tess_status status = tess__crew_open(&crew, hosts);
    int code = tess_status_exit_code(status);
    if (status == TESS_OK) {
        hello.mirror = (uint16_t)crew.mirror.port;
        code = hosts_run(hosts, &crew, &hello);
    }
    tess__crew_close(&crew);
    return code;
}
