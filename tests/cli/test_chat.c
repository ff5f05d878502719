/*
 * Chat templates of a model's folder: messages as the known ones write them, against what
 * transformers makes of them (chat_reference.h), and others refused.
 */
#include "cli/generate.h"
#include "tessera/log.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/chat_reference.h"

static char folder[] = "/tmp/test_chat_XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* tokenizer_config.json with the template, as a text or in a list of named ones. */
static void write_template(const char *template, bool named)
{
    json_t *config = named ? json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:{s:s}}", "chat_template",
                                       "name", "tool_use", "template", "other", "name", "default",
                                       "template", template, "bos_token", "content", "<s>")
                           : json_pack("{s:s, s:s}", "chat_template", template, "bos_token", "<s>");
    char *text = json_dumps(config, 0);
    write_file("tokenizer_config.json", text);
    free(text);
    json_decref(config);
}

static const char *find_template(const char *name)
{
    for (size_t i = 0; i < sizeof(templates) / sizeof(*templates); i++)
        if (strcmp(templates[i].name, name) == 0)
            return templates[i].text;
    fail_msg("no template %s", name);
    return NULL;
}

static void case_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(reference) / sizeof(*reference); i++) {
        for (int named = 0; named < 2; named++) {
            char *text = NULL;
            write_template(templates[reference[i].template].text, named);
            const enum tess_status status =
                tess__chat_text(folder, talks[reference[i].talk], reference[i].count, &text);
            if ((status == TESS_OK) != (reference[i].wanted != NULL))
                fail_msg("%s, chat %d: status %d: %s", templates[reference[i].template].name,
                         reference[i].talk, status, status != TESS_OK ? tess_log_last_error() : "");
            if (text != NULL && strcmp(text, reference[i].wanted) != 0)
                fail_msg("%s, chat %d: '%s', expected '%s'", templates[reference[i].template].name,
                         reference[i].talk, text, reference[i].wanted);
            free(text);
        }
    }
}

static void check_refused(enum tess_status wanted, const struct tess__chat_message *message,
                          int count, const char *phrase)
{
    char *text = NULL;
    assert_int_equal(tess__chat_text(folder, message, count, &text), wanted);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' in: %s", phrase, tess_log_last_error());
}

static void case_refused(void **state)
{
    static const char *const other[] = {
        "{{ '<|user|>' + messages[0]['content'] }}",
        "{{ '<|im_start|>user<|im_sep|>' + messages[0]['content'] }}",
        "{% set reasoning_mode = '/think' %}{{ '<|im_start|>' }}",
        "{{ '[INST] <<SYS>>' }}",
        "{% set system_message = 'You are.' %}{{ '[INST] ' }}",
    };
    char path[64];
    (void)state;
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        write_template(other[i], false);
        check_refused(TESS_ERR_UNSUPPORTED, talks[0], 1, "none of ChatML, Llama 3 and Mistral");
    }
    write_template("{{ '[INST] ' + messages[0]['content'] | trim + ' [/INST]' }}", false);
    check_refused(TESS_ERR_UNSUPPORTED, talks[0], 1, "takes white space off");
    write_template("{% set said = content | trim %}{{ '<|im_start|>' + said }}", false);
    check_refused(TESS_ERR_UNSUPPORTED, talks[0], 1, "takes white space off");
    write_template(find_template("mistral 3"), false);
    check_refused(TESS_ERR_USAGE, talks[2] + 1, 1, "by turns, the user first");
    write_template("{{ bos_token }}{{ '[INST] ' + messages[0]['content'] + ' [/INST]' }}", false);
    check_refused(TESS_ERR_USAGE, talks[1], 2, "has no system message");
    write_file("tokenizer_config.json", "{\"chat_template\": 3}");
    check_refused(TESS_ERR_NOT_FOUND, talks[0], 1, "has no chat_template");
    write_file("tokenizer_config.json", "{\"chat_template\": \"");
    check_refused(TESS_ERR_DATA, talks[0], 1, "tokenizer_config.json:1:");
    write_file("tokenizer_config.json", "{\"chat_template\": \"{{ bos_token }}<|im_start|>\"}");
    check_refused(TESS_ERR_UNSUPPORTED, talks[0], 1, "begins with bos_token");
    /* Newer folders have the template in a file of its own. */
    write_file("chat_template.jinja", find_template("chatml"));
    char *text = NULL;
    assert_int_equal(tess__chat_text(folder, talks[0], 1, &text), TESS_OK);
    assert_string_equal(text, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder,
                 i == 0 ? "chat_template.jinja" : "tokenizer_config.json");
        assert_int_equal(unlink(path), 0);
    }
    check_refused(TESS_ERR_NOT_FOUND, talks[0], 1, "cannot read");
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_reference),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
