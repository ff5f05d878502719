"""Scaling with work: the time of a step by parameters, batch, sequence and ranks, beside theory.

Theory is arithmetic: a step takes as long as its products and attention (counted by the engine from
the operations that the model declares), shared by as many cores as ranks use. The slope between two
points is log(t2/t1) / log(x2/x1); a series that rises faster than its FLOPs has some other cost."""
import math
import time

import picture

TURN_S = 0.2
FASTER = 0.10  # in a slope, beyond noise

SMALL = ('configs/models/tiny-gpt.yaml', '--gpt.layers', 2, '--gpt.width', 256)
# SGD without momentum, 8 bytes a parameter: 1.5 billion take 12 GB
WIDE = ('configs/models/tiny-gpt.yaml', '--gpt.width', 512, '--gpt.heads', 8, '--gpt.context', 64,
        '--data.length', 64, '--batch-size', 1, '--optimizer', 'sgd', '--momentum', 0,
        '--weight-decay', 0)
# what is varied: a sentence for the table, the configuration, the option, its values
SERIES = {
    'parameters': ('GPT of width 512, one sequence of 64 tokens, by layers; SGD', WIDE,
                   '--gpt.layers', (1, 4, 16, 64, 256, 480)),
    'batch': ('GPT of 2 layers, width 256, sequences of 64 tokens', (*SMALL, '--data.length', 64),
              '--batch-size', (1, 2, 4, 8, 16, 32, 64, 128)),
    'sequence': ('GPT of 2 layers, width 256, one sequence', (*SMALL, '--batch-size', 1),
                 '--data.length', (256, 512, 1024, 2048, 4096, 8192, 16384)),
    'ranks': ('GPT of 2 layers, width 256, 64 sequences of 64 tokens, ddp; 1 rank has a thread for '
              'each core', (*SMALL, '--data.length', 64, '--batch-size', 64), '--ranks',
              (1, 2, 4, 8, 16, 32, 64)),
}


def point(bench, series, value):
    """Record the time of a step: the best of some runs, which others on the machine disturb least;
    of one where a step is long."""
    _, base, option, _ = SERIES[series]
    words = [bench.args.tessera, 'bench', 'step', *map(str, base), option, str(value), '--ceiling',
             'off']
    if series == 'sequence':
        words += ['--gpt.context', str(value)]
    words += ['--strategies', 'ddp' if series == 'ranks' and value > 1 else 'single']

    def run(steps, repeats):
        line = bench.json(bench.lines([*words, '--steps', str(steps), '--repeats', str(repeats)]))
        return line[-1]

    last = run(4, 1)
    each_s = last['step_us'] / 1e6
    if 4 * each_s < TURN_S:
        last = run(min(int(TURN_S / each_s), 400), 1 if bench.args.quick else 2 * bench.rounds)
    cores = min(last['ranks'] * last['threads'], bench.cores)
    bench.record(bench='work', series=series, value=value,
                 x=last['parameters'] if series == 'parameters' else value,
                 step_s=last['batch_size'] / last['samples_per_s_max'],
                 flops=last['flops_per_sample'] * last['batch_size'], busy_cores=cores,
                 **bench.machine)


def found(bench, series):
    """The points of the series, each as it was measured last."""
    latest = {line['value']: line for line in bench.records
              if line['bench'] == 'work' and line['series'] == series}
    return [latest[value] for value in sorted(latest)]


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
            rise, due = slope(*pair, lambda at: at['step_s']), slope(*pair, theory)
            slopes = [f'**{rise:.2f}**' if rise > due + FASTER else f'{rise:.2f}', f'{due:.2f}']
        rows.append(f'| {line["x"]:,.0f} | {1e3 * line["step_s"]:,.2f} | {line["flops"] / 1e9:,.2f} '
                    f'| {line["flops"] / line["step_s"] / 1e9:,.1f} | {slopes[0]} | {slopes[1]} |')
    return '\n'.join(rows)


def work(bench):
    """Measure what --out does not have yet, short steps first, while --row-s lets points begin."""
    chosen = [series for series in SERIES
              if not bench.args.rows or series in bench.args.rows.split(',')]
    end_s = time.monotonic() + (bench.args.row_s or math.inf)
    points = []
    for series in chosen:
        values = SERIES[series][3][:3] if bench.args.quick else SERIES[series][3]
        have = {line['value'] for line in found(bench, series)}
        points += [(place, series, value) for place, value in enumerate(values)
                   if value not in have]
    for _, series, value in sorted(points):
        if time.monotonic() < end_s:
            point(bench, series, value)
    for series in chosen:
        if found(bench, series):
            print(text(series, found(bench, series)), flush=True)
    if bench.args.picture:
        draw(bench)


def draw(bench):
    """Each series beside what its work alone would give, from its first point on."""
    lines = []
    for series in SERIES:
        points = found(bench, series)
        if points:
            scale = points[0]['step_s'] / theory(points[0])
            lines.append((series, [(at['x'], at['step_s'], scale * theory(at)) for at in points]))
    picture.curves(bench.args.picture, 'Time of a step (line) and what its arithmetic alone gives '
                   'from the first point on (dashed)', lines)
