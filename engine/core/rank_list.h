/* Ranks as a message lists them, "1, 3": the first few, then how many more. */
#ifndef TESSERA_CORE_RANK_LIST_H
#define TESSERA_CORE_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed at first; text is whole after each add. */
struct tess_rank_list {
    int32_t count;
    size_t length;
    char text[96];
};

void tess__rank_list_add(struct tess_rank_list *list, int32_t rank);

#endif
