# shellcheck shell=bash
# The stages of bench/gpu_check.sh that prove something: each ends with 0, or fails with a last line that says
# what is wrong.

stage_facts()
{
    local query
    fact date "$(date -u +%FT%TZ)"
    fact commit "$(git describe --always --abbrev=12 --match=- --dirty=', changed' 2>/dev/null || echo unknown)"
    fact processor "$(nproc) cores of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
    fact memory "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
    fact system "$(uname -sr), $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-}")"
    fact seed "$TESS_TEST_SEED"
    if dry_run; then
        fact device "none: made of host code (tests/device/madeup)"
        return 0
    fi
    if ! command -v nvidia-smi >/dev/null; then fail "there is no nvidia-smi: no driver, or the wrong machine"; fi
    query=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem,compute_cap,pci.bus_id
    nvidia-smi || fail "nvidia-smi finds no device"
    fact device "$(nvidia-smi --query-gpu=$query --format=csv,noheader | head -n 1)"
    fact devices "$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)"
    fact busy "$(nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader | head -n 1)"
    fact toolkit "$(nvcc_path --version 2>/dev/null | sed -n 's/.*release //p')"
    nvidia-smi topo -m 2>/dev/null || true
}

# limited SECONDS COMMAND...: its group stays this stage's, so that what cuts the stage off ends it, too.
limited()
{
    timeout --foreground --kill-after=1 "$@"
}

# jobs_wait COUNT: until fewer than that run beside this process.
jobs_wait()
{
    while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do wait -n; done
}

# Programs on the device at once. It gives each its turn of some milliseconds, and one that waits for a result waits
# for the turns of all others: of 8 at once test_linear took 34, 37 and 60 s (H100).
device_jobs=2

# ---- triage --------------------------------------------------------------------------------------

# probe FILE NAME SECONDS: one question; its answer is a line of the table.
probe()
{
    local log=$GPU_CHECK_WORK/probe.$2 answer start
    start=$(now)
    limited "$3" "$1" "$2" >"$log" 2>&1 </dev/null
    case $? in
    0) answer=yes ;;
    77) answer="-" ;; # there is nothing to ask
    124 | 137) answer="cut off" ;;
    *) answer=no ;;
    esac
    row probes "$2" "$answer" "$(since "$start")" \
        "$(grep -v '^ *$' "$log" | sed 's/, *$//' | paste -sd ';' | cut -c 1-400)"
}

stage_triage()
{
    local folder=$GPU_CHECK_BUILD/tests/device/probe file name bad all
    if dry_run; then folder=$GPU_CHECK_BUILD/tests/device/madeup; fi
    for file in "$folder/probe_cuda" "$GPU_CHECK_BUILD/tests/device/probe/probe" "$folder/probe_nccl"; do
        name=$("$file" --list 2>"$GPU_CHECK_WORK/list.log")
        if [ -z "$name" ]; then # it does not start: the loader's words
            row probes "$(basename "$file")" no 0 "$(head -n 1 "$GPU_CHECK_WORK/list.log")"
        fi
        for name in $(grep -E "${GPU_CHECK_PROBES:-.}" <<<"$name"); do
            jobs_wait $device_jobs
            probe "$file" "$name" "$GPU_CHECK_LIMIT" &
        done
    done
    wait
    cat "$GPU_CHECK_WORK/probes.tsv"
    for file in nccl_sums nccl_one_host; do
        measure "host time of an NCCL call, $file" \
            "$(grep "^$file"$'\t' "$GPU_CHECK_WORK/probes.tsv" | sed -n 's/.*a call takes \([0-9.]*\) us.*/\1/p')" us
    done
    bad=$(awk -F '\t' '$2 == "no" || $2 == "cut off" { print $1 }' "$GPU_CHECK_WORK/probes.tsv" | paste -sd ' ')
    all=$(wc -l <"$GPU_CHECK_WORK/probes.tsv")
    measure "questions of the triage answered with yes" "$(grep -c $'\tyes\t' "$GPU_CHECK_WORK/probes.tsv")" "of $all"
    if [ -n "$bad" ]; then fail "$(wc -w <<<"$bad") of $all: no or no answer: $bad"; fi
}

