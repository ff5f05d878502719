#!/usr/bin/env bash
# Proves and measures Tessera on a machine with an NVIDIA GPU, in one call of at most 9 minutes; --help shows
# more. Here: options, time limits, the table at the end. What is run: bench/gpu/correct.sh and speed.sh.
set -uo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.." || exit 2
. bench/gpu/common.sh
. bench/gpu/correct.sh
. bench/gpu/speed.sh

# name, seconds at most, correct: its failure is a failure of the whole | speed: it measures.
stages="
facts      12 correct  the device, its driver, the compiler
build     120 correct  preset cuda, code for this device alone
tests      75 correct  ctest -L gpu: kernels, communicators and strategies on the device
sanitize   30 correct  compute-sanitizer: memcheck, racecheck and synccheck on small cases
hashes     45 correct  every strategy on 1, 2, 4 and 8 ranks that share the device: the same bits
start      12 speed    from the start of the process to the end of the first step
bench      33 speed    tessera bench gpu: ceilings, and each kernel's share of them
models     55 speed    steps of GPT-2 124M, 350M, 1558M and a Llama shape, with and without a graph
host       10 speed    the host's time in a step, at most
canonical  25 speed    the canonical order of sums against the fast one, 4 ranks on the device
torch     103 speed    the same GPT-2 steps in PyTorch
fashion    15 speed    Fashion-MNIST from images to accuracy"

usage()
{
    cat <<USAGE
usage: bench/gpu_check.sh [--stage NAME]... [--quick] [--out DIR] [--build DIR] [--limit S] [--dry-run]

Builds Tessera on a machine with an NVIDIA GPU, proves it and measures it, within 9 minutes. Each stage has a
time limit of its own, so that one that hangs does not take the others' time. A table comes last: every stage
with its result and time, and every measure beside its goal. DIR gets the same as gpu_check.json,
and the log of every stage.

stages, in this order, with their limits in seconds
$(while read -r name limit kind text; do
    if [ -n "$name" ]; then printf '  %-10s %4d  %s\n' "$name" "$limit" "$text"; fi
done <<<"$stages")
options
  --stage NAME   this stage alone; may be given again
  --quick        fewer steps: whether it works, not how fast; results go into the build folder
  --out DIR      for results and logs (default: bench/results/DATE-DEVICE)
  --build DIR    build folder (default: build/gpu); with --stage one that is there is used as it is
  --limit S      no stage longer than S seconds
  --dry-run      the logic of all stages on the processor: tiny sizes, on a simulated device (the
                 stand-in of tests/cli), of an existing build (--build). Its numbers are not measurements.
environment
  TESS_DEPS           folder in which Debian packages were unpacked that the machine lacks, with
                          apt-get download PACKAGE...; for f in *.deb; do dpkg -x \$f FOLDER; done
                      of libyaml-dev libyaml-0-2 libjansson-dev libjansson4 libcmocka-dev libcmocka0
                      zlib1g-dev zlib1g libdnnl-dev libdnnl2 ocl-icd-libopencl1 pkgconf pkgconf-bin
                      libpkgconf3 dataset-fashion-mnist
  TESS_TEST_SEED      of the random shapes (default: random, and printed)
  GPU_CHECK_PYTHON    of the stage torch (default: python3)

The exit status is 0 if all went well, 1 if a stage about correctness failed, was cut off or did not run, 3 if
only one that measures did; a goal that was missed changes nothing. 2: wrong options.
USAGE
}

chosen="" quick=0 dry=0 out="" build="" limit_all=""
while [ $# -gt 0 ]; do
    case $1 in
    --stage | --out | --build | --limit)
        if [ $# -lt 2 ]; then
            echo "gpu_check: $1 needs a value" >&2
            exit 2
        fi
        case $1 in
        --stage)
            if ! grep -q "^$2 " <<<"$stages"; then
                echo "gpu_check: there is no stage '$2'; --help lists them" >&2
                exit 2
            fi
            chosen="$chosen $2"
            ;;
        --out) out=$2 ;;
        --build) build=$2 ;;
        --limit) limit_all=$2 ;;
        esac
        shift
        ;;
    --quick) quick=1 ;;
    --dry-run) dry=1 quick=1 ;;
    --list) list=1 ;;
    --run) run=$2 && shift ;; # one stage, in a process that can be stopped; used by this script alone
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "gpu_check: what is '$1'? --help lists the options" >&2
        exit 2
        ;;
    esac
    shift
done
if [ -n "${list:-}" ]; then
    awk 'NF { print $1, $2, $3 }' <<<"$stages"
    exit 0
fi
if [ -n "${run:-}" ]; then
    check_environment
    "stage_$run"
    exit
