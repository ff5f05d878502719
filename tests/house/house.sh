#!/usr/bin/env bash
# house.sh ROOT: checks the rules of the house in the source tree at ROOT, lists every breach and fails
# if there is one. The rules and their reasons are in engine/DESIGN.md.
set -uo pipefail
export LC_ALL=C.UTF-8
cd "${1:?usage: house.sh ROOT}" || exit 2

breaches=0

# breach RULE TEXT: TEXT is what a search found; nothing found is good.
breach()
{
    if [ -n "$2" ]; then
        printf 'house: %s:\n%s\n' "$1" "$(sed 's/^/    /' <<<"$2")"
        breaches=$((breaches + 1))
    fi
}

# sources DIR...: the C files below the folders, those that exist.
sources()
{
    find "$@" -type f \( -name '*.c' -o -name '*.h' \) 2>/dev/null | sort
}

# search REGEX FILE...: matches as file:line:text, without complaint when no file is given.
search()
{
    local regex=$1
    shift
    if [ $# -gt 0 ]; then
        grep -nHE "$regex" "$@"
    fi
}

# includes ALLOWED DIR...: quoted includes that do not match ALLOWED.
includes()
{
    local allowed=$1
    shift
    # shellcheck disable=SC2046
    search '^ *# *include "' $(sources "$@") | grep -vE "include \"($allowed)"
}

# at_most LINES FILE: only where the file exists.
at_most()
{
    if [ -f "$2" ]; then
        local lines
        lines=$(wc -l <"$2")
        if [ "$lines" -gt "$1" ]; then
            echo "$2 has $lines lines, allowed are $1"
        fi
    fi
}

# What the library is made of, and what belongs to the program alone.
library=$(sources engine/base engine/comm engine/config engine/core engine/data engine/device engine/include \
    engine/job engine/models engine/optim engine/state kernels strategies topology | grep -v '^topology/draw/')
everything="$(sources engine kernels strategies topology bench tests)
$(find kernels -type f \( -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)"

# shellcheck disable=SC2046,SC2086
{
    breach "a strategy's name in the engine" \
        "$(search '\<(ddp|fsdp|zero1|zero2|hsdp|dp|tp|sp|pp)\>|"single"' $(grep '^engine/' <<<"$library"))"

    breach "a file of more than 700 lines" "$(for file in $everything; do at_most 700 "$file"; done)"
    breach "an interface that asks for too much code" "$(
        at_most 149 engine/cli/main.c
        at_most 150 engine/comm/comm_self.c
        at_most 300 strategies/ddp.c
        at_most 220 engine/models/mlp.c)"
    breach "a line of more than 100 columns" "$(search '^.{101}' $everything)"
    breach "unfinished or dead code" "$(search '\<(TODO|FIXME|XXX)\>|^ *# *if 0' $everything)"
    breach "a tab or a space at the end of a line" "$(search $'\t|[ \r]$' $everything)"
    breach "sizeof without parentheses" "$(search '\<sizeof [^(]' $everything)"

    breach "oneDNN outside kernels/cpu" \
        "$(search 'include [<"](oneapi/dnnl/)?dnnl' $(sources engine kernels strategies topology |
            grep -v '^kernels/cpu/'))"
    breach "libyaml outside engine/base and topology/formats/yaml" \
        "$(search 'include [<"]yaml' $(sources engine kernels strategies topology bench |
            grep -vE '^engine/base/|^topology/formats/yaml[a-z_]*\.c'))"
    breach "zlib outside engine/data and engine/prepare" \
        "$(search 'include [<"]zlib' $(sources engine kernels strategies topology bench |
            grep -vE '^engine/(data|prepare)/'))"
    breach "PCRE2 or utf8proc outside engine/tokenizer, zstd outside engine/prepare" \
        "$(search 'include [<"](pcre2|utf8proc)' $(sources engine kernels strategies topology bench |
            grep -v '^engine/tokenizer/')
            search 'include [<"]zstd' $(sources engine kernels strategies topology bench |
            grep -v '^engine/prepare/'))"
    breach "libpng or libjpeg outside engine/data, SentencePiece outside engine/tokenizer" \
        "$(search 'include [<"](png|jpeglib|jerror)\.h' $(sources engine kernels strategies topology bench |
            grep -v '^engine/data/')
            search 'include [<"]sentencepiece' $(sources engine kernels strategies topology bench |
            grep -v '^engine/tokenizer/'))"
    breach "nettle outside engine/comm/boot" \
        "$(search 'include [<"]nettle' $(sources engine kernels strategies topology bench |
            grep -v '^engine/comm/boot/'))"
    breach "CUDA, NCCL, MPI, hwloc or NVML where there is no room for it" \
        "$(search 'include [<"](cuda|nccl\.h|mpi\.h|hwloc|nvml\.h)' $(sources engine kernels strategies topology bench |
            grep -vE '^kernels/cuda/|^engine/comm/(mpi|nccl)/|^topology/hwloc/|^bench/peers/'))"
    # What a room may include is the compiler's business (engine/rooms.cmake), as far as includes
    # begin at a room.
    breach "an include that leaves its room by the back door" \
        "$(search 'include "(\.|[^"]*/\.\.|engine/|kernels/[a-z]+/)' $(sources engine kernels strategies topology bench))"

    # These end a child of their own, in which nothing else of the process may run.
    breach "a library that ends the process" \
        "$(search '(^|[^_>.A-Za-z])(exit|_exit|_Exit|quick_exit|abort)\(' $(grep -vxE 'engine/job/(launch|job_rank).c|engine/base/pages.c|kernels/cuda/survey.c|topology/hwloc/hwloc_load.c' <<<"$library"))"
    breach "a library that prints to stdout" \
        "$(search '(^|[^_A-Za-z])(printf|puts|putchar|vprintf)\(|[(,] *stdout\>' $(grep -vE '^engine/base/options[a-z_]*\.[ch]$' <<<"$library") | grep -v 'fflush(stdout)')"
}

if [ "$breaches" -gt 0 ]; then
    echo "house: $breaches rules broken"
    exit 1
fi
echo "house: in order"
