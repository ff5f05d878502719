#!/bin/bash
# Files that a user names: what is written replaces regular files only, what is read never waits, and text that is
# lost on its way to stdout is an error. Then a stack of 64 KiB. Usage: test_files.sh PROGRAM.
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
small=(train --data synthetic --synthetic-rows 64 --batch-size 8 --steps 2 --evaluate off --model mlp
       --mlp.hidden 4 --ranks 1 --strategy single)

fail()
{
    echo "$*"
    sed 's/^/    /' err
    failures=$((failures + 1))
}

# expect STATUS WORD ARGUMENT...: the program ends within 20 s, with this status and WORD in its message.
expect()
{
    local status=$1 word=$2 is
    shift 2
    timeout 20 "$program" "$@" >out 2>err </dev/null
    is=$?
    [[ $is == "$status" ]] || fail "exit status $is, not $status: $*"
    [[ -z $word ]] || grep -qF -- "$word" err || fail "without '$word': $*"
}

# before STATUS WORD ARGUMENT...: the same, before the first step.
before()
{
    expect "$@"
    grep -q 'hash of all parameters' out && fail "trained first: ${*:3}"
}

mkfifo fifo
mkdir folder run
touch real # an empty file is no run
chmod 640 real

# ---- outputs ----
ln -s ../real run/trace.json
expect 0 '' "${small[@]}" --trace run/trace.json
[[ -L run/trace.json && $(stat -c %a real) == 640 && $(stat -c %s real) -gt 100 ]] ||
    fail 'a link to a file: the link, the mode or the trace are lost'
for target in fifo /dev/full folder nowhere; do
    rm -rf run
    mkdir run
    case $target in /*) ln -s $target run/weights.safetensors ;; *) ln -s "../$target" run/weights.safetensors ;; esac
    before 1 '--save-weights run/weights.safetensors: cannot write there' "${small[@]}" --run run --save-every off
    [[ -L run/weights.safetensors ]] || fail "the link to $target is lost"
    rm run/weights.safetensors
    if [[ $target == fifo ]]; then mkfifo run/weights.safetensors; else mkdir run/weights.safetensors; fi
    before 1 '--save-weights run/weights.safetensors: cannot write there' "${small[@]}" --run run --save-every off
    [[ ! -f run/weights.safetensors ]] || fail 'a FIFO or a folder was replaced'
done
[[ -p fifo && -c /dev/full ]] || fail 'what the links led to is gone'
compare=(compare "${small[@]:1:10}" --mlp.hidden 4 --ranks 1 --strategies single)
for target in folder nowhere/file; do
    before 1 "--json $target: cannot" "${compare[@]}" --json $target
    before 1 "--trace $target: cannot" "${small[@]}" --trace $target
done
# A pipe by its name may have no reader when the work is done; one that is open already has.
before 1 '--json fifo: cannot write there: it is a pipe' "${compare[@]}" --json fifo
before 1 '--trace fifo: cannot write there: it is a pipe' "${small[@]}" --trace fifo
expect 1 '--json fifo: cannot write there: it is a pipe' bench kernels --json fifo
expect 1 '--json fifo: cannot write there: it is a pipe' bench comm --json fifo
expect 1 '--out fifo: cannot write there: it is a pipe' report run --out fifo
expect 0 '' topo --machine 'node:2 gpu:2' --json >(cat >piped)
expect 0 '' topo --machine 'node:2 gpu:2' --json real --svg picture
[[ $(stat -c %a real) == 640 ]] || fail 'the mode of a file that was replaced is lost'
expect 1 '--json fifo: cannot write there' topo --machine 'node:2 gpu:2' --json fifo
expect 1 '--svg folder: cannot write there' topo --machine 'node:2 gpu:2' --svg folder
expect 0 '' topo --machine 'node:2 gpu:2' --json /dev/stdout
grep -q '^{' out || fail '--json /dev/stdout prints nothing'

# ---- inputs ----
word='a device or a pipe, not a file'
for path in fifo /dev/zero; do
    expect 2 "$word" train $path
    expect 1 "$word" topo $path
    expect 1 "$word" "${small[@]}" --ranks 2 --strategy ddp --topology.file $path --explain
    expect 1 "$word" report $path
    expect 2 "$word" diff $path $path
done
mkdir other
mkfifo other/metrics.jsonl
expect 1 "$word" report other
expect 1 "$word" generate other
expect 2 "$word" diff other other
timeout 20 "$program" train <(echo 'ranks: none') >out 2>err
grep -q none err || fail 'a pipe that is open is a configuration too'

# ---- stdout ----
for words in version help 'help train' "${small[*]}" "${compare[*]}" 'topo --machine gpu:2'; do
    # shellcheck disable=SC2086
    timeout 60 "$program" $words >/dev/full 2>err
    is=$?
    [[ $is == 1 ]] || fail "exit status $is with a full stdout: $words"
    grep -q 'standard output' err || fail "nothing says that stdout is full: $words"
done

# ---- a small stack ----
for layout in 'single --ranks 1' 'ddp --ranks 2'; do
    read -ra words <<<"$layout"
    (ulimit -s 64 && exec timeout 60 "$program" "${small[@]}" --strategy "${words[@]}" >out 2>err) ||
        fail "a stack of 64 KiB: $layout"
    grep -q 'hash of all parameters' out || fail "a stack of 64 KiB: no result: $layout"
done

echo "$failures failures"
[[ $failures == 0 ]]
