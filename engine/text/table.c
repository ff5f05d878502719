/* Tables: cells are collected as text, then printed in as many parts as the terminal needs. */
#include "text/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_TEXT 512

/* ---- cells ----------------------------------------------------------------------------------- */

static void table_put(struct tess__table *table, enum tess__colour colour, bool beside,
                      const char *text)
{
    const size_t length = strlen(text) + 1;
    if (table->cell_count == table->cell_room) {
        const size_t room = table->cell_room > 0 ? 2 * table->cell_room : 64;
        struct tess__table_cell *more = realloc(table->cell, room * sizeof(*more));
        if (more == NULL) {
            table->lost = true;
            return;
        }
        table->cell = more;
        table->cell_room = room;
    }
    if (table->bytes + length > table->room) {
        const size_t room = 2 * table->room + length + 1024;
        char *more = realloc(table->text, room);
        if (more == NULL) {
            table->lost = true;
            return;
        }
        table->text = more;
        table->room = room;
    }
    memcpy(table->text + table->bytes, text, length);
    table->cell[table->cell_count++] =
        (struct tess__table_cell){.text = table->bytes, .colour = colour, .beside = beside};
    table->bytes += length;
}

__attribute__((format(printf, 3, 0))) static void table_put_list(struct tess__table *table,
                                                                 enum tess__colour colour,
                                                                 const char *format, va_list list)
{
    char text[TABLE_TEXT];

    vsnprintf(text, sizeof(text), format, list);
    table_put(table, colour, false, text);
}

void tess__table_add(struct tess__table *table, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    table_put_list(table, TESS__COLOUR_PLAIN, format, list);
    va_end(list);
}

void tess__table_add_colour(struct tess__table *table, enum tess__colour colour, const char *format,
                            ...)
{
    va_list list;

    va_start(list, format);
    table_put_list(table, colour, format, list);
    va_end(list);
}

void tess__table_beside(struct tess__table *table, const char *text)
{
    table_put(table, TESS__COLOUR_PLAIN, true, text);
}

/* ---- widths ---------------------------------------------------------------------------------- */

struct table_print {
    const struct tess__table *table;
    FILE *stream;
    int columns, gap;
    bool brief;
    bool shown[TESS__TABLE_COLUMNS];
    int width[TESS__TABLE_COLUMNS];
};

static const char *table_title(const struct table_print *print, int column)
{
    const struct tess__column *about = &print->table->column[column];
    return print->brief && about->brief != NULL ? about->brief : about->title;
}

static int table_most(int a, int b)
{
    return a > b ? a : b;
}

/* "0", "0.00", "-" and nothing at all. */
static bool table_is_zero(const char *text)
{
    return strspn(text, "0.- ") == strlen(text);
}

static void table_measure(struct table_print *print)
{
    const struct tess__table *table = print->table;
    bool zero[TESS__TABLE_COLUMNS];
    int column = 0;
    for (int c = 0; c < table->count; c++) {
        print->width[c] = table_most(print->brief ? 0 : table->column[c].width,
                                     tess__screen_width(table_title(print, c)));
        zero[c] = table->column[c].zero;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        if (table->cell[i].beside)
            continue;
        const char *text = table->text + table->cell[i].text;
        print->width[column] = table_most(print->width[column], tess__screen_width(text));
        zero[column] = zero[column] && table_is_zero(text);
        column = (column + 1) % table->count;
    }
    for (int c = 0; c < table->count; c++)
        print->shown[c] = !print->brief || !zero[c];
}

