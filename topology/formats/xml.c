/* See xml.h: one pass over the text, nothing allocated, every step moves forward. */
#include "topology/formats/xml.h"

#include "tessera/check.h"

#include <ctype.h>
#include <string.h>

void tess__xml_begin(struct tess_xml *xml, enum tess_xml_dialect dialect, const char *name,
                     const char *text, size_t bytes)
{
    *xml = (struct tess_xml){
        .dialect = dialect, .name = name, .at = text, .end = text + bytes, .line_at = 1, .line = 1};
}

const struct tess__word *tess__xml_find(const struct tess_xml *xml, const char *name)
{
    for (int32_t i = 0; i < xml->attribute_count; i++) {
        if (tess__word_is(xml->attribute[i].name, name))
            return &xml->attribute[i].value;
    }
    return NULL;
}

static bool xml_plain(const struct tess_xml *xml)
{
    return xml->dialect == TESS_XML_PLAIN;
}

static bool xml_starts(const struct tess_xml *xml, const char *word)
{
    const size_t length = strlen(word);
    return (size_t)(xml->end - xml->at) >= length && memcmp(xml->at, word, length) == 0;
}

static enum tess_status xml_ended(const struct tess_xml *xml, const char *where)
{
    return tess__lines_fail(xml->name, xml->line_at, "the file ends within %s: it was cut off",
                            where);
}

/* ---- between elements ------------------------------------------------------------------------ */

/* NCCL reads the first word of a comment like the name of an element. */
static enum tess_status xml_comment_word(const struct tess_xml *xml)
{
    const char *at = xml->at + 1;
    while (at < xml->end && memchr(" />\n\r=", *at, 6) == NULL)
        at++;
    if (at < xml->end && *at == '=')
        return tess__lines_fail(xml->name, xml->line_at,
                                "a comment whose first word has a '=', which NCCL refuses: begin "
                                "it with a space");
    if (at - xml->at - 1 > TESS_XML_TEXT_MAX)
        return tess__lines_fail(xml->name, xml->line_at,
                                "a comment whose first word is longer than %d characters, which "
                                "NCCL refuses",
                                TESS_XML_TEXT_MAX);
    return TESS_OK;
}

/* Up to behind `mark`. */
static enum tess_status xml_skip(struct tess_xml *xml, const char *what, const char *mark)
{
    const int32_t first = xml->line_at;
    for (; xml->at < xml->end; xml->at++) {
        if (xml_starts(xml, mark)) {
            xml->at += strlen(mark);
            return TESS_OK;
        }
        xml->line_at += *xml->at == '\n';
    }
    return tess__lines_fail(xml->name, first, "the %s that begins here has no end (%s)", what,
                            mark);
}

static enum tess_status xml_doctype(struct tess_xml *xml)
{
    const char *close = memchr(xml->at, '>', (size_t)(xml->end - xml->at));
    const size_t length = (size_t)((close ? close : xml->end) - xml->at);
    if (memchr(xml->at, '[', length) != NULL || memchr(xml->at + 1, '<', length - 1) != NULL)
        return tess__lines_fail(xml->name, xml->line_at, "a DOCTYPE with declarations is refused");
    return xml_skip(xml, "DOCTYPE", ">");
}

/* A byte that does not belong between elements. */
static enum tess_status xml_stray(const struct tess_xml *xml)
{
    const unsigned char c = (unsigned char)*xml->at;
    if (c == '\t')
        return tess__lines_fail(xml->name, xml->line_at,
                                "a tab between elements, which NCCL refuses: indent with spaces");
    if (c == 0xef && xml->line_at == 1)
        return tess__lines_fail(xml->name, 1,
                                "a byte order mark, which NCCL refuses: save the file without one");
    if (c > ' ' && c < 0x7f)
        return tess__lines_fail(xml->name, xml->line_at, "'%c' between elements, expected '<'",
                                (int)c);
    return tess__lines_fail(xml->name, xml->line_at, "byte 0x%02x between elements, expected '<'",
                            (unsigned)c);
}

