/* tessera generate: text, or tokens, from a run's weights. */
#include "cli/generate.h"
#include "base/clock.h"
#include "base/options.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/text.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GENERATE_FIELD(member) offsetof(struct tess__generate_options, member)

static const struct tess_option generate_option_table[] = {
    {"prompt", TESS_OPTION_STRING, GENERATE_FIELD(prompt), "", 0, 0, NULL,
     "text to go on from, for a vocabulary of bytes; without any prompt: the end of a line"},
    {"prompt-tokens", TESS_OPTION_STRING, GENERATE_FIELD(prompt_tokens), "", 0, 0, NULL,
     "tokens to go on from, such as 1,2,3, instead of text; numbers come out too"},
    {"tokens", TESS_OPTION_INT, GENERATE_FIELD(tokens), "200", 1, 1e9, NULL,
     "tokens to generate; prompt and they must fit the context"},
    {"temperature", TESS_OPTION_REAL, GENERATE_FIELD(temperature), "0.8", 0, 100, NULL,
     "below 1 likely tokens become likelier, above 1 the others do; 0: always the likeliest"},
    {"top-k", TESS_OPTION_INT, GENERATE_FIELD(top_k), "0", 0, 1e9, NULL,
     "draw among the k likeliest tokens only; 0: all"},
    {"top-p", TESS_OPTION_REAL, GENERATE_FIELD(top_p), "1", 1e-9, 1, NULL,
     "draw among the likeliest tokens that together have this probability; 1: all"},
    {"seed", TESS_OPTION_INT, GENERATE_FIELD(seed), "1", 0, 9e15, NULL,
     "of the numbers that are drawn: the same seed gives the same text"},
    {"precision", TESS_OPTION_CHOICE, GENERATE_FIELD(precision), "run", 0, 0, "run|f32|bf16|f16",
     "type of activations and parameters; run: the one that the run was trained in"},
    {"context", TESS_OPTION_INT, GENERATE_FIELD(context), "0", 0, 1 << 24, NULL,
     "positions at most; 0: those of a sample in training"},
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
     "tokens to choose among; 0: as the run wrote down, else as many as the embedding has rows"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static enum tess_status generate_help(struct tess_options *options)
{
    printf(
        "usage: tessera generate RUN [--option value ...]\n\n"
        "Go on with a text as a trained model would. RUN is the folder of a run (train --run), of\n"
        "whatever strategy; its weights, model and precision are used. Or a file of weights with\n"
        "--config FILE.yaml for the model's options. The prompt comes first, then each token as "
        "it\n"
        "is made; the last line, on stderr, says how fast that was.\n\n"
        "examples\n"
        "  tessera train configs/models/tiny-gpt.yaml --run out\n"
        "  tessera generate out --prompt \"The \"\n"
        "  tessera generate out --prompt \"The \" --temperature 0        no chance at all\n"
        "  tessera generate out --top-k 40 --top-p 0.9 --seed 7 > text.txt\n"
        "  tessera generate gpt2.safetensors --config configs/models/gpt2-124m.yaml \\\n"
        "      --prompt-tokens 464,3280,318\n\n"
        "A model of bytes reads and writes text. Tokens of a tokenizer are numbers here. On a\n"
        "terminal bytes that are no text are shown as \\xHH; a pipe or a file gets them as they\n"
        "are.\n\n");
    tess_options_print_help(options);
    return TESS_OK;
}

struct generate {
    struct tess__generate_options options;
    bool tokens_given;
    struct tess__source source;
    struct tess__teller teller;
    int32_t *prompt;
    int64_t prompt_count;
    float *logits;                     /* [vocabulary] */
    struct tess__candidate *candidate; /* [vocabulary] */
    double prompt_s, tokens_s;
};

/* Does it fit the context? Where nobody asked for a number of tokens, as many as fit. */
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
    TESS_TRY(tess__source_open(&generate->source, run, &generate->options));
    TESS_TRY(tess__prompt_read(&generate->options, source->vocabulary, &generate->prompt,
                               &generate->prompt_count));
    TESS_TRY(generate_check_room(generate));
    generate->logits = calloc((size_t)source->vocabulary, sizeof *generate->logits);
    generate->candidate = calloc((size_t)source->vocabulary, sizeof *generate->candidate);
    if (generate->logits == NULL || generate->candidate == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d logits", source->vocabulary);
    generate->teller.numbers = generate->options.prompt_tokens[0] != '\0';
    generate->teller.terminal = isatty(STDOUT_FILENO) == 1;
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
        TESS_TRY(tess__tell(&generate->teller, generate->prompt[i]));
    for (int64_t i = 0; i < prompt; i++)
        TESS_TRY(tess_decoder_step(decoder, generate->prompt[i], i,
                                   i == prompt - 1 ? generate->logits : NULL));
    generate->prompt_s = tess_clock_s() - start_s;
    start_s = tess_clock_s();
    for (int64_t i = 0; i < options->tokens; i++) {
        int32_t token;
        TESS_TRY(tess__sample(&sampler, generate->logits, prompt + i, &token));
        TESS_TRY(tess__tell(&generate->teller, token));
        if (i + 1 < options->tokens)
            TESS_TRY(tess_decoder_step(decoder, token, prompt + i, generate->logits));
    }
    generate->tokens_s = tess_clock_s() - start_s;
    return tess__tell_end(&generate->teller);
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

static enum tess_status generate_read(struct generate *generate, struct tess_options *options,
                                      int argc, char **argv, const char **run_out)
{
    int count = 0;
    TESS_TRY(tess_options_load_arguments(options, argc, argv, run_out, 1, &count));
    if (count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "generate wants a run: tessera generate RUN --prompt \"text\"; tessera help "
                  "generate says more");
    if (tess_options_is_set(options, "prompt") && tess_options_is_set(options, "prompt-tokens"))
        TESS_FAIL(TESS_ERR_USAGE, "--prompt and --prompt-tokens both say what to go on from: give "
                                  "one");
    if (!tess_options_is_set(options, "prompt"))
        generate->options.prompt = "\n";
    generate->tokens_given = tess_options_is_set(options, "tokens");
    return TESS_OK;
}

int tess__command_generate(int argc, char **argv)
{
    struct generate generate = {0};
    struct tess_options *options = NULL;
    struct tess__args args;
    const char *run = NULL;
    enum tess_status status = tess__args_init(&args, argc, argv);
    bool help = status == TESS_OK && tess__args_has(&args, "help");

    if (status == TESS_OK)
        status = tess_options_open(&options);
    if (status == TESS_OK)
        status = tess_options_add(options, "", generate_option_table, &generate.options);
    if (status == TESS_OK)
        status =
            help ? generate_help(options) : generate_read(&generate, options, argc, argv, &run);
    if (status == TESS_OK && !help) {
        status = generate_open(&generate, run);
        if (status == TESS_OK)
            status = generate_loop(&generate);
        if (status == TESS_OK)
            generate_print_end(&generate);
    }
    tess__source_close(&generate.source);
    free(generate.prompt);
    free(generate.logits);
    free(generate.candidate);
    if (options != NULL)
        tess_options_close(options);
    return tess_status_exit_code(status);
}
