#!/usr/bin/env bash
# registers.sh [--write]: what ptxas gives each kernel of kernels/cuda on a Hopper GPU (sm_90a): registers of a thread,
# bytes of its stack frame, bytes of registers that are stored to it and loaded again (spills), static shared memory of
# a block. Compares with the table kernels/cuda/registers.txt and fails where they differ: a spill that is new, or a
# change without the table; --write makes the table anew. Another nvcc than the table's gives other figures: skipped.
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/../../.."
table=kernels/cuda/registers.txt nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
case ${1:-} in
'' | --write) ;;
*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac

version=$("$nvcc" --version | sed -n 's/.*release.*, V//p')
if [ "${1:-}" != --write ] && ! grep -q "^# nvcc $version " "$table"; then
    echo "registers: nvcc is $version, the table is of $(sed -n 's/^# nvcc \([^ ]*\).*/\1/p' "$table"): skipped"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One file of kernels, as a release build compiles it: a line for each kernel.
export nvcc work
compile()
{
    local out
    out=$work/$(basename "$1" .cu)
    "$nvcc" -O3 -DNDEBUG -std=c++17 -arch=sm_90a -cubin --resource-usage -Iengine/include -Iengine -Ikernels "$1" \
        -o "$out.cubin" 2>"$out.log" || { cat "$out.log" >&2; return 1; }
    awk '/Function properties for/ { name = $NF }
        /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
        / Used [0-9]+ registers/ {
            shared = 0
            for (i = 1; i < NF; i++) {
                if ($i == "Used") registers = $(i + 1)
                if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i
            }
            printf "%4d %6d %6d %6d %6d  %s\n", registers, stack, stores, loads, shared, name
        }' "$out.log" | c++filt | sed -E 's/  void /  /; s/\(.*$//' >"$out.txt"
}
export -f compile
find kernels/cuda -name '*.cu' -print0 | xargs -0 -P "$(nproc)" -I{} bash -c 'set -e; compile {}'

{
    echo "# nvcc $version for sm_90a; made by tests/kernels/cuda/registers.sh --write. Of each kernel:"
    echo "# registers, and in bytes: stack frame, spill stores, spill loads, static shared memory"
    sort -k6 "$work"/*.txt
} >"$work/table"
if [ "${1:-}" = --write ]; then
    cp "$work/table" "$table"
elif ! diff -u "$table" "$work/table"; then
    echo "registers: the kernels' resources are not those of $table: if the change is meant, --write" >&2
    exit 1
fi
awk '!/^#/ { n++; spilled += $3 + $4 > 0 } END { printf "registers: %d kernels, %d of them spill\n", n, spilled }' "$work/table"
