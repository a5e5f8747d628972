#!/usr/bin/env bash
# The program train: compositions with one digest, what --explain says, what is refused, routes that
# dispatch reads back.
# shellcheck source=/dev/null
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILDDIR:-build}
train=$build/bin/train
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

small=(--layers 1 --hidden 32 --ffn 24 --experts 4 --length 32 --sequences 2 --threads 2)

# Four chunks: expert gradients have another order than the standard step's.
"$train" "${small[@]}" --steps 24 --ranks 2 --chunk-budget 16 --text LICENSE --composition composed,standard-in-order,standard \
    --explain --json "$scratch/r.jsonl" --dump-routes "$scratch/routes" >"$scratch/out" 2>"$scratch/err"
ok 'three compositions train' $?

# composed, standard, standard-in-order: the first and the last are one, the other is not
one_but_standard()
{
    [ "$(grep "digest of $1" "$scratch/out" | sed -n '1p;3p' | sort -u | wc -l)" -eq 1 ] &&
        [ "$(grep "digest of $1" "$scratch/out" | sort -u | wc -l)" -eq 2 ]
}
one_but_standard weights && one_but_standard losses
ok 'the standard step in the composed orders has the composed digests' $?

grep -q 'against composed: equal, bit for bit' "$scratch/out" &&
    grep -q 'against composed: first differs in ' "$scratch/out"
ok '--explain says equal, and names where own orders first differ' $?

[ "$(grep -c '"verdict": *"bitwise"' "$scratch/r.jsonl")" -eq 1 ] && [ "$(wc -l <"$scratch/r.jsonl")" -eq 3 ]
ok 'a record for each case, with its verdict' $?

# Chosen implementations in orders of their own: in them the standard step has their bits, in its own
# it has not.
"$train" "${small[@]}" --steps 3 --ranks 2 --text LICENSE --composition composed,standard,standard-in-order --explain \
    --dispatch alltoall-dedup,relay-token --vocab-impl vocab-parallel --checkpoint offload-all >"$scratch/out" 2>"$scratch/err" &&
    grep -q '^composed: relay-token, vocab-parallel, offload-all, offload-stream' "$scratch/out" &&
    [ "$(grep -c 'against composed: first differs in ' "$scratch/out")" -eq 2 ] &&
    [ "$(grep -c 'against composed: equal, bit for bit' "$scratch/out")" -eq 2 ]
ok 'the standard step follows the orders of chosen implementations' $?

# Attention runs twice in a checkpointed step, on each rank.
"$train" "${small[@]}" --steps 2 --ranks 2 --text LICENSE --composition composed --keep-attention 0 --trace "$scratch/trace.json" \
    >"$scratch/out" 2>"$scratch/err" &&
    [ "$(grep -c '"name":"attention"' "$scratch/trace.json")" -eq 4 ] && grep -q '"name":"memory"' "$scratch/trace.json"
ok 'a trace shows the last step of both ranks' $?

"$build/bin/replay" --routing "$scratch/routes/routes.npy" --ranks 2 --experts 4 >"$scratch/out" 2>"$scratch/err" &&
    grep -q '24 steps' "$scratch/out"
ok 'the routes that were dumped are read back as a trace' $?

# ---- learning ----

"$train" --layers 2 --hidden 64 --ffn 64 --experts 4 --length 64 --sequences 4 --steps 100 --lr 0.01 --ranks 2 --threads 2 \
    --text LICENSE --composition composed --freeze none,attention,experts >"$scratch/out" 2>"$scratch/err"
# losses: of the three, and the text's bigram entropy
losses=$(sed -n 's/^  loss \([0-9.]*\) nats.*of \([0-9.]*\)$/\1 \2/p' "$scratch/out" | tr '\n' ' ')
echo "$losses" | awk 'NF == 6 && $1 < 0.95 * $2 { good = 1 } END { exit !good }'
ok 'a hundred steps learn more than bigrams' $?
echo "$losses" | awk 'NF == 6 && $3 > 1.03 * $1 && $5 > 1.03 * $1 { good = 1 } END { exit !good }'
ok 'and less with attention frozen, or with experts' $?

# ---- attention kept ----

"$train" "${small[@]}" --steps 2 --ranks 2 --text LICENSE --composition composed --keep-attention 0,8K,1M \
    --json "$scratch/k.jsonl" >"$scratch/out" 2>"$scratch/err" &&
    [ "$(grep 'digest of' "$scratch/out" | sort -u | wc -l)" -eq 2 ] && [ "$(grep -c 'attention keeps' "$scratch/out")" -eq 2 ]
