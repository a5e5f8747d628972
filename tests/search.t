#!/usr/bin/env bash
# --search: what fits is run and recorded, one step of the grid more does not fit.
set -u
cd "$(dirname "$0")/.." || exit 3
bin=${BUILDDIR:-build}/bin
folder=$(mktemp -d)
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
    local wanted=$1 words=$2 name=$3 status=0 result
    shift 3
    "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && grep -qF -- "$words" "$folder/out"
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

# found MEMBER: a number of the last record's search.
found()
{
    tail -n 1 "$folder/records" | sed -n "s/.*\"search\":{[^}]*\"$1\":\([0-9]*\).*/\1/p"
}

# boundary NAME PROGRAM OPTION...: searches from three sides; then runs on both sides of the boundary.
boundary()
{
    local name=$1 from fits='' before=''
    shift
    for from in 64 1K 64K; do
        gives 0 'fits' "$name from $from" "$bin/$1" --device sim --device-memory 256M "${@:2}" \
            --tokens "$from" --search tokens --search-step 64 --json "$folder/records"
        fits=$(found fits)
        [ -n "$fits" ] && { [ -z "$before" ] || [ "$before" = "$fits" ]; }
        ok $? "$name from $from: ${fits:-nothing}"
        before=$fits
    done
    tail -n 1 "$folder/records" | grep -q "\"config\":{[^}]*\"tokens\":$fits,"
    ok $? "$name: recorded at that size"
    [ "$(found first_failure)" = $((fits + 64)) ]
    ok $? "$name: one step more is the first that does not fit"
    gives 0 simulated "$name: it fits" "$bin/$1" --device sim --device-memory 256M "${@:2}" \
        --tokens "$fits"
    gives 3 'OUT OF MEMORY' "$name: the next does not" "$bin/$1" --device sim \
        --device-memory 256M "${@:2}" --tokens $((fits + 64))
}

boundary vocab vocab --impl ring-dtp --ranks 4 --hidden 256 --vocab 4096
boundary dispatch dispatch --impl llep --ranks 4 --hidden 64 --ffn 64 --experts 8 --topk 2
boundary checkpoint checkpoint --impl sco --ranks 2 --layers 4 --hidden 256 --ffn 512

gives 3 'OUT OF MEMORY' 'when nothing fits, that is said' "$bin/vocab" --device sim --ranks 2 \
    --device-memory 1M --impl materialized --hidden 1024 --vocab 4096 --tokens 4K --search tokens
gives 0 'is allowed fits' 'so is when everything does' "$bin/checkpoint" --device sim --ranks 1 \
    --impl resident --layers 1,2 --hidden 1 --ffn 1 --tokens 4 --search layers --search-step 1
gives 2 "got 'hidde', allowed a count" 'a count that is not there' "$bin/vocab" --device sim \
    --search hidde
gives 2 'allowed with --device sim' 'on the CPU' "$bin/vocab" --search tokens
gives 2 'got 9000000000000000000, allowed at most 2147483648, the largest --tokens' 'a step past all' \
    "$bin/vocab" --device sim --search tokens --search-step 9e18
# A search that was interrupted has found nothing yet, least of all the largest that is allowed.
rm -f "$folder/records"
set -m # so that the job does not ignore Ctrl-C
"$bin/dispatch" --device sim --impl pipelined-llep --tokens 16K --hidden 7168 --ffn 2048 --experts 128 \
    --topk 8 --search tokens --json "$folder/records" >"$folder/out" 2>&1 &
for ((wait = 0; wait < 600; wait++)); do
    ! grep -q implementation "$folder/out" || break
    sleep 0.1
done
sleep 0.3
kill -INT $!
wait $!
set +m
grep -q 'interrupted while searching: tokens [0-9]* fits' "$folder/out" &&
    grep -q '"status":"skipped"' "$folder/records" && ! grep -q '"search":{' "$folder/records"
ok $? 'a search that was interrupted says so, and records nothing as the largest'
gives 2 'no effect without --search' 'a step of nothing' "$bin/vocab" --device sim --search-step 2
echo "1..$count"
