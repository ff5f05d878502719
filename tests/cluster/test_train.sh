#!/usr/bin/env bash
# test_train.sh TESSERA CONFIGS [--json]: training over slow links between racks, with ranks as a careless
# launcher numbers them and in the order that Tessera chooses by a topology file: samples per second, and
# the bits of one host in both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_train.sh TESSERA CONFIGS} configs=${2:?}

# train RUN OPTION...: 2 ranks on each of 4 hosts, neighbours in number in different racks.
train()
{
    local run=$1
    shift
    ./lab.sh ranks 2 interleaved "$tessera" train "$@" --ranks 8 --comm tcp --evaluate off --run "$LAB_DIR/$run" \
        >"$LAB_DIR/$run.log" 2>&1 || { cat "$LAB_DIR/$run.log"; exit 1; }
}

# compare NAME UNIT PER_SAMPLE LEAST OPTION...
compare()
{
    local name=$1 unit=$2 per=$3 least=$4 natural chosen
    shift 4
    "$tessera" train "$@" --ranks 8 --comm local --evaluate off --run "$LAB_DIR/$name.one" \
        >"$LAB_DIR/$name.one.log" 2>&1 || { cat "$LAB_DIR/$name.one.log"; exit 1; }
    train "$name.natural" "$@" --topology.order natural
    train "$name.chosen" "$@" --topology.file "$LAB_DIR/topology.yaml"
    check_equal "$name: hash in the order given" "$(check_final "$name.natural" hash)" "$(check_final "$name.one" hash)"
    check_equal "$name: hash in the order chosen" "$(check_final "$name.chosen" hash)" "$(check_final "$name.one" hash)"
    natural=$(awk "BEGIN {printf \"%.1f\", $(check_final "$name.natural" samples_per_s) * $per}")
    chosen=$(awk "BEGIN {printf \"%.1f\", $(check_final "$name.chosen" samples_per_s) * $per}")
    table_row "$name" "$unit" "$natural" "$chosen"
    check_speed "$name: gain" "$(awk "BEGIN {printf \"%.2f\", $chosen / $natural}")" "$least" 20
}

if [ "${3:-}" = inside ]; then
    table_head "2 racks x 2 hosts x 2 ranks, edges 1000, uplinks 100 Mbit/s" "interleaved" "chosen"
    steps=2 data=(--data synthetic --synthetic-rows 256)
    [ -z "${LAB_JUDGE:-}" ] || steps=8 data=() # speeds are judged
    # What a step sends through an uplink falls to a quarter; computing, on the cores of one machine, stays.
    compare fashion_ddp images/s 1 1.8 "$configs/labs/ddp.yaml" --strategy ddp "${data[@]}" --steps "$steps"
    compare gpt_fsdp_tp tokens/s 128 1.8 "$configs/models/tiny-gpt.yaml" --strategy fsdp+tp \
        --mesh data=4,tensor=2 --steps "$((steps / 3 + 1))"
    table_end
    check_end
fi
check_options "${@:3}"
check_lab
exec ./lab.sh with 2 2 1000 100 -- ./test_train.sh "$tessera" "$configs" inside
