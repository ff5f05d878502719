/*
 * NCCL's topology files that are wrong: each is refused with the line and the reason. Files cut
 * anywhere, changed anywhere, and as large as they get: bounded time, and nothing read beyond the
 * text, which the sanitizers watch.
 */
#include "nccl_fixture.h"
#include "tessera/log.h"
#include "topology/formats/xml.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A file with one device, of which a part is replaced by something wrong. */
#define GOOD                                                                                       \
    "<system version=\"1\">\n"                                                                     \
    "  <cpu numaid=\"0\">\n"                                                                       \
    "    <pci busid=\"0000:01:00.0\" class=\"0x030200\">\n"                                        \
    "      <gpu dev=\"0\" sm=\"90\">\n"                                                            \
    "        <nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/>\n"              \
    "        <c2c bw=\"1000\" count=\"1\"/>\n"                                                     \
    "      </gpu>\n"                                                                               \
    "    </pci>\n"                                                                                 \
    "    <nic>\n"                                                                                  \
    "      <net name=\"eth0\" dev=\"0\" speed=\"1000\" latency=\"1.5\"/>\n"                        \
    "    </nic>\n"                                                                                 \
    "  </cpu>\n"                                                                                   \
    "</system>\n"

static const struct {
    const char *good, *bad; /* text in GOOD, and what takes its place */
    int line;
    const char *part; /* of the message */
} wrong[] = {
    /* the form */
    {"<system version=\"1\">", "<?xml version=\"1.0\"?>\n<system version=\"1\">", 1, "<? ... ?>"},
    {"<system version=\"1\">", "\xef\xbb\xbf<system version=\"1\">", 1, "byte order mark"},
    {"<system version=\"1\">", "<!DOCTYPE system [<!ENTITY a \"&b;&b;\">]>\n<system version=\"1\">",
     1, "DOCTYPE"},
    {"<system version=\"1\">", "\n<!-- never ended\n<system version=\"1\">", 2, "no end"},
    {"    <nic>", "    <!--a=b--><nic>", 9, "first word has a '='"},
    {"    <nic>", "\t<nic>", 9, "a tab between elements"},
    {"    <nic>", "    text <nic>", 9, "'t' between elements"},
    {"    <nic>", "    \x01<nic>", 9, "byte 0x01 between elements"},
    {"    <nic>", "    <![CDATA[<nic>]]>", 9, "CDATA"},
    {" sm=\"90\"", "\n sm=\"90\"", 4, "line break"},
    {" sm=\"90\"", "\tsm=\"90\"", 4, "tab in it"},
    {" sm=\"90\"", "sm=\"90\"", 4, "expected a space, > or />"},
    {" sm=\"90\"", " sm=90", 4, "not in quotes"},
    {" sm=\"90\"", " sm =\"90\"", 4, "right after its name"},
    {" sm=\"90\"", " sm", 4, "right after its name"},
    {" sm=\"90\"", " =\"90\"", 4, "name of an attribute"},
    {" sm=\"90\"", " sm=\"90", 4, "closing \" is missing"},
    {" sm=\"90\"", " sm=\"&lt;\"", 4, "entities"},
    {" sm=\"90\"", " sm=\"90\" sm=\"90\"", 4, "given twice"},
    {" sm=\"90\"",
     " a=\"\" b=\"\" c=\"\" d=\"\" e=\"\" f=\"\" g=\"\" h=\"\" i=\"\" j=\"\" k=\"\" l=\"\" m=\"\" "
     "n=\"\" o=\"\" p=\"\"",
     4, "more than 16 attributes"},
    {" sm=\"90\"", "                 sm=\"90\"", 4, "too many spaces"},
    {" sm=\"90\"", " sm=\"90\"                ", 4, "too many spaces"},
    {"      </gpu>", "      </pci>", 7, "</pci> where <gpu> of line 4"},
    {"      </gpu>", "", 8, "where <gpu> of line 4"},
    {"      </gpu>", "      </gpu >", 7, "right after </gpu"},
    {"</system>", "", 14, "before <system> of line 1"},
    {"</system>", "</system>\n</system>", 14, "ends nothing"},
    {"</system>", "</system>\n<system version=\"1\"/>", 14, "after the end"},
    {"      <gpu", "      <", 4, "name of an element"},
    /* where elements belong */
    {"<system version=\"1\">", "<machine>", 1, "<machine> at the top"},
    {"<system version=\"1\">", "<cpu numaid=\"1\">", 1, "<cpu> at the top"},
    {"<system version=\"1\">", "<graphs version=\"1\">", 1, "graph file"},
    {"        <c2c bw=\"1000\" count=\"1\"/>", "        <gpu dev=\"1\"/>", 6, "out of place"},
    {"    <nic>\n", "    <nic>\n<pci busid=\"0000:02:00.0\"/>", 10, "out of place"},
    {"      </gpu>", "      </gpu><nic/>", 7, "of line 3 is a device or a NIC already"},
    {"      </gpu>", "      </gpu><gpu/>", 7, "of line 3 is a device or a NIC already"},
    /* what attributes say */
    {"version=\"1\"", "version=\"3\"", 1, "1 (NCCL's) or 2 (rccl's)"},
    {" version=\"1\"", "", 1, "has no version"},
    {" numaid=\"0\"", "", 2, "has no numaid"},
    {"numaid=\"0\"", "numaid=\"zero\"", 2, "a whole number"},
    {"numaid=\"0\"", "numaid=\"-2\"", 2, "a whole number from -1"},
    {"numaid=\"0\"", "numaid=\"0\" modelid=\"99999999999\"", 2, "modelid"},
    {"numaid=\"0\"", "numaid=\"0\" host_hash=\"here\"", 2, "hexadecimal"},
    {"  </cpu>", "  </cpu><cpu numaid=\"0\"/>", 12, "of line 2 already"},
    {" busid=\"0000:01:00.0\"", "", 3, "has no busid"},
    {"0000:01:00.0", "0000:01:00", 3, "a PCI bus id"},
    {"0000:01:00.0", "0000:01:00.g", 3, "a PCI bus id"},
    {"0000:01:00.0", "01:00.0", 3, "a PCI bus id"},
    {"0000:01:00.0", "123456789:01:00.0", 3, "a PCI bus id"},
    {"    </pci>", "    </pci>\n    <pci busid=\"0000:01:00.0\" class=\"0x060400\"/>", 9,
     "bus id 0000:01:00.0 is taken already"},
    {"0x030200\"", "030200\"", 3, "a PCI class"},
    {"0x030200\"", "0x03zz\"", 3, "a PCI class"},
    {"0x030200\"", "0x030200\" link_width=\"65\"", 3, "link_width"},
    {"0x030200\"", "0x030200\" vendor=\"NVIDIA\"", 3, "vendor"},
    {"dev=\"0\" sm", "dev=\"0.5\" sm", 4, "dev=\"0.5\""},
    {"dev=\"0\" sm", "dev=\"010\" sm", 4, "dev=\"010\""}, /* eight, for NCCL */
    {"dev=\"0\" sm", "dev=\"\" sm", 4, "dev=\"\""},
    {"dev=\"0\" sm", "dev=\"0x\" sm", 4, "dev=\"0x\""},
    {"dev=\"0\" sm", "dev=\"-\" sm", 4, "dev=\"-\""},
    {"sm=\"90\"", "sm=\"99999999999999999999\"", 4, "sm="},
    {" count=\"18\"", "", 5, "has no count"},
    {"count=\"18\"", "count=\"0\"", 5, "from 1 to"},
    {"target=\"fffffff:ffff:ff\" ", "", 5, "has no target"},
    {"target=\"fffffff:ffff:ff\"", "target=\"here\"", 5, "target=\"here\""},
    {"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"", "0000:01:00.0\" count=\"1\"", 5,
     "no tclass"},
    {"bw=\"1000\"", "bw=\"-1\"", 6, "bw=\"-1\""},
    {"latency=\"1.5\"", "latency=\"1.\"", 10, "microseconds"},
    {"latency=\"1.5\"", "latency=\"nan\"", 10, "microseconds"},
    {"latency=\"1.5\"", "latency=\"-1\"", 10, "microseconds"},
    {"class=\"0x030200\">\n      <gpu dev=\"0\" sm=\"90\">",
     "class=\"0x030200\">\n      <gpu dev=\"-1\" sm=\"90\">", 1, "no device in it"},
};

