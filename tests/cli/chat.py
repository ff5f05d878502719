"""The figures of chat_reference.h, by transformers: python3 chat.py > chat_reference.h

Short templates in the forms that models have, and what apply_chat_template of transformers makes of chats by them.
"""
import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, __version__

END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
LOOP = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n' }}{% endfor %}" + END)
LLAMA = ("{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
         "'<|eot_id|>' }}")
LLAMA_END = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
SAYS = "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content']"
REST = " %}{% set messages = messages[1:] %}"


def mistral(which, begin, end, before, after):
    """Where the system message goes, what is around a question, before and after an answer."""
    return (SAYS + REST + "{% endif %}{{ bos_token }}{% for message in messages %}"
            "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
            "{% if message['role'] == 'user' %}{% if " + which + " and system_message is defined %}{{ '" + begin +
            "' + system_message + '\\n\\n' + message['content'] + '" + end + "' }}{% else %}{{ '" + begin +
            "' + message['content'] + '" + end + "' }}{% endif %}{% else %}{{ " + before +
            "message['content'] + eos_token" + after + " }}{% endif %}{% endfor %}")


TEMPLATES = {
    "chatml": LOOP,
    "chatml usual": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a test, made for "
                    "this.<|im_end|>\\n' }}{% endif %}" + LOOP,
    "chatml trims": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | "
                    "trim + '<|im_end|>\\n' }}{% endfor %}" + END,
    "chatml begins": "{{ bos_token }}" + LOOP,
    # Qwen 2.5: two lines that say who it is, of which the second counts.
    "chatml tools": "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {{- 'You are a tool.' }}\n"
                    "    {{- '<|im_end|>\\n' }}\n{%- else %}\n    " + SYSTEM.replace("{% if", "{%- if") +
                    "\n    {%- else %}\n        {{- '<|im_start|>system\\nYou are a test.<|im_end|>\\n' }}\n"
                    "    {%- endif %}\n{%- endif %}\n{%- for message in messages %}\n"
                    "    {%- if message.role != 'system' or not loop.first %}\n"
                    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
                    "    {%- endif %}\n{%- endfor %}\n" + END.replace("{%", "{%-"),
    # Qwen 3: what an earlier answer thought is left out; and a model that always thinks.
    "chatml thought": "{%- for message in messages %}\n    {%- set content = message.content %}\n"
                      "    {%- if message.role == 'assistant' and '</think>' in content %}\n"
                      "        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n"
                      "    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}\n{%- endfor %}\n"
                      "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
                      "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
                      "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}",
    "chatml thinks": "{% for message in messages %}{% set content = message['content'].split('</think>')[-1]"
                     ".lstrip('\\n') if message['role'] == 'assistant' else message['content'] %}"
                     "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
                     "{{ '<|im_start|>assistant\\n<think>\\n' }}",
    "llama3": "{{ bos_token }}{% for message in messages %}" + LLAMA + "{% endfor %}" + LLAMA_END,
    "llama3.1": "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul 2024\" %}\n"
                "{%- endif %}\n" + SAYS + "|trim" + REST + "{% else %}{% set system_message = \"\" %}{% endif %}\n"
                "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n"
                "{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n"
                "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- system_message }}{{- \"<|eot_id|>\" }}\n"
                "{%- for message in messages %}\n    " + LLAMA.replace("{{", "{{-") + "\n{%- endfor %}\n" +
                LLAMA_END.replace("{%", "{%-"),
    "mistral 1": mistral("loop.first", "[INST] ", " [/INST]", "", " + ' '"),
    "mistral 2": mistral("loop.first", " [INST] ", " [/INST]", "' ' + ", ""),
    "mistral 3": mistral("loop.last", "[INST] ", "[/INST]", "' ' + ", ""),
    "mistral 4": mistral("loop.last", "[INST]", "[/INST]", "", ""),
    "mistral 5": mistral("loop.last", "[INST] ", "[/INST]", "' ' + ", "").replace("] + eos", "]|trim + eos"),
}
TALKS = [
    [("user", "Who?")],
    [("system", "Be brief."), ("user", "Who?")],
    [("user", "Who?"), ("assistant", "I."), ("user", "And you?")],
    [("system", " Be brief. "), ("user", "Who?\n"), ("assistant", "<think>\nhm\n</think>\n\nI."), ("user", " And you?\n")],
    [("user", " Who?"), ("assistant", " I. "), ("user", "And you? ")],
    [("user", "Who?"), ("user", "And you?")],
]


def code(text):
    return '"' + "".join({"\n": "\\n", '"': '\\"', "\\": "\\\\"}.get(c, c) for c in text) + '"'


def main():
    print(f"/* Written by chat.py with transformers {__version__} and jinja2 {jinja2.__version__}. */")
    print("static const struct tess__chat_message talks[][4] = {")
    for talk in TALKS:
        print("    {" + ", ".join(f"{{{code(role)}, {code(text)}}}" for role, text in talk) + "},")
    print("};\n\nstatic const struct {\n    const char *name, *text;\n} templates[] = {")
    for name, text in TEMPLATES.items():
        print(f"    {{{code(name)}, {code(text)}}},")
    print("};\n\n/* NULL: it raises an error. */\nstatic const struct {\n    int template, talk, count;\n"
          "    const char *wanted;\n} reference[] = {")
    for number, (name, text) in enumerate(TEMPLATES.items()):
        bos = "<|begin_of_text|>" if name.startswith("llama") else "<s>"
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=bos, eos_token="</s>")
        for i, talk in enumerate(TALKS):
            messages = [{"role": role, "content": content} for role, content in talk]
            try:
                made = code(tokenizer.apply_chat_template(messages, chat_template=text, tokenize=False,
                                                          add_generation_prompt=True))
            except jinja2.exceptions.TemplateError:
                made = "NULL"
            print(f"    {{{number}, {i}, {len(talk)}, {made}}},")
    print("};")


main()
