#!/usr/bin/env bash
# gpu_check_dry_run.sh BUILD: every stage of bench/gpu_check.sh on the stand-in's device. They must end well,
# within what is promised together, and leave a JSON file that can be read, and nothing in bench/results.
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

bash bench/gpu_check.sh --dry-run --build "$build" --out "$out" | tee "$out/output" ||
    { tail -n 30 "$out"/*.log; bad "it did not end well"; }
names=$(bash bench/gpu_check.sh --list | cut -d ' ' -f 1)
for name in $names; do
    case $name in
    bench | torch) allowed='ok|skipped: .+' ;; # what they measure may not be there
    *) allowed=ok ;;
    esac
    grep -qE "^$name +[0-9.]+ +[0-9]+  ($allowed)$" "$out/output" || bad "stage $name is not as it should be"
done
seconds=$(bash bench/gpu_check.sh --list | awk '{ sum += $2 } END { print sum }')
[ "$seconds" -le 535 ] || bad "the limits of all stages are $seconds s, more than 9 minutes less the table"
grep -q '^DRY RUN' "$out/output" || bad "a dry run is not marked as one"
grep -q '"dry_run": true' "$out/gpu_check.json" || bad "the file is not marked as one of a dry run"
if command -v jq >/dev/null; then
    count=$(jq '.stages | length' "$out/gpu_check.json") || bad "gpu_check.json is no JSON"
    [ "$count" = "$(wc -w <<<"$names")" ] || bad "gpu_check.json has $count stages"
elif command -v python3 >/dev/null; then
    python3 -m json.tool "$out/gpu_check.json" >/dev/null || bad "gpu_check.json is no JSON"
fi
[ "$(find bench/results | sort)" = "$before" ] || bad "it wrote into bench/results"
echo "gpu_check_dry_run: all stages walk"
