#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# scan-server's page in a real browser, headless: it comes to life, shows what the server says, fits into a narrow window,
# and needs nothing from elsewhere. Leaves its pictures, light and dark, in $BP_SHOTS if that is set.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    skip "no browser (Debian: chromium)"
    finish
}
data=$work/data
bytes=$((24 << 20))
make_data "$data" $bytes
cp "$data" "$work/<b>&other"
start scan-server --data "$data" --data "$work/<b>&other" --memory 16M --threads 2
url=http://127.0.0.1:$port

# browse WIDTH URL OPTION...: with a fresh profile, nothing but the server reachable; time inside runs fast
browse() {
    local width=$1 page=$2
    shift 2
    timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --no-first-run --user-data-dir="$work/profile" --host-resolver-rules='MAP * ~NOTFOUND , EXCLUDE 127.0.0.1' \
        --window-size="$width,1600" --virtual-time-budget=4500 "$@" "$page" 2>"$work/browser.err"
}
# of the element with this id: its text; or an attribute
text() { tr '\n' ' ' <"$work/dom" | sed -n "s/.*<[a-z]* [^>]*id=\"$1\"[^>]*>\([^<]*\)<.*/\1/p"; }
attribute() { tr '\n' ' ' <"$work/dom" | grep -o "<[a-z]* [^>]*id=\"$1\"[^>]*>" | sed -n "s/.* $2=\"\([^\"]*\)\".*/\1/p"; }

curl -sS -o /dev/null -r 0-8388607 "$url/data"
curl -sS -o /dev/null -r 0-4194303 "$url/data"
browse 1200 "$url/" --dump-dom >"$work/dom"
if ! [ -s "$work/dom" ]; then
    skip "the browser does not start here: $(grep -v dbus "$work/browser.err" | head -n 1)"
    finish
fi
check "the page is live" grep -q '<html[^>]*data-state="live"' "$work/dom"
same "what is served" "2 files, 48.0 MiB, through a pool of 16.0 MiB" "$(text about)"
stats() { curl -sS "$url/stats" | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p"; }
# what was asked for, and what was read ahead of it
check "in memory" grep -Eq '^(8|9|10)\.[0-9] MiB$' <(text resident)
same "the map's cells" 1024 "$(attribute map data-cells)"
shown=$(attribute map data-resident)
check "what they show in memory" test "$shown" -ge $((8 << 20)) -a "$shown" -lt $((11 << 20))
check "and say" grep -Eq '(3[3-9]|4[0-5])\.[0-9] % of 24.0 MiB; a square is 24.0 KiB' <(text map-text)
check "an order in the legend" grep -Eq 'KiB extents: [0-9.]+ MiB' "$work/dom"
check "the hit rate" grep -q '^idle; [0-9]* requests$' <(text hit-rate-all)
same "the what-if curve's points" 5 "$(attribute whatif data-points)"
check "the history grows" test "$(attribute hit-chart data-points)" -ge 2
same "slabs" "$(curl -sS "$url/slabs" | grep -o '"state"' | wc -l)" "$(attribute slabs data-slabs)"
check "and their node" grep -q 'node [0-9]*: [0-9.]* MiB in use of [0-9.]* MiB, [a-z]' "$work/dom"
check "facilities" grep -q '<td>huge pages</td>' "$work/dom"
check "all statistics" grep -q "<td>misses</td><td class=\"number\">$(stats misses)</td>" "$work/dom"
check "a name is text, not markup" grep -q '&lt;b&gt;&amp;other (24.0 MiB)' "$work/dom"
check "nothing from elsewhere" test "$(curl -sS "$url/" | grep -c -E 'https?://|@import|url\(' | cat)" -le 1

shots=${BP_SHOTS:-$work}
for picture in 1200-light 500-dark; do
    options=(--screenshot="$shots/page-$picture.png")
    [ $picture = 1200-light ] || options+=(--force-dark-mode)
    browse ${picture%-*} "$url/" "${options[@]}" >/dev/null
    check "a picture, $picture: $(stat -c %s "$shots/page-$picture.png") bytes" test "$(stat -c %s "$shots/page-$picture.png")" -gt 20000
done

# 400 pixels are less than a window may have, but not less than a frame may have. The page is put into one here, and told
# where its server is; that it may ask another origin than this file's is what the option is for.
cat >"$work/narrow.html" <<END
<body><p id="wide"></p></body>
<script>
const frame = document.createElement("iframe"), wide = document.getElementById("wide");
frame.style = "width:400px;height:900px;border:0";
fetch("$url/").then(answer => answer.text()).then(page => {
    frame.srcdoc = page.replace("<head>", "<head><base href='$url/'>");
    document.body.append(frame);
});
setTimeout(() => {
    const inner = frame.contentDocument.documentElement.dataset;
    wide.textContent = inner.state + " " + inner.width + " " + inner.overflow;
}, 3000);
</script>
END
browse 800 "file://$work/narrow.html" --disable-web-security --dump-dom >"$work/dom"
same "a window of 400 pixels is enough" "live 400 0" "$(text wide)"
stop scan-server
finish
