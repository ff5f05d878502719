#!/usr/bin/env bash
# checked.sh FOLDER...: is the value of every call of CUDA, cuBLASLt, cuDNN and NCCL in the sources below each
# FOLDER used? A call by name, or through a table of functions, that begins a statement or follows a cast to void
# is an error; so is CUDA_TRY of a variable, whose message names that in place of the call. And does each array in
# shared memory belong to a kernel? The emulator counts those alone (tests/kernels/emulate/statics.cpp). Lists what is
# not so and fails if there is something.
set -euo pipefail
export LC_ALL=C.UTF-8
[ $# -gt 0 ] || { echo "usage: checked.sh FOLDER..." >&2; exit 2; }

# What returns nothing, in device code, or nothing but what a call before has returned.
silent='cudaGridDependencySynchronize|cudaTriggerProgrammaticLaunchCompletion|cudaGetLastError|cudnnGetLastErrorString'

# flat FILE: its code on one line, without comments, texts and directives; a macro's body begins a statement.
flat()
{
    sed -z -E '
        s:\\\n: :g
        s:/\*([^*]|\*+[^*/])*\*+/: :g
        s/"([^"\\\n]|\\.)*"/""/g
        s://[^\n]*::g
        s/(^|\n)[ ]*#[ ]*define[ ]+[A-Za-z0-9_]+(\([^)]*\))?/;/g
        s/(^|\n)[ ]*#[^\n]*/;/g
        s/[ \n]+/ /g' "$1"
}

unchecked=0
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find "$@" -name '*.c' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' | sort >"$list"
while read -r file; do
    found=$(flat "$file" |
        grep -oE '(^|[;{})]|\<else|\<do|\<case [^:;]*:|\<default ?:) ?([A-Za-z0-9_]+(->|\.))*(cuda|cublas|cublasLt|cudnn|nccl|cu)[A-Z][A-Za-z0-9_]* ?\([^;]{0,60}' |
        grep -vE "^[^A-Za-z]*[A-Za-z0-9]*_t ?\(|\<($silent) ?\(" || true)
    if [ -n "$found" ]; then
        printf '%s: what this returns is not used:\n%s\n' "$file" "$(sed 's/^/    /' <<<"$found")"
        unchecked=$((unchecked + $(wc -l <<<"$found")))
    fi
    found=$(flat "$file" | grep -oE '\<(CUDA|CUBLAS|CUDNN|NCCL)_TRY\( ?[a-z_0-9]+ ?\) ?;' || true)
    if [ -n "$found" ]; then
        printf '%s: no call is named:\n%s\n' "$file" "$(sed 's/^/    /' <<<"$found")"
        unchecked=$((unchecked + $(wc -l <<<"$found")))
    fi
    found=$(awk '/^[A-Za-z_]/ && /[(]|__global__|__device__/ { kernel = /__global__/ }
        /^ +__shared__/ && !kernel { print "    line " NR ": " $0 }' "$file")
    if [ -n "$found" ]; then
        printf '%s: shared memory of a function that is no kernel:\n%s\n' "$file" "$found"
        unchecked=$((unchecked + $(wc -l <<<"$found")))
    fi
done <"$list"

if [ "$unchecked" -gt 0 ]; then
    echo "checked: $unchecked things are not as they should be"
    exit 1
fi
echo "checked: all is"
