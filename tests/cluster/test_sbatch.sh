#!/usr/bin/env bash
# test_sbatch.sh TESSERA CONFIGS: configs/slurm/train.sbatch on a real Slurm, whose nodes are hosts of a lab: a job that
# is warned saves, is requeued and resumed; one whose ranks are killed is, too; both end with the bits of a run to
# which nothing happened.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./check.sh
. ./slurm.sh
tessera=${1:?usage: test_sbatch.sh TESSERA CONFIGS} configs=${2:?}

options=("$configs/labs/fashion_mlp.yaml" --mlp.hidden 64,64 --strategy ddp --steps 1000 --evaluate off
    --schedule constant --log-every 50)

# until_line SECONDS REGEX FILE
until_line()
{
    local end=$((SECONDS + $1))
    until grep -qE -- "$2" "$3" 2>/dev/null; do
        [ $SECONDS -lt $end ] || return 0
        sleep 0.2
    done
}

# submit RUN: sets `job` and `log`.
submit()
{
    log=$LAB_DIR/$1.log
    job=$(PATH=$(dirname "$tessera"):$PATH sbatch --parsable -N2 -n4 --time=30 --output="$log" \
        "$configs/slurm/train.sbatch" "$LAB_DIR/$1" "${options[@]}" --save-every 50)
    until_line 60 '^step 100/' "$log"
}

# goes_on RUN WHAT REGEX: the job is requeued and ends. Slurm lets two minutes pass before a requeued job, since a node
# refuses to start what it ended in the same second; the test waits for two seconds.
goes_on()
{
    local output
    until_line 60 "$3" "$log"
    for _ in $(seq 300); do
        [[ $(squeue -h -j "$job" -o %T 2>/dev/null) != PENDING ]] || break
        sleep 0.2
    done
    sleep 2
    scontrol update "JobId=$job" StartTime=now
    until_line 120 '^hash of all parameters' "$log"
    output=$(cat "$log")
    check_contains "$2: it says so" "$output" "$3"
    check_contains "$2: the job continues" "$output" '^continues after step [0-9]+'
    check_equal "$2: hash" "$(check_final "$1" hash)" "$hash"
    check_equal "$2: restarts of the job" "$(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')" Restarts=1
}

if [ "${3:-}" = inside ]; then
    slurm_up 2 || exit 1
    "$tessera" train "${options[@]}" --ranks 4 --run "$LAB_DIR/whole" --save-every off >"$LAB_DIR/whole.log" 2>&1 ||
        { cat "$LAB_DIR/whole.log"; exit 1; }
    hash=$(check_final whole hash)
    submit warned
    scancel --signal=USR1 --batch "$job" # as Slurm does before the time limit
    goes_on warned "a job that is warned" '^saved; job [0-9]+ goes on'
    submit killed
    check_kill_rank r0h1 3
    check_kill_rank r0h1 2
    goes_on killed "a job whose ranks are killed" '^failed with status [0-9]+; job [0-9]+ goes on'
    check_end
fi
[ "$(id -u)" -eq 0 ] || check_skip "Slurm's daemons need root"
missing=$(slurm_missing)
[ -z "$missing" ] || check_skip "no $missing here (packages slurmctld slurmd slurm-client munge)"
check_lab
exec ./lab.sh with 1 2 1000 1000 -- ./test_sbatch.sh "$tessera" "$configs" inside
