/*
 * tess_topology_read: files into memory, and to the reader of the format that is given or
 * look like.
 */
#include "nccl_fixture.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/tessera_test_read_XXXXXX";

static int set_up(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

static enum tess_status read_text(const char *text, enum tess_topology_format format,
                                  struct tess_topology **topology_out)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, strlen(text), out), strlen(text));
    assert_int_equal(fclose(out), 0);
    return tess_topology_read(path, format, NULL, topology_out);
}

static void case_formats(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum tess_topology_format format;
    } row[] = {
        {"<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology>",
         TESS_TOPOLOGY_HWLOC},
        {"<!-- <system> -->\n <topology version=\"2.0\">", TESS_TOPOLOGY_HWLOC},
        {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\n", TESS_TOPOLOGY_SMI},
        {"\x1b[4mGPU0\tGPU1\x1b[0m\n", TESS_TOPOLOGY_SMI},
        {"# GPU0\nSwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_SLURM},
        {"  switchname=s0 Level=0 Nodes=n[0-3]", TESS_TOPOLOGY_SLURM},
        {"BlockName=b0 Nodes=n[0-3]\n", TESS_TOPOLOGY_SLURM},
        {"SWITCHNAME=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_SLURM},
        {"tessera-topology: 1\nnodes:\n  - {name: GPU0}\n", TESS_TOPOLOGY_YAML},
        {"hosts:\n  - name: a\n", TESS_TOPOLOGY_YAML},
        {"\xef\xbb\xbfhosts: 2\n", TESS_TOPOLOGY_YAML},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        assert_int_equal(tess_topology_guess(row[i].text, strlen(row[i].text)), row[i].format);
}

static void case_as_told(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum tess_topology_format format;
        const char *message; /* "": it is read */
    } row[] = {
        {"SwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_AUTO, ""},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n", TESS_TOPOLOGY_AUTO, ""},
        {"tessera-topology: 1\nmachine: gpu:4\n", TESS_TOPOLOGY_AUTO, ""},
        {"<system version=\"1\"></system>", TESS_TOPOLOGY_SLURM, "SwitchName=NAME was expected"},
        {"SwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_SMI, "GPU0"},
        {"SwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_YAML, "tessera-topology"},
        {"SwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_NCCL, "<"},
        {"SwitchName=s0 Nodes=n[0-3]\n", TESS_TOPOLOGY_HWLOC, ":1: "},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct tess_topology *topology;
        const enum tess_status status = read_text(row[i].text, row[i].format, &topology);
        assert_int_equal(status == TESS_OK, row[i].message[0] == '\0');
        if (status != TESS_OK && strstr(tess_log_last_error(), row[i].message) == NULL)
            fail_msg("%s", tess_log_last_error());
        assert_true((topology != NULL) == (status == TESS_OK));
        tess_topology_free(topology);
    }
}

static void case_nccl(void **state)
{
    (void)state;
    struct tess_topology *topology;
    for (const struct nccl_fixture *f = nccl_fixtures; f->name != NULL; f++) {
        assert_int_equal(read_text(f->text, TESS_TOPOLOGY_AUTO, &topology), TESS_OK);
        assert_true(topology->device_count >= 2);
        assert_non_null(topology->device); /* finished */
        tess_topology_free(topology);
    }
    /* XML of no known kind, and an XML declaration: NCCL's reader reports what is wrong. */
    assert_int_equal(read_text("<machine/>", TESS_TOPOLOGY_AUTO, &topology), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), ":1: <machine> at the top"));
    assert_int_equal(read_text("<?xml version=\"1.0\"?><system/>", TESS_TOPOLOGY_AUTO, &topology),
                     TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "NCCL refuses"));
    assert_int_equal(read_text("<!--", TESS_TOPOLOGY_AUTO, &topology), TESS_ERR_DATA);
    assert_int_equal(read_text("<", TESS_TOPOLOGY_AUTO, &topology), TESS_ERR_DATA);
}

static void case_what_cannot_be_read(void **state)
{
    (void)state;
    struct tess_topology *topology;
    assert_int_equal(tess_topology_read("/nowhere/at/all", TESS_TOPOLOGY_AUTO, NULL, &topology),
                     TESS_ERR_IO);
    assert_non_null(strstr(tess_log_last_error(), "/nowhere/at/all: No such file"));
    assert_int_equal(tess_topology_read("/", TESS_TOPOLOGY_AUTO, NULL, &topology), TESS_ERR_IO);
    assert_int_equal(read_text("", TESS_TOPOLOGY_AUTO, &topology), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), ":1: the file is empty"));
    assert_int_equal(tess_topology_read("/dev/zero", TESS_TOPOLOGY_AUTO, NULL, &topology),
                     TESS_ERR_IO);
    assert_non_null(strstr(tess_log_last_error(), "a device or a pipe, not a file"));
    assert_int_equal(tess_topology_read(path, TESS_TOPOLOGY_FORMAT_COUNT, NULL, &topology),
                     TESS_ERR_INTERNAL);
    assert_null(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_formats),
        cmocka_unit_test(case_as_told),
        cmocka_unit_test(case_nccl),
        cmocka_unit_test(case_what_cannot_be_read),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
