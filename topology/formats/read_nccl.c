/*
 * NCCL's topology XML, version 1, and rccl's version 2, from text to items: which elements belong
 * where, what their attributes may be, and NCCL's rules for what they mean (graph/xml.cc and
 * graph/topo.cc of NCCL 2.28). Elements of other names are passed over, as NCCL does.
 */
#include "topology/formats/lines.h"
#include "topology/formats/nccl.h"
#include "topology/machine/assume.h"
#include "topology/machine/bus.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct tess_xml xml;
    struct tess_nccl_file *file;
    const struct tess_topology_options *options;
    int32_t version;                   /* of <system> */
    int32_t open[TESS_XML_DEPTH_MAX];  /* [depth] item */
    bool warned_kbits, warned_no_rate; /* about speeds of cards */
};

/* ---- values ---------------------------------------------------------------------------------- */

static enum tess_status reader_expected(const struct reader *r, const char *attribute,
                                        const struct tess__word *value, const char *expected)
{
    const struct tess_xml *xml = &r->xml;
    if (value == NULL)
        return tess__lines_fail(xml->name, xml->line, "<%.*s> has no %s, expected %s",
                                TESS__SHOWN(xml->element), attribute, expected);
    return tess__lines_fail(xml->name, xml->line, "%s=\"%.*s\" of <%.*s>, expected %s", attribute,
                            TESS__SHOWN(*value), TESS__SHOWN(xml->element), expected);
}

/* Decimal, or hexadecimal after 0x. With a 0 in front NCCL would read octal: refused. */
static bool reader_whole(struct tess__word text, int64_t *value_out)
{
    const bool negative = text.length > 0 && text.text[0] == '-';
    const char *at = text.text + negative;
    const size_t length = text.length - negative;
    uint64_t value;
    const bool hex = length > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X');
    if (hex ? !tess__digits(at + 2, length - 2, 16, &value)
            : !tess__digits(at, length, 10, &value) || (length > 1 && at[0] == '0'))
        return false;
    if (value > INT64_MAX)
        return false;
    *value_out = negative ? -(int64_t)value : (int64_t)value;
    return true;
}

/* An attribute that may be absent: *value_out stays as it is then. */
static enum tess_status reader_int(const struct reader *r, const char *attribute, int64_t least,
                                   int64_t most, int32_t *value_out)
{
    const struct tess__word *text = tess__xml_find(&r->xml, attribute);
    int64_t value;
    if (text == NULL)
        return TESS_OK;
    if (!reader_whole(*text, &value) || value < least || value > most) {
        char expected[80];
        snprintf(expected, sizeof(expected), "a whole number from %" PRId64 " to %" PRId64, least,
                 most);
        return reader_expected(r, attribute, text, expected);
    }
    *value_out = (int32_t)value;
    return TESS_OK;
}

/* One that has to be there. */
static enum tess_status reader_need(const struct reader *r, const char *attribute, int64_t least,
                                    int64_t most, int32_t *value_out)
{
    if (tess__xml_find(&r->xml, attribute) == NULL)
        return reader_expected(r, attribute, NULL, "a whole number");
    return reader_int(r, attribute, least, most, value_out);
}

/* Microseconds, "0.000000"; not strtod(), which follows the locale. */
static enum tess_status reader_latency(const struct reader *r, double *value_out)
{
    const struct tess__word *text = tess__xml_find(&r->xml, "latency");
    if (text == NULL)
        return TESS_OK;
    const char *dot = memchr(text->text, '.', text->length);
    const size_t before = dot != NULL ? (size_t)(dot - text->text) : text->length;
    const size_t after = dot != NULL ? text->length - before - 1 : 0;
    uint64_t whole, part = 0;
    if (!tess__digits(text->text, before, 10, &whole) || whole > 1000000000 ||
        (dot != NULL && !tess__digits(dot + 1, after, 10, &part)))
        return reader_expected(r, "latency", text, "microseconds, as in 1.5");
    double scale = 1;
    for (size_t i = 0; i < after; i++)
        scale *= 10;
    *value_out = (double)whole + (double)part / scale;
    return TESS_OK;
}

