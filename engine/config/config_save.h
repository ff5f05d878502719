/* The options that say when and how checkpoints are written. */
#ifndef TESSERA_CONFIG_CONFIG_SAVE_H
#define TESSERA_CONFIG_CONFIG_SAVE_H

#include "config/config.h"

/* config->save from the texts of --save-every, --save-memory and --save-bandwidth. TESS_ERR_USAGE.
 */
enum tess_status tess__config_save(struct tess_config *config);

/* The variable that names the folder of --redundancy to the ranks, of the process that outlives
 * them. No option: each host has a folder of its own, and the ranks compare their options. */
#define TESS_CONFIG_COPIES "TESS_COPIES"

/* "off", "memory", "memory:K". *folder_out: of the variable, or "". TESS_ERR_USAGE. */
enum tess_status tess__config_copies(const char *text, int64_t *steps_out, const char **folder_out);

/* Does this configuration ask for checkpoints? */
bool tess_config_saves(const struct tess_config *config);

/* A training without a run folder saves nothing: was it asked to, on the command line or in a file?
 * TESS_ERR_USAGE names the option. */
enum tess_status tess_config_check_unsaved(const struct tess_config *config);

#endif
