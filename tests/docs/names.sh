#!/usr/bin/env bash
# names.sh ROOT PROGRAM: does everything that the documents and configurations below ROOT name exist? Checked
# are commands and options of PROGRAM, options of the repository's scripts, files, links with their anchors,
# and the variables TESSERA_* and TESS_*. The form is checked too: commands stand in fenced blocks, lines have
# at most 120 columns, README.md at most 150 lines, and programs and ranks are not persons.
set -uo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "${1:?usage: names.sh ROOT PROGRAM}" && pwd) || exit 2
program=$(realpath "${2:?usage: names.sh ROOT PROGRAM}") || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 2
: >"$work/faults"

# fault RULE: complains about every line of stdin.
fault()
{
    local found
    found=$(sort -u)
    if [ -n "$found" ]; then
        printf 'docs: %s:\n%s\n' "$1" "$(sed 's/^/    /' <<<"$found")" | tee -a "$work/faults"
    fi
}

find . \( -path ./build -o -path ./.git \) -prune -o -type f -printf '/%P\n' >"$work/files"
mapfile -t documents < <(sed -n 's/^.\([^.].*\.md\)$/\1/p' "$work/files" | sort)
mapfile -t configs < <(find configs -name '*.yaml' 2>/dev/null | sort)
awk -f "$here/parts.awk" "${documents[@]}" "${configs[@]}" >"$work/parts"

kind()
{
    awk -F'\t' -v kind="$1" '$1 == kind { print $2 "\t" $3 }' "$work/parts"
}

kind loose | fault "a command outside a fenced block"
kind block | grep -vE $'\t(sh( (fails|needs-[a-z]+))?|text( output)?|c|cpp|cmake|yaml|json|python|)$' |
    fault "a block of an unknown kind"
grep -nHE '^.{121}' "${documents[@]}" | cut -d: -f1,2 | fault "a line of more than 120 columns"
awk 'END { if (NR > 150) print FILENAME ": " NR " lines" }' README.md 2>/dev/null | fault "a long README"
grep -nHowiE 'tells?|told|hears?|heard|wants?|somebody|nobody|whoever' "${documents[@]}" | fault "a word for persons"

# What may be written: lines COMMAND<TAB>OPTION. Commands that train also take the options of all parts; "any"
# stands for the options of all commands and of our scripts.
options()
{
    sed 's/--\[no-\]\([a-z0-9.-]*\)/--\1 --no-\1/g' | grep -oE -- '--[a-z][a-z0-9.-]*' | sed 's/[.-]*$//' | sort -u
}

names_below()
{
    "$program" help | sed -n "/^$1/,/^\$/s/^  \([a-z0-9]*\( [a-z]\+\)\?\)  .*/\1/p"
}

# NAMES_KNOWN: a file that keeps them from one run to the next (bites.sh).
known=${NAMES_KNOWN:-$work/known}
if [ ! -s "$known" ]; then
    {
        for strategy in $(names_below strategies); do "$program" train --strategy "$strategy" --help all; done
        for model in $(names_below models); do "$program" train --model "$model" --help all; done
    } | options >"$work/parts_options"
    names_below commands | while read -r command; do
        # Unquoted: "bench comm" is two words.
        # shellcheck disable=SC2086
        "$program" help $command all >"$work/page" 2>&1 || echo "$command" | fault "a command without help" >&2
        options <"$work/page" >"$work/help"
        if grep -qx -- --strategy "$work/help"; then
            cat "$work/parts_options" >>"$work/help"
        fi
        { cat "$work/help"; echo --help; } | sed "s/^/$command\t/"
    done >"$known"
