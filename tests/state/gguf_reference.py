#!/usr/bin/env python3
"""GGUF files of test_gguf.c, read by the reader of the package gguf: keys, and every tensor's bytes.

    pip install gguf
    python3 gguf_reference.py FILE.gguf ...

Weights are a hash of name and index; what llama.cpp's converter makes of them is done here once
more, by numpy and the package's quantize. Ends with 1 and the name of what differs.
"""
import sys

import gguf
import numpy

HEADS, KV_HEADS, WIDTH, FFN, WORDS, LAYERS, CONTEXT = 4, 2, 32, 64, 40, 2, 16
SIZE = WIDTH // HEADS


def hashed(name, shape):
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) * 2654435761 & 0xFFFFFFFF ^ seed
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    return ((x ^ x >> 16).astype(numpy.float64) / 2147483648 - 1).astype(numpy.float32).reshape(shape)


def pairs(x, heads):
    """Rows of each head: halves [2, n] become pairs [n, 2], as convert_hf_to_gguf permutes them."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def llama():
    yield "token_embd.weight", hashed("model.embed_tokens.weight", (WORDS, WIDTH))
    for i in range(LAYERS):
        of, to = f"model.layers.{i}.", f"blk.{i}."
        kv = KV_HEADS * SIZE
        yield to + "attn_norm.weight", hashed(of + "input_layernorm.weight", (WIDTH,))
        yield to + "attn_q.weight", pairs(
            hashed(of + "self_attn.q_proj.weight", (WIDTH, WIDTH)), HEADS)
        yield to + "attn_k.weight", pairs(
            hashed(of + "self_attn.k_proj.weight", (kv, WIDTH)), KV_HEADS)
        yield to + "attn_v.weight", hashed(of + "self_attn.v_proj.weight", (kv, WIDTH))
        yield to + "attn_output.weight", hashed(of + "self_attn.o_proj.weight", (WIDTH, WIDTH))
        yield to + "ffn_norm.weight", hashed(of + "post_attention_layernorm.weight", (WIDTH,))
        yield to + "ffn_gate.weight", hashed(of + "mlp.gate_proj.weight", (FFN, WIDTH))
        yield to + "ffn_up.weight", hashed(of + "mlp.up_proj.weight", (FFN, WIDTH))
        yield to + "ffn_down.weight", hashed(of + "mlp.down_proj.weight", (WIDTH, FFN))
    yield "output_norm.weight", hashed("model.norm.weight", (WIDTH,))
    yield "output.weight", hashed("lm_head.weight", (WORDS, WIDTH))


def gpt2():
    yield "token_embd.weight", hashed("wte.weight", (WORDS, WIDTH))
    yield "position_embd.weight", hashed("wpe.weight", (CONTEXT, WIDTH))
    for i in range(LAYERS):
        for of, to in (("ln_1", "attn_norm"), ("ln_2", "ffn_norm")):
            for kind in (".weight", ".bias"):
                yield f"blk.{i}.{to}{kind}", hashed(f"h.{i}.{of}{kind}", (WIDTH,))
        for of, to, rows, columns in (("attn.c_attn", "attn_qkv", WIDTH, 3 * WIDTH),
                                      ("attn.c_proj", "attn_output", WIDTH, WIDTH),
                                      ("mlp.c_fc", "ffn_up", WIDTH, FFN),
                                      ("mlp.c_proj", "ffn_down", FFN, WIDTH)):
            yield f"blk.{i}.{to}.weight", hashed(f"h.{i}.{of}.weight", (rows, columns)).T
            yield f"blk.{i}.{to}.bias", hashed(f"h.{i}.{of}.bias", (columns,))
    for kind in (".weight", ".bias"):
        yield "output_norm" + kind, hashed("ln_f" + kind, (WIDTH,))


def check(path):
    reader = gguf.GGUFReader(path)
    value = {name: field.contents() for name, field in reader.fields.items()}
    family = value["general.architecture"]
    kind = {0: "F32", 1: "F16", 7: "Q8_0", 32: "BF16"}[value["general.file_type"]]
    wanted = gguf.GGMLQuantizationType[kind]
    for name, number in (("block_count", LAYERS), ("embedding_length", WIDTH),
                         ("feed_forward_length", FFN), ("attention.head_count", HEADS),
                         ("context_length", CONTEXT)):
        assert value[f"{family}.{name}"] == number, name
    if family == "llama":
        assert value["llama.attention.head_count_kv"] == KV_HEADS
        assert value["llama.rope.freq_base"] == 500
        assert abs(value["llama.attention.layer_norm_rms_epsilon"] - 1e-4) < 1e-9
        assert value["tokenizer.ggml.tokens"][:3] == ["a", "<|end|>", "[PAD2]"]
        assert value["tokenizer.ggml.token_type"][:3] == [1, 3, 5]
        assert value["tokenizer.ggml.merges"] == ["a b", "c d"]
        assert value["tokenizer.ggml.pre"] == "llama-bpe"
        assert value["tokenizer.ggml.eos_token_id"] == 1
    else:
        assert value["tokenizer.ggml.model"] == "no_vocab"
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, x in llama() if family == "llama" else gpt2():
        tensor = tensors.pop(name)
        as_is = x.ndim < 2 or name == "position_embd.weight"
        of = gguf.GGMLQuantizationType.F32 if as_is else wanted
        assert tensor.tensor_type == of, f"{name}: {tensor.tensor_type}"
        assert list(tensor.shape) == list(reversed(x.shape)), f"{name}: {tensor.shape}"
        right = gguf.quants.quantize(numpy.ascontiguousarray(x), of)
        assert tensor.data.tobytes() == right.tobytes(), f"{name}: other values"
    assert not tensors, f"more tensors: {list(tensors)}"


for one in sys.argv[1:]:
    check(one)
    print(one, "as the package gguf reads it")