static bool reader_starts(struct tess__word text, const char *word)
{
    return strlen(word) <= text.length && memcmp(text.text, word, strlen(word)) == 0;
}

struct reader_prefix {
    const char *text; /* NULL: the last one, any text */
    int32_t value;
};

/* The value of the first prefix that the text begins with. */
static int32_t reader_prefix(struct tess__word text, const struct reader_prefix *known)
{
    while (known->text != NULL && !reader_starts(text, known->text))
        known++;
    return known->value;
}

/* By the beginning of the class; NCCL takes any other for a switch. 0x12 is rccl's. */
static enum tess_status reader_class(const struct reader *r, const char *attribute,
                                     enum tess_nccl_class *class_out)
{
    static const struct reader_prefix known[] = {
        {"0x0604", TESS_NCCL_CLASS_SWITCH}, {"0x0801", TESS_NCCL_CLASS_SWITCH},
        {"0x068001", TESS_NCCL_CLASS_CPU},  {"0x0680", TESS_NCCL_CLASS_NVSWITCH},
        {"0x03", TESS_NCCL_CLASS_GPU},      {"0x12", TESS_NCCL_CLASS_GPU},
        {"0x02", TESS_NCCL_CLASS_NIC},      {NULL, TESS_NCCL_CLASS_OTHER}};
    const struct tess__word *text = tess__xml_find(&r->xml, attribute);
    uint64_t number;
    *class_out = TESS_NCCL_CLASS_NONE;
    if (text == NULL)
        return TESS_OK;
    if (!reader_starts(*text, "0x") || !tess__digits(text->text + 2, text->length - 2, 16, &number))
        return reader_expected(r, attribute, text, "a PCI class, as in 0x030200");
    *class_out = (enum tess_nccl_class)reader_prefix(*text, known);
    return TESS_OK;
}

/*
 * NCCL accepts these beginnings and takes any other text for 8 GT/s. Without the attribute the
 * caller's guess counts: a file with an empty link_speed comes from a machine that hides it.
 */
static int32_t reader_speed(const struct reader *r)
{
    static const struct reader_prefix known[] = {{"2.5 GT/s", 1},
                                                 {"5 GT/s", 2},
                                                 {"8 GT/s", 3},
                                                 {"16 GT/s", 4},
                                                 {"32 GT/s", 5},
                                                 {"5.0 GT/s PCIe", 2},
                                                 {"8.0 GT/s PCIe", 3},
                                                 {"16.0 GT/s PCIe", 4},
                                                 {"32.0 GT/s PCIe", 5},
                                                 {"64.0 GT/s PCIe", 6},
                                                 {NULL, 3}};
    const struct tess__word *text = tess__xml_find(&r->xml, "link_speed");
    const int32_t guess = r->options->pci_gen;
    if ((text == NULL || text->length == 0) && guess <= 0)
        r->file->remarks |= TESS_REMARK_PCI;
    if (text == NULL || (text->length == 0 && guess > 0))
        return tess__rate_pci(guess > 0 ? guess : 4);
    return tess__rate_pci(reader_prefix(*text, known));
}

/* ---- elements -------------------------------------------------------------------------------- */

static enum tess_status reader_system(struct reader *r, struct tess_nccl_item *item)
{
    (void)item;
    const struct tess__word *text = tess__xml_find(&r->xml, "version");
    int64_t version;
    if (text == NULL || !reader_whole(*text, &version) || (version != 1 && version != 2))
        return reader_expected(r, "version", text, "1 (NCCL's) or 2 (rccl's)");
    r->version = (int32_t)version;
    return TESS_OK;
}

