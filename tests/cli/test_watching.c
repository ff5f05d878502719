/*
 * Watching a run: the loss of an epoch, evaluations within it, numbers for Prometheus in a file and
 * over HTTP, hostile clients, and docs/metrics.md, which has every field that a run writes. Runs
 * the built program.
 */
#include "harness/awake.h"
#include "harness/spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* 8 steps an epoch, the last of 26 samples. */
#define ROWS   250
#define BATCH  32
#define STEPS  8
#define IMAGES "train --data synthetic --synthetic-rows 250 --batch-size 32 --grid 4 --device cpu "
#define MLP    IMAGES "--model mlp --mlp.hidden 20,20 "
#define GPT                                                                                        \
    "train --model gpt --data synthetic --synthetic-rows 250 --data.length 8 --batch-size 32 "     \
    "--gpt.layers 2 --gpt.width 16 --gpt.heads 4 --grid 4 --tensor.canonical 2 --device cpu "

static char folder[] = "/tmp/tessera_watching_XXXXXX";
static struct spawn spawn;

static void run(const char *format, ...)
{
    char words[1024];
    va_list list;

    va_start(list, format);
    vsnprintf(words, sizeof(words), format, list);
    va_end(list);
    if (spawn_words(&spawn, words) != 0)
        fail_msg("%s: %s%s", words, spawn.out, spawn.err);
}

/* The lines of a run's metrics that have `key`, in a new array. */
static json_t *lines_with(const char *name, const char *key)
{
    static char line[1 << 16];
    char path[256];
    json_t *lines = json_array();

    snprintf(path, sizeof(path), "%s/metrics.jsonl", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        if (json_object_get(object, key) != NULL)
            json_array_append(lines, object);
        json_decref(object);
    }
    fclose(file);
    return lines;
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_number(value))
        fail_msg("no number %s", name);
    return json_number_value(value);
}

/* ---- the loss of an epoch -------------------------------------------------------------------- */

/* Mean losses of two epochs, from their lines. */
static void epoch_losses(const char *name, double loss[2])
{
    json_t *lines = lines_with(name, "train_loss");

    assert_int_equal(json_array_size(lines), 2);
    for (size_t e = 0; e < 2; e++)
        loss[e] = number_of(json_array_get(lines, e), "train_loss");
    json_decref(lines);
}

/* The same from the lines of all steps, which have one sample's weight for every sample. */
static void weighted_losses(const char *name, double loss[2])
{
    json_t *lines = lines_with(name, "elapsed_s");

    assert_int_equal(json_array_size(lines), 2 * STEPS);
    loss[0] = loss[1] = 0;
    for (size_t s = 0; s < 2 * STEPS; s++) {
        const double rows = s % STEPS == STEPS - 1 ? ROWS - (STEPS - 1) * BATCH : BATCH;
        loss[s / STEPS] += rows * number_of(json_array_get(lines, s), "loss") / ROWS;
    }
    json_decref(lines);
}

/* The same bits whatever is logged, under every layout, and in a run that was resumed within an
 * epoch, or saved there. */
static void expect_mean(const char *model, const char *const *layout, size_t count)
{
    static const int every[] = {1, 7, 50};
    double first[2], loss[2], mean[2];

    for (size_t i = 0; i < count; i++) {
        for (size_t l = 0; l < sizeof(every) / sizeof(every[0]); l++) {
            if (TESTS_DIVISOR > 1 && l != i % 3) /* sanitizers: they take turns */
                continue;
            run("%s --epochs 2 --evaluate off --log-every %d --strategy %s --run all --overwrite",
                model, every[l], layout[i]);
            epoch_losses("all", loss);
            if (i == 0 && l == 0) {
                memcpy(first, loss, sizeof(first));
                weighted_losses("all", mean);
                for (int e = 0; e < 2; e++)
                    assert_true(fabs(loss[e] - mean[e]) < 1e-12 * mean[e]);
            }
            if (memcmp(first, loss, sizeof(first)) != 0)
                fail_msg("%s, --log-every %d: %.17g %.17g, not %.17g %.17g", layout[i], every[l],
                         loss[0], loss[1], first[0], first[1]);
        }
        assert_int_equal(spawn_remove("part"), 0);
        run("%s --steps 13 --evaluate off --log-every 50 --strategy %s --run part", model,
            layout[i]);
        run("train --run part --resume --evaluate off --steps 16 --strategy %s",
            layout[(i + 1) % count]);
        json_t *lines = lines_with("part", "train_loss");
        assert_true(number_of(json_array_get(lines, json_array_size(lines) - 1), "train_loss") ==
                    first[1]);
        json_decref(lines);
    }
}

