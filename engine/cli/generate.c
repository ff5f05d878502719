/* tessera generate: text, or tokens, from a run's weights. */
#include "cli/generate.h"
#include "base/clock.h"
#include "base/options.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GENERATE_FIELD(member) offsetof(struct tess__generate_options, member)

static const struct tess_option generate_option_table[] = {
    {"prompt", TESS_OPTION_STRING, GENERATE_FIELD(prompt), "", 0, 0, NULL,
     "text to continue; without a prompt: a line end"},
    {"prompt-tokens", TESS_OPTION_STRING, GENERATE_FIELD(prompt_tokens), "", 0, 0, NULL,
     "tokens to continue, such as 1,2,3, in place of text; the output is numbers, too"},
    {"tokenizer", TESS_OPTION_STRING, GENERATE_FIELD(tokenizer), "", 0, 0, NULL,
     "tokenizer.json of the model, or its folder; empty: that of the run's prepared data"},
    {"tokens", TESS_OPTION_INT, GENERATE_FIELD(tokens), "200", 1, 1e9, NULL,
     "tokens to generate; the prompt and these must fit the context"},
    {"temperature", TESS_OPTION_REAL, GENERATE_FIELD(temperature), "0.8", 0, 100, NULL,
     "below 1 probable tokens become more probable, above 1 less; 0: always the most probable "
     "token"},
    {"top-k", TESS_OPTION_INT, GENERATE_FIELD(top_k), "0", 0, 1e9, NULL,
     "sample from the k most probable tokens; 0: from all"},
    {"top-p", TESS_OPTION_REAL, GENERATE_FIELD(top_p), "1", 1e-9, 1, NULL,
     "sample from the most probable tokens that together have this probability; 1: from all"},
    {"seed", TESS_OPTION_INT, GENERATE_FIELD(seed), "1", 0, 9e15, NULL,
     "seed of the sampling: the same seed gives the same text"},
    {"precision", TESS_OPTION_CHOICE, GENERATE_FIELD(precision), "run", 0, 0, "run|f32|bf16|f16",
     "type of activations and parameters; run: that of the training"},
    {"context", TESS_OPTION_INT, GENERATE_FIELD(context), "0", 0, 1 << 24, NULL,
     "greatest number of positions; 0: the length of a training sample"},
    {"device", TESS_OPTION_STRING, GENERATE_FIELD(device), "auto", 0, 0, NULL,
     "where to compute: cpu, this machine's processor; cuda, an NVIDIA GPU; auto: cuda where there "
     "is one and --kernel is not given"},
    {"kernel", TESS_OPTION_STRING, GENERATE_FIELD(kernel), "", 0, 0, NULL,
     "kernel backend; empty chooses the fastest that is built for the device"},
    {"threads", TESS_OPTION_INT, GENERATE_FIELD(threads), "1", 1, 1024, NULL,
     "threads one kernel may use"},
    {"config", TESS_OPTION_STRING, GENERATE_FIELD(config), "", 0, 0, NULL,
     "YAML file with the model's options, for a file of weights without a run"},
    {"vocabulary", TESS_OPTION_INT, GENERATE_FIELD(vocabulary), "0", 0, 1 << 24, NULL,
     "size of the vocabulary; 0: from the run's metrics, else the rows of the embedding"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char generate_usage[] =
    "usage: tessera generate RUN [--option value ...]\n"
    "\n"
    "Continue a text with a trained model. RUN is the folder of a run (train --run), under any\n"
    "strategy, also while it trains: its newest checkpoint is used, or, without one, its\n"
    "weights.safetensors; with the run's model and precision. Or RUN is one of its checkpoints,\n"
    "RUN/checkpoints/step-N. Or it is a model's folder with config.json, or a file or folder of\n"
    "weights with --config FILE.yaml for the model's options. The prompt is printed first, then\n"
    "each token as it is generated; the last line, on stderr, gives the speed.\n"
    "\n"
    "examples\n"
    "  tessera train configs/models/tiny-gpt.yaml --run out\n"
    "  tessera generate out --prompt \"The \"\n"
    "  tessera generate out --prompt \"The \" --temperature 0        no randomness\n"
    "  tessera generate out --top-k 40 --top-p 0.9 --seed 7 > text.txt\n"
    "  tessera generate folder/gpt2 --prompt-tokens 464,3280,318     a Hugging Face folder\n"
    "  tessera generate gpt2.safetensors --config configs/models/gpt2-124m.yaml \\\n      "
    "--prompt-tokens 464,3280,318\n"
    "\n"
    "A model of bytes reads and writes text, and so does one with a tokenizer: --tokenizer, or\n"
    "that of tessera data prepare. Without, tokens are numbers (--prompt-tokens). A terminal\n"
    "shows bytes that are not text as \\xHH; a pipe or a file gets them unchanged.\n";

struct generate {
    struct tess__generate_options options;
    bool tokens_given;
    struct tess__source source;
    struct tess__printer printer;
    int32_t *prompt;
    int64_t prompt_count;
    float *logits;                     /* [vocabulary] */
    struct tess__candidate *candidate; /* [vocabulary] */
    double prompt_s, tokens_s;
};

/* Does it fit the context? Without --tokens, as many tokens as fit. */
static enum tess_status generate_check_room(struct generate *generate)
{
    const int64_t context = generate->source.context, room = context - generate->prompt_count;
    if (room < 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a prompt of %" PRId64 " tokens leaves nothing of a context of %" PRId64
                  ": shorten it, or give --context to a model without learnt positions",
                  generate->prompt_count, context);
    if (generate->options.tokens <= room)
        return TESS_OK;
    if (generate->tokens_given)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a prompt of %" PRId64 " tokens and --tokens %" PRId64
                  " do not fit a context of %" PRId64 ": --tokens %" PRId64
                  " does, and a model without learnt positions takes a longer --context",
                  generate->prompt_count, generate->options.tokens, context, room);
    tess_log(TESS_LOG_INFO, "the context of %" PRId64 " leaves room for %" PRId64 " tokens",
             context, room);
    generate->options.tokens = room;
    return TESS_OK;
}

static enum tess_status generate_open(struct generate *generate, const char *run)
{
    const struct tess__source *source = &generate->source;
    TESS_TRY(tess__source_open(&generate->source, run, &generate->options, generate_option_table));
    TESS_TRY(tess__source_open_tokenizer(&generate->source, &generate->options));
    TESS_TRY(
        tess__prompt_read(&generate->options, source, &generate->prompt, &generate->prompt_count));
    TESS_TRY(generate_check_room(generate));
    generate->logits = calloc((size_t)source->vocabulary, sizeof(*generate->logits));
    generate->candidate = calloc((size_t)source->vocabulary, sizeof(*generate->candidate));
    if (!generate->logits || !generate->candidate)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d logits", source->vocabulary);
    generate->printer.tokenizer = source->tokenizer;
    generate->printer.numbers = generate->options.prompt_tokens[0] != '\0';
    generate->printer.terminal = isatty(STDOUT_FILENO) == 1;
    return TESS_OK;
}

/* The last token that is drawn is shown and not taken: nothing follows it. */
static enum tess_status generate_loop(struct generate *generate)
{
    const struct tess__generate_options *options = &generate->options;
    const struct tess__sampler sampler = {.temperature = options->temperature,
                                          .top_k = options->top_k,
                                          .top_p = options->top_p,
                                          .seed = (uint64_t)options->seed,
                                          .vocabulary = generate->source.vocabulary,
                                          .candidate = generate->candidate};
    struct tess_decoder *decoder = generate->source.decoder;
    const int64_t prompt = generate->prompt_count;
    double start_s = tess_clock_s();
    for (int64_t i = 0; i < prompt; i++)
        TESS_TRY(tess__print_token(&generate->printer, generate->prompt[i]));
    for (int64_t i = 0; i < prompt; i++)
        TESS_TRY(tess_decoder_step(decoder, generate->prompt[i], i,
                                   i == prompt - 1 ? generate->logits : NULL));
    generate->prompt_s = tess_clock_s() - start_s;
    start_s = tess_clock_s();
    for (int64_t i = 0; i < options->tokens; i++) {
        int32_t token;
        TESS_TRY(tess__sample(&sampler, generate->logits, prompt + i, &token));
        TESS_TRY(tess__print_token(&generate->printer, token));
        if (i + 1 < options->tokens)
            TESS_TRY(tess_decoder_step(decoder, token, prompt + i, generate->logits));
    }
    generate->tokens_s = tess_clock_s() - start_s;
    return tess__print_end(&generate->printer);
}

static void generate_print_end(const struct generate *generate)
{
    const struct tess__source *source = &generate->source;
    char bytes[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES], prompt[TESS__TEXT_BYTES];
    fprintf(stderr,
            "%" PRId64 " tokens in %s, %.1f tokens/s, after a prompt of %" PRId64 " in %s; %s, %s, "
            "kernel %s, %s\n",
            generate->options.tokens, tess__text_time(generate->tokens_s, time),
            (double)generate->options.tokens / generate->tokens_s, generate->prompt_count,
            tess__text_time(generate->prompt_s, prompt), source->config->model->name,
            tess_dtype_name(source->dtype), source->config->kernel->name,
            tess__text_bytes((double)tess_decoder_bytes(source->decoder), bytes));
}

static enum tess_status generate_check(struct generate *generate, const struct tess__call *call)
{
    if (call->word_count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "generate needs a run: tessera generate RUN --prompt \"text\"; see tessera help "
                  "generate");
    if (tess_options_is_set(call->options, "prompt") &&
        tess_options_is_set(call->options, "prompt-tokens"))
        TESS_FAIL(TESS_ERR_USAGE, "--prompt and --prompt-tokens both give the beginning: give one");
    if (!tess_options_is_set(call->options, "prompt"))
        generate->options.prompt = "\n";
    generate->tokens_given = tess_options_is_set(call->options, "tokens");
    return TESS_OK;
}

static int generate_command(struct tess__call *call)
{
    struct generate generate = {.options = *(const struct tess__generate_options *)call->values};
    enum tess_status status = generate_check(&generate, call);
    if (status == TESS_OK)
        status = generate_open(&generate, call->word[0]);
    if (status == TESS_OK)
        status = generate_loop(&generate);
    if (status == TESS_OK)
        generate_print_end(&generate);
    tess__source_close(&generate.source);
    free(generate.prompt);
    free(generate.logits);
    free(generate.candidate);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_generate = {
    .name = "generate",
    .summary = "text from a run's weights: sampling, one token at a time",
    .usage = generate_usage,
    .table = generate_option_table,
    .options_size = sizeof(struct tess__generate_options),
    .words_max = 1,
    .run = generate_command,
};
