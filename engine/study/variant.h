/* Variants: named changes to one configuration, as text, and the grid that they can share. */
#ifndef TESSERA_STUDY_VARIANT_H
#define TESSERA_STUDY_VARIANT_H

#include "text/command.h"

#define TESS__VARIANT_NAME_MAX 16 /* with its end: a column of a table */
#define TESS__VARIANT_WORD_MAX 32
#define TESS__VARIANT_TEXT_MAX 16384

struct tess__variant {
    const char *name;
    const char *goal; /* "" when none is given */
    int word_count;
    char *word[TESS__VARIANT_WORD_MAX]; /* "--option=value" */
};

struct tess__variants {
    int count;
    struct tess__variant item[TESS__LIST_MAX];
    char *storage; /* the texts above */
};

/*
 * Read "NAME [GOAL]: option=value option=value; NAME: ...". ';' or the end of a line ends a
 * variant, blanks separate options, the goal may be left out, a value holds neither blanks nor ';'.
 * TESS_ERR_USAGE with the number of the variant and the character of the text where it goes wrong:
 * also for a name that is empty, too long or given twice, and for options that a series of runs
 * cannot leave to a variant.
 */
enum tess_status tess__variants_parse(const char *text, struct tess__variants *variants);
void tess__variants_free(struct tess__variants *variants); /* a zeroed one is allowed */

/* Add a variant without a goal, maybe a second one of that name; name and word are borrowed.
 * TESS_ERR_USAGE when the list is full. */
enum tess_status tess__variants_add(struct tess__variants *variants, const char *name, char *word);

/* The value that a variant gives to an option, the last one; NULL when it gives none. */
const char *tess__variant_value(const struct tess__variant *variant, const char *option);

/* What decides about a grid. */
struct tess__variant_shape {
    int64_t ranks, /* of the data axis */
        accumulate, batch_size;
};

/*
 * The least grid that all shapes can be run with, so that their bits compare: a multiple of ranks x
 * accumulate of each, by a power of two unless that is 1, which divides every batch. 0: there is
 * none. Pure.
 */
int64_t tess__variants_grid(const struct tess__variant_shape *shape, int count);

#endif