/* Hosts differ by host_hash, which a dump of one NVLink domain of several hosts has. */
static enum tess_status reader_host(struct reader *r, int32_t *host_out)
{
    struct tess_nccl_file *file = r->file;
    const struct tess__word *text = tess__xml_find(&r->xml, "host_hash");
    uint64_t hash = 0;
    if (text != NULL) {
        const size_t skip = reader_starts(*text, "0x") ? 2 : 0;
        if (!tess__digits(text->text + skip, text->length - skip, 16, &hash))
            return reader_expected(r, "host_hash", text, "a hexadecimal number");
    }
    file->host_hash[file->host_count] = hash; /* found at the latest there */
    for (*host_out = 0; file->host_hash[*host_out] != hash;)
        ++*host_out;
    file->host_count += *host_out == file->host_count;
    return TESS_OK;
}

static enum tess_cpu_maker reader_maker(const struct reader *r)
{
    static const struct {
        const char *attribute, *word;
        enum tess_cpu_maker maker;
    } known[] = {
        {"arch", "arm64", TESS_CPU_ARM},
        {"arch", "ppc64", TESS_CPU_POWER},
        {"vendor", "GenuineIntel", TESS_CPU_INTEL},
        {"vendor", "AuthenticAMD", TESS_CPU_AMD},
        {"vendor", "CentaurHauls", TESS_CPU_ZHAOXIN},
        {"vendor", "  Shanghai  ", TESS_CPU_ZHAOXIN},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const struct tess__word *text = tess__xml_find(&r->xml, known[i].attribute);
        if (text != NULL && tess__word_is(*text, known[i].word))
            return known[i].maker;
    }
    return TESS_CPU_UNKNOWN;
}

static enum tess_status reader_cpu(struct reader *r, struct tess_nccl_item *item)
{
    struct tess_nccl_file *file = r->file;
    if (file->cpu_count++ == TESS_NCCL_CPUS_MAX)
        return tess__lines_fail(file->name, item->line, "more than %d <cpu>", TESS_NCCL_CPUS_MAX);
    TESS_TRY(reader_need(r, "numaid", -1, 65535, &item->index));
    TESS_TRY(reader_host(r, &item->host));
    item->maker = reader_maker(r);
    if (item->maker == TESS_CPU_UNKNOWN)
        file->remarks |= TESS_REMARK_CPU;
    TESS_TRY(reader_int(r, "modelid", 0, INT32_MAX, &item->model));
    for (int32_t i = 0; i < file->count; i++) {
        const struct tess_nccl_item *other = &file->item[i];
        if (other->kind == TESS_NCCL_CPU && other->host == item->host &&
            other->index == item->index)
            return tess__lines_fail(file->name, item->line,
                                    "numaid %d is that of the <cpu> of line %d already",
                                    (int)item->index, (int)other->line);
    }
    return TESS_OK;
}

static enum tess_status reader_bus_id(const struct reader *r, const char *attribute,
                                      uint64_t *bus_out)
{
    const struct tess__word *text = tess__xml_find(&r->xml, attribute);
    if (text == NULL || !tess__bus_parse(text->text, text->length, bus_out))
        return reader_expected(r, attribute, text, "a PCI bus id, as in 0000:17:00.0");
    return TESS_OK;
}

static enum tess_status reader_pci(struct reader *r, struct tess_nccl_item *item)
{
    static const char *const ids[] = {"vendor", "device", "subsystem_vendor", "subsystem_device"};
    int32_t width = 0;
    item->sm = r->options->sm;
    TESS_TRY(reader_bus_id(r, "busid", &item->bus));
    TESS_TRY(reader_class(r, "class", &item->class));
    TESS_TRY(reader_int(r, "link_width", 0, 64, &width));
    item->gbs = TESS_GBS_PCI((double)reader_speed(r), width == 0 ? 16 : width);
    for (int i = 0; i < 4; i++) {
        int32_t id = 0;
        TESS_TRY(reader_int(r, ids[i], 0, 0xffff, &id));
        item->device = item->device << 16 | (uint64_t)id;
    }
    return TESS_OK;
}

