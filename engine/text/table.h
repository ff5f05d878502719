/*
 * Tables for terminals and files. Where a terminal is too narrow for all columns, columns get their
 * short titles, those with nothing but zeros are left out, and the rest follows below in a table
 * with the same first columns.
 *
 *   run    rank  param  grad          run    rank  param
 *   single    0   7.11  7.11   ->     single    0   7.11
 *                                     run    rank  grad
 *                                     single    0  7.11
 */
#ifndef TESSERA_TEXT_TABLE_H
#define TESSERA_TEXT_TABLE_H

#include "text/screen.h"

#include <stdbool.h>
#include <stddef.h>

#define TESS__TABLE_COLUMNS 40

/* Texts are borrowed. */
struct tess__column {
    const char *title;
    const char *brief; /* where there is little room; NULL: the title */
    int width;         /* at least so wide where there is room */
    bool left;         /* texts begin at the column's left edge */
    bool key;          /* of the first columns: repeated where a table continues below */
    bool zero;         /* may be left out where all cells are zero or "-" */
};

/* Zeroed before its first use; the texts of cells are copied. */
struct tess__table {
    const struct tess__column *column; /* [count], borrowed */
    int count;
    int gap;  /* blanks between columns; 0 is 1 */
    int span; /* columns below which the text beside a row is put */
    struct tess__table_cell {
        size_t text; /* offset */
        enum tess__colour colour;
        bool beside; /* no cell: what stands below the first columns of the row before it */
    } * cell;
    size_t cell_count, cell_room;
    char *text; /* of all cells, each with its final zero */
    size_t bytes, room;
    bool lost; /* there was no memory for all of it */
};

/* The next cell, row by row. At most 512 bytes. */
void tess__table_add(struct tess__table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tess__table_add_colour(struct tess__table *table, enum tess__colour colour, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* Before the cells of a row: text in the place of its first `span` cells, which are empty; more
 * lines of it follow below. */
void tess__table_beside(struct tess__table *table, const char *text);

/* Print all rows, and free them. */
void tess__table_print(struct tess__table *table, FILE *stream);
/* The same for so many columns; 0: no limit. */
void tess__table_print_in(struct tess__table *table, int columns, FILE *stream);

#endif
