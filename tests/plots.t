#!/bin/sh
# From records and traces to CSV (bin/figures) and from CSV to pictures (plots/draw.sh): right files, right
# number of marks, absent tools told and skipped, a tool that fails told as a failure.
set -u
figures=${BUILDDIR:-build}/bin/figures
archive=${BUILDDIR:-build}/bin/archive
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

skip()
{
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}

# record OP IMPL CONFIG MEDIAN_S INCREMENT MORE: one launch on one machine; commit, device, kind and
# host may be set.
record()
{
    printf '{"schema":1,"run":{"id":"a","time":"2026-01-01T00:00:00Z","git":{"commit":"%s",' "${commit:-aaaa}"
    printf '"dirty":false}},"env":{"cpu":"X","cores":2},"op":"%s","impl":"%s","device":"%s",' "$1" "$2" \
        "${device:-cpu}"
    printf '"config":{%s},"status":"ok","check":{"verdict":"bitwise"},' "$3"
    printf '"time":{"kind":"%s","median_s":%s,"q1_s":%s,"q3_s":%s},' "${kind:-measured}" "$4" "$4" "$4"
    printf '"throughput":{"value":1e9,"unit":"FLOP/s"},'
    printf '"memory":{"tracked_peak_bytes":%s,"increment_bytes":%s,"host_pinned_peak_bytes":%s}%s}\n' \
        "$5" "$5" "${host:-0}" "$6"
}

# ---- records -----------------------------------------------------------------------------------------

records=$folder/records
mkdir "$records"
{
    for routing in balanced 80/16; do
        record dispatch llep "\"tokens\":64,\"routing\":\"$routing\"" 0.010 4194304 ''
        for chunks in 1 2 4; do
            record dispatch pipelined-llep \
                "\"tokens\":64,\"routing\":\"$routing\",\"chunk_count\":$chunks" \
                "0.01$chunks" $((4194304 / chunks)) ",\"figures\":{\"chunks\":$chunks}"
        done
    done
    record vocab materialized '"tokens":64' 0.020 8388608 ''
    record vocab ring-dtp '"tokens":64' 0.021 1048576 ''
    host=0 record checkpoint sco '"tokens":64,"host_budget":0' 0.030 8388608 ''
    host=4194304 record checkpoint sco '"tokens":64,"host_budget":4194304' 0.030 4194304 ''
    for bucket in 1000 2000; do
        record optimizer offload-stream "\"params\":4000,\"slots\":2,\"bucket\":$bucket" 0.040 $bucket ''
    done
    kind=simulated device=sim:h200-8
    record vocab materialized '"tokens":64' 0.020 8388608 ''
    unset kind device
} >"$records/all.jsonl"
printf '{"traceEvents":[
{"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"main"}},
{"ph":"M","name":"thread_name","pid":1,"tid":4,"args":{"name":"copies"}},
{"ph":"X","cat":"wait","pid":1,"tid":3,"ts":0,"dur":5,"name":"copies"},
{"ph":"X","cat":"copy","pid":1,"tid":4,"ts":10,"dur":20,"name":"h2d"},
{"ph":"X","cat":"kernel","pid":1,"tid":3,"ts":30,"dur":70,"name":"gemm"},
{"ph":"C","name":"memory","pid":1,"ts":5,"args":{"weights":1048576,"logits":0}},
{"ph":"C","name":"memory","pid":1,"ts":60,"args":{"weights":1048576,"logits":2097152}},
{"ph":"C","name":"memory","pid":1,"ts":500,"args":{"weights":0,"logits":0}},
{"ph":"X","cat":"kernel","pid":2,"tid":5,"ts":0,"dur":900,"name":"gemm"},
{"ph":"C","name":"memory","pid":2,"ts":5,"args":{"weights":1024,"logits":0}}
]}\n' >"$folder/trace"
mkdir "$folder/traces" "$folder/history"
cp "$folder/trace" "$folder/traces/vocab.materialized.measured.json"
cp "$folder/trace" "$folder/traces/vocab.ring-dtp.simulated.json"
"$archive" --part history --out "$folder/history/1.jsonl" "$records"
commit=bbbb record vocab ring-dtp '"tokens":64' 0.021 1048576 '' | sed 's/2026-01-01/2026-01-02/' \
    >"$folder/later.jsonl"
"$archive" --part history --out "$folder/history/2.jsonl" "$folder/later.jsonl"

csv=$folder/csv
"$figures" --out "$csv" --traces "$folder/traces" --history "$folder/history" "$records"
ok $? 'figures writes the CSV files'

# has FILE LINES NAME: so many lines after the heading.
has()
{
    lines=$(sed 1d "$csv/$1.csv" 2>/dev/null | wc -l)
    [ "$lines" = "$2" ]
    result=$?
    [ "$result" = 0 ] || echo "# $1.csv has $lines lines"
    ok "$result" "$3"
}
has operators-dispatch-measured 8 'operators: every implementation at every shape'
has operators-vocab-measured 2 'operators: measured apart'
has operators-vocab-simulated 1 'from simulated'
has chunks-measured 6 'chunks: a line for each routing'
has sco-measured 2 'sco: device memory against host memory'
has optimizer-measured 2 'optimizer: buckets'
has history 8 'history: the streaming schedules over commits'
has live_sets-vocab 12 'live sets: of the fullest rank, until its work ends'
has streams-vocab 4 'streams: what is no waiting'
grep -qx 'materialized,measured,0,main,kernel,gemm,2e-05,9e-05' "$csv/streams-vocab.csv"
ok $? 'streams: the clock starts with the first work'
grep -q '^0,routing=80/16,measured,1,0.011,' "$csv/chunks-measured.csv"
ok $? 'chunks: named by what tells the lines apart'
[ ! -e "$csv/chunks-simulated.csv" ] && [ ! -e "$csv/sco-computed.csv" ]
ok $? 'what has no lines is not written'

