/*
 * Copies on their way between hosts: what arrives is what was sent, and what is cut, damaged or not
 * from a host of the training changes nothing. Which step is chosen when hosts are lost.
 */
#include "base/clock.h"
#include "run/copies.h"
#include "run/hosts_room.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define STREAM_MOST 65536
#define SILENT_S    2.0

static char root[] = "/tmp/tessera_mirror_XXXXXX";
static const struct tess_secret key = {"0123456789abcdef0123456789abcde"};
static char why[BOOT_WHY_BYTES + 64];

static const char *in_root(const char *name)
{
    static char path[4][300];
    static int next;
    char *own = path[next++ % 4];
    snprintf(own, sizeof(path[0]), "%s/%s", root, name);
    return own;
}

static void make_folders(const char *name)
{
    char text[300];
    snprintf(text, sizeof(text), "mkdir -p %s", in_root(name));
    assert_int_equal(system(text), 0);
}

/* `text` at a byte of a file of so many bytes. */
static void put(const char *name, off_t size, off_t at, const char *text)
{
    const int fd = open(in_root(name), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    assert_int_equal(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
    close(fd);
}

static void check(const char *name, off_t size, off_t at, const char *text)
{
    char there[64] = "";
    struct stat about;
    const int fd = open(in_root(name), O_RDONLY);
    if (fd < 0)
        fail_msg("there is no %s", name);
    assert_int_equal(fstat(fd, &about), 0);
    assert_int_equal(about.st_size, size);
    assert_int_equal(pread(fd, there, strlen(text), at), (ssize_t)strlen(text));
    assert_string_equal(there, text);
    close(fd);
}

static bool is_there(const char *name)
{
    return access(in_root(name), F_OK) == 0;
}

/* Two hosts' parts of one copy. */
static void make_parts(void)
{
    static const char *const part[] = {"a/checkpoints/step-00000005",
                                       "b/checkpoints/step-00000005"};
    for (int p = 0; p < 2; p++) {
        char name[64];
        make_folders(part[p]);
        snprintf(name, sizeof(name), "%s/state.json", part[p]);
        put(name, 9, 0, "the state");
        snprintf(name, sizeof(name), "%s/model.bin", part[p]);
        put(name, 1 << 20, p == 0 ? 10 : 1 << 19, p == 0 ? "first part" : "second part");
    }
}

static struct tess__mirror mirror_at(const struct hosts_mirror *mirror, int32_t attempt)
{
    struct tess__mirror to = {.address = "127.0.0.1",
                              .port = mirror->port,
                              .attempt = attempt,
                              .secret = key,
                              .silent_s = SILENT_S,
                              .fd = -1};
    return to;
}

static struct hosts_mirror start(const char *name)
{
    static char folder[300]; /* the mirror borrows it */
    struct hosts_mirror mirror = {0};
    make_folders(name);
    snprintf(folder, sizeof(folder), "%s", in_root(name));
    assert_int_equal(tess__hosts_mirror_open(&mirror, folder, "127.0.0.1", 2 * SILENT_S), TESS_OK);
    return mirror;
}

static void case_push_and_fetch(void **state)
{
    struct stat about;
    (void)state;
    make_parts();
    struct hosts_mirror mirror = start("b");
    tess__hosts_mirror_admit(&mirror, &key, 3);
    struct tess__mirror to = mirror_at(&mirror, 3);
    if (!tess__mirror_push(&to, in_root("a"), 5, why, sizeof(why)))
        fail_msg("%s", why);
    check("b/replica/checkpoints/step-00000005/model.bin", 1 << 20, 10, "first part");
    assert_int_equal(stat(in_root("b/replica/checkpoints/step-00000005/model.bin"), &about), 0);
    assert_true(about.st_blocks * 512 < 1 << 16); /* holes stay holes */

    /* Newer ones, over the same connection: the newest two stay. */
    for (int step = 6; step < 9; step++) {
        char name[64];
        snprintf(name, sizeof(name), "a/checkpoints/step-%08d", step);
        make_folders(name);
        assert_true(tess__mirror_push(&to, in_root("a"), step, why, sizeof(why)));
    }
    assert_false(is_there("b/replica/checkpoints/step-00000006"));
    assert_true(is_there("b/replica/checkpoints/step-00000007"));
    assert_true(is_there("b/replica/checkpoints/step-00000008"));
    assert_false(tess__mirror_push(&to, in_root("a"), 8, why, sizeof(why))); /* it is there */
    assert_int_equal(to.fd, -1);

    /* The host's own part, merged into the other one. */
    for (int again = 0; again < 2; again++)
        if (!tess__mirror_fetch(&to, 5, false, in_root("a/checkpoints/step-00000005"), why,
                                sizeof(why)))
            fail_msg("%s", why);
    check("a/checkpoints/step-00000005/model.bin", 1 << 20, 10, "first part");
    check("a/checkpoints/step-00000005/model.bin", 1 << 20, 1 << 19, "second part");
    check("a/checkpoints/step-00000005/state.json", 9, 0, "the state");
    assert_false(tess__mirror_fetch(&to, 4, false, in_root("a"), why, sizeof(why)));
    assert_non_null(strstr(why, "refused"));

    struct tess__mirror old = mirror_at(&mirror, 2);
    assert_false(tess__mirror_push(&old, in_root("a"), 6, why, sizeof(why)));
    assert_false(is_there("b/replica/checkpoints/step-00000006"));
    tess__mirror_close(&to);
    tess__hosts_mirror_close(&mirror);
}

/* ---- what is not a copy ---------------------------------------------------------------------- */

/* The copy of a small folder as it is sent. */
static size_t stream_of(const char *name, char stream[STREAM_MOST])
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    if (!tess__mirror_send_files(pair[0], in_root(name), SILENT_S, why, sizeof(why)))
        fail_msg("%s", why);
    close(pair[0]);
    size_t used = 0;
    for (ssize_t now; (now = read(pair[1], stream + used, STREAM_MOST - used)) > 0;)
        used += (size_t)now;
    close(pair[1]);
    return used;
}

static bool receive(const char *stream, size_t bytes, const char *name)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(write(pair[0], stream, bytes), (ssize_t)bytes);
    close(pair[0]);
    const bool done =
        tess__mirror_receive_files(pair[1], in_root(name), SILENT_S, why, sizeof(why));
    close(pair[1]);
    return done;
}

