#!/usr/bin/env bash
# test_mpirun.sh PROGRAM openmpi|mpich: whole runs under that MPI's mpirun, without any variable set by hand:
# the same parameters as ranks that share memory, whatever carries them; what is refused; a rank that is
# killed or stands still ends the job soon, and the message names it and its host.
set -uo pipefail
export LC_ALL=C
program=$1 library=$2
mpirun="$(dirname "$0")/../comm/mpirun.sh"
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
unset MASTER_ADDR MASTER_PORT
failed=0
common="--data synthetic --device cpu --kernel ref --evaluate off --batch-size 32"

complain()
{
    echo "FAILED: $1"
    sed 's/^/    /' "$scratch/out" | tail -20
    failed=1
}

# run RANKS WORDS...: the program under mpirun; its output is in $scratch/out.
run()
{
    local ranks=$1
    shift
    timeout 100 "$mpirun" "$library" "$ranks" "$program" "$@" >"$scratch/out" 2>&1
}

hash_of()
{
    grep -ao 'hash of all parameters [0-9a-f]*' "$scratch/out" | tail -1
}

run 1 --version
if [ $? = 77 ]; then
    cat "$scratch/out"
    exit 77
fi

# ---- the same parameters ----
for case in "ddp 2 mpi" "fsdp 4 mpi" "ddp 3 tcp" "fsdp 2 tcp"; do
    read -r strategy ranks comm <<<"$case"
    # shellcheck disable=SC2086
    {
        words="train --strategy $strategy --steps 4 $common"
        [ "$ranks" = 3 ] && words="$words --batch-size 30"
        timeout 100 "$program" $words --ranks "$ranks" >"$scratch/out" 2>&1
        wanted=$(hash_of)
        run "$ranks" $words --comm "$comm"
    }
    code=$?
    if [ $code != 0 ] || [ -z "$wanted" ] || [ "$(hash_of)" != "$wanted" ]; then
        complain "$case: exit status $code, $(hash_of) instead of $wanted"
    fi
done

# ---- by itself, and MPI's own collectives ----
for words in "" "--reduce fast --comm.mpi.native"; do
    # shellcheck disable=SC2086
    run 2 train --strategy ddp --steps 2 $common $words || complain "train $words"
    grep -aq 'hash of all parameters' "$scratch/out" || complain "train $words does not end"
done

# refused SAYS WORDS...: two ranks, which end with a message.
refused()
{
    local says=$1
    shift
    # shellcheck disable=SC2086
    run 2 train --strategy ddp --steps 2 $common "$@"
    local code=$?
    [ $code != 0 ] || complain "$* is not refused"
    grep -aq -- "$says" "$scratch/out" || complain "$*: exit status $code, it does not print '$says'"
}
refused 'give --reduce fast' --comm.mpi.native
refused 'these ranks use --comm tcp' --comm tcp --reduce fast --comm.mpi.native
refused 'needs ranks that share memory' --comm local
other=$([ "$library" = mpich ] && echo openmpi || echo mpich)
refused 'MPI has 1\|is not installed' --comm mpi --comm.mpi.library "$other"

# ---- orders of ranks in the bench ----
run 4 bench comm --sizes 4Ki --rank-orders 'natural;interleaved;3,1,2,0' || complain "bench comm"
for says in '4 ranks as processes, by mpi (' 'started by mpirun on 1 host' 'per order of ranks' \
    'natural  *interleaved  *3,1,2,0' '^all_reduce .*4.0 KiB  *[0-9.]*  *[0-9.]*  *[0-9.]*$'; do
    tr -d '\r' <"$scratch/out" | grep -aq "$says" || complain "bench comm does not print '$says'"
done

# ---- a rank that is lost ----
# lost SIGNAL SAYS WORDS...: 4 ranks train for ever, and rank 2 gets the signal.
lost()
{
    local signal=$1 says=$2 pid='' begun
    shift 2
    # shellcheck disable=SC2086
    run 4 train --strategy ddp --steps 1000000 $common "$@" &
    local job=$!
    for _ in $(seq 300); do
        # By the name that a rank's process has, among those of this job: children of its launchers.
        pid=$(pgrep -f "^$program train .*--steps 1000000 .*$scratch" | while read -r one; do
            grep -qx 'tessera rank 2' "/proc/$one/comm" 2>/dev/null && echo "$one"
        done | head -1)
        [ -n "$pid" ] && grep -aq 'loss\|ETA' "$scratch/out" && break
        sleep 0.1
    done
    if [ -z "$pid" ]; then
        complain "there is no rank 2"
        kill $job
        return
    fi
    kill "-$signal" "$pid"
    begun=$SECONDS
    wait $job
    local code=$?
    if [ $code = 0 ] || [ $((SECONDS - begun)) -gt 20 ]; then
        complain "$signal: exit status $code after $((SECONDS - begun)) s"
    fi
    grep -aq -- "$says" "$scratch/out" || complain "$signal: it does not print '$says'"
    sleep 0.5
    pgrep -f "^$program train .*$scratch" >/dev/null && complain "$signal: processes stay"
}
# The folder is not written to where the run does not end; its name marks the processes of this test.
lost KILL "rank 2 (pid [0-9]* on $(hostname)) was killed by signal 9" --run "$scratch/kill"
lost STOP "rank 2 (pid [0-9]* on $(hostname)) has been stopped for" --run "$scratch/stop" --timeout 3

[ $failed = 0 ] && echo "mpirun of $library: in order"
exit $failed
