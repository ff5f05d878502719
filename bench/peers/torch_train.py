#!/usr/bin/env python3
"""Training speed of PyTorch on processors: one process, DistributedDataParallel or FSDP2 over gloo.

Prints a JSON line when it is warm; then, for each number of steps that it reads from stdin, one with
the seconds of a step. So two programs can take turns, and their start costs no turn. Data lie in
memory, a batch is one gather; images are bytes and get three element-wise operations.

What is on: channels last for convolutions; gradients as views of DDP's buckets; scaled_dot_product_attention;
the fused optimizer (PyTorch 1.13: its list form); bf16 by autocast (FSDP2: its policy, sums in f32).
--compile: Inductor, of the whole model for images, of each block and the head with the loss for text.
--width makes the MLP so small that only the overhead of a step is left."""
import argparse
import contextlib
import datetime
import gzip
import json
import os
import resource
import socket
import sys
import time

LONG_S = 2  # a step of so long is the last one to warm up


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--model', required=True, help='mlp, cnn, wrn, gpt-21m, gpt-124m, llama-160m')
    p.add_argument('--width', type=int, default=1024, help='of both hidden layers of the mlp')
    p.add_argument('--length', type=int, default=256, help='tokens of a sequence')
    p.add_argument('--batch', type=int, default=128, help='over all processes')
    p.add_argument('--layout', choices=('one', 'ddp', 'fsdp2'), default='one')
    p.add_argument('--ranks', type=int, default=1)
    p.add_argument('--threads', type=int, default=1, help='of each process')
    p.add_argument('--precision', choices=('f32', 'bf16'), default='f32')
    p.add_argument('--compile', action='store_true')
    p.add_argument('--warmup', type=int, default=3, help='steps')
    p.add_argument('--data', default='/usr/share/datasets/fashion-mnist')
    return p.parse_args()


def load(folder, name, header):
    import numpy
    import torch
    with gzip.open(f'{folder}/{name}-ubyte.gz') as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), numpy.uint8, offset=header).copy())


class Images:
    """Batches of Fashion-MNIST, in a new order in each epoch."""

    def __init__(self, args, rank, layout):
        import torch
        self.args, self.rank, self.layout = args, rank, layout
        self.images = load(args.data, 'train-images-idx3', 16).view(-1, 1, 28, 28)
        self.labels = load(args.data, 'train-labels-idx1', 8).long()
        self.random = torch.Generator().manual_seed(1)
        self.order, self.at = [], 0

    def batch(self):
        import torch
        batch = self.args.batch
        if self.at + batch > len(self.order):
            self.order = torch.randperm(len(self.labels), generator=self.random)
            self.at = 0
        mine = batch // self.args.ranks
        index = self.order[self.at + self.rank * mine:][:mine]
        self.at += batch
        x = self.images[index].float().mul_(1 / 255).sub_(0.286).mul_(1 / 0.353)
        return x.contiguous(memory_format=self.layout), self.labels[index]


class Tokens:
    """Pieces of a text of bytes at random places; what it says does not matter for speed."""

    def __init__(self, args, rank):
        import torch
        self.args = args
        self.random = torch.Generator().manual_seed(1 + rank)
        self.text = torch.randint(256, (1 << 20,), generator=self.random, dtype=torch.uint8)

    def batch(self):
        import torch
        rows, length = self.args.batch // self.args.ranks, self.args.length
        first = torch.randint(len(self.text) - length - 1, (rows, 1), generator=self.random)
        window = self.text[first + torch.arange(length + 1)].long()
        return window[:, :-1], window[:, 1:].contiguous()


