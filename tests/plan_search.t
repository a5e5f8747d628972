#!/usr/bin/env bash
# plan --search: the parts' sum is the whole step's time, what is given stays, the same twice, and why
# others lost.
# shellcheck disable=SC2086 # lists of options are meant to fall apart into words
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

# search OPTION...
search()
{
    "$plan" --search "$@" >"$scratch/out" 2>"$scratch/err"
}

# The largest difference, in percent, between the whole step and the sum of its parts.
worst()
{
    sed -n 's/.*from its parts .* (\([+-]\)\([0-9.]*\) %)$/\2/p' "$scratch/out" | sort -g | tail -1
}

# Of a small model, and with some degrees given, so that each takes a moment: whole steps on one node and on two, with all boundaries on
# the host, some and none.
small='--model gpt-oss-20b --verdict balanced --bucket 100e6'
one="$small --gpus 8 --profile h200-8"
two="$small --gpus 16 --profile h200-16"
for launch in "$one --context 64K --sequence-group 4,8 --chunk-budget 4096" \
    "$two --context 128K --sequence-group 8 --vocab-group 16" \
    "$two --context 32K --sequence-group 2 --expert-group 8 --host-budget 8000000000" \
    "$one --context 32K --sequence-group 4 --host-budget 0"; do
    search $launch && awk -v worst="$(worst)" 'BEGIN { exit !(worst != "" && worst < 5) }'
    ok "parts within 5 % of the whole step:${launch#"$small"}" $?
done

some="$one --context 64K --expert-group 8 --vocab-group 8"
search $some --json "$scratch/r.jsonl" && cp "$scratch/out" "$scratch/first"
search $some && cmp -s "$scratch/out" "$scratch/first"
ok 'the same search twice prints the same' $?
grep -q '"tokens_per_s"' "$scratch/r.jsonl" && grep -q '"machines_s"' "$scratch/r.jsonl" &&
    grep -q '"device": *"sim:h200-8"' "$scratch/r.jsonl"
ok 'a record of the winner, with its time on all machines' $?
grep -q 'runner-up: .*boundaries' "$scratch/out" && grep -q 'fits, and is .* % slower: for 1000 tokens' "$scratch/out"
ok 'which parts of the runner-up are slower' $?

# What the runner-up's parts take more is what it is slower by.
awk '/for 1000 tokens of a rank:/ { for (i = 2; i <= NF; i++) if ($i ~ /^ms/) whole += $(i - 1) }
    /fits, and is/ { slower = $4; for (i = 5; i <= NF; i++) if ($i ~ /^ms/) more += $(i - 1) }
    END { off = 100 * more / (whole + more) - slower; exit !(whole > 0 && more > 0 && off < 0.02 && off > -0.02) }' "$scratch/out"
ok "the runner-up's parts add up to what it is slower" $?

# bin/train says the same of the winner: its time within 0.5 %, its peak within the budget.
launch='--sequence-group 4 --expert-group 8 --vocab-group 8 --chunk-budget 4096 --keep-attention 0'
search $one $launch --context 64K --sequences 1 --host-budget 100000000000
whole=$(sed -n 's/.*whole step, simulated: \([0-9.]*\) s,.*/\1/p' "$scratch/out")
"${plan%/*}/train" --device sim:h200-8 --model gpt-oss-20b --composition composed $launch --length 64K --sequences 1 \
    --bucket 100000000 --steps 1 >"$scratch/train" 2>&1
step=$(sed -n 's/.*a step takes \([0-9.]*\) s,.*/\1/p' "$scratch/train")
awk -v a="$whole" -v b="$step" 'BEGIN { exit !(a > 0 && b > 0 && a / b < 1.005 && b / a < 1.005) }'
ok "train simulates the step that the search found: ${step:-no} and ${whole:-no} s" $?

# What is left of the device keeps attention, unless a budget is given.
search $one --context 64K --sequence-group 4 --chunk-budget 4096 --expert-group 8 --vocab-group 8
grep -q 'winner: .*attention of 24 layers kept' "$scratch/out" && grep -q 'attention kept -[1-9]' "$scratch/out" &&
    awk -v worst="$(worst)" 'BEGIN { exit !(worst != "" && worst < 5) }'
ok 'attention is kept in what is left' $?
search $one --context 64K --sequence-group 4 --chunk-budget 4096 --expert-group 8 --vocab-group 8 --keep-attention 2000000000
awk -v worst="$(worst)" 'BEGIN { exit !(worst != "" && worst < 5) }' &&
    grep -q 'winner: .*attention of [1-9][0-9]* layers kept' "$scratch/out" && ! grep -q ' 24 layers kept' "$scratch/out"
