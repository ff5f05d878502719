/*
 * The flight record, driven by hand, and what tessera status reads from it: the last calls of each
 * rank, who waits for whom, calls that differ; and files that are truncated, damaged or hostile.
 */
#include "base/clock.h"
#include "comm/flight.h"
#include "run/status.h"
#include "tessera/check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define RANKS 4

static char run[] = "/tmp/tessera_status_XXXXXX";
static struct tess_flight *flight;
static struct tess_world *world;
static struct tess__status status;
/* Of each rank: the group of all, and one of two ranks along the data axis. */
static struct tess_comm all[RANKS], pair[RANKS];
static uint64_t ticket;

static void open_run(void)
{
    static const char *const unit[] = {"fc1", "fc2"};
    const struct tess_flight_about about = {
        .rank_count = RANKS, .end = RANKS, .unit_name = unit, .unit_count = 2};
    flight = tess_flight_open(run, &about);
    assert_non_null(flight);
    assert_int_equal(tess_world_open(RANKS, TESS_RANKS_THREADS, &world), TESS_OK);
    tess_flight_boards(flight, world);
    for (int32_t r = 0; r < RANKS; r++) {
        all[r] = (struct tess_comm){.rank = r, .rank_count = RANKS};
        pair[r] = (struct tess_comm){.rank = r % 2, .rank_count = 2};
        tess_flight_watch(flight, &all[r]);
        pair[r].observer = all[r].observer;
        tess__flight_split(&all[r], &pair[r], r / 2);
        tess_flight_axis(&pair[r], TESS_AXIS_DATA);
        struct tess_board *board = tess_world_board(world, r);
        board->pid = (int32_t)getpid();
        board->doing = TESS_DOING_FORWARD;
        board->unit = 1;
        board->step = 7;
    }
}

/* A call that is made, and begins to be waited for. Returns its ticket. */
static uint64_t call_of(struct tess_comm *comm, enum tess_collective collective, size_t count,
                        int32_t peer)
{
    const struct tess_comm_call call = {.collective = collective,
                                        .dtype = TESS_F32,
                                        .count = count,
                                        .peer = peer,
                                        .site = "test_flight.c:1"};
    comm->called_s = tess_clock_s();
    comm->observer->called(comm->observer->context, comm, &call, ++ticket);
    comm->observer->waiting(comm->observer->context, comm, ticket, true);
    return ticket;
}

static void end_call(struct tess_comm *comm, uint64_t which)
{
    comm->observer->completed(comm->observer->context, comm, which);
    comm->observer->waiting(comm->observer->context, comm, which, false);
}

static void done(struct tess_comm *comm, enum tess_collective collective, size_t count)
{
    end_call(comm, call_of(comm, collective, count, -1));
}

static enum tess_status read_run(void)
{
    const enum tess_status result = tess__status_read(run, &status);
    tess__status_find(&status);
    return result;
}

static void close_run(void)
{
    tess__status_close(&status);
    tess_flight_close(flight);
    tess_world_close(world);
}

/* What is printed; to be freed. */
static char *print(int32_t calls)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    tess__status_print(&status, calls, stream);
    fclose(stream);
    return text;
}

static void expect(const char *phrase)
{
    char *text = print(TESS_FLIGHT_CALLS);
    if (strstr(text, phrase) == NULL)
        fail_msg("no '%s' in:\n%s", phrase, text);
    free(text);
}

