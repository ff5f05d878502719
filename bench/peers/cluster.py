"""All-reduce between hosts of the lab (tests/cluster/README.md), beside the fastest of Open MPI's algorithms.

A section of compare.py. Every side runs in turn in the same lab; a figure is the median of the rounds."""
import os
import statistics
import subprocess

LAB = 'tests/cluster/lab.sh'
# Racks, hosts of a rack, ranks of a host; Mbit/s of a host's link and of a rack's.
SHAPES = {'2x1': (1, 2, 1, 1000, 1000), '4x1': (1, 4, 1, 1000, 1000), '4x2': (1, 4, 2, 1000, 1000),
          '3x2': (1, 3, 2, 1000, 1000), '5x1': (1, 5, 1, 1000, 1000), '6x1': (1, 6, 1, 1000, 1000),
          '2x3x1': (2, 3, 1, 1000, 400), '3x3x1': (3, 3, 1, 1000, 200), '2x5x1': (2, 5, 1, 1000, 400),
          '2x6x1': (2, 6, 1, 1000, 400)}
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
# coll_tuned_allreduce_algorithm, and up to which size it can be the fastest on a link of some hundred Mbit/s.
ALGORITHMS = {'own choice': (0, SIZES[-1]), 'recursive doubling': (3, 256 << 10), 'ring': (4, SIZES[-1]),
              'segmented ring': (5, SIZES[-1]), 'Rabenseifner': (6, SIZES[-1])}


def limit_s(shape, size):
    """What the fullest link takes for the least that it must carry, each way: a host's or a rack's part
    out of it, and the whole back into it."""
    racks, hosts, _, edge, uplink = SHAPES[shape]
    n = racks * hosts
    return 8e-6 * 2 * size * max((n - 1) / n / edge, (racks - 1) / racks / uplink)


def least_of_tree(shape):
    """What no schedule in canonical order undercuts on a rack's link, in parts of a ring's: rack_bound.py."""
    from rack_bound import rack_bound  # numpy, which no other section needs
    racks, hosts = SHAPES[shape][:2]
    n = racks * hosts
    return f'{rack_bound(racks, hosts)[0] / (2 * (n - 1) / n):.2f}' if racks > 1 else ''


class Lab:
    def __init__(self, bench, shape):
        racks, hosts, self.each, edge, uplink = SHAPES[shape]
        self.rack_hosts = hosts
        self.bench = bench
        self.name = bench.lines([LAB, 'up', *map(str, (racks, hosts, edge, uplink))])[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([LAB, 'down', self.name], check=False)

    def ours(self, sizes, order):
        path = f'{self.bench.args.scratch}/lab.jsonl'
        if os.path.exists(path):
            os.remove(path)
        self.bench.lines([LAB, '-l', self.name, 'ranks', str(self.each), 'block', os.path.abspath(
            self.bench.args.tessera), 'bench', 'comm', '--comm', 'tcp', '--operation', 'all_reduce', '--order', order,
            '--rack-hosts', str(self.rack_hosts), '--sizes', ','.join(map(str, sizes)), '--json', path])
        with open(path, encoding='utf-8') as file:
            return {line['bytes']: line['median_us'] / 1e6 for line in self.bench.json(file)
                    if line['operation'] == 'all_reduce'}

    def mpi(self, sizes, algorithm):
        number, most = ALGORITHMS[algorithm]
        words = ['--mca', 'coll_tuned_use_dynamic_rules', '1', '--mca', 'coll_tuned_allreduce_algorithm', str(number)]
        return {line['bytes']: line['seconds'] for line in self.bench.json(self.bench.lines(
            [LAB, '-l', self.name, 'mpi', str(self.each), 'block', *(words if number > 0 else []),
             f'{self.bench.args.scratch}/mpi_reduce', *(str(size) for size in sizes if size <= most)]))}


def cluster(bench):
    print('\nAll-reduce of f32 between hosts of the lab, microseconds. Link: share of the limit of the fullest link '
          'in canonical order. Least: of the bytes of a rack in canonical order, in parts of a ring\'s\n')
    print('| hosts x ranks | size | canonical | fast | canonical / fast | Open MPI | its algorithm | canonical / MPI '
          '| fast / MPI | link | least |')
    print('| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |')
    for shape in bench.args.shapes.split(',') if bench.args.shapes else SHAPES:
        with Lab(bench, shape) as lab:
            cluster_shape(bench, lab, shape)


def cluster_shape(bench, lab, shape):
    sizes = [int(size) for size in bench.args.sizes.split(',')] if bench.args.sizes else SIZES
    names = list(ALGORITHMS)
    least = least_of_tree(shape)
    sides = bench.turns(lambda: lab.ours(sizes, 'canonical'), lambda: lab.ours(sizes, 'fast'),
                        *(lambda name=name: lab.mpi(sizes, name) for name in names))
    for size in sizes:
        canonical, fast, *others = (statistics.median(run[size] for run in side) if size in side[0] else None
                                    for side in sides)
        best, name = min((s, name) for s, name in zip(others, names) if s is not None)
        print(f'| {shape} | {bench.size_text(size)} | {canonical * 1e6:,.0f} | {fast * 1e6:,.0f} | '
              f'{canonical / fast:.2f} | {best * 1e6:,.0f} | {name} | {canonical / best:.2f} | {fast / best:.2f} | '
              f'{limit_s(shape, size) / canonical:.2f} | {least} |', flush=True)
        bench.record(bench='cluster', shape=shape, bytes=size, canonical=canonical, fast=fast,
                     open_mpi=dict(zip(names, others)), limit=limit_s(shape, size))
