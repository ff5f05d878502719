/* What tessera generate and tessera score share: a run's or folder's model that computes some
 * tokens at a time, tokens of texts, which token follows, how tokens are shown. */
#ifndef TESSERA_CLI_GENERATE_H
#define TESSERA_CLI_GENERATE_H

#include "config/config.h"
#include "core/decode.h"
#include "tokenizer/tokenizer.h"

/* ---- generate_model.c: from a run to a decoder ----------------------------------------------- */

#define TESS__BYTES 256 /* a vocabulary of so many is of bytes */

struct tess__source_options {
    const char *tokenizer, *config, *device, *kernel;
    int64_t context, vocabulary, threads, chunk;
    int32_t precision; /* index into run|f32|bf16|f16 */
};

/* Rows of an option table for a struct tess__source_options; at(member) is its offset. */
#define TESS__SOURCE_ROWS(at)                                                                      \
    TESS_ROW_STRING("tokenizer", at(tokenizer), "",                                                \
                    "tokenizer.json or tokenizer.model of the model, or its folder; empty: that "  \
                    "of the model's folder, or of the run's prepared data"),                       \
        TESS_ROW_CHOICE("precision", at(precision), "run", "run|f32|bf16|f16",                     \
                        "type of activations and parameters; run: that of the training"),          \
        TESS_ROW_INT(                                                                              \
            "context", at(context), "0", 0, 1 << 24,                                               \
            "greatest number of positions; 0: the length of a training sample; more than "         \
            "that only without learnt positions"),                                                 \
        TESS_ROW_INT("chunk", at(chunk), "64", 1, 1 << 16,                                         \
                     "tokens of a text that are computed at once; the result is the same bits"),   \
        TESS_ROW_STRING("device", at(device), "auto",                                              \
                        "where to compute: cpu, this machine's processor; cuda, an NVIDIA GPU; "   \
                        "auto: cuda where there is one and --kernel is not given"),                \
        TESS_ROW_STRING("kernel", at(kernel), "",                                                  \
                        "kernel backend; empty chooses the fastest that is built for the device"), \
        TESS_ROW_INT("threads", at(threads), "1", 1, 1024, "threads one kernel may use"),          \
        TESS_ROW_STRING("config", at(config), "",                                                  \
                        "YAML file with the model's options, for a file of weights without a "     \
                        "run"),                                                                    \
        TESS_ROW_INT("vocabulary", at(vocabulary), "0", 0, 1 << 24,                                \
                     "size of the vocabulary; 0: from the run's metrics, else the rows of the "    \
                     "embedding")

/* What computes: opened by tess__source_open, all of it closed by tess__source_close. */
struct tess__source {
    struct tess_config *config; /* the model's options, the kernel */
    struct tess_decoder *decoder;
    struct tess__tokenizer *tokenizer; /* NULL: tokens are bytes, or numbers */
    enum tess_dtype dtype;
    int32_t vocabulary;
    int64_t context, chunk; /* chunk: tokens of a call at most */
};

/*
 * `run` is a run's folder (its newest checkpoint, else its weights.safetensors), one of its
 * checkpoints, or weights without a run, which need options->config. `own`: the command's table,
 * whose names a configuration does not read. `sequences`: at once. Zeroed by the caller; close is
 * due also after a failure.
 */
enum tess_status tess__source_open(struct tess__source *source, const char *run,
                                   const struct tess__source_options *options,
                                   const struct tess_option *own, int32_t sequences);
void tess__source_close(struct tess__source *source);

/*
 * The tokenizer of --tokenizer, else the one in the model's folder `run`, or the one that tessera
 * data prepare put beside the data of the run; none where there is none, or the vocabulary is of
 * bytes.
 */
enum tess_status tess__source_open_tokenizer(struct tess__source *source, const char *run,
                                             const char *tokenizer);

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
    uint64_t sequence; /* number of the prompt */
    int32_t vocabulary;
    struct tess__candidate *candidate; /* [vocabulary] to work in; the caller's */
};

