/* Small models gpt for the tests, and how they are opened. */
#ifndef TESSERA_TESTS_MODELS_GPT_FIXTURE_H
#define TESSERA_TESTS_MODELS_GPT_FIXTURE_H

#include "model_driver.h"

/* One model by its options; the list ends with NULL. */
struct gpt_words {
    const char *word[12];
};

/* GPT-2 and Llama, tied and untied, heads that share keys and values, with and without dropout,
 * with a window; all can be cut into 4 parts. The weights are larger than usual, so that each
 * matters to the loss. */
#define GPT_SMALL_COUNT 6
extern const struct gpt_words gpt_small[GPT_SMALL_COUNT];

/* gpt_open opens models as for a kernel that asks for stacked weights; false at first. Those that
 * have such weights are then what is of interest. */
extern bool gpt_stacked;
bool gpt_matters(const struct gpt_words *words);

int gpt_count(const struct gpt_words *words);

/* Samples of `length` tokens, in f32, without a tensor axis. */
struct tess_model_input gpt_input(int64_t length, int32_t classes, int64_t rows, int64_t leaf_rows);

/* Biases and norms are not what they begin as. */
void gpt_open(struct model_driver *driver, const char *kernel, const struct tess_model_input *input,
              const struct gpt_words *words);

/* Bytes of a parameter's gradient. */
size_t gpt_bytes(const struct model_driver *driver, int32_t param);

#endif
