# shellcheck shell=bash
# The stages of bench/gpu_check.sh that prove something: each ends with 0, or fails with a last line that says
# what is wrong.

stage_facts()
{
    local query
    fact date "$(date -u +%FT%TZ)"
    fact commit "$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', changed')"
    fact processor "$(nproc) cores of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
    fact memory "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
    fact system "$(uname -sr), $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-}")"
    fact seed "$TESS_TEST_SEED"
    if dry_run; then
        fact device "none: simulated by the stand-in of tests/cli"
        return 0
    fi
    if ! command -v nvidia-smi >/dev/null; then fail "there is no nvidia-smi: no driver, or the wrong machine"; fi
    query=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem,compute_cap,pci.bus_id
    nvidia-smi || fail "nvidia-smi finds no device"
    fact device "$(nvidia-smi --query-gpu=$query --format=csv,noheader | head -n 1)"
    fact devices "$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)"
    fact busy "$(nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader | head -n 1)"
    fact toolkit "$(nvcc_path --version 2>/dev/null | sed -n 's/.*release //p')"
    nvidia-smi topo -m 2>/dev/null || true
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

# Never what lies in the folder from before: a stale program would prove nothing.
stage_build()
{
    local arch options=()
    if dry_run; then
        [ -x "$GPU_CHECK_BUILD/tessera" ] || fail "there is no $GPU_CHECK_BUILD/tessera: name a build that is there with --build"
        tessera version
        return
    fi
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
    fact code "sm_$arch"
    tessera version
}

# A test that was skipped on a machine with a device has proved nothing, so it counts as failed.
stage_tests()
{
    local select=(-L gpu) list=$GPU_CHECK_WORK/tests.txt ran skipped
    if dry_run; then select=(-R '^test_linear_standin$'); fi
    ctest --test-dir "$GPU_CHECK_BUILD" "${select[@]}" --no-tests=error --output-on-failure \
        --timeout 60 -j "$(test_jobs)" | tee "$list"
    if [ "${PIPESTATUS[0]}" != 0 ]; then
        fail "failed: $(sed -n '/The following tests FAILED/,$p' "$list" | grep -oE '[0-9]+ - [A-Za-z0-9_]+' | sed 's/.* //' | paste -sd ' ')"
    fi
    ran=$(grep -cE ' Passed +[0-9.]+ sec' "$list")
    skipped=$(grep -E '\*\*\*Skipped' "$list" | grep -vc "$(may_skip)")
    measure "tests with label gpu that passed" "$ran" tests
    if [ "$skipped" -gt 0 ]; then fail "$skipped tests were skipped though there is a device"; fi
}

# may_skip: a pattern for tests that this device may leave out: tensor cores multiply in 8 bits from 8.9 on.
may_skip()
{
    if dry_run || awk -v c="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)" \
        'BEGIN { exit !(c >= 8.9) }'; then
        echo 'no test at all'
    else
        echo ' test_fp8_cuda '
    fi
}

# Each has a context on the device, of some hundreds of MiB, and threads of its own.
test_jobs()
{
    awk -v n="$(nproc)" 'BEGIN { n = int(n / 2); print (n < 1 ? 1 : n > 8 ? 8 : n) }'
}

sanitizer_path()
{
    command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"
}

# sanitizer NAME TOOL PROGRAM WORDS...: errors become exit status 9; a dry run has no tool. Leaves NAME.log and,
# when it has ended, its exit status in NAME.code.
sanitizer()
{
    local name=$GPU_CHECK_WORK/sanitize.$1 tool=(env)
    if ! dry_run; then
        tool=("$(sanitizer_path)" --tool "$2" --target-processes all --error-exitcode 9 --print-limit 5)
    fi
    shift 2
    "${tool[@]}" "$@" >"$name.log" 2>&1
    echo $? >"$name.code"
}

