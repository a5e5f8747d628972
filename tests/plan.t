#!/usr/bin/env bash
# The program plan: terms and verdicts at the papers' sizes, what would have to change, the baseline,
# and what is refused.
set -u
cd "$(dirname "$0")/.." || exit 1
plan=${BUILDDIR:-build}/bin/plan
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
count=0

# ok NAME STATUS: a TAP line; STATUS 0 is right.
ok()
{
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $count - $1"
    else
        echo "not ok $count - $1"
        sed 's/^/# /' "$scratch/out" "$scratch/err"
    fi
}

run()
{
    "$plan" "$@" >"$scratch/out" 2>"$scratch/err"
}

run --model e2e-667b --gpus 64 --context 1M --sequence-group 16 --chunk-budget 4096 \
    --json "$scratch/r.jsonl"
ok 'a launch of 667B at 1M on 64 ranks' $?
grep -q 'guaranteed for any routing .* does not fit' "$scratch/out" &&
    grep -q 'with balanced routing .* fits, ' "$scratch/out" &&
    grep -q 'fits with --expert-group\|fits with no single change' "$scratch/out"
ok 'two verdicts, and what would have to change' $?
grep -q '"figures"' "$scratch/r.jsonl" && grep -q '"guaranteed_bytes"' "$scratch/r.jsonl"
ok 'a record with every term' $?

run --model e2e-667b --gpus 64 --context 128K --sequence-group 4,8
[ "$(grep -c 'composed step' "$scratch/out")" -eq 2 ]
ok 'a list of degrees is a plan each' $?

run --model e2e-667b --gpus 64 --context 128K --baseline fsdp2 --baseline-degrees 8,2,2
grep -q 'does not fit' "$scratch/out" && grep -q 'what breaks: logits' "$scratch/out"
ok 'at published degrees the baseline breaks at 128K, and on what' $?

run --model e2e-120b --gpus 16 --profile h200-16 --context 128K --reach --json "$scratch/reach.jsonl"
grep -q 'longest context: 0 guaranteed, [1-9][0-9]* with balanced' "$scratch/out" &&
    grep -q 'largest batch, tokens of all ranks: 0 guaranteed, [1-9]' "$scratch/out" &&
    grep -q '"longest_balanced"' "$scratch/reach.jsonl"
ok 'how long a context and how large a batch fit' $?
run --model e2e-120b --gpus 16 --profile h200-16 --context 128K --reach --baseline fsdp2 --json "$scratch/reach.jsonl"
grep -q 'longest context: [0-9]*; at twice that the largest term is logits' "$scratch/out" &&
    grep -q '"beyond_logits_bytes"' "$scratch/reach.jsonl"
ok 'the same of the baseline, and what ends it' $?
run --model e2e-667b --gpus 64 --context 128K --sequences 4 --baseline fsdp2 --baseline-degrees 64,8,8
grep -q 'EP=64, CP=8, TP=8, 65536 tokens a rank' "$scratch/out"
ok 'the baseline holds all sequences' $?
run --model e2e-120b --gpus 16 --profile h200-16 --context 128K --baseline fsdp2 --baseline-degrees 8,2,8
grep -q 'FSDP2 winner: EP=8, CP=2, TP=8' "$scratch/out" && grep -q 'its step, simulated: ' "$scratch/out"
ok 'a baseline of given degrees is timed' $?

# RelayMoE's configurations: as many parameters, within 2 %, as their table says.
lower=$(sed '/^#/d; /^name,/d' results/paper/relaymoe_configs.csv | tr '[:upper:]' '[:lower:]')
sizes=0
while IFS=, read -r name layers hidden ffn experts topk billions; do
    model=profiles/models/$name.txt
    [ -r "$model" ] || model=profiles/models/relay-$name.txt
    rm -f "$scratch/m.jsonl"
    run --model "$model" --gpus 8 --profile h100-64gb-4 --context 32K --sequence-group 4 --json "$scratch/m.jsonl" || break
    params=$(sed 's/.*"parameters": *\([0-9]*\).*/\1/' "$scratch/m.jsonl")
    awk -v n="$params" -v b="$billions" 'BEGIN { exit !(n > b * 0.98e9 && n < b * 1.02e9) }' || break
    for width in "layers $layers" "hidden $hidden" "ffn $ffn" "experts $experts" "topk $topk"; do
        grep -q "^width ${width% *}  *${width#* }\$" "$model" || break 2
    done
    sizes=$((sizes + 1))
