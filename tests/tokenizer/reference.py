"""The figures of reference.h, by the tokenizers package: python3 reference.py > reference.h

A tokenizer whose tokens 0 to 255 are the bytes, then the merges of MERGES in their order, then
"xyz", which no merge makes, then the added tokens; with the pre-tokenizers of GPT-2, Llama 3 and
Qwen. test_tokenizer.c writes the same.
"""
from tokenizers import AddedToken, Regex, Tokenizer, __version__, models, normalizers, pre_tokenizers

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ t", "Ġt he", "Ġ hello", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ",
          "ð Ł", "Ã ©", "i n", "in g", "' s", "ĠĠ ĠĠ"]
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = [
    "hello the  hello's 12345\n\n  the\thello \u00e9 e\u0301 \U0001f600 HELLO'S",
    "a\ufffd\ufffd b\ufffd",
    "<|end|>hello <|end|> the<|endx|><|endy wide  hello",
    "hell" * 30 + "o" + "12" * 40 + "      \n x",
    "xyz xyz \u00e9\u0301\u0323 \u1112\u1161\u11ab \u0663\u0664 \u00bd\u2167!\u3000\u0085\u180e.",
]


def byte_letters():
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    others = [b for b in range(256) if b not in own]
    return [chr(b) if b in own else chr(256 + others.index(b)) for b in range(256)]


def build(kind):
    words = byte_letters() + [m.replace(" ", "") for m in MERGES] + ["xyz"]
    model = models.BPE({w: i for i, w in enumerate(words)}, [tuple(m.split(" ")) for m in MERGES],
                       ignore_merges=kind == "llama3")
    t = Tokenizer(model)
    if kind == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        number = r"\p{N}{1,3}" if kind == "llama3" else r"\p{N}"
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(HEAD + number + TAIL), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind == "qwen":
        t.normalizer = normalizers.NFC()
    t.add_special_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<|endx|>", normalized=False)])
    t.add_tokens([AddedToken("wide", lstrip=True, rstrip=True, normalized=False)])
    return t


def main():
    print(f"/* Written by reference.py with tokenizers {__version__}. */")
    print("static const struct {\n    const char *kind, *text;\n    int count;\n    uint32_t id[256];\n} reference[] = {")
    for kind in ("gpt2", "llama3", "qwen"):
        for text in TEXTS:
            ids = build(kind).encode(text, add_special_tokens=False).ids
            text = "".join(f"\\{b:03o}" if b < 32 or b > 126 or b in b'"\\?' else chr(b) for b in text.encode())
            # Octal escapes end after three digits.
            print(f'    {{"{kind}",\n     "{text}",\n     {len(ids)},\n     {{{", ".join(map(str, ids))}}}}},')
    print("};")


main()
