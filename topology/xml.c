/*
 * The pull parser of xml.h: one pass over the text, nothing allocated, every step moves forward.
 * It is strict where NCCL's parser is, so that a file that is read here is read there.
 */
#include "topology/xml.h"

#include "tessera/check.h"

#include <string.h>

void tess__xml_begin(struct tess_xml *xml, const char *name, const char *text, size_t bytes)
{
    memset(xml, 0, sizeof(*xml));
    xml->name = name;
    xml->at = text;
    xml->end = text + bytes;
    xml->line_at = 1;
    xml->line = 1;
}

bool tess__xml_is(struct tess_xml_text text, const char *word)
{
    return strlen(word) == (size_t)text.length && memcmp(text.at, word, (size_t)text.length) == 0;
}

const struct tess_xml_text *tess__xml_find(const struct tess_xml *xml, const char *name)
{
    for (int32_t i = 0; i < xml->attribute_count; i++) {
        if (tess__xml_is(xml->attribute[i].name, name))
            return &xml->attribute[i].value;
    }
    return NULL;
}

static bool xml_starts(const struct tess_xml *xml, const char *word)
{
    const size_t length = strlen(word);
    return (size_t)(xml->end - xml->at) >= length && memcmp(xml->at, word, length) == 0;
}

static enum tess_status xml_ended(const struct tess_xml *xml, const char *where)
{
    TESS_FAIL(TESS_ERR_DATA, "%s:%d: the file ends within %s: it was cut off", xml->name,
              (int)xml->line_at, where);
}

/* NCCL reads the first word of a comment like the name of an element. */
static enum tess_status xml_comment_word(const struct tess_xml *xml)
{
    const char *at = xml->at + 1;
    while (at < xml->end && memchr(" />\n\r", *at, 5) == NULL && *at != '=')
        at++;
    if (at < xml->end && *at == '=')
        TESS_FAIL(
            TESS_ERR_DATA,
            "%s:%d: a comment whose first word has a '=', which NCCL refuses: begin it with a "
            "space",
            xml->name, (int)xml->line_at);
    if (at - xml->at - 1 > TESS_XML_TEXT_MAX)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: a comment whose first word is longer than %d characters, which NCCL "
                  "refuses",
                  xml->name, (int)xml->line_at, TESS_XML_TEXT_MAX);
    return TESS_OK;
}

static enum tess_status xml_comment(struct tess_xml *xml)
{
    const int32_t first = xml->line_at;
    TESS_TRY(xml_comment_word(xml));
    for (xml->at += 4; xml->at < xml->end; xml->at++) {
        if (xml_starts(xml, "-->")) {
            xml->at += 3;
            return TESS_OK;
        }
        if (*xml->at == '\n')
            xml->line_at++;
    }
    TESS_FAIL(TESS_ERR_DATA, "%s:%d: the comment that begins here has no end (-->)", xml->name,
              (int)first);
}

/* A byte that does not belong between elements. */
static enum tess_status xml_stray(const struct tess_xml *xml)
{
    const unsigned char c = (unsigned char)*xml->at;
    if (c == '\t')
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: a tab between elements, which NCCL refuses: indent with spaces",
                  xml->name, (int)xml->line_at);
    if (c == 0xef && xml->line_at == 1)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:1: a byte order mark, which NCCL refuses: save the file without one",
                  xml->name);
    if (c > ' ' && c < 0x7f)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: '%c' between elements: text is not part of a topology, expected '<'",
                  xml->name, (int)xml->line_at, (int)c);
    TESS_FAIL(TESS_ERR_DATA, "%s:%d: byte 0x%02x between elements, expected '<'", xml->name,
              (int)xml->line_at, (unsigned)c);
}

/* Over blanks and comments, to a '<' that begins a tag, or to the end. */
static enum tess_status xml_between(struct tess_xml *xml)
{
    while (xml->at < xml->end) {
        const char c = *xml->at;
        if (c == '\n')
            xml->line_at++;
        if (c == ' ' || c == '\n' || c == '\r')
            xml->at++;
        else if (xml_starts(xml, "<!--"))
            TESS_TRY(xml_comment(xml));
        else if (c == '<')
            return TESS_OK;
        else
            return xml_stray(xml);
    }
    return TESS_OK;
}

