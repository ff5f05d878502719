/*
 * A pull parser for XML: elements with quoted attributes, and comments. Two dialects:
 *
 * TESS_XML_NCCL: the small part of XML that NCCL's own parser takes. What NCCL refuses is refused
 * with line and reason: declarations and DOCTYPE (so there are no entities), tabs between elements,
 * text, a tag on several lines.
 *
 * TESS_XML_PLAIN: what libxml2 and hwloc write: declarations, text between elements (skipped), any
 * blanks in tags, XML's five references. A DOCTYPE may name a file; its own declarations, by which
 * a few bytes become gigabytes, are refused.
 */
#ifndef TOPOLOGY_XML_H
#define TOPOLOGY_XML_H

#include "topology/formats/lines.h"

enum tess_xml_dialect { TESS_XML_NCCL, TESS_XML_PLAIN };

#define TESS_XML_DEPTH_MAX      32    /* NCCL */
#define TESS_XML_ATTRIBUTES_MAX 16    /* NCCL's own limit */
#define TESS_XML_TEXT_MAX       253   /* a name, or NCCL's value; NCCL's own limit */
#define TESS_XML_ELEMENTS_MAX   65536 /* NCCL 2.30's limit for a graph file */

#define TESS_XML_PLAIN_DEPTH_MAX      64
#define TESS_XML_PLAIN_ATTRIBUTES_MAX 32
#define TESS_XML_PLAIN_ELEMENTS_MAX   262144

enum tess_xml_event {
    TESS_XML_OPEN,  /* an element begins: xml->element and xml->attribute */
    TESS_XML_CLOSE, /* xml->element ends */
    TESS_XML_END    /* of the file; exactly one element was at the top */
};

/* Borrowed from the text. NCCL's values are printable ASCII without < and &. */
struct tess_xml_attribute {
    struct tess__word name, value;
};

struct tess_xml {
    /* to read */
    struct tess__word element;
    struct tess_xml_attribute attribute[TESS_XML_PLAIN_ATTRIBUTES_MAX];
    int32_t attribute_count;
    int32_t depth; /* elements around this one: 0 for the one at the top */
    int32_t line;  /* of the event, from 1 */
    const char *name;

    /* the parser's own */
    enum tess_xml_dialect dialect;
    const char *at, *end;
    int32_t line_at, open_count, elements;
    bool close_next; /* the element ended where it began: <a/> */
    struct {
        struct tess__word name;
        int32_t line;
    } open[TESS_XML_PLAIN_DEPTH_MAX];
};

/* Begin to read `text` [bytes], borrowed; `name` is the file's, for messages, borrowed. */
void tess__xml_begin(struct tess_xml *xml, enum tess_xml_dialect dialect, const char *name,
                     const char *text, size_t bytes);

/* TESS_ERR_DATA with "FILE:LINE: ..."; not to be called again after that. */
enum tess_status tess__xml_next(struct tess_xml *xml, enum tess_xml_event *event_out);

/* The attribute's value, or NULL. */
const struct tess__word *tess__xml_find(const struct tess_xml *xml, const char *name);

#endif
