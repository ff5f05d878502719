/*
 * The words for parts of a machine in the text and the picture of `tessera topo`: links, paths,
 * hosts, orders. No output.
 */
#include "topology/draw/topo.h"
#include "topology/machine/rates.h"

#include "tessera/log.h"

#include <stdarg.h>
#include <string.h>

#define WORDS_RUNS_MAX 12 /* runs of an order that is too long to print */

double tess__topo_wire(const struct tess_topo_link *link)
{
    if (link->kind == TESS_LINK_NVLINK && link->count > 0)
        return link->count * tess__rate_wire_nvlink(link->gbs / link->count);
    return link->kind == TESS_LINK_PCI ? tess__rate_wire_pci(link->gbs) : link->gbs;
}

const char *tess__topo_label(double gbs, char text[TESS__RATE_TEXT])
{
    return gbs < 1 ? tess__rate_text(gbs, text) : tess__rate_number(gbs, gbs, text);
}

const char *tess__topo_rate(const struct tess__topo *topo, double gbs, char text[TESS__RATE_TEXT])
{
    if (gbs < TESS_GBS_LOCAL)
        return tess__rate_number(gbs, topo->rings.best_single.gbs, text);
    snprintf(text, TESS__RATE_TEXT, "memory");
    return text;
}

const char *tess__topo_link_word(const struct tess_topology *topology,
                                 const struct tess_topo_link *link)
{
    static const char *const word[TESS_LINK_KIND_COUNT] = {
        [TESS_LINK_NVLINK] = "NVLink", [TESS_LINK_C2C] = "C2C",     [TESS_LINK_PCI] = "PCIe",
        [TESS_LINK_SYS] = "SYS",       [TESS_LINK_LOCAL] = "LOCAL", [TESS_LINK_NET] = "network"};
    return tess_topology_gfx(topology, link) > 0 ? "xGMI" : word[link->kind];
}

const char *tess__topo_sm_word(int32_t sm)
{
    static const struct {
        int32_t least;
        const char *word;
    } known[] = {{100, "Blackwell"}, {90, "Hopper"}, {89, "Ada"},    {80, "Ampere"},
                 {75, "Turing"},     {70, "Volta"},  {60, "Pascal"}, {1, ""}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (sm >= known[i].least)
            return known[i].word;
    return "";
}

const char *tess__topo_maker_word(enum tess_cpu_maker maker)
{
    static const char *const word[] = {
        [TESS_CPU_UNKNOWN] = "", [TESS_CPU_INTEL] = "Intel", [TESS_CPU_AMD] = "AMD",
        [TESS_CPU_ARM] = "Arm",  [TESS_CPU_POWER] = "POWER", [TESS_CPU_ZHAOXIN] = "Zhaoxin"};
    return word[maker];
}

/* Readers put the host in front of what is in it, "n3.gpu0", or call its processor by its name. */
const char *tess__topo_host_name(const struct tess_topology *topology, int32_t host,
                                 char text[TESS__TOPO_TEXT])
{
    text[0] = '\0';
    if (topology->host_count < 2)
        return text;
    for (int32_t i = 0; i < topology->node_count; i++) {
        const struct tess_node *node = &topology->node[i];
        const char *point = strrchr(node->name, '.');
        if (node->host != host)
            continue;
        snprintf(text, TESS__TOPO_TEXT, "%.*s",
                 point ? (int)(point - node->name) : (int)strlen(node->name), node->name);
        if (point || node->kind == TESS_NODE_CPU)
            return text;
    }
    snprintf(text, TESS__TOPO_TEXT, "host %d", (int)host);
    return text;
}

const char *tess__topo_cell(const struct tess__topo *topo, int32_t from, int32_t to, char text[8])
{
    const struct tess_route *route = &topo->routes.route[from * topo->routes.device_count + to];
    int32_t links = 0;
    bool xgmi = false;
    for (int32_t k = 0; k < route->link_count && route->kind == TESS_PATH_NVL; k++) {
        const struct tess_topo_link *link =
            &topo->topology->link[topo->routes.link[route->first + k]];
        links = k == 0 || link->count < links ? link->count : links;
        xgmi = tess_topology_gfx(topo->topology, link) > 0;
    }
    if (route->kind == TESS_PATH_LOC)
        snprintf(text, 8, "X");
    else if (links > 0)
        snprintf(text, 8, xgmi ? "XGMI%d" : "NV%d", (int)(links % (xgmi ? 1000 : 100000)));
    else
        snprintf(text, 8, "%s", tess_path_word(route->kind));
    return text;
}

const char *tess__topo_narrow_text(const struct tess__topo *topo,
                                   const struct tess__topo_narrow *narrow,
                                   char text[2 * TESS__TOPO_TEXT])
{
    char rate[TESS__RATE_TEXT], alike[48] = "";
    text[0] = '\0';
    if (narrow->link < 0)
        return text;
    const struct tess_topo_link *link = &topo->topology->link[narrow->link];
    if (link->kind == TESS_LINK_LOCAL) {
        snprintf(text, 2 * (size_t)TESS__TOPO_TEXT, "no link: all is inside a processor");
        return text;
    }
    if (narrow->alike > 1)
        snprintf(alike, sizeof(alike), ", and %d like it", (int)narrow->alike - 1);
    snprintf(text, 2 * (size_t)TESS__TOPO_TEXT, "%s -> %s (%s, %s, used %dx)%s",
             topo->topology->node[link->from].name, topo->topology->node[link->to].name,
             tess__topo_link_word(topo->topology, link), tess__rate_text(link->gbs, rate),
             (int)narrow->uses, alike);
    return text;
}

/* Behind the first `used` bytes; returns how many there are then. A number has five digits. */
TESS_PRINTF(3, 4)
static size_t words_print(char text[TESS__TOPO_ORDER], size_t used, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    used += (size_t)vsnprintf(text + used, TESS__TOPO_ORDER - used, format, list);
    va_end(list);
    return used;
}

/* Numbers that follow each other in steps of one, "0..15, 32..47". */
static void words_runs(const struct tess__topo *topo, const int32_t *order, int32_t count,
                       char text[TESS__TOPO_ORDER])
{
    int32_t runs = 0;
    size_t used = 0;
    for (int32_t i = 0, next; i < count; i = next) {
        int32_t first = topo->number[order[i]], last = first;
        for (next = i + 1; next < count && topo->number[order[next]] == last + 1; next++)
            last++;
        if (runs++ == WORDS_RUNS_MAX) {
            used = words_print(text, used, ", ...");
            break;
        }
        used = words_print(text, used, last > first + 1 ? "%s%d..%d" : "%s%d", i > 0 ? ", " : "",
                           (int)first, (int)last);
        if (last == first + 1)
            used = words_print(text, used, ", %d", (int)last);
    }
    words_print(text, used, " (%d devices)", (int)count);
}

const char *tess__topo_order_text(const struct tess__topo *topo, const int32_t *order,
                                  char text[TESS__TOPO_ORDER])
{
    const int32_t count = topo->rings.count;
    if (count > 2 * TESS__TOPO_SHOWN_MAX)
        words_runs(topo, order, count, text);
    size_t used = 0;
    for (int32_t i = 0; i < count && count <= 2 * TESS__TOPO_SHOWN_MAX; i++)
        used = words_print(text, used, "%s%d", i > 0 ? "-" : "", (int)topo->number[order[i]]);
    return text;
}
