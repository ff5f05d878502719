#!/usr/bin/env bash
# agent.sh [OPTION...] HOST WORD...: what mpirun calls in the place of ssh, with a command for a shell.
set -euo pipefail
while [[ ${1:-} == -* ]]; do
    shift
done
host=$1
shift
exec bash "$(dirname "${BASH_SOURCE[0]}")/lab.sh" run "$host" sh -c "$*"
