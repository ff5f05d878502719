/*
 * What `tessera topo` prints: the machine, the paths between its devices, and its rings with what
 * holds each back.
 */
#include "topology/draw/topo.h"

#include "tessera/check.h"
#include "text/table.h"

#include <string.h>

#define TEXT_RINGS_MAX 12 /* of a set, shown one by one */

/* Shares above this are "the bound": model figures have no more digits than that. */
#define TEXT_SAME 0.9995

/* ---- paths ---------------------------------------------------------------------------------- */

static void text_legend(const bool used[TESS_PATH_KIND_COUNT], bool xgmi, FILE *out)
{
    static const char *const meaning[TESS_PATH_KIND_COUNT] = {
        [TESS_PATH_NVL] = "NV#: so many NVLinks",
        [TESS_PATH_C2C] = "C2C: through the chip's own link",
        [TESS_PATH_PIX] = "PIX: one PCIe switch",
        [TESS_PATH_PXB] = "PXB: several PCIe switches",
        [TESS_PATH_PHB] = "PHB: a processor",
        [TESS_PATH_SYS] = "SYS: between NUMA nodes",
        [TESS_PATH_NET] = "NET: the network",
        [TESS_PATH_NONE] = "NONE: no way"};
    bool first = true;
    for (int kind = 0; kind < TESS_PATH_KIND_COUNT; kind++) {
        if (!used[kind] || !meaning[kind])
            continue;
        fprintf(out, "%s%s", first ? "  " : ", ",
                kind == TESS_PATH_NVL && xgmi ? "XGMI#: so many xGMI links" : meaning[kind]);
        first = false;
    }
    fputc('\n', out);
}

static void text_matrix(const struct tess__topo *topo, FILE *out)
{
    int32_t count = topo->rings.count;
    bool used[TESS_PATH_KIND_COUNT] = {false}, xgmi = false;
    char cell[8], number[TESS__TOPO_SHOWN_MAX][12];
    struct tess__column column[TESS__TOPO_SHOWN_MAX + 1] = {{.title = "", .width = 5, .key = true}};
    struct tess__table table = {.column = column, .count = count + 1};
    _Static_assert(TESS__TOPO_SHOWN_MAX < TESS__TABLE_COLUMNS, "a column for each device");
    if (count < 2 || count > TESS__TOPO_SHOWN_MAX)
        return;
    for (int32_t from = 0; from < count; from++) {
        snprintf(number[from], sizeof(number[from]), "%d", (int)topo->number[from]);
        column[1 + from] = (struct tess__column){.title = number[from], .width = 5};
        tess__table_add(&table, "%s", number[from]);
        for (int32_t to = 0; to < count; to++) {
            tess__table_add(&table, "%s", tess__topo_cell(topo, from, to, cell));
            xgmi = xgmi || strncmp(cell, "XGMI", 4) == 0;
            used[topo->routes.route[from * count + to].kind] = true;
        }
    }
    fprintf(out, "\npaths between devices\n");
    tess__table_print(&table, out);
    text_legend(used, xgmi, out);
}

/* ---- rings ---------------------------------------------------------------------------------- */

static void text_order(const struct tess__topo *topo, const char *what, double gbs,
                       const int32_t *order, FILE *out)
{
    char text[TESS__TOPO_ORDER], rate[TESS__RATE_TEXT];
    fprintf(out, "  %-9s %8s  %s\n", what, tess__topo_rate(topo, gbs, rate),
            tess__topo_order_text(topo, order, text));
}

/*
 * "370.8 is NCCL's figure: it counts 20.6 of an NVLink's 25 GB/s; the wires carry 450", where they
 * differ.
 */
