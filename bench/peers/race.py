"""The race: Tessera in four layouts beside every way in which PyTorch trains the same model here.

A first turn of all sides finds PyTorch's fastest; these and Tessera's then take turns until their
medians stand. Lines of the result have all turns; the page is made from lines, also of several runs."""
import datetime
import json
import math
import statistics
import sys
import textwrap
import time

import peer
import picture

TURN_S = 1.5      # of measured steps
NEAR = 1.1        # those so near the fastest run again
ROUNDS_MAX = 7    # for sides whose turns differ by more than NOISE
NOISE, STANDS = 0.10, 0.02
LONG_S = 5        # a step of so long is a turn
ROOFS = 3         # of the first turns, each measures its roof; where a step is a turn, once
ROOM = 100        # free bytes a parameter with which a side of PyTorch may wait while others take their turns
LENGTH = 256      # tokens of a sequence

GPT = ('--data.length', LENGTH, '--clip', 0)
# model, configuration, batch, options of Tessera, goal beside the best PyTorch by precision
ROWS = {
    'mlp-128': ('mlp', 'configs/labs/fashion_mlp.yaml', 128, (), {'f32': 1.5, 'bf16': 1.5}),
    'mlp-512': ('mlp', 'configs/labs/fashion_mlp.yaml', 512, (), {'f32': 1.5, 'bf16': 1.5}),
    'cnn-128': ('cnn', 'configs/labs/fashion_cnn.yaml', 128, (), {'f32': 1.8, 'bf16': 1.5}),
    'wrn-128': ('wrn', 'configs/labs/fashion_wrn.yaml', 128, (), {}),
    'gpt-21m': ('gpt-21m', 'configs/models/gpt-21m.yaml', 4, GPT, {'f32': 1.3, 'bf16': 1.4}),
    'gpt-124m': ('gpt-124m', 'configs/models/gpt2-124m.yaml', 4, GPT, {'f32': 1.3, 'bf16': 1.4}),
    'llama-160m': ('llama-160m', 'configs/models/llama-160m.yaml', 4, GPT, {}),
}
PRECISIONS = ('f32', 'bf16')
# name, strategy, ranks; ranks share the cores, one rank has them all
OURS = (('ddp 2', 'ddp', 2), ('fsdp 2', 'fsdp', 2), ('ddp 4', 'ddp', 4), ('1 rank', 'single', 1))
# name, layout, ranks, compiled; the same of Debian's PyTorch, which has only some
THEIRS = (('one', 'one', 1, False), ('one compiled', 'one', 1, True), ('DDP 2', 'ddp', 2, False),
          ('DDP 2 compiled', 'ddp', 2, True), ('FSDP2 2', 'fsdp2', 2, False),
          ('DDP 4', 'ddp', 4, False))
DEBIANS = ('one', 'DDP 2')
BESIDE = ' f32'  # behind the name of a side that is in f32 in a row of bf16
LATE = 'no time'
NO_SIDE = 'none'  # of PyTorch: Tessera's layouts alone
# Beside PyTorch's one process; one rank beside ddp 2; ddp 4 and fsdp 2 likewise; share of the
# products' speed.
GOAL_ONE, GOAL_THREADS, GOAL_FOUR, GOAL_FSDP = 1.3, 0.97, 0.90, 0.95
GOAL_SHARE = {'gpt-21m': 0.85, 'gpt-124m': 0.90}


