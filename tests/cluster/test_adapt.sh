#!/usr/bin/env bash
# test_adapt.sh TESSERA CONFIGS: --topology.adapt. Ranks whose neighbours are in other racks train as fast as any order
# while uplinks are wide. Then these become narrow: ranks are numbered anew, as a run would be that begins on such a
# network, and end with the bits of a run to which nothing happened. Where no other order helps, none is tried.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_adapt.sh TESSERA CONFIGS} configs=${2:?}

# 1.1 MB of gradients, as in test_degrade.sh. Edges of 250 Mbit/s limit any order until uplinks are below 500.
steps=${ADAPT_STEPS:-120}
options=(train "$configs/labs/fashion_mlp.yaml" --data synthetic --mlp.hidden 256,256 --batch-size 64 --strategy ddp
    --threads 1 --evaluate off --steps "$steps" --log-every 1 --timeout 60 --no-save-weights)

# uplinks MBIT
uplinks()
{
    local link
    for link in up0 down0 up1 down1; do
        PATH=$PATH:/usr/sbin:/sbin tc qdisc replace dev $link root tbf rate "$1mbit" burst 64k latency 200ms
    done
}

# until_step RUN N SECONDS PID: while the process lives
until_step()
{
    local end=$((SECONDS + $3)) step
    while [ $SECONDS -lt $end ]; do
        kill -0 "$4" 2>/dev/null || return 0
        step=$( (grep -oE '^\{"step":[0-9]+' "$LAB_DIR/$1/metrics.jsonl" 2>/dev/null || true) | tail -n 1 | tr -dc 0-9)
        [ "${step:-0}" -lt "$2" ] || return 0
        sleep 0.1
    done
    check_tell seen "not judged: the machine is so busy that $2 steps take more than $3 s"
    check_end
}

# rate RUN FROM TO: images/s from one step to another, of the first lines that they have
rate()
{
    local at='"elapsed_s":[0-9.e+-]*'
    { grep -m 1 "^{\"step\":$2," "$LAB_DIR/$1/metrics.jsonl"
      grep -m 1 "^{\"step\":$3," "$LAB_DIR/$1/metrics.jsonl"; } | grep -oE "$at" | cut -d : -f 2 |
        awk -v steps=$(($3 - $2)) 'NR == 1 {from = $1} NR == 2 {printf "%.0f", 64 * steps / ($1 - from)}'
}

# order TEXT: what the last `order:` line says behind the name of the file
order()
{
    grep -E '^order: ' <<<"$1" | tail -n 1 | sed 's/^order: [^:]*: //'
}

# degrade RUN CMD...: while it trains, uplinks go from 500 to 40 Mbit/s. Sets `output`.
degrade()
{
    local run=$1 pid status=0
    shift
    uplinks 500
    "$@" --run "$LAB_DIR/$run" --topology.adapt >"$LAB_DIR/$run.log" 2>&1 &
    pid=$!
    until_step "$run" 40 120 $pid
    uplinks 40
    wait $pid || status=$?
    output=$(cat "$LAB_DIR/$run.log")
    check_equal "$run: status" $status 0
}

# adapted RUN: what is expected of one
adapted()
{
    check_contains "$1: another order is better" "$output" \
        'one of the links rack. - core, .* stays slow; in another order the most loaded link is done 2.0 times as soon'
    check_equal "$1: numbered anew" "$(check_final "$1" renumbered)" 1
    check_equal "$1: restarts" "$(check_final "$1" restarts)" 0
    check_equal "$1: steps done again" "$(check_final "$1" lost_steps)" 0
    check_equal "$1: as a run that begins now" "$(order "$output")" "$(order "$fresh")"
    check_equal "$1: hash" "$(check_final "$1" hash)" "$(check_final whole hash)"
    check_equal "$1: processes left" "$(check_running)" 0
    [ "$check_failures" -eq 0 ] || echo "$output"
}

# On four hosts, whose supervisors join in this order.
hosts()
{
    local host all=() status=0
    for host in r0h0 r1h0 r0h1 r1h1; do
        ./lab.sh run $host "$tessera" "${options[@]}" --hosts 4 --ranks 4 --meet r0h0:29500 "$@" \
            >"$LAB_DIR/$host.log" 2>&1 &
        all+=($!)
        for _ in $(seq 100); do
            ! grep -qE "waits at|joins the" "$LAB_DIR/$host.log" || break
            sleep 0.05
        done
        sleep 0.5
    done
    for host in "${all[@]}"; do
        wait "$host" || status=$?
    done
    cat "$LAB_DIR"/r?h?.log
    return $status
}

ranks()
{
    local order=$1
    shift
    ./lab.sh ranks 1 "$order" "$tessera" "${options[@]}" --comm tcp "$@"
}

inside()
{
    "$tessera" "${options[@]}" --ranks 4 --run "$LAB_DIR/whole" >"$LAB_DIR/whole.log" 2>&1 ||
        { cat "$LAB_DIR/whole.log"; exit 1; }
    uplinks 40
    sed 's/\(between: \[rack.*gbs: \).*}/\10.005}/' "$LAB_DIR/topology.yaml" >"$LAB_DIR/now.yaml"
    fresh=$(ranks interleaved --topology.file "$LAB_DIR/now.yaml" --run "$LAB_DIR/fresh" --steps 60 2>/dev/null)
    check_equal "a run that begins now" "$(order "$fresh" | cut -d ';' -f 1)" "ranks follow switches rack0 rack1"

    local file=(--topology.file "$LAB_DIR/topology.yaml")
    degrade placed ranks interleaved "${file[@]}"
    adapted placed
    local resumed
    resumed=$(check_final placed resumed_from)
    echo "       images/s: $(rate placed 20 40) before, $(rate placed 50 "$resumed") on narrow uplinks," \
        "$(rate placed $((resumed + 10)) "$steps") after step $resumed, $(rate fresh 10 60) of a run that begins now"
    check_speed "speed of such a run" \
        "$(awk "BEGIN {print $(rate placed $((resumed + 10)) "$steps") / $(rate fresh 10 60)}")" 0.8 1.25

    degrade supervised hosts "${file[@]}"
    adapted supervised

    # A busy machine may hide what is slow in an order that sends little over uplinks, and racks that are measured.
    [ -n "${LAB_JUDGE:-}" ] || return 0
    degrade block ranks block "${file[@]}"
    check_contains "no other order is better" "$output" 'ranks keep their numbers: no other order is 10 % better'
    check_equal "block: numbered anew" "$(check_final block renumbered)" 0
    check_equal "block: hash" "$(check_final block hash)" "$(check_final whole hash)"

    # Without a file, of a network that is even when it is measured first.
    degrade measured ranks interleaved
    check_contains "measured: what is slow is no part of an even network" "$output" 'the network is measured again'
    check_equal "measured: numbered anew" "$(check_final measured renumbered)" 1
    check_contains "measured: the racks are found" "$(order "$output")" 'ranks follow switches rack0 rack1'
    check_equal "measured: hash" "$(check_final measured hash)" "$(check_final whole hash)"
}

if [ "${3:-}" = inside ]; then
    inside
    check_end
fi
check_lab
exec ./lab.sh with 2 2 250 500 -- ./test_adapt.sh "$tessera" "$configs" inside
