/* tessera score: the log-probability of each token of a text, as training has it. */
#include "cli/score.h"

#include "base/clock.h"
#include "base/options.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_FIELD(member)  offsetof(struct score_options, member)
#define SCORE_SOURCE(member) offsetof(struct score_options, source.member)

static const struct tess_option score_option_table[] = {
    TESS_ROW_STRING(
        "text", SCORE_FIELD(text), "",
        "file of text, or - for stdin; a file of tokens, *.bin; or JSON Lines, *.jsonl, "
        "a document in a line"),
    TESS_ROW_STRING("text-tokens", SCORE_FIELD(text_tokens), "",
                    "tokens such as 1,2,3 in place of a file"),
    TESS_ROW_STRING("key", SCORE_FIELD(key), "text", "of JSON Lines: the key that has the text"),
    {"documents", TESS_OPTION_BOOL, SCORE_FIELD(apart), "on", 0, 0, NULL,
     "score each document apart, where the text has several; off: all as one text"},
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
    "weights with --config. Each document is scored on its own: a line of JSON Lines, a\n"
    "document of prepared tokens, or text up to the tokenizer's end-of-text token. It is cut\n"
    "into samples of --context tokens, as for training; its first token has no log-probability.\n"
    "\n"
    "The numbers have the same bits as those of training's forward pass: in every batch, with\n"
    "any --chunk, and with --tensor.canonical on every number of tensor ranks; on a GPU if the\n"
    "run was trained with --cuda.decode exact.\n"
    "\n"
    "examples\n"
    "  tessera score out --text book.txt\n"
    "  tessera score out --text book.txt --output sum\n"
    "  tessera score folder/qwen3 --text answers.jsonl --key answer\n"
    "  tessera score folder/qwen3 --text tokens/test_0000.bin --context 2048\n"
    "  tessera score out --text-tokens 464,3280,318 --output table\n";

/* ---- scores ---------------------------------------------------------------------------------- */

/* Where documents are known, `at` counts in the document. Nine digits name an f32. */
static void score_print(const struct score *score, int64_t at, float log_prob)
{
    const int32_t token = score->tokens.token[at];
    const int64_t place = at - score->begin;
    if (score->options.output == SCORE_JSON && score->documents)
        printf("{\"document\":%" PRId64 ",\"at\":%" PRId64 ",\"token\":%d,\"log_prob\":%.9g}\n",
               score->document, place, token, (double)log_prob);
    else if (score->options.output == SCORE_JSON)
        printf("{\"at\":%" PRId64 ",\"token\":%d,\"log_prob\":%.9g}\n", place, token,
               (double)log_prob);
    else if (score->options.output == SCORE_TABLE && score->documents)
        printf("%10" PRId64 "  %10" PRId64 "  %8d  %15.9g\n", score->document, place, token,
               (double)log_prob);
    else if (score->options.output == SCORE_TABLE)
        printf("%10" PRId64 "  %8d  %15.9g\n", place, token, (double)log_prob);
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

/* Samples of the tokens [score->begin, end). */
static enum tess_status score_samples(struct score *score, int64_t end, float *loss)
{
    const int64_t context = score->source.context, last = end - 1;
    for (int64_t begin = score->begin; begin < last; begin += context) {
        const int64_t sample_end = last - begin < context ? last : begin + context;
        for (int64_t at = begin; at < sample_end; at += score->source.chunk) {
            const int64_t left = sample_end - at;
            TESS_TRY(score_part(score, begin, at,
                                left < score->source.chunk ? left : score->source.chunk, loss));
        }
    }
    return TESS_OK;
}

static enum tess_status score_documents(struct score *score, float *loss)
{
    for (; score->document < score->document_count; score->document++) {
        const int64_t end = score->end[score->document], count = score->count;
        const double sum = score->sum;
        TESS_TRY(score_samples(score, end, loss));
        /* No token, where it has one alone: nothing stands before it. */
        if (score->options.output == SCORE_JSON && score->documents)
            printf("{\"document\":%" PRId64 ",\"tokens\":%" PRId64 ",\"log_prob\":%.17g}\n",
                   score->document, score->count - count, score->sum - sum);
        score->begin = end;
    }
    return TESS_OK;
}

static enum tess_status score_print_end(const struct score *score)
{
    const double mean = score->sum / (double)score->count;
    char time[TESS__TEXT_BYTES], bytes[TESS__TEXT_BYTES], of[64] = "";
    if (score->options.output == SCORE_JSON) {
        if (score->documents)
            snprintf(of, sizeof(of), "\"documents\":%" PRId64 ",", score->document_count);
        printf("{%s\"tokens\":%" PRId64 ",\"log_prob\":%.17g,\"perplexity\":%.9g}\n", of,
               score->count, score->sum, exp(-mean));
    } else {
        if (score->documents)
            snprintf(of, sizeof(of), " of %" PRId64 " documents", score->document_count);
        printf("%" PRId64 " tokens%s, log-probability %.9g, %.6g a token, perplexity %.6g\n",
               score->count, of, score->sum, mean, exp(-mean));
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        TESS_FAIL(TESS_ERR_IO, "cannot write the scores to stdout");
    const struct tess_config *config = score->source.config;
    if (strcmp(config->kernel->name, "cuda") == 0 && !tess_config_choices(config).same_rows)
        fprintf(stderr,
                "training's log-probabilities may differ by rounding: on GPUs they have the "
                "same bits if a run has --cuda.decode exact\n");
    fprintf(stderr, "%" PRId64 " tokens in %s, %.1f tokens/s; %s, %s, kernel %s, %s\n",
            score->count, tess__text_time(score->took_s, time),
            (double)score->count / score->took_s, config->model->name,
            tess_dtype_name(score->source.dtype), config->kernel->name,
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
    TESS_TRY(tess__score_read(score, run));
    float *loss = calloc((size_t)score->source.chunk, sizeof(*loss));
    if (loss == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %" PRId64 " losses", score->source.chunk);
    if (score->options.output == SCORE_TABLE)
        printf("%s%10s  %8s  %15s\n", score->documents ? "  document  " : "", "at", "token",
               "log-probability");
    const double start_s = tess_clock_s();
    const enum tess_status status = score_documents(score, loss);
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
    free(score.end);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_score = {
    .name = "score",
    .summary = "log-probability of each token of a text, with the same bits as in training",
    .usage = score_usage,
    .table = score_option_table,
    .options_size = sizeof(struct score_options),
    .words_max = 1,
    .run = score_command,
};
