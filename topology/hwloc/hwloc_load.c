/*
 * Loads a text into libhwloc. hwloc does not check its files: a well-formed one without sense ends
 * the process (2.9 reads through null pointers, and asserts), so a child loads it first, and what
 * ends the child is refused. The child is alone in its copy of the process, has 20 s of processor
 * time, and prints nothing.
 */
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/hwloc/hwloc_machine.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc/distances.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD_CPU_S 20

static bool load_xml(const char *text, size_t bytes, hwloc_topology_t *hwloc_out)
{
    hwloc_topology_t hwloc;
    if (hwloc_topology_init(&hwloc) != 0)
        return false;
    if (hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
        hwloc_topology_set_xmlbuffer(hwloc, text, (int)bytes) != 0 ||
        hwloc_topology_load(hwloc) != 0) {
        hwloc_topology_destroy(hwloc);
        return false;
    }
    *hwloc_out = hwloc;
    return true;
}

/* All uses of a topology that read more than one object. */
static bool load_use(const char *text, size_t bytes)
{
    static const char *const name[] = {"NVLinkBandwidth", "XGMIBandwidth"};
    hwloc_topology_t hwloc;
    if (!load_xml(text, bytes, &hwloc))
        return false;
    hwloc_topology_check(hwloc);
    for (int i = 0; i < 2; i++) {
        struct hwloc_distances_s *matrix = NULL;
        unsigned count = 1;
        if (hwloc_distances_get_by_name(hwloc, name[i], &count, &matrix, 0) == 0 && count > 0 &&
            matrix)
            hwloc_distances_release(hwloc, matrix);
    }
    hwloc_topology_destroy(hwloc);
    return true;
}

/* In the child. One byte in the pipe means success. */
static void load_child(int answer, const char *text, size_t bytes)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU};
    const struct rlimit none = {0, 0}, cpu = {LOAD_CPU_S, LOAD_CPU_S};
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        signal(fatal[i], SIG_DFL);
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_CPU, &cpu);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    char good = 1;
    if (load_use(text, bytes) && write(answer, &good, 1) == 1)
        _exit(0);
    _exit(1);
}

static enum tess_status load_trial(const char *name, const char *text, size_t bytes)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        TESS_FAIL(TESS_ERR_IO, "%s: no pipe to try it: %s", name, strerror(errno));
    pid_t child = fork();
    if (child == 0)
        load_child(ends[1], text, bytes);
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        TESS_FAIL(TESS_ERR_IO, "%s: no process to try it: %s", name, strerror(errno));
    }
    char good = 0;
    ssize_t got;
    do
        got = read(ends[0], &good, 1);
    while (got < 0 && errno == EINTR);
    close(ends[0]);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (got == 1 && good)
        return TESS_OK;
    return tess__lines_fail(name, 0,
                            "hwloc %x.%x cannot load it; a file that `lstopo --of xml` of hwloc 2 "
                            "has written was expected",
                            hwloc_get_api_version() >> 16, hwloc_get_api_version() >> 8 & 0xff);
}

enum tess_status tess__hwloc_load(const char *name, const char *text, size_t bytes,
                                  hwloc_topology_t *hwloc_out)
{
    char *copy = malloc(bytes + 1); /* hwloc needs a 0 at the end, and counts it */
    if (!copy)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for its text", name);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    enum tess_status status = load_trial(name, copy, bytes + 1);
    if (status == TESS_OK && !load_xml(copy, bytes + 1, hwloc_out))
        status =
            tess_fail(TESS_ERR_MEMORY, "%s: hwloc could load it in a trial and not again", name);
    free(copy);
    return status;
}
