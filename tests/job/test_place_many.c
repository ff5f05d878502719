/*
 * Placing many processes: all of them run in this one, one after the other, over queues in memory.
 * A process that needs what process 0 has not sent yet ends there, and is run again from its start
 * once it has: what it sends is counted the first time. Bytes and messages are counted as launchers
 * that are each connected to process 0 send them, and as they would go over a tree of 32 below
 * each.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "job/place_probe.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXCHANGES 4  /* cards, seats, hosts, the last word */
#define EACH      8  /* processes on a host */
#define HEAD      24 /* bytes before what is sent */
#define TREE      32

/* What all have sent in an exchange, to process 0 or from it. */
struct exchange {
    bool whole;                   /* process 0 has sent it */
    struct tess_boot_parts parts; /* from process 0, or at it */
    char **blob;                  /* [count] to process 0 */
    size_t *bytes;                /* [count] of either; SIZE_MAX: not yet */
};

struct crowd {
    int32_t count;
    const char *order, *file; /* as --topology.order and --topology.file */
    const char *rack;   /* of each host its switch; '-': no address, '.': no such; NULL: no Slurm */
    int32_t rack_hosts; /* that all are to have */
    struct exchange exchange[EXCHANGES];
    int64_t calls;
};

struct member {
    struct crowd *crowd;
    int32_t rank, at; /* at: its next exchange */
};

static struct exchange *next_exchange(struct member *member)
{
    assert_true(member->at < EXCHANGES);
    struct exchange *exchange = &member->crowd->exchange[member->at++];
    const size_t count = (size_t)member->crowd->count;
    if (exchange->bytes == NULL) {
        exchange->bytes = malloc(count * sizeof(*exchange->bytes));
        exchange->blob = calloc(count, sizeof(*exchange->blob));
        assert_true(exchange->bytes != NULL && exchange->blob != NULL);
        for (size_t r = 0; r < count; r++)
            exchange->bytes[r] = SIZE_MAX;
    }
    return exchange;
}

static enum tess_status crowd_collect(void *context, const void *mine, size_t bytes,
                                      struct tess_boot_parts *parts_out)
{
    struct member *member = context;
    struct exchange *exchange = next_exchange(member);
    const int32_t r = member->rank;
    *parts_out = (struct tess_boot_parts){0};
    if (exchange->bytes[r] == SIZE_MAX) {
        exchange->bytes[r] = bytes;
        exchange->blob[r] = malloc(bytes + 1);
        assert_non_null(exchange->blob[r]);
        if (bytes > 0)
            memcpy(exchange->blob[r], mine, bytes);
    }
    if (r != 0)
        return TESS_OK;
    for (int32_t p = 0; p < member->crowd->count; p++)
        if (exchange->bytes[p] == SIZE_MAX)
            return TESS_ERR_ABORTED;
    assert_int_equal(tess_boot_parts_open(parts_out, member->crowd->count), TESS_OK);
    for (int32_t p = 0; p < member->crowd->count; p++) {
        void *at = tess_boot_parts_add(parts_out, exchange->bytes[p]);
        assert_non_null(at);
        memcpy(at, exchange->blob[p], exchange->bytes[p]);
    }
    return TESS_OK;
}

static enum tess_status crowd_deal(void *context, const struct tess_boot_parts *parts, void *mine,
                                   size_t room, size_t *bytes_out)
{
    struct member *member = context;
    struct exchange *exchange = next_exchange(member);
    const int32_t r = member->rank;
    if (r == 0 && !exchange->whole) {
        assert_int_equal(parts->count, member->crowd->count);
        assert_int_equal(tess_boot_parts_open(&exchange->parts, parts->count), TESS_OK);
        for (int32_t p = 0; p < parts->count; p++) {
            exchange->bytes[p] = parts->first[p + 1] - parts->first[p];
            void *at = tess_boot_parts_add(&exchange->parts, exchange->bytes[p]);
            assert_non_null(at);
            memcpy(at, parts->bytes + parts->first[p], exchange->bytes[p]);
        }
        exchange->whole = true;
    }
    if (!exchange->whole)
        return TESS_ERR_ABORTED;
    *bytes_out = exchange->bytes[r];
    assert_true(*bytes_out <= room);
    memcpy(mine, exchange->parts.bytes + exchange->parts.first[r], *bytes_out);
    return TESS_OK;
}

