#!/usr/bin/env bash
# How far predicted steps are from measured ones: bench/plan_accuracy.sh [--tessera FILE] [--out FOLDER]
#       [--calibrate-s N] [--each] [--try-s N] [--tries N] [--for-s N] [--only REGEX] [STAGE...]
#   runs    calibrates, trains 66 short runs (strategies and products, 1 to 8 ranks, three models, f32 and bf16, shared
#           memory and sockets) N times (5), one pass over all after the other, and prints the table below; goes on in
#           FOLDER where it was stopped
#   table   the table of tessera plan --accuracy for the median of each, by group, and how far equal runs were apart
#   plans   33 searches (models, ranks, precisions, batch sizes): the five best layouts of each plan
#   choice  chooses with plan --try as well; trains all of them in turns, in 8 rounds, and prints how much slower the
#           plan's choice is than the best, without and with --try, and in how many searches by at most 3 %
#   hosts   trains ten layouts on two and four hosts of the cluster lab (tests/cluster/README.md), whose links are slow
# --each: calibrates before each pass, and of each run the try with the median ratio counts: how far the model is off
# where the machine's speed changes between a calibration and the runs.
# A run or calibration in which other programs took over 3 % of the processors is made once more.
# --for-s: no run and no search begins later than so many seconds after the start; what there is, is printed.
# --only: runs and searches whose name matches. Needs a release build and jq; about 15 minutes on two cores, on which
# nothing else may run.
set -euo pipefail
cd "$(dirname "$0")/.."

usage()
{
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit "$1"
}

tessera=$PWD/build/release/tessera out='' calibrate_s=40 each='' try_s=10 tries=5 for_s=1000000 only='' stages=()
while [ $# -gt 0 ]; do
    case $1 in
    --tessera) tessera=$(realpath "${2:?--tessera FILE}") && shift 2 ;;
    --out) out=${2:?--out FOLDER} && shift 2 ;;
    --calibrate-s) calibrate_s=${2:?--calibrate-s N} && shift 2 ;;
    --each) each=1 && shift ;;
    --try-s) try_s=${2:?--try-s N} && shift 2 ;;
    --tries) tries=${2:?--tries N} && shift 2 ;;
    --for-s) for_s=${2:?--for-s N} && shift 2 ;;
    --only) only=${2:?--only REGEX} && shift 2 ;;
    runs | table | plans | choice | hosts) stages+=("$1") && shift ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
