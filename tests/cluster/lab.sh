#!/usr/bin/env bash
# lab.sh: a cluster on one machine. Racks of hosts, each host with its own name, network, processes and
# shared memory, joined by links as slow as asked for. README.md beside this file is its manual.
#
# Everything lives in namespaces whose first process is one of ours: when that ends, however it ends,
# the kernel ends the others and removes networks and mounts. Nothing outside is ever changed but one
# folder in $TMPDIR, locked while its lab lives; a folder without a lock is swept up by the next call.
#
# This file starts, enters and ends labs; what happens inside of one is inside.sh's.
set -euo pipefail

lab_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab_base=${TMPDIR:-/tmp}/tessera-lab.$(id -u)
LAB_SKIP=77 # what CTest takes for "not run"

lab_usage()
{
    cat <<'USAGE'
usage: lab.sh with RACKS HOSTS EDGE UPLINK -- CMD...   a lab for the time of one command
       lab.sh up RACKS HOSTS EDGE UPLINK               a lab that stays; prints its name
       lab.sh list                                     the labs that are up
       lab.sh down [NAME]                              end one, or all of yours
       lab.sh [-l NAME] run HOST CMD...                a command on a host, or on `login`
       lab.sh [-l NAME] ranks N ORDER CMD...           N ranks on each host, as torchrun would start them
       lab.sh [-l NAME] mpi N ORDER CMD...             the same by Open MPI's mpirun, from `login`
       lab.sh [-l NAME] kill HOST                      no link and no processes from now on
       lab.sh [-l NAME] cut HOST | heal HOST           no link; the link again
       lab.sh [-l NAME] hosts | show                   the hosts; the files that describe the lab
HOSTS are per rack, EDGE (host to rack) and UPLINK (rack to core) in Mbit/s. Hosts are r0h0, r0h1 ..
r1h0; ORDER deals ranks out: block, cyclic, interleaved, or a list of hosts with commas.
Inside of `with`, the same commands reach its lab. Status 77: this machine cannot make namespaces.
USAGE
}

lab_fail()
{
    echo "lab: $*" >&2
    exit 2
}

# ---- what this machine allows --------------------------------------------------------------------

# Sets lab_unshare: how to make namespaces here. Root first: without a user namespace more works inside.
lab_find_unshare()
{
    local own=(unshare -n -u -i -m -p --fork --kill-child=KILL --mount-proc)
    local tool try why=

    for tool in unshare nsenter setpriv flock ip tc; do
        PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null ||
            { echo "lab: skipped: no $tool here (packages util-linux and iproute2)"; exit $LAB_SKIP; }
    done
    for try in "" "-Ur"; do
        # shellcheck disable=SC2206
        lab_unshare=("${own[@]}" $try)
        if why=$("${lab_unshare[@]}" bash "$lab_home/inside.sh" probe 2>&1); then
            return 0
        fi
    done
    echo "lab: skipped: no namespaces with shaped links for this user: $(tail -n 1 <<<"$why")"
    exit $LAB_SKIP
}

# ---- folders -------------------------------------------------------------------------------------

# The holder of a lab has its lock as long as it lives.
lab_lives()
{
    ! flock -n "$1/lock" true 2>/dev/null
}

