#!/usr/bin/env bash
# inside.sh: the inside of a lab, run in its namespaces by lab.sh: builds switches and hosts, and starts
# commands and ranks on them. Racks are bridges in the lab's own network, which is also host `login`:
#
#     r0h0 --EDGE-- rack0 --UPLINK-- core --UPLINK-- rack1 --EDGE-- r1h0
#     r0h1 --EDGE--'                  |                   `--EDGE-- r1h1
#                                   login (not shaped)
#
# Every link is shaped at both ends by a token bucket, so each direction has the rate by itself.
set -euo pipefail

inside_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

inside_fail()
{
    echo "lab: $*" >&2
    exit 2
}

# ---- building ------------------------------------------------------------------------------------

# inside_shape MBIT BURST DEVICE [nsenter...]: what waits longer than `latency` would be dropped; TCP's
# windows stay below it.
inside_shape()
{
    local mbit=$1 burst=$2 device=$3
    shift 3
    "$@" tc qdisc replace dev "$device" root tbf rate "${mbit}mbit" burst "$burst" latency 200ms
}

# Names are looked up in /etc/hosts: the lab's covers the machine's.
inside_names()
{
    local rack host
    {
        echo "127.0.0.1 localhost"
        echo "10.77.255.1 login"
        for ((rack = 0; rack < racks; rack++)); do
            for ((host = 0; host < hosts; host++)); do
                echo "10.77.$rack.$((host + 1)) r${rack}h$host"
            done
        done
    } >"$LAB_DIR/hosts"
    mount --bind "$LAB_DIR/hosts" /etc/hosts
}

# The lab's topology, in two of the forms that Tessera reads: Slurm's, which has no rates,
# and its own, with GB/s and places for 8 ranks on each host.
inside_describe()
{
    local name place rack
    {
        for ((rack = 0; rack < racks; rack++)); do
            echo "SwitchName=rack$rack Nodes=r${rack}h[0-$((hosts - 1))]"
        done
        echo "SwitchName=core Switches=rack[0-$((racks - 1))]"
    } >"$LAB_DIR/topology.conf"
    {
        echo "tessera-topology: 1"
        echo "nodes:"
        echo "  - {name: core, kind: net}"
        for ((rack = 0; rack < racks; rack++)); do
            echo "  - {name: rack$rack, kind: net}"
        done
        inside_hosts | awk '{
            print "  - {name: " $1 ", kind: cpu, host: " NR - 1 "}"
            for (i = 0; i < 8; i++)
                print "  - {name: " $1 "." i ", kind: device, host: " NR - 1 ", index: " i "}"
        }'
        echo "links:"
        for ((rack = 0; rack < racks; rack++)); do
            echo "  - {between: [rack$rack, core], kind: net, gbs: $(awk "BEGIN {print $uplink / 8000}")}"
        done
        for name in $(inside_hosts); do
            rack=${name#r}
            echo "  - {between: [$name, rack${rack%h*}], kind: net, gbs: $(awk "BEGIN {print $edge / 8000}")}"
            for place in 0 1 2 3 4 5 6 7; do
                echo "  - {between: [$name.$place, $name], kind: local, gbs: 10}"
            done
        done
    } >"$LAB_DIR/topology.yaml"
}

inside_rack()
{
    local rack=$1
    ip link add "rack$rack" type bridge
    ip link set "rack$rack" up
    ip link add "up$rack" type veth peer name "down$rack"
    ip link set "up$rack" master "rack$rack" up
    ip link set "down$rack" master core up
    inside_shape "$uplink" 64k "up$rack"
    inside_shape "$uplink" 64k "down$rack"
}

# Its first process ends orphans' remains; SIGKILL to its parent, whose number is kept, ends the host.
inside_host()
{
    local rack=$1 host=$2 name=r${1}h$2 pid
    unshare -n -u -i -m -p --fork --kill-child=KILL --mount-proc \
        bash "$inside_home/inside.sh" host "$name" "$LAB_DIR" 9>&- </dev/null &
    pid=$!
    disown
    echo "$pid" >"$LAB_DIR/host/$name"
    until [ -e "$LAB_DIR/host/$name.ready" ]; do
        kill -0 "$pid" 2>/dev/null || inside_fail "host $name did not start"
        sleep 0.01
    done
    ip link add "p$name" type veth peer name eth0 netns "$pid"
    ip link set "p$name" master "rack$rack" up
    inside_shape "$edge" 256k "p$name"
    nsenter -t "$pid" -n ip addr add "10.77.$rack.$((host + 1))/16" dev eth0
    nsenter -t "$pid" -n ip link set eth0 up
    inside_shape "$edge" 256k eth0 nsenter -t "$pid" -n
}