/* rccl's gcn: "gfx942", or a number that older ones made of it: 906, and 910 of gfx90a. */
static int32_t reader_gfx(const struct reader *r)
{
    const struct tess__word *text = tess__xml_find(&r->xml, "gcn");
    uint64_t gfx;
    if (text == NULL)
        return 0;
    if (tess__word_is(*text, "910"))
        return 0x90a;
    const size_t skip = reader_starts(*text, "gfx") ? 3 : 0;
    if (!tess__digits(text->text + skip, text->length - skip, 16, &gfx) || gfx > 0xffff)
        return 0;
    return (int32_t)gfx;
}

static enum tess_status reader_gpu(struct reader *r, struct tess_nccl_item *item)
{
    r->file->gpu_count++;
    item->index = TESS_NCCL_UNKNOWN;
    item->gfx = reader_gfx(r);
    TESS_TRY(reader_int(r, "dev", -1, 65535, &item->index));
    if (r->version == 1) /* rccl's sm counts compute units */
        TESS_TRY(reader_int(r, "sm", 0, 9999, &item->sm));
    if (item->sm == 0)
        item->sm = r->options->sm;
    return TESS_OK;
}

static enum tess_status reader_nvlink(struct reader *r, struct tess_nccl_item *item)
{
    const struct tess__word *target = tess__xml_find(&r->xml, "target");
    TESS_TRY(reader_need(r, "count", 1, 4096, &item->count));
    TESS_TRY(reader_class(r, "tclass", &item->class));
    r->file->nvlink_count++;
    if (tess__word_is(r->xml.element, "xgmi")) {
        const int32_t gfx = r->file->item[r->open[r->xml.depth - 1]].gfx;
        item->gbs = tess__rate_xgmi(gfx);
        r->file->remarks |= gfx > 0 ? 0 : TESS_REMARK_GFX;
    }
    item->hidden = target != NULL && reader_starts(*target, "fffffff:ffff:ff");
    return item->hidden ? TESS_OK : reader_bus_id(r, "target", &item->bus);
}

static enum tess_status reader_c2c(struct reader *r, struct tess_nccl_item *item)
{
    int32_t mbs = 0;
    r->file->nvlink_count++;
    TESS_TRY(reader_need(r, "bw", 1, 100000000, &mbs));
    TESS_TRY(reader_need(r, "count", 1, 4096, &item->count));
    item->gbs = (double)mbs * item->count / 1000;
    return TESS_OK;
}

/* One warning of each kind in a file: its cards are mostly alike. */
static enum tess_status reader_nic_speed(struct reader *r, double *gbs_out)
{
    int32_t speed = 0;
    TESS_TRY(reader_int(r, "speed", INT32_MIN, INT32_MAX, &speed));
    const enum tess_nic_unit unit = tess__rate_nic(speed, gbs_out);
    if (unit == TESS_NIC_KBITS && !r->warned_kbits)
        tess_log(
            TESS_LOG_WARN,
            "%s:%d: speed=\"%d\" of <net> would be %.6g GB/s: taken as kbit/s, %.4g GB/s, here "
            "and below",
            r->xml.name, (int)r->xml.line, (int)speed, speed / 8000.0, *gbs_out);
    else if (unit == TESS_NIC_NO_RATE && !r->warned_no_rate)
        tess_log(TESS_LOG_WARN,
                 "%s:%d: speed=\"%d\" of <net> would be %.6g GB/s, which no card has (Mbit/s was "
                 "expected): counted as unknown, %.4g GB/s, here and below",
                 r->xml.name, (int)r->xml.line, (int)speed, speed / 8000.0, *gbs_out);
    r->warned_kbits |= unit == TESS_NIC_KBITS;
    r->warned_no_rate |= unit == TESS_NIC_NO_RATE;
    return TESS_OK;
}

static enum tess_status reader_net(struct reader *r, struct tess_nccl_item *item)
{
    const struct tess__word *name = tess__xml_find(&r->xml, "name");
    item->index = TESS_NCCL_UNKNOWN;
    TESS_TRY(reader_int(r, "dev", -1, 65535, &item->index));
    TESS_TRY(reader_nic_speed(r, &item->gbs));
    TESS_TRY(reader_latency(r, &item->latency_us));
    if (name != NULL)
        item->name = *name;
    return TESS_OK;
}

