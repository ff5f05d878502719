/*
 * Binding: what is chosen on a machine of our own, with GPUs, as hwloc's XML; and what becomes of
 * the threads of the machine that the tests run on. Each of the latter in a process of its own, as
 * a process looks at its machine once.
 */
#include "tessera/log.h"
#include "topology/hwloc/hwloc_machine.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- chosen --------------------------------------------------------------------------------- */

struct page {
    char text[8192];
    size_t used;
    int objects;
};

TESS_PRINTF(2, 3) static void add(struct page *page, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    page->used +=
        (size_t)vsnprintf(page->text + page->used, sizeof(page->text) - page->used, format, list);
    va_end(list);
    assert_true(page->used < sizeof(page->text));
}

/* <object type=.. of these CPUs and nodes, whose tag goes on. */
static void add_object(struct page *page, const char *type, int number, unsigned cpus,
                       unsigned nodes)
{
    add(page, "<object type=\"%s\" os_index=\"%d\" gp_index=\"%d\"", type, number, ++page->objects);
    for (int complete = 0; complete < 2; complete++)
        add(page, " %scpuset=\"0x%08x\" %snodeset=\"0x%08x\"", complete ? "complete_" : "", cpus,
            complete ? "complete_" : "", nodes);
}

static void add_gpu(struct page *page, int bus)
{
    add(page,
        "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" "
        "pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.000000\"/>\n",
        ++page->objects, bus);
}

/* Package p: NUMA node p, cores of CPUs 2p, 2p + 4 and 2p + 1, 2p + 5, GPUs at buses 17 and 18, or
 * 87 and 88. */
static void add_package(struct page *page, int p)
{
    unsigned node = 1u << p, first = 0x11u << 2 * p;
    add_object(page, "Package", p, first | first << 1, node);
    add(page, ">\n");
    add_object(page, "NUMANode", p, first | first << 1, node);
    add(page, " local_memory=\"1000000\"/>\n");
    for (int core = 0; core < 2; core++) {
        add_object(page, "Core", core, first << core, node);
        add(page, ">\n");
        for (int thread = 0; thread < 2; thread++) {
            int cpu = 2 * p + core + 4 * thread;
            add_object(page, "PU", cpu, 1u << cpu, node);
            add(page, "/>\n");
        }
        add(page, "</object>\n");
    }
    int bus = p == 0 ? 0x10 : 0x80;
    add(page,
        "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
        "bridge_pci=\"0000:[%02x-%02x]\">\n",
        ++page->objects, bus, bus + 15);
    add_gpu(page, bus + 7);
    add_gpu(page, bus + 8);
    add(page, "</object>\n</object>\n");
}

static struct page machine(void)
{
    struct page page = {.used = 0};
    add(&page, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
               "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
    add_object(&page, "Machine", 0, 0xff, 3);
    add(&page, " allowed_cpuset=\"0x000000ff\" allowed_nodeset=\"0x00000003\">\n");
    add_package(&page, 0);
    add_package(&page, 1);
    add(&page, "</object>\n</topology>\n");
    return page;
}

static hwloc_topology_t load(void)
{
    struct page page = machine();
    hwloc_topology_t hwloc;
    assert_int_equal(hwloc_topology_init(&hwloc), 0);
    assert_int_equal(hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_ALL), 0);
    assert_int_equal(hwloc_topology_set_xmlbuffer(hwloc, page.text, (int)page.used + 1), 0);
    assert_int_equal(hwloc_topology_load(hwloc), 0);
    return hwloc;
}

/* "CPUs | text", or the text alone where nothing is chosen. */
static void expect(hwloc_topology_t hwloc, const char *own, struct tess__bind_request request,
                   const char *expected)
{
    char text[TESS_BIND_TEXT], list[64] = "", whole[200];
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc(), cpus = hwloc_bitmap_alloc();
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    hwloc_bitmap_list_sscanf(allowed, own);
    bool chosen = tess__bind_choose(hwloc, allowed, &request, cpus, nodes, text);
    if (chosen)
        hwloc_bitmap_list_snprintf(list, sizeof(list), cpus);
    snprintf(whole, sizeof(whole), "%s%s%s", list, chosen ? " | " : "", text);
    hwloc_bitmap_free(allowed);
    hwloc_bitmap_free(cpus);
    hwloc_bitmap_free(nodes);
    assert_string_equal(whole, expected);
}

