#!/bin/sh
# The cases that results/accepted holds, run again: small ones on the cpu device, checked against the
# reference; the papers' shapes on the simulated device, times included; and closed forms. What is kept of each is the same on every
# machine (archive --part exact), so a byte or a bit of difference is a change of the code.
#
# `make accept` writes results/accepted with it; tests/accepted.t compares a fresh run with that
# folder. Threads are given, since their number is a part of a case's configuration.
#
# On a GPU, which must give the same bytes, the small cases alone are run.
#
# Usage: bench/accepted_cases.sh DIR [cpu|cuda]   (BUILDDIR names the build folder; default build)
# Exit status: 0 all cases ran and DIR/*.jsonl are written, 1 a case failed its check, 3 something is
# missing or cannot be written.
set -u
cd "$(dirname "$0")/.." || exit 3
bin=${BUILDDIR:-build}/bin
out=${1:?usage: bench/accepted_cases.sh DIR [cpu|cuda]}
device=${2:-cpu}
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
status=0

# cases FILE PROGRAM OPTION...: appends the records of one command to the file of that name.
cases()
{
    file=$1 program=$2
    shift 2
    "$bin/$program" "$@" --json "$work/$file.jsonl" >"$work/said" 2>&1 && return
    status=1
    echo "accepted_cases.sh: $program $* failed:" >&2
    tail -n 20 "$work/said" >&2
}

# small FILE PROGRAM OPTION...: one that is run and checked; its time is of no interest.
small()
{
    file=$1 program=$2
    shift 2
    case $device,$program in
    cuda,optimizer | cpu,*) ;;
    *) set -- --gemm exact "$@" ;; # the path that has the CPU's bits
    esac
    cases "$file" "$program" --device "$device" --threads 2 --iters 1 --warmup 0 --check reference "$@"
}

small cpu-vocab vocab --impl all --ranks 1,4 --tokens 24 --hidden 32 --vocab 2050 \
    --dtype f32,bf16 --move weights,activations
small cpu-vocab vocab --impl all --ranks 3 --tokens-per-rank 5,0,7 --hidden 32 --vocab 1003 \
    --ignored 0.25

small cpu-dispatch dispatch --impl all --ranks 4 --tokens 48 --hidden 32 --ffn 48 --experts 16 \
    --topk 3 --routing balanced,80/4,30/2,burst --min-gemm 8 --chunk-budget 16 \
    --chunks strided,contiguous --keep eager,megatron
small cpu-dispatch dispatch --impl all --ranks 2 --tokens-per-rank 19,4 --hidden 32 --ffn 32 \
    --experts 6 --topk 2 --routing zipf:1.2 --min-gemm 8 --chunk-budget 8 --max-chunks 2 --dtype bf16

small cpu-checkpoint checkpoint --impl all --layers 6 --ranks 2 --tokens 40 --hidden 32 --ffn 64 \
    --host-budget 0,12K,1M --pinned-rounding none,pow2 --dtype f32,bf16

small cpu-optimizer optimizer --impl all --ranks 1,2 --params 30000 --bucket 4K --slots 1,2,3 \
    --gradients host-f32,device-bf16 --clip 1

# Leaves what is kept of the records in DIR, and ends.
keep()
{
    mkdir -p "$out" || exit 3
    for file in "$work"/*.jsonl; do
        "$bin/archive" --part exact --out "$out/$(basename "$file")" "$file" || exit 3
    done
    exit "$status"
}

[ "$device" = cpu ] || keep

# simulated FILE PROGRAM OPTION...: at the papers' shapes.
simulated()
{
    file=$1 program=$2
    shift 2
    cases "$file" "$program" --device sim:h200-8 --oom record "$@"
}

simulated sim-vocab vocab --impl all --ranks 4,8 --tokens 16K --hidden 7168 --vocab 200000
simulated sim-dispatch dispatch --impl all --ranks 8 --tokens 32K --hidden 4096 --ffn 4096 \
    --experts 128 --topk 4 --dtype bf16 --routing balanced,95/16 --chunk-budget 10923 --pass forward
simulated sim-dispatch dispatch --impl alltoall,llep,pipelined-llep --ranks 8 --tokens 64K \
    --hidden 7168 --ffn 2048 --experts 128 --topk 8 --dtype bf16 --routing 80/16 \
    --chunk-budget 6554 --max-chunks 10 --pass forward
simulated sim-checkpoint checkpoint --impl all --layers 47 --tokens 69632 --hidden 2880 --ffn 2880 \
    --dtype bf16 --host-budget 0,8G,64G
simulated sim-optimizer optimizer --impl all --model gpt-oss-20b --world 8 --whole-tensors \
    --slots 2,3 --bucket 100e6

cases plan-vocab vocab --plan --impl all --threads 2 --ranks 4,8 --tokens 16K,32K --hidden 7168 \
    --vocab 200000
cases plan-checkpoint checkpoint --plan --impl all --threads 2 --layers 47 --tokens 69632 \
    --hidden 2880 --ffn 2880 --dtype bf16 --host-budget 0,8G,16G,64G --pinned-rounding pow2
cases plan-optimizer optimizer --plan --impl offload-stream --threads 2 --model gpt-oss-20b \
    --world 8 --whole-tensors --slots 2,3 --bucket 100e6,150e6,200e6,250e6

keep