# inside_build DIR RACKS HOSTS EDGE UPLINK
inside_build()
{
    local rack host
    export LAB_DIR=$1
    racks=$2 hosts=$3 edge=$4 uplink=$5
    hostname login
    mount -t tmpfs tmpfs /dev/shm
    mkdir "$LAB_DIR/host" "$LAB_DIR/ranks"
    inside_names
    inside_describe
    ip link set lo up
    ip link add core type bridge
    ip addr add 10.77.255.1/16 dev core
    ip link set core up
    for ((rack = 0; rack < racks; rack++)); do
        inside_rack "$rack"
        for ((host = 0; host < hosts; host++)); do
            inside_host "$rack" "$host"
        done
    done
    echo "$racks racks of $hosts hosts, edges of $edge, uplinks of $uplink Mbit/s" >"$LAB_DIR/what"
}

# The first process of a host.
inside_be_host()
{
    hostname "$1"
    mount -t tmpfs tmpfs /dev/shm
    # Its own network in /sys/class/net; where that is not allowed, the machine's stays.
    mount -t sysfs sysfs /sys 2>/dev/null || true
    ip link set lo up
    : >"$2/host/$1.ready"
    inside_wait_forever
}

inside_wait_forever()
{
    trap : TERM
    while :; do
        sleep 100000 &
        wait $! || true
    done
}

# ---- commands ------------------------------------------------------------------------------------

inside_hosts()
{
    sed -n 's/^10\.77\.[0-9.]* \(r[0-9]*h[0-9]*\)$/\1/p' "$LAB_DIR/hosts"
}

# inside_enter HOST: sets `enter` to the words that run a command there.
inside_enter()
{
    local pid
    if [ "$1" = login ]; then
        enter=()
        return 0
    fi
    [ -e "$LAB_DIR/host/$1" ] || inside_fail "no host '$1'; there are: login $(inside_hosts | tr '\n' ' ')"
    pid=$(cat "$LAB_DIR/host/$1")
    [ -e "/proc/$pid/ns/pid_for_children" ] || inside_fail "host $1 is dead"
    enter=(nsenter -t "$pid" -n -u -i -m "--pid=/proc/$pid/ns/pid_for_children" "--wd=$PWD" --)
}

inside_run()
{
    [ $# -ge 2 ] || inside_fail "expected: run HOST CMD..."
    local enter
    inside_enter "$1"
    shift
    exec "${enter[@]}" "$@"
}

# inside_deal N ORDER: the host of each rank, one per line. block: r0h0 r0h0 r0h1 ..; cyclic: host by host
# in turns; interleaved: the same, with neighbours in different racks: all hops of a ring cross.
inside_deal()
{
    local each=$1 order=$2 turn
    case $order in
    block)
        inside_hosts | awk -v n="$each" '{for (i = 0; i < n; i++) print}'
        ;;
    cyclic)
        for ((turn = 0; turn < each; turn++)); do
            inside_hosts
        done
        ;;
    interleaved)
        for ((turn = 0; turn < each; turn++)); do
            inside_hosts | sed 's/^r\([0-9]*\)h\([0-9]*\)$/\2 \1 &/' | sort -n -k 1 -k 2 | cut -d ' ' -f 3
        done
        ;;
    *,* | r*h*)
        tr ',' '\n' <<<"$order"
        ;;
    *)
        inside_fail "order '$order': block, cyclic, interleaved or hosts with commas"
        ;;
    esac
}

