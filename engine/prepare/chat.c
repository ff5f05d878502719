/*
 * Chats as text, by the templates of models: what the tokenizer is given, and which of it is to be
 * learnt. That is what the assistant says, with the token that ends it; a model is asked to go on
 * from behind `before`. `|` stands for a cut, where what is learnt begins or ends:
 *
 *   chatml   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n|Hello<|im_end|>|\n
 *   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>
 *            <|start_header_id|>assistant<|end_header_id|>\n\n|Hello<|eot_id|>|    (one line)
 */
#include "prepare/prepare.h"

#include "base/array.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct prepare_template {
    const char *name;
    const char *first;                  /* of the chat */
    const char *before, *middle, *said; /* before and behind the role; behind what was said */
    const char *between;                /* behind that, never learnt */
    bool trims;                         /* white space around what is said is left out */
} chat_template[] = {
    {"chatml", "", "<|im_start|>", "\n", "<|im_end|>", "\n", false},
    {"llama3", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>",
     "", true},
};

enum { CHAT_TEMPLATES = sizeof(chat_template) / sizeof(*chat_template) };

/* The tokens that a template is made of. */
static bool chat_fits(const struct prepare_template *of, const struct tess__tokenizer *tokenizer)
{
    return tess__tokenizer_find(tokenizer, of->before) >= 0 &&
           tess__tokenizer_find(tokenizer, of->said) >= 0;
}

enum tess_status tess__chat_choose(const char *name, const struct tess__tokenizer *tokenizer,
                                   const struct prepare_template **template_out)
{
    const bool chosen = strcmp(name, "auto") == 0;
    *template_out = NULL;
    if (strcmp(name, "none") == 0)
        return TESS_OK;
    for (int i = 0; i < CHAT_TEMPLATES && *template_out == NULL; i++)
        if (chosen ? chat_fits(&chat_template[i], tokenizer)
                   : strcmp(name, chat_template[i].name) == 0)
            *template_out = &chat_template[i];
    if (*template_out == NULL && chosen)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--chat auto: %s has the tokens of no known template: expected <|im_start|> and "
                  "<|im_end|> (chatml), or <|start_header_id|> and <|eot_id|> (llama3)",
                  tess__tokenizer_file(tokenizer));
    if (*template_out == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--chat %s: expected none, auto, chatml or llama3", name);
    if (!chat_fits(*template_out, tokenizer))
        TESS_FAIL(TESS_ERR_USAGE, "--chat %s: %s has no token %s or %s", name,
                  tess__tokenizer_file(tokenizer), (*template_out)->before, (*template_out)->said);
    return TESS_OK;
}

const char *tess__chat_name(const struct prepare_template *of)
{
    return of != NULL ? of->name : "none";
}

/* ---- one chat ------------------------------------------------------------------------------ */

static enum tess_status chat_put_word(struct prepare_chat *chat, const char *word)
{
    return tess__tokenizer_append(&chat->text, word, strlen(word));
}

static enum tess_status chat_cut(struct prepare_chat *chat)
{
    size_t *more = tess__array_grow(chat->cut, chat->cut_count, sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a chat");
    chat->cut = more;
    chat->cut[chat->cut_count++] = chat->text.count;
    return TESS_OK;
}

static bool chat_is_space(char letter)
{
    return letter != '\0' && strchr(" \t\r\n\v\f", letter) != NULL;
}

static enum tess_status chat_add(struct prepare_chat *chat, const struct prepare_template *of,
                                 const char *role, const char *text, size_t bytes)
{
    const bool learnt = strcmp(role, "assistant") == 0;
    for (; of->trims && bytes > 0 && chat_is_space(text[0]); bytes--)
        text++;
    while (of->trims && bytes > 0 && chat_is_space(text[bytes - 1]))
        bytes--;
    TESS_TRY(chat_put_word(chat, of->before));
    TESS_TRY(chat_put_word(chat, role));
    TESS_TRY(chat_put_word(chat, of->middle));
    TESS_TRY(learnt ? chat_cut(chat) : TESS_OK);
    TESS_TRY(tess__tokenizer_append(&chat->text, text, bytes));
    TESS_TRY(chat_put_word(chat, of->said));
    TESS_TRY(learnt ? chat_cut(chat) : TESS_OK);
    return chat_put_word(chat, of->between);
}

enum tess_status tess__chat_render(const struct prepare_template *of, const json_t *messages,
                                   struct prepare_chat *chat, char why[PREPARE_WHY])
{
    size_t i;
    const json_t *message;
    why[0] = '\0';
    chat->text.count = chat->cut_count = 0;
    TESS_TRY(chat_put_word(chat, of->first));
    json_array_foreach(messages, i, message)
    {
        const json_t *role = json_object_get(message, "role");
        const json_t *text = json_object_get(message, "content");
        if (!json_is_string(role) || !json_is_string(text)) {
            snprintf(why, PREPARE_WHY, "message %zu has no text under \"%s\"", i + 1,
                     json_is_string(role) ? "content" : "role");
            return TESS_OK;
        }
        TESS_TRY(chat_add(chat, of, json_string_value(role), json_string_value(text),
                          json_string_length(text)));
    }
    if (chat->cut_count == 0)
        snprintf(why, PREPARE_WHY, "no message of the assistant: nothing is to be learnt");
    return TESS_OK;
}
