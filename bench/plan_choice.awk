# How near the choices of plans are to the best of what was trained in turns; for plan_accuracy.sh, stage choice.
#
# *.chosen: the layout that plan --try chose. *.rounds: layout SEARCH.K, round, seconds of a step. Layouts are compared
# within rounds: each has the median, over the rounds, of its time by the round's median, and the best is the one with
# the least. A choice has the median of its time by the best one's of the same round, and the interval between two
# ranks of these ratios that has the true median in 9 of 10 cases or more, whatever their distribution (eight rounds:
# second least to second largest, 93 %). The best was found by the same rounds, so ratios err upwards.

function sort_values(value, count,    i, j, v) {
    for (i = 2; i <= count; i++) {
        v = value[i]
        for (j = i - 1; j > 0 && value[j] > v; j--)
            value[j + 1] = value[j]
        value[j + 1] = v
    }
}

# Of value[1 .. count], which it sorts.
function median(value, count) {
    sort_values(value, count)
    return (value[int((count + 1) / 2)] + value[int(count / 2) + 1]) / 2
}

# The rank from below of the interval's lower end.
function interval_rank(count,    rank, tail, part) {
    part = tail = 0.5 ^ count
    for (rank = 1; rank < count / 2; rank++) {
        part *= (count - rank + 1) / rank
        if (2 * (tail + part) > 0.1)
            break
        tail += part
    }
    return rank
}

# The layout with the least share of rounds with `round % 2 != skip` (skip 2: of all); share[layout] is filled in.
function best_of(search, skip, share,    l, r, n, name, value, best, pace) {
    best = ""
    for (r = 1; r <= rounds[search]; r++) {
        n = 0
        for (l = 1; l <= layouts[search]; l++)
            value[++n] = step[layout[search, l], r]
        pace[r] = median(value, n)
    }
    for (l = 1; l <= layouts[search]; l++) {
        name = layout[search, l]
        n = 0
        for (r = 1; r <= rounds[search]; r++)
            if (r % 2 != skip)
                value[++n] = step[name, r] / pace[r]
        share[name] = median(value, n)
        if (best == "" || share[name] < share[best])
            best = name
    }
    return best
}

# Sets ratio, low and high of a choice by the best.
function compare(search, name, best,    r, value, rank) {
    for (r = 1; r <= rounds[search]; r++)
        value[r] = step[name, r] / step[best, r]
    ratio = median(value, rounds[search])
    rank = interval_rank(rounds[search])
    low = value[rank]
    high = value[rounds[search] + 1 - rank]
}

# Of a choice of kind `kind`: the text, and counts.
function judge(kind, search, name, best) {
    if (!((name, 1) in step))
        return "none"
    compare(search, name, best)
    near[kind] += ratio <= 1.03
    may_be[kind] += low <= 1.03
    sure[kind] += high <= 1.03
    return sprintf("x %.3f [%.3f, %.3f]", ratio, low, high)
}

FILENAME ~ /chosen$/ && NF == 1 {
    search = FILENAME
    sub(/\.chosen$/, "", search)
    chosen[search] = $1
}

FILENAME ~ /rounds$/ && NF == 3 {
    search = FILENAME
    sub(/\.rounds$/, "", search)
    if (!($1 in turns))
        layout[search, ++layouts[search]] = $1
    turns[$1]++
    step[$1, $2] = $3
    if ($2 > rounds[search])
        rounds[search] = $2
}

END {
    for (search in rounds) {
        kept = 0
        for (l = 1; l <= layouts[search]; l++) # one that failed in a round is not compared
            if (turns[layout[search, l]] == rounds[search])
                layout[search, ++kept] = layout[search, l]
            else
                delete step[layout[search, l], 1]
        layouts[search] = kept
        if (kept < 2 || rounds[search] < 2)
            continue
        best = best_of(search, 2, share)
        first = judge("first", search, search ".1", best)
        tried = judge("tried", search, chosen[search], best)
        printf "%-26s best is %s; first %s, with --try %s\n", search, substr(best, length(search) + 2), first, tried \
            | "sort"
        count++
        for (skip = 0; skip < 2; skip++) { # the best of one half of the rounds, by the other half
            best = best_of(search, skip, share)
            best_of(search, 1 - skip, other)
            least = best
            for (l = 1; l <= kept; l++)
                if (other[layout[search, l]] < other[least])
                    least = layout[search, l]
            repeats += other[best] <= 1.03 * other[least]
        }
    }
    close("sort")
    for (i = 1; i <= 2; i++) {
        kind = i == 1 ? "first" : "tried"
        printf "%s: within 3 %% of the best in %d of %d searches by the median; in %d the interval begins there, ", \
            i == 1 ? "first layouts" : "with --try", near[kind], count, may_be[kind]
        printf "in %d it ends there\n", sure[kind]
    }
    printf "the best of every other round is within 3 %% of the best of the others in %d of %d halves\n", repeats, 2 * count
}
