/* See gpt_fixture.h. */
#include "gpt_fixture.h"

#include <string.h>

const struct gpt_words gpt_small[GPT_SMALL_COUNT] = {
    {{"--layers=2", "--heads=4", "--width=16", "--init-deviation=0.2", NULL}},
    {{"--layers=1", "--heads=4", "--width=16", "--tied=off", "--dropout=0.3", "--context=20",
      "--init-deviation=0.2", NULL}},
    {{"--style=llama", "--layers=2", "--heads=8", "--kv-heads=4", "--width=32",
      "--init-deviation=0.2", NULL}},
    {{"--style=llama", "--layers=1", "--heads=4", "--width=24", "--tied=on", "--dropout=0.3",
      "--init-deviation=0.2", NULL}},
    {{"--style=llama", "--layers=2", "--heads=8", "--kv-heads=4", "--width=24", "--head-size=4",
      "--qkv-bias=on", "--qk-norm=on", "--init-deviation=0.2", NULL}},
    {{"--style=llama", "--layers=2", "--heads=4", "--width=24", "--gate=gelu", "--gelu=erf",
      "--window=5", "--window-from=1", "--attention-dropout=0.2", "--init-deviation=0.2", NULL}},
};

bool gpt_stacked;

bool gpt_matters(const struct gpt_words *words)
{
    return !gpt_stacked || strcmp(words->word[0], "--style=llama") == 0;
}

int gpt_count(const struct gpt_words *words)
{
    int count = 0;

    while (words->word[count] != NULL)
        count++;
    return count;
}

struct tess_model_input gpt_input(int64_t length, int32_t classes, int64_t rows, int64_t leaf_rows)
{
    return (struct tess_model_input){.row = tess_shape1(length),
                                     .class_count = classes,
                                     .dtype = TESS_F32,
                                     .tokens = true,
                                     .rows = rows,
                                     .leaf_rows = leaf_rows,
                                     .axis = {.parts = 1, .count = 1, .rank_count = 1}};
}

void gpt_open(struct model_driver *driver, const char *kernel, const struct tess_model_input *input,
              const struct gpt_words *words)
{
    struct tess_model_input asked = *input;

    asked.stacks = gpt_stacked && !input->decode;
    model_open_input(driver, "gpt", kernel, &asked, words->word, gpt_count(words));
    model_disturb(driver, 0.3f);
}

size_t gpt_bytes(const struct model_driver *driver, int32_t param)
{
    return (size_t)model_param_count(driver, param) * sizeof(float);
}
