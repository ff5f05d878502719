/* The part of the registry that only the engine uses (tessera/registry.h): the names of the parts.
 */
#ifndef TESSERA_CONFIG_REGISTRY_H
#define TESSERA_CONFIG_REGISTRY_H

#include "tessera/registry.h"

enum tess_registry_kind {
    TESS_REGISTRY_STRATEGY,
    TESS_REGISTRY_MODEL,
    TESS_REGISTRY_KERNEL,
    TESS_REGISTRY_OPTIMIZER,
    TESS_REGISTRY_COMMUNICATOR,
    TESS_REGISTRY_KIND_COUNT
};

/* Names of the built parts of a kind, outsiders' included, in order of the list; last those in a
 * loadable module whose file is there, which need not load. Borrowed. */
const char *const *tess_registry_names(enum tess_registry_kind kind, int *count_out);

/* The strategy that declares this extra word, NULL: none. */
const struct tess_strategy_ops *tess_registry_strategy_of_word(const char *word);

/* Summary line of a built part, "" if there is none of that name. Loads no module. */
const char *tess_registry_summary(enum tess_registry_kind kind, const char *name);

/* Is the part of that name one of the library's own? */
bool tess_registry_is_own(enum tess_registry_kind kind, const char *name);

#endif