ok 'attention kept within three budgets: the same digests' $?

flops=$(grep -o '"executed_flops":[0-9.e+]*' "$scratch/k.jsonl" | cut -d: -f2)
[ "$(echo "$flops" | sort -g -r)" = "$flops" ] && [ "$(echo "$flops" | sort -u | wc -l)" -eq 3 ]
ok 'each computes less than the one before' $?

sizes=("${small[@]}")
# refused OPTION MESSAGE ARGUMENT...: exits 2, naming the option
refused()
{
    local option=$1 message=$2
    shift 2
    "$train" "${sizes[@]}" --steps 1 "$@" >"$scratch/out" 2>"$scratch/err"
    [ $? -eq 2 ] && grep -q -- "option --$option: .*$message" "$scratch/err" && [ ! -s "$scratch/out" ]
    ok "refused: $option: $message" $?
}

refused sequence-group 'the sequence degree is 4; allowed: 1 to the 2 ranks' --ranks 2 --sequence-group 4
refused expert-group 'does not divide the 4 experts' --ranks 3 --expert-group 3
refused heads '5 attention heads do not divide the width 32' --ranks 1 --heads 5
refused text 'No such file' --ranks 1 --text "$scratch/none"
refused checkpoint "it says what 'composed' is made of" --ranks 1 --composition standard,standard-in-order --checkpoint sco
refused dispatch 'has no effect on the standard step' --ranks 1 --composition standard --dispatch llep
refused tile 'got 8, allowed a multiple of 1024 or at least 256' --ranks 1 --tile 8
printf 'width %s\n' 'layers 2' 'hidden 32' 'heads 2' 'ffn 16' 'experts 64' 'topk 40' 'vocab 100' |
    sed '$aw 4 decay' >"$scratch/model.txt"
model=("$train" --ranks 1 --steps 1 --model "$scratch/model.txt")
"${model[@]}" --topk 2 >"$scratch/out" 2>"$scratch/err"
[ $? -eq 2 ] && grep -q "option --model: .* has vocab 100, allowed 256\.\." "$scratch/err"
ok "a model's file of fewer tokens than bytes have is refused" $?
"${model[@]}" --vocab 256 >"$scratch/out" 2>"$scratch/err"
[ $? -eq 2 ] && grep -q "option --model: .* has topk 40, allowed 1\.\.32" "$scratch/err"
ok "a model's file of more experts of a token than a router chooses is refused" $?
printf short >"$scratch/short"
refused text 'has 5 bytes, allowed at least 34' --ranks 1 --text "$scratch/short"
refused text 'is neither a file nor a pipe' --ranks 1 --text /dev/zero
refused text 'is neither a file nor a pipe' --ranks 1 --text "$scratch"
mkfifo "$scratch/endless"
yes >"$scratch/endless" 2>/dev/null &
refused text 'has more than 1073741824 bytes' --ranks 1 --text "$scratch/endless"
"$train" "${small[@]}" --steps 1 --ranks 1 --composition composed --text <(cat LICENSE) >"$scratch/out" 2>"$scratch/err"
ok 'a text is read from a pipe' $?
refused dump-routes 'Not a directory' --ranks 1 --dump-routes "$scratch/short/routes"
refused dump-routes 'no file can be written there: Not a directory' --ranks 1 --dump-routes "$scratch/short"
refused dump-routes 'No such file' --ranks 1 --dump-routes "$scratch/none/routes"
refused tile 'allowed a multiple' --ranks 1 --tile 8 --dump-routes "$scratch/new" && [ ! -e "$scratch/new" ]
ok 'a refusal leaves no folder behind' $?

# ---- interrupts ----

