# shellcheck shell=bash
# What the files of bench/gpu_check.sh share: the environment of a stage, clocks, results, and numbers out of
# JSON without a program for it.

now()
{
    date +%s.%N
}

# since START: seconds since then, with a tenth.
since()
{
    awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'
}

dry_run()
{
    [ "$GPU_CHECK_DRY" = 1 ]
}

quick()
{
    [ "$GPU_CHECK_QUICK" = 1 ]
}

# fail WORDS: the last line of the log is what the table shows.
fail()
{
    echo "$*"
    exit 1
}

skip()
{
    echo "$*"
    exit 77
}

# device_word: the device in one word, for a folder's name.
device_word()
{
    timeout 10 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 |
        sed -E 's/NVIDIA |GeForce //g; s/[^A-Za-z0-9]+/-/g; s/^$/no-device/' | grep . || echo no-device
}

tessera()
{
    "$GPU_CHECK_BUILD/tessera" "$@"
}

# check_environment: what programs of a stage are run with. A dry run has the device made of host code.
check_environment()
{
    local deps=${TESS_DEPS:-} machine libraries
    if [ -n "$deps" ]; then
        machine=$(uname -m)-linux-gnu
        libraries=$deps/usr/lib/$machine
        export PATH=$PATH:$deps/usr/bin
        export CMAKE_PREFIX_PATH=$deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
        export PKG_CONFIG_PATH=$libraries/pkgconfig:$deps/usr/share/pkgconfig
        export PKG_CONFIG_SYSROOT_DIR=$deps
        export LD_LIBRARY_PATH=$libraries:$deps/lib/$machine${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        # oneDNN comes with neither a file for pkg-config nor, at some versions, one for CMake.
        export C_INCLUDE_PATH=$deps/usr/include:$deps/usr/include/$machine${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}
        export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
    fi
    # Where containers have the driver and the toolkit.
    export PATH=$PATH:/usr/local/nvidia/bin:${CUDA_HOME:-/usr/local/cuda}/bin
    export GPU_CHECK_LIBRARIES=${LD_LIBRARY_PATH:-} # for programs that are not ours
    # What the stage `build` has found.
    if [ -s "$GPU_CHECK_WORK/environment" ]; then
        # shellcheck source=/dev/null
        . "$GPU_CHECK_WORK/environment"
    fi
    if dry_run; then
        export TESSERA_MODULE_PATH=$GPU_CHECK_BUILD/tests/device/madeup
        export GPU_CHECK_PYTHON=${GPU_CHECK_PYTHON:-/usr/bin/python3}
    fi
    mkdir -p "$GPU_CHECK_WORK"
    return 0
}

# row TABLE CELL...: a line of a table of results, by any process of this call.
row()
{
    local table=$1 line="" cell
    shift
    for cell; do line+=${line:+$'\t'}${cell//[$'\t\r\n']/ }; done
    printf '%s\n' "$line" >>"$GPU_CHECK_WORK/$table.tsv"
}

# fact NAME TEXT
fact()
{
    row facts "$1" "$2"
}

# measure NAME VALUE UNIT [least|most ASKED]: a line of the table; without a value nothing was measured.
measure()
{
    local met="" asked=""
    if [ $# -ge 5 ]; then
        asked="$([ "$4" = least ] && echo '>=' || echo '<') $5"
        met=$(awk -v x="$2" -v goal="$5" -v way="$4" 'BEGIN {
            print (x == "" ? "" : (way == "least" ? x >= goal : x < goal) ? "met" : "MISSED") }')
    fi
    if dry_run && [ -n "$met" ]; then met="dry run"; fi
    row measures "$1" "${2:--}" "$3" "$asked" "$met"
    echo "measured: $1 = ${2:--} $3 $asked $met"
}

# number FILE KEY [FACTOR]: the last value of a key of a JSON file; nothing if there is none.
number()
{
    local value
    value=$(grep -oE "\"$2\": *-?[0-9][-+0-9.eE]*" "$1" 2>/dev/null | tail -n 1 | sed 's/.*: *//')
    if [ -n "$value" ]; then calculate 'x * factor' x="$value" factor="${3:-1}"; fi
}

# calculate EXPRESSION x=value...: with 4 digits at least; nothing where a value is missing or 0 divides.
calculate()
{
    local expression=$1 pair given=()
    shift
    for pair in "$@"; do
        if [ -z "${pair#*=}" ] || [ "${pair#*=}" = - ]; then return 0; fi
        given+=(-v "$pair")
    done
    awk "${given[@]}" "BEGIN { y = $expression; printf(y >= 1000 || y <= -1000 ? \"%.0f\" : \"%.4g\", y) }" \
        2>/dev/null
}

# objects TABLE FORMAT...: its lines as JSON objects; FORMAT is KEY:text or KEY:number for each column.
objects()
{
    local table=$1
    shift
    printf ',\n  "%s": [\n' "$table"
    sed 's/\\/\\\\/g; s/"/\\"/g' "$GPU_CHECK_WORK/$table.tsv" 2>/dev/null | tr -d '\001-\010\013-\037' |
        awk -F '\t' -v columns="$*" '
            BEGIN { count = split(columns, column, " ") }
            {
                printf "%s    {", (NR > 1 ? ",\n" : "")
                for (i = 1; i <= count; i++) {
                    split(column[i], part, ":")
                    cell = "\"" $i "\""
                    if (part[2] == "number")
                        cell = $i ~ /^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ ? $i : "null"
                    printf "%s\"%s\": %s", (i > 1 ? ", " : ""), part[1], cell
                }
                printf "}"
            }'
    printf '\n  ]'
}

# write_json: all results so far, in one piece: who reads or copies the file meanwhile has the former one.
write_json()
{
    local file=$GPU_CHECK_OUT/gpu_check.json
    {
        printf '{\n  "date": "%s",\n  "dry_run": %s,\n  "quick": %s,\n  "seed": %s' "$(date -u +%FT%TZ)" \
            "$(dry_run && echo true || echo false)" "$(quick && echo true || echo false)" "$TESS_TEST_SEED"
        objects facts name:text text:text
        objects stages name:text kind:text result:text seconds:number limit_s:number
        objects probes name:text answer:text seconds:number text:text
        objects measures name:text value:number unit:text asked:text goal:text
        objects clocks stage:text sm_mhz_least:number sm_mhz_median:number sm_mhz_most:number memory_mhz:number \
            watts_most:number celsius_most:number limited_by:text
        objects tests name:text result:text seconds:number text:text
        objects again name:text with:text result:text text:text
        objects hashes model:text precision:text ranks:number strategy:text hash:text result:text seconds:number
        printf '\n}\n'
    } >"$file.part"
    mv "$file.part" "$file"
}
