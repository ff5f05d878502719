#!/usr/bin/python3
"""Runs Tessera and its peers in turn on the same cores and prints both sides and their ratio.

Started by bench/peers.sh, which prepares the environment. Each side of a line is the median of ROUNDS
runs, and the sides take turns, so that a slow minute of the machine hits both. What each figure
means and how it is derived is in bench/README.md."""
import argparse
import json
import os
import statistics
import subprocess
import sys

import cluster

ROUNDS = 3
CONFIG = {'mlp': 'configs/labs/fashion_mlp.yaml', 'cnn': 'configs/labs/fashion_cnn.yaml'}
GPT = {'21m': 'configs/models/gpt-21m.yaml', '124m': 'configs/models/gpt2-124m.yaml'}
DATA_BYTES = 70000 * (28 * 28 + 1)  # images and labels of Fashion-MNIST, mapped by every rank
MIB = 1 << 20


def command_lines(command, environment=None, preload=False):
    """Standard output of a command as lines; a failure ends the bench with what it said."""
    env = dict(os.environ, **(environment or {}))
    if preload:
        env['LD_PRELOAD'] = os.environ['PEERS_PRELOAD']
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f'failed ({done.returncode}): {" ".join(map(str, command))}\n'
                 f'{done.stdout}{done.stderr}')
    return done.stdout.splitlines()


def json_lines(lines):
    return [json.loads(line) for line in lines if line.startswith('{')]


