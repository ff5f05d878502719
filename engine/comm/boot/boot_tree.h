/*
 * The tree over which the ranks of a job are connected. Places in it are given in the order in
 * which ranks come, rank 0 has the first:
 *
 *     place 0  ---  1  ---  33, 34, ... 64
 *               |-- 2  ---  65, ...
 *               ...
 *               `- 32
 *
 * So rank 0 has 32 connections at most, and any rank one more. Ranks up to 33 are all connected
 * with rank 0.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_TREE_H
#define TESSERA_COMM_BOOT_BOOT_TREE_H

#include "comm/boot/boot.h"

/* Towards rank 0, or away from it. */
struct boot_branch {
    int fd;        /* -1: none */
    int32_t rank;  /* at its other end */
    int32_t count; /* of ranks that are reached through it */
};

struct boot_tree {
    int32_t place, rank_count, fan;
    struct boot_branch up; /* of rank 0: none */
    int32_t branch_count;
    struct boot_branch branch[TESS_BOOT_FAN];
    int32_t *order; /* rank 0: [rank_count] the ranks as their parts of a gather come; else NULL */
};

/* How many branches a place has, and how many places lie in it and behind it. */
int32_t tess__tree_branches(int32_t place, int32_t rank_count, int32_t fan);
int32_t tess__tree_size(int32_t place, int32_t rank_count, int32_t fan);
/* Rounds of connections behind a place: 0 where there is none. */
int32_t tess__tree_height(int32_t place, int32_t rank_count, int32_t fan);

/* No connections yet. */
void tess__tree_begin(struct boot_tree *tree, const struct tess_boot_env *env, int32_t place);
/* Of rank 0: rank_of[place]. */
void tess__tree_set_order(struct boot_tree *tree, const int32_t *rank_of);
void tess__tree_close(struct boot_tree *tree);

#endif
