/*
 * --model FOLDER, and config.json beside the weights of --init: what a model's folder has to do
 * with the options of a run (state/model_folder.h).
 */
#ifndef TESSERA_CONFIG_CONFIG_FOLDER_H
#define TESSERA_CONFIG_CONFIG_FOLDER_H

#include "config/config.h"

/* The word of --init for weights that are drawn though --model is a folder with weights. */
#define TESS_CONFIG_INIT_NONE "none"

/* Where `model` is a folder: read its config.json into config->folder; *model becomes the name of
 * the model that it describes. A model's own name comes before a folder's. */
enum tess_status tess__config_folder_open(struct tess_config *config, const char **model);

/* When all sources are loaded: options that the folder of --model decides get its values. One that
 * was given another value is refused. */
enum tess_status tess__config_folder_take(struct tess_config *config);

/* Are the options of the model those of the config.json beside --init? TESS_ERR_USAGE names the
 * first option and key that differ. Fills config->init_vocabulary. */
enum tess_status tess__config_folder_check(struct tess_config *config);

/* The options of adapters that --lora.init names become those of the run; ones that were given must
 * be the same. */
enum tess_status tess__config_lora_take(struct tess_config *config);

#endif