/* May the byte be skipped between elements? In plain XML inside an element, any text. */
static bool xml_skips(const struct tess_xml *xml, unsigned char c)
{
    if (!xml_plain(xml))
        return c == ' ' || c == '\n' || c == '\r';
    return isspace(c) || c >= 0x80 || (xml->open_count > 0 && c > ' ' && c != '&');
}

/* To a '<' that begins a tag, or to the end. */
static enum tess_status xml_between(struct tess_xml *xml)
{
    while (xml->at < xml->end) {
        if (xml_starts(xml, "<!--")) {
            if (!xml_plain(xml))
                TESS_TRY(xml_comment_word(xml));
            xml->at += 4;
            TESS_TRY(xml_skip(xml, "comment", "-->"));
        } else if (xml_plain(xml) && xml_starts(xml, "<?")) {
            TESS_TRY(xml_skip(xml, "declaration", "?>"));
        } else if (xml_plain(xml) && xml_starts(xml, "<!")) {
            TESS_TRY(xml_doctype(xml));
        } else if (*xml->at == '<') {
            return TESS_OK;
        } else if (xml_skips(xml, (unsigned char)*xml->at)) {
            xml->line_at += *xml->at == '\n';
            xml->at++;
        } else {
            return xml_stray(xml);
        }
    }
    return TESS_OK;
}

/* ---- tags ------------------------------------------------------------------------------------ */

static void xml_blanks(struct tess_xml *xml)
{
    for (; xml_plain(xml) && xml->at < xml->end && isspace((unsigned char)*xml->at); xml->at++)
        xml->line_at += *xml->at == '\n';
}

static enum tess_status xml_word(struct tess_xml *xml, const char *what,
                                 struct tess__word *word_out)
{
    const char *first = xml->at;
    while (xml->at < xml->end && xml->at - first <= TESS_XML_TEXT_MAX &&
           (isalnum((unsigned char)*xml->at) || memchr("_-.:", *xml->at, 4) != NULL))
        xml->at++;
    const size_t length = (size_t)(xml->at - first);
    if (xml->at == xml->end)
        return xml_ended(xml, "a tag");
    if (length == 0)
        return tess__lines_fail(xml->name, xml->line_at,
                                "byte 0x%02x where the name of an %s is expected",
                                (unsigned)(unsigned char)*xml->at, what);
    if (length > TESS_XML_TEXT_MAX)
        return tess__lines_fail(xml->name, xml->line_at,
                                "the name of an %s is longer than %d characters", what,
                                TESS_XML_TEXT_MAX);
    *word_out = (struct tess__word){first, length};
    return TESS_OK;
}

/* At a '&': one of XML's own references, or a character by its number. */
static bool xml_reference(const struct tess_xml *xml)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#"};
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (xml_starts(xml, known[k]))
            return true;
    }
    return false;
}

static enum tess_status xml_check_byte(const struct tess_xml *xml, struct tess__word name,
                                       char quote)
{
    const unsigned char c = (unsigned char)*xml->at;
    if (c == '&' && !(xml_plain(xml) && xml_reference(xml)))
        return tess__lines_fail(xml->name, xml->line_at,
                                "'&' in the value of %.*s: entities are refused",
                                TESS__SHOWN(name));
    const bool fits = xml_plain(xml) ? c >= ' ' || isspace(c) : c >= ' ' && c < 0x7f;
    if (!fits || c == '<')
        return tess__lines_fail(xml->name, xml->line_at,
                                "byte 0x%02x in the value of %.*s: its closing %c is missing",
                                (unsigned)c, TESS__SHOWN(name), (int)quote);
    return TESS_OK;
}

