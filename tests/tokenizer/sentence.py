"""The figures of sentence_reference.h, by the sentencepiece package: python3 sentence.py > sentence_reference.h

Models of sentence_files.c: <unk>, <s>, </s>, the bytes where there is byte fallback, <|im|>, the pieces of
PIECES. `bpe` is as Llama 2 and Mistral have it, `unigram` as T5 has it.
"""
import struct
import sentencepiece

PIECES = ["▁t", "he", "ll", "▁the", "hell", "hello", "▁hello", "in", "ing", "▁▁", "12", "123", "▁", "h", "e", "l", "o", "t",
          "i", "n", "g", "1", "2", "3", "'", "s", ".", "é", "<"]
TEXTS = ["hello the  hello's 12345\n\n  the\thello é é 😀.", "", " hello ", "   the   ", "</s> <s>hello<|im|>the",
         "▁the x", "hell" * 40 + "o the " * 30 + "12" * 30, "ing\0hello", "\ufffdthe\ufffd"]
KINDS = {"bpe": (2, True, False), "unigram": (1, False, True)}  # model_type, byte_fallback, remove_extra_whitespaces


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(int(value))


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def piece(text, score, kind):
    return field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))


def model(kind, prefix=True):
    model_type, fallback, extra = KINDS[kind]
    out = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3)
    if fallback:
        out += b"".join(piece(f"<0x{byte:02X}>", 0, 6) for byte in range(256))
    out += piece("<|im|>", 0, 4)
    out += b"".join(piece(text, -i - 1, 1) for i, text in enumerate(PIECES))
    out += field(2, field(3, model_type) + field(35, fallback))
    return out + field(3, field(1, b"identity") + field(3, prefix) + field(4, extra) + field(5, True))


def main():
    print(f"/* Written by sentence.py with sentencepiece {sentencepiece.__version__}. */")
    print("static const struct {\n    const char *kind;\n    bool begins;\n    const char *text;\n    size_t bytes;\n"
          "    int count;\n    uint32_t id[256];\n} reference[] = {")
    for kind in KINDS:
        for prefix in (True, False):
            processor = sentencepiece.SentencePieceProcessor(model_proto=model(kind, prefix))
            for text in TEXTS:
                ids = processor.encode(text)
                code = text.encode()
                text = "".join(f"\\{b:03o}" if b < 32 or b > 126 or b in b'"\\?' else chr(b) for b in code)
                begins = "true" if prefix else "false"
                print(f'    {{"{kind}", {begins},\n     "{text}", {len(code)},\n     {len(ids)},\n'
                      f'     {{{", ".join(map(str, ids)) or 0}}}}},')
    print("};")


main()
