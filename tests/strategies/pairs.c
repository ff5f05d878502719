/* The greedy search behind pairs.h: each row starts with a pair that no row has yet. */
#include "pairs.h"

#include <stdio.h>
#include <string.h>

static void pairs_cover(struct pairs *pairs, const int *row)
{
    for (int f = 0; f < pairs->factor_count; f++)
        for (int g = 0; g < pairs->factor_count; g++)
            if (f != g)
                pairs->covered[f][row[f]][g][row[g]] = true;
}

/* Pairs of the value with those that are decided which no row has yet. */
static int pairs_gain(const struct pairs *pairs, const int *row, int f, int value)
{
    int gain = 0;
    for (int g = 0; g < pairs->factor_count; g++)
        gain += g != f && row[g] != PAIRS_OPEN && !pairs->covered[f][value][g][row[g]];
    return gain;
}

/* Decide the open factors from f on, those values first that gain most; of
 * several the first; false: no legal row. */
static bool pairs_fill(const struct pairs *pairs, int *row, int f)
{
    bool tried[PAIRS_VALUES_MAX] = {false};
    while (f < pairs->factor_count && row[f] != PAIRS_OPEN)
        f++;
    if (f == pairs->factor_count)
        return true;
    for (int round = 0; round < pairs->factor[f].count; round++) {
        int best = -1, most = -1;
        for (int value = 0; value < pairs->factor[f].count; value++) {
            const int gain = tried[value] ? -1 : pairs_gain(pairs, row, f, value);
            if (gain > most) {
                most = gain;
                best = value;
            }
        }
        tried[best] = true;
        row[f] = best;
        if (pairs->legal(row) && pairs_fill(pairs, row, f + 1))
            return true;
        row[f] = PAIRS_OPEN;
    }
    return false;
}

/* A row with that pair, if a legal one has it. */
static bool pairs_add(struct pairs *pairs, int f, int value, int g, int other)
{
    int row[PAIRS_FACTORS_MAX];
    for (int i = 0; i < PAIRS_FACTORS_MAX; i++)
        row[i] = PAIRS_OPEN;
    row[f] = value;
    row[g] = other;
    if (!pairs->legal(row) || !pairs_fill(pairs, row, 0))
        return true;
    if (pairs->row_count == PAIRS_ROWS_MAX)
        return false;
    memcpy(pairs->row[pairs->row_count++], row, sizeof(row));
    pairs_cover(pairs, row);
    return true;
}

bool pairs_make(struct pairs *pairs)
{
    memset(pairs->covered, 0, sizeof(pairs->covered));
    pairs->row_count = 0;
    for (int f = 0; f < pairs->factor_count; f++)
        for (int g = f + 1; g < pairs->factor_count; g++)
            for (int value = 0; value < pairs->factor[f].count; value++)
                for (int other = 0; other < pairs->factor[g].count; other++)
                    if (!pairs->covered[f][value][g][other] &&
                        !pairs_add(pairs, f, value, g, other))
                        return false;
    return true;
}

void pairs_print(const struct pairs *pairs)
{
    int count = 0;
    for (int f = 0; f < pairs->factor_count; f++)
        for (int g = f + 1; g < pairs->factor_count; g++)
            for (int value = 0; value < pairs->factor[f].count; value++)
                for (int other = 0; other < pairs->factor[g].count; other++)
                    count += pairs->covered[f][value][g][other];
    for (int r = 0; r < pairs->row_count; r++) {
        for (int f = 0; f < pairs->factor_count; f++)
            printf("%s%s %s", f > 0 ? ", " : "", pairs->factor[f].name,
                   pairs->factor[f].value[pairs->row[r][f]]);
        printf("\n");
    }
    printf("%d rows, %d pairs of values\n", pairs->row_count, count);
}
