/* Links: presets, their text form, and the formulas of link.h. */
#include "study/link.h"

#include "tessera/check.h"
#include "topology/machine/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Wire speeds in one direction, which collectives do not quite reach. Latencies of NVLink, PCIe and
 * InfiniBand are those that NCCL assumes for a step of a ring with its LL128 protocol
 * (src/graph/tuning.cc, hwLat: 1.9, 2.5 and 4.0 us). A TCP message through the kernels of both ends
 * and a switch takes some tens of microseconds: 30 is an assumption, worth measuring.
 */
static const struct tess_link link_preset[] = {
    {"nvlink", 1.9e-6, 1e9 * TESS_WIRE_NVLINK_H100},
    {"nvlink-a100", 1.9e-6, 1e9 * TESS_WIRE_NVLINK_A100},
    {"nvlink-v100", 1.9e-6, 1e9 * TESS_WIRE_NVLINK_V100},
    {"pcie", 2.5e-6, 1e9 * TESS_WIRE_PCI_5_X16},
    {"infiniband", 4.0e-6, 1e9 * TESS_WIRE_NDR},
    {"infiniband-hdr", 4.0e-6, 1e9 * TESS_WIRE_HDR},
    {"ethernet-100g", 30e-6, 1e9 * TESS_WIRE_ETHERNET_100G},
    {"ethernet-10g", 30e-6, 1e9 * TESS_WIRE_ETHERNET_10G},
};

#define LINK_PRESET_COUNT ((int)(sizeof(link_preset) / sizeof(link_preset[0])))
/* The longest item is a name and two numbers with units. */
#define LINK_ITEM_MAX  96
#define LINK_PLACE_MAX 224

const struct tess_link *tess_link_presets(int *count_out)
{
    *count_out = LINK_PRESET_COUNT;
    return link_preset;
}

/* ---- words ----------------------------------------------------------------------------------- */

struct link_unit {
    const char *name;
    double factor;
};

static const struct link_unit link_time_unit[] = {
    {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0},
};