/* `text` with the first `good` in it replaced; malloc'd. */
static char *replaced(const char *text, const char *good, const char *bad)
{
    const char *at = strstr(text, good);
    if (at == NULL)
        fail_msg("nothing to replace: %s", good);
    char *result = malloc(strlen(text) + strlen(bad) + 1);
    assert_non_null(result);
    sprintf(result, "%.*s%s%s", (int)(at - text), text, bad, at + strlen(good));
    return result;
}

static void assert_refused(const char *text, size_t bytes, int line, const char *part)
{
    enum tess_status status;
    struct tess_topology *t = nccl_read(text, bytes, NULL, &status);
    char place[40];
    snprintf(place, sizeof(place), "test.xml:%d: ", line);
    assert_null(t);
    assert_int_equal(status, TESS_ERR_DATA);
    const char *error = tess_log_last_error();
    if (strncmp(error, place, strlen(place)) != 0 || strstr(error, part) == NULL)
        fail_msg("seen: %s\nexpected: %s...%s", error, place, part);
    for (const char *c = error; *c != '\0'; c++)
        assert_true(*c >= ' ' && *c <= '~');
}

static void case_the_good_file_is_good(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_read(GOOD, strlen(GOOD), NULL, NULL);
    assert_non_null(t);
    tess_topology_free(t);
}

