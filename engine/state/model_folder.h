/*
 * config.json of a model's folder, as Hugging Face's libraries write it, in terms of the options of
 * model gpt:
 *
 *     "model_type": "gpt2"        gpt.style = gpt2
 *     "n_head": 12                gpt.heads = 12
 *     "n_inner": null             gpt.ffn = 3072, which gpt.ffn 0 means too
 *
 * Every key is understood, known to leave the function alone (what was the dropout of training,
 * tokens that begin and end a text), or refused with its name and value. A key that is missing has
 * the default of the family in transformers.
 */
#ifndef TESSERA_STATE_MODEL_FOLDER_H
#define TESSERA_STATE_MODEL_FOLDER_H

#include "state/checkpoint.h"
#include "state/weights.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

struct json_t; /* jansson's */

#define TESS_FOLDER_OPTIONS_MAX 32
#define TESS_FOLDER_MODEL       "gpt" /* the model whose options they are */

struct tess_folder_option {
    const char *name;    /* of the option, in full */
    char value[96];      /* as a user would write it */
    const char *implied; /* another value that means the same in this model: "0", "auto"; or NULL */
    char key[160];       /* for messages: the key and its value; or the key and "its default" */
};

struct tess_model_folder {
    char config[TESS_CHECKPOINT_PATH]; /* path of config.json */
    struct tess_folder_option option[TESS_FOLDER_OPTIONS_MAX];
    int32_t option_count;
    int64_t vocabulary; /* of the tokens that its weights were trained on */
    int64_t positions;  /* of a sequence at most, as it was trained */
};

/* The path of the config.json in folder `path`, or beside the file `path`. False: there is none. */
bool tess_model_folder_config(const char *path, char config[TESS_CHECKPOINT_PATH]);

/* Has the folder weights as tess_weights_open finds them in a model's folder? */
bool tess_model_folder_has_weights(const char *folder);

/* Read and check config.json. TESS_ERR_IO, TESS_ERR_DATA: messages name the file and the key. */
enum tess_status tess_model_folder_read(const char *config, struct tess_model_folder *folder_out);

/* A model gpt whose config.json is to be written. */
struct tess_folder_source {
    const char *(*value)(const void *context, const char *option); /* text of an option in full */
    const void *context;
    const struct tess_weights *weights; /* sizes that options leave open */
    const char *dtype;                  /* of the weights, as PyTorch calls it */
};

/* What config.json says of it, a new reference; NULL where no family of models is like it. */
enum tess_status tess_model_folder_json(const struct tess_folder_source *from,
                                        struct json_t **config_out);

/*
 * Write config.json of the family that the options describe; a warning instead where there is
 * none. Keys are those that transformers 4 and 5 read; "max_position_embeddings" is gpt.context, or
 * data.length where that is 0. TESS_ERR_IO.
 */
enum tess_status tess_model_folder_write(const char *folder, const struct tess_folder_source *from);

#endif
