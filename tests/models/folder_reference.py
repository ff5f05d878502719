#!/usr/bin/env python3
"""The figures of test_gpt_folder.c: losses of models that transformers builds from config.json.

    pip install torch transformers
    python3 folder_reference.py test_gpt_folder.c

Reads the configurations from the C source, between the quotes of its table, and prints the sum of
each row's losses. Weights and tokens are those of the C test: a hash of name and index. All is
computed in f64 but rotary angles, which transformers takes in f32.
"""
import json
import re
import sys

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROWS, LENGTH, VOCABULARY = 2, 24, 40


def weights(name, shape):
    """Element i: a hash of (name, i), uniform in [-1, 1); see folder_value in the C source."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) * 2654435761 & 0xFFFFFFFF ^ seed
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    x = (x ^ x >> 16).astype(numpy.float64) / 2147483648 - 1
    gain = len(shape) == 1 and name.endswith("weight")
    x = (1 + 0.3 * x if gain else 0.3 * x).astype(numpy.float32)
    return torch.from_numpy(x.astype(numpy.float64).reshape(shape))


def losses(config):
    kind = config.pop("model_type")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **config), attn_implementation="eager").double().eval()
    for name, parameter in model.named_parameters():
        parameter.data = weights(name.removeprefix("transformer."), tuple(parameter.shape))
    model.tie_weights()
    i = numpy.arange(ROWS * (LENGTH + 1), dtype=numpy.int64)
    token = torch.from_numpy((i * i * 7 + 3 * i + 1) % VOCABULARY).reshape(ROWS, LENGTH + 1)
    with torch.no_grad():
        logits = model(token[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), token[:, 1:],
                                             reduction="none").sum(1).tolist()


source = open(sys.argv[1], encoding="utf-8").read()
table = source[source.index("folders[] = {"):]
common = dict(re.findall(r"#define (\w+) *\\?\s*((?:\"(?:[^\"\\]|\\.)*\"\s*\\?\s*)+)", source))
for entry in re.findall(r"\{(\"\{.*?\}\"),\s*\{[-0-9., ]*\}\}", table, re.S):
    for name, text in common.items():
        entry = re.sub(rf"\b{name}\b", lambda _, t=text: t, entry)
    text = "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", entry)).replace('\\"', '"')
    print(text[:100], *(f"{loss:.9f}" for loss in losses(json.loads(text))), sep="\n    ")