static void case_wrong_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *text = replaced(GOOD, wrong[i].good, wrong[i].bad);
        assert_refused(text, strlen(text), wrong[i].line, wrong[i].part);
        free(text);
    }
    assert_refused("", 0, 1, "no element in it");
    assert_refused("  \n \n", 5, 3, "no element in it");
    assert_refused("<system version=\"1\"/>\0", 22, 1, "byte 0x00");
}

static void case_devices_of_one_number(void **state)
{
    (void)state;
    char *text = replaced(nccl_fixture("pair"), "dev=\"1\"", "dev=\"0\"");
    assert_refused(text, strlen(text), 10, "dev 0 is that of the <gpu> of line 5 already");
    free(text);
    text = replaced(nccl_fixture("pair"), "target=\"0000:17:00.0\"", "target=\"0000:18:00.0\"");
    assert_refused(text, strlen(text), 11, "which is no device");
    free(text);
}

/* Refused, unless only blanks are missing; the line is one the text has. */
static void case_cut_at_every_byte(void **state)
{
    (void)state;
    for (const struct nccl_fixture *f = nccl_fixtures; f->name != NULL; f++) {
        size_t bytes = strlen(f->text);
        while (f->text[bytes - 1] != '>')
            bytes--;
        for (size_t cut = 0; cut < bytes; cut++) {
            enum tess_status status;
            int line = 0, lines = 1;
            assert_null(nccl_read(f->text, cut, NULL, &status));
            assert_int_equal(status, TESS_ERR_DATA);
            assert_int_equal(sscanf(tess_log_last_error(), "test.xml:%d: ", &line), 1);
            for (size_t i = 0; i < cut; i++)
                lines += f->text[i] == '\n';
            assert_int_equal(line, strstr(tess_log_last_error(), "no end") != NULL ? 1 : lines);
        }
    }
}