# The gradient programs run every operation, forward and backward, on small shapes. All beside each other: most
# of the time goes into their starts.
stage_sanitize()
{
    local tool program log bad="" count=0 tests=$GPU_CHECK_BUILD/tests/kernels
    if ! dry_run && [ ! -x "$(sanitizer_path)" ]; then fail "there is no compute-sanitizer in the toolkit"; fi
    rm -f "$GPU_CHECK_WORK"/sanitize.*
    for tool in memcheck racecheck synccheck; do
        for program in gradient gradient_sequence norm; do
            sanitizer $tool.$program $tool "$tests/test_$program" cuda &
        done
    done
    sanitizer memcheck.ranks memcheck "$GPU_CHECK_BUILD/tessera" train --data synthetic --synthetic-rows 256 --batch-size 32 \
        --steps 2 --mlp.hidden 64,32 --strategy fsdp --ranks 2 --device cuda --evaluate off --timeout 300 &
    wait
    for log in "$GPU_CHECK_WORK"/sanitize.*.log; do
        program=${log##*/sanitize.} program=${program%.log}
        count=$((count + 1))
        echo "== $program: ended with $(cat "${log%.log}.code")"
        if [ "$(cat "${log%.log}.code")" != 0 ]; then bad="$bad $program"; fi
        if ! grep -qE 'PASSED|hash of all parameters' "$log"; then bad="$bad $program"; fi
        grep -vE '^\[ (RUN|  *OK) ' "$log" | tail -n 40
    done
    if grep -qs 'Device not supported' "$GPU_CHECK_WORK"/sanitize.*.log; then
        skip "compute-sanitizer does not support this device, or its container"
    fi
    if [ -n "$bad" ]; then fail "errors, or no end:$(tr ' ' '\n' <<<"$bad" | sort -u | paste -sd ' ')"; fi
    measure "programs without a finding of compute-sanitizer" "$count" runs
}

# ---- the same bits -------------------------------------------------------------------------------

# hashes_of NAME RANKS STRATEGIES OPTIONS...: runs `tessera compare`; JSON in NAME.RANKS.json.
hashes_of()
{
    local name=$1 ranks=$2 strategies=$3 file=$GPU_CHECK_WORK/hashes.$1.$2.json
    shift 3
    echo "$strategies" >"$GPU_CHECK_WORK/hashes.$name.$ranks.wanted"
    tessera compare "$@" --device cuda --ranks "$ranks" --strategies "$strategies" --grid 8 --steps 3 \
        --evaluate off --data synthetic --synthetic-rows 512 --data.workers 0 --bind off --timeout 30 \
        --json "$file" >"$GPU_CHECK_WORK/hashes.$name.$ranks.log" 2>&1 && return
    cat "$GPU_CHECK_WORK/hashes.$name.$ranks.log"
    rm -f "$file" # half of a comparison is none
}

# One model in one precision on 1, 2, 4 and 8 ranks.
hashes_family()
{
    local name=$1 strategies=(single "$2" "$2,$3" "$2,$4") i
    shift 4
    for i in 0 1 2 3; do
        hashes_of "$name" $((1 << i)) "${strategies[i]}" "$@" &
        if dry_run; then wait; fi
    done
    wait
}

# All hashes of a family must be one; by how many runs that was shown is a line of the table.
hashes_judge()
{
    local name=$1 ranks found wanted all
    for ranks in 1 2 4 8; do
        if [ ! -s "$GPU_CHECK_WORK/hashes.$name.$ranks.json" ]; then
            echo "$name: no result on $ranks ranks"
            return 1
        fi
    done
    all=$(grep -hoE '"hash": "[0-9a-f]{16}"' "$GPU_CHECK_WORK"/hashes."$name".[1248].json)
    wanted=$(cat "$GPU_CHECK_WORK"/hashes."$name".[1248].wanted | tr ',' '\n' | wc -l)
    found=$(wc -l <<<"$all")
    if [ "$found" != "$wanted" ]; then
        echo "$name: $wanted runs, but $found hashes"
        return 1
    fi
    if [ "$(sort -u <<<"$all" | wc -l)" != 1 ]; then
        echo "$name: hashes differ:"
        grep -HE '"(strategy|hash|ranks)":' "$GPU_CHECK_WORK"/hashes."$name".[1248].json | sed 's:.*/::' | paste - - -
        return 1
    fi
    measure "same bits: $name, 1, 2, 4 and 8 ranks" "$found" runs
}

# family MODEL PRECISION: one of those that stage_hashes compares; its shapes are small, so that many of them can
# share the device.
family()
{
    local model=$1 precision=$2 positions=32 width=64 data=ddp,zero1,zero2,fsdp,hsdp words
    if dry_run; then positions=4 width=16; fi
    case $model in
    mlp) words="--model mlp --batch-size 64 --mlp.hidden 64,64,64,64,64,64,64 --tensor.canonical 8" ;;
    cnn) words="--model cnn --batch-size 16 --cnn.channels 8,8 --cnn.fc 40" ;;
    gpt)
        words="configs/models/tiny-gpt.yaml --gpt.layers 8 --gpt.width $width --gpt.context $positions"
        words="$words --data.length $positions --batch-size 8 --tensor.canonical 8"
        ;;
    esac
    # Unquoted: lists of words.
    # shellcheck disable=SC2086
    case $model in
    mlp) hashes_family "$model-$precision" "dp,$data,pp,tp" fsdp+tp,ddp+pp,tp+pp fsdp+tp+pp,zero2+tp,hsdp+pp \
        $words --precision "$precision" ;;
    cnn) hashes_family "$model-$precision" "dp,$data" pp ddp+pp $words --precision "$precision" ;;
    gpt) hashes_family "$model-$precision" "$data,pp,tp" fsdp+tp,ddp+pp,tp+pp fsdp+tp+pp,zero2+tp,hsdp+pp \
        $words --precision "$precision" ;;
    esac
}

# All run beside each other; a dry run has two of them, one after the other.
stage_hashes()
{
    local names="mlp-f32 gpt-bf16" name bad=0
    if ! dry_run; then names="$names mlp-bf16 gpt-f32 cnn-f32 cnn-bf16"; fi
    unset STANDIN_FAR # far memory is slow where it is simulated, and these are many runs
    rm -f "$GPU_CHECK_WORK"/hashes.*
    for name in $names; do
        family "${name%-*}" "${name#*-}" &
        if dry_run; then wait; fi
    done
    wait
    for name in $names; do
        hashes_judge "$name" || bad=$((bad + 1))
    done
    if [ "$bad" -gt 0 ]; then
        fail "$bad of $(wc -w <<<"$names") families of runs do not have the same bits; see the log"
    fi
}
