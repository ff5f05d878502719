/*
 * What of gnuplot's SVG gets into the page. The picture is rebuilt tag by tag from a short list of
 * elements and attributes: colours become CSS variables of the page's theme, markers refer to the
 * page's one set, identifiers go, and labels that stand for foreign text are put in, escaped.
 */
#include "report/report_plot.h"

#include "tessera/check.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SVG_DEPTH 32

struct svg {
    const char *at, *end;
    const struct tess__picture *picture;
    struct tess__html *html;
    int depth;
    struct {
        size_t start; /* in html, of the group's tag */
        bool used;    /* something was drawn in it */
    } group[SVG_DEPTH];
};

/* A tag with its attributes, not yet interpreted. */
struct svg_tag {
    char name[16];
    const char *rest, *end; /* attributes */
    bool closing, empty;
};

static const char *const svg_shapes[] = {"path", "polygon", "polyline", "line", "circle", "use"};
/* Taken over as they are, if their value is harmless. */
static const char *const svg_plain[] = {"d",
                                        "points",
                                        "transform",
                                        "stroke-width",
                                        "stroke-opacity",
                                        "opacity",
                                        "stroke-dasharray",
                                        "text-anchor",
                                        "fill-opacity",
                                        "x",
                                        "y",
                                        "cx",
                                        "cy",
                                        "shape-rendering"};

static bool svg_among(const char *word, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, list[i]) == 0)
            return true;
    return false;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The tag at '<'; false when it does not end. */
static bool svg_read_tag(struct svg *svg, struct svg_tag *tag)
{
    const char *stop = memchr(svg->at, '>', (size_t)(svg->end - svg->at));
    const char *name = svg->at + 1;
    size_t length = 0;
    if (!stop)
        return false;
    svg->at = stop + 1;
    tag->closing = *name == '/';
    name += tag->closing;
    while (name + length < stop && length + 1 < sizeof(tag->name) &&
           (isalnum((unsigned char)name[length]) || strchr("?!-", name[length])))
        length++;
    memcpy(tag->name, name, length);
    tag->name[length] = '\0';
    tag->rest = name + length;
    tag->empty = stop > tag->rest && stop[-1] == '/';
    tag->end = stop - tag->empty;
    return true;
}

