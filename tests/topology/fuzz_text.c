/*
 * libFuzzer's entry to one reader of text, FUZZ_READ: whatever the bytes, a topology or
 * TESS_ERR_DATA with a message that names the file. Of hwloc's reader what looks through the text
 * before libhwloc does: that ends processes, and so is given a text in one of its own.
 */
#include "tessera/log.h"
#include "topology/formats/synthetic.h"
#include "topology/formats/xml.h"
#include "topology/hwloc/hwloc_text.h"

#include <stdlib.h>
#include <string.h>

/* As the readers; a line of words is one too. */
static enum tess_status tess_topology_read_synthetic(const char *name, const char *text,
                                                     size_t bytes,
                                                     const struct tess_topology_options *options,
                                                     struct tess_topology *topology)
{
    return tess__synthetic_build(name, 1, text, bytes, options, topology);
}

static enum tess_status fuzz_read_hwloc(const char *name, const char *text, size_t bytes,
                                        const struct tess_topology_options *options,
                                        struct tess_topology *topology)
{
    (void)options;
    (void)topology;
    return tess__hwloc_text_check(name, text, bytes);
}

static void fuzz_inside(struct tess__word part, const char *text, size_t bytes)
{
    if (part.length > TESS_XML_TEXT_MAX || part.text < text ||
        part.text + part.length > text + bytes)
        __builtin_trap();
}

/* Events alone: all that they hold is in the text, and elements that were opened are closed. */
static enum tess_status fuzz_read_xml(const char *name, const char *text, size_t bytes,
                                      const struct tess_topology_options *options,
                                      struct tess_topology *topology)
{
    (void)options;
    (void)topology;
    struct tess_xml xml;
    enum tess_xml_event event = TESS_XML_OPEN;
    int32_t open = 0;
    tess__xml_begin(&xml, TESS_XML_NCCL, name, text, bytes);
    while (event != TESS_XML_END) {
        enum tess_status status = tess__xml_next(&xml, &event);
        if (status != TESS_OK)
            return status;
        if (event == TESS_XML_END)
            break;
        fuzz_inside(xml.element, text, bytes);
        for (int32_t i = 0; event == TESS_XML_OPEN && i < xml.attribute_count; i++) {
            fuzz_inside(xml.attribute[i].name, text, bytes);
            fuzz_inside(xml.attribute[i].value, text, bytes);
        }
        open += event == TESS_XML_OPEN ? 1 : -1;
        if (open < 0 || open > TESS_XML_DEPTH_MAX)
            __builtin_trap();
    }
    if (open != 0)
        __builtin_trap();
    return TESS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    (void)tess_topology_read_synthetic; /* FUZZ_READ may be one of these, or another */
    (void)fuzz_read_hwloc;
    (void)fuzz_read_xml;
    tess_log_set_level(TESS_LOG_ERROR);
    struct tess_topology *topology = tess_topology_new();
    if (!topology)
        return 0;
    enum tess_status status = FUZZ_READ("fuzz.txt", (const char *)bytes, count, NULL, topology);
    if (status != TESS_OK &&
        (status != TESS_ERR_DATA || !strstr(tess_log_last_error(), "fuzz.txt")))
        __builtin_trap();
    tess_topology_free(topology);
    return 0;
}