static void text_wire(const struct tess__topo *topo, const struct tess_ring *ring, double wire,
                      const struct tess__topo_narrow *narrow, FILE *out)
{
    char rate[TESS__RATE_TEXT], one[TESS__RATE_TEXT], full[TESS__RATE_TEXT];
    if (narrow->link < 0 || wire <= ring->gbs * 1.001)
        return;
    const struct tess_topo_link *link = &topo->topology->link[narrow->link];
    const bool nvlink = link->kind == TESS_LINK_NVLINK && link->count > 0;
    const int32_t count = nvlink ? link->count : 1;
    fprintf(out, "%21s%s is %s's figure: it counts %s of %s %s %s", "",
            tess__topo_rate(topo, ring->gbs, rate),
            tess_topology_gfx(topo->topology, link) > 0 ? "rccl" : "NCCL",
            tess__topo_rate(topo, link->gbs / count, one), nvlink ? "a link's" : "the link's",
            tess__topo_rate(topo, tess__topo_wire(link) / count, full),
            tess__rate_unit(topo->rings.best_single.gbs));
    fprintf(out, "; the wires carry %s\n", tess__topo_rate(topo, wire, rate));
}

static void text_narrow(const struct tess__topo *topo, const struct tess_ring *ring,
                        const struct tess__topo_narrow *narrow, FILE *out)
{
    char text[2 * TESS__TOPO_TEXT];
    if (narrow->link >= 0)
        fprintf(out, "%21slimited by %s\n", "", tess__topo_narrow_text(topo, narrow, text));
    else if (topo->routed && ring->gbs <= 0)
        fprintf(out, "%21sthere is no way between two that follow each other\n", "");
}

static void text_proof(const struct tess__topo *topo, FILE *out)
{
    const struct tess_rings *rings = &topo->rings;
    const struct tess__topo_orders *orders = &topo->orders;
    char rate[TESS__RATE_TEXT];
    if (rings->optimal)
        fprintf(out, "%21sproved: no order of one ring is faster\n", "");
    else
        fprintf(out, "%21snot proved best; none has more than %s\n", "",
                tess__topo_rate(topo, rings->single_bound_gbs, rate));
    if (orders->count == 0)
        return;
    if (orders->best == orders->count) {
        fprintf(out, "%21sall %lld orders are as fast\n", "", (long long)orders->count);
        return;
    }
    char worst[TESS__TOPO_ORDER];
    fprintf(out, "%21s%lld of %lld orders %s as fast; the worst, %s, has %s\n", "",
            (long long)orders->best, (long long)orders->count, orders->best == 1 ? "is" : "are",
            tess__topo_order_text(topo, orders->worst, worst),
            tess__topo_rate(topo, orders->worst_gbs, rate));
}

static void text_set(const struct tess__topo *topo, FILE *out)
{
    const struct tess_rings *rings = &topo->rings;
    char rate[TESS__RATE_TEXT], bound[TESS__RATE_TEXT];
    if (!topo->routed) {
        fprintf(out, "\nof a cluster of this size one ring is searched, not sets of rings\n");
        return;
    }
    bool reached = rings->total_gbs >= rings->bound_gbs * TEXT_SAME;
    fprintf(out, "\n  at once   %8s  %d ring%s; ", tess__topo_rate(topo, rings->total_gbs, rate),
            (int)rings->ring_count, rings->ring_count == 1 ? "" : "s");
    if (reached)
        fprintf(out, "proved: no set of rings over these paths carries more\n");
    else
        fprintf(out,
                "no set of rings over these paths carries more than %s (%.0f %% of it reached)\n",
                tess__topo_rate(topo, rings->bound_gbs, bound),
                100 * rings->total_gbs / rings->bound_gbs);
    for (int32_t i = 0; i < rings->ring_count && rings->ring_count > 1; i++) {
        char name[24];
        if (i == TEXT_RINGS_MAX) {
            fprintf(out, "%21sand %d more\n", "", (int)(rings->ring_count - i));
            break;
        }
        snprintf(name, sizeof(name), "  ring %d", (int)i + 1);
        text_order(topo, name, rings->ring[i].gbs, rings->ring[i].order, out);
    }
}

