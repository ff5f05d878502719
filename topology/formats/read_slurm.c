/*
 * Reads the networks of clusters that Slurm runs: topology.conf, or what `scontrol show topology`
 * prints.
 *
 *     SwitchName=leaf0 Nodes=dev[0-5]
 *     SwitchName=leaf1 Nodes=dev[6-11],login
 *     SwitchName=spine Level=1 Switches=leaf[0-1] Nodes=dev[0-11],login
 *
 * A host is attached to the lowest switches that name it, since those above may repeat it. Switches
 * without one above them are joined by one node, "network": Slurm's file does not exclude it.
 * Blocks (BlockName=) are read as switches; with the option sm, of GPUs that have NVLink domains
 * over hosts (Hopper and later), the devices of a block are on the NVSwitches of one domain too.
 * Slurm's topology.yaml is first made such lines (slurm_yaml.c). Lines may be continued by '\', '#'
 * begins a comment, other keys are skipped. Hosts are numbered in the order of their names, numbers
 * in them as numbers, which is also Slurm's order of the hosts of a job. The file has no link
 * speeds: options give them.
 */
#include "tessera/check.h"
#include "topology/formats/hostlist.h"
#include "topology/formats/slurm.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SLURM_SWITCHES_MAX 16384
/* Names that all lists of a file hold together: every host once for each level above it. */
#define SLURM_NAMES_MAX (4 * TESS__HOSTLIST_MAX)

struct slurm_switch {
    char name[TESS_TOPO_NAME_MAX];
    int32_t line, node;
    int32_t height;  /* longest way down to a switch without switches */
    int32_t waiting; /* switches below it whose height is not known */
    int32_t first;   /* of its mentions as a child */
    bool above;      /* something is above it */
    bool block;
    struct tess__word nodes, switches;
};

/* One name in one list. */
struct slurm_mention {
    char name[TESS_TOPO_NAME_MAX];
    int32_t by;     /* switch that names it */
    int32_t child;  /* of a switch: which; */
    int32_t height; /* of a host: of `by` */
};

struct slurm_list {
    struct slurm_mention *mention;
    int32_t count, by;
};

struct slurm_reader {
    const char *name;
    struct slurm_switch *at;
    int32_t count;
    struct slurm_list hosts, children;
    struct tess_topology *topology;
    int32_t per_host;
    int32_t sm;      /* of devices in NVLink domains; 0: there are none */
    int32_t *device; /* [per_host] of the host at hand */
    double edge_gbs, uplink_gbs;
};

/* ---- lines ---------------------------------------------------------------------------------- */

static bool slurm_key(struct tess__word word, const char *key, struct tess__word *value_out)
{
    size_t length = strlen(key);
    if (word.length <= length || word.text[length] != '=' ||
        strncasecmp(word.text, key, length) != 0)
        return false;
    *value_out = (struct tess__word){word.text + length + 1, word.length - length - 1};
    if (tess__word_is(*value_out, "(null)") || tess__word_is(*value_out, "NONE"))
        value_out->length = 0;
    return true;
}

static enum tess_status slurm_begin(struct slurm_reader *self, int32_t line, struct tess__word name)
{
    if (self->count == SLURM_SWITCHES_MAX)
        return tess__lines_fail(self->name, line, "more than %d switches", SLURM_SWITCHES_MAX);
    if (name.length == 0 || name.length >= TESS_TOPO_NAME_MAX ||
        memchr(name.text, '[', name.length) || memchr(name.text, ',', name.length) ||
        memchr(name.text, '\0', name.length))
        return tess__lines_fail(self->name, line,
                                "'%.*s' names no switch: one name of 1 to %d characters was "
                                "expected",
                                TESS__SHOWN(name), TESS_TOPO_NAME_MAX - 1);
    TESS_TRY(tess__grow(&self->at, self->count, sizeof(*self->at), "the switches"));
    struct slurm_switch *at = &self->at[self->count++];
    *at = (struct slurm_switch){.line = line, .node = -1};
    memcpy(at->name, name.text, name.length);
    return TESS_OK;
}

