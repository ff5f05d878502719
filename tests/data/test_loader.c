/*
 * The loader: with any number of workers and slots the batches are those that tess_load_rows gives,
 * in order, each once; a slot in use is never written; closing at any time joins; a batch that
 * cannot be had is an error in its turn.
 */
#include "base/clock.h"
#include "data/data.h"
#include "data/token_files.h"
#include "tessera/log.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { SAMPLES = 103, ROWS_MAX = 8, BATCHES = 40, ROW = 6 * 5 };

/* What the request function is given, and what it saw. */
struct asked {
    const struct tess_dataset *set;
    atomic_int inside;  /* calls going on now */
    atomic_int overlap; /* calls that met another one */
    int64_t batches;    /* that exist */
    int64_t next;       /* the batch expected next; plain: calls never overlap */
    int64_t disorder;
    long pause_ns;
};

/* Batches of changing size over several epochs, with a padded row now and then. */
static bool request_batch(int64_t batch, const struct tess_dataset *set,
                          struct tess_batch_request *request)
{
    request->split = batch % 5 == 4 ? &set->test : &set->train;
    request->epoch = batch / 13;
    request->augment = batch % 5 != 4;
    request->rows = 1 + batch % ROWS_MAX;
    for (int64_t r = 0; r < request->rows; r++)
        request->sample[r] =
            r == 6 ? -1
                   : tess_sample_at(3, request->epoch, request->split->count,
                                    (batch * ROWS_MAX + r) % request->split->count, true);
    return true;
}

static bool request(void *context, int64_t batch, struct tess_batch_request *request_out)
{
    struct asked *asked = context;
    if (atomic_fetch_add(&asked->inside, 1) != 0)
        atomic_fetch_add(&asked->overlap, 1);
    asked->disorder += batch != asked->next;
    asked->next = batch + 1;
    if (asked->pause_ns > 0)
        nanosleep(&(struct timespec){0, asked->pause_ns}, NULL);
    const bool exists = batch < asked->batches && request_batch(batch, asked->set, request_out);
    atomic_fetch_sub(&asked->inside, 1);
    return exists;
}

struct fixture {
    struct tess_dataset *set;
    struct tess_loader_config config;
    struct asked asked;
};

static void setup(struct fixture *fixture, enum tess_dtype dtype, int32_t slots, int64_t workers)
{
    memset(fixture, 0, sizeof(*fixture));
    assert_int_equal(
        tess_dataset_open_synthetic(tess_shape3(6, 5, 1), 10, SAMPLES, 31, 1, &fixture->set),
        TESS_OK);
    fixture->asked.set = fixture->set;
    fixture->asked.batches = BATCHES;
    fixture->config = (struct tess_loader_config){
        .dataset = fixture->set,
        .options = {.workers = workers, .shuffle = true, .flip = true, .shift = 2},
        .seed = 77,
        .dtype = dtype,
        .rows_max = ROWS_MAX,
        .slot_count = slots,
        .request = request,
        .context = &fixture->asked,
    };
    for (int32_t s = 0; s < slots; s++) {
        fixture->config.input[s] = malloc(ROWS_MAX * ROW * tess_dtype_bytes(dtype));
        fixture->config.label[s] = malloc(ROWS_MAX * sizeof(int32_t));
    }
}

static void teardown(struct fixture *fixture)
{
    for (int32_t s = 0; s < fixture->config.slot_count; s++) {
        free(fixture->config.input[s]);
        free(fixture->config.label[s]);
    }
    tess_dataset_close(fixture->set);
}

static void assert_batch(const struct fixture *fixture, int64_t batch, const void *input,
                         const int32_t *label, int64_t rows)
{
    static float expected[ROWS_MAX * ROW];
    static int32_t expected_label[ROWS_MAX];
    int64_t sample[ROWS_MAX];
    struct tess_batch_request want = {.sample = sample};
    const struct tess_loader_config *config = &fixture->config;
    request_batch(batch, fixture->set, &want);
    assert_int_equal(rows, want.rows);
    tess_load_rows(fixture->set, want.split, &config->options, config->seed, want.epoch,
                   want.augment, sample, rows, config->dtype, expected, expected_label);
    assert_memory_equal(input, expected, (size_t)rows * ROW * tess_dtype_bytes(config->dtype));
    assert_memory_equal(label, expected_label, (size_t)rows * sizeof(int32_t));
}

static void check_order(enum tess_dtype dtype, int32_t slots, int64_t workers, long pause_ns)
{
    struct fixture fixture;
    struct tess_loader *loader = NULL;
    setup(&fixture, dtype, slots, workers);
    fixture.asked.pause_ns = pause_ns;
    assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
    void *input;
    int32_t *label;
    int64_t rows;
    for (int64_t b = 0; b < BATCHES; b++) {
        assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
        assert_batch(&fixture, b, input, label, rows);
        /* Leave the workers time to write where they must not. */
        if (b % 10 == 3)
            nanosleep(&(struct timespec){0, 2000000}, NULL);
        assert_batch(&fixture, b, input, label, rows);
    }
    for (int i = 0; i < 3; i++) { /* the end, however often it is requested */
        assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
        assert_int_equal(rows, 0);
        assert_null(input);
        assert_null(label);
    }
    tess_loader_close(loader);
    assert_int_equal(fixture.asked.overlap, 0);
    if (workers > 0) { /* without workers the end is asked for again */
        assert_int_equal(fixture.asked.disorder, 0);
        assert_int_equal(fixture.asked.next, BATCHES + 1);
    }
    teardown(&fixture);
}

