"""Scaling with work: the time of a step by parameters, batch, sequence and ranks, beside theory.

Theory is arithmetic: a step takes as long as its products and attention (counted by the engine from
the operations that the model declares), shared by as many cores as ranks use. The slope between two
points is log(t2/t1) / log(x2/x1); a series that rises faster than its FLOPs has some other cost."""
import math

import picture

TURN_S = 1.0
FASTER = 0.10  # in a slope, beyond noise

SMALL = ('configs/models/tiny-gpt.yaml', '--gpt.layers', 2, '--gpt.width', 256)
WIDE = ('configs/models/tiny-gpt.yaml', '--gpt.width', 512, '--gpt.heads', 8, '--gpt.context', 64,
        '--data.length', 64, '--batch-size', 1)
# what is varied: a sentence for the table, the configuration, the option, its values
SERIES = {
    'parameters': ('GPT of width 512, one sequence of 64 tokens, by layers', WIDE, '--gpt.layers',
                   (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    'batch': ('GPT of 2 layers, width 256, sequences of 64 tokens', (*SMALL, '--data.length', 64),
              '--batch-size', (1, 2, 4, 8, 16, 32, 64, 128)),
    'sequence': ('GPT of 2 layers, width 256, one sequence', (*SMALL, '--batch-size', 1),
                 '--data.length', (256, 512, 1024, 2048, 4096, 8192, 16384)),
    'ranks': ('GPT of 2 layers, width 256, 64 sequences of 64 tokens, ddp',
              (*SMALL, '--data.length', 64, '--batch-size', 64), '--ranks',
              (1, 2, 4, 8, 16, 32, 64)),
}


def point(bench, series, value):
    """Record the time of a step, the median of the rounds."""
    _, base, option, _ = SERIES[series]
    words = [bench.args.tessera, 'bench', 'step', *map(str, base), option, str(value), '--ceiling',
             'off']
    if series == 'sequence':
        words += ['--gpt.context', str(value)]
    words += ['--strategies', 'ddp' if series == 'ranks' else 'single']

    def run(steps, repeats):
        line = bench.json(bench.lines([*words, '--steps', str(steps), '--repeats', str(repeats)]))
        return line[-1]

    first = run(4, 1)
    each_s = first['step_us'] / 1e6
    last = run(max(min(int(TURN_S / each_s), 400), 4), 1 if bench.args.quick else bench.rounds)
    x = last['parameters'] if series == 'parameters' else value
    bench.record(bench='work', series=series, x=x, step_s=last['step_us'] / 1e6,
                 flops=last['flops_per_sample'] * last['batch_size'],
                 busy_cores=min(value, bench.cores) if series == 'ranks' else 1, **bench.machine)


def slope(low, high, value):
    return math.log(value(high) / value(low)) / math.log(high['x'] / low['x'])


def theory(line):
    return line['flops'] / line['busy_cores']


def text(series, lines):
    rows = [f'\n{series}: {SERIES[series][0]}\n',
            '| ' + series + ' | step, ms | GFLOP | GFLOP/s | slope | of the work |',
            '| --- | --- | --- | --- | --- | --- |']
    for index, line in enumerate(lines):
        slopes = ['', '']
        if index:
            pair = lines[index - 1], line
            found, due = slope(*pair, lambda at: at['step_s']), slope(*pair, theory)
            slopes = [f'**{found:.2f}**' if found > due + FASTER else f'{found:.2f}', f'{due:.2f}']
        rows.append(f'| {line["x"]:,.0f} | {1e3 * line["step_s"]:,.2f} | {line["flops"] / 1e9:,.2f} '
                    f'| {line["flops"] / line["step_s"] / 1e9:,.1f} | {slopes[0]} | {slopes[1]} |')
    return '\n'.join(rows)


def work(bench):
    for series, (_, _, _, values) in SERIES.items():
        if bench.args.rows and series not in bench.args.rows.split(','):
            continue
        for value in values[:3] if bench.args.quick else values:
            point(bench, series, value)
        print(text(series, [line for line in bench.records
                            if line['bench'] == 'work' and line['series'] == series]), flush=True)
    if bench.args.picture:
        draw(bench)


def draw(bench):
    """Each series as times relative to its first point, with what its work would give."""
    lines = []
    for series in SERIES:
        points = [line for line in bench.records
                  if line['bench'] == 'work' and line['series'] == series]
        if points:
            first = points[0]
            lines.append((series, [(at['x'] / first['x'], at['step_s'] / first['step_s'],
                                    theory(at) / theory(first)) for at in points]))
    picture.curves(bench.args.picture, 'Time of a step, and of its arithmetic (dashed), both axes '
                   'relative to the first point', lines)
