#!/usr/bin/env bash
# test_order.sh TESSERA CONFIGS [--json]: what the order of ranks is worth. A ring's all-reduce over racks with slow
# uplinks, with ranks as a careless launcher numbers them and in the orders that Tessera chooses by itself: by
# a topology file, and by measuring the network. Each ratio is of medians of one run; a case that misses its
# bound is run once more, and both are printed.
#
# What to expect: a ring that crosses between racks c times in each direction gets 1/c of the uplink.
#
#     2 racks x 2 hosts x 2 ranks   chosen 0 1 | 2 3 || 4 5 | 6 7: 1      interleaved: 4      ratio 4 to 4.67
#     2 racks x 2 hosts x 1 rank    chosen 0 1 || 2 3: 1                  interleaved: 2      ratio 2
#     2 racks x 2 hosts x 1 rank, uplinks five times as fast as edges: every hop takes an edge, ratio 1
#
# 4.67: where ranks of a host follow each other, hosts add up first, and an uplink carries 2 (4 - 1) / 4 of the
# bytes in place of 2 (8 - 1) / 8.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_order.sh TESSERA CONFIGS [--json]} configs=${2:?}

# median RANKS-PER-HOST ORDER OPTION...: milliseconds of a training step that is all-reduce but for 1 % or so:
# one image a rank, and a gradient of `bytes`. Of `steps`, after 2 that connect and warm up.
median()
{
    local each=$1 order=$2 run=$LAB_DIR/order
    shift 2
    rm -rf "$run"
    ./lab.sh ranks "$each" "$order" "$tessera" train "$configs/labs/fashion_mlp.yaml" --mlp.hidden 384,384 \
        --strategy ddp --reduce fast --comm tcp --data synthetic --synthetic-rows 1024 --batch-size $ranks \
        --steps $((steps + 2)) --log-every 1 --evaluate off \
        --run "$run" "$@" >"$run.log" 2>&1 || { cat "$run.log" >&2; echo 0; return 0; }
    grep '^order:' "$run.log" >&2 || true
    grep '"step"' "$run/metrics.jsonl" | grep -o '"samples_per_s":[0-9.e+]*' | cut -d : -f 2 | sed 1,2d | head -n $steps |
        awk -v n=$ranks '{print 1e3 * n / $1}' | sort -g |
        awk -v n=$steps '{ms[NR] = $1} END {printf "%.1f\n", NR == n ? ms[(n + 1) / 2] : 0}'
}
bytes=$((4 * 453130)) # of the gradient: 784 x 384 + 384 x 384 + 384 x 10 weights and their biases, f32

# mbyte_s MS: bus bandwidth, 2 (n - 1) / n of the bytes in that time.
mbyte_s()
{
    awk "BEGIN {printf \"%.2f\", 2 * ($ranks - 1) / $ranks * $bytes / 1e3 / $1}"
}

# once NAME RANKS-PER-HOST OPTION...: sets `ratio`.
once()
{
    local name=$1 each=$2 natural chosen
    shift 2
    ranks=$((each * $(./lab.sh hosts | wc -l)))
    natural=$(median "$each" interleaved --topology.order natural)
    chosen=$(median "$each" interleaved "$@")
    ratio=0
    if awk "BEGIN {exit !($natural > 0 && $chosen > 0)}"; then
        ratio=$(awk "BEGIN {printf \"%.2f\", $natural / $chosen}")
        table_row "$name" "MB/s, bus" "$(mbyte_s "$natural")" "$(mbyte_s "$chosen")"
    fi
}

# order NAME RANKS-PER-HOST LEAST MOST OPTION...
order()
{
    local name=$1 each=$2 least=$3 most=$4
    shift 4
    once "$name" "$each" "$@"
    if ! awk "BEGIN {exit !($ratio >= $least && $ratio <= $most)}"; then
        echo "again  $name: ratio $ratio, expected from $least to $most"
        once "$name, again" "$each" "$@"
    fi
    check_speed "$name: ratio" "$ratio" "$least" "$most"
}

case ${3:-} in
slow_uplinks)
    steps=7
    table_head "2 racks x 2 hosts, edges 1000, uplinks 100 Mbit/s" interleaved chosen
    order "2 ranks each, by a file" 2 3 6 --topology.file "$LAB_DIR/topology.conf"
    order "2 ranks each, measured" 2 3 6 --topology.order measure
    order "1 rank each, by a file" 1 1.6 3 --topology.file "$LAB_DIR/topology.yaml"
    order "1 rank each, measured" 1 1.6 3 --topology.order measure
    table_end
    check_end
    ;;
fast_uplinks)
    steps=21 # ten times as short, and a core that is busy elsewhere shows sooner
    table_head "2 racks x 2 hosts, edges 200, uplinks 1000 Mbit/s" interleaved chosen
    order "1 rank each, by a file" 1 0.8 1.2 --topology.file "$LAB_DIR/topology.conf"
    order "1 rank each, measured" 1 0.8 1.2 --topology.order measure
    table_end
    check_end
    ;;
esac
check_options "${@:3}"
check_lab
status=0
./lab.sh with 2 2 1000 100 -- ./test_order.sh "$tessera" "$configs" slow_uplinks || status=1
./lab.sh with 2 2 200 1000 -- ./test_order.sh "$tessera" "$configs" fast_uplinks || status=1
exit $status
