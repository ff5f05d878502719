/* The text of tessera score, as tokens, and where its documents end. */
#include "cli/score.h"

#include "base/array.h"
#include "base/file.h"
#include "data/data_tokens.h"
#include "prepare/prepare.h"
#include "tessera/check.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_BYTES_MAX ((size_t)1 << 30) /* of a text */
#define SCORE_ROWS      4096              /* tokens of a shard that are read at a time */

static enum tess_status score_end_document(struct score *score, int64_t end)
{
    int64_t *more = tess__array_grow(score->end, (size_t)score->document_count, sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the ends of %" PRId64 " documents",
                  score->document_count);
    score->end = more;
    score->end[score->document_count++] = end;
    return TESS_OK;
}

/* ---- files of tokens ------------------------------------------------------------------------- */

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

/* Those that tessera data prepare has written. */
static enum tess_status score_read_ends(struct score *score, struct tess_token_stream *stream)
{
    bool known = true;
    for (int32_t p = 0; p < stream->piece_count; p++)
        known = known && stream->piece[p].end != NULL;
    if (!known)
        return TESS_OK;
    score->documents = true;
    TESS_TRY(tess__stream_find_ends(stream));
    for (int64_t d = 0; d < stream->ends; d++)
        TESS_TRY(score_end_document(score, stream->end[d]));
    return TESS_OK;
}

static enum tess_status score_read_shard(struct score *score)
{
    struct tess_dataset *dataset = NULL;
    TESS_TRY(tess_dataset_open_tokens(score->options.text, NULL, 1e-9, 1, &dataset));
    enum tess_status status = score_read_dataset(score, dataset);
    if (status == TESS_OK)
        status = score_read_ends(score, dataset->train.stream);
    tess_dataset_close(dataset);
    return status;
}

/* ---- text ------------------------------------------------------------------------------------ */

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

/* The tokenizer's end of a document, written out in the text, ends it. */
static enum tess_status score_find_ends(struct score *score)
{
    const struct tess__tokens *tokens = &score->tokens;
    const int32_t end =
        score->source.tokenizer != NULL ? tess__tokenizer_end(score->source.tokenizer) : -1;
    for (int64_t i = 0; i < tokens->count && end >= 0; i++)
        if (tokens->token[i] == end)
            TESS_TRY(score_end_document(score, i + 1));
    score->documents = score->document_count > 0;
    return TESS_OK;
}

/* ---- JSON Lines ------------------------------------------------------------------------------ */

static bool score_is_lines(const char *name)
{
    static const char *const pattern[] = {"*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.ndjson"};
    bool lines = false;
    for (size_t i = 0; i < sizeof(pattern) / sizeof(*pattern); i++)
        lines = lines || fnmatch(pattern[i], name, 0) == 0;
    return lines;
}

static enum tess_status score_add_document(struct score *score, const char *text, size_t bytes)
{
    struct tess__tokens *all = &score->tokens, one = {0};
    if (bytes > 0)
        TESS_TRY(tess__text_read(&score->source, score->options.text, text, bytes, &one));
    int32_t *more = realloc(all->token, (size_t)(all->count + one.count + 1) * sizeof(*more));
    if (more != NULL) {
        all->token = more;
        if (one.count > 0)
            memcpy(more + all->count, one.token, (size_t)one.count * sizeof(*more));
        all->count += one.count;
    }
    free(one.token);
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %" PRId64 " tokens", all->count);
    return score_end_document(score, all->count);
}

static enum tess_status score_read_piece(struct score *score, const struct prepare_plan *plan,
                                         const struct prepare_piece *piece)
{
    struct prepare_source *source;
    struct prepare_document document;
    const int64_t limit = score->options.limit;
    TESS_TRY(tess__source_open_piece(&plan->file[piece->file], piece, score->options.key, NULL,
                                     &source));
    enum tess_status status = TESS_OK;
    while (status == TESS_OK && (limit == 0 || score->tokens.count < limit)) {
        status = tess__source_next(source, &document);
        if (status != TESS_OK || document.text == NULL)
            break;
        status = score_add_document(score, document.text, document.bytes);
    }
    tess__source_close_piece(source);
    return status;
}

static enum tess_status score_read_lines(struct score *score)
{
    struct prepare_plan plan = {0};
    enum tess_status status = tess__prepare_plan(&plan, score->options.text, 0);
    for (int32_t p = 0; p < plan.piece_count && status == TESS_OK; p++)
        status = score_read_piece(score, &plan, &plan.piece[p]);
    tess__prepare_plan_fini(&plan);
    score->documents = true;
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static enum tess_status score_read_named(struct score *score, const char *run)
{
    const struct score_options *options = &score->options;
    const size_t length = strlen(options->text);
    if (options->text_tokens[0])
        return tess__numbers_read(&score->source, "--text-tokens", options->text_tokens,
                                  &score->tokens);
    if (length > 4 && strcmp(options->text + length - 4, ".bin") == 0)
        return score_read_shard(score);
    TESS_TRY(tess__source_open_tokenizer(&score->source, run, options->source.tokenizer));
    if (score_is_lines(options->text))
        return score_read_lines(score);
    TESS_TRY(score_read_text(score));
    return score_find_ends(score);
}

/* Documents end at their ends, and at that of the text, which --limit may have cut. */
static enum tess_status score_cut(struct score *score)
{
    const int64_t count = score->tokens.count;
    int64_t kept = 0, longest = 0;
    if (!score->options.apart)
        score->document_count = 0;
    score->documents = score->documents && score->options.apart;
    while (kept < score->document_count && score->end[kept] < count)
        kept++;
    while (kept < score->document_count && score->end[kept] == count)
        kept++; /* also empty ones behind it */
    score->document_count = kept;
    if (kept == 0 || score->end[kept - 1] < count)
        TESS_TRY(score_end_document(score, count));
    for (int64_t d = 0; d < score->document_count; d++) {
        const int64_t tokens = score->end[d] - (d > 0 ? score->end[d - 1] : 0);
        longest = tokens > longest ? tokens : longest;
    }
    if (longest < 2)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a text of one token has no log-probability: nothing stands before it");
    return TESS_OK;
}

enum tess_status tess__score_read(struct score *score, const char *run)
{
    TESS_TRY(score_read_named(score, run));
    if (score->options.limit > 0 && score->options.limit < score->tokens.count)
        score->tokens.count = score->options.limit;
    return score_cut(score);
}
