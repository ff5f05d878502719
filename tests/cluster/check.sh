# shellcheck shell=bash
# Checks of the cluster's tests: each prints its subject, what was seen and what was expected. Sourced;
# check_end gives the verdict. Figures may come from a pipe: awk compares them.

check_failures=0

# The end of a test that cannot run here.
check_skip()
{
    echo "skipped: $*"
    exit 77
}

check_lab()
{
    local output status=0
    output=$(./lab.sh with 1 1 100 100 -- true 2>&1) || status=$?
    [ $status -ne 77 ] || check_skip "${output#lab: skipped: }"
    [ $status -eq 0 ] || { echo "$output"; exit 1; }
}

check_tell()
{
    if [ "$1" = wrong ]; then
        check_failures=$((check_failures + 1))
    fi
    printf '%-6s %s\n' "$1" "$2"
}

# check_equal WHAT SEEN EXPECTED
check_equal()
{
    if [ "$2" = "$3" ]; then
        check_tell ok "$1: ${2:-none}"
    else
        check_tell wrong "$1: '$2', expected '$3'"
    fi
}

# check_between WHAT SEEN LEAST MOST
check_between()
{
    if awk -v seen="$2" -v least="$3" -v most="$4" \
        'BEGIN {exit !(seen ~ /^[0-9.eE+-]+$/ && seen + 0 >= least && seen + 0 <= most)}'; then
        check_tell ok "$1: $2 (from $3 to $4)"
    else
        check_tell wrong "$1: '$2', expected from $3 to $4"
    fi
}

# check_speed WHAT SEEN LEAST MOST: as check_between where LAB_JUDGE is set, on a machine that has nothing else to do.
# Elsewhere the figure is printed: a busy machine makes any speed wrong.
check_speed()
{
    if [ -n "${LAB_JUDGE:-}" ]; then
        check_between "$@"
    else
        check_tell seen "$1: $2 (expected from $3 to $4 on an idle machine)"
    fi
}

# check_contains WHAT TEXT REGEX
check_contains()
{
    if grep -qE -- "$3" <<<"$2"; then
        check_tell ok "$1"
    else
        check_tell wrong "$1: no '$3' in:
$(sed 's/^/       /' <<<"$2")"
    fi
}

# check_fails WHAT CMD...
check_fails()
{
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then
        check_tell wrong "$what: went well"
    else
        check_tell ok "$what: fails"
    fi
}

check_end()
{
    if [ "$check_failures" -gt 0 ]; then
        echo "$check_failures checks failed"
        exit 1
    fi
    exit 0
}

# ---- figures -------------------------------------------------------------------------------------

# check_final RUN KEY: of the last line of a run's metrics.jsonl in the lab's folder.
check_final()
{
    tail -n 1 "$LAB_DIR/$1/metrics.jsonl" | grep -o "\"$2\":[^,}]*" | head -n 1 | cut -d : -f 2 | tr -d '"'
}

# check_running: how many processes of ranks and their launchers there are on all hosts that live.
check_running()
{
    local host
    for host in $(./lab.sh hosts); do
        ./lab.sh run "$host" sh -c 'cat /proc/[0-9]*/comm' 2>/dev/null || true
    done | grep -c '^tessera' || true
}

# check_kill_rank HOST RANK: the process of a rank, as when memory ran out. Its launcher lives.
check_kill_rank()
{
    # shellcheck disable=SC2016
    ./lab.sh run "$1" bash -c 'for process in /proc/[0-9]*; do
            [ "$(cat $process/comm 2>/dev/null)" != "tessera rank $0" ] || kill -KILL ${process#/proc/}
        done' "$2"
}

# check_options [--json]: JSON lines, and only those, on stdout; checks and tables go to stderr then.
check_options()
{
    case ${1:-} in
    "") ;;
    --json) export CHECK_JSON=1 ;;
    *)
        echo "unknown option '$1': there is --json" >&2
        exit 2
        ;;
    esac
}
if [ -n "${CHECK_JSON:-}" ]; then
    exec 3>&1 1>&2
fi

# table_head NETWORK FIRST SECOND: rows compare two orders of ranks.
table_head()
{
    check_network=$1 check_first=$2 check_second=$3
    check_table=$(printf '%s\n%-26s %-12s %12s %12s %7s' "$1" "" "" "$2" "$3" "ratio")
}

# table_row NAME UNIT FIRST SECOND: of rates, larger is better.
table_row()
{
    local ratio
    ratio=$(awk "BEGIN {printf \"%.2f\", $4 / $3}")
    check_table="$check_table
$(printf '%-26s %-12s %12s %12s %7s' "$1" "$2" "$3" "$4" "$ratio")"
    [ -z "${CHECK_JSON:-}" ] ||
        printf '{"bench":"cluster","network":"%s","name":"%s","unit":"%s","%s":%s,"%s":%s,"ratio":%s}\n' \
            "$check_network" "$1" "$2" "$check_first" "$3" "$check_second" "$4" "$ratio" >&3
}

table_end()
{
    printf '\n%s\n\n' "$check_table"
}
