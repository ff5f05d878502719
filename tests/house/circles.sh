#!/usr/bin/env bash
# circles.sh BUILD: do files of the product call each other in a circle? Reads from the objects that BUILD
# compiles what each defines and what it takes from others, and writes the files of a circle. Two files of
# its own that call each other have to be found first.
set -uo pipefail
export LC_ALL=C
cd "${1:?usage: circles.sh BUILD}" || exit 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# circles OBJECT...: what tsort finds wrong with their order. The pairs stay in $scratch/pairs. A name that
# several modules define counts for each of them.
circles()
{
    nm -A -g -P "$@" |
        awk '{ file = $1; sub(/:$/, "", file); sub(/^.*\.dir\//, "", file)
               if ($3 == "U") uses[++count] = file " " $2; else at[$2] = at[$2] " " file }
             END { for (i = 1; i <= count; i++) {
                       split(uses[i], use, " ")
                       n = split(at[use[2]], target, " ")
                       for (k = 1; k <= n; k++) if (target[k] != use[1]) print use[1], target[k] } }' |
        sort -u >"$scratch/pairs"
    tsort "$scratch/pairs" 2>&1 >/dev/null
}

echo 'int b(void); int a(void) { return b(); }' >"$scratch/a.c"
echo 'int a(void); int b(void) { return a(); }' >"$scratch/b.c"
(cd "$scratch" && "${CC:-cc}" -c a.c b.c) || exit 2
if [ -z "$(circles "$scratch/a.o" "$scratch/b.o")" ]; then
    echo "circles: two files that call each other were not found"
    exit 1
fi

# Not what lies about from sources that are gone. Kernels that nvcc compiles folder by folder (TESS_JOINED) are
# taken as the emulator compiles them, one by one.
mapfile -t objects < <(grep -oE ' -o [^ ]+\.o\>' compile_commands.json | cut -c5- |
    awk '/\/joined_[a-z]+\.cu\.o$/ { joined = 1; next }
         /^tests\/.*\/kernels\/cuda\/.*\.cu\.o$/ { kernel[$0]; next }
         !/^tests\// { print }
         END { if (joined) for (object in kernel) print object }')
found=$(circles "${objects[@]}")
pairs=$(wc -l <"$scratch/pairs")
if [ "$pairs" -lt 1000 ]; then
    echo "circles: ${#objects[@]} objects with $pairs calls between them cannot be all"
    exit 1
fi
if [ -n "$found" ]; then
    printf 'circles: files that call each other:\n%s\n' "$found"
    exit 1
fi
echo "circles: none among ${#objects[@]} objects with $pairs calls between them"