static bool xml_in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':';
}

static enum tess_status xml_word(struct tess_xml *xml, const char *what,
                                 struct tess_xml_text *word_out)
{
    const char *first = xml->at;
    while (xml->at < xml->end && xml_in_name(*xml->at) && xml->at - first <= TESS_XML_TEXT_MAX)
        xml->at++;
    const int32_t length = (int32_t)(xml->at - first);
    if (xml->at == xml->end)
        return xml_ended(xml, "a tag");
    if (length == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: byte 0x%02x where the name of an %s is expected",
                  xml->name, (int)xml->line_at, (unsigned)(unsigned char)*xml->at, what);
    if (length > TESS_XML_TEXT_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: the name of an %s is longer than %d characters", xml->name,
                  (int)xml->line_at, what, TESS_XML_TEXT_MAX);
    *word_out = (struct tess_xml_text){first, length};
    return TESS_OK;
}

/* ="value", in quotes of either kind. */
static enum tess_status xml_value(struct tess_xml *xml, struct tess_xml_text name,
                                  struct tess_xml_text *value_out)
{
    if (*xml->at != '=')
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: attribute %.*s: expected =\"value\" right after its name",
                  xml->name, (int)xml->line_at, (int)name.length, name.at);
    if (++xml->at == xml->end)
        return xml_ended(xml, "a tag");
    const char quote = *xml->at;
    if (quote != '"' && quote != '\'')
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: attribute %.*s: its value is not in quotes", xml->name,
                  (int)xml->line_at, (int)name.length, name.at);
    const char *first = ++xml->at;
    for (; xml->at < xml->end && *xml->at != quote; xml->at++) {
        const unsigned char c = (unsigned char)*xml->at;
        if (xml->at - first >= TESS_XML_TEXT_MAX)
            TESS_FAIL(TESS_ERR_DATA, "%s:%d: the value of %.*s is longer than %d characters",
                      xml->name, (int)xml->line_at, (int)name.length, name.at, TESS_XML_TEXT_MAX);
        if (c == '&')
            TESS_FAIL(TESS_ERR_DATA,
                      "%s:%d: '&' in the value of %.*s: entities are not part of a topology",
                      xml->name, (int)xml->line_at, (int)name.length, name.at);
        if (c < ' ' || c >= 0x7f || c == '<')
            TESS_FAIL(
                TESS_ERR_DATA, "%s:%d: byte 0x%02x in the value of %.*s: its closing %c is missing",
                xml->name, (int)xml->line_at, (unsigned)c, (int)name.length, name.at, (int)quote);
    }
    if (xml->at == xml->end)
        return xml_ended(xml, "a value");
    *value_out = (struct tess_xml_text){first, (int32_t)(xml->at - first)};
    xml->at++;
    return TESS_OK;
}

