#!/usr/bin/env bash
# bin/optimizer from outside: what it prints, what it refuses, how it exits.
set -u
cd "$(dirname "$0")/.." || exit 3
optimizer=${BUILDDIR:-build}/bin/optimizer
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
    "$optimizer" "$@" >"$folder/out" 2>&1 || status=$?
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

small=(--params 50K --bucket 4K --iters 1 --warmup 0)

# ---- results -----------------------------------------------------------------------------------------

gives 0 bitwise 'every implementation and slot count' \
    --impl all "${small[@]}" --slots 1,2,3 --check reference --json "$folder/r.jsonl"
lines 6 '  bitwise$' 'six lines, all bitwise'
lines 3 'offload-stream .* bitwise$' 'one of offload-stream for each slot count'
lines 1 'can show overlap, not a gain' 'the output says why a CPU shows no gain'
grep -q '"staging_bytes": *131072' "$folder/r.jsonl" && grep -q '"overlap"' "$folder/r.jsonl"
ok $? 'staging of 2 slots of 4K parameters, and overlap, in the record'
[ "$(grep -o '"digest": *"[0-9a-f]*"' "$folder/r.jsonl" | sort | uniq -c | awk '$1 != 6' | wc -l)" = 0 ]
ok $? 'all six have the same four digests'

gives 0 bitwise 'gradients on the device, ranks, clipping, late steps' \
    --impl all "${small[@]}" --ranks 3 --world 4 --gradients device-bf16 --clip 1e-3 \
    --grad-scale 0.25 --first-step 1024G --steps 3
gives 0 'sample:64' 'a sample' --impl offload-stream "${small[@]}" --check sample:64 --clip 1e-3
gives 0 'baseline' 'against the baseline' --impl offload-stream "${small[@]}" --check baseline
gives 0 ' off' 'no check' --impl cpu --params 50K --iters 1 --check off
gives 0 bitwise 'order proved' --impl all "${small[@]}" --check-order
gives 0 bitwise 'a hyperparameter of each group' \
    --impl offload-stream "${small[@]}" --lr 1e-3,2e-3 --eps 0 --weight-decay 0

printf 'a 100x30 decay\nrepeat 2 layer\nw 7x11 decay\nb 5 no-decay\nend\n' >"$folder/model.txt"
gives 0 bitwise 'a model of a file, whole tensors' --model "$folder/model.txt" --bucket 50 \
    --whole-tensors --impl staged,offload-stream --iters 1

# ---- gradients that are not finite -------------------------------------------------------------------

gives 1 'nothing was written' 'gradients that are not finite end with 1' \
    --impl all "${small[@]}" --nonfinite 3
lines 4 '3 gradients are not finite, the first in parameters' 'count and tensor are told'
gives 0 'nothing was written' '--skip-nonfinite accepts them' \
    --impl offload-stream "${small[@]}" --nonfinite 3 --skip-nonfinite
lines 1 '  bitwise$' 'and what was left alone is compared'
gives 0 bitwise '--propagate lets them through, the same bits' \
    --impl all "${small[@]}" --nonfinite 3 --propagate

# ---- files -------------------------------------------------------------------------------------------

gives 0 bitwise 'the state is dumped' --impl offload-stream --params 1000 --bucket 64 --iters 1 \
    --dump "$folder/state"
cp "$folder/state/m.npy" "$folder/state/g.npy"
gives 0 bitwise 'and loaded' --impl all --load "$folder/state" --bucket 64 --iters 1
gives 2 'is given by the files' '--params with --load' --load "$folder/state" --params 5
head -c 1000 "$folder/state/p.npy" >"$folder/state/v.npy"
gives 2 'v.npy' 'a truncated file' --load "$folder/state"
cp "$folder/state/w.npy" "$folder/state/v.npy"
gives 2 'allowed float32' 'a file of another type' --load "$folder/state"

# ---- refusals ----------------------------------------------------------------------------------------

gives 2 'unknown option' 'an unknown option' --parms 4
gives 2 'allowed 1..16' 'no slots' --slots 0
gives 2 '--dtype' 'an option that means nothing here' --dtype bf16
gives 2 '--slots' 'an option that none of the chosen takes' --impl cpu,device --slots 2
gives 2 'allowed at least 4' 'a world smaller than its ranks' --ranks 4 --world 2
gives 2 'gpt-oss-20b' 'a model that is not there' --model nosuch
gives 2 'has no effect with --model' 'two sources of parameters' --model gpt-oss-20b --params 5
gives 2 'allowed 1e-30' 'a gradient scale of almost 0' --grad-scale 1e-50
printf 'a 3y4 decay\n' >"$folder/wrong.txt"
gives 2 'wrong.txt:1' 'a model list with a mistake' --model "$folder/wrong.txt"
gives 3 'live set staging' 'device memory too small' \
    --impl offload-stream "${small[@]}" --device-memory 200K
gives 3 'live set optimizer' 'host memory too small' \
    --impl offload-stream "${small[@]}" --host-memory 700K
gives 0 'OUT OF MEMORY' 'which --oom record accepts' \
    --impl offload-stream "${small[@]}" --device-memory 200K --oom record
gives 3 '--plan prints' 'more than the machine has' --params 1000G --impl cpu

# ---- the closed forms --------------------------------------------------------------------------------

gives 0 '4.234 GiB' 'the plan of gpt-oss-20b' --plan --impl offload-stream --model gpt-oss-20b \
    --world 8 --bucket 100e6 --whole-tensors
gives 0 '10454730384' 'the plan of the largest model: parameters of one of 64 ranks' \
    --plan --impl all --model e2e-667b --world 64
bench/tables/table_04_14.sh >"$folder/out" 2>&1
ok $? 'bench/tables/table_04_14.sh: buckets and staging equal the paper'

echo "1..$count"
