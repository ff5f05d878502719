/* tessera score: the log-probability of each token of a text, as training has it. */
#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "cli/generate.h"
#include "data/data.h"
#include "data/shard.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_BYTES_MAX ((size_t)1 << 30) /* of a text */
#define SCORE_ROWS      4096              /* tokens of a shard that are read at a time */

struct score_options {
    struct tess__source_options source;
    const char *text, *text_tokens;
    int64_t limit;
    int32_t output; /* json|table|sum */
};

#define SCORE_FIELD(member)  offsetof(struct score_options, member)
#define SCORE_SOURCE(member) offsetof(struct score_options, source.member)

static const struct tess_option score_option_table[] = {
    TESS_ROW_STRING("text", SCORE_FIELD(text), "",
                    "file of text, or - for stdin; or a file of tokens, *.bin"),
    TESS_ROW_STRING("text-tokens", SCORE_FIELD(text_tokens), "",
                    "tokens such as 1,2,3 in place of a file"),
    TESS_ROW_INT("limit", SCORE_FIELD(limit), "0", 0, 1e12, "tokens to read at most; 0: all"),
    TESS_ROW_CHOICE("output", SCORE_FIELD(output), "json", "json|table|sum",
                    "a line of JSON for each token and one for the sum; a table; or the sum alone"),
    TESS__SOURCE_ROWS(SCORE_SOURCE),
    TESS_ROW_END,
};

static const char score_usage[] =
    "usage: tessera score RUN --text FILE [--option value ...]\n"
    "\n"
    "Print the log-probability that a model gives each token of a text, their sum and the\n"
    "perplexity. RUN is what tessera generate takes: a run, a checkpoint, a model's folder, or\n"
    "weights with --config. The text is cut into samples of --context tokens as training cuts it;\n"
    "its first token has no log-probability.\n"
    "\n"
    "The numbers are those of the training forward, to the bit: in every batch, with any --chunk,\n"
    "and with --tensor.canonical on every number of tensor ranks.\n"
    "\n"
    "examples\n"
    "  tessera score out --text book.txt\n"
    "  tessera score out --text book.txt --output sum\n"
    "  tessera score folder/qwen3 --text tokens/test_0000.bin --context 2048\n"
    "  tessera score out --text-tokens 464,3280,318 --output table\n";

struct score {
    struct score_options options;
    struct tess__source source;
    struct tess__tokens tokens;
    double sum;
    int64_t count;
    double took_s;
};

/* ---- the text -------------------------------------------------------------------------------- */

/* All tokens of a file of tokens: a sample of it is one token and the one after. */
static enum tess_status score_read_dataset(struct score *score, const struct tess_dataset *dataset)
{
    const struct tess_loader_options options = {.length = 1};
    const int64_t all = dataset->train.count + 1 + dataset->test.count;
    const int64_t limit = score->options.limit, want = limit > 0 && limit < all ? limit : all;
    int32_t input[SCORE_ROWS], label[SCORE_ROWS];
    int64_t sample[SCORE_ROWS], at = 0;
    int32_t *token = score->tokens.token = calloc((size_t)want + 1, sizeof(*token));
    if (token == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %" PRId64 " tokens", want);
    if (dataset->class_count > score->source.vocabulary)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--text %s has a vocabulary of %d, and this model one of %d: other tokens",
                  score->options.text, dataset->class_count, score->source.vocabulary);
    for (int s = 0; s < 2; s++) {
        const struct tess_split *split = s == 0 ? &dataset->train : &dataset->test;
        for (int64_t first = 0, rows; first < split->count && at + 1 < want; first += rows) {
            rows = split->count - first < SCORE_ROWS ? split->count - first : SCORE_ROWS;
            for (int64_t i = 0; i < rows; i++)
                sample[i] = first + i;
            const int64_t good = tess_load_rows(dataset, split, &options, 0, 0, false, sample, rows,
                                                TESS_F32, input, label);
            if (good != rows)
                return tess_load_report(dataset, split, sample[good]);
            for (int64_t i = 0; i < rows && at + 1 < want; i++, at++) {
                token[at] = input[i];
                token[at + 1] = label[i];
            }
        }
    }
    score->tokens.count = at + 1;
    return TESS_OK;
}

