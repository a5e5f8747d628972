#!/usr/bin/env bash
# bin/checkpoint from outside: what it prints, what it refuses, how it exits.
set -u
cd "$(dirname "$0")/.." || exit 3
checkpoint=${BUILDDIR:-build}/bin/checkpoint
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# gives STATUS WORDS NAME OPTION...: the exit status, and the words in what is printed.
gives()
{
    local wanted=$1 words=$2 name=$3 status=0 result
    shift 3
    "$checkpoint" "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && grep -qF -- "$words" "$folder/out"
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

# lines COUNT PATTERN NAME: so many lines of the last output match.
lines()
{
    [ "$(grep -c -- "$2" "$folder/out")" = "$1" ]
    ok $? "$3"
}

# A boundary has 16 x 64 x 4 = 4096 bytes.
small=(--layers 4 --tokens 16 --hidden 64 --ffn 96 --iters 1 --warmup 0)

gives 0 bitwise 'every implementation and budget' --impl all "${small[@]}" \
    --host-budget 0,4095,8K,1G --check reference --json "$folder/r.jsonl"
lines 7 '  bitwise$' 'seven lines, all bitwise'
lines 4 ' sco .* bitwise$' 'one of sco for each budget'
lines 2 ' 0/4 ' 'nothing and a byte less than one boundary choose none'
lines 1 ' 2/4 .* 8.000 KiB ' 'two boundaries exactly'
lines 1 ' 4/4 .* 16.00 KiB ' 'unlimited takes all'
[ "$(grep -o '"digest": *"[0-9a-f]*"' "$folder/r.jsonl" | sort | uniq -c | awk '$1 != 7' | wc -l)" = 0 ]
ok $? 'all seven have the same six digests'
[ "$(grep -o '"recomputes_per_layer": *[01]' "$folder/r.jsonl" | tr -d ' ' | sort | uniq -c |
    awk '{ print $1 }' | xargs)" = '1 6' ]
ok $? 'recomputations of a layer are recorded: none without checkpointing, one with'

gives 0 ' 3/4 ' 'host memory that is short is no error' --impl sco "${small[@]}" --host-memory 12K
gives 0 '32.00 KiB' 'pinned blocks of powers of two' --impl sco "${small[@]:0:2}" \
    --tokens 17 "${small[@]:4}" --pinned-rounding pow2 --keep-pool --steps 3
gives 0 bitwise 'uneven ranks in BF16, one without tokens, order proved' --impl all --ranks 3 \
    --tokens-per-rank 5,0,7 "${small[@]:0:2}" "${small[@]:4}" --dtype bf16 --check-order
gives 0 'sample:5' 'a sample' --impl sco "${small[@]}" --check sample:5
gives 0 baseline 'against the baseline' --impl sco "${small[@]}" --check baseline
for pass in forward backward; do
    gives 0 bitwise "$pass" --impl all "${small[@]}" --pass $pass
done
gives 0 bitwise 'a link slower than the kernels: still two boundaries at most' --impl sco \
    "${small[@]}" --link-gbps 0.002
lines 1 ' 100.0% .* 4/4 ' 'its peak is its bound'
gives 0 'closed form' 'a plan' --plan --impl all
gives 2 'got 2 counts, allowed 1 (--ranks)' 'a wrong number of counts' --tokens-per-rank 1,2
gives 2 'host-budget' 'a budget that nothing takes' --impl resident --host-budget 1M
BUILDDIR=${BUILDDIR:-build} bench/tables/table_03_12.sh >"$folder/table" 2>&1
ok $? 'Tables 3 and 12: sets, logical and pinned bytes equal the paper'
echo "1..$count"
