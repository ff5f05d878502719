/* Written by chat.py with transformers 5.24.0 and jinja2 3.1.6. */
static const struct tess__chat_message talks[][4] = {
    {{"user", "Who?"}},
    {{"system", "Be brief."}, {"user", "Who?"}},
    {{"user", "Who?"}, {"assistant", "I."}, {"user", "And you?"}},
    {{"system", " Be brief. "},
     {"user", "Who?\n"},
     {"assistant", "<think>\nhm\n</think>\n\nI."},
     {"user", " And you?\n"}},
    {{"user", " Who?"}, {"assistant", " I. "}, {"user", "And you? "}},
    {{"user", "Who?"}, {"user", "And you?"}},
};

static const struct {
    const char *name, *text;
} templates[] = {
    {"chatml", "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
               "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if "
               "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"chatml usual",
     "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a test, made for "
     "this.<|im_end|>\\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + "
     "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if "
     "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"chatml trims", "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                     "message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}{% if "
                     "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"chatml begins",
     "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
     "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
     "'<|im_start|>assistant\\n' }}{% endif %}"},
    {"chatml tools",
     "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {{- 'You are a tool.' }}\n    {{- "
     "'<|im_end|>\\n' }}\n{%- else %}\n    {%- if messages[0]['role'] == 'system' %}{{ "
     "'<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n     "
     "   {{- '<|im_start|>system\\nYou are a test.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif "
     "%}\n{%- for message in messages %}\n    {%- if message.role != 'system' or not loop.first "
     "%}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + "
     "'\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}{{ "
     "'<|im_start|>assistant\\n' }}{%- endif %}"},
    {"chatml thought",
     "{%- for message in messages %}\n    {%- set content = message.content %}\n    {%- if "
     "message.role == 'assistant' and '</think>' in content %}\n        {%- set content = "
     "content.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n    {{- '<|im_start|>' + "
     "message.role + '\\n' + content + '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if "
     "add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking "
     "is defined and enable_thinking is false %}\n        {{- '<think>\\n\\n</think>\\n\\n' }}\n   "
     " {%- endif %}\n{%- endif %}"},
    {"chatml thinks",
     "{% for message in messages %}{% set content = "
     "message['content'].split('</think>')[-1].lstrip('\\n') if message['role'] == 'assistant' "
     "else message['content'] %}{{ '<|im_start|>' + message['role'] + '\\n' + content + "
     "'<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' }}"},
    {"llama3", "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + "
               "message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
               "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
               "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {"llama3.1",
     "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul "
     "2024\" %}\n{%- endif %}\n{% if messages[0]['role'] == 'system' %}{% set system_message = "
     "messages[0]['content']|trim %}{% set messages = messages[1:] %}{% else %}{% set "
     "system_message = \"\" %}{% endif %}\n{{- "
     "\"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{{- \"Cutting Knowledge Date: "
     "December 2023\\n\" }}\n{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- "
     "system_message }}{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n    {{- "
     "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | "
     "trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}{{ "
     "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"},
    {"mistral 1",
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
     "set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}{% if "
     "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
     "endif %}{% if message['role'] == 'user' %}{% if loop.first and system_message is defined "
     "%}{{ '[INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}{% else %}{{ "
     "'[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% else %}{{ message['content'] + "
     "eos_token + ' ' }}{% endif %}{% endfor %}"},
    {"mistral 2",
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
     "set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}{% if "
     "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
     "endif %}{% if message['role'] == 'user' %}{% if loop.first and system_message is defined "
     "%}{{ ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}{% else %}{{ "
     "' [INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% else %}{{ ' ' + "
     "message['content'] + eos_token }}{% endif %}{% endfor %}"},
    {"mistral 3",
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
     "set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}{% if "
     "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
     "endif %}{% if message['role'] == 'user' %}{% if loop.last and system_message is defined %}{{ "
     "'[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}{% else %}{{ "
     "'[INST] ' + message['content'] + '[/INST]' }}{% endif %}{% else %}{{ ' ' + "
     "message['content'] + eos_token }}{% endif %}{% endfor %}"},
    {"mistral 4",
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
     "set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}{% if "
     "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
     "endif %}{% if message['role'] == 'user' %}{% if loop.last and system_message is defined %}{{ "
     "'[INST]' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}{% else %}{{ "
     "'[INST]' + message['content'] + '[/INST]' }}{% endif %}{% else %}{{ message['content'] + "
     "eos_token }}{% endif %}{% endfor %}"},
    {"mistral 5",
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% "
     "set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}{% if "
     "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
     "endif %}{% if message['role'] == 'user' %}{% if loop.last and system_message is defined %}{{ "
     "'[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}{% else %}{{ "
     "'[INST] ' + message['content'] + '[/INST]' }}{% endif %}{% else %}{{ ' ' + "
     "message['content']|trim + eos_token }}{% endif %}{% endfor %}"},
};