ok 'attention is kept in a budget that is given' $?

search $some
# The front: memory rises, and speed with it.
awk '/memory against speed/ { on = 1 } /winner/ { on = 0 } on && $1 ~ /^[0-9]+$/ {
        if (lines++ && ($10 < memory || $13 <= rate)) bad = 1
        memory = $10; rate = $13; launch = "D=" $1 ($2 > 1 ? ", " $2 " sequences" : "") ", E_p=" $3 ", P=" $4 ", chunks of " $5 ", " }
    /winner: / { won = index($0, launch) > 0 }
    END { exit bad || lines < 2 || !won }' "$scratch/out"
ok 'along the front memory and speed rise, and the winner is its fastest' $?

search $one --context 32K --sequence-group 4 --expert-group 2 --vocab-group 8 --chunk-budget 2048
grep -q 'winner: D=4, E_p=2, P=8, chunks of 2048, buckets of 100 M' "$scratch/out"
ok 'degrees and budgets that are given stay' $?

search --model e2e-120b --gpus 16 --profile h200-16 --context 64K --sequence-group 16 --chunk-budget 4096
grep -q 'nothing fits; least needs D=16' "$scratch/out" && grep -q 'largest term: dispatch' "$scratch/out"
ok 'where nothing fits: what needs least, and its largest term' $?

search --model e2e-667b --context 1M --verdict balanced --expert-group 32 --vocab-group 8 --chunk-budget 16384 \
    --bucket 100e6 --keep-attention 0
grep -q 'faster.*, but does not fit: ' "$scratch/out" && grep -q 'most grows: ' "$scratch/out"
ok 'what would be faster, and the term that keeps it out' $?
awk '/most grows: / { sub(/.*needs /, ""); needs = $1; term = $(NF - 1) } END { exit !(term > 0 && term <= needs) }' "$scratch/out"
ok 'that term is part of what it needs by the verdict' $?
search --context 128 --sequences 1 --gpus 1 --model gpt-oss-20b --tile 64
grep -q 'no launch takes --tile 64' "$scratch/err"
ok 'a tile that no launch takes' $?

search --model e2e-120b --gpus 16 --profile h200-16 --context 128K --verdict balanced --baseline fsdp2 \
    --sequence-group 4 --expert-group 16 --vocab-group 8 --chunk-budget 16384 --bucket 100e6 --json "$scratch/b.jsonl"
grep -q 'FSDP2 winner: EP=' "$scratch/out" && grep -q 'composed over FSDP2: [0-9.]* times' "$scratch/out" &&
    [ "$(grep -c '"op": *"plan"' "$scratch/b.jsonl")" -eq 2 ] && grep -q '"impl": *"fsdp2"' "$scratch/b.jsonl"
ok 'the best of both, and a record of each' $?
search --model e2e-667b --context 1M --verdict balanced --baseline fsdp2 --baseline-degrees 8,2,2 --sequence-group 16 \
    --expert-group 64 --vocab-group 8 --chunk-budget 16384 --bucket 100e6
grep -q 'FSDP2 search: .* 0 of 2 launches fit' "$scratch/out" &&
    grep -q 'nothing fits; least needs EP=8, CP=2, TP=2.*largest term: ' "$scratch/out"
ok 'a baseline that does not fit, and on what' $?

printf 'w 4 decay\nwidth layers 1\nwidth hidden 320\nwidth heads 4\nwidth ffn 1\nwidth experts 2\nwidth topk 2\nwidth vocab 256\n' \
    >"$scratch/few.txt"
search --model "$scratch/few.txt" --gpus 2 --profile h200-8 --context 8 --sequence-group 1 --baseline fsdp2 &&
    grep -q 'FSDP2 winner: ' "$scratch/out"
ok 'a baseline of widths that say more than the tensors' $?

# refused OPTION MESSAGE ARGUMENT...
refused()
{
    local option=$1 message=$2
    shift 2
    "$plan" "$@" >"$scratch/out" 2>"$scratch/err"
    [ $? -eq 2 ] && grep -q -- "option --$option: .*$message" "$scratch/err" && [ ! -s "$scratch/out" ]
    ok "refused: $option: $message" $?
}

refused verdict 'has no effect without --search' --verdict balanced
refused verdict "got 'any', allowed guaranteed, balanced" --search --verdict any
refused expert-group 'got 3, allowed with --search a divisor or a multiple of the 8 ranks of a node' \
    --search --gpus 48 --expert-group 3
refused sequence-group 'does not divide' --search --gpus 24 --sequence-group 16

echo "1..$count"
