/* The runs of one comparison, shared by those who run them and those who print them. */
#ifndef TESSERA_STUDY_COMPARE_H
#define TESSERA_STUDY_COMPARE_H

#include "run/predicted.h"
#include "study/trial.h"
#include "study/variant.h"
#include "text/words.h"

struct tess__compared {
    const struct tess__variant *variant;
    struct tess__trial trial;
    struct tess__predicted predicted; /* after the runs */
};

struct tess__comparison {
    struct tess__compared *run; /* [count] */
    int count;
    int64_t steps;
    struct tess__words words;
};

/*
 * The tables, to stdout, at most 120 columns wide: a summary with every cost also as a factor of
 * the first run's, memory by kind of every group of equal ranks, bytes sent along each axis of the
 * mesh, and the comparison of the hashes.
 */
void tess__comparison_print(const struct tess__comparison *comparison);

/* compare_steps.c: steps as predicted, beside those that were measured. */
void tess__comparison_print_steps(const struct tess__comparison *comparison);

/* compare_axes.c and compare_bits.c: parts of it, nothing where they do not apply. */
void tess__comparison_print_axes(const struct tess__comparison *comparison);
void tess__comparison_print_bits(const struct tess__comparison *comparison);

#endif
