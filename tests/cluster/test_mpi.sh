#!/usr/bin/env bash
# test_mpi.sh TESSERA CONFIGS: the same by Open MPI's mpirun and over its messages: order of ranks, the bits of
# one host, and the end of all ranks when a link is cut.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_mpi.sh TESSERA CONFIGS} configs=${2:?}

limit=5 # --timeout
slack=4 # to notice, notify the others and close, with 8 processes on the cores of one machine

# train RUN OPTION...
train()
{
    local run=$1
    shift
    timeout 60 ./lab.sh mpi 2 interleaved "$tessera" train "$configs/labs/ddp.yaml" --ranks 8 --steps 5 \
        --evaluate off --comm mpi --run "$LAB_DIR/$run" "$@" >"$LAB_DIR/$run.log" 2>&1 ||
        { cat "$LAB_DIR/$run.log"; exit 1; }
}

trains()
{
    local natural chosen
    "$tessera" train "$configs/labs/ddp.yaml" --ranks 8 --steps 5 --evaluate off --comm local \
        --run "$LAB_DIR/one" >"$LAB_DIR/one.log" 2>&1 || { cat "$LAB_DIR/one.log"; exit 1; }
    train natural --topology.order natural
    train chosen --topology.file "$LAB_DIR/topology.yaml"
    check_equal "hash in mpirun's order" "$(check_final natural hash)" "$(check_final one hash)"
    check_equal "hash in the order chosen" "$(check_final chosen hash)" "$(check_final one hash)"
    natural=$(check_final natural samples_per_s) chosen=$(check_final chosen samples_per_s)
    table_row "fashion_ddp, MPI" images/s "$(printf %.1f "$natural")" "$(printf %.1f "$chosen")"
    check_speed "gain" "$(awk "BEGIN {printf \"%.2f\", $chosen / $natural}")" 1.8 20
}

# mpirun itself waits for its daemon on the host that it cannot reach any more; ranks do not.
dies()
{
    local begun log=$LAB_DIR/dies.log
    ./lab.sh mpi 2 block "$tessera" train "$configs/labs/fashion_mlp.yaml" --strategy ddp --comm mpi \
        --topology.order natural --timeout $limit --evaluate off --log-every 1 --run "$LAB_DIR/dies" >"$log" 2>&1 &
    for _ in $(seq 300); do
        [ "$(cat "$LAB_DIR/dies/metrics.jsonl" 2>/dev/null | grep -c '"step"' || true)" -lt 3 ] || break
        sleep 0.1
    done
    check_equal "processes of 8 ranks" "$(check_running)" 16
    ./lab.sh cut r1h1
    begun=$SECONDS
    while [ "$(check_running)" -gt 0 ] && [ $((SECONDS - begun)) -lt 30 ]; do
        sleep 0.2
    done
    check_between "all ranks end, also those that are cut off, after s" $((SECONDS - begun)) 0 $((limit + slack))
    check_contains "rank and host are named" "$(cat "$log")" 'rank [67]\b.*\br1h1\b|\br1h1\b.*rank [67]\b'
    kill -KILL $! 2>/dev/null || true
}

if [ "${3:-}" = inside ]; then
    table_head "2 racks x 2 hosts x 2 ranks, edges 1000, uplinks 100 Mbit/s" "interleaved" "chosen"
    trains
    dies
    table_end
    check_end
fi
check_options "${@:3}"
command -v mpirun.openmpi >/dev/null || check_skip "no mpirun.openmpi here (package openmpi-bin)"
[ -e "$(dirname "$tessera")/libtessera_mpi_openmpi.so" ] || check_skip "built without Open MPI (libopenmpi-dev)"
check_lab
exec ./lab.sh with 2 2 1000 100 -- ./test_mpi.sh "$tessera" "$configs" inside
