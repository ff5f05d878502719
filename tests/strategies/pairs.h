/*
 * All-pairs designs: rows of one value for each factor, such that every pair of values of any two
 * factors that the rules allow together occurs in a row. Faults of combinations are mostly those of
 * two values (Kuhn, Wallace, Gallo: Software Fault Interactions, 2004), and the rows are few.
 */
#ifndef TESTS_STRATEGIES_PAIRS_H
#define TESTS_STRATEGIES_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#define PAIRS_FACTORS_MAX 12
#define PAIRS_VALUES_MAX  40
#define PAIRS_ROWS_MAX    1024
#define PAIRS_OPEN        (-1) /* a factor that has no value yet */

struct pairs_factor {
    const char *name;
    const char *const *value; /* words for pairs_print */
    int count;
    int only; /* the one value that occurs; PAIRS_OPEN: all */
};

struct pairs {
    const struct pairs_factor *factor;
    int factor_count;
    /* May these values go together? Of open factors it may assume what it likes, but what it
     * refuses it also refuses with more of them decided. */
    bool (*legal)(const int *value);
    int row[PAIRS_ROWS_MAX][PAIRS_FACTORS_MAX];
    int row_count;
    bool covered[PAIRS_FACTORS_MAX][PAIRS_VALUES_MAX][PAIRS_FACTORS_MAX][PAIRS_VALUES_MAX];
};

/*
 * Fill the rows from factor, factor_count and legal: greedy, always the same for the same factors.
 * A pair that is in no row is in no legal one. Returns false when there is no room for the rows.
 */
bool pairs_make(struct pairs *pairs);

/* Print a line of words for each row, to stdout, and how many pairs they hold. */
void pairs_print(const struct pairs *pairs);

#endif
