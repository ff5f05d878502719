/* What the files of tessera generate share: its options, which token follows, how tokens are shown.
 */
#ifndef TESSERA_CLI_GENERATE_H
#define TESSERA_CLI_GENERATE_H

#include "config/config.h"
#include "core/decode.h"
#include "tokenizer/tokenizer.h"

struct tess__generate_options {
    const char *prompt, *prompt_tokens, *tokenizer, *config, *device, *kernel;
    int64_t tokens, top_k, seed, context, vocabulary, threads;
    double temperature, top_p;
    int32_t precision; /* index into run|f32|bf16|f16 */
};

/* ---- generate_model.c: from a run to a decoder ----------------------------------------------- */

/* What generates: opened by tess__source_open, all of it closed by tess__source_close. */
struct tess__source {
    struct tess_config *config; /* the model's options, the kernel */
    struct tess_decoder *decoder;
    struct tess__tokenizer *tokenizer; /* NULL: tokens are bytes, or numbers */
    enum tess_dtype dtype;
    int32_t vocabulary;
    int64_t context;
};

/*
 * `run` is a run's folder (its newest checkpoint, else its weights.safetensors), one of its
 * checkpoints, or weights without a run, which need options->config. `own`: the command's table,
 * whose names a configuration does not read. Zeroed by the caller; close is due also after a
 * failure.
 */
enum tess_status tess__source_open(struct tess__source *source, const char *run,
                                   const struct tess__generate_options *options,
                                   const struct tess_option *own);
void tess__source_close(struct tess__source *source);

/* ---- generate_sample.c: which token follows -------------------------------------------------- */

struct tess__candidate {
    float logit;
    int32_t token;
    double weight; /* exp((logit - greatest) / temperature) */
};

struct tess__sampler {
    double temperature; /* 0: the greatest logit */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
    int32_t vocabulary;
    struct tess__candidate *candidate; /* [vocabulary] to work in; the caller's */
};

/*
 * The token at `position`, drawn with probability proportional to exp(logit / temperature) among
 * the top_k greatest logits, and of those among the fewest, greatest first, whose probabilities add
 * up to top_p (Holtzman et al., "The curious case of neural text degeneration", 2020). Of equal
 * logits the lower token is the greater. The number that is drawn depends on seed and position
 * alone. TESS_ERR_NUMERIC when a logit is not a number, or all are -inf.
 */
enum tess_status tess__sample(const struct tess__sampler *sampler, const float *logits,
                              int64_t position, int32_t *token_out);

/* ---- generate_text.c: tokens in and out ------------------------------------------------------ */

/*
 * The tokenizer of --tokenizer, else the one that tessera data prepare put beside the data of the
 * run; none where there is neither, or --prompt-tokens are given, or the vocabulary is of bytes.
 */
enum tess_status tess__source_open_tokenizer(struct tess__source *source,
                                             const struct tess__generate_options *options);

/*
 * The prompt as tokens: of the tokenizer, or bytes, of --prompt, or the numbers of --prompt-tokens,
 * all checked against the vocabulary. To be freed. TESS_ERR_USAGE with what would do.
 */
enum tess_status tess__prompt_read(const struct tess__generate_options *options,
                                   const struct tess__source *source, int32_t **token_out,
                                   int64_t *count_out);

/* Writes tokens to stdout as they come. Zeroed but for the first three. */
struct tess__printer {
    const struct tess__tokenizer *tokenizer; /* NULL: tokens are bytes */
    bool numbers;                            /* as "1,2,3"; else as text */
    bool terminal; /* bytes that are no UTF-8, or that move the cursor, as \xHH */
    int64_t count;
    unsigned char pending[4]; /* begun and not complete UTF-8 */
    int pending_count;
};

/* TESS_ERR_IO when stdout cannot be written to. */
enum tess_status tess__print_token(struct tess__printer *printer, int32_t token);
enum tess_status tess__print_end(struct tess__printer *printer);

#endif
