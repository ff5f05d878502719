#!/usr/bin/env bash
# Installs what is missing, builds a preset and runs every test: ./test.sh [PRESET], by default release.
# CTest's own selection goes through the environment: CTEST_ARGS="-R comm" ./test.sh
set -euo pipefail
cd "$(dirname "$0")"
. tests/packages.sh
. tests/run.sh

preset=${1:-release}

echo "=== Packages ==="
# Unquoted: lists of words.
# shellcheck disable=SC2086
packages_install $packages_build $packages_tests $packages_data

echo "=== Build (preset $preset) ==="
cmake --preset "$preset" -DTESS_TESTS=ON
cmake --build --preset "$preset"

echo "=== Tests (preset $preset) ==="
# shellcheck disable=SC2086
tests_run "build/$preset" ${CTEST_ARGS:-}
