#!/usr/bin/env bash
# test_slurm.sh TESSERA CONFIGS LATE: jobs of a real Slurm, whose nodes are hosts of a lab in two racks. `srun` is
# all that a user types: ranks find each other and their order by Slurm's variables, train to the bits of one
# host, and end together when one is killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
. ./slurm.sh
tessera=${1:?usage: test_slurm.sh TESSERA CONFIGS LATE} configs=${2:?} late=${3:?}

config=$configs/labs/fashion_mlp.yaml
steps=6

# one_host RANKS: sets `hash` to what a run on one host ends with.
one_host()
{
    "$tessera" train "$config" --strategy ddp --comm local --ranks "$1" --steps $steps --evaluate off \
        --run "$LAB_DIR/one.$1" >"$LAB_DIR/one.$1.log" 2>&1 || { cat "$LAB_DIR/one.$1.log"; exit 1; }
    hash=$(check_final "one.$1" hash)
}

# job RUN SRUN-OPTION... -- OPTION...: sets `output` to all that it printed.
job()
{
    local run=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    status=0
    timeout 60 srun --kill-on-bad-exit=0 "${options[@]}" "$tessera" train "$config" --strategy ddp \
        --steps $steps --evaluate off --run "$LAB_DIR/$run" "$@" >"$LAB_DIR/$run.log" 2>&1 </dev/null || status=$?
    output=$(cat "$LAB_DIR/$run.log")
    if [ $status -ne 0 ]; then
        check_tell wrong "$run ends with status $status:"
        sed 's/^/       /' <<<"$output"
    fi
}

trains()
{
    one_host 4
    job two -N2 -n4 --
    check_equal "2 nodes, 4 tasks: hash" "$(check_final two hash)" "$hash"
    job natural -N2 -n4 -- --topology.order natural
    check_equal "the same, not renumbered" "$(check_final natural hash)" "$hash"

    mpi

    # Neighbours in number in different racks, as lists of hosts may have them.
    printf '%s\n' r0h0 r1h0 r0h1 r1h1 r0h0 r1h0 r0h1 r1h1 >"$LAB_DIR/arbitrary"
    one_host 8
    export SLURM_HOSTFILE=$LAB_DIR/arbitrary
    job order -N4 -n8 -m arbitrary --
    unset SLURM_HOSTFILE
    check_equal "4 nodes, 8 tasks by turns: hash" "$(check_final order hash)" "$hash"
    check_contains "the order is by Slurm's switches" "$output" \
        "^order: Slurm's switches: ranks follow switches rack0 rack1"
}

# Rank 0 is still starting MPI (late_fence.c) when the others have left the barrier at its end, which Slurm's
# plugin does not hold for all hosts.
starts_late()
{
    job late --mpi=pmix --export="ALL,LD_PRELOAD=$late" -N2 -n4 -- --comm mpi
    check_equal "--mpi=pmix, rank 0 starts MPI late: hash" "$(check_final late hash)" "$hash"
}