/* One line; `more`: it goes on with the one before. *more_inout: the next one goes on with it. */
static enum tess_status slurm_line(struct slurm_reader *self, struct tess__lines *lines,
                                   bool *more_inout)
{
    bool first = !*more_inout;
    const char *comment = memchr(lines->rest.text, '#', lines->rest.length);
    if (comment)
        lines->rest.length = (size_t)(comment - lines->rest.text);
    *more_inout = false;
    struct tess__word word, value;
    while (tess__lines_word(lines, &word)) {
        *more_inout = word.text[word.length - 1] == '\\';
        word.length -= *more_inout;
        if (word.length == 0)
            continue;
        if (slurm_key(word, "SwitchName", &value) || slurm_key(word, "BlockName", &value)) {
            TESS_TRY(slurm_begin(self, lines->line, value));
            self->at[self->count - 1].block = slurm_key(word, "BlockName", &value);
        } else if (slurm_key(word, "BlockSizes", &value)) {
            return TESS_OK; /* a line of its own: how jobs are placed, not what there is */
        } else if (!memchr(word.text, '=', word.length) || self->count == 0 || first) {
            return tess__lines_fail(self->name, lines->line,
                                    "'%.*s': SwitchName=NAME was expected, then Nodes=LIST or "
                                    "Switches=LIST",
                                    TESS__SHOWN(word));
        } else {
            struct slurm_switch *at = &self->at[self->count - 1];
            bool nodes = slurm_key(word, "Nodes", &value);
            if (nodes || slurm_key(word, "Switches", &value)) {
                struct tess__word *into = nodes ? &at->nodes : &at->switches;
                if (into->length > 0)
                    return tess__lines_fail(self->name, lines->line,
                                            "'%.*s': switch %s has one already", TESS__SHOWN(word),
                                            at->name);
                *into = value;
            }
        }
        first = false;
    }
    return TESS_OK;
}

static int slurm_by_name(const void *a, const void *b)
{
    return strcmp(a, b); /* names come first in a switch and a mention */
}

static enum tess_status slurm_lines(struct slurm_reader *self, const char *text, size_t bytes)
{
    struct tess__lines lines;
    bool more = false;
    tess__lines_open(&lines, self->name, text, bytes);
    while (tess__lines_next(&lines))
        TESS_TRY(slurm_line(self, &lines, &more));
    if (self->count == 0)
        return tess__lines_fail(self->name, lines.line, "no line with SwitchName= in it");
    qsort(self->at, (size_t)self->count, sizeof(*self->at), slurm_by_name);
    for (int32_t i = 1; i < self->count; i++) {
        const struct slurm_switch *a = &self->at[i - 1], *b = &self->at[i];
        int32_t later = a->line > b->line ? a->line : b->line;
        if (strcmp(a->name, b->name) == 0)
            return tess__lines_fail(self->name, later, "switch %s is defined already, in line %d",
                                    b->name, (int)(a->line + b->line - later));
    }
    return TESS_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

static enum tess_status slurm_mention(void *context, const char *name)
{
    struct slurm_list *list = context;
    TESS_TRY(tess__grow(&list->mention, list->count, sizeof(*list->mention),
                        "the names of a host list"));
    struct slurm_mention *mention = &list->mention[list->count++];
    *mention = (struct slurm_mention){.by = list->by, .child = -1};
    memcpy(mention->name, name, strlen(name) + 1);
    return TESS_OK;
}

static enum tess_status slurm_expand(struct slurm_reader *self, struct slurm_list *list, int32_t by,
                                     struct tess__word text)
{
    int32_t line = self->at[by].line, count = 0;
    if (text.length == 0)
        return TESS_OK;
    list->by = by;
    TESS_TRY(tess__hostlist_expand(self->name, line, text, &count, slurm_mention, list));
    if (list->count > SLURM_NAMES_MAX)
        return tess__lines_fail(self->name, line, "more than %d names in all lists together",
                                SLURM_NAMES_MAX);
    return TESS_OK;
}

/* By child, then by parent; names without a switch of their own last. */
static int slurm_by_child(const void *a, const void *b)
{
    const struct slurm_mention *x = a, *y = b;
    return tess__compare((const int64_t[]){(uint32_t)x->child, x->by},
                         (const int64_t[]){(uint32_t)y->child, y->by}, 2);
}

/* The links between switches, each once; what is named and has no line is left out. */
static enum tess_status slurm_children(struct slurm_reader *self)
{
    struct slurm_list *list = &self->children;
    for (int32_t i = 0; i < self->count; i++)
        TESS_TRY(slurm_expand(self, list, i, self->at[i].switches));
    int32_t unknown = 0;
    for (int32_t i = 0; i < list->count; i++) {
        const struct slurm_switch *found = bsearch(&list->mention[i], self->at, (size_t)self->count,
                                                   sizeof(*found), slurm_by_name);
        list->mention[i].child = found ? (int32_t)(found - self->at) : -1;
        unknown += !found;
    }
    if (unknown > 0)
        tess_log(TESS_LOG_WARN,
                 "%s: %d switches are named below others and have no line; they are left out",
                 self->name, (int)unknown);
    if (list->count > 0)
        qsort(list->mention, (size_t)list->count, sizeof(*list->mention), slurm_by_child);
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count - unknown; i++) {
        struct slurm_mention *mention = &list->mention[i];
        if (kept > 0 && slurm_by_child(mention, &list->mention[kept - 1]) == 0)
            continue;
        self->at[mention->by].waiting++;
        self->at[mention->child].above = true;
        list->mention[kept++] = *mention;
    }
    list->count = kept;
    return TESS_OK;
}