class Ours:
    """Each turn is a run of its own, whose start is not measured."""

    def __init__(self, bench, row, precision, strategy, ranks):
        _, config, batch, options, _ = ROWS[row]
        self.bench, self.batch = bench, batch
        self.roofs, self.ceiling, self.ceiling_precision = [], None, None
        self.words = ['bench', 'step', config, '--strategies', strategy, '--ranks', ranks,
                      '--threads', max(bench.cores // ranks, 1), '--precision', precision,
                      '--batch-size', batch, '--repeats', 1, *options]
        self.large = False  # nothing is kept between turns

    def start(self):
        return {}

    def step_s(self, steps):
        asks = len(self.roofs) < (ROOFS if steps > 1 else 1)
        words = [*self.words, '--steps', max(steps * 4 // 3, 4), '--ceiling', 'on' if asks else 'off']
        line = self.bench.json(self.bench.lines([self.bench.args.tessera, *map(str, words)]))[-1]
        if asks:
            self.roofs.append(line.get('roof_samples_per_s'))
            self.ceiling = self.ceiling or line.get('ceiling_samples_per_s')
            self.ceiling_precision = line.get('ceiling_precision')
        return self.batch / line['samples_per_s']

    def stop(self):
        pass


class Theirs(peer.Torch):
    def __init__(self, bench, row, precision, python, layout, ranks, compiled):
        model, _, batch, _, _ = ROWS[row]
        options = ['--model', model, '--batch', batch, '--precision', precision, '--layout', layout,
                   '--ranks', ranks, *(['--compile'] if compiled else [])]
        super().__init__(python, max(bench.cores // ranks, 1), *options)

    def start(self):
        about = super().start()
        with open('/proc/meminfo', encoding='ascii') as file:
            free = next(1024 * int(line.split()[1]) for line in file if line.startswith('MemAvailable'))
        self.large = free < ROOM * about['parameters']
        return about


class Side:
    """One of those that take turns: how it is run, and what its turns took."""

    def __init__(self, name, how, turn_s, layout=None, precision=None):
        self.name, self.how, self.turn_s = name, how, turn_s
        self.layout, self.precision = layout, precision
        self.about, self.turns, self.steps, self.failed = {}, [], 0, None
        self.ready = False

    def turn(self, until=None):
        """PyTorch's is given up at `until`, of the monotonic clock."""
        self.how.until = until
        try:
            if not self.ready:
                self.about = self.how.start()
            self.steps = self.steps or self.turn_steps()
            self.turns.append(self.how.step_s(self.steps))
            print(f'{self.name}: {1e3 * self.turns[-1]:,.2f} ms a step', file=sys.stderr, flush=True)
            self.ready = not self.how.large
            if not self.ready:
                self.how.stop()
        except peer.LateError:
            self.leave(LATE)
        except peer.PeerError as error:
            print(error, file=sys.stderr)
            self.leave(str(error).strip().splitlines()[-1])  # the rest has paths of this machine

    def turn_steps(self):
        """As many as fill a turn; two at least, but one where it is long."""
        step_s = self.about.get('warm_step_s') or self.how.step_s(2)
        return max(int(self.turn_s / step_s), 2 if step_s < LONG_S else 1)

    def leave(self, why):
        print(f'left out: {self.name}: {why}', file=sys.stderr, flush=True)
        self.failed, self.ready = why, False

    @property
    def median_s(self):
        return statistics.median(self.turns)

    def stands(self):
        """Its turns are alike, or the last one moved the median next to nothing."""
        if (max(self.turns) - min(self.turns)) / self.median_s <= NOISE:
            return True
        return abs(statistics.median(self.turns[:-1]) / self.median_s - 1) <= STANDS


def ours_of(bench, row, precision):
    return [Side(name, Ours(bench, row, precision, strategy, ranks), bench.turn_s)
            for name, strategy, ranks in OURS]


def theirs_of(bench, row, precision, beside=''):
    """PyTorch's sides in one precision; `beside`: what is behind their names in a row of another."""
    sides = []
    for python, torch in bench.pythons.items():
        for name, layout, ranks, compiled in THEIRS:
            if name in bench.sides and (python != peer.DEBIAN or name in DEBIANS):
                sides.append(Side(f'{torch} {name}{beside}',
                                  Theirs(bench, row, precision, python, layout, ranks, compiled),
                                  bench.turn_s, layout, precision))
    return sides


def f32_beside(bench, row):
    """PyTorch's sides in f32 for a row of bf16: those that were near the fastest in the row of f32, if
    this run has measured it, else all."""
    sides = theirs_of(bench, row, 'f32', BESIDE)
    near = bench.near_f32.get(row)
    return [side for side in sides if side.name.removesuffix(BESIDE) in near] if near else sides


def first_turns(groups, row_s):
    """Groups are of one precision each; the faster one is that whose first side is. With a row's time the
    first side of the second group has twice what the first of all took: if it needs longer, the group is
    slower, and left out. Else the slower one's sides have half of the row's time."""
    def turn(side, until=None):
        if until and time.monotonic() > until:
            side.leave(LATE)
            return
        side.turn(until)
        side.how.stop()
        side.ready = False

    begin = time.monotonic()
    until = begin + row_s / 2 if row_s else None
    turn(groups[0][0])
    for group in groups[1:]:
        turn(group[0], until and 3 * time.monotonic() - 2 * begin)
    groups.sort(key=lambda group: group[0].median_s if group[0].turns else math.inf)
    for group in groups:
        for side in group[1:]:
            if group[0].failed == LATE:
                side.leave(LATE)
            else:
                turn(side, until if group is not groups[0] else None)


def finalists(theirs):
    """At most the two fastest of all and the two fastest of one process, if they are near."""
    def near(sides):
        sides = sorted(sides, key=lambda side: side.median_s)[:2]
        return [side for side in sides if side.median_s <= NEAR * sides[0].median_s]

    well = [side for side in theirs if side.turns and not side.failed]
    chosen = near(well) + near([side for side in well if side.layout == 'one'])
    return [side for side in well if side in chosen]


def race_row(bench, row, precision):
    begin, row_s = time.monotonic(), bench.args.row_s
    ours = ours_of(bench, row, precision)
    how = {side.name: side.how for side in ours}
    groups = [theirs_of(bench, row, precision)]
    if precision != 'f32':
        groups.insert(0, f32_beside(bench, row))
    theirs = [side for group in groups for side in group]
    if theirs:
        first_turns(groups, row_s)
    for side in ours:
        side.turn()
    final = finalists(theirs)
    for count in range(1, 1 if bench.args.quick else max(ROUNDS_MAX, bench.rounds)):
        late = 0 < row_s < time.monotonic() - begin
        if late or count >= bench.rounds and all(side.stands() for side in ours + final):
            break
        for side in ours + final:
            side.turn()
    for side in final:
        side.how.stop()
    if precision == 'f32':
        bench.near_f32[row] = [side.name for side in final]
    bench.record(bench='race', row=row, precision=precision, batch=ROWS[row][2],
                 date=datetime.date.today().isoformat(), **bench.machine,
                 ceiling_samples_per_s=how['ddp 2'].ceiling,
                 ceiling_precision=how['ddp 2'].ceiling_precision,
                 roofs={name: side.roofs for name, side in how.items()},
                 ours={side.name: side.turns for side in ours},
                 theirs={side.name: {'layout': side.layout, 'precision': side.precision,
                                     'version': side.about.get('version'), 'turns': side.turns,
                                     'failed': side.failed} for side in theirs})


def named(what, words, known, more=''):
    """Those of a list of words, or all; ends the program at an unknown one."""
    names = words.split(',') if words else list(known)
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f'unknown {what} {unknown[0]}: known are {", ".join(known)}{more}')
    return names


def race(bench):
    rows = named('row', bench.args.rows, ROWS)
    wanted = named('precision', bench.args.precision, PRECISIONS)
    bench.sides = [] if bench.args.sides == NO_SIDE else named(
        'side', bench.args.sides, [name for name, *_ in THEIRS], f', or {NO_SIDE} alone')
    pythons = [bench.args.python] if bench.args.python else []
    if not bench.args.newest:
        pythons.append(peer.DEBIAN)
    bench.pythons = {path: version for path in pythons if (version := peer.version(path))}
    if bench.sides and not bench.pythons:
        sys.exit('there is no PyTorch: apt-get install python3-torch, or, for the newest, python3 -m venv V; '
                 'V/bin/pip install torch numpy; bench/peers.sh --python V/bin/python race')
    bench.turn_s = 0.2 if bench.args.quick else TURN_S
    bench.near_f32 = {}
    for row in rows:
        for precision in wanted:
            race_row(bench, row, precision)
            print(Row(bench.records[-1]).text(), flush=True)
    print('\n' + page(bench.records, bench.args.picture))


# ---- the page ----------------------------------------------------------------------------------

class Row:
    """What the lines of one row say: samples, or tokens, a second."""

    def __init__(self, line):
        self.line = line
        self.row, self.precision = line['row'], line['precision']
        self.model, _, self.batch, options, goals = ROWS[self.row]
        unit = self.batch * (LENGTH if options else 1)
        self.ours = {name: unit / statistics.median(turns) for name, turns in line['ours'].items()}
        self.theirs = {name: unit / statistics.median(side['turns'])
                       for name, side in line['theirs'].items() if side['turns']}
        self.goal = goals.get(self.precision)
        # Of either precision in a row of bf16, as a person would choose.
        self.best = self.fastest(self.theirs)
        self.one = self.fastest([name for name in self.theirs
                                 if line['theirs'][name]['layout'] == 'one'])
        self.by_precision = {precision: self.fastest([name for name in self.theirs
                                                      if self.precision_of(name) == precision])
                             for precision in PRECISIONS}
        each = LENGTH if options else 1
        self.ceiling = each * (line['ceiling_samples_per_s'] or 0)
        # Of each layout one for each of the first turns. Lines of older versions have one of two layouts, or none.
        roofs = line.get('roofs') or {'ddp 2': [line.get('roof_samples_per_s')],
                                      'ddp 4': [line.get('roof_four_samples_per_s')]}
        self.turn_roofs = {name: [each * roof for roof in turns] for name, turns in roofs.items() if all(turns)}
        self.roofs = {name: statistics.median(turns) for name, turns in self.turn_roofs.items() if turns}
        self.roof = max(self.roofs.values(), default=self.ceiling)
        self.ratio = max(self.ours.values()) / self.theirs[self.best] if self.best else None

    def fastest(self, names):
        return max(names, key=self.theirs.get, default=None)

    def precision_of(self, name):
        return self.line['theirs'][name].get('precision', self.precision)  # older lines have none

    @property
    def name(self):
        return f'{self.row} {self.precision}'

    def by_ddp(self, name):
        """A layout beside ddp 2, with its goal and the limit of their roofs: medians of the ratios of turns, since
        those of one round lie near in time."""
        goal = {'1 rank': GOAL_THREADS, 'ddp 4': GOAL_FOUR, 'fsdp 2': GOAL_FSDP}[name]

        def ratio(ours, ddp):
            return statistics.median(mine / its for mine, its in zip(ours, ddp)) if ours and ddp else None

        turns = self.line['ours']
        return judged(ratio(turns['ddp 2'], turns[name]), goal,
                      ratio(self.turn_roofs.get(name), self.turn_roofs.get('ddp 2')))

    def text(self):
        ours = ', '.join(f'{name} {short(speed)}' for name, speed in self.ours.items())
        return f'{self.name}: {ours}' + (f'; {self.best} {short(self.theirs[self.best])}' if self.best else '')

    @staticmethod
    def noisy(turns):
        return (max(turns) - min(turns)) / statistics.median(turns) > NOISE


def table(head, rows):
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines) + '\n'


def short(number):
    return f'{number:,.0f}'


def judged(value, goal, limit=None):
    """A figure with its goal; one that misses it is bold, with what the machine's limit allows."""
    if goal is None:
        return f'{value:.2f}'
    if value >= goal:
        return f'{value:.2f} ({goal})'
    return f'**{value:.2f}** ({goal}{f"; {limit:.2f}" if limit and limit < goal else ""})'


def label(name):
    """'2.15.0+cu132 one compiled' as '2.15 one c.'."""
    version, _, side = name.partition(' ')
    return '.'.join(version.split('.')[:2]) + ' ' + side.replace('compiled', 'c.')


def speeds(rows):
    names = [name for name, _, _ in OURS]
    return table(['row', 'precision', *names, 'best PyTorch', 'which', 'ratio'],
                 [[row.row, row.precision, *(short(row.ours[name]) for name in names),
                   short(row.theirs[row.best]), label(row.best), f'{row.ratio:.2f}'] for row in rows])


def peers(rows):
    names = list(dict.fromkeys(name.removesuffix(BESIDE) for row in rows for name in row.theirs))
    lines = []
    for row in rows:
        for what, suffix in ((row.precision, ''), (f'f32 beside {row.precision}', BESIDE)):
            cells = [row.theirs.get(name + suffix) for name in names]
            if any(cells):
                lines.append([row.row, what, *(short(cell) if cell else '' for cell in cells)])
    return table(['row', '', *map(label, names)], lines)


def precisions(rows):
    """Which precision is PyTorch's faster one in rows of bf16."""
    def said(row):
        speed = {precision: row.theirs[name] for precision, name in row.by_precision.items() if name}
        fast, *slow = sorted(speed, key=speed.get, reverse=True)
        return [f'{fast}, {speed[fast] / speed[slow[0]]:.1f} times as fast as {slow[0]}' if slow
                else f'{fast} alone']

    low = [row for row in rows if row.precision != 'f32']
    return (f'Best PyTorch is of either precision in rows of bf16, in which it also runs in f32, since a person '
            f'takes the faster one. That is: {listed(low, said)}.')


def goals(rows):
    lines = []
    for row in rows:
        best, one = row.theirs.get(row.best), row.theirs.get(row.one)
        share = max(row.ours.values()) / row.ceiling if row.ceiling else None
        lines.append([
            row.row, row.precision, judged(row.ratio, row.goal, row.roof / best) if best else '',
            judged(row.ours['1 rank'] / one, GOAL_ONE, row.roofs.get('1 rank', row.roof) / one)
            if one else '', row.by_ddp('1 rank'), row.by_ddp('ddp 4'), row.by_ddp('fsdp 2'),
            judged(share, GOAL_SHARE.get(row.row), row.roof / row.ceiling) if share else '',
            f'{max(row.ours.values()) / row.roof:.2f}' if share else ''])
    return table(['row', '', 'by best', '1 rank by one',
                  '1 rank by ddp 2', 'ddp 4 by ddp 2', 'fsdp 2 by ddp 2', 'of products', 'of roof'],
                 lines)


def filled(text):
    return textwrap.fill(text, 118) + '\n'


def listed(rows, names_of):
    return '; '.join(f'{row.name} ({", ".join(names_of(row))})' for row in rows
                     if names_of(row)) or 'none'


def page(records, path=None):
    """Markdown; of several lines of a row the latest counts, of those with PyTorch and of those without. A picture
    goes to `path`."""
    try:
        latest = {(row.row, row.precision, row.best is not None): row
                  for row in (Row(line) for line in records if line['bench'] == 'race')}
    except KeyError as error:
        sys.exit(f'a line of a race in these files has no {error}, or one that is unknown')
    every = [latest[key] for beside in (True, False) for name in ROWS for precision in PRECISIONS
             if (key := (name, precision, beside)) in latest]
    rows = [row for row in every if row.best]
    if not every:
        sys.exit('there are no lines of a race in these files')
    if path and not rows:
        sys.exit('a picture needs lines with PyTorch\'s figures; there are none in these files')
    if path:
        picture.bars(path, 'Best of Tessera by the best of PyTorch, same cores, same minutes',
                     [(row.name, row.ratio, row.goal, row.roof / row.theirs[row.best]) for row in rows])
    where = sorted({f'{row.line["cpu"]}, {row.line["cores"]} cores, {row.line["date"]}, commit '
                    f'{row.line["commit"]}' for row in every})

    def left_out(late):
        return listed(every, lambda row: [name for name, side in row.line['theirs'].items()
                                          if side['failed'] and (side['failed'] == LATE) == late])

    noisy = listed(every, lambda row: [name for name, turns in row.line['ours'].items()
                                       if row.noisy(turns)])
    other = [row.name for row in every
             if row.line.get('ceiling_precision') not in (None, row.precision)]
    return '\n'.join(
        ['; '.join(where) + '\n',
         *(['Images or tokens a second:\n', speeds(rows), filled(precisions(rows)),
            'Every PyTorch, by medians of its turns (c.: compiled):\n', peers(rows)] if rows else []),
         'Ratios, with their goals; bold ones miss it, and have what the roofs would give\n',
         goals(every),
         *([filled('oneDNN has no products of the row\'s precision on this processor, and the faster of the '
                   f'row\'s own and those in f32 are the products of: {", ".join(other)}.')]
           if other else []),
         filled(f'Turns of Tessera that differ by more than 10 %: {noisy}.'),
         filled(f'Sides that failed: {left_out(False)}.'),
         filled(f'Sides of the slower precision that had no time (--row-s): {left_out(True)}.')])


def read(paths):
    lines = []
    for path in paths:
        with open(path, encoding='utf-8') as file:
            for number, line in enumerate(file, 1):
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    sys.exit(f'{path}: line {number} is not JSON')
    return lines
