/*
 * A pull parser for the XML that NCCL writes and reads, which is a small part of XML: elements with
 * quoted attributes and comments, on lines that end with LF or CR LF. What NCCL's own parser
 * refuses is refused here too, with the line and the reason: declarations and DOCTYPE (so there
 * are no entities either), tabs between elements, text, tags that run over a line. Elements and
 * attributes mean nothing to it.
 */
#ifndef TOPOLOGY_XML_H
#define TOPOLOGY_XML_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TESS_XML_DEPTH_MAX      32
#define TESS_XML_ATTRIBUTES_MAX 16    /* NCCL's */
#define TESS_XML_TEXT_MAX       253   /* of a name or a value; NCCL's */
#define TESS_XML_ELEMENTS_MAX   65536 /* NCCL 2.30's of a graph file */

enum tess_xml_event {
    TESS_XML_OPEN,  /* an element begins: xml->element and xml->attribute */
    TESS_XML_CLOSE, /* xml->element ends */
    TESS_XML_END    /* of the file; exactly one element was there at the top */
};

/* Borrowed from the text. Values are printable ASCII without < and &. */
struct tess_xml_text {
    const char *at;
    int32_t length;
};

struct tess_xml_attribute {
    struct tess_xml_text name, value;
};

struct tess_xml {
    /* to read */
    struct tess_xml_text element;
    struct tess_xml_attribute attribute[TESS_XML_ATTRIBUTES_MAX];
    int32_t attribute_count;
    int32_t depth; /* elements around this one: 0 for the one at the top */
    int32_t line;  /* of the event, from 1 */
    const char *name;

    /* the parser's own */
    const char *at, *end;
    int32_t line_at, open_count, elements;
    bool close_next; /* the element ended where it began: <a/> */
    struct {
        struct tess_xml_text name;
        int32_t line;
    } open[TESS_XML_DEPTH_MAX];
};

/* Begin to read `text` [bytes], borrowed; `name` is the file's, for messages, borrowed. */
void tess__xml_begin(struct tess_xml *xml, const char *name, const char *text, size_t bytes);

/* TESS_ERR_DATA with "FILE:LINE: ..."; the parser is not to be asked again after that. */
enum tess_status tess__xml_next(struct tess_xml *xml, enum tess_xml_event *event_out);

bool tess__xml_is(struct tess_xml_text text, const char *word);

/* The attribute's value, or NULL. */
const struct tess_xml_text *tess__xml_find(const struct tess_xml *xml, const char *name);

#endif
