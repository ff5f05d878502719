#!/usr/bin/env bash
# commands.sh ROOT PROGRAM DOCUMENT: does every command in the shell blocks of DOCUMENT run? All blocks of a
# document run one after the other in one folder that looks like ROOT. Training is cut to DOCS_STEPS
# steps (1; 0 runs everything in full): an option --steps is added at the end of the line, where it wins.
#
#   ```sh              runs and succeeds
#   ```sh fails        runs and fails
#   ```sh needs-WHAT   needs a GPU, a cluster, root or a build: parsed, and trainings that no other program
#                      starts are explained, which refuses options that do not fit each other
#   ```text output     every line is in the output of the block before; "..." stands for what is left out
#   ```c, ```cpp       compiles against the public headers
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "${1:?usage: commands.sh ROOT PROGRAM DOCUMENT}" && pwd) || exit 2
DOCS_PROGRAM=$(realpath "${2:?usage: commands.sh ROOT PROGRAM DOCUMENT}") || exit 2
document=$root/${3:?usage: commands.sh ROOT PROGRAM DOCUMENT}
[ -f "$document" ] || { echo "docs: no document $document"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DOCS_PROGRAM DOCS_STEPS="${DOCS_STEPS:-1}"

mkdir -p "$work/place/build/release" "$work/bin"
for entry in "$root"/*; do
    case ${entry##*/} in build | runs) ;; *) ln -s "$entry" "$work/place/" ;; esac
done
cp "$here/short.sh" "$work/bin/tessera"
cp "$here/short.sh" "$work/place/build/release/tessera"
chmod +x "$work/bin/tessera" "$work/place/build/release/tessera"
export PATH="$work/bin:$PATH"
cd "$work/place" || exit 2

# Each block becomes a file NUMBER, its kind and line go to the list.
awk -v folder="$work" '
    /^ *```/ {
        info = $0; sub(/^ *```/, "", info)
        fenced = !fenced
        code = fenced && info ~ /^(sh|text output$|c$|cpp$)/
        if (code) { count++; print count "\t" FNR "\t" info; printf "" >(folder "/" count) }
        next
    }
    fenced && code { print >(folder "/" count) }' "$document" >"$work/blocks"

failures=0
count=0
while IFS=$'\t' read -r number line info; do
    wanted=0
    case $info in
    sh) ;;
    "sh fails") wanted=1 ;;
    "text output")
        tr -s ' \n' ' ' <"$work/said" >"$work/line"
        missing=$(sed 's/^ *//' "$work/$number" | tr -s ' ' | while read -r wanted; do
            [[ $wanted == *...* ]] || grep -qF -- "$wanted" "$work/line" || echo "    $wanted"
        done)
        if [ -n "$missing" ]; then
            printf 'docs: %s:%d is not in the output:\n%s\n' "$3" "$line" "$missing"
            failures=$((failures + 1))
        fi
        continue
        ;;
    c | cpp)
        sed -i '1i #include <tessera/tessera.h>' "$work/$number"
        if ! ${CC:-cc} -x "${info/cpp/c++}" -fsyntax-only -Wall -Werror -Wno-unused -I "$root/engine/include" \
            "$work/$number" 2>"$work/said"; then
            printf 'docs: %s:%d does not compile:\n%s\n' "$3" "$line" "$(sed 's/^/    /' "$work/said")"
            failures=$((failures + 1))
        fi
        count=$((count + 1))
        continue
        ;;
    *)
        if ! bash -n "$work/$number" 2>"$work/said"; then
            printf 'docs: %s:%d is no shell:\n%s\n' "$3" "$line" "$(sed 's/^/    /' "$work/said")"
            failures=$((failures + 1))
        fi
        while read -r training; do
            bash -c "tessera train $training --explain" </dev/null >"$work/said" 2>&1
            [ $? = 2 ] || continue
            printf 'docs: %s:%d: tessera train %s\n%s\n' "$3" "$line" "$training" "$(sed 's/^/    /' "$work/said")"
            failures=$((failures + 1))
        done < <(sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$work/$number" |
            sed -nE 's/^(podman .* |build\/[a-z]+\/)?tessera train ([^#&|]*).*/\2/p')
        continue
        ;;
    esac
    count=$((count + 1))
    bash -e "$work/$number" </dev/null >"$work/said" 2>&1
    code=$?
    if [ $((code != 0)) != $wanted ]; then
        printf 'docs: %s:%d ended with %d:\n%s\n' "$3" "$line" "$code" "$(tail -15 "$work/said" | sed 's/^/    /')"
        failures=$((failures + 1))
    fi
done <"$work/blocks"
[ "$failures" = 0 ] || exit 1
echo "docs: $count blocks of $3 ran or compiled"