/* A bit for each rank. */
static uint64_t bits(const struct tess__status_set *set)
{
    uint64_t ranks = 0;
    for (int32_t i = 0; set != NULL && i < set->count; i++)
        ranks |= UINT64_C(1) << set->rank[i];
    return ranks;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The last 256 calls are kept, with their ends; earlier ones, and ends that come too late, not. */
static void case_last_calls(void **state)
{
    (void)state;
    open_run();
    const uint64_t lapped = call_of(&all[0], TESS_COLLECTIVE_BROADCAST, 1, 2);
    for (size_t i = 1; i < 300; i++)
        done(i % 2 == 0 ? &all[0] : &pair[0], TESS_COLLECTIVE_ALL_REDUCE, i);
    end_call(&all[0], lapped);
    call_of(&all[0], TESS_COLLECTIVE_ALL_GATHER, 1000, -1);
    assert_int_equal(read_run(), TESS_OK);
    const struct tess__status_rank *rank = &status.rank[0];
    for (uint64_t n = 46; n <= 301; n++) {
        const struct tess_flight_call *call = &rank->file->call[(n - 1) % TESS_FLIGHT_CALLS];
        assert_true(rank->whole[(n - 1) % TESS_FLIGHT_CALLS]);
        assert_int_equal(call->sequence, 2 * n);
        assert_int_equal(call->bytes, n == 301 ? 4000 : 4 * (n - 1));
        assert_int_equal(call->number, (n + 1) / 2); /* of its group */
        assert_int_equal(rank->file->now.group[call->group].axis, n == 301 || n % 2 == 1 ? -1 : 0);
        assert_int_equal(call->step, 7);
        assert_int_equal(call->unit, 1);
        assert_string_equal(call->site, "test_flight.c:1");
        assert_true(n == 301 ? call->end_s == 0 : call->end_s >= call->begin_s);
    }
    assert_ptr_equal(rank->waits, &rank->file->call[300 % TESS_FLIGHT_CALLS]);
    expect("all_gather 151 of 3.9 KiB (all ranks) at test_flight.c:1");
    expect("in forward of unit 1 (fc2)");
    close_run();
}

/* 0 and 3 wait for a call of all ranks, 2 for a message of 1... which no one waits for: it is late,
 * over rank 2, which has not called either. */
static void case_chain(void **state)
{
    (void)state;
    open_run();
    for (int32_t r = 0; r < RANKS; r++)
        done(&all[r], TESS_COLLECTIVE_BARRIER, 0);
    done(&pair[0], TESS_COLLECTIVE_ALL_REDUCE, 5);
    done(&pair[1], TESS_COLLECTIVE_ALL_REDUCE, 5);
    call_of(&all[0], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    call_of(&all[1], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    call_of(&pair[2], TESS_COLLECTIVE_RECV, 5, 1);
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(bits(status.rank[0].waits_for), 0xc);
    assert_ptr_equal(status.rank[1].waits_for, status.rank[0].waits_for); /* the same call */
    assert_int_equal(bits(status.rank[2].waits_for), 0x8);
    assert_null(status.rank[3].waits_for);
    assert_int_equal(status.late, 3);
    assert_int_equal(bits(status.waiting), 0x7);
    assert_int_equal(status.differs.number, 0);
    expect("all others: ranks 0-2 wait for rank 3 (");
    expect("in forward of unit 1 (fc2), step 7; its latest call is barrier 1 of 0 B (all ranks) at "
           "test_flight.c:1, which has ended");
    expect("recv of 20 B from rank 3 (data)");
    close_run();
}

/* Calls in different orders: nobody is late. */
static void case_in_turns(void **state)
{
    (void)state;
    open_run();
    call_of(&all[0], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    call_of(&pair[1], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    call_of(&all[2], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    call_of(&all[3], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(status.late, -1);
    assert_int_equal(bits(status.in_turns), 0x3);
    expect("ranks 0, 1 wait for each other: they make their calls in different orders");
    close_run();
}

/* All have made the call, and the communicator has noted who waits for whom. One that has been
 * killed waits for nobody. */
static void case_noted(void **state)
{
    (void)state;
    open_run();
    for (int32_t r = 0; r < RANKS; r++) {
        call_of(&all[r], TESS_COLLECTIVE_ALL_REDUCE, 5, -1);
        tess_world_board(world, r)->waits_for = (r + 1) % RANKS;
    }
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(status.late, -1);
    assert_int_equal(bits(status.in_turns), 0xf);
    expect("ranks 0-3 wait for each other\n");
    tess__status_close(&status);
    tess_world_board(world, 2)->pid = INT32_MAX;
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(status.late, 2);
    assert_int_equal(bits(status.waiting), 0xb);
    expect("all others: ranks 0, 1, 3 wait for rank 2 (");
    expect("which is dead, in forward of unit 1 (fc2), step 7; its latest call is all_reduce 1 of "
           "20 B (all ranks) at test_flight.c:1, which has not ended");
    close_run();
}

/* The first of several calls that differ, with the ranks of each kind. */
static void case_differs(void **state)
{
    (void)state;
    open_run();
    for (int32_t r = 0; r < RANKS; r++) {
        done(&all[r], TESS_COLLECTIVE_ALL_REDUCE, 5);
        done(&pair[r], TESS_COLLECTIVE_ALL_REDUCE, r < 2 ? 6 : 7); /* in two groups: no matter */
        done(&all[r], r == 2 ? TESS_COLLECTIVE_ALL_GATHER : TESS_COLLECTIVE_ALL_REDUCE, 8);
        done(&all[r], TESS_COLLECTIVE_ALL_REDUCE, r == 1 ? 9 : 10);
    }
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(status.differs.number, 2);
    assert_int_equal(status.differs.rank_count, RANKS);
    expect("call 2 (all ranks) is the first that is not the same on all ranks:\n"
           "  ranks 0, 1, 3: all_reduce 2 of 32 B (all ranks) at test_flight.c:1, f32, step 7\n"
           "  rank 2: all_gather 2 of 32 B (all ranks) at test_flight.c:1, f32, step 7\n");
    close_run();
}

/* Fewer ranks follow: the files of the others go. */
static void case_fewer(void **state)
{
    (void)state;
    open_run();
    close_run();
    const struct tess_flight_about about = {.rank_count = 1, .end = 1};
    flight = tess_flight_open(run, &about);
    tess_flight_end(flight, 0, TESS_OK);
    assert_int_equal(read_run(), TESS_OK);
    assert_int_equal(status.rank_count, 1);
    expect("0     ended");
    expect("no rank waited for another");
    tess__status_close(&status);
    tess_flight_close(flight);
}

/* ---- bad files ------------------------------------------------------------------------------- */

static struct tess_flight_file good, bad;
static char path[128];

/* A record with calls in it, in `good`; the files of the other ranks are right. */
static void make_good(void)
{
    open_run();
    for (int i = 0; i < 20; i++)
        for (int32_t r = 0; r < RANKS; r++)
            done(i % 3 == 0 ? &pair[r] : &all[r], TESS_COLLECTIVE_ALL_REDUCE, 100);
    call_of(&all[2], TESS_COLLECTIVE_ALL_REDUCE, 100, -1);
    assert_true(tess_flight_path(run, 2, path, sizeof(path)));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&good, 1, sizeof(good), file), sizeof(good));
    fclose(file);
    close_run();
    assert_int_equal(unlink(path), 0);
}

static void write_bad(size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&bad, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Rank 2 is named by its file and has no record; the others are there. */
static void expect_bad(const char *why)
{
    const enum tess_status result = read_run();
    if (result == TESS_OK || strstr(tess_log_last_error(), path) == NULL ||
        strstr(tess_log_last_error(), why) == NULL)
        fail_msg("%s, not '%s': %s", path, why, result == TESS_OK ? "read" : tess_log_last_error());
    assert_int_equal(status.rank_count, RANKS);
    assert_null(status.rank[2].file);
    assert_non_null(status.rank[3].file);
    expect("2     no record");
    tess__status_close(&status);
    bad = good;
}

static void case_bad(void **state)
{
    (void)state;
    make_good();
    bad = good;
    const size_t lengths[] = {0, 1, 4096, 8192, sizeof(bad) - 1};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        char text[64];
        snprintf(text, sizeof(text), "it has %zu bytes, not 40960", lengths[i]);
        write_bad(lengths[i]);
        expect_bad(text);
    }
    bad.head.magic++;
    write_bad(sizeof(bad));
    expect_bad("is not a flight record");
    bad.head.version++;
    write_bad(sizeof(bad));
    expect_bad("version 2, and this program reads version 1");
    bad.head.rank = 1;
    write_bad(sizeof(bad));
    expect_bad("not that of rank 2");
    bad.head.rank_count = TESS_RANKS_MAX + 1;
    write_bad(sizeof(bad));
    expect_bad("not that of rank 2");
    memset(bad.head.host, 'x', sizeof(bad.head.host));
    write_bad(sizeof(bad));
    expect_bad("not that of rank 2");
    bad.now.group[1].rank = 64;
    write_bad(sizeof(bad));
    expect_bad("group 1 cannot be");
    bad.now.ended = -1;
    write_bad(sizeof(bad));
    expect_bad("what the rank does now cannot be");
    bad.now.since_s = -1;
    write_bad(sizeof(bad));
    expect_bad("what the rank does now cannot be");
    bad.call[3].begin_s = 1e300;
    write_bad(sizeof(bad));
    expect_bad("call 3 cannot be");
    bad.call[3].collective = 200;
    write_bad(sizeof(bad));
    expect_bad("call 3 cannot be");
    bad.call[3].sequence = 10; /* of another place */
    write_bad(sizeof(bad));
    expect_bad("call 3 cannot be");
    memset(bad.call[3].site, 'x', sizeof(bad.call[3].site));
    write_bad(sizeof(bad));
    expect_bad("call 3 cannot be");

    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_bad("it is no regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    expect_bad("cannot read");
    assert_int_equal(unlink(path), 0);
}

/* A call that was being written is left out, and with it that the rank waits for it. */
static void case_torn(void **state)
{
    (void)state;
    make_good();
    bad = good;
    write_bad(sizeof(bad));
    assert_int_equal(read_run(), TESS_OK);
    assert_true(status.rank[2].whole[4]);
    assert_non_null(status.rank[2].waits);
    tess__status_close(&status);
    bad.call[4].sequence--;
    bad.call[4].collective = 200;
    bad.call[20].sequence--;
    write_bad(sizeof(bad));
    assert_int_equal(read_run(), TESS_OK);
    assert_false(status.rank[2].whole[4]);
    assert_true(status.rank[2].whole[5]);
    assert_null(status.rank[2].waits);
    tess__status_close(&status);
}

/* Bytes changed at random: read or refused, and whatever is read can be printed. */
static void case_random(void **state)
{
    uint64_t draw = 7;
    int refused = 0, read = 0;
    (void)state;
    make_good();
    for (int round = 0; round < 400 / TESTS_DIVISOR; round++) {
        bad = good;
        for (int i = 0; i < 1 + round % 4; i++) {
            draw = draw * UINT64_C(6364136223846793005) + 1442695040888963407;
            /* Mostly where there is something. */
            const size_t at = (size_t)(draw >> 33) % (round % 2 == 0 ? 12000 : sizeof(bad));
            ((unsigned char *)&bad)[at] = (unsigned char)(draw >> 20);
        }
        write_bad(sizeof(bad));
        const enum tess_status result = read_run();
        assert_true(result == TESS_OK || strstr(tess_log_last_error(), path) != NULL);
        refused += result != TESS_OK;
        read += result == TESS_OK;
        char *text = print(TESS_FLIGHT_CALLS);
        for (const char *c = text; *c != '\0'; c++)
            assert_true(*c == '\n' || (*c >= ' ' && *c <= '~'));
        free(text);
        json_t *object = tess__status_json(&status, TESS_FLIGHT_CALLS);
        assert_non_null(object);
        json_decref(object);
        tess__status_close(&status);
    }
    assert_true(refused > 20 / TESTS_DIVISOR && read > 20 / TESTS_DIVISOR);
}

static void case_no_record(void **state)
{
    char empty[160];
    (void)state;
    assert_int_equal(tess__status_read("/tmp/tessera-no-such-run", &status), TESS_ERR_NOT_FOUND);
    tess__status_close(&status);
    snprintf(empty, sizeof(empty), "%s/empty", run);
    assert_int_equal(mkdir(empty, 0700), 0);
    assert_int_equal(tess__status_read(empty, &status), TESS_ERR_NOT_FOUND);
    assert_non_null(strstr(tess_log_last_error(), "has no flight record"));
    tess__status_close(&status);
    /* Where none can be written the run goes on. */
    snprintf(empty, sizeof(empty), "%s/empty/flight", run);
    FILE *file = fopen(empty, "wb");
    assert_non_null(file);
    fclose(file);
    snprintf(empty, sizeof(empty), "%s/empty", run);
    const struct tess_flight_about about = {.rank_count = 1, .end = 1};
    assert_null(tess_flight_open(empty, &about));
    tess_flight_end(NULL, 0, TESS_OK);
    tess_flight_close(NULL);
}

static int set_up(void **state)
{
    (void)state;
    (void)prctl(PR_SET_NAME, "tessera rank"); /* its process is that of all ranks */
    return mkdtemp(run) == NULL;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", run);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_last_calls), cmocka_unit_test(case_chain),
        cmocka_unit_test(case_in_turns),   cmocka_unit_test(case_noted),
        cmocka_unit_test(case_differs),    cmocka_unit_test(case_fewer),
        cmocka_unit_test(case_bad),        cmocka_unit_test(case_torn),
        cmocka_unit_test(case_random),     cmocka_unit_test(case_no_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
