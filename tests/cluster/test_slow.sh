#!/usr/bin/env bash
# test_slow.sh TESSERA CONFIGS SLOW_RANK: a rank that computes slower (slow_rank.c), and a link that becomes slower
# while ranks train, are named with their hosts and causes; ranks to which nothing was done are not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_slow.sh TESSERA CONFIGS SLOW_RANK} configs=${2:?} preload=${3:?}

# Steps of some 50 ms: 1.1 MB of gradients.
options=(train "$configs/labs/fashion_mlp.yaml" --mlp.hidden 256,256 --batch-size 512 --strategy ddp --comm tcp
    --topology.order natural --evaluate off --epochs 1000 --log-every 50 --timeout 60)

# until_said SECONDS REGEX: rank 0 has printed it.
until_said()
{
    local end=$((SECONDS + $1))
    while [ $SECONDS -lt $end ]; do
        ! grep -qE -- "$2" "$LAB_DIR/ranks/0.err" "$LAB_DIR/ranks/0.out" 2>/dev/null || return 0
        sleep 0.2
    done
    return 0
}

# busy WHAT REGEX: the machine is so busy that ranks have not made the steps in which it would be seen.
busy()
{
    local steps
    [ -z "${LAB_JUDGE:-}" ] || return 1
    ! grep -qE -- "$2" "$LAB_DIR/ranks/0.err" || return 1
    steps=$(cat "$LAB_DIR/ranks/0.out" | grep -oE '^step [0-9]+/' | tail -n 1 | tr -dc '0-9' || true)
    [ "${steps:-0}" -lt 300 ] || return 1
    check_tell seen "$1: not judged, $((${steps:-0} + 0)) steps in the time for 300"
}

# end_ranks PID: rank 0 ends them all.
end_ranks()
{
    ./lab.sh run r0h0 bash -c 'for process in /proc/[0-9]*; do
            [ "$(cat $process/comm 2>/dev/null)" != "tessera" ] || kill -TERM ${process#/proc/}
        done' || true
    wait "$1" || true
}

# What a busy machine does to any rank is no fault of the program: other work on a processor is named so.
said()
{
    grep -hE 'holds the others up|is slow since' "$LAB_DIR/ranks/0.err" | grep -v 'waiting for its processor' || true
}

computes_slowly()
{
    rm -f "$LAB_DIR"/ranks/*
    SLOW_RANK=1 LD_PRELOAD=$preload ./lab.sh ranks 1 block "$tessera" "${options[@]}" >/dev/null 2>&1 &
    until_said 120 'rank [0-9]+ .*holds the others up.*computing'
    end_ranks $!
    busy "a rank that computes slowly" 'rank 1 .* late in computing' ||
        check_contains "a rank that computes slowly is named, with its host" "$(cat "$LAB_DIR"/ranks/0.err)" \
            '^tessera: warning: rank 1 \(host r0h1\) holds the others up since step [0-9]+:.* late in computing'
    check_equal "others are not" "$(said | grep -cv 'rank 1 (host r0h1) holds' || true)" 0
}

# With a bucket of 64 KiB, as large as what a card sends at once, connections stood still for longer than the timeout.
# No rank is late for long; then what one host sends goes at a tenth of the speed.
sends_slowly()
{
    rm -f "$LAB_DIR"/ranks/*
    ./lab.sh ranks 1 block "$tessera" "${options[@]}" --run "$LAB_DIR/link" --overwrite >/dev/null 2>&1 &
    until_said 120 '^step 150/'
    check_equal "nothing is slow so far" "$(said)" ""
    ./lab.sh run r0h1 bash -c 'PATH=$PATH:/usr/sbin:/sbin
        tc qdisc replace dev eth0 root tbf rate 20mbit burst 256k latency 200ms'
    until_said 120 'the network .* is slow since'
    end_ranks $!
    ! busy "a link that becomes slow" 'the network .* is slow since' || return 0
    check_contains "what becomes slow is named, with its hosts" "$(cat "$LAB_DIR"/ranks/0.err)" \
        '^tessera: warning: the network between hosts r0h0 and r0h1 is slow since'
    check_contains "it is in the metrics" "$(grep '"pace"' "$LAB_DIR/link/metrics.jsonl")" \
        '"network":\{"name":"the network between hosts r0h0 and r0h1","since":[0-9]+'
}

if [ "${4:-}" = inside ]; then
    computes_slowly
    sends_slowly
    check_end
fi
check_lab
exec ./lab.sh with 1 2 200 1000 -- ./test_slow.sh "$tessera" "$configs" "$preload" inside
