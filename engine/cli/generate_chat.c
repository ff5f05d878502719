/*
 * Messages as a model's chat template has them. Templates are programs in Jinja, of which a few are
 * known: they are recognised by the tokens that they write and by what else is in them.
 */
#include "base/file.h"
#include "cli/generate.h"
#include "tessera/check.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHAT_BYTES_MAX (1 << 20) /* of a template */
#define CHAT_BEGIN_MAX 256       /* of bos_token */

struct chat {
    const char *folder;
    char path[PATH_MAX];
    char *template; /* owned */
    char *text;     /* owned */
    size_t count;
};

/* ---- the template ---------------------------------------------------------------------------- */

static enum tess_status chat_path(struct chat *chat, const char *file)
{
    const int used = snprintf(chat->path, sizeof(chat->path), "%s/%s", chat->folder, file);
    if (used < 0 || used >= (int)sizeof(chat->path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the folder %.80s is too long", chat->folder);
    return TESS_OK;
}

/* chat_template is a text, or a list of {"name": ..., "template": ...}, of which "default" counts.
 */
static const char *chat_of_config(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *one;
    size_t i;
    json_array_foreach(value, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(value);
}

static enum tess_status chat_load_config(struct chat *chat, json_t **config_out)
{
    json_error_t error;
    const char *why;
    TESS_TRY(chat_path(chat, "tokenizer_config.json"));
    FILE *file = tess_file_open_input(chat->path, &why);
    if (file == NULL)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "--chat: cannot read %s: %s; without a chat template give the text as the model "
                  "was trained on it, --prompt",
                  chat->path, why);
    *config_out = json_loadf(file, JSON_DECODE_INT_AS_REAL, &error); /* 10^30 for no limit */
    fclose(file);
    if (*config_out == NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: %s", chat->path, error.line, error.text);
    return TESS_OK;
}

static enum tess_status chat_read_config(struct chat *chat)
{
    json_t *config;
    TESS_TRY(chat_load_config(chat, &config));
    const char *text = chat_of_config(config);
    chat->template = text != NULL ? strdup(text) : NULL;
    json_decref(config);
    if (text == NULL)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "--chat: %s has no chat_template: give the text as the model was trained on it, "
                  "--prompt",
                  chat->path);
    return chat->template != NULL ? TESS_OK
                                  : tess_fail(TESS_ERR_MEMORY, "no memory for a template");
}

/* chat_template.jinja, where newer folders have it, else tokenizer_config.json. */
static enum tess_status chat_read(struct chat *chat)
{
    const char *why;
    TESS_TRY(chat_path(chat, "chat_template.jinja"));
    FILE *file = tess_file_open_input(chat->path, &why);
    if (file == NULL)
        return chat_read_config(chat);
    chat->template = calloc(1, CHAT_BYTES_MAX + 1);
    const size_t used = chat->template != NULL ? fread(chat->template, 1, CHAT_BYTES_MAX, file) : 0;
    const bool whole = fgetc(file) == EOF && !ferror(file);
    fclose(file);
    if (chat->template == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a template");
    if (!whole || memchr(chat->template, '\0', used) != NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s is not a template", chat->path);
    return TESS_OK;
}

static bool chat_has(const struct chat *chat, const char *text)
{
    return strstr(chat->template, text) != NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void chat_put_bytes(struct chat *chat, const char *text, size_t bytes)
{
    memcpy(chat->text + chat->count, text, bytes);
    chat->count += bytes;
    chat->text[chat->count] = '\0';
}

static void chat_put(struct chat *chat, const char *text)
{
    chat_put_bytes(chat, text, strlen(text));
}

/* Without white space at both ends, as Jinja's filter trim. */
static void chat_put_trimmed(struct chat *chat, const char *text)
{
    static const char space[] = " \t\n\r\f\v";
    text += strspn(text, space);
    size_t bytes = strlen(text);
    while (bytes > 0 && strchr(space, text[bytes - 1]) != NULL)
        bytes--;
    chat_put_bytes(chat, text, bytes);
}

/* bos_token of the configuration, a text or an object with its content, where the template writes
 * it. */
static enum tess_status chat_put_begin(struct chat *chat)
{
    json_t *config;
    if (!chat_has(chat, "bos_token"))
        return TESS_OK;
    TESS_TRY(chat_load_config(chat, &config));
    const json_t *begin = json_object_get(config, "bos_token");
    const char *text =
        json_string_value(json_is_object(begin) ? json_object_get(begin, "content") : begin);
    const bool fits = text != NULL && strlen(text) < CHAT_BEGIN_MAX;
    if (fits)
        chat_put(chat, text);
    json_decref(config);
    if (!fits)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "--chat: the template begins with bos_token, which %s does not have", chat->path);
    return TESS_OK;
}

static bool chat_is(const struct tess__chat_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

/* What a ChatML template says where no system message is given: the text between
 * "<|im_start|>system\\n" and "<|im_end|>" that is written out in it. NULL: nothing. */
static const char *chat_usual_system(const struct chat *chat, size_t *bytes_out)
{
    static const char begin[] = "<|im_start|>system";
    for (const char *at = chat->template; (at = strstr(at, begin)) != NULL;) {
        at += sizeof(begin) - 1;
        const size_t line = *at == '\n' ? 1 : strncmp(at, "\\n", 2) == 0 ? 2 : 0;
        const char *end = strstr(at, "<|im_end|>");
        const size_t plain = strcspn(at + line, "'\"{}+\\<");
        if (line > 0 && end != NULL && plain > 0 && at + line + plain == end) {
            *bytes_out = plain;
            return at + line;
        }
    }
    return NULL;
}

/* Qwen3's leaves what an earlier answer thought out. */
static const char *chat_said(const struct chat *chat, const struct tess__chat_message *message)
{
    static const char end[] = "</think>";
    const char *said = message->content;
    if (!chat_is(message, "assistant") || !chat_has(chat, end) || strstr(said, end) == NULL)
        return said;
    for (const char *at = said; (at = strstr(at, end)) != NULL;)
        said = at += sizeof(end) - 1;
    return said + strspn(said, "\n");
}

/* Does a text of `known` trim what is said? Templates that trim in another way are refused. */
static enum tess_status chat_trims(const struct chat *chat, const char *const *known,
                                   bool *trims_out)
{
    *trims_out = false;
    for (; *known != NULL; known++)
        *trims_out = *trims_out || chat_has(chat, *known);
    if (!*trims_out && (chat_has(chat, "| trim") || chat_has(chat, "|trim")))
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "--chat: the template of %s takes white space off in a way that is not known "
                  "here: give the text that it makes, --prompt, as transformers' "
                  "apply_chat_template shows it",
                  chat->path);
    return TESS_OK;
}

/* <|im_start|>role\ncontent<|im_end|>\n */
static enum tess_status chat_chatml(struct chat *chat, const struct tess__chat_message *message,
                                    int count)
{
    static const char *const trimmed[] = {"message['content'] | trim",
                                          "message['content']|trim",
                                          "message[\"content\"] | trim",
                                          "message[\"content\"]|trim",
                                          "message.content | trim",
                                          "message.content|trim",
                                          NULL};
    size_t bytes = 0;
    bool trims;
    TESS_TRY(chat_trims(chat, trimmed, &trims));
    TESS_TRY(chat_put_begin(chat));
    const char *usual = chat_usual_system(chat, &bytes);
    if (usual != NULL && (count == 0 || !chat_is(message, "system"))) {
        chat_put(chat, "<|im_start|>system\n");
        chat_put_bytes(chat, usual, bytes);
        chat_put(chat, "<|im_end|>\n");
    }
    for (int i = 0; i < count; i++) {
        chat_put(chat, "<|im_start|>");
        chat_put(chat, message[i].role);
        chat_put(chat, "\n");
        if (trims)
            chat_put_trimmed(chat, message[i].content);
        else
            chat_put(chat, chat_said(chat, message + i));
        chat_put(chat, "<|im_end|>\n");
    }
    chat_put(chat, "<|im_start|>assistant\n");
    if (chat_has(chat, "<|im_start|>assistant\\n<think>\\n'")) /* models that always think */
        chat_put(chat, "<think>\n");
    return TESS_OK;
}

static void chat_llama3_put(struct chat *chat, const char *role, const char *before,
                            const char *content)
{
    chat_put(chat, "<|start_header_id|>");
    chat_put(chat, role);
    chat_put(chat, "<|end_header_id|>\n\n");
    chat_put(chat, before);
    chat_put_trimmed(chat, content);
    chat_put(chat, "<|eot_id|>");
}

/* Llama 3; 3.1 and later write dates before the system message, and one always. */
static enum tess_status chat_llama3(struct chat *chat, const struct tess__chat_message *message,
                                    int count)
{
    const char *system = count > 0 && chat_is(message, "system") ? message[0].content : "";
    const time_t now = time(NULL);
    char before[128], date[32] = "26 Jul 2024"; /* the template's, where it asks for none */
    struct tm today;
    if (chat_has(chat, "strftime_now") && localtime_r(&now, &today) != NULL)
        strftime(date, sizeof(date), "%d %b %Y", &today);
    snprintf(before, sizeof(before), "Cutting Knowledge Date: December 2023\nToday Date: %s\n\n",
             date);
    chat_put(chat, "<|begin_of_text|>");
    const bool dated = chat_has(chat, "Cutting Knowledge Date: December 2023");
    if (dated)
        chat_llama3_put(chat, "system", before, system);
    for (int i = dated && count > 0 && chat_is(message, "system"); i < count; i++)
        chat_llama3_put(chat, message[i].role, "", message[i].content);
    chat_put(chat, "<|start_header_id|>assistant<|end_header_id|>\n\n");
    return TESS_OK;
}

/* Is a text written out in the template, in quotes of either kind? */
static bool chat_writes(const struct chat *chat, const char *text)
{
    char quoted[2][32];
    for (int i = 0; i < 2; i++)
        snprintf(quoted[i], sizeof(quoted[i]), "%c%s%c", "'\""[i], text, "'\""[i]);
    return chat_has(chat, quoted[0]) || chat_has(chat, quoted[1]);
}

static enum tess_status chat_check_turns(const struct chat *chat,
                                         const struct tess__chat_message *message, int count)
{
    for (int i = 0; i < count; i++)
        if (!chat_is(message + i, i % 2 == 0 ? "user" : "assistant"))
            TESS_FAIL(TESS_ERR_USAGE,
                      "--chat: the template of %s has user and assistant by turns, the user first",
                      chat->path);
    return TESS_OK;
}

/*
 * Mistral: questions between [INST] and [/INST], answers, by turns. The spaces around them differ
 * from version to version, as does the question that a system message stands before, the first or
 * the last.
 */
static enum tess_status chat_mistral(struct chat *chat, const struct tess__chat_message *message,
                                     int count)
{
    const bool system = count > 0 && chat_is(message, "system");
    const char *said = system ? message->content : NULL;
    const char *begin = chat_writes(chat, " [INST] ")  ? " [INST] "
                        : chat_writes(chat, "[INST] ") ? "[INST] "
                                                       : "[INST]";
    const char *end = chat_writes(chat, "[/INST]") ? "[/INST]" : " [/INST]";
    const bool spaced = chat_has(chat, "' ' + message") || chat_has(chat, "\" \" + message");
    const bool after = chat_has(chat, "eos_token + ' '") || chat_has(chat, "eos_token + \" \"");
    static const char *const trimmed[] = {"|trim + eos_token", NULL}; /* answers */
    bool trims;
    TESS_TRY(chat_trims(chat, trimmed, &trims));
    if (system && !chat_has(chat, "system_message"))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--chat: the template of %s has no system message: say it in the first question",
                  chat->path);
    message += system;
    count -= system;
    TESS_TRY(chat_check_turns(chat, message, count));
    const int with = chat_has(chat, "loop.first and system_message") ? 0 : count - 1;
    chat_put(chat, "<s>");
    for (int i = 0; i < count; i++) {
        const bool question = i % 2 == 0;
        chat_put(chat, question ? begin : spaced ? " " : "");
        if (i == with && question && system) {
            chat_put(chat, said);
            chat_put(chat, "\n\n");
        }
        if (trims && !question)
            chat_put_trimmed(chat, message[i].content);
        else
            chat_put(chat, message[i].content);
        chat_put(chat, question ? end : after ? "</s> " : "</s>");
    }
    return TESS_OK;
}

/* ---- which one ------------------------------------------------------------------------------- */

/* Templates that have a text of `sign` and none of what makes others of it. */
static const struct chat_known {
    const char *sign, *other[5];
    enum tess_status (*write)(struct chat *chat, const struct tess__chat_message *message,
                              int count);
} chat_known[] = {
    {"<|im_start|>", {"<|im_sep|>", "render_content", "reasoning_mode"}, chat_chatml},
    {"<|start_header_id|>", {"detailed thinking", "reasoning_mode"}, chat_llama3},
    {"[INST]",
     {"<<SYS>>", "[SYSTEM_PROMPT]", "set system_message = \"", "set system_message = '",
      "default_system_message"},
     chat_mistral},
};

static const struct chat_known *chat_find(const struct chat *chat)
{
    for (size_t k = 0; k < sizeof(chat_known) / sizeof(chat_known[0]); k++) {
        const struct chat_known *known = &chat_known[k];
        bool other = !chat_has(chat, known->sign);
        for (int i = 0; i < 5 && known->other[i] != NULL; i++)
            other = other || chat_has(chat, known->other[i]);
        if (!other)
            return known;
    }
    return NULL;
}

static enum tess_status chat_write(struct chat *chat, const struct tess__chat_message *message,
                                   int count)
{
    size_t bytes = 4096 + strlen(chat->template); /* more than is added to the messages */
    for (int i = 0; i < count; i++)
        bytes += strlen(message[i].role) + 2 * strlen(message[i].content) + 128;
    chat->text = calloc(1, bytes);
    if (chat->text == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a prompt of %zu bytes", bytes);
    const struct chat_known *known = chat_find(chat);
    if (known != NULL)
        return known->write(chat, message, count);
    TESS_FAIL(
        TESS_ERR_UNSUPPORTED,
        "--chat: the template of %s is none of ChatML, Llama 3 and Mistral, which are known: "
        "give the text that it makes, --prompt, as transformers' apply_chat_template shows it",
        chat->path);
}

enum tess_status tess__chat_text(const char *folder, const struct tess__chat_message *message,
                                 int count, char **text_out)
{
    struct chat chat = {.folder = folder};
    enum tess_status status = chat_read(&chat);
    if (status == TESS_OK)
        status = chat_write(&chat, message, count);
    if (status == TESS_OK)
        *text_out = chat.text;
    else
        free(chat.text);
    free(chat.template);
    return status;
}