static void case_epoch_loss(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "dp --ranks 2", "fsdp --ranks 4",
                                         "pp --ranks 2", "ddp --ranks 2 --accumulate 2"};

    (void)state;
    expect_mean(MLP, layout, sizeof(layout) / sizeof(layout[0]));
}

static void case_epoch_loss_products(void **state)
{
    static const char *const layout[] = {"tp --ranks 2", "ddp+tp+pp --ranks 8"};

    (void)state;
    expect_mean(GPT, layout, sizeof(layout) / sizeof(layout[0]));
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static void case_evaluate_every(void **state)
{
    double last = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        run(MLP "--epochs 2 --evaluate-every 3 --strategy %s --run often --overwrite",
            i == 0 ? "single --ranks 1" : "fsdp --ranks 4");
        json_t *lines = lines_with("often", "validation");
        /* Not at 8 and 16, where epochs end. */
        static const int step[] = {3, 6, 9, 12, 15};
        assert_int_equal(json_array_size(lines), 5);
        for (size_t l = 0; l < 5; l++) {
            const json_t *one = json_object_get(json_array_get(lines, l), "validation");
            assert_true(number_of(one, "step") == step[l]);
            assert_true(number_of(one, "samples") == ROWS / 4);
            if (l == 4 && i == 1) /* the same bits on the other layout */
                assert_true(number_of(one, "val_loss") == last);
            if (l == 4)
                last = number_of(one, "val_loss");
        }
        json_decref(lines);
        assert_null(strstr(spawn.out, "note: validation uses"));
        assert_non_null(strstr(spawn.out, "step 3/16  val loss"));
    }
}

/* A run of an epoch has the figures that it has without these options; a shorter one validates on
 * what it trained on at most, on all layouts the same. */
static void case_short(void **state)
{
    static const struct {
        const char *options;
        int samples;
    } expected[] = {{"--epochs 1", 62},
                    {"--steps 8", 62},
                    {"--steps 4", 62},
                    {"--steps 1", 32},
                    {"--steps 4 --evaluate-every 1", 32}};
    double loss = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        for (int r = 0; r < 2; r++) {
            run(MLP "%s --strategy ddp --ranks %d --run short --overwrite", expected[i].options,
                r == 0 ? 4 : 1);
            json_t *lines = lines_with("short", "train_loss");
            const json_t *line = json_array_get(lines, 0);
            assert_true(number_of(line, "val_samples") == expected[i].samples);
            assert_int_equal(spawn_count(spawn.out, "note: validation uses 32 of 62 images"),
                             expected[i].samples == 32);
            if (r == 1)
                assert_true(number_of(line, "val_loss") == loss);
            loss = number_of(line, "val_loss");
            json_decref(lines);
        }
    run(MLP "--steps 4 --warmup 2 --evaluate off --run short --overwrite --log-every 1");
    assert_non_null(strstr(spawn.err, "--warmup 2 is longer than the run of 0.5 epochs: shortened "
                                      "to half of the run, 2 steps"));
    json_t *lines = lines_with("short", "elapsed_s");
    const double rate[] = {0, 0.5, 1, 1};
    for (size_t s = 0; s < 4; s++)
        assert_true(number_of(json_array_get(lines, s), "rate") ==
                    rate[s] * number_of(json_array_get(lines, 3), "rate"));
    json_decref(lines);
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

/* The value of a metric, with its labels, NaN where it is not there; the text is well formed. */
static double metric_of(const char *text, const char *name)
{
    double value = NAN;

    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        if (line[0] == '#') {
            assert_true(strncmp(line, "# HELP tessera_", 15) == 0 ||
                        strncmp(line, "# TYPE tessera_", 15) == 0);
            continue;
        }
        assert_int_equal(strncmp(line, "tessera_", 8), 0);
        const char *space = line;
        while (space < end && *space != ' ')
            space++;
        assert_true(space < end);
        if (strlen(name) == (size_t)(space - line) && strncmp(line, name, strlen(name)) == 0) {
            assert_true(isnan(value)); /* once */
            char *stop;
            value = strtod(space, &stop);
            assert_ptr_equal(stop, end);
        }
    }
    return value;
}

