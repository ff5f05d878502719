/* tessera generate: text, or tokens, from a run's weights. */
#include "cli/generate.h"
#include "base/options.h"
#include "cli/generate_batch.h"
#include "cli/generate_prompt.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate_options {
    struct tess__source_options source;
    struct tess__prompt_options prompt;
    const char *stop, *stop_tokens;
    int64_t tokens, top_k, seed, batch;
    double temperature, top_p;
    bool ignore_end;
    int32_t output; /* auto|text|json */
};

#define GENERATE_FIELD(member)  offsetof(struct generate_options, member)
#define GENERATE_SOURCE(member) offsetof(struct generate_options, source.member)

static const struct tess_option generate_option_table[] = {
    TESS_ROW_STRING("prompt", GENERATE_FIELD(prompt.text), "",
                    "text to continue; without a prompt: a line end"),
    TESS_ROW_STRING("prompt-tokens", GENERATE_FIELD(prompt.numbers), "",
                    "tokens to continue, such as 1,2,3, in place of text; the output is numbers, "
                    "too"),
    TESS_ROW_STRING(
        "prompts", GENERATE_FIELD(prompt.file), "",
        "file of prompts, or - for stdin: each line is a text, or JSON with \"prompt\", "
        "\"tokens\" or \"messages\""),
    TESS_ROW_INT("batch", GENERATE_FIELD(batch), "8", 1, 4096,
                 "prompts of the file that are continued at once; the result is the same"),
    TESS_ROW_BOOL("chat", GENERATE_FIELD(prompt.chat), "off",
                  "the prompt is a question, in the words of the folder's chat template: ChatML, "
                  "Llama 3, Mistral"),
    TESS_ROW_STRING("system", GENERATE_FIELD(prompt.system), "",
                    "with --chat: what is said before the question"),
    TESS_ROW_INT("tokens", GENERATE_FIELD(tokens), "200", 1, 1e9,
                 "tokens to generate; the prompt and these must fit the context"),
    TESS_ROW_STRING("stop", GENERATE_FIELD(stop), "",
                    "words that end a text, which they are not part of, such as '\\n\\n|User:'; "
                    "\\n, \\t, \\| and \\\\ stand for a line end, a tab, | and \\"),
    TESS_ROW_STRING("stop-tokens", GENERATE_FIELD(stop_tokens), "",
                    "tokens that end a text, such as 2,50256, beside those of the model's folder "
                    "or tokenizer"),
    TESS_ROW_BOOL("ignore-end", GENERATE_FIELD(ignore_end), "off",
                  "go on where the model's folder or tokenizer says that a text ends"),
    TESS_ROW_REAL("temperature", GENERATE_FIELD(temperature), "0.8", 0, 100,
                  "below 1 probable tokens become more probable, above 1 less; 0: always the most "
                  "probable token"),
    TESS_ROW_INT("top-k", GENERATE_FIELD(top_k), "0", 0, 1e9,
                 "sample from the k most probable tokens; 0: from all"),
    TESS_ROW_REAL("top-p", GENERATE_FIELD(top_p), "1", 1e-9, 1,
                  "sample from the most probable tokens that together have this probability; 1: "
                  "from all"),
    TESS_ROW_INT("seed", GENERATE_FIELD(seed), "1", 0, 9e15,
                 "seed of the sampling: the same seed gives the same text"),
    TESS_ROW_CHOICE("output", GENERATE_FIELD(output), "auto", "auto|text|json",
                    "text: as it is generated; json: a line for each prompt; auto: json for "
                    "--prompts"),
    TESS__SOURCE_ROWS(GENERATE_SOURCE),
    TESS_ROW_END,
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
    "  tessera generate out --prompts lines.txt --batch 16 --stop '\\n' > texts.jsonl\n"
    "  tessera generate folder/qwen3 --chat --prompt \"Who are you?\"\n"
    "  tessera generate folder/gpt2 --prompt-tokens 464,3280,318     a Hugging Face folder\n"
    "  tessera generate gpt2.safetensors --config configs/models/gpt2-124m.yaml \\\n      "
    "--prompt-tokens 464,3280,318\n"
    "\n"
    "A model of bytes reads and writes text, and so does one with a tokenizer: --tokenizer, or\n"
    "that of the model's folder or of tessera data prepare. Without, tokens are numbers\n"
    "(--prompt-tokens). A terminal shows bytes that are not text as \\xHH; a pipe or a file gets\n"
    "them unchanged.\n";

struct generate {
    struct generate_options options;
    bool tokens_given;
    struct tess__source source;
    struct tess__prompts prompts;
    struct tess__stops stops;
    struct tess__printer printer;
    struct tess__continue how;
    struct tess__continued took;
};

/* Do all prompts fit the context? Without --tokens, as many tokens as fit. */
static enum tess_status generate_check_room(const struct generate *generate)
{
    const int64_t context = generate->source.context, tokens = generate->options.tokens;
    for (int64_t i = 0; i < generate->prompts.count; i++) {
        const int64_t count = generate->prompts.prompt[i].count, room = context - count;
        if (room < 1)
            TESS_FAIL(TESS_ERR_USAGE,
                      "a prompt of %" PRId64 " tokens leaves nothing of a context of %" PRId64
                      ": shorten it, or give --context to a model without learnt positions",
                      count, context);
        if (tokens <= room)
            continue;
        if (generate->tokens_given)
            TESS_FAIL(TESS_ERR_USAGE,
                      "a prompt of %" PRId64 " tokens and --tokens %" PRId64
                      " do not fit a context of %" PRId64 ": --tokens %" PRId64
                      " does, and a model without learnt positions takes a longer --context",
                      count, tokens, context, room);
        if (generate->prompts.count == 1)
            tess_log(TESS_LOG_INFO, "the context of %" PRId64 " leaves room for %" PRId64 " tokens",
                     context, room);
    }
    return TESS_OK;
}

/* The tokens that end a text: those of --stop-tokens, and of the model. */
static enum tess_status generate_find_ends(struct generate *generate, const char *run)
{
    struct tess__continue *how = &generate->how;
    struct tess__tokens given = {0};
    if (!generate->options.ignore_end)
        how->end_count = tess__model_ends(run, &generate->source, how->end, TESS__ENDS_MAX);
    if (generate->options.stop_tokens[0])
        TESS_TRY(tess__numbers_read(&generate->source, "--stop-tokens",
                                    generate->options.stop_tokens, &given));
    const bool fits = given.count <= TESS__ENDS_MAX - how->end_count;
    for (int64_t i = 0; fits && i < given.count; i++)
        how->end[how->end_count++] = given.token[i];
    free(given.token);
    if (!fits)
        TESS_FAIL(TESS_ERR_USAGE, "--stop-tokens: more than %d tokens would end a text",
                  TESS__ENDS_MAX);
    return TESS_OK;
}

static enum tess_status generate_prepare(struct generate *generate, const char *run)
{
    const struct generate_options *options = &generate->options;
    struct tess__source *source = &generate->source;
    struct tess__continue *how = &generate->how;
    const bool file = options->prompt.file[0] != '\0';
    TESS_TRY(tess__stops_read(options->stop, &generate->stops));
    how->batch = file ? (int32_t)options->batch : 1;
    TESS_TRY(tess__source_open(source, run, &options->source, generate_option_table, how->batch));
    if (!options->prompt.numbers[0])
        TESS_TRY(tess__source_open_tokenizer(source, run, options->source.tokenizer));
    TESS_TRY(tess__prompts_read(source, run, &options->prompt, &generate->prompts));
    TESS_TRY(generate_check_room(generate));
    TESS_TRY(generate_find_ends(generate, run));
    how->json = options->output == 0 ? file : options->output == 2;
    if (!how->json && generate->prompts.count > 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--output text shows one text as it is generated, and there are %" PRId64
                  " prompts: give --output json",
                  generate->prompts.count);
    how->source = source;
    how->tokens = options->tokens;
    how->stops = &generate->stops;
    how->echo = !options->prompt.chat;
    how->printer = &generate->printer;
    generate->printer.numbers = generate->prompts.numbers;
    generate->printer.terminal = isatty(STDOUT_FILENO) == 1;
    return TESS_OK;
}

static enum tess_status generate_run(struct generate *generate, const char *run)
{
    const struct generate_options *options = &generate->options;
    TESS_TRY(generate_prepare(generate, run));
    const size_t vocabulary = (size_t)generate->source.vocabulary;
    struct tess__candidate *candidate = calloc(vocabulary, sizeof(*candidate));
    if (candidate == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu candidates", vocabulary);
    generate->how.sampler = (struct tess__sampler){.temperature = options->temperature,
                                                   .top_k = options->top_k,
                                                   .top_p = options->top_p,
                                                   .seed = (uint64_t)options->seed,
                                                   .vocabulary = generate->source.vocabulary,
                                                   .candidate = candidate};
    const enum tess_status status = tess__continue(&generate->how, generate->prompts.prompt,
                                                   generate->prompts.count, &generate->took);
    free(candidate);
    return status;
}

static void generate_print_end(const struct generate *generate)
{
    const struct tess__source *source = &generate->source;
    const struct tess__continued *took = &generate->took;
    /* In a pipe or a file the text ends without a newline: there it is the model's bytes alone. */
    const bool open =
        !generate->how.json && !generate->printer.numbers && !generate->printer.terminal;
    char bytes[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES], prompt[TESS__TEXT_BYTES], many[48] = "";
    if (generate->prompts.count > 1)
        snprintf(many, sizeof(many), "%" PRId64 " prompts, ", generate->prompts.count);
    fprintf(stderr,
            "%s%s%" PRId64 " tokens in %s, %.1f tokens/s, after a prompt of %" PRId64
            " in %s; %s, %s, kernel %s, %s\n",
            open ? "\n" : "", many, took->tokens, tess__text_time(took->tokens_s, time),
            took->tokens_s > 0 ? (double)took->tokens / took->tokens_s : 0.0, took->prompt_tokens,
            tess__text_time(took->prompt_s, prompt), source->config->model->name,
            tess_dtype_name(source->dtype), source->config->kernel->name,
            tess__text_bytes((double)tess_decoder_bytes(source->decoder), bytes));
}

static enum tess_status generate_check(struct generate *generate, const struct tess__call *call)
{
    static const char *const way[] = {"prompt", "prompt-tokens", "prompts"};
    int given = 0;
    if (call->word_count == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "generate needs a run: tessera generate RUN --prompt \"text\"; see tessera help "
                  "generate");
    for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++)
        given += tess_options_is_set(call->options, way[i]);
    if (given > 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--prompt, --prompt-tokens and --prompts all give the beginning: give one");
    if (generate->options.prompt.chat && !tess_options_is_set(call->options, "prompt") &&
        !tess_options_is_set(call->options, "prompts"))
        TESS_FAIL(TESS_ERR_USAGE, "--chat needs a question: --prompt \"text\"");
    if (generate->options.prompt.system[0] && !generate->options.prompt.chat)
        TESS_FAIL(TESS_ERR_USAGE, "--system is said in a chat: give --chat, too");
    if (!tess_options_is_set(call->options, "prompt"))
        generate->options.prompt.text = "\n";
    generate->tokens_given = tess_options_is_set(call->options, "tokens");
    return TESS_OK;
}

static int generate_command(struct tess__call *call)
{
    struct generate generate = {.options = *(const struct generate_options *)call->values};
    enum tess_status status = generate_check(&generate, call);
    if (status == TESS_OK)
        status = generate_run(&generate, call->word[0]);
    if (status == TESS_OK)
        generate_print_end(&generate);
    tess__source_close(&generate.source);
    tess__prompts_close(&generate.prompts);
    tess__stops_close(&generate.stops);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_generate = {
    .name = "generate",
    .summary = "text from a run's weights: sampling, one prompt or many at once",
    .usage = generate_usage,
    .table = generate_option_table,
    .options_size = sizeof(struct generate_options),
    .words_max = 1,
    .run = generate_command,
};