static void case_order(void **state)
{
    (void)state;
    for (int32_t slots = 1; slots <= 4; slots++) {
        for (int64_t workers = 0; workers <= 3; workers++) {
            check_order(TESS_F32, slots, workers, 0);
            check_order(TESS_BF16, slots, workers, 50000);
        }
    }
    check_order(TESS_F32, 3, -1, 0);
    check_order(TESS_F32, 2, 16, 0);
    check_order(TESS_F16, 2, 1, 0);
}

static int thread_count(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count - 2;
}

/* Close before the first batch, in the middle, with a batch in use, at the end: all threads end. */
static void case_close_any_time(void **state)
{
    (void)state;
    const int before = thread_count();
    for (int64_t taken = 0; taken <= BATCHES + 1; taken += taken < 6 ? 1 : 5) {
        for (int64_t workers = 0; workers <= 3; workers++) {
            struct fixture fixture;
            struct tess_loader *loader = NULL;
            void *input;
            int32_t *label;
            int64_t rows;
            setup(&fixture, TESS_F32, 1 + (int32_t)(taken % 4), workers);
            fixture.asked.pause_ns = taken % 2 * 100000;
            assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
            for (int64_t b = 0; b < taken; b++)
                assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
            tess_loader_close(loader);
            teardown(&fixture);
        }
    }
    tess_loader_close(NULL);
    assert_int_equal(thread_count(), before);
}

/* A worker by choice: where the rank has a second core and the batch is not small. */
static void case_chosen_workers(void **state)
{
    (void)state;
    const int before = thread_count();
    for (int32_t side = 5; side <= 64; side += 59) {
        for (int32_t cores = 0; cores <= 3; cores++) {
            struct fixture fixture;
            struct tess_loader *loader = NULL;
            setup(&fixture, TESS_F32, 2, -1);
            tess_dataset_close(fixture.set);
            assert_int_equal(tess_dataset_open_synthetic(tess_shape3(side, side, 1), 10, SAMPLES,
                                                         31, 1, &fixture.set),
                             TESS_OK);
            fixture.asked.set = fixture.config.dataset = fixture.set;
            fixture.config.cores = cores;
            for (int32_t s = 0; s < 2; s++) {
                free(fixture.config.input[s]);
                fixture.config.input[s] = malloc(ROWS_MAX * (size_t)(side * side) * sizeof(float));
            }
            assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
            assert_int_equal(thread_count() - before, cores >= 2 && side == 64);
            tess_loader_close(loader);
            teardown(&fixture);
        }
    }
}

/* Workers that are ahead sleep: next to no processor time passes while the rank does something
 * else. */
static void case_no_busy_wait(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_loader *loader = NULL;
    struct timespec begin, end;
    void *input;
    int32_t *label;
    int64_t rows;
    setup(&fixture, TESS_F32, 4, 3);
    assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
    assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
    nanosleep(&(struct timespec){0, 50000000}, NULL); /* until all slots are full */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double used_s =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    /* A spinning thread would use 0.2 s; a sleeping one microseconds. */
    assert_true(used_s < 0.05);
    tess_loader_close(loader);
    teardown(&fixture);
}

static atomic_int signals_elsewhere;
static pthread_t main_thread;

static void on_signal(int number)
{
    (void)number;
    if (!pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&signals_elsewhere, 1);
}

/* Ctrl-C belongs to the rank's own thread: the workers block all signals. */
static void case_signals_stay_away(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_loader *loader = NULL;
    sigset_t usr1;
    main_thread = pthread_self();
    signal(SIGUSR1, on_signal);
    setup(&fixture, TESS_F32, 3, 3);
    assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* now only a worker could take it */
    kill(getpid(), SIGUSR1);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    assert_int_equal(signals_elsewhere, 0);
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    signal(SIGUSR1, SIG_DFL);
    tess_loader_close(loader);
    teardown(&fixture);
}

static void case_bad_configurations(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_loader *loader = NULL;
    setup(&fixture, TESS_F32, 2, 1);
    struct tess_loader_config config = fixture.config;
    config.options.shift = 5; /* the images are 6 x 5 */
    assert_int_equal(tess_loader_open(&config, &loader), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "6 x 5"));
    assert_null(loader);
    teardown(&fixture);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A text as long as the images' fixture has samples, in samples of ROW tokens. */