done
[ ${#stages[@]} -gt 0 ] || stages=(runs plans choice)
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

in_time()
{
    [ "$SECONDS" -lt "$for_s" ]
}

# busy_s: seconds that all processors were busy so far, less those of commands of this shell that have ended
busy()
{
    times >"$out/own" # not in a subshell, which has its own
    busy_s=$(awk -v hz="$(getconf CLK_TCK)" '
        FILENAME == "/proc/stat" && /^cpu / {all = ($2 + $3 + $4 + $7 + $8 + $9) / hz}
        FILENAME != "/proc/stat" && FNR == 2 {split($1 "m" $2, t, /[ms]+/); own = 60 * (t[1] + t[3]) + t[2] + t[4]}
        END {print all - own}' /proc/stat "$out/own")
}

# alone COMMAND...: once more, up to six times, where other programs took over 3 % of the processors meanwhile
alone()
{
    local try status begin before
    for try in 1 2 3 4 5 6; do
        busy
        begin=$EPOCHREALTIME before=$busy_s status=0
        "$@" || status=$?
        set -- "$EPOCHREALTIME" "$@"
        busy
        awk -v s="$1 $begin $busy_s $before $(nproc)" \
            'BEGIN {split(s, t); exit t[3] - t[4] > t[5] * (0.03 * (t[1] - t[2]) + 0.02)}' && return $status
        shift
    done
    echo "other programs ran beside: $*" >>"$out/beside"
    return $status
}

# train FOLDER OPTIONS...: without the loss of each step; leaves the end of what it printed beside the folder
train()
{
    local folder=$1
    shift
    rm -rf "$folder"
    "$tessera" train "$@" --run "$folder" --evaluate off --no-save-weights --save-every off --log-every 1000 \
        >"$folder.log" 2>&1 && return
    echo "$folder failed: $(tail -n 1 "$folder.log")" >&2
}

# measured FOLDER [FIELD]: of a run that has ended: seconds of a step, or another field of the prediction
measured()
{
    tail -n 1 "$1/metrics.jsonl" 2>/dev/null | jq -r ".final.prediction.${2:-measured.step_s} // empty"
}

# calibrate [FOLDER]
calibrate()
{
    local folder=${1:-$out}
    mkdir -p "$folder"
    [ -f "$folder/host.yaml" ] ||
        alone "$tessera" plan $(model mlp) --ranks 1 --top 1 --calibrate "$folder/host.yaml" \
            --calibrate-s "$calibrate_s" >"$folder/calibrate.log" 2>&1
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

# once FOLDER: every run that matches, in FOLDER
once()
{
    local name strategy ranks options run
    mkdir -p "$1"
    for name in mlp cnn gpt; do
        while read -r strategy ranks options; do
            run=$name-$strategy-$ranks${options// /}
            [[ $run =~ $only ]] || continue
            [ -z "$(measured "$1/$run")" ] && in_time || continue
            alone train "$1/$run" $(model $name) --strategy "$strategy" --ranks "$ranks" $options || true
        done <<<"$layouts"
    done
}

# The median of each run's tries, in $out, since a calibration has the usual speed of the machine, too; how much slower
# the slowest try was than the fastest (--each: by its prediction), and how far the median of every other try is from
# that of the others, where there are two of each.
usual()
{
    local run name t steps field=${each:+ratio}
    for run in "$out"/try1/*/; do
        name=$(basename "$run")
        steps=$(for t in $(seq "$tries"); do echo "$(measured "$out/try$t/$name" $field || true) $t"; done |
            sort -g | awk 'NF == 2')
        [ -n "$steps" ] || continue
        rm -rf "${out:?}/$name"
        cp -r "$out/try$(awk '{try[NR] = $2} END {print try[int((NR + 1) / 2)]}' <<<"$steps")/$name" "$out/$name"
        awk -v n="$name" '{s[NR] = $1; h = $2 % 2; half[h, ++count[h]] = $1}
            function middle(h,  m) {m = int((count[h] + 1) / 2); return (half[h, m] + half[h, count[h] + 1 - m]) / 2}
            END {
                print s[NR] / s[1] - 1, n, (count[0] > 1 && count[1] > 1 ? middle(1) / middle(0) - 1 : "")
            }' <<<"$steps"
    done >"$out/apart"
}

# percentiles TITLE: of the numbers of standard input, if there are any
percentiles()
{
    sort -g | awk -v title="$1" '{e[NR] = $1} END {
        if (NR > 0) printf "%s %3d runs: median %4.1f %%, 95th percentile %4.1f %%\n", title, NR,
            100 * e[int((NR + 1) / 2)], 100 * e[int(NR * 0.95 + 0.999)]}'
}

# The table, and its errors by group.
errors()
{
    local group
    (cd "$out" && "$tessera" plan --accuracy $(awk '{print $2}' apart) --json accuracy.json)
    for group in 'mlp' 'cnn' 'gpt' 'bf16' 'tcp' '-1(--|$)' '-2(--|$)' '-(4|8)(--|$)' '.'; do
        jq -r --arg g "$group" '.runs[] | select(.ratio != null and (.run | test($g))) | .ratio - 1 | fabs' \
            "$out/accuracy.json" | percentiles "$(printf '%-14s' "$group")"
    done
    awk '{print $1}' "$out/apart" | percentiles 'the slowest of equal runs beside the fastest:'
    # No prediction can be expected to be nearer to a run than the same run in other tries.
    awk 'NF == 3 {print $3 < 0 ? -$3 : $3}' "$out/apart" | percentiles 'every other try predicted by the others:'
}

stage_runs()
{
    local t
    for t in $(seq "$tries"); do
        calibrate ${each:+"$out/try$t"}
        once "$out/try$t"
    done
    stage_table
}

stage_table()
{
    usual
    errors
}

# Model, ranks, batch size, steps and further options of each search; the first ones have some of everything.
searches()
{
    local ranks size
    local mlp=(64 128 32 256) cnn=(32 64 16 128) gpt=(8 4 16 32)
    for size in 0 1 2 3; do
        for ranks in 2 4; do
            echo mlp $ranks ${mlp[size]} 40
            echo cnn $ranks ${cnn[size]} 14
            echo gpt $ranks ${gpt[size]} 14
            [ $size -gt 0 ] || printf '%s --precision bf16\n' "mlp $ranks 64 20" "cnn $ranks 32 10" "gpt $ranks 4 8"
        done
        [ $size -gt 0 ] || printf '%s\n' 'mlp 8 64 40' 'cnn 8 64 14' 'gpt 8 8 14'
    done
}

stage_plans()
{
    local name ranks batch steps options k search
    calibrate
    mkdir -p "$out/plans"
    while read -r name ranks batch steps options; do
        search=$name-$ranks-$batch${options// /}
        [[ $search =~ $only ]] || continue
        for k in 1 2 3 4 5; do
            "$tessera" plan $(model "$name") --batch-size "$batch" --steps "$steps" $options --ranks "$ranks" \
                --device "$out/host.yaml" --top 5 --choose $k --out "$out/plans/$search.$k.yaml" \
                >"$out/plans/$search.log" 2>&1 || break
        done
    done < <(searches)
}

# same A B: do two configurations of plans differ in their comments alone?
same()
{
    cmp -s <(grep -v '^#' "$1") <(grep -v '^#' "$2")
}

# tried SEARCH OPTIONS...: what the plan chooses with --try, as SEARCH.tried.yaml, if it is none of SEARCH.K.yaml; how
# it is called among the search's files
tried()
{
    local search=$1 file
    shift
    "$tessera" plan "$@" --device "$out/host.yaml" --top 5 --try 5 --try-s "$try_s" \
        --out "$out/plans/$search.tried.yaml" >"$out/plans/$search.tried.log" 2>&1 || return
    for file in "$out/plans/$search".[1-5].yaml; do
        if same "$file" "$out/plans/$search.tried.yaml"; then
            rm "$out/plans/$search.tried.yaml"
            basename "${file%.yaml}"
            return
        fi
    done
    echo "$search.tried"
}

# Steps of a turn: those of 0.3 s, if they take what is predicted.
turn_steps()
{
    awk '/^# A step of/ {n = int(0.3 / $5)} END {print (n < 8 ? 8 : n > 300 ? 300 : n)}' "$1"
}

# judge SEARCH: train all its layouts in turns, every other round backwards; a line for each turn: layout, round,
# seconds of a step. What the machine does beside it slows the turns of a round alike.
judge()
{
    local file round steps=$(turn_steps "$out/plans/$1.1.yaml") files=("$out/plans/$1".*.yaml) i
    for round in 1 2 3 4 5 6 7 8; do
        for i in "${!files[@]}"; do
            file=${files[round % 2 ? i : ${#files[@]} - 1 - i]}
            train "$out/choice" "$file" --steps "$steps" || continue
            echo "$(basename "${file%.yaml}") $round $(measured "$out/choice" || true)"
        done
    done
}

# Of each search: choose with --try, and after that let the five and the chosen one be judged. Searches that are in
# FOLDER already are left as they are.
stage_choice()
{
    local name ranks batch steps options search
    while read -r name ranks batch steps options; do
        search=$name-$ranks-$batch${options// /}
        [[ $search =~ $only && -f $out/plans/$search.1.yaml && ! -s $out/plans/$search.rounds ]] && in_time || continue
        rm -f "$out/plans/$search".tried.*
        tried "$search" $(model "$name") --batch-size "$batch" --steps "$steps" $options --ranks "$ranks" \
            >"$out/plans/$search.chosen"
        judge "$search" >"$out/choice.rounds"
        mv "$out/choice.rounds" "$out/plans/$search.rounds"
    done < <(searches)
    (cd "$out/plans" && awk -f "$configs/../bench/plan_choice.awk" *.chosen *.rounds)
}

# Racks, hosts in each, Mbit/s of a host and of a rack, ranks of a host, model, strategy, ranks.
labs='1 2 200 1000 1 mlp ddp 2
1 2 200 1000 1 mlp fsdp 2
1 2 200 1000 1 gpt ddp 2
1 2 200 1000 1 gpt pp 2
1 2 200 1000 1 cnn ddp 2
1 2 200 1000 2 gpt fsdp 4
2 2 400 100 1 mlp ddp 4
2 2 400 100 1 gpt fsdp 4
2 2 400 100 1 gpt pp 4
2 2 400 100 2 mlp ddp 8'

# Rank 0 is on r0h0: the figures of this machine are that host's.
stage_hosts()
{
    local racks hosts edge uplink each name strategy ranks run
    calibrate
    cp "$out/host.yaml" "$XDG_CACHE_HOME/tessera/processor-r0h0.yaml"
    mkdir -p "$out/hosts"
    while read -r racks hosts edge uplink each name strategy ranks; do
        run=$name-$strategy-$ranks-$racks.$hosts-$edge.$uplink
        [[ $run =~ $only ]] || continue
        rm -rf "$out/hosts/$run"
        tests/cluster/lab.sh with "$racks" "$hosts" "$edge" "$uplink" -- bash -c \
            '"$0" ranks "$1" block "${@:2}" --topology.file "$LAB_DIR/topology.yaml"' \
            "$PWD/tests/cluster/lab.sh" "$each" \
            "$tessera" train $(model "$name") --steps 12 --strategy "$strategy" --ranks "$ranks" --comm tcp \
            --run "$out/hosts/$run" --evaluate off --no-save-weights --save-every off --log-every 1000 \
            >"$out/hosts/$run.log" 2>&1 </dev/null || echo "$run failed: $(tail -n 1 "$out/hosts/$run.log")" >&2
    done <<<"$labs"
    (cd "$out/hosts" && "$tessera" plan --accuracy */)
}

for stage in "${stages[@]}"; do
    "stage_$stage"
done
