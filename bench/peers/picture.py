"""Small pictures in SVG, in the colours of docs/memory.svg."""
import math
from xml.sax.saxutils import escape

LEFT, WIDTH, LINE, TOP = 150, 700, 24, 46


def bars(path, title, rows):
    """Rows of (name, value, goal or None, limit or 0): a bar each, a line at 1 and a mark at the goal; where
    that is missed, a pale bar goes on to the limit."""
    most = max(max(value, goal or 0) for _, value, goal, _ in rows) * 1.1
    height = TOP + LINE * len(rows) + 30

    def x(value):
        return LEFT + value / most * (WIDTH - LEFT - 60)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
             f'<text x="10" y="24" font-size="15">{escape(title)}</text>']
    for number, (name, value, goal, limit) in enumerate(rows):
        y = TOP + LINE * number
        missed = goal is not None and value < goal
        fill = '#c0504d' if missed else '#2a78b8'
        end = x(max(value, min(limit, most)) if missed else value)
        if missed:
            parts.append(f'<rect x="{x(value):.1f}" y="{y}" width="{end - x(value):.1f}" height="17" '
                         f'fill="#f0d3d2"/>')
        if missed and end - 4 < x(goal) < end + 40:  # the mark is in the way
            end = x(goal)
        end += 6
        parts += [f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
                  f'<rect x="{LEFT}" y="{y}" width="{x(value) - LEFT:.1f}" height="17" fill="{fill}"/>',
                  f'<text x="{end:.1f}" y="{y + 13}">{value:.2f}</text>']
        if goal:
            parts.append(f'<path d="M{x(goal):.1f} {y - 3}v23" stroke="#000" stroke-width="2"/>')
    parts += [f'<path d="M{x(1):.1f} {TOP - 6}v{LINE * len(rows) + 6}" stroke="#888" '
              f'stroke-dasharray="4 3"/>',
              f'<text x="10" y="{height - 8}" font-size="12">mark: goal; pale: what the roof allows where it is '
              f'missed</text>', '</svg>']
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join(parts) + '\n')


ACROSS, UP = 350, 250  # of a panel


def short(value):
    """A count: 16,384, 3.3M, 1.5G."""
    for size, letter in ((1e9, 'G'), (1e6, 'M')):
        if value >= size:
            return f'{value / size:.{1 if value < 10 * size else 0}f}{letter}'
    return f'{value:,.0f}'


def seconds(value):
    return f'{1e3 * value:.3g} ms' if value < 0.9995 else f'{value:.3g} s'


def panel(name, line, left, top):
    """Points (x, y, y of theory) of a series on two logarithmic axes of their own."""
    values = [value for _, *both in line for value in both]
    low, high = min(values), max(max(values), 8 * min(values))
    last = max(line[-1][0], 2 * line[0][0])

    def at(x, y):
        across = math.log(x / line[0][0]) / math.log(last / line[0][0])
        up = math.log(y / low) / math.log(high / low)
        return left + 70 + across * (ACROSS - 100), top + UP - 50 - up * (UP - 100)

    def path(which):
        return 'L'.join('{:.1f} {:.1f}'.format(*at(point[0], point[which])) for point in line)

    parts = [f'<text x="{left + 70}" y="{top + 28}">{escape(name)}</text>',
             f'<path d="M{left + 62} {top + 42}V{top + UP - 42}H{left + ACROSS - 20}" fill="none" '
             f'stroke="#888"/>',
             f'<path d="M{path(2)}" fill="none" stroke="#666" stroke-dasharray="5 4"/>',
             f'<path d="M{path(1)}" fill="none" stroke="#2a78b8" stroke-width="2"/>']
    for x, y, _ in line:
        parts.append('<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="#2a78b8"/>'.format(*at(x, y)))
    for y in (low, high):
        parts.append(f'<text x="{left + 58}" y="{at(line[0][0], y)[1] + 4:.1f}" '
                     f'text-anchor="end">{seconds(y)}</text>')
    ticks = line if len(line) < 5 else [line[0], line[len(line) // 2], line[-1]]
    for x, _, _ in ticks:
        parts.append(f'<text x="{at(x, low)[0]:.1f}" y="{top + UP - 24}" '
                     f'text-anchor="middle">{short(x)}</text>')
    return parts


def curves(path, title, series):
    """Panels of (name, points), two in a row."""
    height = 36 + UP * ((len(series) + 1) // 2)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * ACROSS} {height}" '
             f'font-family="sans-serif" font-size="13">',
             f'<rect width="{2 * ACROSS}" height="{height}" fill="#fff"/>',
             f'<text x="10" y="24" font-size="15">{escape(title)}</text>']
    for number, (name, line) in enumerate(series):
        parts += panel(name, line, ACROSS * (number % 2), 30 + UP * (number // 2))
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join([*parts, '</svg>']) + '\n')
