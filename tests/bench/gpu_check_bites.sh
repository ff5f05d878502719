#!/usr/bin/env bash
# gpu_check_bites.sh BUILD: does bench/gpu_check.sh notice what is wrong? A folder stands for a build, whose
# program does as the build's own but for one fault at a time.
set -uo pipefail
build=$(realpath "${1:?usage: gpu_check_bites.sh BUILD}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/tests/cli"
ln -s "$build/tests/cli/standin" "$work/build/tests/cli/standin"
failures=0

# program: the text of a program in the place of tessera; $real is the true one.
program()
{
    { echo '#!/usr/bin/env bash'; echo "real=$build/tessera"; cat; } >"$work/build/tessera"
    chmod +x "$work/build/tessera"
}

# expect STATUS TEXT WORDS...: how the script must end, and what it must print.
expect()
{
    local wanted=$1 text=$2 code
    shift 2
    rm -rf "$work/out"
    bash bench/gpu_check.sh --dry-run --build "$work/build" --out "$work/out" "$@" >"$work/output" 2>&1
    code=$?
    if [ $code != "$wanted" ] || ! grep -qE -- "$text" "$work/output"; then
        echo "gpu_check_bites: $*: ended with $code, wanted was $wanted and '$text':"
        sed 's/^/    /' "$work/output"
        failures=$((failures + 1))
    fi
}

program <<'P'
"$real" "$@" || exit
# The first hash of one file is another.
for word; do
    if [[ $word == *gpt-bf16.4.json ]]; then
        sed -i '0,/"hash": "[0-9a-f]\{16\}"/s//"hash": "0123456789abcdef"/' "$word"
    fi
done
P
expect 1 'hashes .*FAILED .*1 of 2 families' --stage hashes

program <<'P'
for word; do [[ $word == *mlp-f32.8* ]] && exit 1; done
exec "$real" "$@"
P
expect 1 'hashes .*FAILED .*1 of 2 families' --stage hashes

# A stage that hangs is stopped, with what it started, and the next one has its time.
program <<'P'
if [ "$1" = train ]; then sleep 1000 & echo $! >"$(dirname "$0")/sleeper"; wait; fi
P
expect 3 '^fashion .*cut off at 2 s' --stage start --stage build --stage fashion --limit 2
if ! grep -qE '^start .*cut off at 2 s' "$work/output" || ! grep -qE '^build .* ok$' "$work/output"; then
    echo "gpu_check_bites: a stage that hangs took more than itself"
    failures=$((failures + 1))
fi
# One that has ended may not have been buried yet.
state=$(sed -n 's/^State:\t//p' "/proc/$(cat "$work/build/sleeper")/status" 2>/dev/null)
if [ -n "$state" ] && [[ $state != Z* ]]; then
    echo "gpu_check_bites: what a stage had started runs on"
    failures=$((failures + 1))
fi

# One that fails where it measures ends with its own exit status, too.
program <<<'exit 1'
expect 3 'start .*FAILED .*the run failed' --stage start

# Programs that are not there, and tests that are skipped, have proved nothing.
expect 1 'sanitize .*FAILED .*memcheck.gradient' --stage sanitize
cat >"$work/build/CTestTestfile.cmake" <<'T'
add_test(test_linear_standin sh -c "exit 77")
set_tests_properties(test_linear_standin PROPERTIES SKIP_RETURN_CODE 77)
T
expect 1 'tests .*FAILED .*1 tests were skipped' --stage tests
echo 'add_test(test_linear_standin sh -c "exit 1")' >"$work/build/CTestTestfile.cmake"
expect 1 'tests .*FAILED .*failed: test_linear_standin' --stage tests

expect 2 'there is no stage' --stage nothing
expect 2 'what is' --nothing
if bash bench/gpu_check.sh --dry-run --build "$build" --out bench/results/none >/dev/null 2>&1 ||
    [ -e bench/results/none ]; then
    echo "gpu_check_bites: a dry run writes into bench/results"
    failures=$((failures + 1))
fi

[ "$failures" = 0 ] && echo "gpu_check_bites: it notices"
exit "$((failures > 0))"
