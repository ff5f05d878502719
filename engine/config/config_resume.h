/* Continuing from a checkpoint: which options are its own, and which the command line's. */
#ifndef TESSERA_CONFIG_CONFIG_RESUME_H
#define TESSERA_CONFIG_CONFIG_RESUME_H

#include "config/config.h"
#include "state/checkpoint.h"

/* YAML of the options that decide on bits, as they were given; to be freed. NULL without memory.
 * What is left out decides where and how fast the same numbers are computed. */
char *tess_config_bits(const struct tess_config *config);

/* The newest checkpoint of a run's folder, or of the copies in memory that --redundancy names
 * (NULL: not given). TESS_ERR_NOT_FOUND: there is none. */
enum tess_status tess__resume_find(const char *run, const char *redundancy,
                                   char folder[TESS_CHECKPOINT_PATH]);

/* Load the checkpoint's options as a configuration file that any other is stronger than. as_it_was:
 * none of strategy, ranks and mesh was given, and they are the checkpoint's too; else only its
 * strategy is. */
enum tess_status tess__resume_load(struct tess_config *config, bool as_it_was);

/* All options are loaded: is none of the checkpoint's another one now? TESS_ERR_USAGE names the
 * first that is. */
enum tess_status tess__resume_check(struct tess_config *config);

/* In place of what would follow from the number of ranks. */
enum tess_status tess__resume_resolve(struct tess_config *config);

#endif