static void case_cores(void **state)
{
    (void)state;
    hwloc_topology_t hwloc = load();
    struct tess__bind_request request = {.at = 0, .count = 1};
    expect(hwloc, "0-7", request, "0-7 | cores 0-3, NUMA 0-1");
    request = (struct tess__bind_request){.at = 1, .count = 2};
    expect(hwloc, "0-7", request, "2-3,6-7 | cores 2-3, NUMA 1");
    request = (struct tess__bind_request){.at = 2, .count = 4};
    expect(hwloc, "0-7", request, "2,6 | cores 2, NUMA 1");
    request = (struct tess__bind_request){.at = 8, .count = 9};
    expect(hwloc, "0-7", request, "3,7 | cores 3, NUMA 1");
    hwloc_topology_destroy(hwloc);
}

/* Ranks 0 and 3 are beside the second package's GPUs, 1 and 2 beside the first's. */
static void case_gpus(void **state)
{
    (void)state;
    hwloc_topology_t hwloc = load();
    const char *const bus[] = {"0000:87:00.0", "00000000:18:00.0", "0000:17:00.0",
                               "00000000:88:00.0"};
    const char *const expected[] = {"2,6 | cores 2, NUMA 1", "0,4 | cores 0, NUMA 0",
                                    "1,5 | cores 1, NUMA 0", "3,7 | cores 3, NUMA 1"};
    for (int32_t at = 0; at < 4; at++)
        expect(hwloc, "0-7", (struct tess__bind_request){at, 4, bus}, expected[at]);
    expect(hwloc, "0-7", (struct tess__bind_request){0, 1, bus}, "2-3,6-7 | cores 2-3, NUMA 1");
    /* hwloc has no such GPU: nothing is preferred. */
    const char *const none[] = {"0000:99:00.0", NULL};
    expect(hwloc, "0-7", (struct tess__bind_request){1, 2, none}, "2-3,6-7 | cores 2-3, NUMA 1");
    hwloc_topology_destroy(hwloc);
}

/* A process that was started on a part of the machine. */
static void case_narrowed(void **state)
{
    (void)state;
    hwloc_topology_t hwloc = load();
    const char *const bus[] = {"0000:87:00.0", "0000:17:00.0"};
    struct tess__bind_request request = {.at = 1, .count = 2};
    expect(hwloc, "0-1", request, "1 | cores 1, NUMA 0"); /* enough for two ranks: shared out */
    expect(hwloc, "3,7", request, "not bound: started on 1 of the cores already");
    request.bus = bus;
    expect(hwloc, "2,6", request, "not bound: started on 1 of the cores already");
    request.at = 0;
    expect(hwloc, "0-2", request,
           "2 | cores 2, NUMA 1"); /* the one of them that is beside the GPU */
    hwloc_topology_destroy(hwloc);
}

