#!/usr/bin/env bash
# style.sh ROOT [BUILD [FOLDER]]: the form of every source. clang-format (.clang-format) would change none, and, with a
# build folder, clang-tidy (.clang-tidy) finds nothing in the C sources that it compiles, but for those of FOLDER.
# Fails otherwise.
set -euo pipefail
cd "${1:?usage: style.sh ROOT [BUILD [FOLDER]]}"
build=${2:-}
unread="^(build${3:+|$3})/"

for tool in clang-format ${build:+clang-tidy jq}; do
    command -v $tool >/dev/null || { echo "style: no $tool (Debian: $tool)" >&2; exit 1; }
done

status=0
if ! git ls-files -z '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run -Werror; then
    echo "style: clang-format -i would change the files above"
    status=1
fi
if [ -n "$build" ]; then
    # A source that several programs have is read once for each set of definitions and instructions.
    commands=$(mktemp -d)
    trap 'rm -r "$commands"' EXIT
    jq 'unique_by([.file, (.command | [scan(" -[Dm][^ ]+")])])' "$build/compile_commands.json" \
        >"$commands/compile_commands.json"
    sed -n "s|^ *\"file\": \"$PWD/\([^\"]*\.c\)\".*|\1|p" "$commands/compile_commands.json" | grep -Ev "$unread" |
        sort -u |
        xargs -P 2 -n 8 clang-tidy --quiet -p "$commands" 2>/dev/null || status=1
fi
[ $status -ne 0 ] || echo "style: in order"
exit $status
