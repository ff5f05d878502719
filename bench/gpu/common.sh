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

# check_environment: what programs of a stage are run with. A dry run has the stand-in's device.
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
    if dry_run; then
        export TESSERA_MODULE_PATH=$GPU_CHECK_BUILD/tests/cli/standin STANDIN_DEVICES=1 STANDIN_FAR=1
        export GPU_CHECK_PYTHON=${GPU_CHECK_PYTHON:-/usr/bin/python3}
    fi
    mkdir -p "$GPU_CHECK_WORK"
    return 0
}

# fact NAME TEXT
fact()
{
    printf '%s\t%s\n' "$1" "$(tr '\t\n' '  ' <<<"$2")" >>"$GPU_CHECK_WORK/facts.tsv"
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
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "${2:--}" "$3" "$asked" "$met" >>"$GPU_CHECK_WORK/measures.tsv"
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

# quoted TEXT: as a JSON string.
quoted()
{
    printf '"%s"' "$(sed 's/\\/\\\\/g; s/"/\\"/g' <<<"$1" | tr -d '\000-\037')"
}

# value TEXT: a JSON number where it is one, else null.
value()
{
    if grep -qE '^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$' <<<"$1"; then printf '%s' "$1"; else printf null; fi
}

# objects FILE FORMAT...: the lines of a table as JSON objects; FORMAT is KEY:text or KEY:value for each column.
objects()
{
    local file=$1 line first=1 column cell
    shift
    while IFS= read -r line; do
        if [ "$first" = 1 ]; then first=0; else printf ',\n'; fi
        printf '    {'
        column=0
        for cell in "$@"; do
            column=$((column + 1))
            if [ "$column" -gt 1 ]; then printf ', '; fi
            printf '"%s": ' "${cell%:*}"
            "${cell#*:}" "$(cut -f "$column" <<<"$line")"
        done
        printf '}'
    done <"$file"
}

# write_json FILE: all results of this call.
write_json()
{
    {
        printf '{\n  "date": '
        quoted "$(date -u +%FT%TZ)"
        printf ',\n  "dry_run": %s,\n  "quick": %s,\n  "seed": ' \
            "$([ "$GPU_CHECK_DRY" = 1 ] && echo true || echo false)" \
            "$([ "$GPU_CHECK_QUICK" = 1 ] && echo true || echo false)"
        value "$TESS_TEST_SEED"
        printf ',\n  "facts": [\n'
        objects "$GPU_CHECK_WORK/facts.tsv" name:quoted text:quoted
        printf '\n  ],\n  "stages": [\n'
        objects "$GPU_CHECK_WORK/stages.tsv" name:quoted kind:quoted result:quoted seconds:value limit_s:value
        printf '\n  ],\n  "measures": [\n'
        objects "$GPU_CHECK_WORK/measures.tsv" name:quoted value:value unit:quoted asked:quoted goal:quoted
        printf '\n  ]\n}\n'
    } >"$1"
}
