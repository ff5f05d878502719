# Splits a Markdown document, or the comments of a YAML file, into lines of KIND<TAB>FILE:LINE<TAB>TEXT:
#   span      text between backticks          link   target of [..](target)
#   heading   title without its number signs  line   a command of a shell block, continuations joined, that may succeed
#   block     info string of a fenced block   loose  a command outside a fenced block
function part(kind, text) { printf "%s\t%s:%d\t%s\n", kind, name, FNR, text }

FNR == 1 { fenced = 0; name = FILENAME }
name ~ /\.yaml$/ {
    if (sub(/^#  +tessera /, "tessera ")) { sub(/ +#.*/, ""); part("line", $0) }
    next
}
/^ *```/ {
    info = $0; sub(/^ *```/, "", info)
    if (!fenced) part("block", info)
    fenced = !fenced; joined = ""
    next
}
fenced && info ~ /^sh/ {
    text = $0
    sub(/(^|[ \t])#.*$/, "", text)
    if (sub(/\\$/, "", text)) { joined = joined text; next }
    if ((joined text) ~ /[^ ]/ && info != "sh fails") part("line", joined text)
    joined = ""
    next
}
fenced { next }
/^    *(\$ )?(build\/[a-z]+\/)?(tessera|cmake|ctest|mpirun|srun|torchrun) / { part("loose", $0) }
/^#+ / { title = $0; sub(/^#+ */, "", title); part("heading", title) }
{
    rest = $0
    while (match(rest, /`[^`]+`/)) {
        part("span", substr(rest, RSTART + 1, RLENGTH - 2))
        rest = substr(rest, 1, RSTART - 1) " " substr(rest, RSTART + RLENGTH)
    }
    while (match(rest, /\]\([^)]+\)/)) {
        part("link", substr(rest, RSTART + 2, RLENGTH - 3))
        rest = substr(rest, RSTART + RLENGTH)
    }
}
