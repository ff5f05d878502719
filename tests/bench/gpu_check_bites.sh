#!/usr/bin/env bash
# gpu_check_bites.sh BUILD: does bench/gpu_check.sh notice what is wrong? Faults of the device made of host code;
# and a folder that stands for a build, with programs that do one thing wrong.
set -uo pipefail
build=$(realpath "${1:?usage: gpu_check_bites.sh BUILD}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build"
failures=0

# program NAME: its text.
program()
{
    { echo '#!/usr/bin/env bash'; cat; } >"$work/build/$1"
    chmod +x "$work/build/$1"
}

# expect STATUS TEXT WORDS...: how the script must end, and what a line of it must be.
expect()
{
    local wanted=$1 text=$2 code
    shift 2
    rm -rf "$work/out"
    bash bench/gpu_check.sh --dry-run --out "$work/out" "$@" >"$work/output" 2>&1
    code=$?
    if [ $code != "$wanted" ]; then
        echo "gpu_check_bites: $*: ended with $code, wanted was $wanted:"
        sed 's/^/    /' "$work/output"
        failures=$((failures + 1))
    fi
    printed "$text"
}

printed()
{
    if ! grep -qE -- "$1" "$work/output"; then
        echo "gpu_check_bites: there is no '$1' in"
        sed 's/^/    /' "$work/output"
        failures=$((failures + 1))
    fi
}

# A call that fails is a no, in the library's words; work that never ends is cut off; the others answer.
export MADEUP_FAIL=cudaGraphInstantiate:1 MADEUP_STALL=update.cu:1
export GPU_CHECK_LIMIT=30 GPU_CHECK_PROBES='^(cuda_event|graph|update)$'
expect 1 '^triage +correct +FAILED .*2 of 3: no or no answer: ' --build "$build" --stage triage
unset MADEUP_FAIL MADEUP_STALL GPU_CHECK_LIMIT GPU_CHECK_PROBES
printed '^graph +no .*cudaGraphInstantiate.*out of memory'
printed '^update +cut off '
printed '^cuda_event +yes '

# One hash is another; no hash at all.
program tessera <<'P'
case "$*" in *"--strategy ddp+pp"*) echo "hash of all parameters 0123456789abcdef" ;; *"--strategy zero2"*) ;;
*) echo "hash of all parameters 42b4d35687252349" ;; esac
P
expect 1 '^hashes +correct +FAILED .*2 of 5 runs have other bits or none' --build "$work/build" --stage hashes

# A stage that hangs is stopped, with what it started; what came before is in the file; the next one has its time.
program tessera <<'P'
if [[ "$*" == *"--strategy fsdp "* ]]; then sleep 1000 & echo $! >"$(dirname "$0")/sleeper"; wait; fi
echo "hash of all parameters 42b4d35687252349"
P
expect 1 '^hashes .*cut off at 10 s' --build "$work/build" --stage hashes --stage build --stage facts --limit 10
printed '^facts +correct +ok '
if ! grep -q '"strategy": "single", "hash": "42b4d35687252349", "result": "same"' "$work/out/gpu_check.json"; then
    echo "gpu_check_bites: the file has nothing of a stage that was cut off"
    failures=$((failures + 1))
fi
# One that has ended may not have been buried yet.
state=$(sed -n 's/^State:\t//p' "/proc/$(cat "$work/build/sleeper")/status" 2>/dev/null)
if [ -n "$state" ] && [[ $state != Z* ]]; then
    echo "gpu_check_bites: what a stage had started runs on"
    failures=$((failures + 1))
fi

# One that fails where it measures ends with its own exit status, too.
program tessera <<<'exit 1'
expect 3 '^start +speed +FAILED .*the run failed' --build "$work/build" --stage start
# A prebuilt tree that does not start: the run goes on.
expect 1 '^build +correct +FAILED .*the prebuilt tree does not start' --prebuilt "$work/build" --stage facts
printed '^facts +correct +ok '

# Programs that are not there, and tests that are skipped, have proved nothing. What fails runs again, alone.
expect 1 '^sanitize +correct +FAILED .*memcheck.norm' --build "$work/build" --stage sanitize
expect 1 '^triage +correct +FAILED .*3 of 3' --build "$work/build" --stage triage
program skips <<<'exit 77'
# shellcheck disable=SC2016 # it is the program's
program fails <<<'echo "an error of its own"; [ "${CUDA_LAUNCH_BLOCKING:-0}" = 1 ]'
printf 'test_skips\t./skips\ntest_fails\t./fails cuda\n' >"$work/build/tests.tsv"
expect 1 '^tests +correct +FAILED .*failed: test_' --build "$work/build" --stage tests
printed '^test_fails +alone +passed +an error of its own'
printed '^test_skips +alone +ended with 77'

expect 2 'there is no stage' --stage nothing
expect 2 'what is' --nothing
if bash bench/gpu_check.sh --dry-run --build "$build" --out bench/results/none >/dev/null 2>&1 ||
    [ -e bench/results/none ]; then
    echo "gpu_check_bites: a dry run writes into bench/results"
    failures=$((failures + 1))
fi

[ "$failures" = 0 ] && echo "gpu_check_bites: it notices"
exit "$((failures > 0))"