static enum tess_status xml_attribute(struct tess_xml *xml)
{
    struct tess_xml_text name, value;
    TESS_TRY(xml_word(xml, "attribute", &name));
    TESS_TRY(xml_value(xml, name, &value));
    if (xml->attribute_count == TESS_XML_ATTRIBUTES_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: <%.*s> has more than %d attributes", xml->name,
                  (int)xml->line_at, (int)xml->element.length, xml->element.at,
                  TESS_XML_ATTRIBUTES_MAX);
    for (int32_t i = 0; i < xml->attribute_count; i++) {
        const struct tess_xml_text other = xml->attribute[i].name;
        if (other.length == name.length && memcmp(other.at, name.at, (size_t)name.length) == 0)
            TESS_FAIL(TESS_ERR_DATA, "%s:%d: attribute %.*s is given twice", xml->name,
                      (int)xml->line_at, (int)name.length, name.at);
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
        while (xml->at < xml->end && *xml->at == ' ')
            xml->at++;
        if (xml->at == xml->end)
            return xml_ended(xml, "a tag");
        const char c = *xml->at;
        const bool last = c == '>' || xml_starts(xml, "/>");
        if (xml->at > before)
            spaces += (int32_t)(xml->at - before) - (last ? 0 : 1);
        if (spaces + xml->attribute_count > TESS_XML_ATTRIBUTES_MAX)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s:%d: <%.*s> has too many spaces, each of which NCCL takes for one of at "
                      "most %d attributes: separate attributes by single spaces",
                      xml->name, (int)xml->line_at, (int)xml->element.length, xml->element.at,
                      TESS_XML_ATTRIBUTES_MAX);
        if (last) {
            xml->close_next = c == '/';
            xml->at += c == '/' ? 2 : 1;
            return TESS_OK;
        }
        if (c == '\n' || c == '\r' || c == '\t')
            TESS_FAIL(TESS_ERR_DATA,
                      "%s:%d: <%.*s> has a %s in it, which NCCL refuses: a tag stays on one line, "
                      "its attributes separated by single spaces",
                      xml->name, (int)xml->line_at, (int)xml->element.length, xml->element.at,
                      c == '\t' ? "tab" : "line break");
        if (xml->at == before)
            TESS_FAIL(TESS_ERR_DATA, "%s:%d: byte 0x%02x in <%.*s>, expected a space, > or />",
                      xml->name, (int)xml->line_at, (unsigned)(unsigned char)c,
                      (int)xml->element.length, xml->element.at);
        TESS_TRY(xml_attribute(xml));
    }
}

static enum tess_status xml_open(struct tess_xml *xml)
{
    xml->at++;
    if (xml->at < xml->end && *xml->at == '?')
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: a line <? ... ?>, which NCCL refuses: begin with <system version=\"1\">",
                  xml->name, (int)xml->line);
    if (xml->at < xml->end && *xml->at == '!')
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: a declaration <! ...>: DOCTYPE, entities and CDATA are refused",
                  xml->name, (int)xml->line);
    TESS_TRY(xml_word(xml, "element", &xml->element));
    if (xml->open_count == 0 && xml->elements > 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: <%.*s> after the end of the topology", xml->name,
                  (int)xml->line, (int)xml->element.length, xml->element.at);
    if (xml->open_count == TESS_XML_DEPTH_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: <%.*s> is nested more than %d deep", xml->name,
                  (int)xml->line, (int)xml->element.length, xml->element.at, TESS_XML_DEPTH_MAX);
    if (++xml->elements > TESS_XML_ELEMENTS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: more than %d elements", xml->name, (int)xml->line,
                  TESS_XML_ELEMENTS_MAX);
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
    struct tess_xml_text name;
    xml->at += 2;
    TESS_TRY(xml_word(xml, "element", &name));
    if (*xml->at != '>')
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: expected > right after </%.*s", xml->name, (int)xml->line,
                  (int)name.length, name.at);
    xml->at++;
    if (xml->open_count == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: </%.*s> ends nothing", xml->name, (int)xml->line,
                  (int)name.length, name.at);
    const struct tess_xml_text open = xml->open[xml->open_count - 1].name;
    if (open.length != name.length || memcmp(open.at, name.at, (size_t)name.length) != 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: </%.*s> where <%.*s> of line %d is to be ended first",
                  xml->name, (int)xml->line, (int)name.length, name.at, (int)open.length, open.at,
                  (int)xml->open[xml->open_count - 1].line);
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
        TESS_FAIL(TESS_ERR_DATA,
                  "%s:%d: the file ends before <%.*s> of line %d does: it was cut off", xml->name,
                  (int)xml->line, (int)xml->open[xml->open_count - 1].name.length,
                  xml->open[xml->open_count - 1].name.at, (int)xml->open[xml->open_count - 1].line);
    if (xml->elements == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: no element in it, expected <system version=\"1\">",
                  xml->name, (int)xml->line);
    return TESS_OK;
}
