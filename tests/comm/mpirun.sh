#!/usr/bin/env bash
# mpirun.sh openmpi|mpich RANKS COMMAND...: runs a program by that MPI's own mpirun, on this host. Ends with 77,
# skipped, where there is none. Both may be installed: names without a suffix are one of them, by Debian's
# alternatives.
set -u
library=$1 ranks=$2
shift 2
case $library in
    openmpi) names="mpirun.openmpi" ;;
    mpich) names="mpiexec.mpich mpirun.mpich" ;;
    *) echo "usage: mpirun.sh openmpi|mpich RANKS COMMAND..." >&2; exit 2 ;;
esac
for name in $names; do
    if command -v "$name" >/dev/null; then
        # More ranks than cores, and root in containers, are what tests have; a rank's core is its own affair.
        if [ "$library" = openmpi ]; then
            export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
            exec "$name" --oversubscribe --bind-to none -n "$ranks" "$@"
        fi
        # MPICH's mpiexec forwards the end of its input, and dies of SIGPIPE with all output where ranks have just
        # ended. This input has no end.
        input=$(mktemp -u) && mkfifo "$input" && exec <>"$input" && rm "$input"
        exec "$name" -n "$ranks" "$@"
    fi
done
echo "skipped: no $names on this machine (Debian: openmpi-bin, mpich)"
exit 77