/* ="value", in quotes of either kind. */
static enum tess_status xml_value(struct tess_xml *xml, struct tess__word name,
                                  struct tess__word *value_out)
{
    xml_blanks(xml);
    if (xml->at < xml->end && *xml->at != '=')
        return tess__lines_fail(xml->name, xml->line_at,
                                "attribute %.*s: expected =\"value\" right after its name",
                                TESS__SHOWN(name));
    xml->at += xml->at < xml->end;
    xml_blanks(xml);
    if (xml->at == xml->end)
        return xml_ended(xml, "a tag");
    const char quote = *xml->at;
    if (quote != '"' && quote != '\'')
        return tess__lines_fail(xml->name, xml->line_at,
                                "attribute %.*s: its value is not in quotes", TESS__SHOWN(name));
    const char *first = ++xml->at;
    for (; xml->at < xml->end && *xml->at != quote; xml->at++) {
        if (!xml_plain(xml) && xml->at - first >= TESS_XML_TEXT_MAX)
            return tess__lines_fail(xml->name, xml->line_at,
                                    "the value of %.*s is longer than %d characters",
                                    TESS__SHOWN(name), TESS_XML_TEXT_MAX);
        TESS_TRY(xml_check_byte(xml, name, quote));
        xml->line_at += *xml->at == '\n';
    }
    if (xml->at == xml->end)
        return xml_ended(xml, "a value");
    *value_out = (struct tess__word){first, (size_t)(xml->at - first)};
    xml->at++;
    return TESS_OK;
}

static enum tess_status xml_attribute(struct tess_xml *xml)
{
    const int32_t most = xml_plain(xml) ? TESS_XML_PLAIN_ATTRIBUTES_MAX : TESS_XML_ATTRIBUTES_MAX;
    struct tess__word name, value;
    TESS_TRY(xml_word(xml, "attribute", &name));
    TESS_TRY(xml_value(xml, name, &value));
    if (xml->attribute_count == most)
        return tess__lines_fail(xml->name, xml->line_at, "<%.*s> has more than %d attributes",
                                TESS__SHOWN(xml->element), (int)most);
    for (int32_t i = 0; i < xml->attribute_count; i++) {
        if (tess__word_same(xml->attribute[i].name, name))
            return tess__lines_fail(xml->name, xml->line_at, "attribute %.*s is given twice",
                                    TESS__SHOWN(name));
    }
    xml->attribute[xml->attribute_count++] = (struct tess_xml_attribute){name, value};
    return TESS_OK;
}

/* The rest of <name ...> or <name .../>. */
static enum tess_status xml_attributes(struct tess_xml *xml)
{
    int32_t spaces = 0; /* beyond those that part attributes: each an attribute for NCCL */
    xml->attribute_count = 0;
    for (;;) {
        const char *before = xml->at;
        xml_blanks(xml);
        while (xml->at < xml->end && *xml->at == ' ')
            xml->at++;
        if (xml->at == xml->end)
            return xml_ended(xml, "a tag");
        const char c = *xml->at;
        const bool last = c == '>' || xml_starts(xml, "/>");
        if (xml->at > before && !xml_plain(xml))
            spaces += (int32_t)(xml->at - before) - (last ? 0 : 1);
        if (spaces > 0 && spaces + xml->attribute_count > TESS_XML_ATTRIBUTES_MAX)
            return tess__lines_fail(xml->name, xml->line_at,
                                    "<%.*s> has too many spaces, each of which NCCL takes for one "
                                    "of at most %d attributes: separate attributes by single "
                                    "spaces",
                                    TESS__SHOWN(xml->element), TESS_XML_ATTRIBUTES_MAX);
        if (last) {
            xml->close_next = c == '/';
            xml->at += c == '/' ? 2 : 1;
            return TESS_OK;
        }
        if (c == '\n' || c == '\r' || c == '\t')
            return tess__lines_fail(xml->name, xml->line_at,
                                    "<%.*s> has a %s in it, which NCCL refuses: a tag stays on one "
                                    "line, its attributes separated by single spaces",
                                    TESS__SHOWN(xml->element), c == '\t' ? "tab" : "line break");
        if (xml->at == before)
            return tess__lines_fail(xml->name, xml->line_at,
                                    "byte 0x%02x in <%.*s>, expected a space, > or />",
                                    (unsigned)(unsigned char)c, TESS__SHOWN(xml->element));
        TESS_TRY(xml_attribute(xml));
    }
}

