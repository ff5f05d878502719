/*
 * Slurm's topology.yaml (25.05 and later) as lines of topology.conf, each in the place of its item,
 * so that messages name lines of the file.
 *
 *     - topology: racks
 *       cluster_default: true
 *       tree:
 *         switches:
 *           - switch: root
 *             children: s[1-2]
 *           - switch: s1
 *             nodes: node[01-02]
 *     - topology: nvl
 *       block:
 *         block_sizes: [18]
 *         blocks:
 *           - block: b1
 *             nodes: node[01-18]
 *
 * Of several topologies the cluster's default is read, where it has switches or blocks; else the
 * first one that has.
 */
#include "tessera/check.h"
#include "topology/formats/slurm.h"
#include "topology/formats/yaml_document.h"
#include "topology/machine/pool.h"

#include <stdlib.h>
#include <string.h>

struct slurm_yaml {
    struct tess__document *document;
    const char *name; /* for messages */
    FILE *out;
    int32_t line; /* of the text so far */
};

/* A word as one of topology.conf: no blank in it, nor what begins a comment. */
static enum tess_status slurm_yaml_word(struct slurm_yaml *self, const char *key,
                                        const tess__yaml_node *node)
{
    if (node == NULL)
        return TESS_OK;
    struct tess__word word = tess__document_text(node);
    bool good = word.length > 0;
    for (size_t i = 0; i < word.length; i++)
        good = good && (unsigned char)word.text[i] > ' ' && !strchr("#\\=", word.text[i]);
    if (!good)
        return tess__lines_fail(self->name, tess__document_line(node),
                                "'%.*s': a name or a list as in node[01-16] was expected",
                                TESS__SHOWN(word));
    fprintf(self->out, "%s=%.*s ", key, (int)word.length, word.text);
    return TESS_OK;
}

/* Items of `list`, each with its name under `kind`. */
static enum tess_status slurm_yaml_items(struct slurm_yaml *self, tess__yaml_node *list,
                                         const char *kind, const char *key)
{
    tess__yaml_node *item;
    for (size_t at = 0; (item = tess__document_item(self->document, list, at)) != NULL; at++) {
        const int32_t line = tess__document_line(item);
        tess__yaml_node *name = tess__document_get(self->document, item, kind);
        if (name == NULL)
            return tess__lines_fail(self->name, line, "a %s without a name under '%s:'", kind,
                                    kind);
        for (; self->line < line; self->line++)
            fputc('\n', self->out);
        TESS_TRY(slurm_yaml_word(self, key, name));
        TESS_TRY(slurm_yaml_word(self, "Nodes", tess__document_get(self->document, item, "nodes")));
        TESS_TRY(slurm_yaml_word(self, "Switches",
                                 tess__document_get(self->document, item, "children")));
    }
    return TESS_OK;
}

/* The lists of a topology; NULL where it has none (flat). */
static tess__yaml_node *slurm_yaml_list(struct slurm_yaml *self, tess__yaml_node *topology,
                                        bool blocks)
{
    struct tess__document *document = self->document;
    tess__yaml_node *map = tess__document_get(document, topology, blocks ? "block" : "tree");
    return tess__document_get(document, map, blocks ? "blocks" : "switches");
}

static enum tess_status slurm_yaml_lines(struct slurm_yaml *self)
{
    struct tess__document *document = self->document;
    tess__yaml_node *root, *chosen = NULL, *topology;
    TESS_TRY(tess__document_next(document, &root));
    for (size_t at = 0; (topology = tess__document_item(document, root, at)) != NULL; at++) {
        struct tess__word first =
            tess__document_text(tess__document_get(document, topology, "cluster_default"));
        if (slurm_yaml_list(self, topology, false) == NULL &&
            slurm_yaml_list(self, topology, true) == NULL)
            continue;
        if (chosen == NULL || tess__word_is(first, "true"))
            chosen = topology;
    }
    if (chosen == NULL)
        return tess__lines_fail(self->name, 1,
                                "no topology with tree and switches, or block and blocks, in it");
    TESS_TRY(slurm_yaml_items(self, slurm_yaml_list(self, chosen, false), "switch", "SwitchName"));
    return slurm_yaml_items(self, slurm_yaml_list(self, chosen, true), "block", "BlockName");
}

bool tess__slurm_is_yaml(const char *text, size_t bytes)
{
    static const char first[] = "- topology:";
    while (bytes > 0 && (*text == '#' || *text == '-' || strchr(" \t\r\n", *text) != NULL)) {
        if (bytes >= sizeof(first) - 1 && memcmp(text, first, sizeof(first) - 1) == 0)
            return true;
        const char *end = memchr(text, '\n', bytes);
        const size_t skip = *text != '#' && *text != '-' ? 1
                            : end != NULL                ? (size_t)(end - text) + 1
                                                         : bytes;
        text += skip;
        bytes -= skip;
    }
    return false;
}

enum tess_status tess__slurm_from_yaml(const char *name, const char *text, size_t bytes,
                                       char **text_out, size_t *bytes_out)
{
    struct slurm_yaml self = {.name = name, .line = 1};
    *text_out = NULL;
    TESS_TRY(tess__document_open(name, text, bytes, &self.document));
    self.out = open_memstream(text_out, bytes_out);
    enum tess_status status = self.out != NULL ? slurm_yaml_lines(&self) : TESS_OK;
    tess__document_close(self.document);
    TESS_KEEP(status, tess__text_close(self.out, text_out));
    return status;
}
