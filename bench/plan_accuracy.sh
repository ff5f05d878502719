#!/usr/bin/env bash
# How far predicted steps are from measured ones: bench/plan_accuracy.sh [--tessera FILE] [--out FOLDER]
#       [--calibrate-s N] [--only REGEX] [STAGE...]
#   runs    calibrates, trains 66 short runs (strategies and products, 1 to 8 ranks, three models, f32 and bf16, shared
#           memory and sockets), and prints the table of tessera plan --accuracy; --only: those whose name matches
#   choice  six searches: trains the five best layouts of each plan, and prints how much slower the plan's choice is
#           than the best of them, and the share of searches in which that is at most 3 %
# Needs a release build and jq; about 15 minutes on two cores, on which nothing else may run.
set -euo pipefail
cd "$(dirname "$0")/.."

usage()
{
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit "$1"
}

tessera=$PWD/build/release/tessera out='' calibrate_s=20 only='' stages=()
while [ $# -gt 0 ]; do
    case $1 in
    --tessera) tessera=$(realpath "${2:?--tessera FILE}") && shift 2 ;;
    --out) out=${2:?--out FOLDER} && shift 2 ;;
    --calibrate-s) calibrate_s=${2:?--calibrate-s N} && shift 2 ;;
    --only) only=${2:?--only REGEX} && shift 2 ;;
    runs | choice) stages+=("$1") && shift ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
done
[ ${#stages[@]} -gt 0 ] || stages=(runs choice)
configs=$PWD/configs
[ -n "$out" ] || out=$(mktemp -d)
mkdir -p "$out"
out=$(realpath "$out")
export XDG_CACHE_HOME=$out/cache # no other measurement is used
mkdir -p "$XDG_CACHE_HOME"

# model NAME: its options, with the steps of a run
model()
{
    case $1 in
    mlp) echo "$configs/labs/fashion_mlp.yaml --mlp.hidden 1024,1024,512 --data synthetic --steps 60" ;;
    cnn) echo "$configs/labs/fashion_cnn.yaml --data synthetic --batch-size 64 --steps 15" ;;
    gpt) echo "$configs/models/tiny-gpt.yaml --data synthetic --batch-size 8 --steps 15" ;;
    esac
}

# train FOLDER OPTIONS...: leaves the end of what it printed beside the folder
train()
{
    local folder=$1
    shift
    rm -rf "$folder"
    "$tessera" train "$@" --run "$folder" --evaluate off --no-save-weights --save-every off \
        >"$folder.log" 2>&1 && return
    echo "$folder failed: $(tail -n 1 "$folder.log")" >&2
}

calibrate()
{
    [ -f "$out/host.yaml" ] ||
        "$tessera" plan $(model mlp) --ranks 1 --top 1 --calibrate "$out/host.yaml" --calibrate-s "$calibrate_s" \
            >"$out/calibrate.log" 2>&1
}

# Strategy, ranks, and further options, of every model.
layouts='single 1
single 1 --precision bf16
dp 2
ddp 2
ddp 2 --precision bf16
ddp 2 --comm tcp
ddp 4
ddp 8
zero1 2
zero2 2
zero2 4
fsdp 2
fsdp 2 --precision bf16
fsdp 2 --comm tcp
fsdp 4
fsdp 8
tp 2
tp 2 --comm tcp
pp 2
pp 4
ddp+tp 4
fsdp+pp 4'

stage_runs()
{
    local name strategy ranks options done_runs=()
    calibrate
    for name in mlp cnn gpt; do
        while read -r strategy ranks options; do
            local run=$name-$strategy-$ranks${options// /}
            [[ $run =~ $only ]] || continue
            train "$out/$run" $(model $name) --strategy "$strategy" --ranks "$ranks" $options || true
            ! tail -n 1 "$out/$run/metrics.jsonl" 2>/dev/null | grep -q '"final"' || done_runs+=("$run")
        done <<<"$layouts"
    done
    (cd "$out" && "$tessera" plan --accuracy "${done_runs[@]}" --json accuracy.json)
}

# The least step of two runs, in seconds.
step_of()
{
    local best='' step i
    for i in 1 2; do
        train "$out/choice" "$@"
        step=$(tail -n 1 "$out/choice/metrics.jsonl" | jq -r '.final.prediction.measured.step_s // empty')
        best=$(awk -v a="${best:-1e9}" -v b="${step:-1e9}" 'BEGIN {print a < b ? a : b}')
    done
    echo "$best"
}

stage_choice()
{
    local name ranks k first best step near=0 searches=0 chosen
    calibrate
    for name in mlp cnn gpt; do
        for ranks in 2 4; do
            first='' best=1e9 chosen=''
            for k in 1 2 3 4 5; do
                "$tessera" plan $(model $name) --ranks $ranks --device "$out/host.yaml" --top 5 --choose $k \
                    --out "$out/layout.yaml" >"$out/plan.log" 2>&1 || break
                step=$(step_of "$out/layout.yaml")
                first=${first:-$step}
                if awk "BEGIN {exit !($step < $best)}"; then
                    best=$step chosen=$k
                fi
            done
            [ -n "$first" ] || continue
            searches=$((searches + 1))
            ! awk "BEGIN {exit !($first <= 1.03 * $best)}" || near=$((near + 1))
            awk -v n="$name, $ranks ranks" -v f="$first" -v b="$best" -v k="$chosen" 'BEGIN {
                printf "%-16s first %8.3f ms, best (number %s) %8.3f ms: x %.3f\n", n, f * 1e3, k, b * 1e3, f / b}'
        done
    done
    echo "$near of $searches searches: the first layout is within 3 % of the best one"
}

for stage in "${stages[@]}"; do
    "stage_$stage"
done
