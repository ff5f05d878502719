#!/usr/bin/env bash
# gpu_check_dry_run.sh BUILD: every stage of bench/gpu_check.sh on the device made of host code, from a prebuilt
# tree. They must end well, within what is promised together, and leave a JSON file that can be read, and nothing
# in bench/results.
set -uo pipefail
build=${1:?usage: gpu_check_dry_run.sh BUILD}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
before=$(find bench/results | sort)

bad()
{
    echo "gpu_check_dry_run: $*"
    exit 1
}

bash bench/gpu_check.sh --dry-run --make-prebuilt "$out/tree" --build "$build" || bad "no tree was made"
# Nothing of it is bound to the build, which another machine does not have.
bound=$(find "$out/tree" -type f -perm -u+x -exec env LD_LIBRARY_PATH="$out/tree:$out/tree/lib" ldd {} + 2>/dev/null |
    grep -F "$(realpath "$build")")
[ -z "$bound" ] || bad "the tree needs the build: $bound"
bash bench/gpu_check.sh --dry-run --prebuilt "$out/tree" --out "$out" | tee "$out/output" ||
    { cat "$out/gpu_check.log"; bad "it did not end well"; }
names=$(bash bench/gpu_check.sh --list | cut -d ' ' -f 1)
for name in $names; do
    case $name in
    torch | attention) allowed='ok|skipped: .+' ;; # what they measure may not be there
    *) allowed=ok ;;
    esac
    grep -qE "^$name +(correct|speed) +($allowed) +[0-9.]+ +[0-9]+$" "$out/output" ||
        bad "stage $name is not as it should be"
done
for what in module cuda_pinned nccl_send_first product_fp8 attention graph; do
    grep -qE "^$what +yes " "$out/output" || bad "the triage has no yes for $what"
done
seconds=$(bash bench/gpu_check.sh --list | awk '$1 != "build" { sum += $2 } END { print sum }')
[ "$seconds" -le 565 ] || bad "the limits of all stages are $seconds s, more than 9.5 minutes less the table"
grep -q '^DRY RUN' "$out/output" || bad "a dry run is not marked as one"
python3 - "$out/gpu_check.json" "$(wc -w <<<"$names")" <<'PYTHON' || bad "gpu_check.json is not as it should be"
import json, sys
got = json.load(open(sys.argv[1]))
assert got['dry_run'] is True and len(got['stages']) == int(sys.argv[2])
assert len(got['probes']) >= 25 and all(p['answer'] in ('yes', '-') for p in got['probes'])
assert len(got['hashes']) >= 4 and all(len(h['hash']) == 16 for h in got['hashes'])
assert len({h['hash'] for h in got['hashes']}) == len({(h['model'], h['precision']) for h in got['hashes']})
measured = {m['name']: m['value'] for m in got['measures']}
assert measured['124m, graph on'] > 0
# A block of 29 and what is beside it; test_madeup_train has the block alone.
assert 29 < measured['124m, kernels of a step'] < 100 and measured['124m, copies and fills of a step'] > 0
PYTHON
[ "$(find bench/results | sort)" = "$before" ] || bad "it wrote into bench/results"
echo "gpu_check_dry_run: all stages walk"