/* Every byte to every one of some; read or refused, with a message that can be printed. */
static void case_changed_at_every_byte(void **state)
{
    (void)state;
    static const char other[] = "<>\"'/=! -&\n\t09f:.\xff";
    const size_t turn = TESTS_DIVISOR > 1 ? 3 : 1;
    for (const struct nccl_fixture *f = nccl_fixtures; f->name != NULL; f++) {
        const size_t bytes = strlen(f->text);
        char *text = malloc(bytes + 1);
        assert_non_null(text);
        memcpy(text, f->text, bytes + 1);
        for (size_t i = 0; i < bytes; i += TESTS_DIVISOR) {
            /* Its 0 too. Sanitizers: they take turns. */
            for (size_t o = i / TESTS_DIVISOR % turn; o < sizeof(other); o += turn) {
                enum tess_status status;
                text[i] = other[o];
                struct tess_topology *t = nccl_read(text, bytes, NULL, &status);
                assert_true(status == TESS_OK || status == TESS_ERR_DATA);
                assert_true((t != NULL) == (status == TESS_OK));
                tess_topology_free(t);
            }
            text[i] = f->text[i];
        }
        free(text);
    }
}

/* ---- size ------------------------------------------------------------------------------------ */

struct large {
    char *text;
    size_t bytes, room;
};

static void large_add(struct large *large, const char *piece)
{
    const size_t length = strlen(piece);
    if (large->bytes + length > large->room) {
        large->room = 2 * (large->bytes + length);
        large->text = realloc(large->text, large->room);
        assert_non_null(large->text);
    }
    memcpy(large->text + large->bytes, piece, length);
    large->bytes += length;
}

