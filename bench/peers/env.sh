# shellcheck shell=bash
# Debian's PyTorch with everything on that its build allows; sourced by peers.sh. Without this, two threads
# of it fight over one BLAS lock and its allocator returns memory after every step.
lib=/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib/openblas-openmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if grep -qw avx512f /proc/cpuinfo; then
    export ATEN_CPU_CAPABILITY=avx512
fi
export OMP_PROC_BIND=false
# For the python processes alone; see compare.py.
export PEERS_PRELOAD=$lib/libtcmalloc_minimal.so.4
