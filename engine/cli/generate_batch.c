/*
 * Prompts that are continued, several at once: each has a sequence of the decoder until it is done,
 * then the next one takes its place. A call of the decoder has a token of every text that is being
 * made, and as much of the prompts that have not been read as there is room for.
 */
#include "cli/generate_batch.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct batch_slot {
    int64_t number;                    /* of the prompt; -1: none */
    const struct tess__tokens *prompt; /* NULL: none */
    int64_t position;                  /* tokens taken */
    int64_t room;                      /* tokens to make at most */
    struct tess__tokens made;
    struct tess__growing text;
    const char *why; /* it ended: "length", "end", "stop"; NULL: it goes on */
    float *logits;   /* [vocabulary] */
};

struct batch {
    const struct tess__continue *how;
    const struct tess__tokens *prompt;
    int64_t prompt_count, next; /* next: the first prompt that has not begun */
    struct batch_slot *slot;    /* [how->batch] */
    struct tess_decoder_part *part;
    struct tess__continued took;
};

/* ---- what is shown --------------------------------------------------------------------------- */

static enum tess_status batch_show_token(const struct batch *batch, struct batch_slot *slot,
                                         int32_t token)
{
    const struct tess__continue *how = batch->how;
    const size_t before = slot->text.shown;
    char own[1];
    size_t count;
    if (how->printer->numbers)
        return how->json ? TESS_OK : tess__print_number(how->printer, token);
    const char *bytes = tess__token_bytes(how->source->tokenizer, token, own, &count);
    TESS_TRY(tess__growing_add(&slot->text, how->stops, bytes, count));
    if (how->json)
        return TESS_OK;
    return tess__print_bytes(how->printer, slot->text.text + before, slot->text.shown - before);
}

static enum tess_status batch_show_prompt(const struct batch *batch,
                                          const struct tess__tokens *prompt)
{
    const struct tess__continue *how = batch->how;
    for (int64_t i = 0; how->echo && !how->json && i < prompt->count; i++) {
        char own[1];
        size_t count;
        const char *bytes =
            tess__token_bytes(how->source->tokenizer, prompt->token[i], own, &count);
        if (how->printer->numbers)
            TESS_TRY(tess__print_number(how->printer, prompt->token[i]));
        else
            TESS_TRY(tess__print_bytes(how->printer, bytes, count));
    }
    return TESS_OK;
}

/* Bytes that are no UTF-8 become U+FFFD: JSON has none. */
static json_t *batch_json_text(const struct tess__growing *text)
{
    static const char other[] = "\xef\xbf\xbd";
    char *clean = malloc(3 * text->shown + 1), *to = clean;
    if (clean == NULL)
        return NULL;
    for (size_t at = 0; at < text->shown;) {
        uint32_t code;
        const int length = tess__utf8_length(text->text + at, text->shown - at, &code);
        memcpy(to, length > 0 ? text->text + at : other, length > 0 ? (size_t)length : 3);
        to += length > 0 ? length : 3;
        at += length > 0 ? (size_t)length : 1;
    }
    json_t *value = json_stringn(clean, (size_t)(to - clean));
    free(clean);
    return value;
}