class Trainer:
    def __init__(self, args, rank):
        import torch
        import torch_models
        text = args.model in torch_models.TEXT
        if text:
            self.data = Tokens(args, rank)
            net = torch_models.Text(*torch_models.TEXT[args.model], args.length)
        else:
            layout = torch.contiguous_format if args.model == 'mlp' else torch.channels_last
            self.data = Images(args, rank, layout)
            net = (torch_models.mlp(args.width) if args.model == 'mlp'
                   else getattr(torch_models, args.model)()).to(memory_format=layout)
        if args.compile and text:
            net.compile_parts()
        elif args.compile:
            net.compile()
        self.args, self.text = args, text
        self.net = self.spread(net)
        fused = {'fused': True} if hasattr(torch.nn.Module, 'compile') else {}
        if text:
            self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-4, weight_decay=0.1,
                                               **(fused or {'foreach': True}))
        else:
            if args.layout == 'fsdp2':  # has no rule for the fused one
                fused = {'foreach': True}
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, **fused)
        self.loss = torch.nn.functional.cross_entropy
        self.cast = contextlib.nullcontext
        if args.precision == 'bf16' and args.layout != 'fsdp2':
            self.cast = lambda: torch.autocast('cpu', dtype=torch.bfloat16)

    def spread(self, net):
        import torch
        if self.args.layout == 'one':
            return net
        if self.args.layout == 'ddp':
            return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh('cpu', (self.args.ranks,))
        policy = (MixedPrecisionPolicy(torch.bfloat16, torch.float32)
                  if self.args.precision == 'bf16' else MixedPrecisionPolicy())
        for block in getattr(net, 'blocks', ()):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(net, mesh=mesh, mp_policy=policy)

    def step(self):
        x, y = self.data.batch()
        # DDP keeps its gradients in the buckets: they are zeroed in place there.
        self.optimizer.zero_grad(set_to_none=self.args.layout != 'ddp')
        with self.cast():
            loss = self.net(x, y) if self.text else self.loss(self.net(x).float(), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def run(rank, args, port, pipe):
    started = time.time()
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.ranks > 1:
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), GLOO_SOCKET_IFNAME='lo')
        torch.distributed.init_process_group('gloo', rank=rank, world_size=args.ranks,
                                             timeout=datetime.timedelta(minutes=5))
    trainer = Trainer(args, rank)
    trainer.step()
    first_s = time.time() - started
    step_s = torch.zeros(1, dtype=torch.float64)  # of the slowest process, so that all go on or none does
    for _ in range(args.warmup - 1):
        if step_s < LONG_S:
            begin = time.perf_counter()
            trainer.step()
            step_s.fill_(time.perf_counter() - begin)
            if args.ranks > 1:
                torch.distributed.all_reduce(step_s, torch.distributed.ReduceOp.MAX)
    pipe.send({'version': torch.__version__, 'first_step_s': first_s, 'warm_step_s': step_s.item(),
               'parameters':
               sum(p.numel() for p in trainer.net.parameters()),
               'peak_rss': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    while True:
        steps = pipe.recv()
        if steps == 0:
            os._exit(0)  # gloo of PyTorch 1.13 may hang when it is taken down in order
        if args.ranks > 1:
            torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            loss = trainer.step()
        pipe.send({'step_s': (time.perf_counter() - begin) / steps, 'loss': loss})


def main():
    import multiprocessing
    args = parse()
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    # Spawned, so that what a process costs is not hidden in a parent's pages.
    context = multiprocessing.get_context('spawn')
    pipes, ranks = [], []
    for rank in range(args.ranks):
        ours, theirs = context.Pipe()
        pipes.append(ours)
        ranks.append(context.Process(target=run, args=(rank, args, port, theirs)))
        ranks[-1].start()
        theirs.close()  # so that the end of a rank is the end of its pipe
    try:
        print(json.dumps([pipe.recv() for pipe in pipes][0]), flush=True)
        for line in sys.stdin:
            for pipe in pipes:
                pipe.send(int(line))
            print(json.dumps([pipe.recv() for pipe in pipes][0]), flush=True)
        for pipe in pipes:
            pipe.send(0)
    except EOFError:
        for rank in ranks:
            rank.terminate()
        sys.exit('a process of PyTorch has ended early')
    for rank in ranks:
        rank.join()


if __name__ == '__main__':
    main()