static const struct link_unit link_rate_unit[] = {
    {"TB/s", 1e12},    {"GB/s", 1e9},     {"MB/s", 1e6}, {"Tb/s", 1e12 / 8},
    {"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {NULL, 0},
};

/* A number and its unit, nothing else. */
static bool link_quantity(const char *text, const struct link_unit *unit, double *value_out)
{
    char *end = NULL;
    double value = strtod(text, &end);
    /* strtod also takes blanks, signs, "inf", "nan" and hexadecimal digits; a link is plain. */
    if (end == text || strspn(text, "0123456789.eE+-") < (size_t)(end - text) || !isfinite(value))
        return false;
    for (; unit->name; unit++)
        if (strcmp(end, unit->name) == 0) {
            *value_out = value * unit->factor;
            return true;
        }
    return false;
}

static enum tess_status link_unknown(const char *what, const char *item)
{
    char known[256];
    size_t used = 0;
    for (int i = 0; i < LINK_PRESET_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 link_preset[i].name);
    TESS_FAIL(TESS_ERR_USAGE,
              "%s: unknown link '%.60s'; use one of %s, or NAME:LATENCY:BANDWIDTH such as "
              "mylink:5us:25GB/s",
              what, item, known);
}

/* One item, blanks already gone. Cut in place at its colons. */
static enum tess_status link_item(const char *what, char *item, struct tess_link *link)
{
    char *latency = strchr(item, ':');
    char *rate = latency ? strchr(latency + 1, ':') : NULL;
    if (!latency) {
        for (int i = 0; i < LINK_PRESET_COUNT; i++)
            if (strcmp(item, link_preset[i].name) == 0) {
                *link = link_preset[i];
                return TESS_OK;
            }
        return link_unknown(what, item);
    }
    if (!rate || latency == item)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s: '%.60s' is not NAME:LATENCY:BANDWIDTH such as mylink:5us:25GB/s", what,
                  item);
    *latency++ = '\0';
    *rate++ = '\0';
    if (strlen(item) >= sizeof(link->name))
        TESS_FAIL(TESS_ERR_USAGE, "%s: a link's name is longer than %zu characters: '%.60s'", what,
                  sizeof(link->name) - 1, item);
    snprintf(link->name, sizeof(link->name), "%s", item);
    if (!link_quantity(latency, link_time_unit, &link->latency_s) || link->latency_s < 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s: latency '%.40s' of link '%s' is not a time of 0 or more such as 5us (s, ms, "
                  "us, ns)",
                  what, latency, item);
    if (!link_quantity(rate, link_rate_unit, &link->bandwidth) || link->bandwidth <= 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s: bandwidth '%.40s' of link '%s' is not a rate above 0 such as 25GB/s or "
                  "100Gb/s (T, G or M; B bytes, b bits)",
                  what, rate, item);
    return TESS_OK;
}

static enum tess_status link_add(const char *what, char *item, struct tess_link *link, int *count)
{
    if (*count == TESS_LINK_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%s: more than %d links", what, TESS_LINK_MAX);
    TESS_TRY(link_item(what, item, &link[*count]));
    for (int i = 0; i < *count; i++)
        if (strcmp(link[i].name, link[*count].name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "%s: link '%s' is given twice", what, link[i].name);
    ++*count;
    return TESS_OK;
}

enum tess_status tess_link_parse(const char *what, const char *text,
                                 struct tess_link link[TESS_LINK_MAX], int *count_out)
{
    const bool is_file = strchr(text, '\n');
    int count = 0, line = 1;
    for (const char *at = text; *at;) {
        const char *begin = at + strspn(at, " \t\r");
        size_t length = strcspn(begin, ",\n#"), used = length;
        char item[LINK_ITEM_MAX], place[LINK_PLACE_MAX];
        if (is_file)
            snprintf(place, sizeof(place), "%.200s:%d", what, line);
        else
            snprintf(place, sizeof(place), "%.200s", what);
        at = begin + length;
        if (*at == '#')
            at += strcspn(at, "\n");
        while (used > 0 && strchr(" \t\r", begin[used - 1]))
            used--;
        if (used >= sizeof(item))
            TESS_FAIL(TESS_ERR_USAGE, "%s: '%.60s...' is too long for a link", place, begin);
        memcpy(item, begin, used);
        item[used] = '\0';
        if (used > 0)
            TESS_TRY(link_add(place, item, link, &count));
        else if (*at == ',')
            TESS_FAIL(TESS_ERR_USAGE, "%s: an item of the list is empty", place);
        line += *at == '\n';
        at += *at != '\0';
    }
    if (count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "%s: no link is named", what);
    *count_out = count;
    return TESS_OK;
}

/* ---- formulas -------------------------------------------------------------------------------- */

/* `count` passes over `bytes` in all. */
static double link_passes_s(const struct tess_link *link, int64_t ranks, double bytes, double count)
{
    double n = (double)ranks;
    return count * (n - 1) * link->latency_s + (n - 1) / n * bytes / link->bandwidth;
}

double tess_link_all_reduce_s(const struct tess_link *link, int64_t ranks, double bytes)
{
    return link_passes_s(link, ranks, 2 * bytes, 2);
}

double tess_step_model_s(const struct tess_step_model *model, const struct tess_link *link,
                         int64_t ranks, double *exposed_out)
{
    double n = (double)ranks, rows = model->weak ? 1 : n;
    double all_s = link_passes_s(link, ranks, model->bytes, model->pass_count);
    double edge_s = link_passes_s(link, ranks, model->edge_bytes, model->edge_count);
    double exposed_s = all_s - fmin(all_s - edge_s, model->window_s / rows);
    if (exposed_out)
        *exposed_out = exposed_s;
    return model->rows_s / rows + model->shard_s / n + model->fixed_s + exposed_s;
}

bool tess_amdahl_fit(double one_rank_s, const int64_t *ranks, const double *time_s, int count,
                     double *p_out)
{
    double products = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        double x = 1 - 1 / (double)ranks[i];
        products += x * (1 - time_s[i] / one_rank_s);
        squares += x * x;
    }
    if (squares <= 0 || one_rank_s <= 0)
        return false;
    *p_out = products / squares;
    return true;
}

double tess_amdahl_speedup(double p, int64_t ranks)
{
    return 1 / (1 - p + p / (double)ranks);
}