/* Switch by switch from below; one that is never reached is below itself. */
static enum tess_status slurm_heights(struct slurm_reader *self)
{
    const struct slurm_list *list = &self->children;
    int32_t *queue = malloc((size_t)self->count * sizeof(*queue)), queued = 0;
    if (queue == NULL)
        return tess__no_memory("the switches");
    for (int32_t m = list->count - 1; m >= 0; m--)
        self->at[list->mention[m].child].first = m;
    for (int32_t i = 0; i < self->count; i++)
        if (self->at[i].waiting == 0)
            queue[queued++] = i;
    for (int32_t head = 0; head < queued; head++) {
        int32_t i = queue[head];
        for (int32_t m = self->at[i].first; m < list->count && list->mention[m].child == i; m++) {
            struct slurm_switch *up = &self->at[list->mention[m].by];
            if (up->height < self->at[i].height + 1)
                up->height = self->at[i].height + 1;
            if (--up->waiting == 0)
                queue[queued++] = list->mention[m].by;
        }
    }
    free(queue);
    for (int32_t i = 0; i < self->count; i++)
        if (self->at[i].waiting > 0)
            return tess__lines_fail(self->name, self->at[i].line,
                                    "switch %s is below itself, or above one that is",
                                    self->at[i].name);
    return TESS_OK;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

/* As names sort, numbers in them as numbers; then from the lowest switch up. */
static int slurm_by_host(const void *a, const void *b)
{
    const struct slurm_mention *x = a, *y = b;
    int order = strverscmp(x->name, y->name);
    return order != 0 ? order
                      : tess__compare((const int64_t[]){x->height, x->by},
                                      (const int64_t[]){y->height, y->by}, 2);
}

static enum tess_status slurm_hosts(struct slurm_reader *self)
{
    struct slurm_list *list = &self->hosts;
    for (int32_t i = 0; i < self->count; i++)
        TESS_TRY(slurm_expand(self, list, i, self->at[i].nodes));
    if (list->count == 0)
        return tess__lines_fail(self->name, 0, "no switch has Nodes=LIST: there are no hosts");
    for (int32_t i = 0; i < list->count; i++)
        list->mention[i].height = self->at[list->mention[i].by].height;
    qsort(list->mention, (size_t)list->count, sizeof(*list->mention), slurm_by_host);
    int32_t hosts = 0, cpu = -1, lowest = 0;
    for (int32_t i = 0; i < list->count; i++) {
        const struct slurm_mention *mention = &list->mention[i];
        bool fresh = i == 0 || strcmp(mention->name, mention[-1].name) != 0;
        if (fresh) {
            lowest = mention->height;
            if (strlen(mention->name) > TESS__SLURM_HOST_MAX)
                return tess__lines_fail(self->name, self->at[mention->by].line,
                                        "host %s: a name of at most %d characters was expected",
                                        mention->name, TESS__SLURM_HOST_MAX);
            TESS_TRY(tess__slurm_add_host(self->topology, mention->name, hosts++, self->per_host,
                                          &cpu, self->device));
            if (self->sm > 0 && self->at[mention->by].block) {
                TESS_TRY(tess__slurm_join_domain(self->topology, self->at[mention->by].name,
                                                 self->device, self->per_host, self->sm));
                self->topology->remarks |= TESS_REMARK_DOMAIN;
            }
        } else if (mention->height > lowest || mention->by == mention[-1].by) {
            continue;
        }
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, cpu, self->at[mention->by].node,
                                    self->edge_gbs, 1));
    }
    return TESS_OK;
}