/* ---- bound ---------------------------------------------------------------------------------- */

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Runs a case of its own in a process; 77: it cannot be run here. */
static void in_process(int (*run)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(run());
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static cpu_set_t affinity(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        abort();
    return set;
}

struct place {
    int32_t at, count;
    bool bound, kept, again;
    cpu_set_t own, after;
    char text[TESS_BIND_TEXT];
    pthread_barrier_t *both;
};

/* A rank as a thread: bound, moved off its cores from outside, and bound again. */
static void *place_run(void *context)
{
    struct place *self = context;
    cpu_set_t all = affinity();
    self->bound = tess_bind_place(self->at, self->count, NULL, self->text);
    self->own = affinity();
    pthread_barrier_wait(self->both);
    sched_setaffinity(0, sizeof(all), &all);
    self->kept = tess_bind_check();
    self->after = affinity();
    self->again = tess_bind_check();
    return NULL;
}

static int run_threads(void)
{
    cpu_set_t all = affinity();
    int cpus = CPU_COUNT(&all);
    if (cpus < 2)
        return 77;
    pthread_t thread[2];
    pthread_barrier_t both;
    struct place place[2];
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
    for (int i = 0; i < 2; i++) {
        place[i] = (struct place){.at = i, .count = 2, .both = &both};
        CHECK(pthread_create(&thread[i], NULL, place_run, &place[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    cpu_set_t common;
    CPU_AND(&common, &place[0].own, &place[1].own);
    CHECK(CPU_COUNT(&common) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(place[i].bound && strncmp(place[i].text, "cores ", 6) == 0);
        CHECK(CPU_COUNT(&place[i].own) >= 1 && CPU_COUNT(&place[i].own) < cpus);
        CHECK(!place[i].kept && CPU_EQUAL(&place[i].own, &place[i].after) && place[i].again);
    }
    cpu_set_t still = affinity(); /* this thread was never bound */
    CHECK(tess_bind_check() && CPU_EQUAL(&still, &all));
    return 0;
}

static void case_threads(void **state)
{
    (void)state;
    in_process(run_threads);
}

/* Another place than before, on cores that the first one did not leave to the thread. */
static int run_again(void)
{
    cpu_set_t all = affinity(), first, second;
    char text[TESS_BIND_TEXT];
    if (CPU_COUNT(&all) < 2)
        return 77;
    CHECK(tess_bind_place(0, 2, NULL, text));
    first = affinity();
    CHECK(tess_bind_place(1, 2, NULL, text));
    second = affinity();
    CPU_AND(&first, &first, &second);
    CHECK(CPU_COUNT(&first) == 0);
    CHECK(!tess_bind_place(2, 2, NULL, text) && strstr(text, "no such place"));
    cpu_set_t now = affinity();
    CHECK(CPU_EQUAL(&now, &second) && tess_bind_check());
    return 0;
}

static void case_again(void **state)
{
    (void)state;
    in_process(run_again);
}

/* Started on one CPU, as mpirun does: it stays there. */
static int run_started_bound(void)
{
    cpu_set_t all = affinity(), one;
    char text[TESS_BIND_TEXT];
    int last = CPU_SETSIZE - 1;
    if (CPU_COUNT(&all) < 2)
        return 77;
    while (!CPU_ISSET(last, &all))
        last--;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
    CHECK(!tess_bind_place(0, 2, NULL, text) && strstr(text, "started on 1"));
    cpu_set_t now = affinity();
    CHECK(CPU_EQUAL(&now, &one) && tess_bind_check());
    return 0;
}

static void case_started_bound(void **state)
{
    (void)state;
    in_process(run_started_bound);
}

/* hwloc would report success, and do nothing. */
static int run_foreign(void)
{
    char text[TESS_BIND_TEXT], path[] = "/tmp/tessera_bind_XXXXXX";
    struct page page = machine();
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, page.text, page.used) == (ssize_t)page.used);
    close(fd);
    setenv("HWLOC_XMLFILE", path, 1);
    cpu_set_t before = affinity();
    bool bound = tess_bind_place(0, 2, NULL, text);
    cpu_set_t after = affinity();
    unlink(path);
    CHECK(!bound && strstr(text, "another machine") && CPU_EQUAL(&before, &after));
    CHECK(tess_bind_check());
    return 0;
}

static void case_foreign(void **state)
{
    (void)state;
    in_process(run_foreign);
}

static int machine_devices(bool io)
{
    hwloc_topology_t hwloc;
    int count = 0;
    assert_int_equal(tess__hwloc_machine(io, &hwloc), TESS_OK);
    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(hwloc, pci));)
        count++;
    hwloc_topology_destroy(hwloc);
    return count;
}

/* PCI devices are looked for where they are asked for. */
static void case_devices(void **state)
{
    (void)state;
    assert_int_equal(machine_devices(false), 0);
    if (access("/sys/bus/pci/devices/0000:00:00.0/config", R_OK) != 0)
        skip();
    assert_true(machine_devices(true) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_cores),    cmocka_unit_test(case_gpus),
        cmocka_unit_test(case_narrowed), cmocka_unit_test(case_threads),
        cmocka_unit_test(case_again),    cmocka_unit_test(case_started_bound),
        cmocka_unit_test(case_foreign),  cmocka_unit_test(case_devices),
    };
    unsetenv("HWLOC_XMLFILE");
    return cmocka_run_group_tests_name("bind", tests, NULL, NULL);
}