/*
 * The token at `position`, drawn with probability proportional to exp(logit / temperature) among
 * the top_k greatest logits, and of those among the fewest, greatest first, whose probabilities add
 * up to top_p (Holtzman et al., "The curious case of neural text degeneration", 2020). Of equal
 * logits the lower token is the greater. The number that is drawn depends on seed, sequence and
 * position alone. TESS_ERR_NUMERIC when a logit is not a number, or all are -inf.
 */
enum tess_status tess__sample(const struct tess__sampler *sampler, const float *logits,
                              int64_t position, int32_t *token_out);

/* ---- generate_text.c: tokens in and out ------------------------------------------------------ */

/* Tokens; `token` is freed by the owner. Starts zeroed. */
struct tess__tokens {
    int32_t *token;
    int64_t count;
};

/* `text` as tokens: of the tokenizer, or bytes, checked against the vocabulary. `name`: of the
 * text, for messages. TESS_ERR_USAGE with what would do. */
enum tess_status tess__text_read(const struct tess__source *source, const char *name,
                                 const char *text, size_t bytes, struct tess__tokens *tokens_out);
/* The same for what a chat template has written. */
enum tess_status tess__chat_read(const struct tess__source *source, const char *name,
                                 const char *text, size_t bytes, struct tess__tokens *tokens_out);
/* Numbers such as 1,2,3 likewise. */
enum tess_status tess__numbers_read(const struct tess__source *source, const char *name,
                                    const char *text, struct tess__tokens *tokens_out);

/* Writes bytes to stdout as they come. Zeroed but for the first two. */
struct tess__printer {
    bool terminal; /* bytes that are no UTF-8, or that move the cursor, as \xHH */
    bool numbers;  /* as "1,2,3"; else as text */
    int64_t count;
    unsigned char pending[4]; /* begun and not complete UTF-8 */
    int pending_count;
};

/* TESS_ERR_IO when stdout cannot be written to. */
enum tess_status tess__print_bytes(struct tess__printer *printer, const char *bytes, size_t count);
enum tess_status tess__print_number(struct tess__printer *printer, int32_t token);
enum tess_status tess__print_end(struct tess__printer *printer);

/* The bytes of a token, borrowed: of the tokenizer, else the token itself, in `own`. */
const char *tess__token_bytes(const struct tess__tokenizer *tokenizer, int32_t token, char own[1],
                              size_t *count_out);

/* ---- generate_stop.c: where a text ends ------------------------------------------------------ */

#define TESS__STOPS_MAX 16

/* Words that end a text. */
struct tess__stops {
    int count;
    char *word[TESS__STOPS_MAX]; /* inside `text` */
    size_t length[TESS__STOPS_MAX];
    char *text; /* owned */
};

/* Words separated by |, with \n, \t, \| and \\ for what they stand for. "": none.
 * TESS_ERR_USAGE. */
enum tess_status tess__stops_read(const char *list, struct tess__stops *stops_out);
void tess__stops_close(struct tess__stops *stops);

/*
 * Text that grows and is searched for the words. Begins zeroed; `text` is freed by the owner.
 * `shown` of its bytes are certain not to belong to a word.
 */
struct tess__growing {
    char *text;
    size_t count, room, shown;
    bool stopped; /* at `shown`, where a word begins */
};

/* Append bytes, unless it is stopped. TESS_ERR_MEMORY. */
enum tess_status tess__growing_add(struct tess__growing *growing, const struct tess__stops *stops,
                                   const char *bytes, size_t count);
/* No more follows: all of it is shown. */
void tess__growing_end(struct tess__growing *growing);

/* ---- generate_chat.c: messages as the model's template has them ------------------------------ */

struct tess__chat_message {
    const char *role, *content; /* role: system, user or assistant */
};

/*
 * The text that the chat template of `folder` (tokenizer_config.json's chat_template, or
 * chat_template.jinja) makes of the messages, with the beginning of the answer; to be freed. Known
 * templates are recognised by what they contain: ChatML (Qwen), Llama 3, Mistral.
 * TESS_ERR_UNSUPPORTED for others, TESS_ERR_NOT_FOUND where there is none, TESS_ERR_USAGE for
 * messages that the template refuses.
 */
enum tess_status tess__chat_text(const char *folder, const struct tess__chat_message *message,
                                 int count, char **text_out);

#endif