class Bench:
    def __init__(self, args):
        self.args = args
        self.rounds = 1 if args.quick else args.rounds or ROUNDS
        self.out = open(args.out, 'w', encoding='utf-8') if args.out else None
        self.runs = 0

    def record(self, **line):
        if self.out:
            self.out.write(json.dumps(line) + '\n')
            self.out.flush()

    lines = staticmethod(command_lines)
    json = staticmethod(lambda lines: json_lines(lines))
    size_text = staticmethod(lambda size: size_text(size))

    # ---- both sides ----------------------------------------------------------------------------

    def tessera_train(self, config, *options):
        """The last line of metrics.jsonl of a run."""
        self.runs += 1
        folder = f'{self.args.scratch}/run{self.runs}'
        command_lines([self.args.tessera, 'train', config, '--run', folder, '--set', 'evaluate=off',
                       *map(str, options)])
        with open(f'{folder}/metrics.jsonl', encoding='utf-8') as file:
            return json.loads(file.readlines()[-1])['final']

    def tessera_compare(self, config, strategy, ranks, *options):
        self.runs += 1
        path = f'{self.args.scratch}/compare{self.runs}.json'
        command_lines([self.args.tessera, 'compare', config, '--strategies', strategy, '--ranks',
                       str(ranks), '--json', path, *map(str, options)])
        with open(path, encoding='utf-8') as file:
            return json.load(file)['runs'][0]

    @staticmethod
    def torch(program, *options, threads=1):
        """The last line of one of the programs beside this one."""
        lines = command_lines(['/usr/bin/python3', f'bench/peers/torch_{program}.py', '--threads',
                               str(threads), *map(str, options)],
                              {'OMP_NUM_THREADS': str(threads)}, preload=True)
        return json_lines(lines)[-1]

    def turns(self, *sides):
        """Each side's values, one a round, sides taking turns."""
        values = [[] for _ in sides]
        for _ in range(self.rounds):
            for side, into in zip(sides, values):
                into.append(side())
        return values

    # ---- sections ------------------------------------------------------------------------------

    def train(self):
        print('\nTraining, images/s: Tessera ddp 2 ranks x 1 thread against PyTorch\n')
        print('| model | batch | precision | Tessera | DDP gloo 2 x 1 | ratio | '
              '1 process x 2 threads | ratio |')
        print('| --- | --- | --- | --- | --- | --- | --- | --- |')
        for model in ('mlp', 'cnn'):
            for batch in (128, 512):
                for precision in ('f32', 'bf16'):
                    self.train_line(model, batch, precision)

    def train_line(self, model, batch, precision):
        steps = max((300 if model == 'mlp' else 40) * 128 // batch, 10)
        if self.args.quick:
            steps = max(steps // 4, 5)
        peer = ('--model', model, '--batch', batch, '--precision', precision, '--steps', steps,
                '--blocks', 1, '--warmup', max(steps // 5, 3))
        ours, gloo, single = self.turns(
            lambda: self.tessera_train(CONFIG[model], '--strategy', 'ddp', '--ranks', 2,
                                       '--batch-size', batch, '--precision', precision,
                                       '--steps', 3 * steps)['samples_per_s'],
            lambda: self.torch('train', *peer, '--ranks', 2)['samples_per_s'],
            lambda: self.torch('train', *peer, '--ranks', 1, threads=2)['samples_per_s'])
        a, b, c = map(statistics.median, (ours, gloo, single))
        print(f'| {model} | {batch} | {precision} | {a:,.0f} | {b:,.0f} | {a / b:.2f} | {c:,.0f} | '
              f'{a / c:.2f} |', flush=True)
        self.record(bench='train', model=model, batch=batch, precision=precision, tessera=ours,
                    torch_ddp=gloo, torch_one=single)

    def gpt(self):
        text = f'{self.args.scratch}/text'
        with open(text, 'wb') as file:  # what is in it does not matter for speed
            file.write(bytes(range(256)) * 4096)
        print('\nGPT-2, T = 256, batch 4, AdamW, tokens/s: Tessera, then PyTorch\n')
        print('| model | precision | layout | Tessera | PyTorch | ratio |')
        print('| --- | --- | --- | --- | --- | --- |')
        for model, config in GPT.items():
            for precision in ('bf16', 'f32'):
                self.gpt_line(model, config, precision, text, 'ddp, 2 ranks', 'ddp', 2, 1)
                self.gpt_line(model, config, precision, text, '1 process x 2 threads', 'single', 1, 2)

    def gpt_line(self, model, config, precision, text, layout, strategy, ranks, threads):
        steps = 3 if self.args.quick else 12 if model == '21m' else 5
        ours, peer = self.turns(
            lambda: self.tessera_train(config, '--strategy', strategy, '--ranks', ranks,
                                       '--threads', threads, '--precision', precision,
                                       '--batch-size', 4, '--data.length', 256, '--steps',
                                       2 * steps, '--warmup', 0, '--save-weights',
                                       'off')['tokens_per_s'],
            lambda: self.torch('gpt', '--model', model, '--precision', precision, '--steps', steps,
                                   '--ranks', ranks, '--text', text,
                                   threads=threads)['tokens_per_s'])
        a, b = map(statistics.median, (ours, peer))
        print(f'| {model} | {precision} | {layout} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |', flush=True)
        self.record(bench='gpt', model=model, precision=precision, layout=layout, tessera=ours,
                    torch=peer)

    def reduce(self):
        print('\nAll-reduce of f32, in place: time, bus bandwidth, and how many times faster '
              'Tessera is\n')
        print('| ranks | size | Tessera canonical | Tessera fast | Open MPI | ratio | gloo | ratio |')
        print('| --- | --- | --- | --- | --- | --- | --- | --- |')
        sizes = [4096, 256 << 10, 4 * MIB, 64 * MIB]
        for ranks in (2, 4):
            self.reduce_lines(ranks, sizes)

    def reduce_lines(self, ranks, sizes):
        words = [str(size) for size in sizes]
        crowded = ranks > len(os.sched_getaffinity(0))
        mpi = ['mpirun', '--allow-run-as-root', '--oversubscribe', '--mca', 'mpi_yield_when_idle',
               '1' if crowded else '0', '-np', str(ranks), f'{self.args.scratch}/mpi_reduce']
        gloo = ['/usr/bin/python3', 'bench/peers/torch_reduce.py', str(ranks)]

        def peer(command, **how):
            return lambda: {line['bytes']: line['seconds']
                            for line in json_lines(command_lines(command + words, **how))}

        sides = self.turns(lambda: self.tessera_reduce(ranks, sizes, 'canonical'),
                           lambda: self.tessera_reduce(ranks, sizes, 'fast'), peer(mpi),
                           peer(gloo, preload=True))
        for size in sizes:
            seconds = [statistics.median(run[size] for run in side) for side in sides]
            cells = [f'{s * 1e6:,.1f} us, {bus(size, ranks, s):.2f} GB/s' for s in seconds]
            print(f'| {ranks} | {size_text(size)} | {cells[0]} | {cells[1]} | {cells[2]} | '
                  f'{seconds[2] / seconds[0]:.1f} | {cells[3]} | {seconds[3] / seconds[0]:.1f} |',
                  flush=True)
            self.record(bench='all_reduce', ranks=ranks, bytes=size, canonical=seconds[0],
                        fast=seconds[1], open_mpi=seconds[2], gloo=seconds[3])

    def tessera_reduce(self, ranks, sizes, order):
        self.runs += 1
        path = f'{self.args.scratch}/comm{self.runs}.jsonl'
        command_lines([self.args.tessera, 'bench', 'comm', '--ranks', str(ranks), '--order', order,
                       '--sizes', ','.join(str(size) for size in sizes), '--json', path])
        with open(path, encoding='utf-8') as file:
            return {line['bytes']: line['median_us'] / 1e6 for line in json_lines(file)
                    if line['operation'] == 'all_reduce'}

    def cluster(self):
        cluster.cluster(self)

    def overhead(self):
        tiny = ('--strategy', 'ddp', '--ranks', 2, '--batch-size', 2, '--set', 'mlp.hidden=8,8')
        steps = 2000 if self.args.quick else 20000
        ours, gloo = self.turns(
            lambda: 2e6 / self.tessera_train(CONFIG['mlp'], *tiny, '--steps',
                                             steps)['samples_per_s'],
            lambda: self.torch('train', '--width', 8, '--batch', 2, '--ranks', 2, '--steps',
                                     500)['step_us'])
        a, b = statistics.median(ours), statistics.median(gloo)
        print(f'\nOverhead of a step, MLP of width 8, batch 1 on each of 2 ranks: {a:.1f} us; '
              f'PyTorch DDP {b:,.0f} us; ratio {b / a:.0f}')
        self.record(bench='overhead', tessera_us=ours, torch_ddp_us=gloo)

        start = [self.tessera_train(CONFIG['cnn'], '--strategy', 'ddp', '--ranks', 4, '--steps',
                                    2)['first_step_s'] for _ in range(self.rounds)]
        print(f'\nProcess start to the end of the first step, CNN, ddp, 4 ranks: '
              f'{statistics.median(start):.2f} s')
        self.record(bench='start', first_step_s=start)

        peer = self.torch('train', '--model', 'cnn', '--ranks', 2, '--steps', 10)
        run = self.tessera_compare(CONFIG['cnn'], 'ddp', 2, '--steps', 20)
        worst = max(rank['peak_rss'] - sum(rank['allocated'].values()) for rank in run['memory'])
        print(f'\nResident memory of a rank beyond its arena, CNN, ddp, 2 ranks: '
              f'{worst / 1e6:.0f} MB, of which up to {DATA_BYTES / 1e6:.0f} MB are pages of the '
              f'data set, shared by all ranks; PyTorch DDP in all: {peer["peak_rss"] / 1e6:.0f} MB')
        self.record(bench='resident', beyond_arena=worst, data=DATA_BYTES,
                    torch_rss=peer['peak_rss'])


def bus(size, ranks, seconds):
    """GB/s that every rank's link would have to carry: see bench/README.md."""
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def size_text(size):
    return f'{size // MIB} MiB' if size >= MIB else f'{size >> 10} KiB'


def machine():
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        model = next((line.split(':')[1].strip() for line in file if line.startswith('model name')),
                     'unknown')
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True,
                            check=False).stdout.strip()
    return {'cpu': model, 'cores': len(os.sched_getaffinity(0)), 'commit': commit}


def main():
    sections = ('train', 'gpt', 'reduce', 'overhead')
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--tessera', required=True)
    p.add_argument('--scratch', required=True, help='folder for files of the runs')
    p.add_argument('--out', help='write JSON lines there too')
    p.add_argument('--quick', action='store_true', help='one round, fewer steps: does it run?')
    p.add_argument('--shapes', help=f'of the section cluster: {",".join(cluster.SHAPES)}')
    p.add_argument('--sizes', help='of the section cluster: bytes, separated by commas')
    p.add_argument('--rounds', type=int, help='turns of all sides')
    p.add_argument('sections', nargs='*', default=[], help=', '.join((*sections, 'cluster')))
    args = p.parse_args()
    unknown = set(args.sections) - {*sections, 'cluster'}
    if unknown:
        p.error(f'unknown section {sorted(unknown)[0]}: known are {", ".join(sections)}, cluster')
    bench = Bench(args)
    where = machine()
    print(f'{where["cpu"]}, {where["cores"]} cores, commit {where["commit"]}')
    bench.record(bench='machine', **where)
    for section in args.sections or sections:
        getattr(bench, section)()


if __name__ == '__main__':
    main()
