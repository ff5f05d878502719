/*
 * The pictures of tessera topo: well-formed for every kind of machine, names of files as text, what
 * limits a ring is marked where it can be read, and AMD's links have their own name.
 */
#include "topo_case.h"
#include "topology/machines.h"

#include <string.h>
#include <unistd.h>

#define SVG_DEPTH 16

/* One tag from behind '<' on, its name in `name`; returns what follows '>', NULL where it is no
 * tag. */
static const char *svg_tag(const char *at, char name[16], bool *closing, bool *empty)
{
    size_t length = 0;
    *closing = *at == '/';
    at += *closing;
    while (length < 15 && ((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9')))
        name[length++] = *at++;
    name[length] = '\0';
    *empty = false;
    while (*at == ' ') {
        at += strspn(at, " ");
        at += strcspn(at, "= />\"");
        if (at[0] != '=' || at[1] != '"')
            return NULL;
        at += 2;
        at += strcspn(at, "\"<");
        if (*at++ != '"')
            return NULL;
    }
    if (*at == '/') {
        *empty = true;
        at++;
    }
    return length > 0 && *at == '>' ? at + 1 : NULL;
}

/* Tags nest, attributes are quoted, entities are XML's own: what any reader of SVG takes. */
static void check_svg(const char *text)
{
    char open[SVG_DEPTH][16], name[16];
    int depth = 0;
    bool closing, empty;
    assert_memory_equal(text, "<svg ", 5);
    while ((text = strpbrk(text, "<&")) != NULL) {
        if (*text == '&') {
            size_t length = strcspn(text, ";");
            if (length > 5 || strchr(text, ';') == NULL)
                fail_msg("no entity: %.40s", text);
            text += length;
            continue;
        }
        const char *begin = text;
        text = svg_tag(text + 1, name, &closing, &empty);
        if (text == NULL)
            fail_msg("no tag: %.60s", begin);
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(name, open[--depth]);
        } else if (!empty) {
            assert_true(depth < SVG_DEPTH);
            memcpy(open[depth++], name, sizeof(name));
        }
        if (depth == 0)
            assert_string_equal(text, "\n");
    }
    assert_int_equal(depth, 0);
}

static void case_picture(void **state)
{
    (void)state;
    assert_int_equal(TOPO("@bridges.yaml", "--svg", "@bridges.svg"), 0);
    char *text = read_file("bridges.svg"), wanted[64];
    check_svg(text);
    for (int i = 0; i < 8; i++) {
        snprintf(wanted, sizeof(wanted), "<title>n0.gpu%d ", i);
        assert_non_null(strstr(text, wanted));
        snprintf(wanted, sizeof(wanted), ">%d</text>", i);
        assert_non_null(strstr(text, wanted));
    }
    assert_non_null(strstr(text, "class=\"bad\" text-anchor=\"middle\">22 GB/s</text>"));
    assert_non_null(strstr(text, "2 rings at once"));
    assert_non_null(strstr(text, "prefers-color-scheme:dark"));
    free(text);
    /* Every kind of machine: alone, many, with a network, a large cluster. */
    static const char *const machines[] = {
        "gpu:1",
        "gpu:16 nvlink:switch sm:90 nic:4",
        "node:2 numa:2 gpu:2 nvlink:mesh:4",
        "gpu:72 nvlink:switch sm:100",
        "rack:4 node:2 rank:1",
        "rack:40 node:20 gpu:8",
    };
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        assert_int_equal(TOPO("--machine", machines[i], "--svg", "@any.svg"), 0);
        text = read_file("any.svg");
        check_svg(text);
        /* Of a large cluster one host of a kind is drawn with its links' capacities. */
        if (strncmp(machines[i], "rack:40", 7) == 0) {
            assert_non_null(strstr(text, ">n0, and 799 like it</text>"));
            assert_non_null(strstr(text, "<title>n0.gpu7 "));
            assert_null(strstr(text, "<title>n1.gpu0 "));
            assert_non_null(strstr(text, ">24</text>"));
        }
        free(text);
    }
}

/* The mark of the slow link is drawn after all arcs, so that none crosses its text. */
static void case_marks(void **state)
{
    (void)state;
    write_file("slow.txt", "     GPU0 GPU1 GPU2\n"
                           "GPU0 X    NV1  NV2\n"
                           "GPU1 NV1  X    NV2\n"
                           "GPU2 NV2  NV2  X\n");
    assert_int_equal(TOPO("@slow.txt", "--svg", "@slow.svg"), 0);
    char *text = read_file("slow.svg");
    const char *mark = strstr(text, "class=\"pill\"");
    assert_non_null(mark);
    assert_null(strstr(mark, "<title>gpu0 - gpu2"));
    assert_null(strstr(mark, "<title>gpu1 - gpu2"));
    assert_non_null(strstr(text, "<title>gpu1 - gpu2"));
    free(text);
}

/* Names come from files: they are text in a picture whatever they hold. */
static void case_names(void **state)
{
    char path[PATH_BYTES];
    (void)state;
    write_file("names.conf", "SwitchName=a<b>&\"c Nodes=x&y,<script>\n");
    assert_int_equal(TOPO("--file", path_of("names.conf", path), "--svg", "@names.svg"), 0);
    char *text = read_file("names.svg");
    check_svg(text);
    assert_non_null(strstr(text, "x&amp;y"));
    assert_null(strstr(text, "<script"));
    free(text);
}

/* The height of a text that ends at `at`. */
static double svg_y(const char *page, const char *at)
{
    while (at > page && strncmp(at, " y=\"", 4) != 0)
        at--;
    return strtod(at + 4, NULL);
}

/* A dead NVLink is marked; its rate is above the mark, not below. */
static void case_dead_link(void **state)
{
    (void)state;
    write_file("h100x3.txt", "     GPU0 GPU1 GPU2\n"
                             "GPU0 X    NV17 NV17\n"
                             "GPU1 NV17 X    NV18\n"
                             "GPU2 NV17 NV18 X\n");
    assert_int_equal(TOPO("@h100x3.txt", "--svg", "@dead.svg"), 0);
    char *text = read_file("dead.svg");
    const char *rate = strstr(text, ">350.2</text>"), *mark = strstr(text, ">17 of 18</text>");
    assert_non_null(rate);
    assert_non_null(mark);
    assert_true(svg_y(text, rate) + 14 < svg_y(text, mark));
    free(text);
}

/* AMD's links have their own name, and rccl's figures. */
static void case_xgmi(void **state)
{
    (void)state;
    write_file("mi300x.txt", "=== Link Type between two GPUs ===\n"
                             "     GPU0 GPU1\nGPU0 0    XGMI\nGPU1 XGMI 0\n");
    assert_int_equal(TOPO("@mi300x.txt", "--mesh", "data:2", "--svg", "@xgmi.svg"), 0);
    static const char *const wanted[] = {"    0     X XGMI1\n",
                                         "XGMI#: so many xGMI links",
                                         "limited by gpu0 -> gpu1 (xGMI, 48 GB/s, used 1x)",
                                         "48 is rccl's figure: it counts 48 of a link's 64 GB/s",
                                         "to 1 over xGMI (data 0-1)",
                                         "  xGMI     gpu0 -> gpu1"};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (strstr(spawn.out, wanted[i]) == NULL)
            fail_msg("no '%s' in:\n%s", wanted[i], spawn.out);
    assert_null(strstr(spawn.out, "NVLink"));
    char *text = read_file("xgmi.svg");
    assert_non_null(strstr(text, ">xGMI</text>"));
    assert_null(strstr(text, "NVLink"));
    free(text);
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    write_machine("bridges.yaml", machine_h100_bridges());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_picture), cmocka_unit_test(case_marks),
        cmocka_unit_test(case_names),   cmocka_unit_test(case_dead_link),
        cmocka_unit_test(case_xgmi),
    };
    return cmocka_run_group_tests_name("topo_svg", tests, set_up, tear_down);
}