lab_sweep()
{
    local folder
    for folder in "$lab_base"/*/; do
        if [ -O "$folder" ] && ! lab_lives "${folder%/}"; then
            rm -rf "$folder"
        fi
    done
}

# Sets lab_dir; locked through descriptor 9, which the lab's first process inherits.
lab_new()
{
    if ! mkdir -m 700 "$lab_base" 2>/dev/null && { [ -L "$lab_base" ] || [ ! -O "$lab_base" ]; }; then
        lab_fail "$lab_base is not this user's folder: set TMPDIR"
    fi
    exec 8>"$lab_base/guard"
    flock 8
    lab_sweep
    lab_dir=$(mktemp -d "$lab_base/XXXXXX")
    exec 9>"$lab_dir/lock"
    flock 9
    exec 8>&-
}

# Sets lab_dir to the lab named, or to the only one.
lab_find()
{
    local folder found=()
    if [ -n "$lab_name" ]; then
        lab_dir=$lab_base/$lab_name
        { [ -d "$lab_dir" ] && lab_lives "$lab_dir"; } || lab_fail "no lab '$lab_name' is up; see: lab.sh list"
        return 0
    fi
    for folder in "$lab_base"/*/; do
        if [ -O "$folder" ] && lab_lives "${folder%/}"; then
            found+=("${folder%/}")
        fi
    done
    [ ${#found[@]} -gt 0 ] || lab_fail "no lab is up: start one with lab.sh up"
    [ ${#found[@]} -eq 1 ] || lab_fail "${#found[@]} labs are up: choose with -l (lab.sh list)"
    lab_dir=${found[0]}
}

# ---- commands ------------------------------------------------------------------------------------

lab_check_size()
{
    local value
    [ $# -eq 4 ] || lab_fail "expected RACKS HOSTS EDGE UPLINK, got $# words"
    for value in "$@"; do
        [[ $value =~ ^[1-9][0-9]{0,5}$ ]] || lab_fail "'$value' is no number from 1 to 999999"
    done
    if [ "$1" -gt 16 ] || [ "$2" -gt 16 ]; then
        lab_fail "up to 16 racks of 16 hosts"
    fi
}

# The first process of the lab goes with its parent, and everything in the lab with it.
lab_with_end()
{
    { kill -KILL "$lab_pid"; wait "$lab_pid" || true; } 2>/dev/null
    exit "$1"
}

# Traps end the lab at once on signals; signal 9, which no trap sees, ends it through --pdeathsig.
lab_with()
{
    local size=("$1" "$2" "$3" "$4") status=0
    shift 5
    lab_new
    trap 'rm -rf "$lab_dir"' EXIT
    setpriv --pdeathsig KILL "${lab_unshare[@]}" bash "$lab_home/inside.sh" with "$lab_dir" "${size[@]}" \
        -- "$@" <&0 &
    lab_pid=$!
    trap 'lab_with_end 130' INT
    trap 'lab_with_end 143' TERM
    trap 'lab_with_end 129' HUP
    wait $lab_pid || status=$?
    exit $status
}

lab_up()
{
    lab_new
    setsid "${lab_unshare[@]}" bash "$lab_home/inside.sh" hold "$lab_dir" "$@" \
        </dev/null >"$lab_dir/log" 2>&1 &
    local pid=$!
    exec 9>&-
    until [ -e "$lab_dir/ready" ]; do
        if ! kill -0 $pid 2>/dev/null; then
            cat "$lab_dir/log" >&2
            rm -rf "$lab_dir"
            exit 1
        fi
        sleep 0.05
    done
    echo "$pid" >"$lab_dir/pid"
    echo "${lab_dir##*/}"
}

lab_list()
{
    local folder
    for folder in "$lab_base"/*/; do
        if [ -O "$folder" ] && lab_lives "${folder%/}"; then
            folder=${folder%/}
            echo "${folder##*/}: $(cat "$folder/what" 2>/dev/null || echo starting)"
        fi
    done
}

lab_down_one()
{
    # Only what is locked has a process that is ours.
    if [ -e "$1/pid" ] && lab_lives "$1"; then
        kill -KILL "$(cat "$1/pid")"
        while lab_lives "$1"; do
            sleep 0.02
        done
    fi
    rm -rf "$1"
}

lab_down()
{
    local folder
    if [ $# -gt 0 ]; then
        lab_name=$1
        lab_find
        lab_down_one "$lab_dir"
        return 0
    fi
    for folder in "$lab_base"/*/; do
        # Those of `with` end with their command.
        if [ -O "$folder" ] && [ -e "$folder/pid" ]; then
            lab_down_one "${folder%/}"
        fi
    done
    [ -e "$lab_base/guard" ] || return 0
    exec 8>"$lab_base/guard"
    flock 8
    lab_sweep
}

# From outside into the lab that `up` made; inside already, straight on.
lab_enter()
{
    if [ -z "${LAB_DIR:-}" ]; then
        lab_find
        local pid user=()
        pid=$(cat "$lab_dir/pid" 2>/dev/null) || lab_fail "this lab belongs to a lab.sh with: only its command enters it"
        if [ "$(readlink /proc/self/ns/user)" != "$(readlink "/proc/$pid/ns/user")" ]; then
            user=(-U --preserve-credentials)
        fi
        exec nsenter -t "$pid" "${user[@]}" -n -u -i -m "--pid=/proc/$pid/ns/pid_for_children" \
            "--wd=$PWD" env LAB_DIR="$lab_dir" bash "$lab_home/inside.sh" "$@"
    fi
    exec bash "$lab_home/inside.sh" "$@"
}

shopt -s nullglob
lab_name=
if [ "${1:-}" = -l ]; then
    lab_name=${2:?lab: -l NAME}
    shift 2
fi
command=${1:-}
[ $# -eq 0 ] || shift
case $command in
with)
    if [ $# -lt 6 ] || [ "$5" != -- ]; then
        lab_fail "expected: with RACKS HOSTS EDGE UPLINK -- CMD..."
    fi
    lab_check_size "${@:1:4}"
    lab_find_unshare
    lab_with "$@"
    ;;
up)
    lab_check_size "$@"
    lab_find_unshare
    lab_up "$@"
    ;;
down) lab_down "$@" ;;
list) lab_list ;;
run | ranks | mpi | kill | cut | heal | hosts | show) lab_enter "$command" "$@" ;;
"" | -h | --help | help) lab_usage ;;
*)
    lab_usage >&2
    exit 2
    ;;
esac
