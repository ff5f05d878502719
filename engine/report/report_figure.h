/* A picture as the page shows it: title, caption, legend, both drawings, and a table of its
 * numbers. */
#ifndef TESSERA_REPORT_REPORT_FIGURE_H
#define TESSERA_REPORT_REPORT_FIGURE_H

#include "report/report_plot.h"

struct tess__figure {
    const char *title, *caption; /* plain text; the caption explains what it shows */
};

/* Append the figure; without a single point to show, nothing. */
void tess__figure_lines(const struct tess__figure *figure, const struct tess__lines *lines,
                        struct tess__html *html);
void tess__figure_bars(const struct tess__figure *figure, const struct tess__bars *bars,
                       struct tess__html *html);
/* The same of ready drawings, with the kinds [kind_count] that they show of all; `drawings` and
 * `numbers`, the tables' elements, are trusted. */
void tess__figure_drawn(const struct tess__figure *figure, const char *const *kind,
                        const bool *shown, int kind_count, const struct tess__html *drawings,
                        const struct tess__html *numbers, struct tess__html *html);

/* One number of a table, right aligned. */
void tess__figure_cell(struct tess__html *html, double value);
/* A table up to its first row; columns first_number .. end_number - 1 are numbers. */
void tess__figure_heads(struct tess__html *html, const char *const *head, int count,
                        int first_number, int end_number);

/* The little line and marker that stand for a curve's style. */
void tess__figure_swatch(struct tess__html *html, int style, enum tess__curve_look look);

/* The page's one set of markers: pictures and swatches refer to it. */
void tess__figure_markers(struct tess__html *html);

#endif
