#!/bin/sh
# bin/report: one page that holds everything, escapes what came from outside, opens without a network,
# and fits a telephone and a screen (in headless Chromium, where there is one).
set -u
report=${BUILDDIR:-build}/bin/report
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# gives STATUS WORDS NAME COMMAND...
gives()
{
    wanted=$1 words=$2 name=$3 status=0
    shift 3
    "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && { [ -z "$words" ] || grep -qF -- "$words" "$folder/out"; }
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

# ---- a run with hostile names ------------------------------------------------------------------------

evil='<script>alert(1)</script>'
run=$folder/run
page=$run/report.html
mkdir -p "$run/records" "$run/plots" "$run/tables"
{
    printf 'step\tstatus\tseconds\tlog\n'
    printf 'build\t0\t12\tlogs/build.log\n'
    printf 'gates %s\t1\t3\tlogs/gates.log\n' "$evil"
} >"$run/steps.tsv"
{
    printf 'id\titem\tquantity\tunit\tprinted\tkind\tours\tverdict\taccepted\tchanged\tcommand\n'
    printf 'a\tTable 6\tpeak %s\tGiB\t52.66\texact\t40.678\tbetter\tbetter\tno\tmake "x" & y\n' "$evil"
    printf 'b\tTable 7\tchunks\t\t10\texact\t9\tdiffers: 1 less\treproduced\tyes\tmake z\n'
} >"$run/claims.tsv"
{
    printf '{"schema":1,"run":{"id":"a","command":"vocab --load %s"},' "$evil"
    printf '"env":{"cpu":"X %s"},"op":"vocab","impl":"ring-dtp","device":"cpu",' "$evil"
    printf '"config":{"tokens":512},"status":"ok","check":{"verdict":"bitwise"},'
    printf '"memory":{"tracked_peak_bytes":4194304}}\n'
} >"$run/records/vocab.jsonl"
printf 'a table %s\nwith a byte \377 that is no UTF-8 and a bell \007\n%0400d\n' "$evil" 7 \
    >"$run/tables/x.txt"
printf '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="40"><rect width="9" height="9"/></svg>' \
    >"$run/plots/x.svg"
echo "command: ./run_all.sh '$evil'" >"$run/run.txt"

"$report" "$run"
ok $? 'a page is made'
grep -qF "$evil" "$page"
[ $? = 1 ]
ok $? 'nothing from outside becomes markup'
[ "$(grep -oF '&lt;script&gt;' "$page" | wc -l)" -ge 6 ]
ok $? 'it is there as text, in every section'
grep -qE '(src|href)="(https?:|//|file:)|url\(|<script|<link rel="stylesheet' "$page"
[ $? = 1 ]
ok $? 'the page asks for nothing outside itself'
grep -q 'differs: 1 less; CHANGED, accepted: reproduced' "$page"
ok $? 'a changed verdict says what was accepted'
grep -q '1 of 2 steps ended well' "$page"
ok $? 'failed steps are counted'
iconv -f UTF-8 -t UTF-8 "$page" >/dev/null 2>&1
ok $? 'the page is UTF-8'
LC_ALL=C tr -d '\t\n -\377' <"$page" | grep -q .
[ $? = 1 ]
ok $? 'without control characters'

# ---- what is missing or broken -----------------------------------------------------------------------

mkdir "$folder/empty"
gives 0 '' 'an empty run has a page too' "$report" "$folder/empty"
grep -q 'This run has no records' "$folder/empty/report.html"
ok $? 'that says what it lacks'
gives 2 'is no folder' 'a run that is not there is exit 2' "$report" "$folder/none"
cp "$page" "$folder/before"
cp "$run/records/vocab.jsonl" "$folder/good"
head -c 60 "$folder/good" >"$run/records/vocab.jsonl"
gives 2 'vocab.jsonl:1: cut in the middle' 'a record that is cut is exit 2, with file and line' \
    "$report" "$run"
cmp -s "$page" "$folder/before"
ok $? 'and the page that was there stays'
sed 's/"schema":1/"schema":99/' "$folder/good" >"$run/records/vocab.jsonl"
gives 2 'schema 99 is newer' 'a newer schema is exit 2' "$report" "$run"
cp "$folder/good" "$run/records/vocab.jsonl"
printf 'a\tb\n1\n' >"$folder/empty/claims.tsv"
gives 2 'claims.tsv:2: not the 2 columns' 'a line of outcomes that is cut is exit 2' "$report" \
    "$folder/empty"
gives 3 'No space left' 'a full disk is exit 3' "$report" --out /dev/full "$run"

# ---- in a browser ------------------------------------------------------------------------------------

# A page around it measures how wide it gets at each width, and puts that into its own text.
cat >"$folder/around.html" <<'END_OF_PAGE'
<!doctype html><meta charset="utf-8"><body></body><script>
const widths = [390, 1280];
let left = widths.length;
for (const width of widths) {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:800px;border:0`;
    frame.onload = () => {
        const page = frame.contentDocument;
        for (const part of page.querySelectorAll("details")) part.open = true;
        const words = page.body.innerText.length;
        const pictures = [...page.images].filter(i => i.complete && i.naturalWidth).length;
        const out = document.createElement("p");
        const root = page.documentElement;
        out.textContent = `width ${width}: ${root.scrollWidth - root.clientWidth} beyond, ` +
            `words ${words > 200} pictures ${pictures}`;
        document.body.append(out);
        if (!--left) document.title = "measured";
    };
    frame.src = "run/report.html";
    document.body.append(frame);
}
</script>
END_OF_PAGE
browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || ! command -v "$name" >/dev/null 2>&1 || browser=$name
done
if [ -z "$browser" ]; then
    for name in 'no console errors' 'fits 390 pixels' 'fits 1280 pixels'; do
        count=$((count + 1))
        echo "ok $count - $name # SKIP no Chromium here"
    done
else
    HOME=$folder timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$folder/profile" --allow-file-access-from-files --enable-logging=stderr \
        --virtual-time-budget=20000 --dump-dom "file://$folder/around.html" \
        >"$folder/dom" 2>"$folder/console"
    grep -q '<title>measured' "$folder/dom" && ! grep -q 'CONSOLE' "$folder/console"
    result=$?
    [ "$result" = 0 ] || grep CONSOLE "$folder/console" | sed 's/^/# /'
    ok "$result" 'renders without a console error'
    for width in 390 1280; do
        grep -q "width $width: 0 beyond, words true pictures 1" "$folder/dom"
        result=$?
        [ "$result" = 0 ] || grep -o "width $width: [^<]*" "$folder/dom" | sed 's/^/# /'
        ok "$result" "fits $width pixels, with its text and its picture"
    done
fi
echo "1..$count"