static void expect_metrics(const char *text, const char *name)
{
    static const struct {
        const char *metric, *part, *field;
    } same[] = {
        {"tessera_step", NULL, "step"},
        {"tessera_epoch", NULL, "epoch"},
        {"tessera_loss", NULL, "loss"},
        {"tessera_learning_rate", NULL, "rate"},
        {"tessera_samples_per_second", NULL, "samples_per_s"},
        {"tessera_communication_share", NULL, "comm_share"},
        {"tessera_elapsed_seconds", NULL, "elapsed_s"},
        {"tessera_exposed_seconds_total{part=\"forward\"}", "exposed_s", "forward"},
        {"tessera_exposed_seconds_total{part=\"backward\"}", "exposed_s", "backward"},
        {"tessera_exposed_seconds_total{part=\"optimizer\"}", "exposed_s", "optimizer"},
        {"tessera_exposed_axis_seconds_total{axis=\"data\"}", "exposed_axis_s", "data"},
        {"tessera_exposed_axis_seconds_total{axis=\"stage\"}", "exposed_axis_s", "stage"},
    };
    json_t *lines = lines_with(name, "elapsed_s"), *epochs = lines_with(name, "train_loss");
    json_t *head = lines_with(name, "run"), *final = lines_with(name, "final");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        const json_t *of = same[i].part ? json_object_get(last, same[i].part) : last;
        if (metric_of(text, same[i].metric) != number_of(of, same[i].field))
            fail_msg("%s is %.17g, %s %.17g", same[i].metric, metric_of(text, same[i].metric),
                     same[i].field, number_of(of, same[i].field));
    }
    last = json_array_get(epochs, json_array_size(epochs) - 1);
    assert_true(metric_of(text, "tessera_epoch_loss") == number_of(last, "train_loss"));
    assert_true(metric_of(text, "tessera_validation_loss") == number_of(last, "val_loss"));
    assert_true(metric_of(text, "tessera_steps") ==
                number_of(json_object_get(json_array_get(head, 0), "run"), "steps"));
    const json_t *memory =
        json_object_get(json_object_get(json_array_get(final, 0), "final"), "memory");
    assert_true(metric_of(text, "tessera_memory_bytes{rank=\"1\",kind=\"gradient\"}") ==
                number_of(json_object_get(json_array_get(memory, 1), "allocated"), "gradient"));
    json_decref(lines);
    json_decref(epochs);
    json_decref(head);
    json_decref(final);
}

static void read_text(const char *name, char *text, size_t room)
{
    FILE *file = fopen(name, "r");

    assert_non_null(file);
    const size_t count = fread(text, 1, room - 1, file);
    text[count] = '\0';
    assert_true(count > 0 && count < room - 1);
    fclose(file);
}

static void case_file(void **state)
{
    static char text[1 << 16];

    (void)state;
    run(MLP "--epochs 2 --strategy ddp --ranks 2 --log-every 3 --save-every 5 --run file "
            "--overwrite --prometheus out.prom");
    assert_non_null(strstr(spawn.out, "prometheus: out.prom"));
    read_text("out.prom", text, sizeof(text));
    expect_metrics(text, "file");
    assert_true(metric_of(text, "tessera_saves_total{result=\"saved\"}") == 4);
    assert_true(metric_of(text, "tessera_saves_total{result=\"failed\"}") == 0);
    assert_true(metric_of(text, "tessera_saved_step") == 16);
    assert_non_null(strstr(text, "tessera_run_info{version=\""));
    assert_true(isnan(metric_of(text, "tessera_tokens_per_second")));
    run(GPT "--steps 3 --evaluate off --ranks 1 --strategy single --run file --overwrite "
            "--prometheus out.prom");
    read_text("out.prom", text, sizeof(text));
    assert_true(metric_of(text, "tessera_tokens_per_second") ==
                8 * metric_of(text, "tessera_samples_per_second"));
}

static void case_refused(void **state)
{
    static const char *const bad[] = {"65536",       "localhost:", ":9400",
                                      "metrics.txt", "1.2.3:x",    "nowhere/at/all/out.prom",
                                      "[::1:9400",   "123456789"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char words[512];
        snprintf(words, sizeof(words), MLP "--steps 1 --prometheus %s", bad[i]);
        assert_int_not_equal(spawn_words(&spawn, words), 0);
        if (strstr(spawn.err, "--prometheus") == NULL)
            fail_msg("%s: %s", bad[i], spawn.err);
    }
}

static int dial(int port)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = 20}, look = {.tv_usec = (long)(AWAKE_STEP_S * 1e6)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look)), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Sends a request and reads the reply to its end; its bytes. */
static size_t ask(int port, const char *request, char *reply, size_t room)
{
    const int fd = dial(port);
    const double end_s = awake_s() + 20;
    size_t count = 0;
    ssize_t now;

    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request));
    do {
        now = recv(fd, reply + count, room - 1 - count, 0);
        count += now > 0 ? (size_t)now : 0;
    } while (count + 1 < room && (now > 0 || (now < 0 && errno == EAGAIN && awake_s() < end_s)));
    reply[count] = '\0';
    close(fd);
    return count;
}

