"""The least that the fullest link of a rack carries, one way, in any sum for all in canonical order: arrays.

Any schedule sends sums of blocks of the tree (tessera/comm.h) between racks, some of them to several racks, which then
add them up more than once. With a price for each link, way out and way in, the cheapest schedule of one element costs
a sum over the tree's blocks, by the set of racks that get a block's sum. If prices add up to 1, no schedule has less
than that on its fullest link: it is no more than the average by prices. The prices are searched; any give a bound.

    python3 bench/peers/rack_bound.py RACKS HOSTS     also in parts of what a ring over hosts puts there"""
import math
import sys


def tree(first, count, hosts):
    """Blocks within a rack are a leaf: its number."""
    if first // hosts == (first + count - 1) // hosts:
        return first // hosts
    left = 1
    while left * 2 < count:
        left *= 2
    return tree(first, left, hosts), tree(first + left, count - left, hosts)


def cheapest(racks, root, price_in, price_out):
    """Cost of the cheapest schedule, and what it puts on each link, in and out."""
    full = (1 << racks) - 1
    members = [[r for r in range(racks) if s >> r & 1] for s in range(full + 1)]
    source = [min(m, key=lambda r: price_out[r], default=0) for m in members]

    def sends(have, want):
        """From racks that have a sum to others: first to the one that passes it on for the least."""
        need = want & ~have
        if need == 0:
            return 0.0
        first = price_out[source[have]]
        return (sum(price_in[r] for r in members[need]) + first +
                (len(members[need]) - 1) * min(first, price_out[source[need]]))

    def best(have, want):
        """By way of one more rack, if that costs less."""
        return min((sends(have, have | want | 1 << r), have | want | 1 << r) for r in range(racks))

    move = [[best(have, want) if have else None for want in range(full + 1)] for have in range(full + 1)]

    def cost(block):
        """[racks that get its sum]: cost, racks that add it up; and the same of both parts."""
        if isinstance(block, int):
            return [None] + [(move[1 << block][want][0], 1 << block) for want in range(1, full + 1)], None
        parts = cost(block[0]), cost(block[1])
        here = [None] + [parts[0][0][have][0] + parts[1][0][have][0] for have in range(1, full + 1)]
        return [None] + [min((here[have] + move[have][want][0], have) for have in range(1, full + 1))
                         for want in range(1, full + 1)], parts

    load = [0] * (2 * racks)

    def count(costs, want):
        have = costs[0][want][1]
        need = move[have][want][1] & ~have
        if need:
            hub = min((source[have], source[need]), key=lambda r: price_out[r])
            load[racks + source[have]] += 1
            load[racks + hub] += len(members[need]) - 1
            for rack in members[need]:
                load[rack] += 1
        for part in costs[1] or ():
            count(part, have)

    costs = cost(root)
    count(costs, full)
    return costs[0][full][0], load


def rack_bound(racks, hosts, rounds=300):
    """The bound, and what the schedules of the rounds have on their fullest link on average: not below it."""
    root = tree(0, racks * hosts, hosts)
    weight, total, bound = [0.0] * (2 * racks), [0] * (2 * racks), 0.0
    for i in range(1, rounds + 1):
        price = [math.exp(w - max(weight)) for w in weight]
        price = [p / sum(price) for p in price]
        cost, load = cheapest(racks, root, price[:racks], price[racks:])
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