# ---- tests ---------------------------------------------------------------------------------------

# One that was skipped on a machine with a device has proved nothing, so it counts as failed.
one_test()
{
    local name=$1 log=$GPU_CHECK_WORK/test.$1.log result start
    shift
    start=$(now)
    (cd "$GPU_CHECK_BUILD" && limited $((8 * GPU_CHECK_LIMIT)) "$@" >"$log" 2>&1 </dev/null)
    case $? in
    0) result=passed ;;
    77)
        result="FAILED: skipped though there is a device"
        if [[ $name =~ $(may_skip) ]]; then result=skipped; fi
        ;;
    124 | 137) result="FAILED: cut off at $((8 * GPU_CHECK_LIMIT)) s" ;;
    *) result=FAILED ;;
    esac
    row tests "$name" "$result" "$(since "$start")" "$([[ $result == passed ]] || test_words "$log")"
    if [[ $result == FAILED* ]]; then # at once: the stage may be cut off
        printf '== %s\n%s\n' "$name" "$(tail -n 60 "$log")"
    fi
}

# test_words LOG: the line that names the error.
test_words()
{
    # What a test expects is printed, too, so cmocka's own lines come first.
    { grep -E -m 1 'ERROR  |Failure|\[  FAILED' "$1" || grep -E -m 1 'ERROR|error|tessera|========= [A-Z]' "$1"; } |
        cut -c 1-300
}

# may_skip: a pattern for tests that this device may leave out: tensor cores multiply in 8 bits from 8.9 on.
may_skip()
{
    if dry_run || awk -v c="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)" \
        'BEGIN { exit !(c >= 8.9) }'; then
        echo '^no test at all$'
    else
        echo '^test_fp8_cuda$'
    fi
}

# again NAME WITH COMMAND...: a test that failed, alone and otherwise; what came of it is a line of the table.
again()
{
    local name=$1 with=$2 log=$GPU_CHECK_WORK/again.$1.$2.log code
    shift 2
    (cd "$GPU_CHECK_BUILD" && limited $((2 * GPU_CHECK_LIMIT)) "$@" >"$log" 2>&1 </dev/null)
    code=$?
    echo "== $name, $with: ended with $code"
    tail -n 40 "$log"
    case $code in
    0) code=passed ;;
    124 | 137) code="cut off" ;;
    *) code="ended with $code" ;;
    esac
    row again "$name" "$with" "$code" "$(test_words "$log")"
    write_json
}

# The longest first: those of strategies, then of communicators, then of kernels.
stage_tests()
{
    local list=$GPU_CHECK_WORK/tests.list name command folder ran bad
    tests_list "$GPU_CHECK_BUILD" >"$GPU_CHECK_WORK/tests.all"
    for folder in strategies comm kernels; do grep -F $'\t'"./tests/$folder/" "$GPU_CHECK_WORK/tests.all"; done >"$list"
    grep -vE $'\t\\./tests/(kernels|comm|strategies)/' "$GPU_CHECK_WORK/tests.all" >>"$list"
    if ! [ -s "$list" ]; then fail "there are no tests"; fi
    while IFS=$'\t' read -r name command; do
        jobs_wait $device_jobs
        # shellcheck disable=SC2086 # a program and its words
        one_test "$name" $command &
    done <"$list"
    wait
    ran=$(grep -c $'\tpassed\t' "$GPU_CHECK_WORK/tests.tsv")
    measure "tests for a device that passed" "$ran" "of $(wc -l <"$list")"
    bad=$(awk -F '\t' '$2 ~ /^FAILED/ { print $1 }' "$GPU_CHECK_WORK/tests.tsv")
    if [ -z "$bad" ]; then return; fi
    write_json
    for name in $(head -n 4 <<<"$bad"); do
        command=$(grep "^$name"$'\t' "$list" | cut -f 2)
        # shellcheck disable=SC2086
        again "$name" alone env CUDA_LAUNCH_BLOCKING=1 $command
        # shellcheck disable=SC2086
        if [ -x "$(sanitizer_path)" ]; then
            again "$name" memcheck "$(sanitizer_path)" --tool memcheck --target-processes all --print-limit 3 $command
        fi
    done
    fail "failed: $(paste -sd ' ' <<<"$bad")"
}

