/* See look.h. */
#include "look.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tessera/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int32_t look_node(const struct tess_topology *topology, const char *name)
{
    for (int32_t i = 0; i < topology->node_count; i++)
        if (strcmp(topology->node[i].name, name) == 0)
            return i;
    fail_msg("there is no node %s", name);
    return -1;
}

static double look_one_way(const struct tess_topology *topology, int32_t from, int32_t to)
{
    double gbs = 0;
    for (int32_t i = 0; i < topology->link_count; i++)
        if (topology->link[i].from == from && topology->link[i].to == to)
            gbs += topology->link[i].gbs;
    return gbs;
}

double look_gbs(const struct tess_topology *topology, const char *a, const char *b)
{
    int32_t from = look_node(topology, a), to = look_node(topology, b);
    double there = look_one_way(topology, from, to), back = look_one_way(topology, to, from);
    assert_true(there >= back && there <= back);
    return there;
}

const char *look_beside(const struct tess_topology *topology, const char *name,
                        enum tess_node_kind kind)
{
    int32_t from = look_node(topology, name), found = -1, count = 0;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->from == from && topology->node[link->to].kind == kind && link->to != found) {
            found = link->to;
            count++;
        }
    }
    return count == 1 ? topology->node[found].name : "";
}

struct look_counts look_count(const struct tess_topology *topology)
{
    int32_t count[TESS_NODE_KIND_COUNT] = {0};
    for (int32_t i = 0; i < topology->node_count; i++)
        count[topology->node[i].kind]++;
    return (struct look_counts){
        .devices = count[TESS_NODE_DEVICE],
        .pci = count[TESS_NODE_PCI],
        .nvswitches = count[TESS_NODE_NVSWITCH],
        .cpus = count[TESS_NODE_CPU],
        .nics = count[TESS_NODE_NIC],
        .nets = count[TESS_NODE_NET],
    };
}

struct tess_topology *look_read(tess_topology_reader *read, const char *name, const char *text,
                                size_t bytes, const struct tess_topology_options *options)
{
    char *exact = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    struct tess_topology *topology = tess_topology_new();
    assert_non_null(topology);
    enum tess_status status = read(name, exact, bytes, options, topology);
    free(exact);
    if (status == TESS_OK) {
        assert_true(topology->device_count > 0);
        return topology;
    }
    tess_topology_free(topology);
    assert_int_equal(status, TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), name));
    return NULL;
}

void look_refused(tess_topology_reader *read, const char *name, const char *text,
                  const struct tess_topology_options *options, const char *part)
{
    assert_null(look_read(read, name, text, strlen(text), options));
    if (!strstr(tess_log_last_error(), part))
        fail_msg("'%s' was expected in '%s'", part, tess_log_last_error());
}

/* ---- hostile input -------------------------------------------------------------------------- */

#define LOOK_TEXT_MAX 65536

static struct tess_rng_key look_key;
static uint64_t look_drawn;

static size_t look_draw(size_t n)
{
    return tess_rng_word(look_key, look_drawn++, 0) % n;
}

static void look_mutate(char *text, size_t *length, const char *const *piece, int pieces)
{
    size_t at = look_draw(*length + 1), left = *length - at;
    size_t cut = left > 0 ? look_draw(left < 40 ? left : 40) : 0;
    const char *put = piece[look_draw((size_t)pieces)];
    size_t put_length = strlen(put);
    switch (look_draw(5)) {
    case 0: /* one byte */
        if (left > 0)
            text[at] = (char)look_draw(256);
        break;
    case 1: /* bytes removed */
        memmove(text + at, text + at + cut, left - cut);
        *length -= cut;
        break;
    case 2: /* a stretch repeated */
        if (*length + cut <= LOOK_TEXT_MAX) {
            memmove(text + at + cut, text + at, left);
            *length += cut;
        }
        break;
    default: /* a piece put in, or in the place of what was there */
        if (look_draw(2) == 0 && left >= put_length) {
            memcpy(text + at, put, put_length);
        } else if (*length + put_length <= LOOK_TEXT_MAX) {
            memmove(text + at + put_length, text + at, left);
            memcpy(text + at, put, put_length);
            *length += put_length;
        }
    }
}

static void look_quickly(tess_topology_reader *read, const char *text, size_t length)
{
    double from_s = tess_clock_thread_s();
    tess_topology_free(look_read(read, "hostile.txt", text, length, NULL));
    /* Hundreds of times what the longest takes, for sanitizers. */
    if (tess_clock_thread_s() - from_s > 5)
        fail_msg("%zu bytes took more than 5 s", length);
}

void look_hostile(tess_topology_reader *read, const char *text, const char *const *piece,
                  int pieces, int tries)
{
    int was = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_true(was >= 0 && null >= 0);
    look_key = tess_rng_key(6, TESS_RNG_TEST, 0);
    look_drawn = 0;
    const char *more = getenv("TESSERA_FUZZ_TRIES");
    tries = more ? atoi(more) : tries;
    size_t bytes = strlen(text);
    char *mutant = malloc(LOOK_TEXT_MAX);
    assert_non_null(mutant);
    assert_true(bytes < LOOK_TEXT_MAX);
    dup2(null, STDERR_FILENO);
    for (size_t length = 0; length <= bytes; length++)
        look_quickly(read, text, length);
    for (int i = 0; i < tries; i++) {
        size_t length = bytes;
        memcpy(mutant, text, bytes);
        for (size_t changes = 1 + look_draw(4); changes > 0; changes--)
            look_mutate(mutant, &length, piece, pieces);
        look_quickly(read, mutant, length);
    }
    dup2(was, STDERR_FILENO);
    close(was);
    close(null);
    free(mutant);
}

/* ---- files ---------------------------------------------------------------------------------- */

char *look_file(const char *path)
{
    char full[4096], *text = calloc(1, LOOK_TEXT_MAX);
    snprintf(full, sizeof(full), LOOK_FOLDER "/%s", path);
    FILE *file = fopen(full, "rb");
    assert_true(text && file);
    assert_true(fread(text, 1, LOOK_TEXT_MAX - 1, file) < LOOK_TEXT_MAX - 1);
    fclose(file);
    return text;
}

/* ---- machines of machines/ ------------------------------------------------------------------ */

struct tess_topology *look_machine(const char *name)
{
    char path[4096];
    struct tess_topology *topology = NULL;
    snprintf(path, sizeof(path), LOOK_FOLDER "/machines/%s.yaml", name);
    if (tess_topology_read(path, TESS_TOPOLOGY_YAML, NULL, &topology) != TESS_OK)
        fail_msg("%s", tess_log_last_error());
    return topology;
}

void look_each_machine(void (*visit)(const char *name, struct tess_topology *topology))
{
    DIR *folder = opendir(LOOK_FOLDER "/machines");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[256];
        const char *end = strstr(entry->d_name, ".yaml");
        if (!end)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(end - entry->d_name), entry->d_name);
        visit(name, look_machine(name));
    }
    closedir(folder);
}
