#!/usr/bin/env bash
# Training steps of the composed model on the emulated CUDA device: on one GPU that all ranks share
# (messages by copies) and on a GPU for each rank (NCCL), with threads, blocks and streams in different
# orders, three compositions have the losses, weights, memory and routes of the cpu device.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILDDIR:-build}
train=$build/emu/bin/train
if [ ! -x "$train" ]; then
    echo '1..0 # SKIP the emulator is not built here (make showconfig)'
    exit 0
fi
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
count=0
# Under the sanitizers, which take their time, there are fewer ranks.
nm -D "$train" | grep -q __asan_init && sanitized=1 || sanitized=

ok()
{
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $count - $1"
    else
        echo "not ok $count - $1"
        sed 's/^/# /' "$scratch/got"
    fi
}

# steps OPTION...: what must not depend on the device, for each composition.
steps()
{
    "$train" --layers 1 --hidden 20 --heads 2 --ffn 12 --experts 4 --length 12 --chunk-budget 7 --bucket 5000 \
        --text LICENSE --composition all "$@" >"$scratch/got" 2>&1 &&
        grep -E '^[a-z-]+:|loss|routes|digest|by live set|MISMATCH' "$scratch/got" |
        sed -e 's/ on [a-z]*$//; s/ on cuda:.*//; s/  [0-9]* tokens.*//'
}

# same RANKS OPTION...
same()
{
    local ranks=$1
    shift
    steps --ranks "$ranks" "$@" >"$scratch/cpu" && [ "$(grep -c 'digest of weights' "$scratch/cpu")" -eq 3 ] &&
        [ "$(grep 'digest of weights' "$scratch/cpu" | sed -n '1p;3p' | sort -u | wc -l)" -eq 1 ]
    ok "ranks $ranks: three compositions on the CPU, the last with the bits of the first" $?
    CUDA_EMU_DEVICES=1 CUDA_EMU_ORDER=forward CUDA_EMU_STREAMS=late steps --ranks "$ranks" "$@" \
        --device cuda --messages copies >"$scratch/shared" && cmp -s "$scratch/cpu" "$scratch/shared"
    ok "ranks $ranks: a shared GPU, as on the CPU" $?
    CUDA_EMU_DEVICES=4 CUDA_EMU_ORDER=reverse CUDA_EMU_STREAMS=random:1 steps --ranks "$ranks" "$@" \
        --device cuda --messages nccl >"$scratch/own" && cmp -s "$scratch/cpu" "$scratch/own"
    ok "ranks $ranks: a GPU for each rank, as on the CPU" $?
}

same 1 --sequences 2 --steps 3
same 2 --sequences 1 --steps 2 --sequence-group 2 --keep-attention 2000
[ "$sanitized" ] || same 4 --sequences 1 --steps 2 --sequence-group 2 --vocab-group 2 --host-budget 500

# Tensor cores sum in orders of their own: nothing is held against the first composition.
CUDA_EMU_DEVICES=1 steps --ranks 1 --sequences 1 --steps 1 --device cuda --gemm fast >"$scratch/fast" &&
    ! grep -q MISMATCH "$scratch/fast" && grep -q 'no bits are compared' "$scratch/got" &&
    grep -Eq 'products on tensor cores: [1-9][0-9]*.*; [1-9][0-9]* of FP32 by BF16 stayed exact' "$scratch/got"
ok 'products on tensor cores: no bits are compared, and what stayed exact is said' $?

CUDA_EMU_DEVICES=0 "$train" --steps 1 --device cuda >"$scratch/out" 2>"$scratch/got"
[ $? -eq 3 ] && [ "$(wc -l <"$scratch/got")" -eq 1 ] && [ ! -s "$scratch/out" ]
ok 'without a GPU: exit 3 and one line' $?

echo "1..$count"
