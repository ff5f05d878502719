/* state.json of a checkpoint, shared by checkpoint.c (the folder) and checkpoint_state.c (the
 * file). */
#ifndef TESSERA_STATE_CHECKPOINT_FILE_H
#define TESSERA_STATE_CHECKPOINT_FILE_H

#include "state/checkpoint.h"

#define TESS__CHECKPOINT_INDEX   "model.safetensors.index.json"
#define TESS__CHECKPOINT_OPTIONS "options.yaml"

/* "folder/name". TESS_ERR_USAGE: too long. */
enum tess_status tess__checkpoint_join(const char *folder, const char *name,
                                       char path[TESS_CHECKPOINT_PATH]);

enum tess_status tess__checkpoint_write_state(const char *folder, const struct tess_store *store,
                                              const struct tess_checkpoint_state *state,
                                              const struct tess_declare *model);

/* A whole file of text of at most 64 MiB, a 0 behind it; to be freed. TESS_ERR_IO, TESS_ERR_DATA.
 */
enum tess_status tess__checkpoint_read_text(const char *path, char **text_out, size_t *bytes_out);

/* model and store, of this model, NULL: all but what there is of each parameter. */
enum tess_status tess__checkpoint_read_state(const char *folder, const struct tess_declare *model,
                                             const struct tess_store *store,
                                             struct tess_checkpoint_state *state_out);

#endif