# ---- compute-sanitizer ---------------------------------------------------------------------------

sanitizer_path()
{
    command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"
}

# sanitizer NAME TOOL PROGRAM WORDS...: errors become exit status 9; a dry run has no tool. Leaves NAME.log and,
# when it has ended, its exit status in NAME.code.
sanitizer()
{
    local name=$GPU_CHECK_WORK/sanitize.$1 tool=(env)
    if ! dry_run; then
        tool=("$(sanitizer_path)" --tool "$2" --target-processes all --error-exitcode 9 --print-limit 5)
    fi
    shift 2
    "${tool[@]}" "$@" >"$name.log" 2>&1
    echo $? >"$name.code"
}

# The gradient programs run every operation, forward and backward, on small shapes.
stage_sanitize()
{
    local tool program log bad="" count=0 tools="memcheck racecheck synccheck" tests=$GPU_CHECK_BUILD/tests/kernels
    local programs="gradient gradient_sequence norm"
    if dry_run; then
        tools=memcheck
        if [ "${GPU_CHECK_FULL:-0}" = 0 ]; then programs=norm; fi
    elif [ ! -x "$(sanitizer_path)" ]; then
        skip "there is no compute-sanitizer here"
    fi
    rm -f "$GPU_CHECK_WORK"/sanitize.*
    for tool in $tools; do
        for program in $programs; do
            jobs_wait $device_jobs
            sanitizer "$tool.$program" "$tool" "$tests/test_$program" cuda &
        done
    done
    sanitizer memcheck.ranks memcheck "$GPU_CHECK_BUILD/tessera" train --data synthetic --synthetic-rows 256 \
        --batch-size 32 --steps 2 --mlp.hidden 64,32 --strategy fsdp --ranks 2 --device cuda --evaluate off --timeout 300 &
    wait
    for log in "$GPU_CHECK_WORK"/sanitize.*.log; do
        program=${log##*/sanitize.} program=${program%.log}
        count=$((count + 1))
        echo "== $program: ended with $(cat "${log%.log}.code")"
        if [ "$(cat "${log%.log}.code")" != 0 ]; then bad="$bad $program"; fi
        if ! grep -qE 'PASSED|hash of all parameters' "$log"; then bad="$bad $program"; fi
        grep -vE '^\[ (RUN|  *OK) ' "$log" | tail -n 40
    done
    if grep -qs 'Device not supported' "$GPU_CHECK_WORK"/sanitize.*.log; then
        skip "compute-sanitizer does not support this device, or its container"
    fi
    if [ -n "$bad" ]; then fail "errors, or no end:$(tr ' ' '\n' <<<"$bad" | sort -u | paste -sd ' ')"; fi
    measure "programs without a finding of compute-sanitizer" "$count" runs
}

# ---- the same bits -------------------------------------------------------------------------------

# Models, precisions, and layouts as RANKS:STRATEGY. One run at a time: it has the device for itself, and its
# hash is in the file of results before the next begins. The first two families have every strategy.
layouts="2:ddp 2:zero1 2:zero2 2:fsdp 2:pp 2:tp 4:hsdp 4:fsdp+tp 4:ddp+pp 4:tp+pp 8:fsdp+tp+pp 8:zero2+tp 8:hsdp+pp"
families="
mlp f32  2:dp $layouts
gpt bf16 $layouts
mlp bf16 4:fsdp+tp 8:zero2
cnn f32  2:dp 4:fsdp 4:ddp+pp
gpt f32  2:fsdp 4:tp+pp
cnn bf16 2:ddp 8:zero1"
# Those of a dry run.
families_dry="
mlp f32  2:fsdp 4:ddp+pp
mlp bf16 2:zero2"

# family_words MODEL: its shapes are small.
family_words()
{
    local positions=32 width=64 hidden=64,64,64,64,64,64,64 rows=64
    if dry_run; then positions=4 width=16; fi
    if dry_run && [ "${GPU_CHECK_FULL:-0}" = 0 ]; then hidden=16,16,16 rows=8; fi
    case $1 in
    mlp) echo "--model mlp --batch-size $rows --mlp.hidden $hidden --tensor.canonical 8" ;;
    cnn) echo "--model cnn --batch-size 16 --cnn.channels 8,8 --cnn.fc 40" ;;
    gpt)
        echo "configs/models/tiny-gpt.yaml --gpt.layers 8 --gpt.width $width --gpt.context $positions" \
            "--data.length $positions --batch-size 8 --tensor.canonical 8"
        ;;
    esac
}

