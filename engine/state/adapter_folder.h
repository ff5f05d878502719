/*
 * A folder of adapters as Hugging Face's PEFT writes it: adapter_config.json and
 * adapter_model.safetensors, whose names are those of the model's parameters (<layer>.lora_A.weight
 * [r, in], <layer>.lora_B.weight [out, r]) behind "base_model.model.", in GPT-2 also
 * "transformer.".
 */
#ifndef TESSERA_STATE_ADAPTER_FOLDER_H
#define TESSERA_STATE_ADAPTER_FOLDER_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TESS_ADAPTER_WEIGHTS "adapter_model.safetensors"
#define TESS_ADAPTER_PREFIX  "base_model.model."

struct tess_adapter_folder {
    int64_t rank;
    double alpha;      /* scale times rank */
    char targets[512]; /* as --lora.targets has them */
};

/* Read and check adapter_config.json. A key that changes what the adapter computes, beyond these,
 * is refused with its name and value. TESS_ERR_IO, TESS_ERR_DATA. */
enum tess_status tess_adapter_folder_read(const char *folder,
                                          struct tess_adapter_folder *adapter_out);

/* Write adapter_config.json. gpt2: the layers' files are transposed. TESS_ERR_IO. */
enum tess_status tess_adapter_folder_write(const char *folder,
                                           const struct tess_adapter_folder *adapter, bool gpt2);

#endif
