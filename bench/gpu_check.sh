#!/usr/bin/env bash
# Proves and measures Tessera on a machine with an NVIDIA GPU, in one call of at most 9.5 minutes; --help shows
# more. Here: options, time limits, the table at the end. What is run: bench/gpu/prebuilt.sh, correct.sh and
# speed.sh.
set -uo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.." || exit 2
. bench/gpu/common.sh
. bench/gpu/prebuilt.sh
. bench/gpu/correct.sh
. bench/gpu/speed.sh

# name, seconds at most, correct: its failure is a failure of the whole | speed: it measures. What decides most
# in the least time comes first: a machine that is lost leaves the results of all stages before.
stages="
facts      10 correct  the device, its driver, the libraries
build     130 correct  the prebuilt tree; without one that starts, preset cuda for this device alone
triage     40 correct  a question to each part in a process of its own: yes, no, or no answer in 8 s
figure     15 speed    GPT-2 124M in bf16: tokens/s and MFU
tests     130 correct  all tests for a device; one that fails again alone, then under compute-sanitizer
sanitize   50 correct  compute-sanitizer: memcheck, racecheck and synccheck on small cases
hashes     85 correct  every strategy on 1, 2, 4 and 8 ranks that share the device: the same bits
bench      40 speed    tessera bench gpu: ceilings, each kernel's share of them, the algorithms of products
models     50 speed    steps of GPT-2 350M, 1558M and a Llama shape, with and without a graph
torch      80 speed    GPT-2 124M and 350M in PyTorch, compiled
attention  10 speed    attention beside PyTorch's, by flash and by cuDNN
fp8        15 speed    124M and Llama with fp8
start       8 speed    from the start of the process to the end of the first step
host        8 speed    the host's time in a step, at most
canonical  15 speed    the canonical order of sums against the fast one, 4 ranks on the device
fashion     8 speed    Fashion-MNIST from images to accuracy"

usage()
{
    cat <<USAGE
usage: bench/gpu_check.sh [--prebuilt TREE] [--stage NAME]... [--quick] [--out DIR] [--build DIR] [--limit S]
       bench/gpu_check.sh --make-prebuilt TREE [--build DIR]

Proves Tessera on a machine with a GPU and measures it, within 9.5 minutes. Each stage has a time limit of its
own, so that one that hangs does not take the others' time. A table comes last: every stage with its result and
time, and every measure beside its goal. DIR gets the same as gpu_check.json, which is written again after every
stage, and gpu_check.log, what all stages printed.

stages, in this order, with their limits in seconds
$(while read -r name limit kind text; do
    if [ -n "$name" ]; then printf '  %-10s %4d  %s\n' "$name" "$limit" "$text"; fi
done <<<"$stages")
options
  --prebuilt TREE       run what TREE has; build only where that does not start
  --make-prebuilt TREE  make such a tree, on a machine with the CUDA toolkit and no GPU: program, module,
                        tests and small libraries. Its build folder is --build (default: build/prebuilt)
  --stage NAME          this stage alone; may be given again
  --quick               fewer steps: whether it works, not how fast; results go into the build folder
  --out DIR             for results and logs (default: bench/results/DATE-DEVICE)
  --build DIR           build folder (default: build/gpu); with --stage one that is there is used as it is
  --limit S             no stage longer than S seconds
  --dry-run             all stages on a device made of host code, at tiny sizes, of an existing build that has
                        one (--build). Its numbers are not measurements.
environment
  TESS_DEPS           folder in which Debian packages were unpacked that the machine lacks, with
                          apt-get download PACKAGE...; for f in *.deb; do dpkg -x \$f FOLDER; done
                      of libyaml-dev libyaml-0-2 libjansson-dev libjansson4 libcmocka-dev libcmocka0
                      nettle-dev libnettle8 zlib1g-dev zlib1g libdnnl-dev libdnnl2 ocl-icd-libopencl1 pkgconf pkgconf-bin
                      libpkgconf3 dataset-fashion-mnist libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2
                      libzstd-dev libzstd1
  TESS_TEST_SEED      of the random shapes (default: random, and printed)
  GPU_CHECK_ARCHS     of --make-prebuilt, as TESS_CUDA_ARCHS (default: 90a)
  GPU_CHECK_PYTHON    with PyTorch, for the stages that compare with it (default: python3)
  GPU_CHECK_FULL=1    with --dry-run: every strategy and test in place of a few

The exit status is 0 if all went well, 1 if a stage about correctness failed, was cut off or did not run, 3 if
only one that measures did; a goal that was missed changes nothing. 2: wrong options.
USAGE
}

chosen="" quick=0 dry=0 out="" build="" limit_all="" prebuilt="" make=""
while [ $# -gt 0 ]; do
    case $1 in
    --stage | --out | --build | --limit | --prebuilt | --make-prebuilt)
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
        --prebuilt) prebuilt=$2 ;;
        --make-prebuilt) make=$2 ;;
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
export GPU_CHECK_QUICK=$quick GPU_CHECK_DRY=$dry
if [ -n "$make" ]; then
    default=build/prebuilt
    if [ "$dry" = 1 ]; then default=build/release; fi
    make_prebuilt "$make" "${build:-$default}"
    exit