fi
{ "$program" help; cat bench/*.sh bench/*/*.sh tests/cluster/*.sh demo.sh test.sh 2>/dev/null; } |
    options >"$work/scripts"
[ "$(wc -l <"$known")" -gt 20 ] || { echo "docs: $program lists no options"; exit 2; }

# Options and commands of the program. Of a line, what follows the program or a script of ours counts: what comes
# before is mpirun's or the like. Of prose, what begins with "--" or with the program's name.
{
    kind span | awk -F'\t' '$2 ~ /^--[a-z]/ || $2 ~ /^tessera /'
    kind line | awk -F'\t' 'match($2, /(tessera|[a-z_]+\.sh) /) { print $1 "\t" substr($2, RSTART) }'
} | awk -F'\t' -v known="$known" -v scripts="$work/scripts" '
    BEGIN {
        while ((getline line < known) > 0) {
            split(line, field, "\t")
            command[field[1]] = takes[field[1], field[2]] = any[field[2]] = 1
        }
        while ((getline line < scripts) > 0) any[line] = 1
        command["help"] = command["version"] = 1
    }
    {
        n = split($2, word, /[ =,`"'"'"']+/)
        name = ""
        if (word[1] == "tessera" && word[2] !~ /^(-|$)/) {
            name = word[2] " " word[3] in command ? word[2] " " word[3] : word[2]
            if (!(name in command)) print "command\t" $2 "\t" $1
        }
        for (i = 1; i <= n; i++) {
            sub(/[.:;)]+$/, "", word[i])
            if (word[i] ~ /^--[a-z]/ && !(name in command ? (name, word[i]) in takes : word[i] in any))
                print "option\t" word[i] "\t" $1
        }
    }' >"$work/wrong"
sed -n 's/^option\t//p' "$work/wrong" | fault "an option that does not exist"
sed -n 's/^command\t//p' "$work/wrong" | fault "a command that does not exist"

# docs/options.md lists every option of train but those of models and strategies, and every command.
if [ -f docs/options.md ]; then
    "$program" help train all | sed -n 's/^  \(--[^ ]*\) .*/\1/p' | sed 's/\[no-\]//' | grep -vE "^--(mlp|single)\." |
        while read -r option; do
            grep -qF "\`$option\`" docs/options.md || grep -qF "\`$option " docs/options.md || echo "$option"
        done | fault "an option that docs/options.md lacks"
    names_below commands | while read -r command; do
        grep -qE "\`tessera $command( |\`)" docs/options.md || echo "$command"
    done | fault "a command that docs/options.md lacks"
fi

# engine/DESIGN.md names every room.
if [ -f engine/DESIGN.md ]; then
    find engine topology -mindepth 1 -maxdepth 1 -type d -not -name include | while read -r room; do
        grep -qE "\`($room|${room##*/})\`" engine/DESIGN.md || echo "$room"
    done | fault "a room that engine/DESIGN.md lacks"
fi

# Files. Paths from the top, and names of sources wherever they lie; links from the document's own folder.
top=$(find . -mindepth 1 -maxdepth 1 -type d -not -name build -not -name .git -printf '%P|' | sed 's/\./\\./g; s/|$//')
{ kind span; kind line; } | awk -F'\t' -v top="^($top)/" '
    { n = split($2, word, /[ =,;"`'"'"'()]/)
      for (i = 1; i <= n; i++) {
          sub(/[.:]+$/, "", word[i]); sub(/^\.\//, "", word[i])
          if (word[i] ~ /[<>$~]/) continue
          if (word[i] ~ top) print "path\t" $1 "\t" word[i]
          else if (word[i] ~ /^[A-Za-z0-9_.\/-]+\.(c|h|cu|cuh|sh|cmake|awk|cpp|py)$/ && word[i] !~ /^(my_|\/|\.\.)/)
              print "name\t" $1 "\t" word[i]
      } }' >"$work/paths"
while IFS=$'\t' read -r sort place path; do
    if [ "$sort" = path ]; then
        compgen -G "$path" >/dev/null || echo "$path	$place"
    elif ! grep -qxF "$path" "$here/foreign"; then
        grep -q "/${path//./\\.}\$" "$work/files" || echo "$path	$place"
    fi
done <"$work/paths" | fault "a file that does not exist"

# anchors FILE: its headings as they are linked to.
anchors()
{
    awk -f "$here/parts.awk" "$1" | awk -F'\t' '$1 == "heading" { print tolower($3) }' |
        sed -E 's/[^[:alnum:] _-]//g; s/ /-/g'
}
kind link | while IFS=$'\t' read -r place target; do
    case $target in http*) continue ;; esac
    file=${place%:*}
    path=${target%%#*}
    [ -z "$path" ] || file=$(dirname "$file")/$path
    if [ ! -e "$file" ]; then
        echo "$target	$place"
    elif [[ $target == *#* ]] && ! anchors "$file" | grep -qxF -- "${target#*#}"; then
        echo "$target	$place"
    fi
done | fault "a link that leads nowhere"

# Variables: of the options, and those that the sources read.
{
    sed -n 's/.*\t--//p' "$known" | tr 'a-z.-' 'A-Z__' | sed 's/^/TESSERA_/'
    grep -rhoE '\<TESS(ERA)?_[A-Z0-9_]+' --include='*.[ch]' --include='*.cu' --include='*.sh' \
        --include='*.cmake' --include=CMakeLists.txt --exclude-dir=build .
} | sort -u >"$work/variables"
{ kind span; kind line; } | grep -E 'TESS(ERA)?_[A-Z]' | awk -F'\t' '{ rest = $2
        while (match(rest, /TESS(ERA)?_[A-Z0-9_]*[A-Z0-9]/)) {
            print substr(rest, RSTART, RLENGTH) "\t" $1; rest = substr(rest, RSTART + RLENGTH) } }' |
    sort | join -t $'\t' -v 1 - "$work/variables" | fault "a variable that nothing reads"

[ ! -s "$work/faults" ] || exit 1
echo "docs: ${#documents[@]} documents, $(kind line | wc -l) commands, $(wc -l <"$work/paths") files named"