# Output of rank K goes to ranks/K.out and ranks/K.err, rank 0's also to ours; ranks/K.end has its exit
# status and when it ended. Ends with the first status that is not 0, after all have ended.
inside_ranks()
{
    [ $# -ge 3 ] || inside_fail "expected: ranks N ORDER CMD..."
    local each=$1 order=$2 dealt rank=0 host status=0 enter
    local -A local_rank=()
    shift 2
    [[ $each =~ ^[1-9][0-9]{0,2}$ ]] || inside_fail "'$each' is no number of ranks"
    mapfile -t dealt < <(inside_deal "$each" "$order")
    [ ${#dealt[@]} -gt 0 ] || exit 2
    rm -f "$LAB_DIR"/ranks/*
    local job=lab.$$.$RANDOM
    for host in "${dealt[@]}"; do
        inside_enter "$host"
        local here=${local_rank[$host]:-0}
        local_rank[$host]=$((here + 1))
        (
            end=0
            env RANK=$rank WORLD_SIZE=${#dealt[@]} LOCAL_RANK="$here" \
                LOCAL_WORLD_SIZE="$(printf '%s\n' "${dealt[@]}" | grep -cxF "$host")" \
                MASTER_ADDR="${dealt[0]}" MASTER_PORT=29400 TORCHELASTIC_RUN_ID=$job LAB_HOST="$host" \
                "${enter[@]}" "$@" >"$LAB_DIR/ranks/$rank.out" 2>"$LAB_DIR/ranks/$rank.err" </dev/null || end=$?
            echo "$end $(date +%s.%N)" >"$LAB_DIR/ranks/$rank.end"
        ) &
        rank=$((rank + 1))
    done
    wait
    cat "$LAB_DIR/ranks/0.out"
    for ((rank = 0; rank < ${#dealt[@]}; rank++)); do
        sed "s/^/[rank $rank on ${dealt[rank]}] /" "$LAB_DIR/ranks/$rank.err" >&2
        read -r end _ <"$LAB_DIR/ranks/$rank.end"
        if [ "$status" -eq 0 ]; then
            status=$end
        fi
    done
    return "$status"
}

# Open MPI from `login`, with agent.sh in the place of ssh. Rank k is on the k-th host of the deal; ranks that
# mpirun starts on other hosts than its own get the address of rank 0.
inside_mpi()
{
    [ $# -ge 3 ] || inside_fail "expected: mpi N ORDER CMD..."
    local each=$1 order=$2 count
    shift 2
    inside_deal "$each" "$order" >"$LAB_DIR/hostfile"
    count=$(wc -l <"$LAB_DIR/hostfile")
    mkdir -p "$LAB_DIR/ompi"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec mpirun.openmpi --hostfile "$LAB_DIR/hostfile" -np "$count" --map-by seq --bind-to none \
        --mca orte_tmpdir_base "$LAB_DIR/ompi" --mca plm rsh --mca plm_rsh_agent "$inside_home/agent.sh" \
        --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.77.0.0/16 \
        --mca btl_tcp_if_include 10.77.0.0/16 --mca btl_vader_single_copy_mechanism none \
        --mca mpi_yield_when_idle 1 -x LAB_DIR -x PATH \
        -x MASTER_ADDR="$(head -n 1 "$LAB_DIR/hostfile")" "$@"
}

# inside_link HOST up|down, at the switch: the host itself is not asked.
inside_link()
{
    [ -e "$LAB_DIR/host/${1:-}" ] || inside_fail "no host '${1:-}'"
    ip link set "p$1" "$2"
}

# The link first: the others get no notice of its end, as when power fails.
inside_kill()
{
    inside_link "${1:-}" down
    kill -KILL "$(cat "$LAB_DIR/host/$1")"
}

inside_show()
{
    local file
    for file in what hosts topology.conf topology.yaml; do
        echo "# $LAB_DIR/$file"
        cat "$LAB_DIR/$file"
    done
}

command=$1
shift
case $command in
probe) # is there all that building needs?
    mount -t tmpfs tmpfs /dev/shm
    ip link add probe type bridge
    ip link add probe0 type veth peer name probe1
    ip link set probe0 master probe up
    inside_shape 100 64k probe0
    unshare -n -u -i -m -p --fork --mount-proc hostname probe
    ;;
with)
    inside_build "${@:1:5}"
    shift 6
    "$@" 9>&-
    ;;
hold)
    inside_build "$@"
    : >"$LAB_DIR/ready"
    inside_wait_forever
    ;;
host) inside_be_host "$@" ;;
run | ranks | mpi | hosts | show) "inside_$command" "$@" ;;
kill) inside_kill "$@" ;;
cut) inside_link "${1:-}" down ;;
heal) inside_link "${1:-}" up ;;
esac
