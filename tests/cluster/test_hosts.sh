#!/usr/bin/env bash
# test_hosts.sh TESSERA CONFIGS NAP: `train --hosts` on hosts of their own: a link that is cut and mended while ranks
# train. The others go on without that host, and with it when it is back; the bits are those of a run to which nothing
# happened. A host that is back after the end of the run ends as well, and so does one whose leader fails at its
# start. Steps sleep (harness/nap.c), so that few take as long as hosts need to leave and to come back.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_hosts.sh TESSERA CONFIGS NAP} configs=${2:?} nap=${3:?}

options=(train "$configs/labs/fashion_mlp.yaml" --mlp.hidden 64,64 --evaluate off --schedule constant --grid 4
    --log-every 20 --optimizer nap)
export TESSERA_PLUGIN=$nap

# until_line SECONDS REGEX FILE
until_line()
{
    local end=$((SECONDS + $1))
    until grep -qE -- "$2" "$3" 2>/dev/null; do
        [ $SECONDS -lt $end ] || return 0
        sleep 0.1
    done
}

# begin_hosts RUN STEPS: on both, in the background
begin_hosts()
{
    local host
    rm -f "$LAB_DIR"/r0h?.log
    hosts=()
    for host in r0h0 r0h1; do
        ./lab.sh run $host "$tessera" "${options[@]}" --strategy fsdp --ranks 4 --hosts 2 --meet r0h0:29400 --run "$LAB_DIR/$1" --steps "$2" \
            --save-every 25 --restarts 5 --min-ranks 2 --elastic --timeout 5 >"$LAB_DIR/$host.log" 2>&1 &
        hosts+=($!)
    done
}

end_hosts()
{
    local host
    for host in "${hosts[@]}"; do
        wait "$host" || check_tell wrong "a host ended with status $?"
    done
}

if [ "${4:-}" = inside ]; then
    # One rank waits for no other on a busy machine, and ends with the same bits.
    "$tessera" "${options[@]}" --strategy single --ranks 1 --steps 400 --run "$LAB_DIR/whole" --save-every off >"$LAB_DIR/whole.log" 2>&1 ||
        { cat "$LAB_DIR/whole.log"; exit 1; }
    export NAP_US=20000
    log=$LAB_DIR/r0h0.log
    begin_hosts run 400
    until_line 60 '^step 40/' "$log"
    begun=$(date +%s.%N)
    ./lab.sh cut r0h1
    until_line 60 '2 of 4 ranks are left' "$log"
    check_between "a link is cut: the others go on after, s" \
        "$(awk "BEGIN {printf \"%.2f\", $(date +%s.%N) - $begun}")" 0 15
    ./lab.sh heal r0h1
    end_hosts
    output=$(cat "$log")
    check_contains "the host that is cut off is named" "$output" 'r0h1'
    check_contains "the host has come back" "$(sed '1,/ranks are left/d' "$log")" 'host r0h1 has joined: 2 hosts'
    check_equal "restarts" "$(check_final run restarts)" 1
    check_equal "ranks at the end" "$(check_final run ranks)" 4
    check_equal "hash" "$(check_final run hash)" "$(check_final whole hash)"
    check_equal "processes left" "$(check_running)" 0
    [ "$check_failures" -eq 0 ] || { echo "$output"; cat "$LAB_DIR/r0h1.log"; }
    begin_hosts missed 200
    until_line 60 '^step 40/' "$log"
    ./lab.sh cut r0h1
    wait "${hosts[0]}" || check_tell wrong "the leader ended with status $?" # before it has left, it admits the host
    hosts=("${hosts[1]}")
    ./lab.sh heal r0h1
    end_hosts
    check_contains "the end that a host has missed" "$(cat "$LAB_DIR/r0h1.log")" 'ended without this host'
    check_equal "processes left" "$(check_running)" 0
    [ "$check_failures" -eq 0 ] || { echo "$output"; cat "$LAB_DIR/r0h1.log"; }
    log=$LAB_DIR/r0h1.log
    lone=(train --data synthetic --strategy ddp --ranks 2 --hosts 2 --meet r0h0:29401)
    ./lab.sh run r0h1 "$tessera" "${lone[@]}" >"$log" 2>&1 &
    hosts=($!)
    until_line 60 'joins the training' "$log"
    begun=$SECONDS
    ./lab.sh run r0h0 "$tessera" "${lone[@]}" --odd 1 >"$LAB_DIR/r0h0.log" 2>&1 || true
    wait "${hosts[0]}" && check_tell wrong "a host without a leader ended well"
    check_between "the leader's host fails at its start: the other one ends after, s" $((SECONDS - begun)) 0 10
    check_contains "why" "$(cat "$log")" "host r0h0 has failed: command line: unknown option 'odd'"
    check_equal "processes left" "$(check_running)" 0
    [ "$check_failures" -eq 0 ] || cat "$log"
    check_end
fi
check_lab
exec ./lab.sh with 1 2 1000 1000 -- ./test_hosts.sh "$tessera" "$configs" "$nap" inside
