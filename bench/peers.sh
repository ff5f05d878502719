#!/usr/bin/env bash
# Runs Tessera beside PyTorch and Open MPI on the same cores, in turn, and prints the ratios:
#   bench/peers.sh [--python V/bin/python] [--out FILE] [--quick] [race|reduce|overhead|cluster|work|page]...
#       race: [--rows LIST] [--precision LIST] [--sides LIST] [--newest] [--rounds N] [--row-s S] [--picture FILE]
#       work: [--rows LIST] [--row-s S] [--picture FILE]; measures what FILE of --out does not have yet
# --help explains them. Needs a release build and Debian packages, which it asks for but does not install. The
# newest PyTorch comes from Python's package index, into an environment of its own, which --python names:
#   python3 -m venv V && V/bin/pip install torch numpy
# It runs beside Debian's in the race, and in its place elsewhere. The section cluster, hosts of the lab of
# tests/cluster, is measured where it is named alone; it needs Open MPI and root. The section work has no
# peer: it holds the time of a step against its arithmetic. The section page prints the race's tables from the
# lines that earlier runs have added to FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh

# Is a section chosen? None named: all of the first three.
chosen()
{
    case " $arguments " in
    *" $1 "*) return 0 ;;
    *" race "* | *" reduce "* | *" overhead "* | *" cluster "* | *" work "* | *" page "*) return 1 ;;
    esac
    [ "$1" != cluster ]
}

arguments=$*
packages=()
if chosen race || chosen overhead; then packages+=(dataset-fashion-mnist g++ libtcmalloc-minimal4); fi
if chosen reduce; then packages+=(libtcmalloc-minimal4); fi
if chosen reduce || chosen cluster; then packages+=(openmpi-bin libopenmpi-dev); fi
if chosen cluster; then packages+=(python3-numpy); fi
case " $arguments" in
*" --python"*) ;;
*) if chosen race || chosen reduce || chosen overhead; then packages+=(python3-torch libopenblas0-openmp); fi ;;
esac
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
if chosen reduce || chosen cluster; then
    mpicc -O3 -Wall bench/peers/mpi_reduce.c -o "$scratch/mpi_reduce"
fi
/usr/bin/python3 bench/peers/compare.py --tessera build/release/tessera --scratch "$scratch" "$@"