static enum tess_status reader_pcilink(struct reader *r, struct tess_nccl_item *item)
{
    return reader_bus_id(r, "target", &item->bus);
}

/* ---- the tree -------------------------------------------------------------------------------- */

#define READER_IN(kind) (1u << TESS_NCCL_##kind)

static const struct reader_element {
    const char *word, *within;
    enum tess_nccl_kind kind;
    uint32_t parents; /* bits of kinds */
    enum tess_status (*attributes)(struct reader *r, struct tess_nccl_item *item); /* NULL: none */
} reader_elements[] = {
    {"system", "the top of the file", TESS_NCCL_SYSTEM, 0, reader_system},
    {"cpu", "<system>", TESS_NCCL_CPU, READER_IN(SYSTEM), reader_cpu},
    {"pci", "<cpu> or <pci>", TESS_NCCL_PCI, READER_IN(CPU) | READER_IN(PCI), reader_pci},
    {"gpu", "<pci>", TESS_NCCL_GPU, READER_IN(PCI), reader_gpu},
    {"nic", "<cpu> or <pci>", TESS_NCCL_NIC, READER_IN(CPU) | READER_IN(PCI), NULL},
    {"net", "<nic>", TESS_NCCL_NET, READER_IN(NIC), reader_net},
    {"nvlink", "<gpu>", TESS_NCCL_NVLINK, READER_IN(GPU), reader_nvlink},
    {"xgmi", "<gpu>", TESS_NCCL_NVLINK, READER_IN(GPU), reader_nvlink},
    {"c2c", "<gpu>", TESS_NCCL_C2C, READER_IN(GPU), reader_c2c},
    {"pcilink", "<pci>", TESS_NCCL_PCILINK, READER_IN(PCI), reader_pcilink},
};

/* What the parent notes about its children. */
static enum tess_status reader_note_parent(const struct reader *r, int32_t number)
{
    const struct tess_nccl_item *item = &r->file->item[number];
    const bool gpu = item->kind == TESS_NCCL_GPU;
    struct tess_nccl_item *parent = item->parent < 0 ? NULL : &r->file->item[item->parent];
    if (parent == NULL || parent->kind != TESS_NCCL_PCI)
        return TESS_OK;
    if (item->kind == TESS_NCCL_PCI || item->kind == TESS_NCCL_PCILINK)
        parent->count++;
    if (!gpu && item->kind != TESS_NCCL_NIC)
        return TESS_OK;
    if (parent->gpu >= 0 || parent->nic >= 0)
        return tess__lines_fail(r->file->name, item->line,
                                "the <pci> of line %d is a device or a NIC already",
                                (int)parent->line);
    *(gpu ? &parent->gpu : &parent->nic) = number;
    return TESS_OK;
}

static enum tess_status reader_add(struct reader *r, const struct reader_element *element)
{
    struct tess_nccl_file *file = r->file;
    struct tess_nccl_item item = {
        .kind = element->kind, .line = r->xml.line, .parent = -1, .gpu = -1, .nic = -1, .node = -1};
    if (r->xml.depth > 0) {
        item.parent = r->open[r->xml.depth - 1];
        item.host = file->item[item.parent].host;
    }
    if (element->attributes != NULL)
        TESS_TRY(element->attributes(r, &item));
    TESS_TRY(tess__grow(&file->item, file->count, sizeof(item), "the elements"));
    file->item[file->count] = item;
    r->open[r->xml.depth] = file->count++;
    return reader_note_parent(r, file->count - 1);
}

/* An element of another name: over all that is in it. */
static enum tess_status reader_skip(struct reader *r)
{
    const int32_t depth = r->xml.depth;
    enum tess_xml_event event;
    do {
        TESS_TRY(tess__xml_next(&r->xml, &event));
    } while (event != TESS_XML_CLOSE || r->xml.depth > depth);
    return TESS_OK;
}

