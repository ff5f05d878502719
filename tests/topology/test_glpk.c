/*
 * The bound of sets of rings against GLPK: linear programming over all (n-1)! rings, written out
 * link by link, on machines built by hand, random ones and those of machines/.
 *
 * Only this test uses GLPK. The search has a simplex method of its own: its programs have one or
 * two hundred rows, and columns are generated on demand. It gives the same bits on every machine,
 * counts its steps and needs no library.
 */
#include "look.h"
#include "machines.h"
#include "rings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <glpk.h>

#include <cmocka.h>

#define DEVICES_MAX 8

struct programme {
    const struct tess_routes *routes;
    glp_prob *glpk;
    int32_t order[DEVICES_MAX];
    int *row;      /* [links + 1] from 1, as GLPK counts */
    double *value; /* [links + 1] */
    double *uses;  /* [links] */
};

/* The ring as a column: how often it uses each link. */
static void add_column(struct programme *programme)
{
    const struct tess_routes *routes = programme->routes;
    int32_t count = routes->device_count;
    int length = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_route *route =
            &routes->route[programme->order[i] * count + programme->order[(i + 1) % count]];
        if (route->kind == TESS_PATH_NONE)
            return;
    }
    memset(programme->uses, 0, (size_t)routes->topology->link_count * sizeof(double));
    for (int32_t i = 0; i < count; i++) {
        const struct tess_route *route =
            &routes->route[programme->order[i] * count + programme->order[(i + 1) % count]];
        for (int32_t k = 0; k < route->link_count; k++)
            programme->uses[routes->link[route->first + k]]++;
    }
    for (int32_t link = 0; link < routes->topology->link_count; link++) {
        if (programme->uses[link] > 0) {
            programme->row[++length] = link + 1;
            programme->value[length] = programme->uses[link];
        }
    }
    int column = glp_add_cols(programme->glpk, 1);
    glp_set_col_bnds(programme->glpk, column, GLP_LO, 0, 0);
    glp_set_obj_coef(programme->glpk, column, 1);
    glp_set_mat_col(programme->glpk, column, length, programme->row, programme->value);
}

static void add_columns(struct programme *programme, int32_t depth, uint32_t left)
{
    if (!left)
        add_column(programme);
    for (int32_t i = 0; i < DEVICES_MAX; i++) {
        if (left >> i & 1) {
            programme->order[depth] = i;
            add_columns(programme, depth + 1, left & ~(1u << i));
        }
    }
}

static double glpk_bound(const struct tess_routes *routes)
{
    const struct tess_topology *topology = routes->topology;
    size_t links = (size_t)topology->link_count;
    struct programme programme = {.routes = routes, .glpk = glp_create_prob()};
    programme.row = malloc((links + 1) * sizeof(*programme.row));
    programme.value = malloc((links + 1) * sizeof(*programme.value));
    programme.uses = malloc((links + 1) * sizeof(*programme.uses));
    assert_true(programme.row && programme.value && programme.uses);
    glp_set_obj_dir(programme.glpk, GLP_MAX);
    glp_add_rows(programme.glpk, topology->link_count);
    for (int32_t link = 0; link < topology->link_count; link++)
        glp_set_row_bnds(programme.glpk, link + 1, GLP_UP, 0, topology->link[link].gbs);
    add_columns(&programme, 1, ((1u << routes->device_count) - 1) & ~1u);
    glp_smcp how;
    glp_init_smcp(&how);
    how.msg_lev = GLP_MSG_OFF;
    assert_int_equal(glp_simplex(programme.glpk, &how), 0);
    double bound = glp_get_obj_val(programme.glpk);
    glp_delete_prob(programme.glpk);
    free(programme.row);
    free(programme.value);
    free(programme.uses);
    return bound;
}

/* 1e-6: GLPK's own tolerance is 1e-7 of a capacity. */
static void compare(struct tess_topology *topology)
{
    struct rings rings = rings_find(topology, TESS_RINGS_MAX);
    double bound = glpk_bound(&rings.routes);
    rings_near(rings.found.bound_gbs, bound);
    assert_true(rings.found.total_gbs <= bound * (1 + 1e-6));
    rings_drop(&rings);
}

static void case_known_machines(void **state)
{
    (void)state;
    compare(machine_dgx1v());
    compare(machine_p100());
    compare(machine_h100_bridges());
    compare(machine_epyc_hives());
    compare(machine_nvswitch(8));
    compare(machine_two_sockets(5, 3));
    compare(machine_all_to_all(4));
    compare(machine_all_to_all(7));
    compare(machine_all_to_all(8));
    compare(machine_square());
    compare(machine_pairs());
    compare(machine_cluster(4, 2));
    compare(machine_three_numa());
}

static void case_random_machines(void **state)
{
    (void)state;
    for (unsigned seed = 1000; seed < 1200; seed++)
        compare(machine_random(seed, 3 + (int)(seed % 4)));
    for (unsigned seed = 1200; seed < 1220; seed++)
        compare(machine_random(seed, 7 + (int)(seed % 2)));
}

static void compare_machine(const char *name, struct tess_topology *topology)
{
    (void)name;
    if (topology->device_count > 1 && topology->device_count <= DEVICES_MAX)
        compare(topology);
    else
        tess_topology_free(topology);
}

static void case_real_machines(void **state)
{
    (void)state;
    look_each_machine(compare_machine);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_known_machines),
        cmocka_unit_test(case_random_machines),
        cmocka_unit_test(case_real_machines),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
