"""Small pictures in SVG, in the colours of docs/memory.svg."""
import math
from xml.sax.saxutils import escape

LEFT, WIDTH, LINE, TOP = 150, 700, 24, 46


def bars(path, title, rows):
    """Rows of (name, value, goal or None): a bar each, a line at 1 and a mark at the goal."""
    most = max(max(value, goal or 0) for _, value, goal in rows) * 1.1
    height = TOP + LINE * len(rows) + 12

    def x(value):
        return LEFT + value / most * (WIDTH - LEFT - 60)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
             f'<text x="10" y="24" font-size="15">{escape(title)}</text>']
    for number, (name, value, goal) in enumerate(rows):
        y = TOP + LINE * number
        fill = '#c0504d' if goal and value < goal else '#2a78b8'
        parts += [f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
                  f'<rect x="{LEFT}" y="{y}" width="{x(value) - LEFT:.1f}" height="17" fill="{fill}"/>',
                  f'<text x="{x(value) + 6:.1f}" y="{y + 13}">{value:.2f}</text>']
        if goal:
            parts.append(f'<path d="M{x(goal):.1f} {y - 3}v23" stroke="#000" stroke-width="2"/>')
    parts += [f'<path d="M{x(1):.1f} {TOP - 6}v{LINE * len(rows) + 6}" stroke="#888" '
              f'stroke-dasharray="4 3"/>', '</svg>']
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join(parts) + '\n')


COLOURS = ('#0072b2', '#00875f', '#b24f92', '#956600')


def curves(path, title, series):
    """Series of (name, points (x, y, y of theory)), on two logarithmic axes."""
    points = [point for _, line in series for point in line]
    x_most = max(x for x, _, _ in points)
    values = [value for _, *both in points for value in both]
    y_least, y_most = min(values), max(values)
    height = 420

    def at(x, y):
        across = math.log(x) / math.log(x_most)
        up = math.log(y / y_least) / math.log(y_most / y_least)
        return f'{50 + across * (WIDTH - 170):.1f} {height - 30 - up * (height - 90):.1f}'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
             f'<text x="10" y="24" font-size="15">{escape(title)}</text>',
             f'<path d="M50 50V{height - 30}H{WIDTH - 110}" fill="none" stroke="#888"/>']
    for number, (name, line) in enumerate(series):
        for which, dash in ((1, ''), (2, ' stroke-dasharray="5 4"')):
            path_of = 'L'.join(at(point[0], point[which]) for point in line)
            parts.append(f'<path d="M{path_of}" fill="none" stroke="{COLOURS[number]}" '
                         f'stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - 100}" y="{60 + 20 * number}" fill="{COLOURS[number]}">'
                     f'{escape(name)}</text>')
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join([*parts, '</svg>']) + '\n')
