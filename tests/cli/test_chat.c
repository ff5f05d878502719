/*
 * Chat templates of a model's folder: messages as the known ones write them, and others refused.
 * The templates here are short ones of the same forms; what they write was printed by jinja2 with
 * the same messages (trim_blocks and lstrip_blocks on, as transformers has them).
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

static char folder[] = "/tmp/test_chat_XXXXXX";

#define CHATML_LOOP                                                                                \
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "                  \
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"       \
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define CHATML_USUAL                                                                               \
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a test, made for "   \
    "this.<|im_end|>\\n' }}{% endif %}" CHATML_LOOP
#define CHATML_THINKS                                                                              \
    "{% for message in messages %}{% set content = message['content'].split('</think>')[-1]"       \
    ".lstrip('\\n') if message['role'] == 'assistant' else message['content'] %}"                  \
    "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"       \
    "{{ '<|im_start|>assistant\\n<think>\\n' }}"
#define LLAMA3                                                                                     \
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "     \
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == " \
    "0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"              \
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
#define LLAMA31                                                                                    \
    "{{- bos_token }}{% if messages[0]['role'] == 'system' %}{% set system_message = "             \
    "messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% else %}"                  \
    "{% set system_message = \"\" %}{% endif %}"                                                   \
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"                                  \
    "{{- \"Cutting Knowledge Date: December 2023\\n\" }}"                                          \
    "{{- \"Today Date: 26 Jul 2024\\n\\n\" }}{{- system_message }}{{- \"<|eot_id|>\" }}"           \
    "{% for message in messages %}{{- '<|start_header_id|>' + message['role'] + "                  \
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"          \
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
/* Where the system message goes, what is around a question, before and after an answer. */
#define MISTRAL(which, begin, end, before, after)                                                  \
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"    \
    "{% set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}"     \
    "{% if message['role'] == 'user' %}{% if " which " and system_message is defined %}"           \
    "{{ '" begin "' + system_message + '\\n\\n' + message['content'] + '" end "' }}{% else %}"     \
    "{{ '" begin "' + message['content'] + '" end "' }}{% endif %}{% else %}"                      \
    "{{ " before "message['content'] + eos_token" after " }}{% endif %}{% endfor %}"

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
    json_t *config =
        named ? json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "chat_template", "name", "tool_use",
                          "template", "other", "name", "default", "template", template)
              : json_pack("{s:s}", "chat_template", template);
    char *text = json_dumps(config, 0);
    write_file("tokenizer_config.json", text);
    free(text);
    json_decref(config);
}

static const struct tess__message talk[] = {{"system", "Be brief. "},
                                            {"user", "Who?"},
                                            {"assistant", "<think>\nhm\n</think>\n\nI."},
                                            {"user", " And you?\n"}};

static void check(const char *template, const struct tess__message *message, int count,
                  const char *wanted)
{
    for (int named = 0; named < 2; named++) {
        char *text = NULL;
        write_template(template, named);
        if (tess__chat_text(folder, message, count, &text) != TESS_OK)
            fail_msg("%s", tess_log_last_error());
        assert_string_equal(text, wanted);
        free(text);
    }
}

static void case_chatml(void **state)
{
    (void)state;
    check(CHATML_LOOP, talk + 1, 1, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
    check(CHATML_LOOP, talk, 4,
          "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
          "<|im_start|>assistant\n<think>\nhm\n</think>\n\nI.<|im_end|>\n"
          "<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n");
    check(CHATML_USUAL, talk + 1, 1,
          "<|im_start|>system\nYou are a test, made for this.<|im_end|>\n"
          "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
    check(CHATML_USUAL, talk, 2,
          "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
          "<|im_start|>assistant\n");
    check(CHATML_THINKS, talk + 1, 3,
          "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n"
          "<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

static void case_llama3(void **state)
{
    (void)state;
    check(LLAMA3, talk, 2,
          "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check(LLAMA31, talk + 3, 1,
          "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
          "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nAnd you?<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check(LLAMA31, talk, 2,
          "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
          "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

static void case_mistral(void **state)
{
    static const struct tess__message turn[] = {
        {"system", "Be brief."}, {"user", "Who?"}, {"assistant", "I."}, {"user", "And you?"}};
    (void)state;
    check(MISTRAL("loop.first", "[INST] ", " [/INST]", "", " + ' '"), turn + 1, 3,
          "<s>[INST] Who? [/INST]I.</s> [INST] And you? [/INST]");
    check(MISTRAL("loop.first", " [INST] ", " [/INST]", "' ' + ", ""), turn, 4,
          "<s> [INST] Be brief.\n\nWho? [/INST] I.</s> [INST] And you? [/INST]");
    check(MISTRAL("loop.last", "[INST] ", "[/INST]", "' ' + ", ""), turn, 4,
          "<s>[INST] Who?[/INST] I.</s>[INST] Be brief.\n\nAnd you?[/INST]");
    check(MISTRAL("loop.last", "[INST]", "[/INST]", "", ""), turn, 2,
          "<s>[INST]Be brief.\n\nWho?[/INST]");
}

static void check_refused(enum tess_status wanted, const struct tess__message *message, int count,
                          const char *phrase)
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
        ("{% set reasoning_mode = '/think' %}" CHATML_LOOP),
        "{{ '[INST] <<SYS>>' }}",
        "{% set system_message = 'You are.' %}{{ '[INST] ' }}",
    };
    char path[64];
    (void)state;
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        write_template(other[i], false);
        check_refused(TESS_ERR_UNSUPPORTED, talk + 1, 1, "none of ChatML, Llama 3 and Mistral");
    }
    write_template(MISTRAL("loop.last", "[INST] ", "[/INST]", "' ' + ", ""), false);
    check_refused(TESS_ERR_USAGE, talk + 2, 1, "by turns, the user first");
    write_template("{{ bos_token }}{{ '[INST] ' + messages[0]['content'] + ' [/INST]' }}", false);
    check_refused(TESS_ERR_USAGE, talk, 2, "has no system message");
    write_file("tokenizer_config.json", "{\"chat_template\": 3}");
    check_refused(TESS_ERR_NOT_FOUND, talk + 1, 1, "has no chat_template");
    write_file("tokenizer_config.json", "{\"chat_template\": \"");
    check_refused(TESS_ERR_DATA, talk + 1, 1, "tokenizer_config.json:1:");
    /* Newer folders have the template in a file of its own. */
    write_file("chat_template.jinja", CHATML_LOOP);
    char *text = NULL;
    assert_int_equal(tess__chat_text(folder, talk + 1, 1, &text), TESS_OK);
    assert_string_equal(text, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder,
                 i == 0 ? "chat_template.jinja" : "tokenizer_config.json");
        assert_int_equal(unlink(path), 0);
    }
    check_refused(TESS_ERR_NOT_FOUND, talk + 1, 1, "cannot read");
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
        cmocka_unit_test(case_chatml),
        cmocka_unit_test(case_llama3),
        cmocka_unit_test(case_mistral),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
