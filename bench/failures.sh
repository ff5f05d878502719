#!/usr/bin/env bash
# What failures and checkpoints cost: bench/failures.sh [--tessera FILE] [--seconds N] [STAGE...] [-- OPTION...]
#   notice  a rank of a small model is killed, and stopped, ten times: time to the message and to the next step
#   kills   a rank is killed every 15 s for N seconds (1800): speed beside that of a calm run before and after
#   large   GPT-2 124M: time that saving blocks a step beside a memcpy of as many bytes, speed with --save-every 10,
#           a copy in memory (--redundancy), and the next step after a kill; the options are for its model
# Needs a release build, jq and a C compiler; nothing else may run. Prints one line for each figure.
set -euo pipefail
cd "$(dirname "$0")/.."

usage()
{
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit "$1"
}

tessera=$PWD/build/release/tessera seconds=1800 stages=() pid=''
while [ $# -gt 0 ]; do
    case $1 in
    --tessera) tessera=$(realpath "${2:?--tessera FILE}") && shift 2 ;;
    --seconds) seconds=${2:?--seconds N} && shift 2 ;;
    notice | kills | large) stages+=("$1") && shift ;;
    --) shift && break ;;
    -h | --help) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
done
[ ${#stages[@]} -gt 0 ] || stages=(notice kills large)
configs=$PWD/configs
scratch=$(mktemp -d)
trap '[ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"

say()
{
    printf '%-64s %s\n' "$1" "$2"
}

# calc EXPRESSION
calc()
{
    awk "BEGIN {printf \"%.3f\", $1}"
}

# begin RUN OPTIONS...: trains in the background; each line goes to RUN.log behind the time at which it came
begin()
{
    local run=$1 line
    shift
    rm -rf "$run" "$run.log" pipe
    mkfifo pipe
    : >"$run.log"
    while IFS= read -r line; do
        printf '%s %s\n' "$EPOCHREALTIME" "$line"
    done <pipe >>"$run.log" &
    "$tessera" train "$@" --run "$run" --evaluate off --no-save-weights >pipe 2>&1 &
    pid=$!
}

# when RUN REGEX COUNT: the time of the COUNT-th line; waits for it
when()
{
    local found
    until found=$(grep -E -- "$2" "$1.log" | sed -n "$3s/ .*//p") && [ -n "$found" ]; do
        kill -0 "$pid" 2>/dev/null || { cat "$1.log" >&2; exit 1; }
        sleep 0.005
    done
    echo "$found"
}

# step_after RUN TIME: when the first step after that was done; nothing where none was
step_after()
{
    awk -v since="$2" '$1 > since && $2 == "step" {print $1; exit}' "$1.log"
}

# A rank of the run under way: a child of the launcher, which is a child of the supervisor.
rank_of()
{
    local launcher ranks
    launcher=$(pgrep -P "$pid" | head -n 1)
    mapfile -t ranks < <(pgrep -P "$launcher")
    echo "${ranks[RANDOM % ${#ranks[@]}]}"
}

# saved RUN: the latest step that it has saved
saved()
{
    jq -s 'map(.saved.step // empty) | max' "$1/metrics.jsonl"
}

stage_notice()
{
    local signal at step noticed next n
    for signal in KILL STOP; do
        begin notice --data synthetic --synthetic-rows 3200 --batch-size 32 --model cnn --cnn.channels 4,6 \
            --cnn.fc 20 --strategy fsdp --ranks 4 --steps 1000000 --schedule constant --log-every 1 \
            --save-every 1000000 --restarts 1000 --redundancy memory
        for n in 1 2 3 4 5; do
            when notice " rank 0 of 4" "$n" >/dev/null
            sleep 0.5
            at=$EPOCHREALTIME
            kill -$signal "$(rank_of)"
            noticed=$(when notice '(was killed by|has been stopped)' "$n")
            step=$(when notice "restart $n of" 1)
            until next=$(step_after notice "$step") && [ -n "$next" ]; do
                sleep 0.01
            done
            say "small model, SIG$signal, s: noticed after; next step after" \
                "$(calc "$noticed - $at")  $(calc "$next - $at")"
        done
        say "small model, SIG$signal: steps to do again" \
            "$(grep -oE '[0-9]+ steps? to do again' notice.log | grep -oE '^[0-9]+' | tr '\n' ' ')"
        kill -KILL "$pid" "$(pgrep -P "$pid")"
        wait $pid 2>/dev/null || true
    done
}

# speed RUN SECONDS KILLS OPTIONS...: steps per second, and how often a rank was killed
speed()
{
    local run=$1 limit=$2 kills=$3 from to end killed=0
    shift 3
    begin "$run" "$configs/labs/fashion_cnn.yaml" --strategy fsdp --ranks 2 --steps 100000000 --schedule constant \
        --log-every 10 --save-every 1000 --keep 1 "$@"
    from=$(when "$run" ' step ' 1)
    end=$((SECONDS + limit))
    while [ $SECONDS -lt $end ]; do
        sleep 15
        if [ "$kills" = yes ] && [ $SECONDS -lt $end ]; then
            kill -KILL "$(rank_of)"
            killed=$((killed + 1))
        fi
    done
    kill -INT $pid
    wait $pid 2>/dev/null || true
    to=$(tail -n 1 "$run.log" | sed 's/ .*//')
    echo "$(calc "$(saved "$run") / ($to - $from)") $killed"
}

stage_kills()
{
    local calm more killed
    calm=$(speed calm $((seconds / 6)) no)
    killed=$(speed killed "$seconds" yes --restarts 1000000 --redundancy memory:20)
    more=$(speed calm $((seconds / 6)) no)
    say "CNN, steps/s: calm; $((${killed#* })) kills in $seconds s; calm" "${calm% *}  ${killed% *}  ${more% *}"
    say "CNN, share of the calm speed" "$(calc "2 * ${killed% *} / (${calm% *} + ${more% *})")"
}

# steps RUN FROM: mean seconds of the steps after FROM
steps()
{
    jq -s "map(select(.loss and .step >= $2)) | (last.elapsed_s - first.elapsed_s) / (last.step - first.step)" \
        "$1/metrics.jsonl"
}

stage_large()
{
    local at step next large
    large=("$configs/models/gpt2-124m.yaml" --schedule constant --log-every 1 "$@")
    cc -O2 -x c -o copy - <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(void)
{
    const size_t bytes = (size_t)124439808 * 12;
    char *from = malloc(bytes), *to = malloc(bytes);
    struct timespec begin, end;
    if (from == NULL || to == NULL)
        return 1;
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    memcpy(to, from, bytes);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.3f %d\n", (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec), to[9]);
}
END
    for _ in 1 2; do
        begin off "${large[@]}" --threads 2 --steps 16 --save-every off
        wait $pid
        begin on "${large[@]}" --threads 2 --steps 16 --save-every 10 --keep 1
        wait $pid
        say "GPT-2 124M, s a step: without saving; --save-every 10" "$(calc "$(steps off 1)")  $(calc "$(steps on 1)")"
        say "GPT-2 124M, s: blocked by each save; memcpy of its bytes" \
            "$(jq -r '.saved.blocked_s // empty' on/metrics.jsonl | tr '\n' ' ') $(./copy | cut -d ' ' -f 1)"
    done
    begin copies "${large[@]}" --threads 2 --steps 16 --save-every 1000 --restarts 1 --redundancy memory:10
    wait $pid
    say "GPT-2 124M, s a step with --redundancy memory:10" "$(calc "$(steps copies 1)")"
    begin killed "${large[@]}" --strategy fsdp --ranks 2 --steps 10 --save-every 1000 --restarts 1 --redundancy memory
    when killed ' step 4/' 1 >/dev/null
    at=$EPOCHREALTIME
    kill -KILL "$(rank_of)"
    step=$(when killed 'was killed by signal' 1)
    next=$(when killed ' rank 1 of 2' 2)
    wait $pid
    next=$(step_after killed "$next")
    say "GPT-2 124M, SIGKILL, s: noticed after; next step begins after" \
        "$(calc "$step - $at")  $(calc "$next - $at - $(steps killed 6)")"
    say "GPT-2 124M, s of a step there" "$(calc "$(steps killed 6)")"
}

for stage in "${stages[@]}"; do
    "stage_$stage" "$@"
done
