/* The options that say when and how checkpoints are written. */
#ifndef TESSERA_CONFIG_CONFIG_SAVE_H
#define TESSERA_CONFIG_CONFIG_SAVE_H

#include "config/config.h"

/* config->save from the texts of --save-every, --save-memory and --save-bandwidth. TESS_ERR_USAGE.
 */
enum tess_status tess__config_save(struct tess_config *config);

/* "off", "memory", "memory:K", "memory:K:FOLDER": *folder_out is a part of the text, or "". */
enum tess_status tess__config_copies(const char *text, int64_t *steps_out, const char **folder_out);

/* Does this configuration ask for checkpoints? */
bool tess_config_saves(const struct tess_config *config);

/* A training without a run folder saves nothing: was it asked to, on the command line or in a file?
 * TESS_ERR_USAGE names the option. */
enum tess_status tess_config_check_unsaved(const struct tess_config *config);

#endif
