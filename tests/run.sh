# shellcheck shell=bash
# Running tests and what is printed of them. Sourced by test.sh, .ci/run and .ci/full.

# tests_run BUILD [ARGUMENTS OF CTEST]: the tests of a build folder, three at a time for every core, since many wait.
# Before CTest's summary, which comes last, the slowest and the skipped ones. The status is CTest's.
tests_run()
{
    local build=$1 fixed='' status=0
    shift
    # The thread sanitizer of gcc 12 and clang 14 cannot place its shadow memory where the kernel spreads
    # addresses over 32 random bits; without randomisation it always can.
    if grep -q '^TESS_SANITIZE:STRING=thread' "$build/CMakeCache.txt" && setarch "$(uname -m)" -R true 2>/dev/null; then
        fixed="setarch $(uname -m) -R"
    fi
    # The address sanitizer gives what it knows of a large block back to the system when the block is freed, and for the
    # next one meets a fault for each page of it; and each process that a test forks copies the table of the pages of
    # 256 MiB that were freed: a quarter of the system's time. The last 64 MiB are found as well.
    export ASAN_OPTIONS=clear_shadow_mmap_threshold=1000000000:quarantine_size_mb=64${ASAN_OPTIONS:+:$ASAN_OPTIONS}
    # shellcheck disable=SC2086
    $fixed ctest --test-dir "$build" -j $(($(nproc) * 3)) --output-on-failure --output-junit junit.xml "$@" | tests_hold "$build" ||
        status=$?
    return $status
}

# tests_hold BUILD: passes CTest's lines on; its last lines are held back until tests_summary has printed.
tests_hold()
{
    local line held=''
    while IFS= read -r line; do
        if [ -n "$held" ] || [[ $line =~ ^[0-9]+%\ tests\ passed ]]; then
            held+=$line$'\n'
        else
            printf '%s\n' "$line"
        fi
    done
    tests_summary "$1"
    printf '\n%s' "$held"
}

# tests_summary BUILD: the ten slowest tests, and each test or case of a test that was skipped. From the file
# of durations and the log that CTest writes.
tests_summary()
{
    local junit=$1/junit.xml slowest skipped
    slowest=$(sed -n 's/.*<testcase name="\([^"]*\)".* time="\([0-9.]*\)".*/\2 \1/p' "$junit" | sort -rn | sed -n 1,10p)
    # cmocka names a skipped case when it comes to it, and again at the end.
    skipped=$(sed -n 's/.*<testcase name="\([^"]*\)".* status="notrun".*/\1/p' "$junit"
        awk '/^[0-9]+\/[0-9]+ Test: / { test = $3 }
             /^\[  SKIPPED \] [a-z_0-9]+$/ { print test ": " $4 }' "$1/Testing/Temporary/LastTest.log" | sort -u)
    printf 'Slowest tests, in seconds:\n'
    awk '{ printf "%8.1f  %s\n", $1, $2 }' <<<"$slowest"
    if [ -z "$skipped" ]; then
        printf 'Skipped: none\n'
    else
        printf 'Skipped: %d\n' "$(wc -l <<<"$skipped")"
        awk '{ print "          " $0 }' <<<"$skipped"
    fi
}
