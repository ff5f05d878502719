#!/usr/bin/env bash
# bites.sh PROGRAM: do names.sh and commands.sh find what they should? In a tree of its own: one fault at a time, for
# names.sh one fault in each page.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "${1:?usage: bites.sh PROGRAM}")
tree=$(mktemp -d)
NAMES_KNOWN=$(mktemp) # the program is the same all along
export NAMES_KNOWN
trap 'rm -rf "$tree" "$NAMES_KNOWN"' EXIT
mkdir -p "$tree/docs" "$tree/engine/base"
ln -s "$(cd "$here/../.." && pwd)/engine/include" "$tree/engine/include"
echo 'getenv("TESSERA_MODULE_PATH")' >"$tree/engine/base/log.c"
failures=0

# page TEXT [NAME]: the document under test, sound but for TEXT.
page()
{
    cat - <(printf '%s\n' "$1") >"$tree/docs/${2:-page}.md" <<'P'
# A page

`--ranks`, `--fsdp.keep-last`, `tessera bench comm`, `engine/base/log.c`, `log.c` and `TESSERA_MODULE_PATH` exist,
as do [this page](page.md#a-page) and `TESSERA_BATCH_SIZE`. `cmake --install build` is not ours.

```sh
tessera train --data synthetic --ranks 1     # not --an-option
build/release/tessera \
    version
```

```text output
tessera ...
```

```sh fails
tessera train --data synthetic --batch-size 0
```

```text output
error: command line: batch-size
is out of range
```

```c
int page_status(void)
{
    return TESS_OK;
}
```

```sh needs-gpu
torchrun --nproc-per-node 2 tessera train --strategy fsdp
```
P
}

# expect WANTED TEXT COMMAND...: whether COMMAND succeeds, and what it prints.
expect()
{
    local wanted=$1 text=$2 said code
    shift 2
    said=$("$@" 2>&1)
    code=$?
    if [ $((code != 0)) != "$wanted" ] || ! grep -qF -- "$text" <<<"$said"; then
        printf 'bites: %s ended with %d, expected was "%s":\n%s\n' "${1##*/}" "$code" "$text" "$said"
        failures=$((failures + 1))
    fi
}

# planted RULE PLACE: names.sh must complain by that rule, and name the place.
rules=() places=()
planted()
{
    rules+=("$1") places+=("$2")
}

# names RULE TEXT, runs WHAT TEXT: the fault that TEXT must bring about.
names()
{
    local name=page${#rules[@]}
    page "$2" "$name"
    planted "$1" "docs/$name.md:"
}

runs()
{
    page "$2"
    expect 1 "$1" bash "$here/commands.sh" "$tree" "$program" docs/page.md
}

block()
{
    printf '```%s\n%s\n```' "$1" "$2"
}

page ""
expect 0 "1 documents" bash "$here/names.sh" "$tree" "$program"
expect 0 "3 blocks of docs/page.md ran" bash "$here/commands.sh" "$tree" "$program" docs/page.md

names "an option that does not exist" 'Use `--strategie ddp`.'
names "an option that does not exist" "$(block "sh needs-gpu" 'mpirun -n 2 tessera train --rank 2')"
names "an option that does not exist" "$(block sh 'tessera train \
    --batchsize 2')"
names "an option that does not exist" 'Use `tessera diff --ranks 2`.'
names "a command that does not exist" 'Use `tessera bench network`.'
names "a command that does not exist" "$(block sh 'tessera tran')"
names "a file that does not exist" 'See `engine/base/lag.c`.'
names "a file that does not exist" 'See `lag.c`.'
names "a file that does not exist" "$(block sh 'tessera train docs/none.yaml')"
names "a link that leads nowhere" 'See [there](none.md).'
names "a link that leads nowhere" 'See [there](page.md#another-page).'
names "a variable that nothing reads" 'Set `TESSERA_MODUL_PATH`.'
names "a command outside" '    tessera version'
names "a block of an unknown kind" "$(block shell ls)"
names "a line of more" "$(printf '%0121d' 0)"
names "a word for persons" 'The rank tells rank 0.'
yes | head -151 >"$tree/README.md"
planted "a long README" README.md:
mkdir "$tree/configs" "$tree/topology"
printf '# A configuration:\n#\n#     tessera train configs/a.yaml --rnks 2    # two\n' >"$tree/configs/a.yaml"
planted "an option that does not exist" configs/a.yaml:
"$program" help train all | sed -n 's/^  --\(\[no-\]\)*\([^ ]*\) .*/`--\2`/p' | grep -v momentum >"$tree/docs/options.md"
planted "an option that docs/options.md lacks" --momentum
planted "a command that docs/options.md lacks" train
echo '`include`' >"$tree/engine/DESIGN.md"
planted "a room that engine/DESIGN.md lacks" engine/base
said=$(bash "$here/names.sh" "$tree" "$program" 2>&1) && { echo "bites: names.sh finds nothing"; failures=1; }
for i in "${!rules[@]}"; do
    # Below the rule, up to the next one.
    awk -v rule="docs: ${rules[i]}" '/^docs: / { here = index($0, rule) == 1 } here' <<<"$said" |
        grep -qF -- "${places[i]}" || {
        printf 'bites: not found: %s, in %s\n' "${rules[i]}" "${places[i]}"
        failures=$((failures + 1))
    }
done
runs "ended with 2" "$(block sh 'tessera train --data synthetic --no-such-option 1')"
runs "ended with 1" "$(block sh 'tessera version
false
tessera version')"
runs "ended with 0" "$(block "sh fails" 'tessera version')"
runs "is not in the output" "$(block "text output" 'tessera: warning')"
runs "does not compile" "$(block c 'int x = TESS_NO_SUCH;')"
runs "is no shell" "$(block "sh needs-gpu" 'for')"
runs "runs on 1 rank, not 4" "$(block "sh needs-gpu" 'tessera train --data synthetic \
    --ranks 4 &')"

[ "$failures" = 0 ] || exit 1
echo "bites: every fault was found"
