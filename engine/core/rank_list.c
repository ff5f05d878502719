/* Lists of ranks in messages. */
#include "core/rank_list.h"

#include <stdio.h>

#define RANK_LIST_MAX 8

void tess__rank_list_add(struct tess_rank_list *list, int32_t rank)
{
    const size_t room = sizeof(list->text);
    if (list->count++ < RANK_LIST_MAX)
        list->length += (size_t)snprintf(list->text + list->length, room - list->length, "%s%d",
                                         list->count > 1 ? ", " : "", rank);
    else
        snprintf(list->text + list->length, room - list->length, " and %d more",
                 list->count - RANK_LIST_MAX);
}
