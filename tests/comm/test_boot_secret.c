/*
 * Strangers on a job's ports. Those who do not have its secret can do nothing: greet like a rank of
 * it, listen in the place of rank 0, repeat what they have recorded; silent connections, however
 * many, hold up nobody.
 */
#include "comm/boot/boot_door.h"

#include "base/clock.h"
#include "harness/awake.h"
#include "meeting.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SILENT      600
#define SOON_S      4.0 /* much less than the limit of a meeting, on a machine that is busy */
#define TEXT        "correct horse battery"
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

static char folder[] = "/tmp/tessera_secret_XXXXXX";

static struct tess_secret secret_of(const char *text)
{
    struct tess_secret secret;
    setenv(TESS_SECRET, text, 1);
    assert_int_equal(tess_secret_from_environment(&secret), TESS_OK);
    unsetenv(TESS_SECRET);
    return secret;
}

static void pause_s(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

/* ---- proofs ---------------------------------------------------------------------------------- */

static void hex(const unsigned char *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* Values of Python's hmac: b"tessera connects\0" + nonces + greeting, keyed with that of the text.
 */
static void case_values(void **state)
{
    static const char key[] = "6628ac69cbc788de1c6c0bb33cb2ea955c492a27e8b691db8469e51ab1c0207a";
    static const char accepts[] =
        "6cac004620e1db4dcc01b3968ebafefdcbdb7bfb7ed1528c698df94663748c50";
    static const unsigned char connects[] = {0x43, 0x09, 0xaf, 0x5e, 0xaa, 0x5c, 0xcd, 0xe2,
                                             0x90, 0x33, 0xad, 0xae, 0x3e, 0xee, 0x42, 0x2b,
                                             0xfd, 0x0e, 0x0e, 0x92, 0xa0, 0x3a, 0xb5, 0x60,
                                             0xc7, 0xf9, 0xc7, 0xdd, 0xa7, 0x47, 0x88, 0xc0};
    const struct tess_secret secret = secret_of(TEXT);
    struct tess_secret_challenge challenge = {.magic = 0};
    struct tess_secret_answer answer;
    unsigned char proof[TESS_SECRET_PROOF_BYTES];
    char text[2 * sizeof(proof) + 1];
    (void)state;
    hex(secret.key, sizeof(secret.key), text);
    assert_string_equal(text, key);
    for (int i = 0; i < TESS_SECRET_NONCE_BYTES; i++) {
        challenge.nonce[i] = (unsigned char)i;
        answer.nonce[i] = (unsigned char)(100 + i);
    }
    for (int i = 0; i < TESS_GREETING_BYTES; i++)
        answer.greeting[i] = (unsigned char)(200 + i);
    memcpy(answer.proof, connects, sizeof(answer.proof));
    assert_true(tess_secret_check(&secret, &challenge, &answer, proof));
    hex(proof, sizeof(proof), text);
    assert_string_equal(text, accepts);
}

/* Whatever bit is changed, and whatever is used in the place of something else. */
static void case_proofs(void **state)
{
    static const unsigned char greeting[TESS_GREETING_BYTES] = "a greeting of 32 bytes";
    const struct tess_secret secret = secret_of(TEXT), other = secret_of(TEXT "2"), none = {{0}};
    struct tess_secret_challenge challenge, changed;
    struct tess_secret_answer answer, forged;
    unsigned char proof[TESS_SECRET_PROOF_BYTES], ignored[TESS_SECRET_PROOF_BYTES];
    (void)state;
    assert_memory_not_equal(&secret, &none, sizeof(none));
    assert_true(tess_secret_challenge(&challenge) && tess_secret_challenge(&changed));
    assert_memory_not_equal(challenge.nonce, changed.nonce, sizeof(challenge.nonce));
    assert_true(tess_secret_prove(&secret, &challenge, greeting, &answer));
    assert_true(tess_secret_check(&secret, &challenge, &answer, proof));
    assert_true(tess_secret_confirm(&secret, &challenge, &answer, proof));
    assert_false(tess_secret_check(&other, &challenge, &answer, ignored));
    assert_false(tess_secret_check(&none, &challenge, &answer, ignored));
    assert_false(tess_secret_confirm(&other, &challenge, &answer, proof));
    /* A recording, and a proof that is sent back. */
    assert_false(tess_secret_check(&secret, &changed, &answer, ignored));
    assert_false(tess_secret_confirm(&secret, &challenge, &answer, answer.proof));
    for (size_t bit = 0; bit < 8 * sizeof(answer); bit++) {
        forged = answer;
        ((unsigned char *)&forged)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(tess_secret_check(&secret, &challenge, &forged, ignored));
    }
    for (size_t bit = 0; bit < 8 * sizeof(proof); bit++) {
        proof[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(tess_secret_confirm(&secret, &challenge, &answer, proof));
        proof[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    changed = challenge;
    changed.magic++;
    assert_false(tess_secret_prove(&secret, &changed, greeting, &forged));
}

/* ---- where it comes from --------------------------------------------------------------------- */

static void write_file(char path[80], const char *name, const char *text, mode_t mode)
{
    snprintf(path, 80, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void case_sources(void **state)
{
    const struct tess_secret wanted = secret_of(TEXT), none = {{0}};
    struct tess_secret secret;
    char path[80], text[TESS_SECRET_TEXT_BYTES];
    (void)state;
    assert_int_equal(tess_secret_from_environment(&secret), TESS_OK);
    assert_memory_equal(&secret, &none, sizeof(none));
    write_file(path, "good", TEXT "\n", 0600);
    assert_int_equal(tess_secret_from_file(path, &secret), TESS_OK);
    assert_memory_equal(&secret, &wanted, sizeof(secret));
    setenv(TESS_SECRET_FILE, path, 1);
    assert_int_equal(tess_secret_from_environment(&secret), TESS_OK);
    assert_memory_equal(&secret, &wanted, sizeof(secret));
    unsetenv(TESS_SECRET_FILE);
    tess_secret_text(&secret, text);
    assert_string_equal(text, "6628ac69cbc788de1c6c0bb33cb2ea955c492a27e8b691db8469e51ab1c0207a");
    setenv(TESS_SECRET, "fifteen letters", 1);
    assert_int_equal(tess_secret_from_environment(&secret), TESS_ERR_USAGE);
    assert_contains(tess_log_last_error(), "TESS_JOB_SECRET has a secret of 15 characters");
    unsetenv(TESS_SECRET);
}

static void case_bad_files(void **state)
{
    static char huge[5000];
    static const struct {
        const char *name, *text;
        mode_t mode;
        const char *phrase;
    } bad[] = {
        {"group", TEXT, 0640, "has mode 640, so that others may read or write it: chmod 600"},
        {"others", TEXT, 0604, "has mode 604"},
        {"writable", TEXT, 0622, "has mode 622"},
        {"empty", "\n\n", 0600, "a secret of 0 characters"},
        {"huge", huge, 0600, "it must have 16 to 4096"},
    };
    struct tess_secret secret;
    char path[80];
    (void)state;
    memset(huge, 'x', sizeof(huge) - 1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        write_file(path, bad[i].name, bad[i].text, bad[i].mode);
        assert_int_equal(tess_secret_from_file(path, &secret), TESS_ERR_USAGE);
        assert_contains(tess_log_last_error(), bad[i].phrase);
    }
    assert_int_equal(tess_secret_from_file(folder, &secret), TESS_ERR_USAGE);
    assert_contains(tess_log_last_error(), "is no regular file");
    snprintf(path, sizeof(path), "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(tess_secret_from_file(path, &secret), TESS_ERR_USAGE);
    assert_contains(tess_log_last_error(), "is no regular file");
    assert_int_equal(tess_secret_from_file("/no/such/file", &secret), TESS_ERR_IO);
    assert_contains(tess_log_last_error(), "/no/such/file");
}

/* ---- strangers at the start ------------------------------------------------------------------ */

static struct meeting meeting_with(int32_t ranks, const char *text)
{
    struct meeting meeting = meeting_of(ranks, "127.0.0.1");
    if (text != NULL)
        meeting.env.secret = secret_of(text);
    return meeting;
}

/* As boot_meet.c documents it. */
static void greeting_of_rank_1(const struct meeting *meeting, unsigned char bytes[])
{
    struct {
        char magic[8];
        uint16_t version, port;
        uint32_t process;
        int32_t rank, rank_count;
        uint64_t job;
    } greeting = {.version = 3, .process = 1, .rank = 1, .job = meeting->env.job};
    greeting.rank_count = meeting->env.rank_count;
    memcpy(greeting.magic, "teraboot", 8);
    memcpy(bytes, &greeting, sizeof(greeting));
}

/* The others come, and all meet soon. */
static void finish(struct meeting *meeting, pid_t root)
{
    pid_t pid[RANKS_MAX] = {root};
    for (int32_t r = 1; r < meeting->env.rank_count; r++)
        pid[r] = meet_fork(meeting, r);
    for (int32_t r = 0; r < meeting->env.rank_count; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    for (int32_t r = 0; r < meeting->env.rank_count; r++)
        assert_string_equal(meeting->outcome[r].error, "");
    for (int32_t r = 1; r < meeting->env.rank_count; r++)
        if (meeting->outcome[r].seconds > SOON_S)
            fail_msg("rank %d has met after %g s", (int)r, meeting->outcome[r].seconds);
    meeting_free(meeting);
}

/* The place of rank 1 is taken by nobody: not by who only knows what is public, not with the secret
 * of another job, not by a recording. With no secret it is taken, as the documents say. */
static void case_greetings(void **state)
{
    struct meeting meeting = meeting_with(3, TEXT);
    const struct tess_secret none = {{0}}, other = secret_of("the secret of another job");
    unsigned char greeting[TESS_GREETING_BYTES], zeros[600] = {0};
    struct tess_secret_challenge challenge;
    struct tess_secret_answer recorded;
    char why[BOOT_WHY_BYTES];
    const double limit_s = tess_clock_s() + 10;
    const pid_t root = meet_fork(&meeting, 0);
    int fd[5];
    (void)state;
    greeting_of_rank_1(&meeting, greeting);
    for (size_t i = 0; i < COUNT(fd); i++)
        assert_true((fd[i] = stray_connect(meeting.env.port)) >= 0);
    assert_true(send(fd[0], greeting, sizeof(greeting), MSG_NOSIGNAL) > 0);
    assert_int_equal(tess__boot_knock(fd[1], &none, greeting, limit_s, why, sizeof(why)),
                     TESS_ERR_USAGE);
    assert_contains(why, "does not have this job's secret (TESS_JOB_SECRET)");
    assert_int_equal(tess__boot_knock(fd[2], &other, greeting, limit_s, why, sizeof(why)),
                     TESS_ERR_USAGE);
    /* What a rank has sent on one connection, on another one. */
    assert_true(recv(fd[3], &challenge, sizeof(challenge), MSG_WAITALL) > 0);
    assert_true(tess_secret_prove(&meeting.env.secret, &challenge, greeting, &recorded));
    assert_true(recv(fd[4], &challenge, sizeof(challenge), MSG_WAITALL) > 0);
    assert_true(send(fd[4], &recorded, sizeof(recorded), MSG_NOSIGNAL) > 0);
    assert_true(recv(fd[4], zeros, sizeof(zeros), MSG_WAITALL) == TESS_SECRET_PROOF_BYTES);
    finish(&meeting, root);
    for (size_t i = 0; i < COUNT(fd); i++)
        close(fd[i]);
    meeting = meeting_with(2, NULL);
    const pid_t open_root = meet_fork(&meeting, 0);
    greeting_of_rank_1(&meeting, greeting);
    assert_true((fd[0] = stray_connect(meeting.env.port)) >= 0);
    assert_int_equal(tess__boot_knock(fd[0], &none, greeting, limit_s, why, sizeof(why)), TESS_OK);
    close(fd[0]);
    assert_int_equal(waitpid(open_root, NULL, 0), open_root);
    assert_contains(meeting.outcome[0].error, "rank 1 has left");
    meeting_free(&meeting);
}

/* A rank with another secret, and one whose rank 0 is a stranger who knows all that is public. */
static void case_wrong_secret(void **state)
{
    struct meeting meeting = meeting_with(2, TEXT), other = meeting;
    (void)state;
    meeting.timeout_s = other.timeout_s = 0.7;
    other.env.secret = secret_of("the secret of another job");
    other.env.port_count = 8; /* as under Slurm: that nobody listens at the last one is no reason */
    const pid_t root = meet_fork(&meeting, 0), member = meet_fork(&other, 1);
    assert_int_equal(waitpid(root, NULL, 0), root);
    assert_int_equal(waitpid(member, NULL, 0), member);
    assert_int_equal(meeting.outcome[0].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[0].error, "without this job's secret (TESS_JOB_SECRET)");
    assert_int_equal(meeting.outcome[1].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[1].error, "does not have this job's secret");
    meeting_free(&meeting);
    /* The same secret in two jobs at one port: each meets its own. */
    meeting = meeting_with(2, TEXT);
    other = meeting;
    other.env.job++;
    other.timeout_s = 0.7;
    other.outcome = &meeting.outcome[2];
    const pid_t own = meet_fork(&meeting, 0), stray = meet_fork(&other, 1);
    assert_int_equal(waitpid(stray, NULL, 0), stray);
    assert_int_equal(other.outcome[1].status, TESS_ERR_TIMEOUT);
    finish(&meeting, own);
}

/* More than rank 0 had room for at a time: it read the next ones when it had closed these. */
static void case_silent(void **state)
{
    struct meeting meeting = meeting_with(4, TEXT);
    static int fd[SILENT];
    (void)state;
    assert_int_equal(tess__boot_need_files(SILENT, "the test"), TESS_OK);
    meeting.timeout_s = 10;
    const pid_t root = meet_fork(&meeting, 0);
    for (int i = 0; i < SILENT; i++)
        assert_true((fd[i] = stray_connect(meeting.env.port)) >= 0);
    finish(&meeting, root);
    for (int i = 0; i < SILENT; i++)
        close(fd[i]);
}

/* One byte now and then, noise, a web browser: each is closed within about a second. */
static void case_slow_bytes(void **state)
{
    static const char web[] = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"
                              "and more than is read of an answer of this protocol";
    struct meeting meeting = meeting_with(2, TEXT);
    struct tess_secret_challenge challenge;
    const pid_t root = meet_fork(&meeting, 0);
    const int slow = stray_connect(meeting.env.port), noise = stray_connect(meeting.env.port);
    char byte;
    (void)state;
    assert_true(slow >= 0 && noise >= 0);
    assert_true(recv(slow, &challenge, sizeof(challenge), MSG_WAITALL) > 0);
    assert_true(send(noise, web, sizeof(web), MSG_NOSIGNAL) > 0);
    const double start_s = awake_s();
    while (recv(slow, &byte, 1, MSG_DONTWAIT) < 0 && awake_s() - start_s < SOON_S) {
        (void)!send(slow, "x", 1, MSG_NOSIGNAL);
        pause_s(0.05);
    }
    assert_true(awake_s() - start_s < SOON_S);
    finish(&meeting, root);
    close(slow);
    close(noise);
}

/* ---- rank 0's place -------------------------------------------------------------------------- */

static bool welcome(void *context, int fd, const unsigned char *bytes)
{
    static const char reply[504];
    (void)context, (void)bytes;
    (void)!send(fd, reply, sizeof(reply), MSG_NOSIGNAL);
    return true;
}

static void case_false_root(void **state)
{
    static const struct tess_secret none;
    struct meeting meeting = meeting_with(2, TEXT);
    struct boot_door door = {.greet = welcome, .secret = &none};
    (void)state;
    meeting.timeout_s = 0.7;
    assert_int_equal(tess__boot_listen("127.0.0.1", meeting.env.port, &door.listener), TESS_OK);
    const pid_t member = meet_fork(&meeting, 1);
    while (waitpid(member, NULL, WNOHANG) == 0)
        tess__boot_door_look(&door);
    tess__boot_door_close(&door);
    assert_int_equal(meeting.outcome[1].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[1].error, "does not have this job's secret");
    meeting_free(&meeting);
}

/* After the meeting nobody listens. */
static enum tess_status door_is_shut(struct tess_boot *boot)
{
    char why[BOOT_WHY_BYTES];
    TESS_TRY(gather_many(boot));
    const int fd = tess__boot_connect("127.0.0.1", atoi(getenv("TEST_PORT")), tess_clock_s() + 1,
                                      why, sizeof(why));
    return fd < 0 ? TESS_OK : tess_fail(TESS_ERR_DATA, "somebody listens");
}

static void case_shut(void **state)
{
    struct meeting meeting = meeting_with(2, TEXT);
    char port[16];
    (void)state;
    snprintf(port, sizeof(port), "%d", (int)meeting.env.port);
    setenv("TEST_PORT", port, 1);
    meeting.then = door_is_shut;
    meet_all(&meeting);
    assert_string_equal(meeting.outcome[0].error, "");
    assert_string_equal(meeting.outcome[1].error, "");
    meeting_free(&meeting);
}

/* What ranks derive after they have met. */
static void case_derived(void **state)
{
    const struct tess_secret one = secret_of(TEXT), none = {{0}};
    struct tess_secret a, b, c;
    (void)state;
    tess_secret_derive(&one, "word 1", 6, &a);
    tess_secret_derive(&one, "word 2", 6, &b);
    tess_secret_derive(&none, "word 1", 6, &c);
    assert_memory_not_equal(&a, &b, sizeof(a));
    assert_memory_not_equal(&a, &c, sizeof(a));
    assert_memory_not_equal(&a, &one, sizeof(a));
}

static int remove_folder(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_values),     cmocka_unit_test(case_proofs),
        cmocka_unit_test(case_sources),    cmocka_unit_test(case_bad_files),
        cmocka_unit_test(case_greetings),  cmocka_unit_test(case_wrong_secret),
        cmocka_unit_test(case_silent),     cmocka_unit_test(case_slow_bytes),
        cmocka_unit_test(case_false_root), cmocka_unit_test(case_shut),
        cmocka_unit_test(case_derived),
    };
    tess_log_set_level(TESS_LOG_ERROR);
    unsetenv(TESS_SECRET);
    unsetenv(TESS_SECRET_FILE);
    if (mkdtemp(folder) == NULL)
        return 1;
    return cmocka_run_group_tests_name("boot_secret", tests, NULL, remove_folder);
}
