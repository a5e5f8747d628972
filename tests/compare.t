#!/bin/sh
# bin/compare from outside: exit status, what is printed, JSON, a folder of accepted records.
set -u
compare=${BUILDDIR:-build}/bin/compare
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# record LAUNCH PEAK MEDIAN
record()
{
    printf '{"schema":1,"run":{"id":"%s"},"op":"vocab","impl":"ring-dtp","device":"cpu",' "$1"
    printf '"config":{"tokens":512},"status":"ok","check":{"verdict":"bitwise","against":"reference"},'
    printf '"memory":{"by_live_set":{"logits":{"peak_bytes":%s}},"tracked_peak_bytes":%s},' "$2" "$2"
    printf '"time":{"kind":"measured","median_s":%s,"q1_s":%s,"q3_s":%s}}\n' "$3" "$3" "$3"
}

# gives STATUS WORDS NAME ARGUMENT...
gives()
{
    wanted=$1 words=$2 name=$3 status=0
    shift 3
    "$compare" "$@" >"$folder/out" 2>&1 || status=$?
    grep -qF -- "$words" "$folder/out"
    found=$?
    [ "$status" = "$wanted" ] && [ "$found" = 0 ]
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

record a 4096 0.010 >"$folder/old.jsonl"
record b 4096 0.010 >"$folder/same.jsonl"
record c 4097 0.010 >"$folder/byte.jsonl"
record d 4095 0.010 >"$folder/less.jsonl"
record e 4096 0.020 >"$folder/slow.jsonl"
mkdir "$folder/accepted"
cp "$folder/old.jsonl" "$folder/accepted"
head -c 100 "$folder/old.jsonl" >"$folder/cut.jsonl"

gives 0 'SAME' 'the same twice is SAME, exit 0' "$folder/old.jsonl" "$folder/same.jsonl"
gives 1 'REGRESSION memory.live set logits: peak_bytes: 4097, was 4096 (+1)' \
    'one byte more is exit 1 and names the live set' "$folder/old.jsonl" "$folder/byte.jsonl"
gives 0 'difference memory.tracked_peak_bytes: 4095, was 4096 (-1)' \
    'one byte less is told, exit 0' "$folder/old.jsonl" "$folder/less.jsonl"
gives 1 '0 regressions, 2 differences' 'and exit 1 with --fail-on difference' \
    --fail-on difference "$folder/old.jsonl" "$folder/less.jsonl"
gives 1 'SLOWER' 'twice the time is exit 1' "$folder/old.jsonl" "$folder/slow.jsonl"
gives 0 'FASTER' 'half the time is exit 0' "$folder/slow.jsonl" "$folder/old.jsonl"
gives 0 'SAME' '--min-effect decides what counts' --min-effect 100 "$folder/old.jsonl" \
    "$folder/slow.jsonl"
gives 1 '(+1)' 'a folder of accepted records is a gate' --accepted "$folder/accepted" \
    "$folder/byte.jsonl"
gives 1 '"level": "regression"' '--json prints findings' --json "$folder/old.jsonl" \
    "$folder/byte.jsonl"
gives 0 '1 cases paired' '--changed leaves out what is the same' --changed "$folder/old.jsonl" \
    "$folder/same.jsonl"
grep -q 'vocab ring-dtp' "$folder/out"
[ $? = 1 ]
ok $? 'and does not name it'
gives 1 'vocab ring-dtp cpu' 'but names a case with a finding' --changed "$folder/old.jsonl" \
    "$folder/byte.jsonl"
gives 2 'cut.jsonl:1' 'a record cut in the middle is exit 2, with file and line' \
    "$folder/old.jsonl" "$folder/cut.jsonl"
gives 2 'none.jsonl' 'a missing file is exit 2' "$folder/old.jsonl" "$folder/none.jsonl"
archive=${BUILDDIR:-build}/bin/archive
mkdir "$folder/history"
for run in old byte slow; do
    "$archive" --part history --out "$folder/history/$run.jsonl" "$folder/$run.jsonl" || break
done
gives 0 '1 cases, 1 points' '--trend reads a history' --trend "$folder/history"
gives 0 '"launches": 3' 'with --json too' --json --trend "$folder/history"
gives 2 'allowed none with --trend' '--trend and a file is exit 2' --trend "$folder/history" \
    "$folder/old.jsonl"
gives 2 'none' '--trend of a folder that is not there is exit 2' --trend "$folder/none"
"$archive" --out /dev/full "$folder/old.jsonl" 2>"$folder/out"
[ $? = 3 ] && grep -q 'No space left' "$folder/out"
ok $? 'archive on a full disk is exit 3 and says so'
"$archive" --out "$folder/kept.jsonl" "$folder/cut.jsonl" 2>"$folder/out"
[ $? = 2 ] && [ ! -e "$folder/kept.jsonl" ]
ok $? 'archive of a record that is cut writes nothing'
gives 2 'allowed two (OLD NEW)' 'one file is exit 2' "$folder/old.jsonl"
gives 2 'did you mean --fail-on' 'an unknown option is exit 2' --fail-om regression a b
echo "1..$count"
