/*
 * Checks hwloc's XML before hwloc reads it, because hwloc reports only that it cannot load a file,
 * not why or where: whole and well-formed, of a size and depth that machines have, of version 1 or
 * 2. read_hwloc.c interprets the elements.
 */
#include "topology/hwloc/hwloc_text.h"

#include "tessera/check.h"
#include "topology/formats/xml.h"

#define TEXT_BYTES_MAX ((size_t)16 << 20) /* the largest machines have less than 1 MiB */
#define TEXT_INDEX_MAX 1048575            /* hwloc keeps sets with a bit for each number */

/* hwloc 1 wrote no version; 2 writes "2.0"; libraries of 2 do not read what 3 writes. */
static enum tess_status text_version(const struct tess_xml *xml)
{
    const struct tess__word *version = tess__xml_find(xml, "version");
    if (version == NULL || version->length == 0 ||
        (version->length > 1 && (version->text[0] == '1' || version->text[0] == '2') &&
         version->text[1] == '.'))
        return TESS_OK;
    return tess__lines_fail(xml->name, 0,
                            "written by hwloc as version '%.*s'; 1 and 2 can be read: have it "
                            "written by `lstopo --of xml` of hwloc 2",
                            TESS__SHOWN(*version));
}

static enum tess_status text_element(const struct tess_xml *xml)
{
    const struct tess__word *type = tess__xml_find(xml, "type");
    const struct tess__word *index = tess__xml_find(xml, "os_index");
    int32_t number;
    if (xml->depth == 0 && !tess__word_is(xml->element, "topology"))
        return tess__lines_fail(xml->name, xml->line, "<%.*s> at the top, expected <topology>",
                                TESS__SHOWN(xml->element));
    if (type && index && (tess__word_is(*type, "PU") || tess__word_is(*type, "NUMANode")) &&
        !tess__word_number(*index, TEXT_INDEX_MAX, &number))
        return tess__lines_fail(xml->name, xml->line, "os_index '%.*s'; expected 0 to %d",
                                TESS__SHOWN(*index), TEXT_INDEX_MAX);
    return xml->depth == 0 ? text_version(xml) : TESS_OK;
}

enum tess_status tess__hwloc_text_check(const char *name, const char *text, size_t bytes)
{
    struct tess_xml xml;
    enum tess_xml_event event = TESS_XML_OPEN;
    if (bytes > TEXT_BYTES_MAX)
        return tess__lines_fail(name, 0, "%zu MiB; hwloc's files have at most %zu", bytes >> 20,
                                TEXT_BYTES_MAX >> 20);
    tess__xml_begin(&xml, TESS_XML_PLAIN, name, text, bytes);
    while (event != TESS_XML_END) {
        TESS_TRY(tess__xml_next(&xml, &event));
        if (event == TESS_XML_OPEN)
            TESS_TRY(text_element(&xml));
    }
    return TESS_OK;
}