/* Channels with the same ring share a line. */
static void text_nccl(const struct tess__topo *topo, const struct tess__nccl_choice *nccl,
                      FILE *out)
{
    char rate[TESS__RATE_TEXT], speed[TESS__RATE_TEXT], text[TESS__TOPO_ORDER];
    bool printed[TESS__NCCL_CHANNELS] = {false};
    size_t bytes = (size_t)topo->rings.count * sizeof(nccl->order[0][0]);
    if (nccl->channels == 0)
        return;
    fprintf(out, "\n  NCCL      %8s  its default (modelled): %d channel%s of %s\n",
            tess__topo_rate(topo, nccl->channels * nccl->speed, rate), (int)nccl->channels,
            nccl->channels == 1 ? "" : "s", tess__topo_rate(topo, nccl->speed, speed));
    for (int32_t i = 0; i < nccl->channels; i++) {
        int32_t alike = 0;
        if (printed[i])
            continue;
        for (int32_t k = i; k < nccl->channels; k++) {
            bool same = memcmp(nccl->order[i], nccl->order[k], bytes) == 0;
            printed[k] |= same;
            alike += same;
        }
        fprintf(out, "%16d of  %s\n", (int)alike,
                tess__topo_order_text(topo, nccl->order[i], text));
    }
}

static void text_rings(const struct tess__topo *topo, FILE *out)
{
    const struct tess_rings *rings = &topo->rings;
    if (rings->count < 2) {
        fprintf(out, "\none device: there is no ring, and nothing to send\n");
        return;
    }
    if (topo->routed && rings->best_single.gbs <= 0) {
        fprintf(out, "\nno ring goes around all devices: some have no way to each other\n");
        return;
    }
    fprintf(out, "\nrings, %s in each direction of the slowest link, sharing counted\n",
            tess__rate_unit(rings->best_single.gbs));
    text_order(topo, "best", rings->best_single.gbs, rings->best_single.order, out);
    text_narrow(topo, &rings->best_single, &topo->best_narrow, out);
    text_wire(topo, &rings->best_single, topo->wire_best, &topo->best_narrow, out);
    text_proof(topo, out);
    if (rings->natural.gbs > 0 || rings->count <= TESS__TOPO_ROUTED_MAX) {
        text_order(topo, "natural", rings->natural.gbs, rings->natural.order, out);
        text_narrow(topo, &rings->natural, &topo->natural_narrow, out);
    } else {
        fprintf(out, "  natural          -  not counted: the network is too large for it\n");
    }
    text_set(topo, out);
}

/* Notes about how far the figures can be relied on. */
static void text_notes(const struct tess__topo *topo, FILE *out)
{
    const struct tess_topology *topology = topo->topology;
    bool bus = false, model = false, nvlink = false;
    if (topo->why[0] != '\0')
        fprintf(out, "%s\n", topo->why);
    for (int32_t i = 0; i < topology->device_count; i++) {
        const struct tess_node *node = &topology->node[topology->device[i]];
        bus = bus || node->bus[0] != '\0';
        model = model || node->sm > 0;
    }
    for (int32_t i = 0; i < topology->link_count; i++)
        nvlink = nvlink || topology->link[i].kind == TESS_LINK_NVLINK;
    if (bus && !model && !nvlink && !(topology->remarks & TESS_REMARK_NO_NVLINK))
        fprintf(out, "the source has no NVLinks and no GPU model: where they have some, rings "
                     "are faster than here\n");
    char text[TESS__REMARK_TEXT];
    for (int32_t at = 0; tess__remark_guess(topology, at, text); at++)
        fprintf(out, at == 0 ? "guessed: %s" : "; %s", text);
    if (tess__remark_guess(topology, 0, text))
        fputc('\n', out);
}

enum tess_status tess__topo_print(const struct tess__topo *topo, FILE *out)
{
    const struct tess_topology *topology = topo->topology;
    fprintf(out, "%s: %d device%s on %d host%s", topo->source, (int)topology->device_count,
            topology->device_count == 1 ? "" : "s", (int)topology->host_count,
            topology->host_count == 1 ? "" : "s");
    fprintf(out, topo->subset ? ", those that were chosen\n" : "\n");
    text_notes(topo, out);
    fputc('\n', out);
    TESS_TRY(tess__topo_print_tree(topo, out));
    if (topo->routed)
        text_matrix(topo, out);
    text_rings(topo, out);
    struct tess__nccl_choice nccl;
    TESS_TRY(tess__nccl_choose(&topo->routes, &nccl));
    text_nccl(topo, &nccl, out);
    if (fflush(out) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write to standard output");
    return TESS_OK;
}
