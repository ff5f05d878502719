#!/usr/bin/python3
"""Training speed of PyTorch on a GPT-2: one process, or DistributedDataParallel over gloo.

Prints one JSON line. Attention is one fused multiply-add with the mask, a softmax and a product, the
fastest form that PyTorch 1.13 has on CPUs; AdamW uses its list form; bf16 is autocast. Tokens are the
bytes of a file, in memory."""
import argparse
import contextlib
import json
import math
import os
import resource
import socket
import time

SHAPES = {'21m': (12, 384, 6, 256), '124m': (12, 768, 12, 50304)}  # layers, width, heads, vocabulary


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--model', choices=SHAPES, default='21m')
    p.add_argument('--length', type=int, default=256, help='tokens of a sequence')
    p.add_argument('--batch', type=int, default=4, help='sequences over all processes')
    p.add_argument('--ranks', type=int, default=1)
    p.add_argument('--threads', type=int, default=1, help='of each process')
    p.add_argument('--precision', choices=('f32', 'bf16'), default='f32')
    p.add_argument('--steps', type=int, default=6)
    p.add_argument('--warmup', type=int, default=2)
    p.add_argument('--text', required=True, help='file whose bytes are the tokens')
    return p.parse_args()


def build(shape, length):
    import torch
    from torch import nn
    from torch.nn import functional
    layers, width, heads, vocabulary = shape
    mask = torch.full((length, length), float('-inf')).triu(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attend(self, x):
            rows, positions, size = x.shape[0], x.shape[1], width // heads
            qkv = self.qkv(x).view(rows, positions, 3, heads, size).permute(2, 0, 3, 1, 4)
            q, k, v = (part.reshape(rows * heads, positions, size) for part in qkv.unbind(0))
            bias = mask.to(q.dtype).expand(rows * heads, positions, positions)
            score = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))
            mixed = torch.bmm(score.softmax(-1).to(v.dtype), v).view(rows, heads, positions, size)
            return self.join(mixed.transpose(1, 2).reshape(rows, positions, width))

        def forward(self, x):
            x = x + self.attend(self.norm[0](x))
            hidden = functional.gelu(self.widen(self.norm[1](x)), approximate='tanh')
            return x + self.narrow(hidden)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.token.weight
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, 0, 0.02)

        def forward(self, tokens, labels):
            x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
            logits = self.head(self.norm(self.blocks(x)))
            return functional.cross_entropy(logits.view(-1, vocabulary), labels.reshape(-1))

    return Model()


class Trainer:
    def __init__(self, args, rank):
        import numpy
        import torch
        self.args = args
        self.text = torch.from_numpy(numpy.fromfile(args.text, dtype=numpy.uint8))
        self.random = torch.Generator().manual_seed(1 + rank)
        self.net = build(SHAPES[args.model], args.length)
        if args.ranks > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net,
                                                                 gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-4, weight_decay=0.1,
                                           foreach=True)

    def step(self):
        import torch
        rows, length = self.args.batch // self.args.ranks, self.args.length
        first = torch.randint(len(self.text) - length - 1, (rows, 1), generator=self.random)
        window = self.text[first + torch.arange(length + 1)].long()
        low = self.args.precision == 'bf16'
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cpu', dtype=torch.bfloat16) if low else contextlib.nullcontext():
            loss = self.net(window[:, :-1], window[:, 1:])
        loss.backward()
        self.optimizer.step()
        return loss.item()


def run(args, rank, port):
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.ranks > 1:
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), GLOO_SOCKET_IFNAME='lo')
        torch.distributed.init_process_group('gloo', rank=rank, world_size=args.ranks)
    trainer = Trainer(args, rank)
    for _ in range(args.warmup):
        trainer.step()
    if args.ranks > 1:
        torch.distributed.barrier()
    start = time.perf_counter()
    for _ in range(args.steps):
        loss = trainer.step()
    step_s = (time.perf_counter() - start) / args.steps
    if rank == 0:
        print(json.dumps({'tokens_per_s': args.batch * args.length / step_s, 'step_s': step_s,
                          'loss': loss, 'peak_rss': 1024 *
                          resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}), flush=True)
    if args.ranks > 1:
        torch.distributed.barrier()


def main():
    args = parse()
    if args.ranks == 1:
        run(args, 0, 0)
        return
    import multiprocessing
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context('spawn')
    children = [context.Process(target=run, args=(args, rank, port)) for rank in range(args.ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        if child.exitcode != 0:
            raise SystemExit(f'a process ended with {child.exitcode}')


if __name__ == '__main__':
    main()
