/* Prompts that are continued, several at once. */
#ifndef TESSERA_CLI_GENERATE_BATCH_H
#define TESSERA_CLI_GENERATE_BATCH_H

#include "cli/generate.h"

#define TESS__ENDS_MAX 16

/* How each prompt is continued, and what is shown of it. */
struct tess__continue {
    const struct tess__source *source;
    struct tess__sampler sampler; /* its `sequence` is set for each prompt */
    int64_t tokens;               /* at most, for each prompt, as the context has room */
    int32_t batch;                /* prompts at once: the decoder's sequences */
    const struct tess__stops *stops;
    int32_t end[TESS__ENDS_MAX]; /* tokens that end a text, which they are not part of */
    int end_count;
    bool json; /* a line for each prompt when it is done; else the only one's text as it comes */
    bool echo; /* the prompt first; not json */
    struct tess__printer *printer;
};

/* What it took. */
struct tess__continued {
    int64_t prompt_tokens, tokens;
    double prompt_s, tokens_s; /* calls that computed prompts only; others */
};

/* The tokens do not depend on `batch`, nor on the other prompts. TESS_ERR_IO, TESS_ERR_NUMERIC. */
enum tess_status tess__continue(const struct tess__continue *how, const struct tess__tokens *prompt,
                                int64_t prompt_count, struct tess__continued *took_out);

#endif
