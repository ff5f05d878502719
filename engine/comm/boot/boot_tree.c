/* Numbers of the tree over which ranks are connected; see boot_tree.h. */
#include "comm/boot/boot_tree.h"

#include <stdlib.h>
#include <unistd.h>

int32_t tess__tree_branches(int32_t place, int32_t rank_count, int32_t fan)
{
    const int64_t first = (int64_t)place * fan + 1, left = rank_count - first;
    return left <= 0 ? 0 : left < fan ? (int32_t)left : fan;
}

int32_t tess__tree_size(int32_t place, int32_t rank_count, int32_t fan)
{
    int32_t size = 0;
    for (int64_t first = place, last = place; first < rank_count;
         first = first * fan + 1, last = (last + 1) * fan)
        size += (int32_t)((last < rank_count ? last + 1 : rank_count) - first);
    return size;
}

int32_t tess__tree_height(int32_t place, int32_t rank_count, int32_t fan)
{
    int32_t height = 0;
    for (int64_t first = (int64_t)place * fan + 1; first < rank_count; first = first * fan + 1)
        height++;
    return height;
}

void tess__tree_begin(struct boot_tree *tree, const struct tess_boot_env *env, int32_t place)
{
    const int32_t fan = env->fan > 0 && env->fan < TESS_BOOT_FAN ? env->fan : TESS_BOOT_FAN;
    *tree = (struct boot_tree){.place = place, .rank_count = env->rank_count, .fan = fan};
    tree->up.fd = -1;
    tree->branch_count = tess__tree_branches(place, env->rank_count, fan);
    for (int32_t b = 0; b < tree->branch_count; b++)
        tree->branch[b] = (struct boot_branch){
            .fd = -1,
            .rank = -1,
            .count = tess__tree_size(place * fan + 1 + b, env->rank_count, fan)};
    tree->up.count = env->rank_count - tess__tree_size(place, env->rank_count, fan);
}

/* Each place before those behind it, as gathers bring them. */
void tess__tree_set_order(struct boot_tree *tree, const int32_t *rank_of)
{
    const int32_t fan = tree->fan;
    int32_t place = 0;
    for (int32_t n = 0; n < tree->rank_count; n++) {
        tree->order[n] = rank_of[place];
        if ((int64_t)place * fan + 1 < tree->rank_count) {
            place = place * fan + 1;
            continue;
        }
        /* The next one beside it, or beside one before it. */
        while (place > 0 && (place % fan == 0 || place + 1 >= tree->rank_count))
            place = (place - 1) / fan;
        place++;
    }
}

void tess__tree_close(struct boot_tree *tree)
{
    if (tree->up.fd >= 0)
        close(tree->up.fd);
    for (int32_t b = 0; b < tree->branch_count; b++)
        if (tree->branch[b].fd >= 0)
            close(tree->branch[b].fd);
    free(tree->order);
}