static size_t small_stream(char stream[STREAM_MOST])
{
    make_folders("small");
    put("small/state.json", 40, 0, "some words");
    put("small/model.bin", 100, 60, "more words");
    return stream_of("small", stream);
}

static void case_cut(void **state)
{
    static char stream[STREAM_MOST];
    const size_t bytes = small_stream(stream);
    (void)state;
    make_folders("cut");
    for (size_t n = 0; n < bytes; n++)
        if (receive(stream, n, "cut"))
            fail_msg("%zu bytes of %zu were taken for a copy", n, bytes);
    assert_true(receive(stream, bytes, "cut"));
    check("cut/model.bin", 100, 60, "more words");
}

/* Any byte changed: files are made in the folder alone. */
static void case_damaged(void **state)
{
    static char stream[STREAM_MOST];
    const size_t bytes = small_stream(stream);
    (void)state;
    make_folders("box/in");
    for (size_t n = 0; n < bytes; n++)
        for (int bit = 0; bit < 8; bit += 7) {
            stream[n] = (char)(stream[n] ^ 1 << bit);
            (void)receive(stream, bytes, "box/in");
            stream[n] = (char)(stream[n] ^ 1 << bit);
            (void)unlink(in_root("box/in/model.bin"));
            (void)unlink(in_root("box/in/state.json"));
        }
    /* The record's name: to another folder, hidden, or without an end. */
    static const char *const name[] = {"../model.bin", "/tmp/x", ".hidden", "", "a b"};
    char *at = memmem(stream, bytes, "model.bin", sizeof("model.bin"));
    assert_non_null(at);
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        snprintf(at, 16, "%s", name[i]);
        assert_false(receive(stream, bytes, "box/in"));
    }
    memset(at, 'a', 64);
    assert_false(receive(stream, bytes, "box/in"));
    assert_false(is_there("box/model.bin"));
    assert_int_equal(rename(in_root("box/in"), in_root("out")), 0);
    assert_int_equal(rmdir(in_root("box")), 0); /* and nothing else */
}