fi
if [ -n "$prebuilt" ] && ! [ -x "$prebuilt/tessera" ]; then
    echo "gpu_check: there is no $prebuilt/tessera: --make-prebuilt makes such a tree" >&2
    exit 2
fi

# ---- the whole -----------------------------------------------------------------------------------

total=565 # 9.5 minutes, less 5 seconds for the table
begin=$SECONDS
patience=1
if [ "$dry" = 1 ]; then
    patience=20 # a machine of tests may stand still for a while
    build=${build:-build/release}
    out=${out:-$(mktemp -d)}
    case $(realpath -m "$out") in
    "$PWD"/bench/results*)
        echo "gpu_check: a dry run measures nothing, so it writes nothing into bench/results" >&2
        exit 2
        ;;
    esac
    echo "DRY RUN: tiny sizes on a device made of host code. The numbers are not measurements."
else
    build=${build:-build/gpu}
    if [ "$quick" = 1 ]; then out=${out:-$build/gpu_check}; fi
    out=${out:-bench/results/$(date -u +%F)-$(device_word)}
fi
mkdir -p "$out" || exit 2
export GPU_CHECK_OUT GPU_CHECK_BUILD GPU_CHECK_WORK GPU_CHECK_PREBUILT="" GPU_CHECK_LIMIT
GPU_CHECK_LIMIT=${GPU_CHECK_LIMIT:-$((8 * patience))} # of a question
GPU_CHECK_OUT=$(realpath "$out")
GPU_CHECK_BUILD=$(realpath -m "$build")
if [ -n "$prebuilt" ]; then GPU_CHECK_PREBUILT=$(realpath "$prebuilt"); fi
GPU_CHECK_WORK=$(mktemp -d)
trap 'rm -rf "$GPU_CHECK_WORK"' EXIT
export TESS_TEST_SEED=${TESS_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
if [ -n "$prebuilt" ] && [ -n "$chosen" ]; then chosen="build $chosen"; fi # which takes no time then
results=$GPU_CHECK_WORK/stages.tsv
for table in facts stages probes measures clocks tests again hashes; do touch "$GPU_CHECK_WORK/$table.tsv"; done
: >"$GPU_CHECK_OUT/gpu_check.log"

# stage NAME LIMIT KIND: in a process of its own.
stage()
{
    local name=$1 limit=$(($2 * patience)) kind=$3 left start code log=$GPU_CHECK_WORK/stage.$1.log result
    left=$((total * patience - (SECONDS - begin)))
    if [ -n "$limit_all" ] && [ "$limit" -gt "$limit_all" ]; then limit=$limit_all; fi
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
    if [ "$limit" -lt 1 ]; then
        row stages "$name" "$kind" "no time left" 0 0
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
    row stages "$name" "$kind" "$result" "$(since "$start")" "$limit"
    printf '%6.1f s  %s\n' "$(tail -n 1 "$results" | cut -f 4)" "$result"
    { printf '\n##### %s: %s\n' "$name" "$result" && cat "$log"; } >>"$GPU_CHECK_OUT/gpu_check.log"
    write_json
}

while read -r name limit kind _; do
    if [ -z "$name" ] || { [ -n "$chosen" ] && ! grep -qw "$name" <<<"$chosen"; }; then continue; fi
    stage "$name" "$limit" "$kind"
done <<<"$stages"

# ---- what came of it -----------------------------------------------------------------------------

# table FORMAT TABLE HEAD...: its lines under a head.
table()
{
    local format=$1 file=$GPU_CHECK_WORK/$2.tsv cells
    shift 2
    if ! [ -s "$file" ]; then return; fi
    echo
    # shellcheck disable=SC2059
    printf "$format\n" "$@"
    while IFS= read -r cells; do
        # Tabs are no spaces here: a cell may be empty.
        IFS=$'\x1f' read -r -a cells <<<"${cells//$'\t'/$'\x1f'}"
        # shellcheck disable=SC2059
        printf "$format\n" "${cells[@]:0:$#}"
    done <"$file"
}

table '%-18s %s' facts fact ""
table '%-18s %-8s %6s  %s' probes question answer s "what was printed"
table '%-42s %-9s %7s  %s' again "test that failed" with result "its first line"
table '%-10s %-8s %-50s %8s %7s' stages stage kind result s limit
table '%-46s %12s %-10s %12s  %s' measures measure measured unit asked goal
if [ "$dry" = 1 ]; then
    echo
    echo "DRY RUN: these numbers are of tiny sizes on the processor and are not measurements."
fi
write_json
echo "written: $GPU_CHECK_OUT/gpu_check.json and gpu_check.log beside it, in $((SECONDS - begin)) s"

# A stage about correctness that was skipped has proved nothing.
if awk -F '\t' '$2 == "correct" && $3 != "ok"' "$results" | grep -q .; then exit 1; fi
if awk -F '\t' '$3 != "ok" && $3 !~ /^skipped/' "$results" | grep -q .; then exit 3; fi
exit 0