static enum tess_status reader_open(struct reader *r)
{
    const struct tess_xml *xml = &r->xml;
    const bool top = xml->depth == 0;
    const struct reader_element *element = NULL;
    for (size_t e = 0; e < sizeof(reader_elements) / sizeof(reader_elements[0]); e++)
        if (tess__word_is(xml->element, reader_elements[e].word))
            element = &reader_elements[e];
    if (top && tess__word_is(xml->element, "graphs"))
        return tess__lines_fail(
            xml->name, xml->line,
            "this is NCCL's graph file, rings that were chosen already; expected its "
            "topology (NCCL_TOPO_DUMP_FILE writes it), which begins with <system>");
    if (top && (element == NULL || element->kind != TESS_NCCL_SYSTEM))
        return tess__lines_fail(xml->name, xml->line,
                                "<%.*s> at the top, expected <system version=\"1\">",
                                TESS__SHOWN(xml->element));
    if (element == NULL)
        return reader_skip(r);
    if (!top && (element->parents & 1u << r->file->item[r->open[xml->depth - 1]].kind) == 0)
        return tess__lines_fail(xml->name, xml->line, "<%s> is out of place, expected within %s",
                                element->word, element->within);
    return reader_add(r, element);
}

/* A cloud's file describes PCI and NICs and leaves NVLinks to NCCL's detection. */
static bool reader_lacks_nvlink(const struct reader *r, const struct tess_topology *topology)
{
    int32_t sm = 0;
    for (int32_t i = 0; i < topology->node_count && sm == 0; i++)
        sm = topology->node[i].sm;
    for (int32_t i = 0; i < r->file->count && sm == 0; i++)
        if (r->file->item[i].device >> 48 == 0x10de)
            sm = tess__sm_of_pci((uint32_t)(r->file->item[i].device >> 32 & 0xffff));
    if (sm == 0)
        sm = tess__sm_of_cloud(r->file->name);
    return r->file->nvlink_count == 0 && topology->device_count > 1 && tess__sm_has_nvlink(sm);
}

/* NVLinks of GPUs without sm count as those of sm 80. */
static void reader_remark(const struct reader *r, struct tess_topology *topology)
{
    bool amd = false;
    topology->remarks |= r->file->remarks;
    for (int32_t i = 0; i < r->file->count; i++)
        amd = amd || (r->file->item[i].kind == TESS_NCCL_NVLINK && r->file->item[i].gbs > 0);
    for (int32_t i = 0; i < topology->device_count; i++)
        if (topology->node[topology->device[i]].sm == 0 && r->file->nvlink_count > 0 && !amd)
            topology->remarks |= TESS_REMARK_SM;
    if (reader_lacks_nvlink(r, topology))
        topology->remarks |= TESS_REMARK_NO_NVLINK;
}

static enum tess_status reader_file(struct reader *r, struct tess_topology *topology)
{
    enum tess_xml_event event = TESS_XML_CLOSE;
    while (event != TESS_XML_END) {
        TESS_TRY(tess__xml_next(&r->xml, &event));
        if (event == TESS_XML_OPEN)
            TESS_TRY(reader_open(r));
    }
    TESS_TRY(tess__nccl_graph(r->file, topology));
    TESS_TRY(tess_topology_finish(topology));
    reader_remark(r, topology);
    return TESS_OK;
}

enum tess_status tess_topology_read_nccl(const char *name, const char *text, size_t bytes,
                                         const struct tess_topology_options *options,
                                         struct tess_topology *topology)
{
    static const struct tess_topology_options none;
    struct tess_nccl_file file = {.name = name};
    struct reader r = {.file = &file, .options = options != NULL ? options : &none};
    file.host_hash = malloc(TESS_NCCL_CPUS_MAX * sizeof(*file.host_hash));
    if (file.host_hash == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory to read it", name);
    tess__xml_begin(&r.xml, TESS_XML_NCCL, name, text, bytes);
    enum tess_status status = reader_file(&r, topology);
    free(file.host_hash);
    free(file.item);
    return tess__lines_named(name, status);
}
