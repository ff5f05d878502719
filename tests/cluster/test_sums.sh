#!/usr/bin/env bash
# test_sums.sh TESSERA CONFIGS [--json]: what a sum in canonical order puts on each host's network card, and on the
# uplinks of racks, counted by the kernel, beside a ring over hosts: 2 (H - 1) / H of the gradient each way on H hosts.
#
# What to expect, data alone; headers, notes of calls and the rest of a step add some percent:
#
#     hosts whose ranks are a block of the tree     2, 3, 4, 5, 8 hosts: 1      others: up to 1.1
#     4 hosts x 2 ranks, dealt out host by host     2: ranks 0 and 1 are added first, on other hosts
#     uplinks of 3 racks x 2 hosts                  1, and 0.8 where process 0 sends all ranks the size of the racks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_sums.sh TESSERA CONFIGS [--json]} configs=${2:?}
bytes=$((4 * 453130)) # of the gradient: 784 x 384 + 384 x 384 + 384 x 10 weights and their biases, f32
steps=16

# links: bytes that each host's card has sent and received; with several racks, each rack's uplink.
links()
{
    local host
    if [ "$racks" -gt 1 ]; then
        awk '$1 ~ /^up[0-9]+:$/ {print $10, $2}' /proc/net/dev
        return
    fi
    for host in $(./lab.sh hosts); do
        # shellcheck disable=SC2016
        ./lab.sh run "$host" awk '$1 == "eth0:" {print $10, $2}' /proc/net/dev
    done
}

# fullest RANKS-PER-HOST ORDER OPTION...: sets `most`: bytes a step, one way through the fullest of them; and `hash`.
fullest()
{
    local each=$1 order=$2 run=$LAB_DIR/sums before as=()
    shift 2
    if [ "$order" = slurm ]; then
        # shellcheck disable=SC2016
        order=block as=(bash -c 'h=$(hostname) rack=${h%h*}
            export SLURM_TOPOLOGY_ADDR=core.rack${rack#r}.$h SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node
            exec "$@"' _)
    fi
    rm -rf "$run"
    before=$(links)
    ./lab.sh ranks "$each" "$order" "${as[@]}" "$tessera" train "$configs/labs/fashion_mlp.yaml" --mlp.hidden 384,384 \
        --strategy ddp --comm tcp --data synthetic --synthetic-rows 1024 --batch-size $ranks --steps $steps \
        --evaluate off --timeout 600 --run "$run" "$@" >"$run.log" 2>&1 ||
        { cat "$run.log"; exit 1; }
    hash=$(check_final sums hash)
    most=$(paste <(echo "$before") <(links) | awk -v steps=$steps '
        {for (i = 1; i <= 2; i++) if ($(i + 2) - $i > most) most = $(i + 2) - $i}
        END {printf "%.0f", most / steps}')
}

# sums RANKS-PER-HOST LEAST MOST ORDER OPTION...: times a ring's bytes
sums()
{
    local each=$1 least=$2 limit=$3 order=$4 hosts ring wanted=${hash:-} last=${*: -1}
    last=${last##*/}
    shift 4
    hosts=$(./lab.sh hosts | wc -l)
    ranks=$((each * hosts))
    ring=$((2 * bytes * (hosts - 1) / hosts))
    fullest "$each" "$order" "$@"
    [ "$racks" = 1 ] || check_equal "$racks racks, $last: hash" "$hash" "${wanted:-$hash}"
    table_row "$hosts hosts x $each, $order" "MB, $last" "$(awk "BEGIN {print $ring / 1e6}")" \
        "$(awk "BEGIN {print $most / 1e6}")"
    check_between "$hosts hosts x $each ranks, $order, $last: times a ring's bytes" \
        "$(awk "BEGIN {printf \"%.3f\", $most / $ring}")" "$least" "$limit"
}

if [ "${3:-}" = inside ]; then
    racks=$4
    shift
    table_head "bytes a step one way through the fullest link" "ring" "counted"
    shift 3
    while [ $# -gt 0 ]; do
        # shellcheck disable=SC2086
        sums ${1/LAB_DIR/$LAB_DIR}
        shift
    done
    table_end
    check_end
fi
check_options "${@:3}"
check_lab
status=0
# lab RACKS HOSTS CASE...
lab()
{
    local racks=$1 hosts=$2
    shift 2
    ./lab.sh with "$racks" "$hosts" 1000 1000 -- ./test_sums.sh "$tessera" "$configs" inside "$racks" "$@" || status=1
}
natural="--topology.order natural --reduce"
lab 1 2 "4 0.99 1.3 block $natural canonical"
lab 1 4 "2 0.99 1.3 block $natural canonical" "2 0.99 1.3 block $natural fast" \
    "2 1.9 2.4 cyclic $natural canonical"
lab 1 3 "2 0.99 1.3 block $natural canonical"
# With the same bits.
lab 3 2 "1 0.95 1.2 block $natural canonical" \
    "1 0.75 0.9 block --reduce canonical --topology.file LAB_DIR/topology.yaml" \
    "1 0.75 0.9 block $natural canonical --topology.file LAB_DIR/topology.yaml" \
    "1 0.75 0.9 slurm $natural canonical"
# 16 processes: where no other test runs.
[ -z "${LAB_JUDGE:-}" ] || lab 1 8 "2 0.99 1.3 block $natural canonical"
exit $status
