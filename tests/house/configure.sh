#!/usr/bin/env bash
# configure.sh SOURCE: where something is missing that a build needs, CMake ends with one sentence that has the
# Debian package's name, which must be one of tests/packages.sh.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
# shellcheck source-path=SCRIPTDIR source=../packages.sh
. "$source/tests/packages.sh"

# refused TEXT... -- ENVIRONMENT... : configuring with this environment fails, with all of the texts in one error.
refused()
{
    local texts=() status=0 text
    while [ "$1" != -- ]; do
        texts+=("$1")
        shift
    done
    shift
    rm -rf "$work/build"
    env -u CMAKE_C_COMPILER_LAUNCHER -u CC "$@" "$cmake" -G Ninja -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF \
        -S "$source" -B "$work/build" >"$work/log" 2>&1 || status=$?
    # CMake breaks long lines.
    tr -s ' \n' ' ' <"$work/log" >"$work/line"
    for text in "${texts[@]}"; do
        if [ "$status" = 0 ] || ! grep -qF -e "$text" "$work/line"; then
            echo "configured with $*: status $status, without '$text': $(cat "$work/log")"
            failures=$((failures + 1))
        fi
    done
    if [ "$(grep -c 'CMake Error' "$work/log")" != 1 ]; then
        echo "configured with $*: not one error: $(cat "$work/log")"
        failures=$((failures + 1))
    fi
}

# Programs that are found, in a folder of their own.
cmake=$(command -v cmake)
mkdir "$work/bin"
for name in cc gcc as ld ar ranlib pkg-config ninja; do
    ln -s "$(command -v $name)" "$work/bin/$name"
done

# Without any of the files that pkg-config reads.
refused libyaml-dev libjansson-dev nettle-dev zlib1g-dev libpcre2-dev libutf8proc-dev libzstd-dev libdnnl-dev \
    libcmocka-dev -- PKG_CONFIG_LIBDIR="$work"
for package in $(grep -ohE '[a-z0-9-]+-dev\b' "$source/engine/needs.cmake" | sort -u) \
    ninja-build pkg-config gcc; do
    case " $(echo $packages_build) " in
    *" $package "*) ;;
    *) echo "$package is not in tests/packages.sh"; failures=$((failures + 1)) ;;
    esac
done
rm "$work/bin/pkg-config"
refused 'install pkg-config' -- PATH="$work/bin"
rm "$work/bin/ninja"
refused 'install ninja-build' -- PATH="$work/bin"
ln -s "$(command -v ninja)" "$work/bin/ninja"
rm "$work/bin/cc" "$work/bin/gcc"
refused 'install gcc' -- PATH="$work/bin"

# An older CMake: its version is what the file is given.
sed 's/CMAKE_VERSION VERSION_LESS 3.25/"3.18" VERSION_LESS 3.25/' "$source/CMakeLists.txt" >"$work/CMakeLists.txt"
rm -rf "$work/build"
"$cmake" -S "$work" -B "$work/build" >"$work/log" 2>&1 && { echo "an old CMake is taken"; failures=$((failures + 1)); }
grep -q 'Tessera needs CMake 3.25' "$work/log" || { echo "$(cat "$work/log")"; failures=$((failures + 1)); }

echo "$failures failures"
exit $((failures > 0))