static enum tess_status slurm_switches(struct slurm_reader *self)
{
    int32_t tops = 0, network = -1;
    for (int32_t i = 0; i < self->count; i++) {
        TESS_TRY(tess__slurm_add_switch(self->topology, self->at[i].name, &self->at[i].node));
        tops += !self->at[i].above;
    }
    if (tops > 1)
        TESS_TRY(tess__slurm_add_switch(self->topology, TESS__SLURM_NETWORK, &network));
    for (int32_t i = 0; i < self->count && tops > 1; i++)
        if (!self->at[i].above)
            TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, self->at[i].node, network,
                                        self->uplink_gbs, 1));
    for (int32_t m = 0; m < self->children.count; m++) {
        const struct slurm_mention *mention = &self->children.mention[m];
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, self->at[mention->child].node,
                                    self->at[mention->by].node, self->uplink_gbs, 1));
    }
    return TESS_OK;
}

static enum tess_status slurm_read(struct slurm_reader *self, const char *text, size_t bytes)
{
    TESS_TRY(slurm_lines(self, text, bytes));
    TESS_TRY(slurm_children(self));
    TESS_TRY(slurm_heights(self));
    TESS_TRY(slurm_switches(self));
    TESS_TRY(slurm_hosts(self));
    return tess_topology_finish(self->topology);
}

enum tess_status tess_topology_read_slurm(const char *name, const char *text, size_t bytes,
                                          const struct tess_topology_options *options,
                                          struct tess_topology *topology)
{
    struct tess_topology_options given = options ? *options : (struct tess_topology_options){0};
    struct slurm_reader self = {
        .name = name,
        .topology = topology,
        .per_host = given.per_host > 0 ? given.per_host : 1,
        .sm = given.sm >= 90 ? given.sm : 0,
        .edge_gbs = given.edge_gbs > 0 ? given.edge_gbs : TESS_GBS_NET_UNKNOWN,
        .uplink_gbs = given.uplink_gbs > 0 ? given.uplink_gbs : TESS_GBS_NET_UNKNOWN,
    };
    if (given.edge_gbs <= 0 || given.uplink_gbs <= 0)
        topology->remarks |= TESS_REMARK_NET;
    char *lines = NULL;
    enum tess_status status = TESS_OK;
    self.device = calloc((size_t)self.per_host, sizeof(*self.device));
    if (self.device == NULL)
        status = tess__no_memory("the hosts");
    if (status == TESS_OK && tess__slurm_is_yaml(text, bytes))
        status = tess__slurm_from_yaml(name, text, bytes, &lines, &bytes);
    if (status == TESS_OK)
        status = slurm_read(&self, lines != NULL ? lines : text, bytes);
    free(lines);
    free(self.device);
    free(self.at);
    free(self.hosts.mention);
    free(self.children.mention);
    return tess__lines_named(name, status);
}