# srun's own ways for MPI to meet, with the MPI of Debian that supports them.
mpi()
{
    local way library
    for way in "pmix openmpi" "pmi2 mpich"; do
        library=${way#* } way=${way% *}
        if [ ! -e "$(dirname "$tessera")/libtessera_mpi_$library.so" ]; then
            check_tell note "not built with $library: --mpi=$way is not tried"
        elif ! srun --mpi=list 2>&1 | grep -qw "$way"; then
            check_tell note "this Slurm has no --mpi=$way"
        else
            job "$way" --mpi="$way" -N2 -n4 -- --comm mpi
            check_equal "--mpi=$way, over $library: hash" "$(check_final "$way" hash)" "$hash"
            [ "$way" = pmi2 ] || starts_late
        fi
    done
}

# A rank on the second host goes; srun leaves the others alone.
dies()
{
    local begun end status=0
    timeout 60 srun --kill-on-bad-exit=0 --wait=0 -N2 -n4 -w r0h0,r1h0 "$tessera" train "$config" --strategy ddp \
        --timeout 5 --log-every 1 --evaluate off --epochs 1000 >"$LAB_DIR/dies.log" 2>&1 </dev/null &
    for _ in $(seq 200); do
        [ "$(cat "$LAB_DIR/dies.log" 2>/dev/null | grep -cE '^step [0-9]+/' || true)" -lt 3 ] || break
        sleep 0.1
    done
    check_contains "ranks train" "$(cat "$LAB_DIR/dies.log")" '^step [0-9]+/'
    begun=$(date +%s.%N)
    check_kill_rank r1h0 3
    wait $! || status=$?
    end=$(date +%s.%N)
    check_between "the job ends with an error, status" $status 1 255
    check_between "after a rank was killed the job ends within, s" \
        "$(awk "BEGIN {printf \"%.2f\", $end - $begun}")" 0 9
    check_equal "processes left" "$(check_running)" 0
    check_contains "rank and host are named" "$(cat "$LAB_DIR/dies.log")" 'rank 3\b.*\br1h0\b|\br1h0\b.*rank 3\b'
}

# One task on each node, which starts the ranks of its node; the job's secret comes with srun's environment.
launcher_per_node()
{
    hash=$(check_final one.4 hash)
    export TESS_JOB_SECRET=a-secret-of-this-job-alone
    job divided -N2 --ntasks-per-node=1 -- --ranks 4
    check_equal "a task on each of 2 nodes, 4 ranks: hash" "$(check_final divided hash)" "$hash"
    job explained -N2 --ntasks-per-node=1 -- --ranks 4 --explain
    check_contains "the plan of all ranks" "$output" 'ranks +4 +command line'
    [ -z "${LAB_JUDGE:-}" ] || saves_and_resumes # some seconds of work
    unset TESS_JOB_SECRET
    # Without srun, in a job of two nodes.
    output=$(salloc -N2 "$tessera" train "$config" --ranks 1 --explain 2>&1 </dev/null)
    check_contains "without srun it warns" "$output" 'has 2 nodes .SLURM_JOB_NUM_NODES., and this run uses one'
}

# SIGTERM comes to every process of the step: the ranks save once, and the job goes on from there.
saves_and_resumes()
{
    local options=(train "$config" --mlp.hidden 8 --batch-size 16 --strategy ddp --steps 3000 --evaluate off
        --ranks 4) task status=0
    "$tessera" "${options[@]}" --comm local --run "$LAB_DIR/long" >"$LAB_DIR/long.log" 2>&1 || status=$?
    check_equal "3000 steps on one host, status" $status 0
    timeout 100 srun -N2 --kill-on-bad-exit=0 --ntasks-per-node=1 "$tessera" "${options[@]}" --log-every 10 \
        --run "$LAB_DIR/saved" >"$LAB_DIR/saved.log" 2>&1 </dev/null &
    task=$!
    for _ in $(seq 300); do
        ! grep -q '^step 100/' "$LAB_DIR/saved.log" 2>/dev/null || break
        sleep 0.1
    done
    scancel --signal=TERM "$(squeue -h -o %A | head -1).0"
    wait $task || status=$?
    check_between "after SIGTERM the job ends with a status" $status 1 255
    check_contains "it has saved" "$(cat "$LAB_DIR/saved.log")" 'interrupted: saving, then ending'
    status=0
    timeout 100 srun -N2 --kill-on-bad-exit=0 --ntasks-per-node=1 "$tessera" train --run "$LAB_DIR/saved" --resume \
        --ranks 4 >>"$LAB_DIR/saved.log" 2>&1 </dev/null || status=$?
    check_equal "it resumes, status" $status 0
    check_equal "and ends with the bits of one host" "$(check_final saved hash)" "$(check_final long hash)"
}

if [ "${4:-}" = inside ]; then
    slurm_up 2 || exit 1
    trains
    launcher_per_node
    dies
    check_end
fi
[ "$(id -u)" -eq 0 ] || check_skip "Slurm's daemons need root"
missing=$(slurm_missing)
[ -z "$missing" ] || check_skip "no $missing here (packages slurmctld slurmd slurm-client munge)"
check_lab
exec ./lab.sh with 2 2 1000 1000 -- ./test_slurm.sh "$tessera" "$configs" "$late" inside
