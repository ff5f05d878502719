/* The prompts of tessera generate, and the tokens that end a model's texts. */
#ifndef TESSERA_CLI_GENERATE_PROMPT_H
#define TESSERA_CLI_GENERATE_PROMPT_H

#include "cli/generate.h"

struct tess__prompt_options {
    const char *text, *numbers, *file,
        *system; /* numbers and file are tried first; "": not given */
    bool chat;
};

/* Starts zeroed. */
struct tess__prompts {
    struct tess__tokens *prompt; /* each with at least one token */
    int64_t count;
    bool numbers; /* of --prompt-tokens, or of a file of tokens for a model without a tokenizer */
};

/*
 * The prompts as tokens. A line of the file is text, or if it begins with { a JSON object with one
 * of "prompt": text, "tokens": [numbers], "messages": [{"role", "content"}]; empty lines are left
 * out. A chat template lies beside the tokenizer, else in `run`. TESS_ERR_USAGE, TESS_ERR_DATA,
 * TESS_ERR_IO, with the file's line.
 */
enum tess_status tess__prompts_read(const struct tess__source *source, const char *run,
                                    const struct tess__prompt_options *options,
                                    struct tess__prompts *prompts_out);
void tess__prompts_close(struct tess__prompts *prompts);

/*
 * The tokens that end a text: eos_token_id of the folder's generation_config.json, else of its
 * config.json, and the tokenizer's. Returns how many, `most` at most.
 */
int tess__model_ends(const char *run, const struct tess__source *source, int32_t *end, int most);

#endif