fi

# ---- the whole -----------------------------------------------------------------------------------

total=535 # 9 minutes, less 5 seconds for the table
begin=$SECONDS
if [ "$dry" = 1 ]; then
    build=${build:-build/release}
    out=${out:-$(mktemp -d)}
    case $(realpath -m "$out") in
    "$PWD"/bench/results*)
        echo "gpu_check: a dry run measures nothing, so it writes nothing into bench/results" >&2
        exit 2
        ;;
    esac
    echo "DRY RUN: tiny sizes on the processor, on a simulated device. The numbers are not measurements."
else
    build=${build:-build/gpu}
    if [ "$quick" = 1 ]; then out=${out:-$build/gpu_check}; fi
    out=${out:-bench/results/$(date -u +%F)-$(device_word)}
fi
mkdir -p "$out" || exit 2
export GPU_CHECK_OUT GPU_CHECK_BUILD GPU_CHECK_WORK GPU_CHECK_QUICK=$quick GPU_CHECK_DRY=$dry
GPU_CHECK_OUT=$(realpath "$out")
GPU_CHECK_BUILD=$(realpath -m "$build")
GPU_CHECK_WORK=$(mktemp -d)
trap 'rm -rf "$GPU_CHECK_WORK"' EXIT
export TESS_TEST_SEED=${TESS_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
results=$GPU_CHECK_WORK/stages.tsv
touch "$results" "$GPU_CHECK_WORK/measures.tsv" "$GPU_CHECK_WORK/facts.tsv"

# stage NAME LIMIT KIND: in a process of its own; its log in the folder of results.
stage()
{
    local name=$1 limit=$2 kind=$3 left start code log=$GPU_CHECK_OUT/$1.log result
    left=$((total - (SECONDS - begin)))
    if [ -n "$limit_all" ] && [ "$limit" -gt "$limit_all" ]; then limit=$limit_all; fi
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
    if [ "$limit" -lt 1 ]; then
        printf '%s\t%s\tno time left\t0\t0\n' "$name" "$kind" >>"$results"
        return
    fi
    printf '%-10s ' "$name"
    start=$(now)
    # The whole process group: a build or a test starts others.
    timeout --kill-after=3 "$limit" bash bench/gpu_check.sh --run "$name" >"$log" 2>&1 </dev/null
    code=$?
    case $code in
    0) result=ok ;;
    77) result="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) result="cut off at $limit s" ;;
    *) result="FAILED ($code): $(grep -v '^ *$' "$log" | tail -n 1 | cut -c 1-160)" ;;
    esac
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$kind" "$(tr '\t' ' ' <<<"$result")" \
        "$(since "$start")" "$limit" >>"$results"
    printf '%6.1f s  %s\n' "$(tail -n 1 "$results" | cut -f 4)" "$result"
}

while read -r name limit kind _; do
    if [ -z "$name" ] || { [ -n "$chosen" ] && ! grep -qw "$name" <<<"$chosen"; }; then continue; fi
    stage "$name" "$limit" "$kind"
done <<<"$stages"

# ---- what came of it -----------------------------------------------------------------------------

echo
while IFS=$'\t' read -r key text; do
    printf '%-10s %s\n' "$key" "$text"
done <"$GPU_CHECK_WORK/facts.tsv"
printf '\n%-10s %8s %7s  %s\n' stage s limit result
while IFS=$'\t' read -r name _ result seconds limit; do
    printf '%-10s %8.1f %7d  %s\n' "$name" "$seconds" "$limit" "$result"
done <"$results"
if [ -s "$GPU_CHECK_WORK/measures.tsv" ]; then
    printf '\n%-46s %12s %-10s %12s  %s\n' measure measured unit asked goal
    while IFS=$'\t' read -r name value unit asked met; do
        printf '%-46s %12s %-10s %12s  %s\n' "$name" "$value" "$unit" "$asked" "$met"
    done <"$GPU_CHECK_WORK/measures.tsv"
fi
if [ "$dry" = 1 ]; then
    echo
    echo "DRY RUN: these numbers are of tiny sizes on the processor and are not measurements."
fi
write_json "$GPU_CHECK_OUT/gpu_check.json"
echo "written: $GPU_CHECK_OUT/gpu_check.json and the logs beside it, in $((SECONDS - begin)) s"

# A stage about correctness that was skipped has proved nothing.
if awk -F '\t' '$2 == "correct" && $3 != "ok"' "$results" | grep -q .; then exit 1; fi
if awk -F '\t' '$3 != "ok" && $3 !~ /^skipped/' "$results" | grep -q .; then exit 3; fi
exit 0
