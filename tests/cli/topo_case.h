/* What tests of tessera topo share: a folder, files in it, and runs of the program. Included once
 * in each. */
#ifndef TESTS_TOPO_CASE_H
#define TESTS_TOPO_CASE_H

#include "harness/spawn.h"
#include "topology/machine/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define PATH_BYTES 128

static char folder[] = "/tmp/tessera_topo_XXXXXX";
static struct spawn spawn;

/* ---- helpers -------------------------------------------------------------------------------- */

static const char *path_of(const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(name, path), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static char *read_file(const char *name)
{
    char path[PATH_BYTES];
    return spawn_file(path_of(name, path), NULL);
}

/* A machine as a file of our own format; frees it. */
static void write_machine(const char *name, struct tess_topology *machine)
{
    char *text;
    assert_non_null(machine);
    assert_int_equal(tess_topology_write_yaml(machine, &text), TESS_OK);
    write_file(name, text);
    free(text);
    tess_topology_free(machine);
}

/* tessera topo with up to 8 words, NULL after the last; "@name" is a file of the folder. */
static int topo(const char *const *word)
{
    static char path[8][PATH_BYTES];
    char *argv[16] = {"tessera", "topo"};
    for (int i = 0; word[i] != NULL; i++) {
        assert_true(i < 8);
        argv[i + 2] = (char *)(word[i][0] == '@' ? path_of(word[i] + 1, path[i]) : word[i]);
    }
    return spawn_run(&spawn, argv, NULL);
}

#define TOPO(...) topo((const char *const[]){__VA_ARGS__, NULL})

#endif