static void crowd_close(struct crowd *crowd)
{
    for (int32_t e = 0; e < EXCHANGES; e++) {
        struct exchange *exchange = &crowd->exchange[e];
        for (int32_t r = 0; r < crowd->count && exchange->blob != NULL; r++)
            free(exchange->blob[r]);
        free(exchange->blob);
        free(exchange->bytes);
        tess_boot_parts_close(&exchange->parts);
    }
}

/* ---- counting -------------------------------------------------------------------------------- */

struct counts {
    double total, busiest; /* bytes, sent and received */
    int64_t messages, busiest_messages;
};

/* Over a tree with so many below each: all exchanges, in one message from or to each. */
static struct counts count_over(const struct crowd *crowd, int32_t below)
{
    const int32_t count = crowd->count;
    struct counts counts = {0};
    double *bytes = calloc((size_t)count, sizeof(*bytes)), *below_it = calloc((size_t)count, 8);
    int64_t *messages = calloc((size_t)count, sizeof(*messages));
    assert_true(bytes != NULL && below_it != NULL && messages != NULL);
    for (int32_t e = 0; e < EXCHANGES; e++) {
        for (int32_t r = 0; r < count; r++)
            below_it[r] = (double)crowd->exchange[e].bytes[r];
        for (int32_t r = count - 1; r > 0; r--) {
            const int32_t up = (r - 1) / below;
            const double sent = HEAD + below_it[r];
            below_it[up] += sent;
            bytes[r] += sent;
            bytes[up] += sent;
            messages[r]++;
            messages[up]++;
            counts.total += sent;
            counts.messages++;
        }
    }
    for (int32_t r = 0; r < count; r++) {
        counts.busiest = bytes[r] > counts.busiest ? bytes[r] : counts.busiest;
        counts.busiest_messages =
            messages[r] > counts.busiest_messages ? messages[r] : counts.busiest_messages;
    }
    free(bytes);
    free(below_it);
    free(messages);
    return counts;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static char order_option[] = "file:/tmp/tessera-place-many-XXXXXX";
static char *const order_path = order_option + sizeof("file:") - 1;

/* Process 0, then all others from the last on. */
static int32_t rank_wanted(int32_t process, int32_t count)
{
    return process == 0 ? 0 : count - process;
}

static void write_order(int32_t count)
{
    FILE *file = fopen(order_path, "w");
    assert_non_null(file);
    for (int32_t r = 0; r < count; r++)
        fprintf(file, "%d\n", (int)rank_wanted(r, count));
    assert_int_equal(fclose(file), 0);
}

/* Hosts of EACH; processes are dealt out to them in turn, as mpirun may. */
static int32_t host_of(int32_t process, int32_t count)
{
    return process % (count / EACH);
}

static void describe(const struct crowd *crowd, int32_t p, struct tess__process *process,
                     struct tess__host *host)
{
    const int32_t count = crowd->count;
    const char rack = crowd->rack != NULL ? crowd->rack[host_of(p, count)] : '-';
    *process = (struct tess__process){.host = tess_hash_mix((uint64_t)host_of(p, count)),
                                      .cores = 1,
                                      .core_count = 4,
                                      .local_rank = p / (count / EACH)};
    *host = (struct tess__host){.name = ""};
    snprintf(process->bus, sizeof(process->bus), "0000:%02x:00.0",
             (unsigned)(16 + process->local_rank));
    snprintf(host->name, sizeof(host->name), "host%d", (int)host_of(p, count));
    if (rack == '-')
        return;
    /* As Slurm has it in its tasks' environment. */
    if (rack == '.') /* none */
        snprintf(host->slurm_address, sizeof(host->slurm_address), "%s", host->name);
    else
        snprintf(host->slurm_address, sizeof(host->slurm_address), "core.rack_%c.%s", rack,
                 host->name);
    snprintf(host->slurm_pattern, sizeof(host->slurm_pattern), "switch.switch.node");
}

static void check(const struct crowd *crowd, const struct tess__placement *placed, int32_t p)
{
    const int32_t count = crowd->count;
    const bool natural = strcmp(crowd->order, "natural") == 0;
    for (int32_t q = 0; q < count && p == 0; q++)
        assert_int_equal(placed->rank[q], natural ? q : rank_wanted(q, count));
    assert_int_equal(placed->own, natural ? p : rank_wanted(p, count));
    if (placed->rack_hosts != crowd->rack_hosts)
        fail_msg("%s, %s: process %d has racks of %d hosts", crowd->order,
                 crowd->rack != NULL ? crowd->rack : crowd->file, (int)p, (int)placed->rack_hosts);
    assert_int_equal(placed->slot, p / (count / EACH));
    assert_int_equal(placed->host_size, EACH);
    assert_int_equal(placed->host_count, count / EACH);
    assert_false(placed->bound);
    for (int32_t s = 0; s < EACH; s++) {
        char bus[TESS__PLACE_BUS_BYTES];
        snprintf(bus, sizeof(bus), "0000:%02x:00.0", (unsigned)(16 + s));
        assert_string_equal(placed->bus[s], bus);
    }
}

/* One process from its start. */
static enum tess_status begin(struct crowd *crowd, int32_t p)
{
    static struct tess__run run;
    static struct tess_config config;
    const struct tess_placing_options options = {
        .order = crowd->order, .file = crowd->file, .hosts = "", .save = ""};
    struct member member = {.crowd = crowd, .rank = p};
    const struct tess__meeting meeting = {.rank = p,
                                          .rank_count = crowd->count,
                                          .address = "127.0.0.1",
                                          .context = &member,
                                          .collect = crowd_collect,
                                          .deal = crowd_deal};
    struct tess__process process;
    struct tess__host host;
    describe(crowd, p, &process, &host);
    config.placing = options;
    run.config = &config;
    run.placed = tess__placed_open();
    assert_non_null(run.placed);
    const enum tess_status status = tess__place_meet(&run, &options, &meeting, &process, &host);
    if (status == TESS_OK)
        check(crowd, run.placed, p);
    tess__placed_close(run.placed);
    crowd->calls++;
    return status;
}

/* Has it come to its end? */
static bool play(struct crowd *crowd, int32_t p)
{
    const enum tess_status status = begin(crowd, p);
    if (status != TESS_OK && status != TESS_ERR_ABORTED)
        fail_msg("process %d: %s", (int)p, tess_log_last_error());
    return status == TESS_OK;
}

/* All, from the last on, until each has come to its end: seconds of process 0 the last time. */
static double play_all(struct crowd *crowd)
{
    double leader_s = 0;
    int32_t done = 0;
    for (int pass = 0; done < crowd->count && pass < EXCHANGES; pass++) {
        done = 0;
        for (int32_t p = crowd->count - 1; p >= 0; p--) {
            const double from_s = tess_clock_s();
            done += play(crowd, p);
            leader_s = p == 0 ? tess_clock_s() - from_s : leader_s;
        }
    }
    assert_int_equal(done, crowd->count);
    return leader_s;
}

static void place(int32_t count, struct counts *star, struct counts *tree)
{
    struct crowd crowd = {.count = count, .order = order_option, .file = ""};
    const double start_s = tess_clock_s();
    write_order(count);
    const double leader_s = play_all(&crowd);
    *star = count_over(&crowd, count);
    *tree = count_over(&crowd, TREE);
    printf("%6d | %9.2f %7lld %9.2f %7lld | %9.2f %9.3f %6lld | %6.3f %6.2f\n", (int)count,
           star->total / 1e6, (long long)star->messages, star->busiest / 1e6,
           (long long)star->busiest_messages, tree->total / 1e6, tree->busiest / 1e6,
           (long long)tree->busiest_messages, leader_s, tess_clock_s() - start_s);
    crowd_close(&crowd);
}

/* Of each process less than 450 bytes and a number for each, and of nobody's more than what a
 * tree's neighbours send. */
static void case_linear(void **state)
{
    (void)state;
    struct counts star, tree;
    printf(
        "               over connections to process 0               over a tree of 32     s\n"
        " procs |  total MB    msgs    max MB    msgs |  total MB    max MB   msgs | leader all\n");
    for (int32_t count = 64; count <= 16384; count *= 4) {
        const double each = 450 + 4.0 * count;
        place(count, &star, &tree);
        assert_int_equal(star.messages, EXCHANGES * (count - 1));
        assert_int_equal(tree.messages, EXCHANGES * (count - 1));
        assert_true(star.total < each * count);
        assert_true(tree.total < (4 * 450 + 4.0 * count) * count);
        assert_true(tree.busiest < 450.0 * count + (TREE + 1) * 4.0 * count);
        assert_true(tree.busiest_messages <= EXCHANGES * (TREE + 1));
    }
}

/* What process 0 sends last is cut short, or of racks that cannot be. */
static void case_spoilt(void **state)
{
    static const int32_t racks[] = {-1, 9};
    struct crowd crowd = {.count = 8 * EACH, .order = order_option, .file = ""};
    struct exchange *last = &crowd.exchange[EXCHANGES - 1];
    (void)state;
    write_order(crowd.count);
    for (int pass = 0; pass < EXCHANGES; pass++)
        for (int32_t p = crowd.count - 1; p >= 0; p--)
            (void)play(&crowd, p);
    assert_int_equal(begin(&crowd, 5), TESS_OK);
    char *at = last->parts.bytes + last->parts.first[5] + offsetof(struct tess__turn, rack_hosts);
    for (size_t i = 0; i < sizeof(racks) / sizeof(*racks); i++) {
        memcpy(at, &racks[i], sizeof(racks[i]));
        assert_int_equal(begin(&crowd, 5), TESS_ERR_COMM);
        assert_non_null(strstr(tess_log_last_error(), "process 0 sends racks of "));
        assert_non_null(strstr(tess_log_last_error(), "hosts, of 8"));
    }
    last->bytes[5] = offsetof(struct tess__turn, rack_hosts);
    assert_int_equal(begin(&crowd, 5), TESS_ERR_COMM);
    assert_string_equal(tess_log_last_error(), "process 0 sends 12 bytes of the order");
    crowd_close(&crowd);
}

/* Racks of an order that is given, for sums between them: by the addresses of Slurm's tasks or its
 * file. No racks where they are not equal or do not follow each other, nor where a host's address
 * is missing or is none: that is no reason not to start. */
static void case_racks(void **state)
{
    static char path[] = "/tmp/tessera-place-racks-XXXXXX";
    static const char switches[] = "SwitchName=a Nodes=host[0-2]\nSwitchName=b Nodes=host[3-5]\n"
                                   "SwitchName=core Switches=a,b\n";
    const struct crowd wanted[] = {
        {.order = "natural", .file = "", .rack = "aabbcc", .rack_hosts = 2},
        {.order = "natural", .file = "", .rack = "aaabbb", .rack_hosts = 3},
        {.order = "natural", .file = "", .rack = "aaaaaa", .rack_hosts = 6},
        {.order = "natural", .file = "", .rack = "aabbbb", .rack_hosts = 0},
        {.order = "natural", .file = "", .rack = "ababab", .rack_hosts = 0},
        {.order = "natural", .file = "", .rack = "aaab-b", .rack_hosts = 0},
        {.order = "natural", .file = "", .rack = "aaab.b", .rack_hosts = 0},
        {.order = order_option, .file = "", .rack = "abbbaa", .rack_hosts = 3},
        {.order = order_option, .file = "", .rack = "aaabbb", .rack_hosts = 0},
        {.order = "natural", .file = path, .rack_hosts = 3},
        {.order = order_option, .file = path, .rack_hosts = 0},
    };
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, switches, sizeof(switches) - 1) > 0 && close(fd) == 0);
    write_order(6 * EACH);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        struct crowd crowd = wanted[i];
        crowd.count = 6 * EACH;
        (void)play_all(&crowd);
        crowd_close(&crowd);
    }
    assert_int_equal(unlink(path), 0);
}

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(order_path);
    return fd >= 0 ? close(fd) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(order_path);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_linear), cmocka_unit_test(case_spoilt),
                                       cmocka_unit_test(case_racks)};
    return cmocka_run_group_tests(cases, make_file, remove_file);
}
