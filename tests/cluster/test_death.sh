#!/usr/bin/env bash
# test_death.sh TESSERA CONFIGS: a rank, a host or a link goes while ranks train. All others end within the
# time limit, with an error, and a message names the rank and the host.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_death.sh TESSERA CONFIGS} configs=${2:?}

limit=5 # --timeout: what a wait for another rank may last
slack=4 # to notice, notify the others and close, with 8 processes on the cores of one machine

# death WHAT LOST GONE REGEX CMD...: while 8 ranks train, CMD ends something. LOST: ranks that cannot report any
# more how they ended; GONE: seconds that the others may take; REGEX: what names rank and host.
death()
{
    local what=$1 lost=$2 gone=$3 regex=$4 begun rank status ended output
    shift 4
    rm -f "$LAB_DIR"/ranks/*
    ./lab.sh ranks 2 block "$tessera" train "$configs/labs/fashion_mlp.yaml" --strategy ddp --comm tcp \
        --topology.order natural --timeout $limit --log-every 1 --evaluate off >/dev/null 2>&1 &
    for _ in $(seq 300); do
        [ "$(cat "$LAB_DIR/ranks/0.out" 2>/dev/null | grep -cE '^step [0-9]+/' || true)" -lt 3 ] || break
        sleep 0.1
    done
    check_contains "$what: ranks train" "$(cat "$LAB_DIR/ranks/0.out" "$LAB_DIR/ranks/0.err")" '^step [0-9]+/'
    begun=$(date +%s.%N)
    "$@"
    wait $! || true
    output=$(cat "$LAB_DIR"/ranks/*.err)
    for rank in 0 1 2 3 4 5 6 7; do
        [[ " $lost " != *" $rank "* ]] || continue
        read -r status ended <"$LAB_DIR/ranks/$rank.end"
        check_between "$what: rank $rank ends with an error, status" "$status" 1 127
        check_between "$what: rank $rank ends after, s" \
            "$(awk "BEGIN {printf \"%.2f\", $ended - $begun}")" 0 "$gone"
    done
    check_equal "$what: processes left" "$(check_running)" 0
    check_contains "$what: rank and host are named" "$output" "$regex"
}

if [ "${3:-}" = inside ]; then
    death "a rank is killed" "" $slack 'rank 5\b.*\br1h0\b|\br1h0\b.*rank 5\b' check_kill_rank r1h0 5
    death "a link is cut" "" $((limit + slack)) 'rank [67]\b.*\br1h1\b|\br1h1\b.*rank [67]\b' ./lab.sh cut r1h1
    ./lab.sh heal r1h1
    death "a host dies" "2 3" $((limit + slack)) 'rank [23]\b.*\br0h1\b|\br0h1\b.*rank [23]\b' ./lab.sh kill r0h1
    check_end
fi
check_lab
exec ./lab.sh with 2 2 1000 1000 -- ./test_death.sh "$tessera" "$configs" inside
