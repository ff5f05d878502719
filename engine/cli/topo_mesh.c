/* tessera topo --mesh: where the ranks of a mesh go on a machine (topology/map), and its costs. */
#include "topology/draw/topo.h"

#include "tessera/check.h"
#include "topology/map/map.h"

#include <stdlib.h>
#include <string.h>

#define MESH_NAME 24

struct mesh {
    struct tess_map_axis axis[TESS_MAP_AXES];
    char name[TESS_MAP_AXES][MESH_NAME];
    int32_t count;
    int64_t ranks;
};

static enum tess_status mesh_fail(const char *word)
{
    TESS_FAIL(TESS_ERR_USAGE,
              "--mesh '%.40s': up to %d words like tensor:4, data:2 or stage:2 were expected, the "
              "axis of "
              "neighbouring ranks first; tensor:4:0.8 where a rank sends 0.8 GB along it in a step",
              word, TESS_MAP_AXES);
}

/* "tensor:4" or "tensor:4:0.8" */
static enum tess_status mesh_word(struct mesh *mesh, const char *word)
{
    const char *colon = strchr(word, ':');
    char *end;
    if (mesh->count == TESS_MAP_AXES || !colon || colon == word || colon - word >= MESH_NAME)
        return mesh_fail(word);
    struct tess_map_axis *axis = &mesh->axis[mesh->count];
    char *name = mesh->name[mesh->count++];
    snprintf(name, MESH_NAME, "%.*s", (int)(colon - word), word);
    long count = strtol(colon + 1, &end, 10);
    double gigabytes = 1;
    bool good = colon[1] >= '1' && colon[1] <= '9' && count <= TESS_TOPO_NODES_MAX;
    if (good && *end == ':') {
        const char *number = end + 1;
        good = strspn(number, "0123456789.") == strlen(number) && *number;
        gigabytes = strtod(number, &end);
        good = good && !*end && gigabytes > 0 && gigabytes <= 1e6;
    }
    if (!good || *end)
        return mesh_fail(word);
    *axis = (struct tess_map_axis){.name = name,
                                   .count = (int32_t)count,
                                   .bytes = 1e9 * gigabytes,
                                   .chain = strcmp(name, "stage") == 0};
    mesh->ranks *= count;
    return mesh->ranks <= TESS_TOPO_NODES_MAX ? TESS_OK : mesh_fail(word);
}

static enum tess_status mesh_read(const char *text, struct mesh *mesh)
{
    char copy[256], *rest = copy, *word;
    *mesh = (struct mesh){.ranks = 1};
    if (strlen(text) >= sizeof(copy))
        return mesh_fail(text);
    snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strtok_r(rest, " ,", &rest)))
        TESS_TRY(mesh_word(mesh, word));
    return mesh->count > 0 ? TESS_OK : mesh_fail(text);
}

enum tess_status tess__topo_check_mesh(const struct tess__topo_options *options)
{
    struct mesh mesh;
    return options->mesh[0] ? mesh_read(options->mesh, &mesh) : TESS_OK;
}

enum tess_status tess__topo_print_mesh(const struct tess__topo *topo, FILE *out)
{
    struct mesh mesh;
    struct tess_map map = {0};
    char *text = NULL;
    int32_t devices = topo->topology->device_count;
    TESS_TRY(mesh_read(topo->options->mesh, &mesh));
    if (mesh.ranks != devices)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--mesh '%s' is of %lld ranks, and there are %d devices: choose as many with "
                  "--devices",
                  topo->options->mesh, (long long)mesh.ranks, (int)devices);
    int32_t *place = malloc((size_t)devices * sizeof(*place));
    if (!place)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the mesh");
    for (int32_t i = 0; i < devices; i++)
        place[i] = i;
    const struct tess_map_ask ask = {.axis = mesh.axis, .axis_count = mesh.count, .place = place};
    enum tess_status status = tess_map_find(topo->topology, &ask, &map);
    if (status == TESS_OK)
        status = tess_map_explain(topo->topology, &ask, &map, &text);
    if (status == TESS_OK) {
        fprintf(out, "\nmesh %s, the first axis fastest\n%s", topo->options->mesh, text);
        if (fflush(out) != 0)
            status = tess_fail(TESS_ERR_IO, "cannot write to standard output");
    }
    free(text);
    tess_map_free(&map);
    free(place);
    return status;
}