/* NULL: it raises an error. */
static const struct {
    int template, talk, count;
    const char *wanted;
} reference[] = {
    {0, 0, 1, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {0, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {0, 2, 3,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {0, 3, 4,
     "<|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
     "think>\n\nI.<|im_end|>\n<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n"},
    {0, 4, 3,
     "<|im_start|>user\n Who?<|im_end|>\n<|im_start|>assistant\n I. "
     "<|im_end|>\n<|im_start|>user\nAnd you? <|im_end|>\n<|im_start|>assistant\n"},
    {0, 5, 2,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {1, 0, 1,
     "<|im_start|>system\nYou are a test, made for "
     "this.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {1, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {1, 2, 3,
     "<|im_start|>system\nYou are a test, made for "
     "this.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_"
     "start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"},
    {1, 3, 4,
     "<|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
     "think>\n\nI.<|im_end|>\n<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n"},
    {1, 4, 3,
     "<|im_start|>system\nYou are a test, made for this.<|im_end|>\n<|im_start|>user\n "
     "Who?<|im_end|>\n<|im_start|>assistant\n I. <|im_end|>\n<|im_start|>user\nAnd you? "
     "<|im_end|>\n<|im_start|>assistant\n"},
    {1, 5, 2,
     "<|im_start|>system\nYou are a test, made for "
     "this.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 0, 1, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 2, 3,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 3, 4,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
     "think>\n\nI.<|im_end|>\n<|im_start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 4, 3,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {2, 5, 2,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {3, 0, 1, "<s><|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {3, 1, 2,
     "<s><|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {3, 2, 3,
     "<s><|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>"
     "user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"},
    {3, 3, 4,
     "<s><|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
     "think>\n\nI.<|im_end|>\n<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n"},
    {3, 4, 3,
     "<s><|im_start|>user\n Who?<|im_end|>\n<|im_start|>assistant\n I. "
     "<|im_end|>\n<|im_start|>user\nAnd you? <|im_end|>\n<|im_start|>assistant\n"},
    {3, 5, 2,
     "<s><|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {4, 0, 1,
     "<|im_start|>system\nYou are a "
     "test.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {4, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {4, 2, 3,
     "<|im_start|>system\nYou are a "
     "test.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_"
     "start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"},
    {4, 3, 4,
     "<|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
     "think>\n\nI.<|im_end|>\n<|im_start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n"},
    {4, 4, 3,
     "<|im_start|>system\nYou are a test.<|im_end|>\n<|im_start|>user\n "
     "Who?<|im_end|>\n<|im_start|>assistant\n I. <|im_end|>\n<|im_start|>user\nAnd you? "
     "<|im_end|>\n<|im_start|>assistant\n"},
    {4, 5, 2,
     "<|im_start|>system\nYou are a "
     "test.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {5, 0, 1, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {5, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"},
    {5, 2, 3,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {5, 3, 4,
     "<|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_"
     "start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n"},
    {5, 4, 3,
     "<|im_start|>user\n Who?<|im_end|>\n<|im_start|>assistant\n I. "
     "<|im_end|>\n<|im_start|>user\nAnd you? <|im_end|>\n<|im_start|>assistant\n"},
    {5, 5, 2,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n"},
    {6, 0, 1, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {6, 1, 2,
     "<|im_start|>system\nBe "
     "brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {6, 2, 3,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {6, 3, 4,
     "<|im_start|>system\n Be brief. "
     "<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_"
     "start|>user\n And you?\n<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {6, 4, 3,
     "<|im_start|>user\n Who?<|im_end|>\n<|im_start|>assistant\n I. "
     "<|im_end|>\n<|im_start|>user\nAnd you? <|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {6, 5, 2,
     "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nAnd "
     "you?<|im_end|>\n<|im_start|>assistant\n<think>\n"},
    {7, 0, 1,
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|"
     ">assistant<|end_header_id|>\n\n"},
    {7, 1, 2,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
     "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>"
     "assistant<|end_header_id|>\n\n"},
    {7, 2, 3,
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|"
     ">assistant<|end_header_id|>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {7, 3, 4,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
     "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>"
     "assistant<|end_header_id|>\n\n<think>\nhm\n</"
     "think>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {7, 4, 3,
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|"
     ">assistant<|end_header_id|>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {7, 5, 2,
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|"
     ">user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {8, 0, 1,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul "
     "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_"
     "id|>assistant<|end_header_id|>\n\n"},
    {8, 1, 2,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul 2024\n\nBe "
     "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>"
     "assistant<|end_header_id|>\n\n"},
    {8, 2, 3,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul "
     "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_"
     "id|>assistant<|end_header_id|>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>"
     "\n\nAnd you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {8, 3, 4,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul 2024\n\nBe "
     "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>"
     "assistant<|end_header_id|>\n\n<think>\nhm\n</"
     "think>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {8, 4, 3,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul "
     "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_"
     "id|>assistant<|end_header_id|>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>"
     "\n\nAnd you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {8, 5, 2,
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
     "December 2023\nToday Date: 26 Jul "
     "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_"
     "id|>user<|end_header_id|>\n\nAnd "
     "you?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {9, 0, 1, "<s>[INST] Who? [/INST]"},
    {9, 1, 2, "<s>[INST] Be brief.\n\nWho? [/INST]"},
    {9, 2, 3, "<s>[INST] Who? [/INST]I.</s> [INST] And you? [/INST]"},
    {9, 3, 4,
     "<s>[INST]  Be brief. \n\nWho?\n [/INST]<think>\nhm\n</think>\n\nI.</s> [INST]  And you?\n "
     "[/INST]"},
    {9, 4, 3, "<s>[INST]  Who? [/INST] I. </s> [INST] And you?  [/INST]"},
    {9, 5, 2, NULL},
    {10, 0, 1, "<s> [INST] Who? [/INST]"},
    {10, 1, 2, "<s> [INST] Be brief.\n\nWho? [/INST]"},
    {10, 2, 3, "<s> [INST] Who? [/INST] I.</s> [INST] And you? [/INST]"},
    {10, 3, 4,
     "<s> [INST]  Be brief. \n\nWho?\n [/INST] <think>\nhm\n</think>\n\nI.</s> [INST]  And you?\n "
     "[/INST]"},
    {10, 4, 3, "<s> [INST]  Who? [/INST]  I. </s> [INST] And you?  [/INST]"},
    {10, 5, 2, NULL},
    {11, 0, 1, "<s>[INST] Who?[/INST]"},
    {11, 1, 2, "<s>[INST] Be brief.\n\nWho?[/INST]"},
    {11, 2, 3, "<s>[INST] Who?[/INST] I.</s>[INST] And you?[/INST]"},
    {11, 3, 4,
     "<s>[INST] Who?\n[/INST] <think>\nhm\n</think>\n\nI.</s>[INST]  Be brief. \n\n And "
     "you?\n[/INST]"},
    {11, 4, 3, "<s>[INST]  Who?[/INST]  I. </s>[INST] And you? [/INST]"},
    {11, 5, 2, NULL},
    {12, 0, 1, "<s>[INST]Who?[/INST]"},
    {12, 1, 2, "<s>[INST]Be brief.\n\nWho?[/INST]"},
    {12, 2, 3, "<s>[INST]Who?[/INST]I.</s>[INST]And you?[/INST]"},
    {12, 3, 4,
     "<s>[INST]Who?\n[/INST]<think>\nhm\n</think>\n\nI.</s>[INST] Be brief. \n\n And "
     "you?\n[/INST]"},
    {12, 4, 3, "<s>[INST] Who?[/INST] I. </s>[INST]And you? [/INST]"},
    {12, 5, 2, NULL},
    {13, 0, 1, "<s>[INST] Who?[/INST]"},
    {13, 1, 2, "<s>[INST] Be brief.\n\nWho?[/INST]"},
    {13, 2, 3, "<s>[INST] Who?[/INST] I.</s>[INST] And you?[/INST]"},
    {13, 3, 4,
     "<s>[INST] Who?\n[/INST] <think>\nhm\n</think>\n\nI.</s>[INST]  Be brief. \n\n And "
     "you?\n[/INST]"},
    {13, 4, 3, "<s>[INST]  Who?[/INST] I.</s>[INST] And you? [/INST]"},
    {13, 5, 2, NULL},
};
