#!/usr/bin/env bash
# page.sh PROGRAM: the report as a file: whole, self-contained, every name in it harmless; and that bad
# input ends with a clear message, the right exit status and no file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1
# shellcheck source-path=SCRIPTDIR source=inputs.sh
. "$here/inputs.sh"

"$program" report "${inputs[@]}" --out page.html --title "a <b>title</b>" >output
cat output

# ---- the file ------------------------------------------------------------------------------------
count() { grep -o -e "$1" page.html | wc -l; }

[ ! -e pwned ] || complain "a name was run as a command"
[ "$(count '</figure>')" = "$figures" ] || complain "$(count '</figure>') figures, expected $figures"
[ "$(count 'role="img" aria-label="[^"]')" = $((2 * figures)) ] ||
    complain "not every figure has a wide and a narrow picture with an alternative"
[ "$(count '<details class="numbers">')" = "$figures" ] || complain "not every figure has its numbers"
grep -qF "$figures pictures" output || complain "the program counts other pictures"
if grep -onE '(src|href|action|data|srcset)="[^#d"][^"]*"|url\([^)]*\)|https?:|//[a-z]|@import' page.html; then
    complain "the page refers to something outside"
fi
if grep -oE ' id="[^"]*"' page.html | sort | uniq -d | grep .; then
    complain "these identifiers are not unique"
fi
[ "$(count '<script')" = 1 ] || complain "$(count '<script') scripts, expected the theme's alone"
if grep -nE '<(img|iframe|object|embed|base|i|b)[ >/][^<]*(alert|goal|onerror|title)' page.html; then
    complain "foreign text has become an element"
fi
grep -qF 'Slow: the link &lt;i&gt;a&lt;/i&gt; - b since step 41; pairs of ranks send' page.html ||
    complain "the slow network is not there, escaped"
grep -qF 'Numbered anew after step 30: the link &lt;i&gt;a&lt;/i&gt; - b stays slow; saving. Median speed: 9006 images/s before, 9020 images/s while it was slow, 9046 images/s afterwards.' page.html ||
    complain "the ranks' new numbers are not there, with the speeds"
# Two pictures of each figure by step or by time, with a mark for each of four runs.
[ "$(count '<path class="mark"')" = "$((2 * 9 * 4))" ] || complain "$(count '<path class="mark"') marks in curves"
grep -qF 'a &lt;b&gt;title&lt;/b&gt;</h1>' page.html || complain "the title is not there, escaped"
if command -v openssl >/dev/null; then
    hash=$(sed -n 's/.*<script>\(.*\)<\/script>.*/\1/p' page.html | tr -d '\n' |
        openssl dgst -sha256 -binary | base64)
    grep -qF "script-src 'sha256-$hash'" page.html || complain "the policy names another script than $hash"
fi
if command -v xmllint >/dev/null; then
    # Its list of elements is that of HTML 4: "Tag svg invalid" is its age, anything else is ours.
    xmllint --html --noout page.html 2>&1 | grep ': HTML parser error' | grep -v 'Tag [a-z]* invalid' &&
        complain "the page is not well-formed"
    # What HTML leaves to guesswork is closed all the same: as XML the pictures are whole.
    sed -n '/^<svg class="\(wide\|narrow\)"/,/^<\/svg>/p' page.html | { echo '<all>'; cat; echo '</all>'; } |
        xmllint --noout - || complain "the pictures are not well-formed"
fi
for text in 'hash <code>00ff00ff00ff00ff</code>' \
    'metrics.jsonl:41</code> the file ends within this line' 'cut short</span>' 'Same bits' \
    'Step 2, the one of median length among 3 recorded: 10.0 ms' \
    'Rank 0: before its backward pass ends, 1 of 1 all_gather and 2 of 3 all_reduce calls have begun and 1 is complete; 4.5 of 5.5 ms of communication go on behind computation, and it waits 1.0 ms. Rank 1: no communication.' \
    '>all_reduce 1.0 MiB</text>' \
    '<th scope="row">1</th><td class="text">h1</td><td class="text">compute</td><td>1.500</td><td>16.50</td>' \
    '<th scope="row">1 to 0</th><td class="text">data</td><td class="text">slow</td><td>0.2500</td><td>25</td>' \
    'Amdahl&#39;s law fits best with p = 0.9300' '&lt;slow&gt;' 'What differs between the runs'; do
    grep -qF -e "$text" page.html || complain "not in the page: $text"
done
"$program" report "${inputs[@]}" --out again.html --title "a <b>title</b>" >/dev/null
cmp page.html again.html || complain "the same input gives another page"

# ---- runs of two tasks ---------------------------------------------------------------------------
# Images and tokens share no picture, no table and no key figure; each has its own words.
run words 3000 gpt 100
sed -i 's/"steps":60,/"steps":60,"sample_tokens":64,"data":{"train":"aa","set":"<i>stories"},/' words/metrics.jsonl
"$program" report plain faster words compare.json --out tasks.html >/dev/null
for task in 'Images of ' 'Tokens of &lt;i&gt;stories'; do
    # Key figures, overview, learning, statistics, memory, speed, pace.
    headings=$(grep -cF "<h3 class=\"task\">$task" tasks.html || true)
    [ "$headings" = 7 ] || complain "$headings headings '$task'"
done
# Every figure has runs of one task only.
sed 's/<figure/\n<figure/g' tasks.html | sed -n '/^<figure/,/<\/figure>/p' | tr '\n' ' ' | sed 's/<\/figure>/\n/g' >drawn
if grep '<span>words<' drawn | grep -E '<span>(plain|faster)'; then
    complain "images and tokens share a picture"
fi
grep -q '<span>words<' drawn && grep -q '<span>plain' drawn || complain "runs of two tasks are not drawn"
grep -qF '<th scope="col">tokens/s</th>' tasks.html && grep -qF '<th scope="col">images/s</th>' tasks.html ||
    complain "the overview of two tasks does not have the words of both"

# A recording that was cut, of times as long as they may be and more events than fit, is still drawn.
{
    printf '{"traceEvents":[\n'
    span 0 7 1e14 9e14 step 'step 7' ',"unfinished":true'
    for ((i = 0; i < 2100; i++)); do
        span 0 7 "$((100000 + i))e9" 9e14 communication "call $i" ',"bytes":1e99'
    done
    printf '{"name":"forw'
} >long.json
"$program" report long.json --out long.html >/dev/null || complain "a long recording is not drawn"
for text in 'has 100 events more than the 2000' 'the file ends within this event' \
    'the recording holds no step that ended'; do
    grep -qF -e "$text" long.html || complain "a long recording: not in the page: $text"
done

# ---- bad input -----------------------------------------------------------------------------------

# refused STATUS TEXT WORD...: report WORD... must fail so, print TEXT and write nothing.
refused()
{
    local status=0 wanted=$1 text=$2
    shift 2
    "$program" report "$@" >output 2>&1 || status=$?
    [ "$status" = "$wanted" ] || complain "report $*: exit status $status, expected $wanted: $(cat output)"
    grep -qF -e "$text" output || complain "report $*: does not print '$text': $(cat output)"
    [ ! -e report.html ] || complain "report $*: a file was written"
}

mkdir empty
: >empty.json
echo '{"runs":' >half.json
printf '{\n  "runs": [\n' >half2.json
echo '{"other":1}' >other.json
echo 'hello' >text
echo '{"traceEvents":[{"name":"step 1","ph":"X"}]}' >nosteps.json
refused 2 'report needs run folders'
refused 1 'hold no step' nosteps.json
{ cat trace.json; head -c 67200000 /dev/zero | tr '\0' ' '; } >large.json
refused 1 'fewer steps (tessera train --trace-steps)' large.json
rm large.json
refused 2 "unknown option 'port'" plain --port 5
refused 2 '--out is empty' plain --out ''
refused 2 '--out needs a value' plain --out
refused 2 'one of the files to report on' compare.json --out ./compare.json
refused 2 'one of the files to report on' plain --out plain/metrics.jsonl
refused 1 'No such file' nowhere
refused 1 'no metrics.jsonl' empty
refused 1 'holds no line' empty.json
refused 1 'holds no line' half.json
refused 1 'not whole JSON' half2.json
refused 1 'holds no line' other.json
refused 1 'holds no line' text
refused 1 'No space left' plain --out /dev/full
refused 1 'a device or a pipe, not a file' /dev/zero
mkfifo fifo
refused 1 'a device or a pipe, not a file' fifo
rm fifo
refused 1 'No such file' plain --out nowhere/report.html

# A product beside a plain strategy: its mesh is not that of all runs.
mkdir product
sed '1s/"ranks":2,/"ranks":2,"mesh":{"data":1,"tensor":2,"stage":1},/' plain/metrics.jsonl >product/metrics.jsonl
"$program" report plain product --out product.html >/dev/null
grep -q 'All runs: model' product.html || complain "what all runs have in common is not there"
! grep -q 'All runs:.*data x tensor' product.html || complain "a mesh of one run is called that of all"
grep -qF 'data-of="data x tensor x stage">1 x 2 x 1</td>' product.html ||
    complain "the mesh of one run is not in its row"

echo "$failures failures"
exit $((failures > 0))
