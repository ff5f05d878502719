#!/usr/bin/python3
"""Training speed of PyTorch on Fashion-MNIST: one process, or DistributedDataParallel over gloo.

Prints one JSON line. The images stay in memory as bytes and a batch is one gather and three
element-wise operations, so that loading costs PyTorch next to nothing; --width makes the MLP small
enough that only the overhead of a step is left."""
import argparse
import contextlib
import gzip
import json
import os
import resource
import socket
import statistics
import time


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--model', choices=('mlp', 'cnn'), default='mlp')
    p.add_argument('--width', type=int, default=1024, help='of both hidden layers of the mlp')
    p.add_argument('--batch', type=int, default=128, help='over all processes')
    p.add_argument('--ranks', type=int, default=1)
    p.add_argument('--threads', type=int, default=1, help='of each process')
    p.add_argument('--precision', choices=('f32', 'bf16'), default='f32')
    p.add_argument('--steps', type=int, default=100, help='of one timed block')
    p.add_argument('--blocks', type=int, default=3)
    p.add_argument('--warmup', type=int, default=20)
    p.add_argument('--data', default='/usr/share/datasets/fashion-mnist')
    return p.parse_args()


def load(folder, name, header):
    import numpy
    import torch
    with gzip.open(f'{folder}/{name}-ubyte.gz') as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), numpy.uint8, offset=header).copy())


def build(args):
    from torch import nn
    if args.model == 'mlp':
        return nn.Sequential(nn.Flatten(), nn.Linear(784, args.width), nn.ReLU(),
                             nn.Linear(args.width, args.width), nn.ReLU(),
                             nn.Linear(args.width, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(),
                         nn.Linear(128, 10))


class Trainer:
    def __init__(self, args, rank):
        import torch
        self.args, self.rank = args, rank
        self.images = load(args.data, 'train-images-idx3', 16).view(-1, 1, 28, 28)
        self.labels = load(args.data, 'train-labels-idx1', 8).long()
        self.layout = torch.channels_last if args.model == 'cnn' else torch.contiguous_format
        self.net = build(args).to(memory_format=self.layout)
        if args.ranks > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net,
                                                                 gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.generator = torch.Generator().manual_seed(1)
        self.order, self.at = None, 0

    def batch(self):
        import torch
        args = self.args
        if self.order is None or self.at + args.batch > len(self.order):
            self.order = torch.randperm(len(self.labels), generator=self.generator)
            self.at = 0
        mine = args.batch // args.ranks
        begin = self.at + self.rank * mine
        index = self.order[begin:begin + mine]
        self.at += args.batch
        x = self.images[index].float().mul_(1 / 255).sub_(0.286).mul_(1 / 0.353)
        return x.contiguous(memory_format=self.layout), self.labels[index]

    def step(self):
        import torch
        x, y = self.batch()
        cast = (torch.autocast('cpu', dtype=torch.bfloat16) if self.args.precision == 'bf16'
                else contextlib.nullcontext())
        # DDP keeps its gradients in the buckets: they are zeroed in place there.
        self.optimizer.zero_grad(set_to_none=self.args.ranks == 1)
        with cast:
            loss = torch.nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()

    def block(self, steps):
        """Seconds for so many steps, from a common start."""
        import torch.distributed as dist
        if self.args.ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - begin


def run(rank, args, port, answers):
    started = time.time()
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.ranks > 1:
        import torch.distributed as dist
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), GLOO_SOCKET_IFNAME='lo')
        dist.init_process_group('gloo', rank=rank, world_size=args.ranks)
    trainer = Trainer(args, rank)
    trainer.step()
    first_s = time.time() - started
    trainer.block(max(args.warmup - 1, 1))
    seconds = [trainer.block(args.steps) for _ in range(args.blocks)]
    if rank == 0:
        step_s = statistics.median(seconds) / args.steps
        answers.put({
            'peer': 'torch ' + ('ddp gloo' if args.ranks > 1 else 'one process'),
            'model': args.model, 'batch': args.batch, 'precision': args.precision,
            'ranks': args.ranks, 'threads': args.threads,
            'samples_per_s': args.batch / step_s, 'step_us': step_s * 1e6,
            'first_step_s': first_s,
            'peak_rss': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
        answers.close()
        answers.join_thread()
    if args.ranks > 1:
        dist.barrier()
        # gloo of PyTorch 1.13 may hang when it is taken down in order.
        os._exit(0)


def main():
    import multiprocessing
    args = parse()
    os.environ['OMP_NUM_THREADS'] = str(args.threads)
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    # Spawned, so that what a process costs is not hidden in a parent's pages.
    context = multiprocessing.get_context('spawn')
    answers = context.Queue()
    ranks = [context.Process(target=run, args=(r, args, port, answers)) for r in range(args.ranks)]
    for rank in ranks:
        rank.start()
    print(json.dumps(answers.get()), flush=True)
    for rank in ranks:
        rank.join()


if __name__ == '__main__':
    main()
