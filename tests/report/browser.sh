#!/usr/bin/env bash
# browser.sh PROGRAM [FOLDER]: the report in headless Chromium, in light and in dark, 400, 800 and 1400
# pixels wide: no message on the console, nothing fetched, every picture there with something in it,
# nothing wider than the screen or cut off, and text and curves that stand out from what is behind
# them. FOLDER gets the page as a PNG in each scheme, all widths side by side. Without Chromium it is
# skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shots=${2-}
for name in chromium chromium-browser google-chrome; do
    browser=$(command -v $name) && break
done
if [ -z "$browser" ]; then
    echo "no chromium: skipped"
    exit 77
fi
# shellcheck source-path=SCRIPTDIR source=inputs.sh
. "$here/inputs.sh"

"$program" report "${inputs[@]}" --out page.html --title "Browser"

# browse SCHEME FILE: the page's elements after its scripts have run on stdout, messages on stderr.
# 0 is dark, 1 light, by the numbering of Chromium's setting.
browse()
{
    show "$1" "$2" --dump-dom
}

# show SCHEME FILE OPTION...: the browser at a page.
show()
{
    local scheme=$1 file=$2
    shift 2
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --no-first-run --disable-background-networking --user-data-dir="$work/profile" \
        --force-prefers-reduced-motion --enable-logging=stderr --v=0 --virtual-time-budget=8000 \
        --blink-settings=preferredColorScheme="$scheme" --window-size="${window:-1600,1200}" "$@" "file://$file"
}

# ---- the page as it is ---------------------------------------------------------------------------
for scheme in 0 1; do
    browse $scheme "$work/page.html" >dom 2>log || complain "the browser failed: $(tail -n 3 log)"
    if grep -E 'CONSOLE|Refused|violates' log; then
        complain "messages on the console"
    fi
    pictures=$(grep -o '<svg class="\(wide\|narrow\)"[^>]*role="img"[^>]*aria-label="[^"]' dom | wc -l)
    [ "$pictures" = $((2 * figures)) ] || complain "$pictures pictures in the browser's tree"
    grep -q 'Theme: auto</button>' dom || complain "the theme's button does not work"
done

# ---- and with questions put to it ----------------------------------------------------------------
# The page's policy forbids scripts but its own, so a copy without the policy is asked. It stands in
# frames of three widths, because a headless window has a least width, and passes the figures to the frames' page.
sed 's/<meta http-equiv="Content-Security-Policy"[^>]*>//' page.html >asked.html
cat "$here/ask.html" >>asked.html
cat >frames.html <<'F'
<!DOCTYPE html><meta charset="utf-8"><title>frames</title><pre id="output"></pre>
<iframe src="asked.html" width="400" height="800"></iframe>
<iframe src="asked.html" width="800" height="800"></iframe>
<iframe src="asked.html" width="1400" height="800"></iframe>
<script>onmessage = e => { document.getElementById('output').textContent += e.data + '\n'; };</script>
F
backgrounds=
for scheme in 0 1; do
    browse $scheme "$work/frames.html" >dom 2>log || complain "the browser failed: $(tail -n 3 log)"
    if grep -E 'CONSOLE' log; then
        complain "messages on the console"
    fi
    sed -n 's/.*<pre id="output">//; /^width/p' dom >output
    cat output
    [ "$(grep -c "^width .*: $figures figures, 0 complaints" output)" = 3 ] ||
        complain "complaints, or frames without a message: $(grep -o 'bad: .*' dom)"
    backgrounds="$backgrounds $(grep -o 'background [^;]*' output | sort -u)"
done
[ "$(grep -o 'background rgb' <<<"$backgrounds" | wc -l)" = 2 ] || complain "backgrounds: $backgrounds"
[ "$(grep -o 'rgb([0-9, ]*)' <<<"$backgrounds" | sort -u | wc -l)" = 2 ] ||
    complain "dark looks as light does"

# ---- pictures ------------------------------------------------------------------------------------
if [ -n "$shots" ]; then
    mkdir -p "$shots"
    {
        echo '<!DOCTYPE html><meta charset="utf-8"><title>page</title><body style="margin:0;display:flex;gap:20px">'
        for width in 400 800 1400; do
            echo "<iframe src=\"page.html\" width=\"$width\" height=\"11900\" style=\"border:0\"></iframe>"
        done
    } >widths.html
    for scheme in 0 1; do
        name=$shots/$([ $scheme = 0 ] && echo dark || echo light).png
        rm -f "$name"
        window=2640,11900 show $scheme "$work/widths.html" --hide-scrollbars --screenshot="$name" >log 2>&1 || true
        # A page without content takes some 60 kB at this size.
        [ -s "$name" ] && [ "$(stat -c %s "$name")" -gt 300000 ] || complain "no picture $name: $(tail -n 3 log)"
    done
    ! cmp -s "$shots/dark.png" "$shots/light.png" || complain "the pictures are the same in both schemes"
fi

echo "$failures failures"
exit $((failures > 0))
