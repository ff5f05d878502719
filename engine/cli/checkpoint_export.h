/* tessera checkpoint export: a checkpoint as a folder that other programs read. */
#ifndef TESSERA_CLI_CHECKPOINT_EXPORT_H
#define TESSERA_CLI_CHECKPOINT_EXPORT_H

#include "tessera/option.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tess__export_options {
    const char *out;       /* folder */
    const char *file_size; /* bytes of values in a file at most, as a size */
    int32_t format;        /* safetensors|gguf */
    int32_t dtype;         /* f32|bf16|f16|q8_0 */
    bool adapters;         /* those of --lora.* alone */
    const char *tokenizer; /* folder whose files are copied; "": the run's --init */
};

/* Write the checkpoint in `folder`, one of `run`. */
enum tess_status tess__checkpoint_export(const char *run, const char *folder,
                                         const struct tess__export_options *options);

#endif
