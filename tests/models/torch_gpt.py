#!/usr/bin/python3
"""The losses of a GPT-2 or Llama model over some steps of AdamW, by PyTorch.

Begins with the weights of a safetensors file (names and layouts as Hugging Face has them) and trains
on the batches of a file: int32 STEPS, B, T, then for each step inputs [B, T] and labels [B, T].
Prints one loss a line, in full precision, each before its step. The model is written out here in
plain operations, so that what it computes can be held against the papers:

  GPT-2   Radford et al., "Language models are unsupervised multitask learners", 2019
  Llama   Touvron et al., "LLaMA", 2023; grouped queries: Ainslie et al., "GQA", 2023
"""
import argparse
import json
import math
import sys

import numpy
import torch
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--weights', required=True)
    p.add_argument('--batches', required=True)
    p.add_argument('--heads', type=int, required=True)
    p.add_argument('--kv-heads', type=int, default=0, help='0: as many as heads')
    p.add_argument('--rope-base', type=float, default=10000)
    p.add_argument('--norm-epsilon', type=float, default=1e-5)
    p.add_argument('--learning-rate', type=float, required=True)
    p.add_argument('--weight-decay', type=float, default=0)
    p.add_argument('--beta1', type=float, default=0.9)
    p.add_argument('--beta2', type=float, default=0.999)
    p.add_argument('--epsilon', type=float, default=1e-8)
    p.add_argument('--clip', type=float, default=0)
    return p.parse_args()


def read_weights(path):
    """All tensors of a safetensors file, by name."""
    with open(path, 'rb') as file:
        length = int.from_bytes(file.read(8), 'little')
        header = json.loads(file.read(length))
        values = file.read()
    weights = {}
    for name, entry in header.items():
        if name == '__metadata__':
            continue
        if entry['dtype'] != 'F32':
            sys.exit(f'{path}: {name} is {entry["dtype"]}, not F32')
        begin, end = entry['data_offsets']
        array = numpy.frombuffer(values[begin:end], numpy.float32).reshape(entry['shape'])
        weights[name] = torch.from_numpy(array.copy()).requires_grad_()
    return weights


def read_batches(path):
    data = numpy.fromfile(path, numpy.int32)
    steps, rows, length = (int(n) for n in data[:3])
    data = torch.from_numpy(data[3:].astype(numpy.int64)).reshape(steps, 2, rows, length)
    return [(step[0], step[1]) for step in data]


def attend(q, k, v):
    """Causal attention; q [B, H, T, D], k and v [B, KV, T, D], H a multiple of KV."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    length = q.shape[2]
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


def split(x, heads):
    """[B, T, H D] to [B, H, T, D]."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def join(x):
    return x.transpose(1, 2).flatten(2)


class Gpt2:
    """Linear layers are x W + b with W [in, out]; the head is the embedding."""

    def __init__(self, w, args):
        self.w, self.args = w, args
        self.prefix = 'transformer.' if 'transformer.wte.weight' in w else ''
        names = [name for name in w if name.endswith('attn.c_attn.weight')]
        self.layers = len(names)

    def get(self, name):
        return self.w[self.prefix + name]

    def linear(self, x, name):
        return x @ self.get(name + '.weight') + self.get(name + '.bias')

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.get(name + '.weight'), self.get(name + '.bias'),
                            self.args.norm_epsilon)

    def logits(self, token):
        heads = self.args.heads
        x = self.get('wte.weight')[token] + self.get('wpe.weight')[:token.shape[1]]
        for i in range(self.layers):
            h = f'h.{i}.'
            qkv = self.linear(self.norm(x, h + 'ln_1'), h + 'attn.c_attn')
            q, k, v = (split(part, heads) for part in qkv.chunk(3, dim=-1))
            x = x + self.linear(join(attend(q, k, v)), h + 'attn.c_proj')
            y = self.linear(self.norm(x, h + 'ln_2'), h + 'mlp.c_fc')
            y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
            x = x + self.linear(y, h + 'mlp.c_proj')
        return self.norm(x, 'ln_f') @ self.get('wte.weight').T


class Llama:
    """Linear layers are x W^T with W [out, in], without biases."""

    def __init__(self, w, args):
        self.w, self.args = w, args
        self.layers = len([name for name in w if name.endswith('self_attn.q_proj.weight')])

    def linear(self, x, name):
        return x @ self.w[name + '.weight'].T

    def norm(self, x, name):
        rms = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.args.norm_epsilon)
        return x * rms * self.w[name + '.weight']

    def rotate(self, x):
        """Halves form: (x[i], x[i + D/2]) by an angle of position base^(-2i/D)."""
        length, size = x.shape[2], x.shape[3]
        rate = self.args.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., :size // 2], x[..., size // 2:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def logits(self, token):
        heads, kv_heads = self.args.heads, self.args.kv_heads or self.args.heads
        x = self.w['model.embed_tokens.weight'][token]
        for i in range(self.layers):
            h = f'model.layers.{i}.'
            y = self.norm(x, h + 'input_layernorm')
            q = self.rotate(split(self.linear(y, h + 'self_attn.q_proj'), heads))
            k = self.rotate(split(self.linear(y, h + 'self_attn.k_proj'), kv_heads))
            v = split(self.linear(y, h + 'self_attn.v_proj'), kv_heads)
            x = x + self.linear(join(attend(q, k, v)), h + 'self_attn.o_proj')
            y = self.norm(x, h + 'post_attention_layernorm')
            y = F.silu(self.linear(y, h + 'mlp.gate_proj')) * self.linear(y, h + 'mlp.up_proj')
            x = x + self.linear(y, h + 'mlp.down_proj')
        head = self.w.get('lm_head.weight', self.w['model.embed_tokens.weight'])
        return self.norm(x, 'model.norm') @ head.T


def main():
    args = parse()
    torch.set_num_threads(1)
    weights = read_weights(args.weights)
    model = (Llama if 'model.embed_tokens.weight' in weights else Gpt2)(weights, args)
    # Vectors are biases and norms: weight decay leaves them alone.
    groups = [{'params': [w for w in weights.values() if w.dim() > 1],
               'weight_decay': args.weight_decay},
              {'params': [w for w in weights.values() if w.dim() < 2], 'weight_decay': 0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(args.beta1, args.beta2),
                                  eps=args.epsilon)
    for token, label in read_batches(args.batches):
        loss = F.cross_entropy(model.logits(token).flatten(0, 1), label.flatten())
        print(repr(loss.item()))
        optimizer.zero_grad()
        loss.backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(weights.values(), args.clip)
        optimizer.step()


main()