#define GET "GET /metrics HTTP/1.0\r\nHost: here\r\n\r\n"

/* The loss in the line of a step. */
static double loss_at(const json_t *lines, double step)
{
    for (size_t l = 0; l < json_array_size(lines); l++)
        if (number_of(json_array_get(lines, l), "step") == step)
            return number_of(json_array_get(lines, l), "loss");
    fail_msg("no line of step %g", step);
    return NAN;
}

static int start_serving(const char *words)
{
    static char text[1024], *argv[64];
    int argc = 0, port = 0;

    snprintf(text, sizeof(text), "tessera %s", words);
    for (char *at = text, *word; (word = strsep(&at, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    argv[argc] = NULL;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 60));
    const char *at = strstr(spawn.out, "prometheus: http://127.0.0.1:");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "prometheus: http://127.0.0.1:%d/metrics", &port), 1);
    return port;
}

#define LONG                                                                                       \
    MLP "--synthetic-rows 9600 --evaluate off --log-every 20 --strategy ddp --ranks 2 "            \
        "--schedule constant --optimizer nap "

static void case_server(void **state)
{
    static char reply[1 << 16];

    (void)state;
    const int port = start_serving(LONG "--steps 1000000 --prometheus 0 --run served --overwrite");
    ask(port, GET, reply, sizeof(reply));
    assert_int_equal(strncmp(reply, "HTTP/1.0 200 OK\r\n", 17), 0);
    assert_non_null(
        strstr(reply, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    const char *body = strstr(reply, "\r\n\r\n") + 4;
    char length[64];
    snprintf(length, sizeof(length), "\r\nContent-Length: %zu\r\n", strlen(body));
    assert_non_null(strstr(reply, length));
    const double step = metric_of(body, "tessera_step"), loss = metric_of(body, "tessera_loss");
    ask(port, "GET /other HTTP/1.0\r\n\r\n", reply, sizeof(reply));
    assert_int_equal(strncmp(reply, "HTTP/1.0 404 ", 13), 0);
    ask(port, "POST /metrics HTTP/1.0\r\n\r\n", reply, sizeof(reply));
    assert_int_equal(strncmp(reply, "HTTP/1.0 405 ", 13), 0);
    ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n", reply, sizeof(reply));
    assert_int_equal(strncmp(reply, "HTTP/1.0 200 OK\r\n", 17), 0);
    assert_string_equal(strstr(reply, "\r\n\r\n"), "\r\n\r\n");
    kill(spawn.pid, SIGTERM);
    (void)spawn_end(&spawn, 30);
    /* What was served is what the file has of that step. */
    json_t *lines = lines_with("served", "elapsed_s");
    assert_true(loss_at(lines, step) == loss);
    json_decref(lines);
}

/* Clients that send nothing, that send without end, that do not read, and that leave: they are
 * dropped, others are served, and the run has the losses that it has without them. */
static void case_hostile(void **state)
{
    static char reply[1 << 16], flood[1 << 15];
    const struct linger reset = {.l_onoff = 1};
    int idle[32];

    (void)state;
    run(LONG "--steps 60 --run clean --overwrite");
    const int port =
        start_serving(LONG "--steps 1000000 --prometheus 0 --run attacked --overwrite");
    ask(port, GET, reply, sizeof(reply));
    const double before = metric_of(strstr(reply, "\r\n\r\n") + 4, "tessera_step");
    for (int i = 0; i < 32; i++)
        idle[i] = dial(port);
    for (int i = 0; i < 8; i++) {
        (void)send(idle[i], "GET /metrics HT", 15, MSG_NOSIGNAL);
        assert_int_equal(setsockopt(idle[8 + i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
        close(idle[8 + i]); /* resets */
    }
    (void)send(idle[16], GET, strlen(GET), MSG_NOSIGNAL); /* and does not read */
    memset(flood, 'x', sizeof(flood));
    (void)send(idle[17], flood, sizeof(flood), MSG_NOSIGNAL);
    const double begin_s = awake_s();
    ask(port, GET, reply, sizeof(reply)); /* in its turn: 8 are dropped every 2 s */
    assert_true(awake_s() - begin_s < 15);
    assert_int_equal(strncmp(reply, "HTTP/1.0 200 OK\r\n", 17), 0);
    double after = 0;
    while ((after = metric_of(strstr(reply, "\r\n\r\n") + 4, "tessera_step")) <= 60 &&
           awake_s() - begin_s < 50) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        ask(port, GET, reply, sizeof(reply));
    }
    assert_true(after > before && after > 60);
    for (int i = 0; i < 32; i++)
        if (i < 8 || i >= 16)
            close(idle[i]);
    kill(spawn.pid, SIGTERM);
    (void)spawn_end(&spawn, 30);
    json_t *clean = lines_with("clean", "elapsed_s"), *lines = lines_with("attacked", "elapsed_s");
    for (int step = 20; step <= 60; step += 20)
        assert_true(loss_at(lines, step) == loss_at(clean, step));
    json_decref(clean);
    json_decref(lines);
}

/* ---- docs/metrics.md ------------------------------------------------------------------------- */

static char page[1 << 16];

/* Has the page this field, kind of line or metric? */
static bool documented(const char *field)
{
    char quoted[128];

    snprintf(quoted, sizeof(quoted), "`%.100s`", field);
    if (strstr(page, quoted) != NULL)
        return true;
    snprintf(quoted, sizeof(quoted), "\"%.100s\"", field);
    return strstr(page, quoted) != NULL;
}

/* All keys below a value, but those that are names: of options and of tensors. */
static void expect_documented(const json_t *value, int *count)
{
    const char *key;
    const json_t *part;
    size_t i;

    if (json_is_array(value))
        json_array_foreach((json_t *)value, i, part) expect_documented(part, count);
    if (!json_is_object(value))
        return;
    json_object_foreach((json_t *)value, key, part)
    {
        if (!documented(key))
            fail_msg("docs/metrics.md does not have the field %s", key);
        (*count)++;
        if (strcmp(key, "tensors") == 0)
            expect_documented(json_object_iter_value(json_object_iter((json_t *)part)), count);
        else if (strcmp(key, "options") != 0)
            expect_documented(part, count);
    }
}

static void case_documented(void **state)
{
    static const char *const runs[] = {
        IMAGES "--model cnn --cnn.channels 4,6 --cnn.fc 20 --epochs 2 --strategy pp --ranks 2 "
               "--evaluate-every 3 --hash-every 4 --watch on",
        GPT "--epochs 2 --strategy ddp --ranks 2 --evaluate-every 3 --peak-tflops 1",
    };
    static const char *const kinds[] = {"run",        "elapsed_s", "train_loss",
                                        "validation", "times",     "final"};
    int count = 0;

    (void)state;
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    read_text(METRICS_PAGE, page, sizeof(page));
    assert_false(documented("no_such_field"));
    for (size_t r = 0; r < sizeof(runs) / sizeof(runs[0]); r++) {
        run("%s --run fields --overwrite --prometheus fields.prom", runs[r]);
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            json_t *lines = lines_with("fields", kinds[k]);
            if (json_array_size(lines) == 0)
                fail_msg("the run has no line with %s", kinds[k]);
            expect_documented(lines, &count);
            json_decref(lines);
        }
        json_t *digests = lines_with("fields", "digest"), *devices = lines_with("fields", "kind");
        assert_int_equal(json_array_size(digests) > 0, r == 0);
        assert_int_equal(json_array_size(devices) > 0, r == 0);
        expect_documented(digests, &count);
        expect_documented(devices, &count);
        json_decref(digests);
        json_decref(devices);
        static char text[1 << 16];
        read_text("fields.prom", text, sizeof(text));
        for (const char *at = text; (at = strstr(at, "# TYPE ")) != NULL; at++) {
            char name[128];
            assert_int_equal(sscanf(at, "# TYPE %127s", name), 1);
            if (!documented(name))
                fail_msg("docs/metrics.md does not have the metric %s", name);
        }
    }
    assert_true(count > 300);
}

static int group_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int group_down(void **state)
{
    (void)state;
    return chdir("/") != 0 || spawn_remove(folder) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_epoch_loss),     cmocka_unit_test(case_epoch_loss_products),
        cmocka_unit_test(case_evaluate_every), cmocka_unit_test(case_short),
        cmocka_unit_test(case_file),           cmocka_unit_test(case_refused),
        cmocka_unit_test(case_server),         cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_documented),
    };

    setenv("TESSERA_PLUGIN", NAP, 1);
    setenv("NAP_US", "3000", 1); /* a step of LONG: the processors are left to what is tested */
    return cmocka_run_group_tests(tests, group_up, group_down);
}
