/* Places of ranks on a mesh. */
#include "config/config.h"

/* The axis whose ranks are neighbours first. */
static const enum tess_axis mesh_order[TESS_AXIS_COUNT] = {TESS_AXIS_TENSOR, TESS_AXIS_DATA,
                                                           TESS_AXIS_STAGE};

struct tess_mesh tess_mesh_at(const struct tess_mesh *mesh, int32_t rank)
{
    struct tess_mesh here = *mesh;
    here.rank = rank;
    for (int i = 0, left = rank; i < TESS_AXIS_COUNT; i++) {
        here.at[mesh_order[i]] = left % mesh->count[mesh_order[i]];
        left /= mesh->count[mesh_order[i]];
    }
    return here;
}

int32_t tess_mesh_rank(const struct tess_mesh *mesh, const int32_t at[TESS_AXIS_COUNT])
{
    int32_t rank = 0;
    for (int i = TESS_AXIS_COUNT - 1; i >= 0; i--)
        rank = rank * mesh->count[mesh_order[i]] + at[mesh_order[i]];
    return rank;
}

bool tess_mesh_is_whole(const struct tess_mesh *mesh, enum tess_axis axis)
{
    return mesh->count[axis] == mesh->rank_count &&
           (axis != TESS_AXIS_TENSOR || mesh->rank_count == 1);
}