# The running step is the last one: its losses, its weights, its choices, its trace.
set -m # so that the job does not ignore Ctrl-C
for signal in INT TERM; do
    "$train" "${small[@]}" --steps 10000000 --report 1 --ranks 2 --text LICENSE --composition composed --json "$scratch/i.jsonl" \
        --dump-routes "$scratch/stopped-$signal" --trace "$scratch/stopped.json" >"$scratch/out" 2>"$scratch/err" &
    for ((wait = 0; wait < 600; wait++)); do
        ! grep -q '^  step      2' "$scratch/out" || break
        sleep 0.1
    done
    kill "-$signal" $!
    wait $!
    [ $? -eq 130 ] && reached=$(sed -n 's/^  interrupted after step \([0-9]*\) of 10000000$/\1/p' "$scratch/out") &&
        [ "$(grep -c '^  step ' "$scratch/out")" = "$reached" ] && grep -q 'train: interrupted' "$scratch/err" &&
        [ "$(grep -c '"name":"attention"' "$scratch/stopped.json")" -eq 2 ] &&
        head -c 128 "$scratch/stopped-$signal/routes.npy" | grep -a -q "'shape': ($reached, 1, 2, 64, 2)"
    ok "SIG$signal: all that was reached, exit 130" $?
    tail -n 1 "$scratch/i.jsonl" >"$scratch/last.jsonl"
    # The same as that many steps.
    "$train" "${small[@]}" --steps "$reached" --ranks 2 --text LICENSE --composition composed --json "$scratch/last.jsonl" \
        >"$scratch/out" 2>"$scratch/err" &&
        [ "$(grep -c '"stopped_by":"interrupt"' "$scratch/last.jsonl")" -eq 1 ] && [ "$(wc -l <"$scratch/last.jsonl")" -eq 2 ] &&
        [ "$(grep -o '"digest":"[0-9a-f]*"' "$scratch/last.jsonl" | sort -u | wc -l)" -eq 2 ]
    ok "SIG$signal: a whole record, with the digests of that many steps" $?
done
set +m

# ---- the simulated device ----

sim=(--device sim:h200-8 --sequence-group 2 --expert-group 4)
"$train" "${small[@]:0:12}" "${sim[@]}" --composition composed,standard --json "$scratch/s.jsonl" >"$scratch/out" 2>"$scratch/err"
ok 'two compositions are simulated' $?

[ "$(grep -c 'with rates +-20 %: simulated' "$scratch/out")" -eq 2 ] &&
    [ "$(grep -c 'tokens/s, .*FLOP/s per GPU' "$scratch/out")" -eq 2 ] && ! grep -q 'loss' "$scratch/out"
ok 'each with its range and its rate, and no loss' $?

[ "$(grep -c '"verdict":"simulated"' "$scratch/s.jsonl")" -eq 2 ] && [ "$(grep -c '"range_s":' "$scratch/s.jsonl")" -eq 2 ] &&
    [ "$(grep -c '"device":"sim:h200-8"' "$scratch/s.jsonl")" -eq 2 ] && ! grep -q '"digest"' "$scratch/s.jsonl"
ok 'a record for each, simulated, without digests' $?

# The same step of one rank for all, of all, and with another routing on all.
for options in '' '--all-ranks' '--routing zipf:1.2'; do
    # shellcheck disable=SC2086
    "$train" "${small[@]:0:12}" "${sim[@]}" $options | sed -n 2p
done >"$scratch/out" 2>"$scratch/err"
[ "$(grep -c 'a step takes .*: simulated' "$scratch/out")" -eq 3 ] &&
    [ "$(grep -c 'one rank for all' "$scratch/out")" -eq 1 ] && sed -n 1p "$scratch/out" | grep -q 'for all'
ok 'one rank for all where the routing is even, all ranks where that is said or it is not' $?

"$train" "${sim[@]}" --model e2e-120b --layers 1 --length 64K --sequences 1 --chunk-budget 4096 --device-memory 4G \
    >"$scratch/out" 2>"$scratch/err"
[ $? -eq 3 ] && grep -q 'OUT OF MEMORY' "$scratch/out" && grep -q "live set '*[a-z]*" "$scratch/err"
ok 'a model by name that does not fit: exit 3, and the live set' $?

refused routing 'has an effect on --device sim alone' --routing balanced
sizes=("${small[@]:0:12}" "${sim[@]}")
refused threads 'has no effect on sim' --threads 2
refused routing 'allowed balanced, uniform' --routing none-such
refused text 'has no effect on sim' --text LICENSE
refused explain 'has no effect on sim' --explain
refused dump-routes 'has no effect on sim' --dump-routes "$scratch/none"
refused routing 'gives rank 2 0 tokens, allowed the 32 that every rank has here' --routing idle-rank
refused model 'allowed a readable file or one of' --model nothing

# What plan allows can be trained: the degrees and budgets that both have.
allowed()
{
    "$build/bin/$1" --help | sed -n "/^  --$2 /,/allowed/s/.*\(allowed .*\)/\1/p"
}
status=0
for name in sequences sequence-group expert-group vocab-group chunk-budget max-chunks tile host-budget \
    keep-attention bucket slots; do
    [ -n "$(allowed train $name)" ] && [ "$(allowed train $name)" = "$(allowed plan $name)" ] || status=1
done
ok 'train and plan allow the same degrees and budgets' $status

echo "1..$count"