static enum tess_status xml_open(struct tess_xml *xml)
{
    const int32_t deepest = xml_plain(xml) ? TESS_XML_PLAIN_DEPTH_MAX : TESS_XML_DEPTH_MAX;
    const int32_t most = xml_plain(xml) ? TESS_XML_PLAIN_ELEMENTS_MAX : TESS_XML_ELEMENTS_MAX;
    xml->at++;
    if (xml->at < xml->end && *xml->at == '?')
        return tess__lines_fail(xml->name, xml->line,
                                "a line <? ... ?>, which NCCL refuses: begin with "
                                "<system version=\"1\">");
    if (xml->at < xml->end && *xml->at == '!')
        return tess__lines_fail(xml->name, xml->line,
                                "a declaration <! ...>: DOCTYPE, entities and CDATA are refused");
    TESS_TRY(xml_word(xml, "element", &xml->element));
    if (xml->open_count == 0 && xml->elements > 0)
        return tess__lines_fail(xml->name, xml->line, "<%.*s> after the end of the topology",
                                TESS__SHOWN(xml->element));
    if (xml->open_count == deepest)
        return tess__lines_fail(xml->name, xml->line, "<%.*s> is nested more than %d deep",
                                TESS__SHOWN(xml->element), (int)deepest);
    if (++xml->elements > most)
        return tess__lines_fail(xml->name, xml->line, "more than %d elements", (int)most);
    TESS_TRY(xml_attributes(xml));
    xml->depth = xml->open_count;
    xml->open[xml->open_count].name = xml->element;
    xml->open[xml->open_count].line = xml->line;
    xml->open_count++;
    return TESS_OK;
}

/* The innermost element ends. */
static void xml_pop(struct tess_xml *xml)
{
    xml->close_next = false;
    xml->depth = --xml->open_count;
    xml->element = xml->open[xml->depth].name;
    xml->attribute_count = 0;
}

static enum tess_status xml_close(struct tess_xml *xml)
{
    struct tess__word name;
    xml->at += 2;
    TESS_TRY(xml_word(xml, "element", &name));
    xml_blanks(xml);
    if (xml->at == xml->end)
        return xml_ended(xml, "a tag");
    if (*xml->at != '>')
        return tess__lines_fail(xml->name, xml->line, "expected > right after </%.*s",
                                TESS__SHOWN(name));
    xml->at++;
    if (xml->open_count == 0)
        return tess__lines_fail(xml->name, xml->line, "</%.*s> ends nothing", TESS__SHOWN(name));
    const struct tess__word open = xml->open[xml->open_count - 1].name;
    if (!tess__word_same(open, name))
        return tess__lines_fail(
            xml->name, xml->line, "</%.*s> where <%.*s> of line %d is to be ended first",
            TESS__SHOWN(name), TESS__SHOWN(open), (int)xml->open[xml->open_count - 1].line);
    xml_pop(xml);
    return TESS_OK;
}

enum tess_status tess__xml_next(struct tess_xml *xml, enum tess_xml_event *event_out)
{
    *event_out = TESS_XML_CLOSE;
    if (xml->close_next) {
        xml_pop(xml);
        return TESS_OK;
    }
    TESS_TRY(xml_between(xml));
    xml->line = xml->line_at;
    if (xml->at < xml->end && xml_starts(xml, "</"))
        return xml_close(xml);
    if (xml->at < xml->end) {
        *event_out = TESS_XML_OPEN;
        return xml_open(xml);
    }
    *event_out = TESS_XML_END;
    if (xml->open_count > 0)
        return tess__lines_fail(xml->name, xml->line,
                                "the file ends before <%.*s> of line %d does: it was cut off",
                                TESS__SHOWN(xml->open[xml->open_count - 1].name),
                                (int)xml->open[xml->open_count - 1].line);
    if (xml->elements == 0)
        return tess__lines_fail(xml->name, xml->line, "no element in it");
    return TESS_OK;
}
