#!/usr/bin/env bash
# exports.sh HEADERS FILE...: every FILE, the library and the program, exports exactly the functions and variables
# that the public headers in the folder HEADERS declare.
set -euo pipefail
headers=$1
shift

# Preprocessed, without what is inside braces, one statement a line; what it declares is the last name before the
# first '(' or the end. Static functions and types are no symbols.
declared=$(for header in "$headers"/tessera/*.h; do echo "#include \"$header\""; done |
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -I"$headers" -E -P -x c - | tr '\n' ' ' |
    sed -E ':again; s/\{[^{}]*\}/;/g; t again' | tr ';' '\n' |
    grep -vE '^ *(static|typedef|struct [a-z_0-9]+ *$|enum [a-z_0-9]+ *$)' |
    sed -nE 's/^[^(]*\<(tess_[a-z_0-9]+) *(\(.*)?$/\1/p' | sort -u)
[ "$(wc -l <<<"$declared")" -gt 100 ] || { echo "only $(wc -l <<<"$declared") declarations found"; exit 1; }

failed=0
for file in "$@"; do
    exported=$(nm -D --defined-only "$file" | awk '{ print $3 }' | sort -u)
    # A program exports what the sanitizers need, too.
    [ "${file##*.so}" != "$file" ] || exported=$(grep '^tess' <<<"$exported")
    if ! difference=$(diff <(echo "$declared") <(echo "$exported")); then
        echo "$file: only declared in a public header (<), only exported (>):"
        grep '^[<>]' <<<"$difference"
        failed=1
    fi
done
exit $failed
