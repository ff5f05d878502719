#!/usr/bin/python3
"""Runs Tessera and its peers in turn on the same cores and prints both sides and their ratio.

Started by bench/peers.sh. Each side of a line is the median of ROUNDS turns, and the sides take
turns, so that a slow minute of the machine hits both. What each figure means and how it is derived
is in bench/README.md."""
import argparse
import json
import os
import statistics
import subprocess
import sys

import cluster
import peer
import race
import work

ROUNDS = 3
CONFIG = {'mlp': 'configs/labs/fashion_mlp.yaml', 'cnn': 'configs/labs/fashion_cnn.yaml'}
DATA_BYTES = 70000 * (28 * 28 + 1)  # images and labels of Fashion-MNIST, mapped by every rank
MIB = 1 << 20


def command_lines(command, env=None):
    """Standard output of a command as lines; a failure ends the bench with what it said."""
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
        self.records = race.read([args.out] if args.out and os.path.exists(args.out) else [])
        self.out = open(args.out, 'a', encoding='utf-8') if args.out else None
        self.machine = machine()
        self.cores = self.machine['cores']
        self.runs = 0

    def record(self, **line):
        self.records.append(line)
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

    def torch(self, steps, *options):
        """What a run of torch_train.py says when it is warm, and its seconds of a step."""
        torch = peer.Torch(self.args.python or peer.DEBIAN, 1, *options)
        about = torch.start()
        about['step_s'] = torch.step_s(steps)
        torch.stop()
        return about

    def turns(self, *sides):
        """Each side's values, one a round, sides taking turns."""
        values = [[] for _ in sides]
        for _ in range(self.rounds):
            for side, into in zip(sides, values):
                into.append(side())
        return values

    # ---- sections ------------------------------------------------------------------------------

    def race(self):
        race.race(self)

    def work(self):
        work.work(self)

    def page(self):
        print(race.page(self.records, self.args.picture))

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
        python = self.args.python or peer.DEBIAN
        gloo = [python, 'bench/peers/torch_reduce.py', str(ranks)]

        def side(command, **how):
            return lambda: {line['bytes']: line['seconds']
                            for line in json_lines(command_lines(command + words, **how))}

        sides = self.turns(lambda: self.tessera_reduce(ranks, sizes, 'canonical'),
                           lambda: self.tessera_reduce(ranks, sizes, 'fast'), side(mpi),
                           side(gloo, env=peer.environment(python)))
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
            lambda: 1e6 * self.torch(500, '--model', 'mlp', '--width', 8, '--batch', 2, '--layout',
                                     'ddp', '--ranks', 2)['step_s'])
        a, b = statistics.median(ours), statistics.median(gloo)
        print(f'\nOverhead of a step, MLP of width 8, batch 1 on each of 2 ranks: {a:.1f} us; '
              f'PyTorch DDP {b:,.0f} us; ratio {b / a:.0f}')
        self.record(bench='overhead', tessera_us=ours, torch_ddp_us=gloo)

        start = [self.tessera_train(CONFIG['cnn'], '--strategy', 'ddp', '--ranks', 4, '--steps',
                                    2)['first_step_s'] for _ in range(self.rounds)]
        print(f'\nProcess start to the end of the first step, CNN, ddp, 4 ranks: '
              f'{statistics.median(start):.2f} s')
        self.record(bench='start', first_step_s=start)

        theirs = self.torch(10, '--model', 'cnn', '--layout', 'ddp', '--ranks', 2)
        run = self.tessera_compare(CONFIG['cnn'], 'ddp', 2, '--steps', 20)
        worst = max(rank['peak_rss'] - sum(rank['allocated'].values()) for rank in run['memory'])
        print(f'\nResident memory of a rank beyond its arena, CNN, ddp, 2 ranks: '
              f'{worst / 1e6:.0f} MB, of which up to {DATA_BYTES / 1e6:.0f} MB are pages of the '
              f'data set, shared by all ranks; PyTorch DDP in all: {theirs["peak_rss"] / 1e6:.0f} MB')
        self.record(bench='resident', beyond_arena=worst, data=DATA_BYTES,
                    torch_rss=theirs['peak_rss'])


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
    sections, more = ('race', 'reduce', 'overhead'), ('cluster', 'work', 'page')
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--tessera', required=True)
    p.add_argument('--scratch', required=True, help='folder for files of the runs')
    p.add_argument('--out', help='add JSON lines there; page prints those of a race')
    p.add_argument('--quick', action='store_true', help='one round, fewer steps: does it run?')
    p.add_argument('--shapes', help=f'of the section cluster: {",".join(cluster.SHAPES)}')
    p.add_argument('--sizes', help='of the section cluster: bytes, separated by commas')
    p.add_argument('--rounds', type=int, help='turns of all sides')
    p.add_argument('--python', help='of a PyTorch beside Debian\'s, or in its place')
    p.add_argument('--rows', help=f'of the section race: {",".join(race.ROWS)}; of work: '
                   f'{",".join(work.SERIES)}')
    p.add_argument('--precision', default=','.join(race.PRECISIONS), help='of the section race')
    p.add_argument('--newest', action='store_true', help='the race without Debian\'s PyTorch')
    p.add_argument('--sides', help='of PyTorch in the race: '
                   f'{",".join(name for name, *_ in race.THEIRS)}; or {race.NO_SIDE}')
    p.add_argument('--row-s', type=float, default=0,
                   help='no further round of a row of the race, and no further point of work, '
                   'begins after so many seconds')
    p.add_argument('--picture', help='file in SVG of the race\'s ratios, or of work')
    p.add_argument('sections', nargs='*', default=[], help=', '.join((*sections, *more)))
    args = p.parse_args()
    unknown = set(args.sections) - {*sections, *more}
    if unknown:
        p.error(f'unknown section {sorted(unknown)[0]}: known are {", ".join((*sections, *more))}')
    bench = Bench(args)
    if args.sections != ['page']:
        print('{cpu}, {cores} cores, commit {commit}'.format(**bench.machine))
        bench.record(bench='machine', **bench.machine)
    for section in args.sections or sections:
        getattr(bench, section)()


if __name__ == '__main__':
    main()