/* Of the columns that are shown in first .. end - 1. */
static int table_sum(const struct table_print *print, int first, int end)
{
    int sum = 0;
    for (int c = first; c < end; c++)
        if (print->shown[c])
            sum += print->width[c] + (sum > 0 ? print->gap : 0);
    return sum;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* One part of a table: the keys, and the columns from first to end - 1. */
struct table_part {
    int keys, first, end;
};

static bool table_has(const struct table_print *print, const struct table_part *part, int column)
{
    return print->shown[column] &&
           (column < part->keys || (column >= part->first && column < part->end));
}

static int table_last(const struct table_print *print, const struct table_part *part)
{
    int last = 0;
    for (int c = 0; c < print->table->count; c++)
        last = table_has(print, part, c) ? c : last;
    return last;
}

static void table_text(const struct table_print *print, int column, bool ends,
                       enum tess__colour colour, const char *text)
{
    FILE *stream = print->stream;
    const bool left = print->table->column[column].left, plain = colour == TESS__COLOUR_PLAIN;
    const int blanks = print->width[column] - tess__screen_width(text);
    if (!left)
        fprintf(stream, "%*s", blanks, "");
    fprintf(stream, "%s%s%s", plain ? "" : tess__screen_colour(stream, colour), text,
            plain ? "" : tess__screen_colour(stream, TESS__COLOUR_PLAIN));
    if (left && !ends)
        fprintf(stream, "%*s", blanks, "");
}

static void table_titles(const struct table_print *print, const struct table_part *part)
{
    const int last = table_last(print, part);
    bool any = false;
    for (int c = 0; c < print->table->count; c++) {
        if (!table_has(print, part, c))
            continue;
        if (any)
            fprintf(print->stream, "%*s", print->gap, "");
        table_text(print, c, c == last, TESS__COLOUR_STRONG, table_title(print, c));
        any = true;
    }
    fputc('\n', print->stream);
}

/* Cells from column `from` on; `cell` is the row's first. */
static void table_cells(const struct table_print *print, const struct table_part *part,
                        const struct tess__table_cell *cell, int from)
{
    const int last = table_last(print, part);
    bool any = from > 0;
    for (int c = from; c < print->table->count; c++) {
        if (!table_has(print, part, c))
            continue;
        if (any)
            fprintf(print->stream, "%*s", print->gap, "");
        table_text(print, c, c == last, cell[c].colour, print->table->text + cell[c].text);
        any = true;
    }
    fputc('\n', print->stream);
}

/* Where to cut `text` so that a line has at most `width` columns: at a blank if there is one. */
static int table_cut(const char *text, int width)
{
    int cut = (int)strlen(text);
    if (cut <= width)
        return cut;
    for (cut = width; cut > 0 && text[cut] != ' ';)
        cut--;
    return cut > 0 ? cut : width;
}

static bool table_row_is_empty(const struct tess__table *table, const struct tess__table_cell *cell)
{
    for (int c = 0; c < table->count; c++)
        if (table->text[cell[c].text] != '\0')
            return false;
    return true;
}

/* A row with text in the place of its first cells: the first part of a table has it. */
static void table_beside(const struct table_print *print, const struct table_part *part,
                         const char *text, const struct tess__table_cell *cell)
{
    const struct tess__table *table = print->table;
    const int span = table->span < part->end ? table->span : part->end;
    const int width = table_sum(print, 0, span);
    bool cells = !table_row_is_empty(table, cell);
    if (part->first > part->keys) {
        if (cells)
            table_cells(print, part, cell, 0);
        return;
    }
    while (cells || *text) {
        const int cut = table_cut(text, width - 2);
        fprintf(print->stream, "  %-*.*s", cells ? width - 2 : 0, cut, text);
        text += cut + strspn(text + cut, " ");
        if (cells)
            table_cells(print, part, cell, span);
        else
            fputc('\n', print->stream);
        cells = false;
    }
}

static void table_part(const struct table_print *print, const struct table_part *part)
{
    const struct tess__table *table = print->table;
    const char *beside = NULL;
    table_titles(print, part);
    for (size_t i = 0; i < table->cell_count;) {
        const struct tess__table_cell *cell = &table->cell[i];
        if (cell->beside) {
            beside = table->text + cell->text;
            i++;
            continue;
        }
        if (i + (size_t)table->count > table->cell_count)
            break; /* a row that was not ended */
        if (beside != NULL)
            table_beside(print, part, beside, cell);
        else
            table_cells(print, part, cell, 0);
        beside = NULL;
        i += (size_t)table->count;
    }
}

static void table_parts(struct table_print *print)
{
    const struct tess__table *table = print->table;
    struct table_part part = {.keys = 0};
    while (part.keys < table->count && table->column[part.keys].key)
        part.keys++;
    print->brief = false;
    table_measure(print);
    if (print->columns > 0 && table_sum(print, 0, table->count) > print->columns) {
        print->brief = true;
        table_measure(print);
    }
    const int keys = table_sum(print, 0, part.keys);
    for (part.first = part.keys; part.first < table->count; part.first = part.end) {
        for (part.end = part.first; part.end < table->count; part.end++) {
            const int sum = keys + print->gap + table_sum(print, part.first, part.end + 1);
            if (print->columns > 0 && sum > print->columns && part.end > part.first)
                break;
        }
        if (table_sum(print, part.first, part.end) > 0 || part.first == part.keys)
            table_part(print, &part);
    }
}

void tess__table_print_in(struct tess__table *table, int columns, FILE *stream)
{
    struct table_print print = {.table = table, .stream = stream, .columns = columns};
    print.gap = table->gap > 0 ? table->gap : 1;
    if (table->lost)
        fputs("no memory for this table\n", stream);
    else
        table_parts(&print);
    free(table->cell);
    free(table->text);
    *table = (struct tess__table){
        .column = table->column, .count = table->count, .gap = table->gap, .span = table->span};
}

void tess__table_print(struct tess__table *table, FILE *stream)
{
    tess__table_print_in(table, tess__screen_columns(stream), stream);
}