static enum tess_status batch_show_json(const struct batch *batch, const struct batch_slot *slot)
{
    json_t *tokens = json_array(), *line = json_object();
    json_object_set_new(line, "prompt", json_integer(slot->number));
    if (!batch->how->printer->numbers)
        json_object_set_new(line, "text", batch_json_text(&slot->text));
    for (int64_t i = 0; i < slot->made.count; i++)
        json_array_append_new(tokens, json_integer(slot->made.token[i]));
    json_object_set_new(line, "tokens", tokens);
    json_object_set_new(line, "end", json_string(slot->why));
    const bool written = line != NULL && json_dumpf(line, stdout, JSON_COMPACT) == 0;
    json_decref(line);
    if (!written || putchar('\n') == EOF || fflush(stdout) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write a line of JSON to stdout");
    return TESS_OK;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static enum tess_status batch_begin(struct batch *batch, struct batch_slot *slot)
{
    const struct tess__continue *how = batch->how;
    slot->prompt = NULL;
    if (batch->next == batch->prompt_count)
        return TESS_OK;
    slot->number = batch->next++;
    slot->prompt = &batch->prompt[slot->number];
    const int64_t room = how->source->context - slot->prompt->count;
    slot->room = how->tokens < room ? how->tokens : room;
    slot->position = slot->made.count = 0;
    slot->text.count = slot->text.shown = 0;
    slot->text.stopped = false;
    slot->why = NULL;
    batch->took.prompt_tokens += slot->prompt->count;
    return batch_show_prompt(batch, slot->prompt);
}

static enum tess_status batch_finish(struct batch *batch, struct batch_slot *slot)
{
    const size_t before = slot->text.shown;
    tess__growing_end(&slot->text);
    if (batch->how->json)
        TESS_TRY(batch_show_json(batch, slot));
    else if (slot->text.shown > before)
        TESS_TRY(tess__print_bytes(batch->how->printer, slot->text.text + before,
                                   slot->text.shown - before));
    return batch_begin(batch, slot);
}

static bool batch_ends(const struct tess__continue *how, int32_t token)
{
    for (int i = 0; i < how->end_count; i++)
        if (how->end[i] == token)
            return true;
    return false;
}

/* Draw the token that follows what has been taken. The last one is shown and never taken. */
static enum tess_status batch_draw(struct batch *batch, struct batch_slot *slot)
{
    struct tess__sampler sampler = batch->how->sampler;
    int32_t token;
    sampler.sequence = (uint64_t)slot->number;
    TESS_TRY(tess__sample(&sampler, slot->logits, slot->position, &token));
    int32_t *grown =
        tess__array_grow(slot->made.token, (size_t)slot->made.count, sizeof(*slot->made.token));
    if (grown == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %" PRId64 " tokens", slot->made.count);
    slot->made.token = grown;
    grown[slot->made.count++] = token;
    batch->took.tokens++;
    if (batch_ends(batch->how, token))
        slot->why = "end";
    else
        TESS_TRY(batch_show_token(batch, slot, token));
    if (slot->text.stopped)
        slot->why = "stop";
    if (slot->why == NULL && slot->made.count == slot->room)
        slot->why = "length";
    return slot->why != NULL ? batch_finish(batch, slot) : TESS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool batch_reads(const struct batch_slot *slot)
{
    return slot->prompt != NULL && slot->position < slot->prompt->count;
}

/* The slot's next `most` tokens as a part: of the prompt, or the one that was drawn last. */
static struct tess_decoder_part batch_part(const struct batch *batch, int32_t index, int64_t most)
{
    const struct batch_slot *slot = &batch->slot[index];
    const int64_t left = slot->prompt->count - slot->position;
    struct tess_decoder_part part = {.sequence = index, .position = slot->position, .count = 1};
    if (!batch_reads(slot)) {
        part.token = &slot->made.token[slot->made.count - 1];
        part.logits = slot->logits;
        return part;
    }
    part.count = left < most ? left : most;
    part.token = slot->prompt->token + slot->position;
    part.logits = part.count == left ? slot->logits : NULL;
    return part;
}

/* One call: a token of each text that is being made, and of prompts what there is room for. */
static enum tess_status batch_call(struct batch *batch, bool *done_out)
{
    const int32_t slots = batch->how->batch;
    const double start_s = tess_clock_s();
    int64_t room = batch->how->source->chunk;
    int32_t count = 0;
    for (int32_t s = 0; s < slots; s++)
        if (batch->slot[s].prompt != NULL && !batch_reads(&batch->slot[s])) {
            batch->part[count++] = batch_part(batch, s, 1);
            room--;
        }
    const bool only_reads = count == 0;
    for (int32_t s = 0; s < slots && room > 0; s++)
        if (batch_reads(&batch->slot[s])) {
            batch->part[count] = batch_part(batch, s, room);
            room -= batch->part[count++].count;
        }
    *done_out = count == 0;
    if (count == 0)
        return TESS_OK;
    TESS_TRY(tess_decoder_run(batch->how->source->decoder, batch->part, count));
    for (int32_t p = 0; p < count; p++) {
        struct batch_slot *slot = &batch->slot[batch->part[p].sequence];
        slot->position += batch->part[p].count;
        if (batch->part[p].logits != NULL)
            TESS_TRY(batch_draw(batch, slot));
    }
    *(only_reads ? &batch->took.prompt_s : &batch->took.tokens_s) += tess_clock_s() - start_s;
    return TESS_OK;
}

static enum tess_status batch_run(struct batch *batch)
{
    const size_t vocabulary = (size_t)batch->how->source->vocabulary;
    bool done = false;
    batch->slot = calloc((size_t)batch->how->batch, sizeof(*batch->slot));
    batch->part = calloc((size_t)batch->how->batch, sizeof(*batch->part));
    if (batch->slot == NULL || batch->part == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d prompts at once", batch->how->batch);
    for (int32_t s = 0; s < batch->how->batch; s++) {
        batch->slot[s].logits = calloc(vocabulary, sizeof(float));
        if (batch->slot[s].logits == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu logits", vocabulary);
        TESS_TRY(batch_begin(batch, &batch->slot[s]));
    }
    while (!done)
        TESS_TRY(batch_call(batch, &done));
    return batch->how->json ? TESS_OK : tess__print_end(batch->how->printer);
}

enum tess_status tess__continue(const struct tess__continue *how, const struct tess__tokens *prompt,
                                int64_t prompt_count, struct tess__continued *took_out)
{
    struct batch batch = {.how = how, .prompt = prompt, .prompt_count = prompt_count};
    const enum tess_status status = batch_run(&batch);
    for (int32_t s = 0; batch.slot != NULL && s < how->batch; s++) {
        free(batch.slot[s].made.token);
        free(batch.slot[s].text.text);
        free(batch.slot[s].logits);
    }
    free(batch.slot);
    free(batch.part);
    *took_out = batch.took;
    return status;
}