# ---- pictures ----------------------------------------------------------------------------------------

{
    echo 'model,term,live_set,bytes,limit_bytes'
    for model in small large; do
        echo "$model,weights,weights,2147483648,141000000000"
        echo "$model,strips,logits,1073741824,141000000000"
    done
} >"$csv/budget.csv"
plots=$folder/plots
plots/draw.sh "$csv" "$plots" >"$folder/said" 2>&1
result=$?
[ "$result" = 0 ] || sed 's/^/# /' "$folder/said"
ok "$result" 'draw.sh draws or skips, exit 0'

# marks FILE PATTERN WANTED NAME: how often the pattern is in the SVG; the PNG is there too.
marks()
{
    if grep -q "^plots: skipped: $1:" "$folder/said"; then
        skip "$4" "$(sed -n "s/^plots: skipped: $1: //p" "$folder/said")"
        return
    fi
    found=$(grep -oE "$2" "$plots/$1.svg" 2>/dev/null | wc -l)
    [ "$found" = "$3" ] && [ -s "$plots/$1.png" ] && head -c 4 "$plots/$1.png" | grep -q PNG
    result=$?
    [ "$result" = 0 ] || echo "# $1.svg has $found marks, not $3"
    ok "$result" "$4"
}
point="<use xlink:href='#gpPt[0-9]+' transform"
# Every series has one mark more in each panel's key.
marks operators-dispatch-measured '<polygon' 24 'bars: 8 in each of two panels, and 4 + 4 in the keys'
marks operators-vocab-simulated '<polygon' 4 'bars of a simulated device'
marks chunks-measured "$point" 16 'chunks: 6 samples in each of two panels'
marks sco-measured "$point" 6 'host memory: 2 samples in each of two panels'
marks optimizer-measured "$point" 6 'buckets: 2 samples in each of two panels'
marks history "$point" 30 'history: 8 points in each of two panels, 7 lines'
marks live_sets-vocab 'id="mark-' 4 'live sets: two areas for each implementation'
marks streams-vocab 'id="mark-' 4 'streams: a row of kernels and one of copies for each'
marks budget 'id="mark-' 4 'budget: two terms for each model'

# told STATUS WORDS NAME COMMAND...
told()
{
    wanted=$1 words=$2 name=$3 status=0
    shift 3
    env "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && grep -qF -- "$words" "$folder/out"
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}
nowhere=$folder/nowhere
told 0 "skipped: sco-measured: $nowhere not found" 'without gnuplot its plots are skipped, exit 0' \
    GNUPLOT="$nowhere" PYTHON="$nowhere" plots/draw.sh "$csv" "$folder/none"
grep -q 'skipped: budget: matplotlib not found' "$folder/out" &&
    [ -z "$(ls "$folder/none")" ]
ok $? 'without matplotlib likewise, and nothing is left behind'
told 1 'FAILED: sco-measured' 'a gnuplot that fails is told, exit 1' \
    GNUPLOT=false PYTHON="$nowhere" plots/draw.sh "$csv" "$folder/failed"
if grep -q '^plots: skipped: budget' "$folder/said"; then
    skip 'a plot that matplotlib cannot draw is told, exit 1' 'matplotlib not found'
    skip 'and the others are drawn' 'matplotlib not found'
else
    mkdir "$folder/wrong"
    printf 'model,term\na,b\n' >"$folder/wrong/budget.csv"
    cp "$csv/streams-vocab.csv" "$folder/wrong"
    told 1 'FAILED: budget' 'a plot that matplotlib cannot draw is told, exit 1' \
        GNUPLOT="$nowhere" plots/draw.sh "$folder/wrong" "$folder/failed"
    grep -q 'streams-vocab.svg' "$folder/out"
    ok $? 'and the others are drawn'
fi
told 2 'no such folder' 'a folder that is not there is exit 2' plots/draw.sh "$nowhere" "$folder/x"

# ---- bad input ---------------------------------------------------------------------------------------

head -c 200 "$folder/trace" >"$folder/traces/vocab.cut.measured.json"
told 2 'vocab.cut.measured.json:' 'a trace that is cut is named' \
    "$figures" --out "$folder/bad" --traces "$folder/traces"
rm "$folder/traces/vocab.cut.measured.json"
cp "$folder/trace" "$folder/traces/nameless.json"
told 2 'a trace is named FAMILY.IMPL.KIND.json' 'a trace of another name too' \
    "$figures" --out "$folder/bad" --traces "$folder/traces"
echo '{"schema":2}' >"$folder/newer.jsonl"
told 2 'newer' 'a record of a newer schema is refused' "$figures" --out "$folder/bad" "$folder/newer.jsonl"
echo "1..$count"