static void large_add_many(struct large *large, const char *piece, int count)
{
    for (int i = 0; i < count; i++)
        large_add(large, piece);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Generous: a sanitizer on a busy machine. Quadratic work on these sizes takes minutes. */
#define SECONDS_MAX 20

static void assert_large(struct large *large, int line, const char *part)
{
    const double start = now();
    assert_refused(large->text, large->bytes, line, part);
    assert_true(now() - start < SECONDS_MAX);
    free(large->text);
}

#define BEGIN "<system version=\"1\"><cpu numaid=\"0\">"

static void case_deep(void **state)
{
    (void)state;
    struct large large = {0};
    large_add(&large, BEGIN "\n");
    large_add_many(&large, "<pci busid=\"0000:00:00.0\">\n", 1000000);
    assert_large(&large, 2 + TESS_XML_DEPTH_MAX - 2, "deep");
    large = (struct large){0};
    large_add(&large, BEGIN);
    large_add_many(&large, "<unknown>\n", 1000000);
    assert_large(&large, TESS_XML_DEPTH_MAX - 1, "deep");
}

static void case_a_million_attributes(void **state)
{
    (void)state;
    struct large large = {0};
    large_add(&large, BEGIN "\n<pci");
    for (int i = 0; i < 1000000; i++) {
        char attribute[32];
        snprintf(attribute, sizeof(attribute), " a%d=\"\"", i);
        large_add(&large, attribute);
    }
    assert_large(&large, 2, "more than 16 attributes");
}

static void case_long_words(void **state)
{
    (void)state;
    struct large large = {0};
    large_add(&large, BEGIN "\n<pci busid=\"");
    large_add_many(&large, "a", 1000000);
    assert_large(&large, 2, "longer than 253");
    large = (struct large){0};
    large_add(&large, BEGIN "\n<");
    large_add_many(&large, "a", 1000000);
    assert_large(&large, 2, "longer than 253");
    large = (struct large){0};
    large_add(&large, BEGIN "\n<pci ");
    large_add_many(&large, "a", 1000000);
    assert_large(&large, 2, "longer than 253");
    large = (struct large){0};
    large_add(&large, BEGIN "\n<!--");
    large_add_many(&large, "--\n", 1000000);
    assert_large(&large, 2, "no end");
    large = (struct large){0};
    large_add(&large, BEGIN "\n<!--");
    large_add_many(&large, "-", 1000000);
    assert_large(&large, 2, "first word is longer than 253");
    large = (struct large){0};
    large_add(&large, BEGIN "\n<pci");
    large_add_many(&large, " ", 1000000);
    assert_large(&large, 2, "cut off");
}

static void case_many_elements(void **state)
{
    (void)state;
    struct large large = {0};
    large_add(&large, BEGIN);
    large_add_many(&large, "<a/>\n", 1000000);
    assert_large(&large, TESS_XML_ELEMENTS_MAX - 1, "more than 65536 elements");
    large = (struct large){0};
    large_add(&large, "<system version=\"1\">\n");
    for (int i = 0; i < 10000; i++) {
        char cpu[64];
        snprintf(cpu, sizeof(cpu), "<cpu numaid=\"%d\"/>\n", i);
        large_add(&large, cpu);
    }
    assert_large(&large, 2 + 4096, "more than 4096 <cpu>");
}

/* As many devices, links and equal names as there may be elements, whatever comes of it. */
static void case_full_files(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct large large = {0};
        const double start = now();
        large_add(&large, BEGIN "\n");
        if (kind == 1)
            large_add(&large, "<pci busid=\"0000:00:00.0\"><gpu dev=\"0\" sm=\"90\">\n");
        if (kind == 2)
            large_add(&large, "<pci busid=\"0000:00:00.0\" class=\"0x030000\"/><nic>\n");
        for (int i = 0; i < 60000; i++) {
            char element[120];
            if (kind == 0)
                snprintf(element, sizeof(element),
                         "<pci busid=\"%04x:%02x:00.0\" class=\"0x030000\"/>\n", i >> 8, i & 0xff);
            else if (kind == 1)
                snprintf(element, sizeof(element),
                         "<nvlink target=\"fffffff:ffff:ff\" count=\"1\" tclass=\"0x068000\"/>\n");
            else
                snprintf(element, sizeof(element), "<net name=\"eth0\" dev=\"%d\"/>\n", i);
            large_add(&large, element);
        }
        large_add(&large, kind == 1   ? "</gpu></pci></cpu></system>"
                          : kind == 2 ? "</nic></cpu></system>"
                                      : "</cpu></system>");
        struct tess_topology *t = nccl_read(large.text, large.bytes, NULL, NULL);
        char *text = NULL;
        assert_non_null(t);
        assert_int_equal(t->device_count, kind == 0 ? 60000 : 1);
        assert_int_equal(tess_topology_write_nccl(t, 0, &text), TESS_OK);
        free(text);
        tess_topology_free(t);
        free(large.text);
        assert_true(now() - start < SECONDS_MAX);
    }
}

/* Present under a sanitizer: its reports go to the given descriptor instead of stderr. */
void __sanitizer_set_report_fd(void *fd) __attribute__((weak));

static int real_stderr;

static int set_up(void **state)
{
    (void)state;
    real_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    if (__sanitizer_set_report_fd)
        __sanitizer_set_report_fd((void *)(intptr_t)real_stderr);
    return real_stderr < 0;
}

/* Thousands of refusals would bury what matters: during a case stderr leads nowhere. */
static int mute(void **state)
{
    (void)state;
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDERR_FILENO) < 0)
        return -1;
    return close(null);
}

static int unmute(void **state)
{
    (void)state;
    return dup2(real_stderr, STDERR_FILENO) < 0;
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_the_good_file_is_good),
        cmocka_unit_test(case_wrong_files),
        cmocka_unit_test(case_devices_of_one_number),
        cmocka_unit_test_setup_teardown(case_cut_at_every_byte, mute, unmute),
        cmocka_unit_test_setup_teardown(case_changed_at_every_byte, mute, unmute),
        cmocka_unit_test(case_deep),
        cmocka_unit_test(case_a_million_attributes),
        cmocka_unit_test(case_long_words),
        cmocka_unit_test(case_many_elements),
        cmocka_unit_test(case_full_files),
    };
    return cmocka_run_group_tests(cases, set_up, NULL);
}
