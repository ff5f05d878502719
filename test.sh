#!/usr/bin/env bash
# Installs what is missing, builds a preset and runs every test: ./test.sh [PRESET], by default release.
# CTest's own selection goes through the environment: CTEST_ARGS="-R comm" ./test.sh
set -euo pipefail
cd "$(dirname "$0")"
. tests/packages.sh

preset=${1:-release}

echo "=== Packages ==="
# Unquoted: lists of words.
# shellcheck disable=SC2086
packages_install $packages_build $packages_data

echo "=== Build (preset $preset) ==="
cmake --preset "$preset" -DTESS_TESTS=ON
cmake --build --preset "$preset"

echo "=== Tests (preset $preset) ==="
# The thread sanitizer of gcc 12 and clang 14 cannot place its shadow memory where the kernel spreads
# addresses over 32 random bits; without randomisation it always can.
fixed=
if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed="setarch $(uname -m) -R"
fi
# shellcheck disable=SC2086
exec $fixed ctest --preset "$preset" -j 2 ${CTEST_ARGS:-}
