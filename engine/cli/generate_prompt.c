/* The prompts of tessera generate: of the command line, of a file; as texts, tokens or messages. */
#include "cli/generate_prompt.h"

#include "base/array.h"
#include "base/file.h"
#include "tessera/check.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define PROMPT_MESSAGES 1024 /* of a conversation */

/* Where prompts come from, for all of them. */
struct prompt_reader {
    const struct tess__source *source;
    const char *folder; /* of the chat template */
    const struct tess__prompt_options *options;
    struct tess__prompts *prompts;
    char name[PATH_MAX + 48]; /* of the prompt, for messages */
};

static enum tess_status prompt_add(struct prompt_reader *reader, struct tess__tokens tokens)
{
    struct tess__prompts *prompts = reader->prompts;
    struct tess__tokens *grown =
        tess__array_grow(prompts->prompt, (size_t)prompts->count, sizeof(*grown));
    if (grown == NULL) {
        free(tokens.token);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the prompts");
    }
    prompts->prompt = grown;
    grown[prompts->count++] = tokens;
    return TESS_OK;
}

static enum tess_status prompt_add_text(struct prompt_reader *reader, const char *text)
{
    struct tess__tokens tokens;
    TESS_TRY(tess__text_read(reader->source, reader->name, text, strlen(text), &tokens));
    return prompt_add(reader, tokens);
}

static enum tess_status prompt_add_chat(struct prompt_reader *reader,
                                        const struct tess__chat_message *message, int count)
{
    char *text;
    struct tess__tokens tokens;
    TESS_TRY(tess__chat_text(reader->folder, message, count, &text));
    const enum tess_status status =
        tess__chat_read(reader->source, reader->name, text, strlen(text), &tokens);
    free(text);
    return status == TESS_OK ? prompt_add(reader, tokens) : status;
}

/* A text: a question where --chat is on. */
static enum tess_status prompt_add_plain(struct prompt_reader *reader, const char *text)
{
    const bool system = reader->options->system[0] != '\0';
    const struct tess__chat_message message[] = {{"system", reader->options->system},
                                                 {"user", text}};
    if (!reader->options->chat)
        return prompt_add_text(reader, text);
    return prompt_add_chat(reader, system ? message : message + 1, system ? 2 : 1);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static enum tess_status prompt_add_messages(struct prompt_reader *reader, const json_t *list)
{
    struct tess__chat_message message[PROMPT_MESSAGES];
    const size_t count = json_array_size(list);
    if (count == 0 || count > PROMPT_MESSAGES)
        TESS_FAIL(TESS_ERR_DATA, "%s: \"messages\" has %zu of 1 to %d", reader->name, count,
                  PROMPT_MESSAGES);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        const char *role = json_string_value(json_object_get(one, "role"));
        message[i] =
            (struct tess__chat_message){role, json_string_value(json_object_get(one, "content"))};
        const bool known =
            role != NULL && (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
                             (strcmp(role, "system") == 0 && i == 0));
        if (!known || message[i].content == NULL)
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: message %zu has no \"content\" that is a text, or no \"role\" user, "
                      "assistant or, first, system",
                      reader->name, i + 1);
    }
    return prompt_add_chat(reader, message, (int)count);
}

