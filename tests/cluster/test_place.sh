#!/usr/bin/env bash
# test_place.sh TESSERA CONFIGS: which process becomes which rank, on hosts of their own: by a file, by the
# addresses that Slurm gives its tasks, by measuring, and by what was measured before. What an order is worth is
# test_order.sh's; nothing trains here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
tessera=${1:?usage: test_place.sh TESSERA CONFIGS} configs=${2:?}

# explain OPTION...: sets `output`, and `numbers` to the ranks of processes 0 to 7, of which the even ones are in
# rack 0 and the odd ones in rack 1.
explain()
{
    status=0
    # shellcheck disable=SC2016
    output=$(./lab.sh ranks 2 interleaved bash -c 'h=$(hostname) rack=${h%h*}
        [ -z "$SLURM_SAYS" ] || export SLURM_TOPOLOGY_ADDR=core.rack${rack#r}.$h SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node
        exec "$@"' _ "$tessera" train "$configs/labs/fashion_mlp.yaml" --data synthetic --strategy ddp --comm tcp \
        --device cpu --explain "$@" 2>&1) || status=$?
    numbers=$(grep -o 'ranks of processes 0 to 7:.*' <<<"$output" | cut -d : -f 2 || true)
}

# apart WHAT: ranks 0 to 3 are those of one rack.
apart()
{
    check_equal "$1: ranks 0 to 3 in rack 0" \
        "$(awk '{for (i = 1; i <= NF; i += 2) n += $i < 4} END {print NF, n + 0}' <<<"$numbers")" "8 4"
    check_equal "$1: the first" "$(awk '{print $1}' <<<"$numbers")" 0
}

inside()
{
    export SLURM_SAYS=
    explain --topology.order natural
    check_equal "natural" "$numbers" " 0 1 2 3 4 5 6 7"

    explain --topology.file "$LAB_DIR/topology.conf"
    apart "by Slurm's file"
    check_contains "why each rank is there" "$output" 'the most loaded link needs .* in the natural order \(4\.0'

    # The file's hosts under other names.
    sed 's/r0h/east/; s/r1h/west/' "$LAB_DIR/topology.conf" >"$LAB_DIR/named.conf"
    explain --topology.file "$LAB_DIR/named.conf"
    check_equal "hosts of other names: status" "$([ $status -ne 0 ] && echo not 0)" "not 0"
    check_contains "which host is missing" "$output" 'host r0h0, of process 0, is not in named.conf, whose hosts are called east0'
    check_equal "printed once" "$(grep -c 'error:' <<<"$output")" 1
    explain --topology.file "$LAB_DIR/named.conf" --topology.hosts 'r0h[0-1],r1h[0-1]'
    apart "hosts that are named"

    SLURM_SAYS=1
    explain
    apart "by Slurm's addresses"
    check_contains "the order is explained" "$output" "Slurm's switches: ranks follow switches rack0 rack1"
    SLURM_SAYS=

    # A busy machine may hide a rack: which order is found is judged with the speeds.
    explain --topology.save "$LAB_DIR/found.yaml"
    [ -z "${LAB_JUDGE:-}" ] || apart "measured"
    first=$numbers
    check_equal "measured: processes that have a rank" "$(wc -w <<<"$numbers")" 8
    explain --topology.file "$LAB_DIR/found.yaml"
    check_equal "by what was measured" "$numbers" "$first"

    # Nothing can be measured where hosts do not reach each other: the order stays, and the reason is printed.
    ./lab.sh run r0h1 ip route add blackhole "$(address r1h1)"
    ./lab.sh run r1h1 ip route add blackhole "$(address r0h1)"
    explain
    check_equal "without a way between two hosts: status" "$status" 0
    check_contains "without a way: why" "$(tr -s '\n ' ' ' <<<"$output")" 'the network could not be measured \(r'
    check_end
}

address()
{
    ./lab.sh run "$1" hostname -I | awk '{print $1}'
}

if [ "${3:-}" = inside ]; then
    inside
fi
check_lab
exec ./lab.sh with 2 2 1000 100 -- ./test_place.sh "$tessera" "$configs" inside
