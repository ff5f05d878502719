#!/usr/bin/env python3
"""The figures of test_lora.c: losses and gradients of adapters, by PEFT.

    pip install torch transformers peft
    python3 lora_reference.py test_lora.c

Reads the rows of the C source's table and prints for each the sum of each row's losses, and of the
mean loss the slope by all A, and by all B, along directions that are a hash of name and index, as
weights and tokens are (folder_reference.py). All is computed in f64 but rotary angles.
"""
import json
import re
import sys

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

ROWS, LENGTH, VOCABULARY = 2, 24, 40
PREFIX = "base_model.model."


def hashed(name, shape):
    """Element i: a hash of (name, i), uniform in [-1, 1)."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) * 2654435761 & 0xFFFFFFFF ^ seed
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    x = (x ^ x >> 16).astype(numpy.float64) / 2147483648 - 1
    return x.reshape(shape)


def weights(name, shape):
    gain = len(shape) == 1 and name.endswith("weight")
    x = 0.3 * hashed(name, shape) + (1 if gain else 0)
    return torch.from_numpy(x.astype(numpy.float32).astype(numpy.float64))


def figures(config, rank, alpha, targets):
    kind = config.pop("model_type")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **config), attn_implementation="eager").double()
    model = get_peft_model(model, LoraConfig(
        r=rank, lora_alpha=alpha, fan_in_fan_out=kind == "gpt2",
        target_modules="all-linear" if targets == "all" else targets.split(","))).double().eval()
    trained = {}
    for name, parameter in model.named_parameters():
        short = name.removeprefix(PREFIX).removeprefix("transformer.")
        short = short.replace(".base_layer", "").replace(".default", "")
        parameter.data = weights(short, tuple(parameter.shape))
        if parameter.requires_grad:
            trained[short] = parameter
    model.base_model.model.tie_weights()
    i = numpy.arange(ROWS * (LENGTH + 1), dtype=numpy.int64)
    token = torch.from_numpy((i * i * 7 + 3 * i + 1) % VOCABULARY).reshape(ROWS, LENGTH + 1)
    losses = torch.nn.functional.cross_entropy(
        model(token[:, :-1]).logits.transpose(1, 2), token[:, 1:], reduction="none").sum(1)
    (losses.sum() / (ROWS * LENGTH)).backward()
    slope = {"A": 0.0, "B": 0.0}
    for name, parameter in trained.items():
        direction = torch.from_numpy(hashed(name + ".direction", tuple(parameter.shape)))
        slope[name.split("lora_")[1][0]] += (parameter.grad * direction).sum().item()
    return losses.tolist() + list(slope.values())


source = open(sys.argv[1], encoding="utf-8").read()
table = source[source.index("rows[] = {"):]
common = dict(re.findall(r"#define (\w+) *\\?\s*((?:\"(?:[^\"\\]|\\.)*\"\s*\\?\s*)+)", source))
for entry, rank, alpha, targets in re.findall(
        r"\{(\"\{.*?\}\"),\s*(\d+),\s*([0-9.]+),\s*\"([^\"]*)\"", table, re.S):
    for name, text in common.items():
        entry = re.sub(rf"\b{name}\b", lambda _, t=text: t, entry)
    text = "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", entry)).replace('\\"', '"')
    print(text[:60], *(f"{x:.9f}" for x in
                       figures(json.loads(text), int(rank), float(alpha), targets)), sep="\n    ")
