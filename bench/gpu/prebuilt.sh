# shellcheck shell=bash
# What bench/gpu_check.sh runs: a tree that was built before, on a machine with the CUDA toolkit, and is only
# copied; or, where there is none or it does not start, a build here.

# Large libraries that are on every machine with PyTorch or a toolkit: found there, never copied.
nvidia='^lib(cuda|cublas|cublasLt|cudart|cudnn|nccl)[._]'
# Of every Linux.
system='^(ld-linux|libc|libm|libdl|librt|libpthread|linux-vdso|libresolv|libutil|libgcc_s|libstdc\+\+)[-.]'

# The tests of a dry run, on the device made of host code.
dry_tests='^test_norm_madeup$'
if [ "${GPU_CHECK_FULL:-0}" = 1 ]; then dry_tests='^test_[a-z0-9_]*_madeup$'; fi

# ---- making one ----------------------------------------------------------------------------------

# tests_list BUILD: name and command, below BUILD, of the tests for a device.
tests_list()
{
    local select=(-L gpu)
    if [ -s "$1/tests.tsv" ]; then
        cat "$1/tests.tsv"
        return
    fi
    if dry_run; then select=(-R "$dry_tests"); fi
    ctest --test-dir "$1" "${select[@]}" -N -V | awk -v build="$1/" '
        /^[0-9]+: Test command: / {
            sub(/^[0-9]+: Test command: /, "")
            gsub(/"/, "")
            if (index($0, build) == 1) { $0 = "./" substr($0, length(build) + 1) }
            command = $0
        }
        /^ *Test +#[0-9]+: / { print $NF "\t" command }'
}

# copy_file FILE TREE PATH: without what debuggers read; the device made of host code reads its own.
copy_file()
{
    mkdir -p "$(dirname "$2/$3")"
    cp -L "$1" "$2/$3" && chmod u+w "$2/$3" && { [[ $3 == */madeup/* ]] || strip --strip-unneeded "$2/$3"; }
}

# copy_tree BUILD TREE: programs, the module, tests, and the libraries that another machine may lack.
copy_tree()
{
    local build=$1 tree=$2 file name path
    tests_list "$build" >"$tree/tests.tsv"
    if ! [ -s "$tree/tests.tsv" ]; then fail "there are no tests for a device in $build"; fi
    {
        echo tessera
        cut -f 2 "$tree/tests.tsv" | sed 's: .*::; s:^\./::'
        (cd "$build" && ls libtessera.so.0 libtessera_all.so libtessera_cuda.so tests/device/probe/{probe,probe_*} \
            tests/device/madeup/libtessera_cuda.so tests/device/madeup/probe_* tests/kernels/test_gradient \
            tests/kernels/test_gradient_sequence tests/kernels/test_norm 2>/dev/null)
    } | sort -u >"$tree/files.txt"
    while read -r file; do
        [[ $file != */madeup/* ]] || dry_run || continue
        copy_file "$build/$file" "$tree" "$file" || fail "cannot copy $build/$file"
    done <"$tree/files.txt"
    : >"$tree/needs.txt"
    while read -r file; do ldd "$build/$file" 2>/dev/null; done <"$tree/files.txt" |
        awk '{ print $1, $2 == "=>" ? $3 : "" }' | sort -u | while read -r name path; do
        if [[ $name =~ $nvidia ]]; then
            [[ $name == libcuda.* ]] || echo "$name" >>"$tree/needs.txt"
        elif ! [[ $name =~ $system || $name == */* || $name == libtessera* ]] && [ -f "$path" ]; then
            copy_file "$path" "$tree" "lib/$name" || fail "cannot copy $path"
        fi
    done
    rm "$tree/files.txt"
    git rev-parse HEAD >"$tree/commit.txt" 2>/dev/null || true
    sort -u -o "$tree/needs.txt" "$tree/needs.txt"
}

# make_prebuilt TREE BUILD: without oneDNN, which is large, and compares nothing that `ref` does not.
make_prebuilt()
{
    local tree=$1 build=$2 archs=${GPU_CHECK_ARCHS:-90a}
    if ! dry_run; then
        cmake --preset cuda -B "$build" -DTESS_CUDA_ARCHS="$archs" -DTESS_WERROR=OFF -DTESS_EMULATE=OFF \
            -DTESS_ONEDNN=OFF && cmake --build "$build" --target tests_gpu --parallel "$(nproc)" || return
    fi
    if ! [ -x "$build/tessera" ]; then fail "there is no $build/tessera"; fi
    rm -rf "$tree.part"
    mkdir -p "$tree.part" && copy_tree "$(realpath "$build")" "$tree.part" || return
    echo "$archs" >"$tree.part/archs.txt"
    rm -rf "$tree"
    mv "$tree.part" "$tree"
    echo "$tree: $(du -sh "$tree" | cut -f 1), $(wc -l <"$tree/tests.tsv") tests; it needs there:" \
        "$(paste -sd ' ' "$tree/needs.txt")"
}

# ---- using one -----------------------------------------------------------------------------------

# Folders in which NVIDIA's libraries lie, those of Python's packages first: PyTorch's are whole and recent.
library_folders()
{
    tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
    {
        "${GPU_CHECK_PYTHON:-python3}" -c 'import sys; print("\n".join(filter(None, sys.path)))'
        ls -d /usr/local/lib/python3*/dist-packages /usr/lib/python3/dist-packages \
            /opt/*/.venv/lib/python3*/site-packages /opt/*/lib/python3*/site-packages
    } 2>/dev/null | while read -r folder; do ls -d "$folder"/nvidia/*/lib; done 2>/dev/null
    ls -d "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib,targets/*/lib} /usr/local/cuda-*/{lib64,lib} 2>/dev/null
    ldconfig -p 2>/dev/null | sed -n 's:.*=> \(/.*\)/lib\(cublasLt\|nccl\|cudnn\)\.so.*:\1:p'
}

# library_folder NAME: the first folder that has it; at last anywhere on this machine's own disk.
library_folder()
{
    local folder
    while read -r folder; do
        if [ -n "$folder" ] && [ -e "$folder/$1" ]; then
            echo "$folder"
            return
        fi
    done <"$GPU_CHECK_WORK/folders"
    timeout 10 find / -xdev -name "$1" -printf '%h\n' -quit 2>/dev/null | grep .
}

# prebuilt_start TREE: its folders of libraries, found, go into the environment of all stages.
prebuilt_start()
{
    local tree=$1 name folder folders=$1:$1/lib
    library_folders >"$GPU_CHECK_WORK/folders"
    while read -r name; do
        if folder=$(library_folder "$name"); then
            fact "$name" "$folder"
            folders=$folders:$folder
        else
            echo "there is no $name on this machine: in Python's packages, in a toolkit, or elsewhere"
            fact "$name" "not found"
        fi
    done <"$tree/needs.txt"
    if [ -e /usr/local/nvidia/lib64/libcuda.so.1 ]; then folders=$folders:/usr/local/nvidia/lib64; fi
    # Opened by the module when it is wanted.
    if folder=$(library_folder libcudnn.so.9); then folders=$folders:$folder; fi
    printf 'export GPU_CHECK_BUILD=%q LD_LIBRARY_PATH=%q\n' "$tree" "$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        >"$GPU_CHECK_WORK/environment"
    check_environment
    tessera version && module_fits "$tree"
}

# module_fits TREE: are all its libraries here, and is its code for this device? It is not run: a device that does
# not answer is no reason to build.
module_fits()
{
    local missing arch
    if dry_run; then return; fi
    missing=$(ldd "$1/libtessera_cuda.so" | sed -n 's/^\s*\(.*\) => not found.*/\1/p' | paste -sd ' ')
    if [ -n "$missing" ]; then
        echo "the module needs $missing, not to be found here"
        return 1
    fi
    arch=$(native_arch)
    if [ -n "$arch" ] && ! grep -qw "$arch" "$1/archs.txt"; then
        echo "the module has code for $(cat "$1/archs.txt"), and the device is of $arch"
        return 1
    fi
}

nvcc_path()
{
    if command -v nvcc >/dev/null; then nvcc "$@"; else "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$@"; fi
}

# The capability of the device as CMake's option wants it: 'a' brings what the chip alone can do.
native_arch()
{
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 |
        awk -F . '{ print $1 $2 ($1 >= 9 ? "a" : "") }'
}

# A build here of what is missing or does not start. Never what lies in the folder from before: a stale program
# would prove nothing.
build_here()
{
    local arch options=()
    rm -f "$GPU_CHECK_WORK/environment"
    arch=$(native_arch)
    # Another compiler may warn of more; that is for others to find.
    options+=(-DTESS_WERROR=OFF)
    if ! echo '#include <oneapi/dnnl/dnnl.h>' | "${CC:-cc}" -E - >/dev/null 2>&1; then
        echo "no oneDNN here: the kernels of the processor are ref's"
        options+=(-DTESS_ONEDNN=OFF)
    fi
    cmake --preset cuda -B "$GPU_CHECK_BUILD" -DTESS_CUDA_ARCHS="$arch" "${options[@]}" ||
        fail "cmake cannot configure: see the log; TESS_DEPS names a folder of unpacked packages"
    cmake --build "$GPU_CHECK_BUILD" --target tests_gpu --parallel "$(nproc)" || fail "the build failed"
    fact code "sm_$arch, built here"
    tessera version
}

# The stages after it run even where it fails: some of them need less than all of it.
stage_build()
{
    local tree=${GPU_CHECK_PREBUILT:-}
    if [ -n "$tree" ]; then
        if prebuilt_start "$tree"; then
            fact code "prebuilt, of $(cut -c 1-12 "$tree/commit.txt")"
            return
        fi
        echo "the prebuilt tree does not start; a build here comes in its place"
        if dry_run; then fail "the prebuilt tree does not start: $(tessera version 2>&1 | tail -n 1)"; fi
    elif dry_run; then
        [ -x "$GPU_CHECK_BUILD/tessera" ] ||
            fail "there is no $GPU_CHECK_BUILD/tessera: name a build that is there with --build"
        tessera version
        return
    fi
    build_here
}
