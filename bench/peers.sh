#!/usr/bin/env bash
# Runs Tessera beside PyTorch (DDP over gloo, and one process) and Open MPI on the same cores, in turn, and
# prints the ratios: bench/peers.sh [--out FILE] [--quick] [train|gpt|reduce|overhead|cluster]...
# Needs a release build, and Debian's python3-torch libopenblas0-openmp libtcmalloc-minimal4
# openmpi-bin libopenmpi-dev, which it asks for but does not install. The section cluster, hosts of the lab of
# tests/cluster, is measured where it is named alone; it needs Open MPI and root.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh
. bench/peers/env.sh

packages=(openmpi-bin libopenmpi-dev)
[ "${*: -1}" = cluster ] ||
    packages+=(python3-torch libopenblas0-openmp libtcmalloc-minimal4 dataset-fashion-mnist)
missing=$(packages_missing "${packages[@]}")
if [ -n "$missing" ]; then
    echo "The peers need packages that are not installed: apt-get install $missing" >&2
    exit 1
fi
if [ ! -x build/release/tessera ]; then
    echo "There is no build/release/tessera: cmake --preset release && cmake --build --preset release" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mpicc -O3 -Wall bench/peers/mpi_reduce.c -o "$scratch/mpi_reduce"
/usr/bin/python3 bench/peers/compare.py --tessera build/release/tessera --scratch "$scratch" "$@"