done <<END
$lower
END
[ "$sizes" -eq 13 ]
ok "RelayMoE's thirteen configurations have the printed widths and sizes: $sizes" $?

# refused OPTION MESSAGE ARGUMENT...
refused()
{
    local option=$1 message=$2
    shift 2
    run "$@"
    [ $? -eq 2 ] && grep -q -- "option --$option: .*$message" "$scratch/err" && [ ! -s "$scratch/out" ]
    ok "refused: $option: $message" $?
}

refused model 'allowed a readable file or one of' --model none
refused profile 'none' --profile none
for mode in --reach --search --baseline=fsdp2; do
    refused json '/nonexistent/r.jsonl: No such file' "$mode" --json /nonexistent/r.jsonl
    refused json 'Is a directory' "$mode" --json "$scratch"
done
refused sequence-group 'does not divide the 64 ranks' --sequence-group 24
refused sequence-group 'does not divide the 64 attention heads' --gpus 128 --sequence-group 128
refused vocab-group 'does not divide' --vocab-group 7
refused tile 'got 64, allowed a multiple of' --context 128 --tile 64
refused baseline-degrees 'has no effect without --baseline' --baseline-degrees 8,2,2
refused baseline-degrees 'EP,CP,TP' --baseline fsdp2 --baseline-degrees 8,3
printf 'w 3x4 decay\nwidth hidden 4\nwidth hidden 5\n' >"$scratch/twice.txt"
refused model 'twice.txt:3: got .hidden., allowed each width once' --model "$scratch/twice.txt"
printf 'w 3x4 decay\n' >"$scratch/bare.txt"
refused model "does not say 'width layers NUMBER'" --model "$scratch/bare.txt"

# model LAYERS WIDTH TOPK EXPERTS: writes a model's file.
model()
{
    printf 'w 4 decay\nwidth layers %s\nwidth hidden %s\nwidth heads 2\nwidth ffn %s\n' "$1" "$2" "$2"
    printf 'width topk %s\nwidth experts %s\nwidth vocab 256\n' "$3" "$4"
} >"$scratch/model.txt"

# Tensors that ranks do not divide: the totals are those of the fullest rank.
model 3 16 1 64
sed -i 's/^width heads .*/width heads 1/; s/^width ffn .*/width ffn 1/; s/^width vocab .*/width vocab 1000/' "$scratch/model.txt"
uneven=(--model "$scratch/model.txt" --vocab-group 4 --expert-group 8 --chunk-budget 512 --bucket 100000 --slots 3)
run --gpus 64 --context 2 --sequence-group 1 "${uneven[@]}" --json "$scratch/plan.jsonl" &&
    "${plan%plan}train" --device sim:h200-64 --length 2 --sequences 1 "${uneven[@]}" --keep-attention 0 \
        --routing balanced --json "$scratch/train.jsonl" >"$scratch/out" 2>"$scratch/err"
planned=$(sed 's/.*"guaranteed_bytes":\([0-9]*\).*/\1/' "$scratch/plan.jsonl")
tracked=$(sed 's/.*"tracked_peak_bytes":\([0-9]*\).*/\1/' "$scratch/train.jsonl")
[ "$tracked" -gt 0 ] && [ "$tracked" -le "$planned" ]
ok "no rank passes what is planned where ranks do not divide a tensor: $tracked of $planned" $?

model 100000 64 2 64
refused model '100000 layers; allowed: 1 to ' --model "$scratch/model.txt" --sequence-group 2
model 2 64 40 64
refused model '40 experts of a token; allowed: 1 to 32' --model "$scratch/model.txt" --sequence-group 2
model 2 65 2 64
refused model '2 attention heads do not divide the width 65' --model "$scratch/model.txt" --sequence-group 2
model 2 2147483646 2 2147483584
refused context 'beyond 64 bits' --model "$scratch/model.txt" --sequence-group 2
refused context 'beyond 64 bits' --context 4G --sequences 1M

echo "1..$count"