static void setup_tokens(struct fixture *fixture, int32_t slots, int64_t workers)
{
    setup(fixture, TESS_F32, slots, workers);
    tess_dataset_close(fixture->set);
    assert_int_equal(tess_dataset_open_synthetic_tokens(ROW, SAMPLES, 31, 1, &fixture->set),
                     TESS_OK);
    fixture->asked.set = fixture->set;
    fixture->config.dataset = fixture->set;
    fixture->config.dtype = TESS_I32;
    for (int32_t s = 0; s < slots; s++) {
        free(fixture->config.label[s]);
        fixture->config.label[s] = malloc(ROWS_MAX * ROW * sizeof(int32_t));
    }
}

static void assert_token_batch(const struct fixture *fixture, int64_t batch, const int32_t *input,
                               const int32_t *label, int64_t rows)
{
    static int32_t expected[ROWS_MAX * ROW], expected_label[ROWS_MAX * ROW];
    int64_t sample[ROWS_MAX];
    struct tess_batch_request want = {.sample = sample};
    request_batch(batch, fixture->set, &want);
    assert_int_equal(rows, want.rows);
    assert_int_equal(tess_load_rows(fixture->set, want.split, &fixture->config.options, 77,
                                    want.epoch, want.augment, sample, rows, TESS_I32, expected,
                                    expected_label),
                     rows);
    assert_memory_equal(input, expected, (size_t)rows * ROW * sizeof(int32_t));
    assert_memory_equal(label, expected_label, (size_t)rows * ROW * sizeof(int32_t));
}

static void case_tokens(void **state)
{
    (void)state;
    for (int32_t slots = 1; slots <= 3; slots++) {
        for (int64_t workers = -1; workers <= 2; workers++) {
            struct fixture fixture;
            struct tess_loader *loader = NULL;
            void *input;
            int32_t *label;
            int64_t rows;
            setup_tokens(&fixture, slots, workers);
            assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
            for (int64_t b = 0; b < BATCHES; b++) {
                assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
                assert_token_batch(&fixture, b, input, label, rows);
            }
            assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
            assert_int_equal(rows, 0);
            tess_loader_close(loader);
            teardown(&fixture);
        }
    }
}

/* The batches before the one with the bad token are whole; from then on there is the error. */
static void case_bad_token(void **state)
{
    (void)state;
    enum { COUNT = 134 * ROW + 1 };
    static uint32_t token[COUNT];
    struct token_folder folder;
    int64_t sample[ROWS_MAX], bad_batch = -1;
    struct tess_batch_request want = {.sample = sample};
    token_folder_open(&folder);
    token_draw(TOKEN_GPT2, 0, COUNT, token);
    for (int64_t workers = 0; workers <= 2; workers++) {
        for (int32_t slots = 1; slots <= 3; slots++) {
            struct fixture fixture;
            struct tess_loader *loader = NULL;
            void *input = NULL;
            int32_t *label = NULL;
            int64_t rows = -1;
            setup_tokens(&fixture, slots, workers);
            /* Row 3 of batch 12 is the first to hold the bad token. */
            request_batch(12, fixture.set, &want);
            const int64_t bad = sample[3] * ROW + 7;
            token[bad] = 60000;
            token_write(&folder, "x.bin", TOKEN_GPT2, token, COUNT);
            tess_dataset_close(fixture.set);
            assert_int_equal(tess_dataset_open_tokens(token_path(&folder, "x.bin"), NULL,
                                                      31.5 / 134, ROW, &fixture.set),
                             TESS_OK);
            assert_int_equal(fixture.set->train.count, SAMPLES);
            fixture.asked.set = fixture.set;
            fixture.config.dataset = fixture.set;
            for (bad_batch = 0; bad_batch < BATCHES; bad_batch++) {
                int64_t r = 0;
                request_batch(bad_batch, fixture.set, &want);
                while (r < want.rows &&
                       (want.split == &fixture.set->test || sample[r] != bad / ROW))
                    r++;
                if (r < want.rows)
                    break;
            }
            assert_in_range(bad_batch, 1, 12);
            assert_int_equal(tess_loader_open(&fixture.config, &loader), TESS_OK);
            for (int64_t b = 0; b < bad_batch; b++) {
                assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_OK);
                assert_token_batch(&fixture, b, input, label, rows);
            }
            for (int i = 0; i < 3; i++) {
                char expected[64];
                snprintf(expected, sizeof(expected), "token %d (counted from 0) is 60000",
                         (int)bad);
                rows = -5;
                assert_int_equal(tess_loader_next(loader, &input, &label, &rows), TESS_ERR_DATA);
                assert_non_null(strstr(tess_log_last_error(), "x.bin: "));
                assert_non_null(strstr(tess_log_last_error(), expected));
                assert_int_equal(rows, -5);
            }
            tess_loader_close(loader);
            teardown(&fixture);
        }
    }
    token_folder_close(&folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_order),
        cmocka_unit_test(case_close_any_time),
        cmocka_unit_test(case_chosen_workers),
        cmocka_unit_test(case_no_busy_wait),
        cmocka_unit_test(case_signals_stay_away),
        cmocka_unit_test(case_bad_configurations),
        cmocka_unit_test(case_tokens),
        cmocka_unit_test(case_bad_token),
    };
    return cmocka_run_group_tests_name("loader", cases, NULL, NULL);
}