/* The next attribute; its value without quotes. False at the end. */
static bool svg_read_attribute(struct svg_tag *tag, char name[24], const char **value,
                               size_t *count)
{
    const char *at = tag->rest, *stop;
    size_t length = 0;
    while (at < tag->end && isspace((unsigned char)*at))
        at++;
    while (at < tag->end && (isalnum((unsigned char)*at) || *at == '-' || *at == ':')) {
        if (length + 1 < 24)
            name[length++] = *at;
        at++;
    }
    name[length] = '\0';
    while (at < tag->end && (isspace((unsigned char)*at) || *at == '='))
        at++;
    if (length == 0 || at >= tag->end || (*at != '"' && *at != '\''))
        return false;
    stop = memchr(at + 1, *at, (size_t)(tag->end - at - 1));
    if (!stop)
        return false;
    *value = at + 1;
    *count = (size_t)(stop - at - 1);
    tag->rest = stop + 1;
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The theme's name for one of the script's marker colours; NULL for gnuplot's own. */
static const char *svg_colour(const char *value, size_t count, char text[24])
{
    char copy[32];
    int red, green, blue;
    if (count >= sizeof(copy))
        return NULL;
    memcpy(copy, value, count);
    copy[count] = '\0';
    if (strcmp(copy, "none") == 0)
        return "none";
    if (sscanf(copy, "rgb(%d,%d,%d)", &red, &green, &blue) != 3)
        return NULL;
    if (red == TESS__PLOT_SERIES)
        snprintf(text, 24, "var(--s%d)", blue);
    else if (red == TESS__PLOT_INK)
        return "var(--ink2)";
    else if (red == TESS__PLOT_GRID)
        return "var(--grid)";
    else if (red == TESS__PLOT_GAP)
        return "var(--card)";
    else
        return NULL;
    return text;
}

/* Letters, digits and the signs of coordinates, with runs of white space as one. */
static void svg_add_value(struct svg *svg, const char *name, const char *value, size_t count)
{
    bool space = true;
    for (size_t i = 0; i < count; i++)
        if (!isalnum((unsigned char)value[i]) && !strchr(" \t\n.,()+-", value[i]))
            return;
    tess__html_print(svg->html, " %s=\"", name);
    while (count > 0 && isspace((unsigned char)value[count - 1]))
        count--;
    for (size_t i = 0; i < count; i++) {
        bool blank = isspace((unsigned char)value[i]);
        if (!blank || !space)
            tess__html_add_bytes(svg->html, blank ? " " : &value[i], 1);
        space = blank;
    }
    tess__html_add(svg->html, "\"");
}

static void svg_add_attributes(struct svg *svg, struct svg_tag *tag)
{
    char name[24], colour[24];
    const char *value;
    size_t count;
    while (svg_read_attribute(tag, name, &value, &count)) {
        int number = -1;
        if (svg_among(name, svg_plain, sizeof(svg_plain) / sizeof(svg_plain[0]))) {
            svg_add_value(svg, name, value, count);
        } else if (strcmp(name, "fill") == 0 || strcmp(name, "stroke") == 0 ||
                   strcmp(name, "color") == 0) {
            const char *theme = svg_colour(value, count, colour);
            if (theme)
                tess__html_print(svg->html, " %s=\"%s\"", name, theme);
        } else if (strcmp(name, "xlink:href") == 0) {
            if (sscanf(value, "#gpPt%d", &number) == 1)
                tess__html_print(svg->html, " href=\"#m%d\"", number);
        } else if (strcmp(name, "id") == 0) {
            if (sscanf(value, "gnuplot_plot_%d", &number) == 1)
                tess__html_print(svg->html, " class=\"s%d\"", number - 1);
        }
    }
}

/* Something is drawn: the groups around it stay. */
static void svg_mark_used(struct svg *svg)
{
    for (int i = 0; i < svg->depth; i++)
        svg->group[i].used = true;
}

/* A text's content up to its end tag: gnuplot's own number or title, or "@N@" for label N. */
static bool svg_add_text(struct svg *svg)
{
    const char *stop = memchr(svg->at, '<', (size_t)(svg->end - svg->at));
    int label = -1;
    if (!stop)
        return false;
    while (svg->at < stop && isspace((unsigned char)*svg->at))
        svg->at++;
    tess__html_add(svg->html, "<text>");
    if (sscanf(svg->at, "@%d@", &label) == 1 && label >= 0 && label < svg->picture->label_count)
        tess__html_escape_short(svg->html, svg->picture->label[label],
                                (size_t)svg->picture->label_max);
    else
        tess__html_add_bytes(svg->html, svg->at, (size_t)(stop - svg->at));
    tess__html_add(svg->html, "</text>");
    svg->at = stop;
    svg_mark_used(svg);
    return true;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Skip to the end of an unwanted element, with its content. */
static bool svg_skip(struct svg *svg, const char *name)
{
    struct svg_tag tag;
    while ((svg->at = memchr(svg->at, '<', (size_t)(svg->end - svg->at)))) {
        if (!svg_read_tag(svg, &tag))
            return false;
        if (tag.closing && strcmp(tag.name, name) == 0)
            return true;
    }
    return false;
}

static bool svg_group(struct svg *svg, struct svg_tag *tag)
{
    if (!tag->closing) {
        if (svg->depth == SVG_DEPTH)
            return false;
        svg->group[svg->depth].start = svg->html->count;
        svg->group[svg->depth++].used = false;
        tess__html_add(svg->html, "<g");
        svg_add_attributes(svg, tag);
        tess__html_add(svg->html, ">");
        return true;
    }
    if (svg->depth == 0)
        return false;
    svg->depth--;
    if (svg->group[svg->depth].used)
        tess__html_add(svg->html, "</g>\n");
    else
        svg->html->count = svg->group[svg->depth].start;
    return true;
}

static bool svg_element(struct svg *svg, struct svg_tag *tag)
{
    static const char *const unwanted[] = {"title", "desc", "defs", "style", "script", "filter"};
    if (strcmp(tag->name, "g") == 0)
        return svg_group(svg, tag);
    if (tag->closing)
        return true;
    if (strcmp(tag->name, "text") == 0)
        return svg_add_text(svg);
    if (svg_among(tag->name, unwanted, sizeof(unwanted) / sizeof(unwanted[0])))
        return tag->empty || svg_skip(svg, tag->name);
    if (!svg_among(tag->name, svg_shapes, sizeof(svg_shapes) / sizeof(svg_shapes[0])))
        return true;
    tess__html_print(svg->html, "<%s", tag->name);
    svg_add_attributes(svg, tag);
    tess__html_add(svg->html, "/>");
    svg_mark_used(svg);
    return true;
}

enum tess_status tess__svg_clean(const char *source, size_t bytes,
                                 const struct tess__picture *picture, struct tess__html *html)
{
    struct svg svg = {.at = source, .end = source + bytes, .picture = picture, .html = html};
    struct svg_tag tag;
    bool whole = false, good = true;
    tess__html_print(html, "<svg class=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                     picture->narrow ? "narrow" : "wide", picture->width, picture->height);
    tess__html_add(html, picture->alternative);
    tess__html_add(html, "\">\n");
    while (good && !whole && (svg.at = memchr(svg.at, '<', (size_t)(svg.end - svg.at)))) {
        good = svg_read_tag(&svg, &tag);
        whole = good && tag.closing && strcmp(tag.name, "svg") == 0;
        if (good && !whole)
            good = svg_element(&svg, &tag);
    }
    if (!whole || svg.depth != 0)
        TESS_FAIL(TESS_ERR_DATA, "gnuplot's picture is not whole: %zu bytes of SVG", bytes);
    tess__html_add(html, "</svg>\n");
    return TESS_OK;
}