# hash_of MODEL PRECISION RANKS STRATEGY WANTED: one run; its hash must be that, where there is one.
hash_of()
{
    local model=$1 precision=$2 ranks=$3 strategy=$4 wanted=$5 log=$GPU_CHECK_WORK/hash.log hash result start
    start=$(now)
    # shellcheck disable=SC2046 # words
    tessera train $(family_words "$model") --precision "$precision" --device cuda --ranks "$ranks" \
        --strategy "$strategy" --grid 8 --steps 3 --evaluate off --save-weights off --data synthetic \
        --synthetic-rows 512 --data.workers 0 --bind off --timeout $((4 * GPU_CHECK_LIMIT)) >"$log" 2>&1 </dev/null
    hash=$(sed -n 's/^hash of all parameters \([0-9a-f]\{16\}\)$/\1/p' "$log")
    if [ -z "$hash" ]; then
        result="no end: $(grep -m 1 'tessera: ' "$log" | cut -c 1-200)"
        echo "== $model $precision $ranks $strategy" && tail -n 30 "$log"
    elif [ -z "$wanted" ] || [ "$hash" = "$wanted" ]; then
        result=same
    else
        result=DIFFERENT
    fi
    row hashes "$model" "$precision" "$ranks" "$strategy" "$hash" "$result" "$(since "$start")"
    echo "$model $precision, $strategy on $ranks: ${hash:-none} $result"
    write_json
}

stage_hashes()
{
    local list=$families model precision wanted layout bad count
    if dry_run && [ "${GPU_CHECK_FULL:-0}" = 0 ]; then list=$families_dry; fi
    while read -r model precision words; do
        if [ -z "$model" ]; then continue; fi
        hash_of "$model" "$precision" 1 single ""
        wanted=$(tail -n 1 "$GPU_CHECK_WORK/hashes.tsv" | cut -f 5)
        for layout in $words; do
            hash_of "$model" "$precision" "${layout%:*}" "${layout#*:}" "${wanted:-none}"
        done
        measure "same bits: $model $precision" \
            "$(awk -F '\t' -v m="$model" -v p="$precision" '$1 == m && $2 == p && $6 == "same"' \
                "$GPU_CHECK_WORK/hashes.tsv" | wc -l)" "of $(($(wc -w <<<"$words") + 1))"
    done <<<"$list"
    bad=$(grep -vc $'\tsame\t' "$GPU_CHECK_WORK/hashes.tsv")
    count=$(wc -l <"$GPU_CHECK_WORK/hashes.tsv")
    if [ "$bad" -gt 0 ]; then fail "$bad of $count runs have other bits or none; see the log"; fi
}