static enum tess_status prompt_add_numbers(struct prompt_reader *reader, const json_t *list)
{
    const size_t count = json_array_size(list);
    struct tess__tokens tokens = {calloc(count + 1, sizeof(int32_t)), (int64_t)count};
    if (tokens.token == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu tokens", count);
    bool good = count > 0;
    for (size_t i = 0; i < count && good; i++) {
        const json_t *one = json_array_get(list, i);
        const json_int_t value = json_integer_value(one);
        good = json_is_integer(one) && value >= 0 && value < reader->source->vocabulary;
        tokens.token[i] = good ? (int32_t)value : 0;
    }
    if (!good) {
        free(tokens.token);
        TESS_FAIL(TESS_ERR_DATA, "%s: \"tokens\" are not numbers of 0 to %d", reader->name,
                  reader->source->vocabulary - 1);
    }
    if (reader->source->tokenizer == NULL && reader->source->vocabulary > TESS__BYTES)
        reader->prompts->numbers = true;
    return prompt_add(reader, tokens);
}

static enum tess_status prompt_add_json(struct prompt_reader *reader, const char *line)
{
    json_error_t error;
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s: not JSON: %s", reader->name, error.text);
    const char *text = json_string_value(json_object_get(object, "prompt"));
    const json_t *tokens = json_object_get(object, "tokens");
    const json_t *messages = json_object_get(object, "messages");
    const enum tess_status status = text != NULL            ? prompt_add_plain(reader, text)
                                    : json_is_array(tokens) ? prompt_add_numbers(reader, tokens)
                                    : json_is_array(messages)
                                        ? prompt_add_messages(reader, messages)
                                        : tess_fail(TESS_ERR_DATA,
                                                    "%s: an object without \"prompt\", a text, "
                                                    "\"tokens\" or \"messages\", lists",
                                                    reader->name);
    json_decref(object);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static enum tess_status prompt_read_file(struct prompt_reader *reader, const char *path)
{
    const bool standard = strcmp(path, "-") == 0;
    const char *why, *shown = standard ? "stdin" : path;
    FILE *file = standard ? stdin : tess_file_open_input(path, &why);
    if (file == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read --prompts %s: %s", path, why);
    enum tess_status status = TESS_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    for (long number = 1; status == TESS_OK && (bytes = getline(&line, &room, file)) >= 0;
         number++) {
        while (bytes > 0 && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r'))
            line[--bytes] = '\0';
        snprintf(reader->name, sizeof(reader->name), "%s, line %ld", shown, number);
        if (strlen(line) != (size_t)bytes)
            status = tess_fail(TESS_ERR_DATA, "%s has a NUL byte: not text", reader->name);
        else if (bytes > 0)
            status =
                line[0] == '{' ? prompt_add_json(reader, line) : prompt_add_plain(reader, line);
    }
    free(line);
    if (status == TESS_OK && ferror(file))
        status = tess_fail(TESS_ERR_IO, "cannot read --prompts %s", shown);
    if (!standard)
        fclose(file);
    if (status == TESS_OK && reader->prompts->count == 0)
        status = tess_fail(TESS_ERR_DATA, "--prompts %s has no prompt", shown);
    return status;
}

enum tess_status tess__prompts_read(const struct tess__source *source, const char *run,
                                    const struct tess__prompt_options *options,
                                    struct tess__prompts *prompts_out)
{
    struct prompt_reader reader = {
        .source = source, .options = options, .prompts = prompts_out, .name = "--prompt"};
    struct tess__tokens tokens;
    char beside[PATH_MAX]; /* the tokenizer's folder */
    if (source->tokenizer != NULL) {
        snprintf(beside, sizeof(beside), "%s", tess__tokenizer_file(source->tokenizer));
        char *slash = strrchr(beside, '/');
        snprintf(slash != NULL ? slash : beside, 2, "%s", slash != NULL ? "" : ".");
        run = beside;
    }
    reader.folder = run;
    if (options->file[0])
        return prompt_read_file(&reader, options->file);
    if (!options->numbers[0])
        return prompt_add_plain(&reader, options->text);
    prompts_out->numbers = true;
    TESS_TRY(tess__numbers_read(source, "--prompt-tokens", options->numbers, &tokens));
    return prompt_add(&reader, tokens);
}

void tess__prompts_close(struct tess__prompts *prompts)
{
    for (int64_t i = 0; i < prompts->count; i++)
        free(prompts->prompt[i].token);
    free(prompts->prompt);
}

/* ---- where texts end ------------------------------------------------------------------------- */

static int prompt_add_end(int64_t token, const struct tess__source *source, int32_t *end, int count,
                          int most)
{
    for (int i = 0; i < count; i++)
        if (end[i] == token)
            return count;
    if (token < 0 || token >= source->vocabulary || count == most)
        return count;
    end[count] = (int32_t)token;
    return count + 1;
}

/* eos_token_id of a file: a number, or several. */
static int prompt_file_ends(const char *folder, const char *name, const struct tess__source *source,
                            int32_t *end, int most)
{
    char path[PATH_MAX];
    const char *why;
    size_t i;
    int count = 0;
    const int used = snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = used < (int)sizeof(path) ? tess_file_open_input(path, &why) : NULL;
    json_t *config = file != NULL ? json_loadf(file, 0, NULL) : NULL;
    const json_t *value = json_object_get(config, "eos_token_id"), *one;
    if (file != NULL)
        fclose(file);
    if (json_is_integer(value))
        count = prompt_add_end(json_integer_value(value), source, end, count, most);
    json_array_foreach(value, i, one)
    {
        if (json_is_integer(one))
            count = prompt_add_end(json_integer_value(one), source, end, count, most);
    }
    json_decref(config);
    return count;
}

int tess__model_ends(const char *run, const struct tess__source *source, int32_t *end, int most)
{
    int count = prompt_file_ends(run, "generation_config.json", source, end, most);
    if (count == 0)
        count = prompt_file_ends(run, "config.json", source, end, most);
    if (source->tokenizer != NULL)
        count = prompt_add_end(tess__tokenizer_end(source->tokenizer), source, end, count, most);
    return count;
}
