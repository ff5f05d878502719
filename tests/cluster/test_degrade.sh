#!/usr/bin/env bash
# test_degrade.sh TESSERA CONFIGS: an uplink that goes from 500 to 40 Mbit/s while ranks train is named within 20 steps,
# with what it carried before and since which step; before that nothing is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_degrade.sh TESSERA CONFIGS} configs=${2:?}

# 1.1 MB of gradients: some 30 ms of a step on an uplink of 500 Mbit/s, 330 ms at 40.
options=(train "$configs/labs/fashion_mlp.yaml" --data synthetic --mlp.hidden 256,256 --batch-size 64 --strategy ddp
    --comm tcp --threads 1 --evaluate off --steps 75 --log-every 1 --timeout 60)

# The last step that is in the metrics, or in what is on stdin.
last_step()
{
    { grep -oE '^\{"step":[0-9]+' "${1:--}" || true; } | tail -n 1 | tr -dc '0-9'
}

# until_step N SECONDS
until_step()
{
    local end=$((SECONDS + $2))
    while [ $SECONDS -lt $end ] && [ "$(last_step "$LAB_DIR/run/metrics.jsonl" 2>/dev/null || true)0" -lt "${1}0" ]; do
        sleep 0.1
    done
}

inside()
{
    local pid changed named status=0
    ./lab.sh ranks 1 block "$tessera" "${options[@]}" --topology.file "$LAB_DIR/topology.yaml" --run "$LAB_DIR/run" \
        >/dev/null 2>&1 &
    pid=$!
    until_step 40 120
    if [ "$(last_step "$LAB_DIR/run/metrics.jsonl")0" -lt 400 ]; then
        check_tell seen "not judged: the machine is so busy that 40 steps take more than 2 minutes"
        return 0
    fi
    check_equal "what is slow before" "$(grep -hE 'is slow since' "$LAB_DIR/ranks/0.err" || true)" ""
    for link in up0 down0; do
        PATH=$PATH:/usr/sbin:/sbin tc qdisc replace dev $link root tbf rate 40mbit burst 256k latency 200ms
    done
    changed=$(last_step "$LAB_DIR/run/metrics.jsonl")
    wait $pid || status=$?
    check_equal "status" $status 0
    # Two racks have two uplinks in a row: whatever crosses one crosses the other.
    check_contains "the uplinks are named" "$(cat "$LAB_DIR/ranks/0.err")" \
        '^tessera: warning: one of the links rack. - core, .* is slow since step [0-9]+: .* MB/s each, where .* are usual'
    check_contains "and in the status" "$("$tessera" status "$LAB_DIR/run")" \
        'slow network: one of the links rack. - core, .* since step [0-9]+, .* are usual'
    named=$(sed '/"network":{/,$d' "$LAB_DIR/run/metrics.jsonl" | last_step)
    echo "       changed in step $changed: $(grep -o 'one of the links.*' "$LAB_DIR/ranks/0.err")"
    check_between "the step in which they are named" "$named" "$changed" $((changed + 20))
}

if [ "${3:-}" = inside ]; then
    inside
    check_end
fi
check_lab
exec ./lab.sh with 2 2 1000 500 -- ./test_degrade.sh "$tessera" "$configs" inside
