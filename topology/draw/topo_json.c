/* The rings of a machine as JSON, in a stable form for other programs, and where output goes. */
#include "topology/draw/topo.h"

#include "base/file.h"
#include "tessera/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum tess_status tess__topo_write(const char *path, const char *text, size_t bytes)
{
    if (strcmp(path, "-") != 0)
        return tess_file_write(path, text, bytes);
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write to standard output");
    return TESS_OK;
}

/* NULL without memory. */
static json_t *json_ring(const struct tess__topo *topo, const struct tess_ring *ring)
{
    json_t *order = json_array();
    int failed = order == NULL;
    for (int32_t i = 0; i < topo->rings.count; i++)
        failed |= json_array_append_new(order, json_integer(topo->number[ring->order[i]]));
    if (failed == 0)
        return json_pack("{s:o, s:f}", "order", order, "gbs", ring->gbs);
    json_decref(order);
    return NULL;
}

static json_t *json_rings(const struct tess__topo *topo)
{
    json_t *list = json_array();
    int failed = list == NULL;
    for (int32_t i = 0; i < topo->rings.ring_count; i++)
        failed |= json_array_append_new(list, json_ring(topo, &topo->rings.ring[i]));
    if (failed == 0)
        return list;
    json_decref(list);
    return NULL;
}

/* Texts number 0, 1 .. of the machine: what was guessed, or the warnings. */
static json_t *json_remarks(const struct tess__topo *topo, bool warnings)
{
    char text[TESS__REMARK_TEXT];
    json_t *list = json_array();
    int failed = list == NULL;
    for (int32_t at = 0; warnings ? tess__remark_warning(topo->topology, topo->nvlinks, at, text)
                                  : tess__remark_guess(topo->topology, at, text);
         at++)
        failed |= json_array_append_new(list, json_string(text));
    if (failed == 0)
        return list;
    json_decref(list);
    return NULL;
}

/* NULL without memory. */
static json_t *json_root(const struct tess__topo *topo)
{
    const struct tess_rings *rings = &topo->rings;
    json_t *list = json_rings(topo), *best = json_ring(topo, &rings->best_single);
    json_t *guessed = json_remarks(topo, false), *warnings = json_remarks(topo, true);
    json_t *root = NULL;
    if (list && best && guessed && warnings)
        root = json_pack("{s:i, s:O, s:O, s:{s:f}, s:f, s:f, s:b, s:{s:f, s:f, s:f}, s:O, s:O}",
                         "devices", (int)rings->count, "rings", list, "best_single", best,
                         "natural", "gbs", rings->natural.gbs, "total_gbs", rings->total_gbs,
                         "bound_gbs", rings->bound_gbs, "optimal", (int)rings->optimal, "physical",
                         "best_single_gbs", topo->wire_best, "natural_gbs", topo->wire_natural,
                         "total_gbs", topo->wire_total, "guessed", guessed, "warnings", warnings);
    json_decref(list);
    json_decref(best);
    json_decref(guessed);
    json_decref(warnings);
    return root;
}

enum tess_status tess__topo_write_json(const struct tess__topo *topo, const char *path)
{
    json_t *root = json_root(topo);
    /* Ten digits hold any rate that a model can mean. */
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(root);
    if (!text)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the JSON of the rings");
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in the place of the 0: the length is known */
    enum tess_status status = tess__topo_write(path, text, bytes + 1);
    free(text);
    return status;
}