static enum tess_status score_read_shard(struct score *score)
{
    struct tess_dataset *dataset = NULL;
    TESS_TRY(tess_dataset_open_tokens(score->options.text, NULL, 1e-9, 1, &dataset));
    const enum tess_status status = score_read_dataset(score, dataset);
    tess_dataset_close(dataset);
    return status;
}

static enum tess_status score_read_file(FILE *file, const char *name, char **text_out,
                                        size_t *count_out)
{
    size_t room = 1 << 16, count = 0;
    char *text = malloc(room);
    while (text != NULL && !feof(file) && !ferror(file) && count < SCORE_BYTES_MAX) {
        if (count == room) {
            char *grown = realloc(text, room *= 2);
            if (grown == NULL)
                break;
            text = grown;
        }
        count += fread(text + count, 1, room - count, file);
    }
    *text_out = text;
    *count_out = count;
    if (ferror(file))
        TESS_FAIL(TESS_ERR_IO, "cannot read --text %s", name);
    if (count >= SCORE_BYTES_MAX)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--text %s has more than 1 GiB: make tokens of it, tessera data prepare", name);
    return text != NULL && feof(file) ? TESS_OK
                                      : tess_fail(TESS_ERR_MEMORY, "no memory for --text %s", name);
}

static enum tess_status score_read_text(struct score *score)
{
    const char *name = score->options.text, *why;
    const bool standard = strcmp(name, "-") == 0;
    FILE *file = standard ? stdin : tess_file_open_input(name, &why);
    char *text = NULL;
    size_t count = 0;
    if (file == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read --text %s: %s", name, why);
    enum tess_status status = score_read_file(file, name, &text, &count);
    if (!standard)
        fclose(file);
    if (status == TESS_OK)
        status = tess__text_read(&score->source, "--text", text, count, &score->tokens);
    free(text);
    return status;
}

static enum tess_status score_read(struct score *score, const char *run)
{
    const struct score_options *options = &score->options;
    const size_t length = strlen(options->text);
    if (options->text_tokens[0])
        TESS_TRY(tess__numbers_read(&score->source, "--text-tokens", options->text_tokens,
                                    &score->tokens));
    else if (length > 4 && strcmp(options->text + length - 4, ".bin") == 0)
        TESS_TRY(score_read_shard(score));
    else {
        TESS_TRY(tess__source_open_tokenizer(&score->source, run, options->source.tokenizer));
        TESS_TRY(score_read_text(score));
    }
    if (options->limit > 0 && options->limit < score->tokens.count)
        score->tokens.count = options->limit;
    if (score->tokens.count < 2)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a text of one token has no log-probability: nothing stands before it");
    return TESS_OK;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Nine digits name an f32. */
static void score_print(const struct score *score, int64_t at, float log_prob)
{
    const int32_t token = score->tokens.token[at];
    if (score->options.output == 0)
        printf("{\"at\":%" PRId64 ",\"token\":%d,\"log_prob\":%.9g}\n", at, token,
               (double)log_prob);
    else if (score->options.output == 1)
        printf("%10" PRId64 "  %8d  %15.9g\n", at, token, (double)log_prob);
}

/* Tokens first .. first + count - 1 of a sample that begins at `begin`, and the one after each. */
static enum tess_status score_part(struct score *score, int64_t begin, int64_t first, int64_t count,
                                   float *loss)
{
    const int32_t *token = score->tokens.token + first;
    const struct tess_decoder_part part = {.position = first - begin,
                                           .count = count,
                                           .token = token,
                                           .label = token + 1,
                                           .loss = loss};
    TESS_TRY(tess_decoder_run(score->source.decoder, &part, 1));
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(loss[i]))
            TESS_FAIL(TESS_ERR_NUMERIC,
                      "the log-probability of token %" PRId64
                      " is not a number: the weights are not, or --precision is too small for them",
                      first + i + 1);
        score_print(score, first + i + 1, -loss[i]);
        score->sum -= (double)loss[i];
        score->count++;
    }
    return TESS_OK;
}

