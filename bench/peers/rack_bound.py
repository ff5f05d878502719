"""The least that the fullest link of a rack carries, one way, in any sum for all in canonical order: arrays.

Any schedule sends sums of blocks of the tree (tessera/comm.h) between racks, some of them to several racks, which then
add them up more than once. With a price for each link, way out and way in, the cheapest schedule of one element costs
a sum over the tree's blocks, by the set of racks that get a block's sum. If prices add up to 1, no schedule has less
than that on its fullest link: it is no more than the average by prices. The prices are searched; any give a bound.

    python3 bench/peers/rack_bound.py RACKS HOSTS     also in parts of what a ring over hosts puts there

Each further rack doubles the time: 2 s for 9, 12 s for 12, 4 minutes for 16 (3 hosts each). Needs numpy."""
import math
import sys

import numpy


def tree(first, count, hosts):
    """Blocks within a rack are a leaf: its number."""
    if first // hosts == (first + count - 1) // hosts:
        return first // hosts
    left = 1
    while left * 2 < count:
        left *= 2
    return tree(first, left, hosts), tree(first + left, count - left, hosts)


def halves(array, rack):
    """Views of an array over sets of racks: the sets without that rack, and the same ones with it."""
    view = array.reshape(-1, 2, 1 << rack)
    return view[:, 0], view[:, 1]


def cheapest(racks, root, price_in, price_out):
    """Cost of the cheapest schedule, and what it puts on each link, in and out."""
    full = (1 << racks) - 1
    order = sorted(range(racks), key=lambda r: price_out[r])
    source = numpy.zeros(full + 1, int)  # of a set, who sends for least
    for r in reversed(order):
        halves(source, r)[1][:] = r
    out = numpy.array(price_out)[source]
    out[0] = math.inf

    def send(cost):
        """cost[racks that add up a sum]: to one more rack after the other, those that send for less first, as they
        then send to the rest. Cost by racks that need it, which others may get too; and how it came there."""
        last, wider = numpy.full(full + 1, -1), numpy.arange(full + 1)
        for r in order:
            have, more = halves(cost, r)
            then = have + price_in[r] + halves(out, r)[0]
            halves(last, r)[1][then < more] = r
            numpy.minimum(more, then, out=more)
        for r in range(racks):
            (need, more), (own, other) = halves(cost, r), halves(wider, r)
            numpy.copyto(own, other, where=more < need)
            numpy.minimum(need, more, out=need)
        return cost, last, wider

    def ways(block):
        if isinstance(block, int):
            cost = numpy.full(full + 1, math.inf)
            cost[1 << block] = 0
            return *send(cost), ()
        parts = ways(block[0]), ways(block[1])
        return *send(parts[0][0] + parts[1][0]), parts

    load = [0] * (2 * racks)

    def count(block, need):
        _, last, wider, parts = block
        have = wider[need]
        while last[have] >= 0:
            load[last[have]] += 1
            have ^= 1 << last[have]
            load[racks + source[have]] += 1
        for part in parts:
            count(part, have)

    block = ways(root)
    count(block, full)
    return block[0][full], load


def rack_bound(racks, hosts, rounds=300):
    """The bound, and what the schedules of the rounds have on their fullest link on average: not below it."""
    root = tree(0, racks * hosts, hosts)
    weight, total, bound = [0.0] * (2 * racks), [0] * (2 * racks), 0.0
    for i in range(1, rounds + 1):
        price = [math.exp(w - max(weight)) for w in weight]
        price = [p / sum(price) for p in price]
        cost, load = cheapest(racks, root, price[:racks], price[racks:])
        assert abs(cost - sum(p * x for p, x in zip(price, load))) < 1e-9, 'the cost is not that of the schedule'
        bound = max(bound, cost)
        weight = [w + 0.3 / math.sqrt(i) * x for w, x in zip(weight, load)]
        total = [t + x for t, x in zip(total, load)]
    return bound, max(total) / rounds


def check():
    """By hand: 2 racks of 2^k hosts send each other one sum; 2 racks of 9 send 2 and 1, or 1 and 4: 7/4 by turns;
    and no bound is above what schedules reach."""
    for racks, hosts, known in ((2, 4, 1), (2, 9, 1.75), (4, 2, 1.5), (3, 4, 4 / 3), (3, 3, 1.75), (3, 5, 2)):
        bound, reached = rack_bound(racks, hosts)
        assert bound <= reached + 1e-9, f'{racks} x {hosts}: bound {bound}, reached {reached}'
        assert abs(bound - known) < 0.02 * known, f'{racks} x {hosts}: bound {bound}, known {known}'


if __name__ == '__main__':
    if sys.argv[1:] == ['--check']:
        check()
        sys.exit(0)
    RACKS, HOSTS = int(sys.argv[1]), int(sys.argv[2])
    LEAST, REACHED = rack_bound(RACKS, HOSTS)
    RING = 2 * (RACKS * HOSTS - 1) / (RACKS * HOSTS)
    print(f'{RACKS} racks of {HOSTS} hosts: {LEAST:.3f} arrays, {LEAST / RING:.2f} times a ring; reached {REACHED:.3f}')
