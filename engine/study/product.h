/* Products of strategies, "fsdp+tp+pp", in series of runs: which words apply to one of them. */
#ifndef TESSERA_STUDY_PRODUCT_H
#define TESSERA_STUDY_PRODUCT_H

#include "text/command.h"

#include <stdbool.h>

/* Is `word` one of the product's? Pure. */
bool tess__product_has(const char *product, const char *word);

/*
 * The words of a series for its run under `product`. What belongs to other runs is skipped: options
 * of strategies that another of product_list [count] holds and this one does not; --mesh, where it
 * names an axis for which this one has no strategy; --tensor.ranks likewise. words_out borrows.
 */
enum tess_status tess__product_words(const struct tess__args *args, const char *product,
                                     const char *const *product_list, int count,
                                     struct tess__args *words_out);

#endif
