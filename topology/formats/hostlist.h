/* Slurm's lists of names: "dev[0-5,7],login1". */
#ifndef TOPOLOGY_HOSTLIST_H
#define TOPOLOGY_HOSTLIST_H

#include "topology/formats/lines.h"

/* What one list may become: more than any cluster has. */
#define TESS__HOSTLIST_MAX 65536

/* What is done with each name, in the list's order; `name` is 0-terminated and lives until the
 * next. A failure ends the list. */
typedef enum tess_status tess__hostlist_visit(void *context, const char *name);

/*
 * Visit the names of `list`. Errors name `file` and `line`; no name is visited of a list, or part
 * of a list, that would become more than `room` names. *count_inout is raised by the names visited
 * and bounded by TESS__HOSTLIST_MAX.
 */
enum tess_status tess__hostlist_expand(const char *file, int32_t line, struct tess__word list,
                                       int32_t *count_inout, tess__hostlist_visit *visit,
                                       void *context);

#endif