static enum tess_status score_samples(struct score *score, float *loss)
{
    const int64_t context = score->source.context, last = score->tokens.count - 1;
    for (int64_t begin = 0; begin < last; begin += context) {
        const int64_t end = last - begin < context ? last : begin + context;
        for (int64_t at = begin; at < end; at += score->source.chunk) {
            const int64_t left = end - at;
            TESS_TRY(score_part(score, begin, at,
                                left < score->source.chunk ? left : score->source.chunk, loss));
        }
    }
    return TESS_OK;
}

static enum tess_status score_print_end(const struct score *score)
{
    const double mean = score->sum / (double)score->count;
    char time[TESS__TEXT_BYTES], bytes[TESS__TEXT_BYTES];
    if (score->options.output == 0)
        printf("{\"tokens\":%" PRId64 ",\"log_prob\":%.17g,\"perplexity\":%.9g}\n", score->count,
               score->sum, exp(-mean));
    else
        printf("%" PRId64 " tokens, log-probability %.9g, %.6g a token, perplexity %.6g\n",
               score->count, score->sum, mean, exp(-mean));
    if (fflush(stdout) != 0 || ferror(stdout))
        TESS_FAIL(TESS_ERR_IO, "cannot write the scores to stdout");
    fprintf(stderr, "%" PRId64 " tokens in %s, %.1f tokens/s; %s, %s, kernel %s, %s\n",
            score->count, tess__text_time(score->took_s, time),
            (double)score->count / score->took_s, score->source.config->model->name,
            tess_dtype_name(score->source.dtype), score->source.config->kernel->name,
            tess__text_bytes((double)tess_decoder_bytes(score->source.decoder), bytes));
    return TESS_OK;
}

static enum tess_status score_run(struct score *score, const struct tess__call *call)
{
    const char *run = call->word_count > 0 ? call->word[0] : NULL;
    if (run == NULL || !score->options.text[0] == !score->options.text_tokens[0])
        TESS_FAIL(TESS_ERR_USAGE,
                  "score needs a run and a text: tessera score RUN --text FILE; see "
                  "tessera help score");
    TESS_TRY(tess__source_open(&score->source, run, &score->options.source, score_option_table, 1));
    if (score->source.config->run.fp8 != 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s was trained with --fp8, whose scales depend on what else is in a batch: its "
                  "log-probabilities cannot be had again token by token",
                  run);
    TESS_TRY(score_read(score, run));
    float *loss = calloc((size_t)score->source.chunk, sizeof(*loss));
    if (loss == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %" PRId64 " losses", score->source.chunk);
    if (score->options.output == 1)
        printf("%10s  %8s  %15s\n", "at", "token", "log-probability");
    const double start_s = tess_clock_s();
    const enum tess_status status = score_samples(score, loss);
    score->took_s = tess_clock_s() - start_s;
    free(loss);
    return status == TESS_OK ? score_print_end(score) : status;
}

static int score_command(struct tess__call *call)
{
    struct score score = {.options = *(const struct score_options *)call->values};
    const enum tess_status status = score_run(&score, call);
    tess__source_close(&score.source);
    free(score.tokens.token);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_score = {
    .name = "score",
    .summary = "log-probability of each token of a text, the bits of training",
    .usage = score_usage,
    .table = score_option_table,
    .options_size = sizeof(struct score_options),
    .words_max = 1,
    .run = score_command,
};