/* Parts whose files have other lengths are not of one copy. */
static void case_other_length(void **state)
{
    static char stream[STREAM_MOST];
    const size_t bytes = small_stream(stream);
    (void)state;
    make_folders("longer");
    put("longer/model.bin", 101, 0, "x");
    assert_false(receive(stream, bytes, "longer"));
    assert_non_null(strstr(why, "length of a file"));
}

static int stranger_connect(const struct hosts_mirror *mirror)
{
    const int fd =
        tess__boot_connect("127.0.0.1", mirror->port, tess_clock_s() + SILENT_S, why, sizeof(why));
    assert_true(fd >= 0);
    return fd;
}

/* Connected, and so many bytes sent of an answer with a greeting, a request to push and a copy. */
static int stranger(const struct hosts_mirror *mirror, const struct tess_secret *secret,
                    const void *bytes, size_t count)
{
    struct tess__mirror_hello hello = {.attempt = 0};
    struct tess_secret_challenge challenge;
    struct tess_secret_answer answer;
    unsigned char proof[TESS_SECRET_PROOF_BYTES], greeting[TESS_GREETING_BYTES];
    const double limit_s = tess_clock_s() + SILENT_S;
    const int fd = stranger_connect(mirror);
    memcpy(hello.magic, TESS__MIRROR_MAGIC, sizeof(hello.magic));
    memcpy(greeting, &hello, sizeof(greeting));
    assert_true(tess__boot_receive(fd, &challenge, sizeof(challenge), limit_s, why, sizeof(why)));
    assert_true(tess_secret_prove(secret, &challenge, greeting, &answer));
    const size_t first = count < sizeof(answer) ? count : sizeof(answer);
    (void)tess__boot_send(fd, &answer, first, limit_s, why, sizeof(why));
    if (first == sizeof(answer) &&
        tess__boot_receive(fd, proof, sizeof(proof), limit_s, why, sizeof(why)))
        (void)tess__boot_send(fd, bytes, count - first, limit_s, why, sizeof(why));
    return fd;
}

static void check_closed(int fd)
{
    int32_t answer;
    if (tess__boot_receive(fd, &answer, sizeof(answer), tess_clock_s() + 20, why, sizeof(why))) {
        assert_int_not_equal(answer, 0);
        (void)tess__boot_receive(fd, &answer, 1, tess_clock_s() + 20, why, sizeof(why));
    }
    if (strstr(why, "closed") == NULL && strstr(why, "reset") == NULL)
        fail_msg("it is open: %s", why);
    close(fd);
}

static void case_strangers(void **state)
{
    static char bytes[STREAM_MOST + 256];
    static const struct tess_secret none, other = {"0123456789abcdef0123456789abcdf"};
    const struct tess__mirror_ask ask = {.verb = TESS__MIRROR_PUSH, .step = 7};
    (void)state;
    memcpy(bytes, &ask, sizeof(ask));
    const size_t count =
        sizeof(struct tess_secret_answer) + sizeof(ask) + small_stream(bytes + sizeof(ask));
    struct hosts_mirror mirror = start("c");
    check_closed(stranger(&mirror, &none, bytes, count)); /* it serves nobody yet */
    tess__hosts_mirror_admit(&mirror, &key, 0);

    check_closed(stranger(&mirror, &none, bytes, count));
    check_closed(stranger(&mirror, &other, bytes, count));
    bytes[0] = 77; /* no such request */
    check_closed(stranger(&mirror, &key, bytes, count));
    bytes[0] = 0;
    const int browser = stranger_connect(&mirror);
    (void)tess__boot_send(browser, "GET / HTTP/1.0\r\nHost: example.org\r\n\r\n", 38,
                          tess_clock_s() + SILENT_S, why, sizeof(why));
    assert_int_equal(shutdown(browser, SHUT_WR), 0);
    char rest[200];
    while (recv(browser, rest, sizeof(rest), 0) > 0) /* its challenge, and the end */
        ;
    close(browser);
    for (size_t n = 0; n < count; n += 17) {
        const int fd = stranger(&mirror, &key, bytes, n);
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        check_closed(fd);
    }
    assert_false(is_there("c/replica/checkpoints/step-00000007.part"));
    assert_false(is_there("c/replica/checkpoints/step-00000007"));

    int32_t failed = 1;
    const int fd = stranger(&mirror, &key, bytes, count); /* and the whole is taken */
    assert_true(
        tess__boot_receive(fd, &failed, sizeof(failed), tess_clock_s() + 10, why, sizeof(why)));
    assert_int_equal(failed, 0);
    close(fd);
    check("c/replica/checkpoints/step-00000007/model.bin", 100, 60, "more words");
    tess__hosts_mirror_close(&mirror);
}

/* ---- which step ------------------------------------------------------------------------------ */

/* Hosts that have parts 0, 1, ..., and steps as digits, own and replica; "": the host is lost. */
static int64_t choose(const char *const hosts[][2], int32_t count, int64_t whole, int64_t after,
                      struct hosts_source *source, int32_t *source_count)
{
    static struct hosts_held held[8];
    const struct hosts_held *left[8];
    int32_t kept = 0;
    for (int32_t h = 0; h < count; h++) {
        held[h] = (struct hosts_held){.part = h, .port = 100 + h};
        for (int i = 0; i < HOSTS_COPIES; i++) {
            const bool own = i < (int)strlen(hosts[h][0]), other = i < (int)strlen(hosts[h][1]);
            held[h].copies.own[i] = own ? hosts[h][0][i] - '0' : -1;
            held[h].copies.replica[i] = other ? hosts[h][1][i] - '0' : -1;
        }
        if (hosts[h][0][0] != '\0')
            left[kept++] = &held[h];
    }
    return tess__gather_choose(left, kept, count, whole, after, source, source_count);
}

static void case_choose(void **state)
{
    struct hosts_source source[8];
    int32_t count = 0;
    (void)state;
    /* None is lost: the newest of which all have their own, pushed or not. */
    const char *const both[][2] = {{"65", "54"}, {"65", "5"}};
    assert_int_equal(choose(both, 2, -1, -1, source, &count), 6);
    assert_int_equal(count, 2);
    assert_int_equal(source[1].port, 101);
    assert_int_equal(source[1].replica, 0);
    assert_int_equal(choose(both, 2, -1, 6, source, &count), -1); /* the disk has it */
    /* One has not finished the newest. */
    const char *const behind[][2] = {{"65", "54"}, {"5", "5"}};
    assert_int_equal(choose(behind, 2, -1, -1, source, &count), 5);
    /* One is lost: its part is with the next one, if it has come. */
    const char *const first[][2] = {{"", ""}, {"65", "65"}, {"65", "65"}};
    assert_int_equal(choose(first, 3, -1, -1, source, &count), 6);
    assert_int_equal(source[0].port, 101);
    assert_int_equal(source[0].replica, 1);
    const char *const late[][2] = {{"65", "5"}, {"65", "65"}, {"", ""}};
    assert_int_equal(choose(late, 3, -1, -1, source, &count), 5);
    assert_int_equal(source[2].port, 100);
    assert_int_equal(choose(late, 3, -1, 5, source, &count), -1);
    /* Neighbours are lost, and hosts that are none. */
    const char *const two[][2] = {{"65", "65"}, {"", ""}, {"", ""}, {"65", "65"}};
    assert_int_equal(choose(two, 4, -1, -1, source, &count), -1);
    const char *const apart[][2] = {{"", ""}, {"65", "65"}, {"", ""}, {"65", "65"}};
    assert_int_equal(choose(apart, 4, -1, -1, source, &count), 6);
    assert_int_equal(source[2].port, 103);
    /* What all began with does for any of them. */
    const char *const began[][2] = {{"4", ""}, {"", ""}, {"54", ""}};
    assert_int_equal(choose(began, 3, 4, -1, source, &count), 4);
    assert_int_equal(count, 1);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    tess__copies_remove(root);
    return access(root, F_OK) == 0 ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_push_and_fetch), cmocka_unit_test(case_cut),
        cmocka_unit_test(case_damaged),        cmocka_unit_test(case_other_length),
        cmocka_unit_test(case_strangers),      cmocka_unit_test(case_choose),
    };
    return cmocka_run_group_tests_name("mirror", tests, set_up, tear_down);
}
