#!/usr/bin/env bash
# Everything that a machine with GPUs, one or eight, can show: builds with CUDA, holds every kernel, every
# message and every family to the CPU's bytes, measures the ceilings and our kernels beside their bars,
# then every family at full shape and the papers' tables as far as the GPUs allow. Made to take less than
# ten minutes on one H200: a step that would not end in time is stopped, and said to be.
#
# Ranks that are more than the GPUs share them, each with its part of the tokens; such cases are labelled
# shared-gpu and fill no claim.
#
# Usage: bench/gpu_check.sh [--out DIR] [--minutes N]
#   --out DIR     new folder for records, traces, tables and logs; default results/measured/GPU-COUNT-COMMIT
#   --minutes N   for all of it; default 10
# Environment: BUILDDIR (build-cuda), CUDA_HOME.
#
# Exit status: 0 every gate and bar holds; 1 one does not; 2 bad option; 3 no GPU, or nothing to build with.
# shellcheck disable=SC2317 # functions that steps call by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit 3
export BUILDDIR=${BUILDDIR:-build-cuda}
bin=$BUILDDIR/bin
began=$SECONDS
out='' minutes=10 failed=0

refuse()
{
    echo "gpu_check.sh: $*" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --out | --minutes)
        [ $# -gt 1 ] || refuse "option $1 needs a value"
        if [ "$1" = --out ]; then out=$2; else minutes=$2; fi
        shift
        ;;
    --help)
        sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
        exit 0
        ;;
    *) refuse "option $1: unknown; allowed --out, --minutes, --help" ;;
    esac
    shift
done
case $minutes in '' | *[!0-9]*) refuse "--minutes: got '$minutes', allowed whole numbers" ;; esac

left()
{
    echo $((minutes * 60 - (SECONDS - began)))
}

# step NAME SECONDS COMMAND...: one line with its time; the log's end when it failed. A step that only
# measures is named "measure ..."; when its time is over that is said, and is no failure.
step()
{
    local name=$1 limit=$2 start=$SECONDS status=0
    local log
    log=$out/logs/$(echo "$name" | tr -c 'a-z0-9\n' _).log
    shift 2
    [ "$limit" -le "$(left)" ] || limit=$(left)
    if [ "$limit" -lt 5 ]; then
        echo "gpu: $name: not run, the time is over"
        case $name in measure*) ;; *) failed=1 ;; esac
        return 1
    fi
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 || status=$?
    printf 'gpu: %-34s %4d s  %s\n' "$name" $((SECONDS - start)) \
        "$([ $status = 0 ] || echo "exit $status, $log")"
    [ $status = 0 ] && return
    [ $status = 124 ] && case $name in measure*) return 1 ;; esac
    tail -n 15 "$log" | sed 's/^/    /'
    failed=1
    return 1
}

# ---- the machine ---------------------------------------------------------------------------------------

command -v nvidia-smi >/dev/null || { echo 'gpu_check.sh: no nvidia-smi: no GPU here?' >&2; exit 3; }
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | sed -n 1p)
[ "$gpus" -gt 0 ] || { echo 'gpu_check.sh: nvidia-smi shows no GPU' >&2; exit 3; }
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
word=$(echo "$name" | tr 'A-Z ' 'a-z-')
out=${out:-results/measured/$word-$gpus-$commit}
[ ! -e "$out" ] || refuse "$out exists; name another with --out"
mkdir -p "$out/logs" "$out/traces" || exit 3
nvidia-smi >"$out/logs/nvidia-smi.txt" 2>&1
echo "gpu: $gpus x $name, commit $commit, into $out"

step build 300 make CUDA=1 programs gpu-tests || exit 3

# ---- gates ---------------------------------------------------------------------------------------------

kernels()
{
    local test status=0
    for test in "$BUILDDIR"/gpu/cuda_*; do
        [ "${test##*/}" = cuda_runtime ] || prove -e '' "$test" || status=1
    done
    return "$status"
}

# The accepted small cases of every family: the bytes of outputs, the peaks and counts are the CPU's.
digests()
{
    local work status=0
    work=$(mktemp -d) || return 3
    bench/accepted_cases.sh "$work/fresh" cuda || status=1
    mkdir "$work/accepted"
    cp results/accepted/cpu-*.jsonl "$work/accepted"
    sed -i 's/"device":"cuda:[^"]*"/"device":"cpu"/; s/"messages":"auto",//; s/"gemm":"exact",//' \
        "$work"/fresh/*.jsonl
    "$bin/compare" --fail-on difference --changed --accepted "$work/accepted" "$work/fresh" || status=1
    rm -rf "$work"
    return "$status"
}

# Three training steps of a small model, composed and standard: losses, weights and routes are the CPU's.
training()
{
    local layout device status=0
    for layout in '--ranks 1' '--ranks 2 --sequence-group 2' '--ranks 4 --sequence-group 2 --vocab-group 2'; do
        for device in cpu cuda; do
            # shellcheck disable=SC2086
            "$bin/train" $layout --device $device --layers 2 --hidden 72 --heads 4 --ffn 56 --length 40 \
                --sequences 2 --chunk-budget 30 --steps 3 --composition all --text LICENSE |
                tee "$out/logs/training_$device.txt" | grep -E 'digest|routes' >"$out/logs/training_$device"
        done
        echo "$layout"
        [ "$(grep -c digest "$out/logs/training_cpu")" -eq 6 ] &&
            diff "$out/logs/training_cpu" "$out/logs/training_cuda" || status=1
    done
    return "$status"
}

# records FILE CHECK PROGRAM OPTION...: a table, and records.
records()
{
    local file=$1 check=$2 program=$3
    shift 3
    "$bin/$program" --device cuda --oom record --warmup 1 --iters 5 --check "$check" "$@" \
        --json "$out/$file.jsonl"
}

# traced FILE PROGRAM OPTION...: one case, with its trace.
traced()
{
    local file=$1 program=$2
    shift 2
    "$bin/$program" --device cuda --iters 1 --check off "$@" --trace "$out/traces/$file.json"
}

# One after the other, so that those that were done when the time is over stay.
tables()
{
    local table
    for table in bench/tables/table_*.sh bench/tables/figure_*.sh bench/tables/relay_*.sh; do
        "$table" --device cuda --save "$out/tables" >>"$out/tables.txt"
    done
}
export -f kernels digests training records traced tables
export bin out

step 'gate every kernel' 120 bash -c kernels
step 'gate exp and log, all values' 60 "$BUILDDIR/gpu/arith_device"
step 'gate digests of every family' 150 bash -c digests
step 'gate training steps' 60 bash -c training
! step 'bars of kernels' 60 "$BUILDDIR/gpu/gpu_bars" "$out/ceilings.json" || sed 's/^/    /' "$out/logs/bars_of_kernels.log"

# ---- every family at full shape ------------------------------------------------------------------------

# As many ranks as the papers have. On fewer GPUs each rank takes its share of the tokens.
ranks=8
share=$((gpus >= ranks ? 1 : ranks / gpus))
vocab="vocab --impl materialized,ring-dtp --ranks $ranks --tokens $((16384 / share)) --hidden 7168
    --vocab 200000 --dtype bf16"
dispatch="dispatch --impl alltoall,alltoall-ckpt,llep,pipelined-llep --ranks $ranks
    --tokens $((32768 / share)) --hidden 2880 --ffn 2880 --experts 128 --topk 4 --routing balanced,80/4
    --chunk-budget $((8192 / share)) --dtype bf16"
step 'measure vocab' 60 bash -c "records vocab sample:64 ${vocab//$'\n'/ }"
step 'measure dispatch' 90 bash -c "records dispatch sample:64 ${dispatch//$'\n'/ }"
step 'measure checkpoint' 60 bash -c "records checkpoint sample:64 checkpoint --layers 8 --tokens 16384 \
    --hidden 2880 --ffn 2880 --dtype bf16 --host-budget 0,256M,1G"
step 'measure optimizer' 60 bash -c "records optimizer sample:64 optimizer --impl all --params 400e6 \
    --bucket 50e6 --slots 1,2,3 --gradients host-f32"
step 'measure training' 60 "$bin/train" --device cuda --gemm fast --ranks $ranks --layers 4 --hidden 1024 \
    --heads 16 --ffn 1024 --experts 32 --topk 4 --vocab 32000 --length $((8192 / share)) --sequences 1 \
    --chunk-budget $((2048 / share)) --bucket 50e6 --steps 5 --composition composed,standard --oom record \
    --json "$out/train.jsonl"
step 'measure traces' 40 bash -c "traced sco checkpoint --impl sco --layers 8 --tokens 16384 \
    --hidden 2880 --ffn 2880 --dtype bf16 --host-budget 1G &&
    traced offload-stream optimizer --impl offload-stream --params 400e6 --bucket 50e6 --slots 3"
bars=("$bin/bars")
[ ! -s "$out/ceilings.json" ] || bars+=(--ceilings "$out/ceilings.json")
if compgen -G "$out/*.jsonl" >/dev/null; then
    ! step 'bars of operators' 20 "${bars[@]}" "$out" || sed 's/^/    /' "$out/logs/bars_of_operators.log"
else
    echo 'gpu: bars of operators: not judged, no records'
fi
step 'measure tables' "$(left)" bash -c tables

for log in "$out"/logs/measure_*.log; do
    [ ! -s "$log" ] || sed 's/^/    /' "$log"
done
echo "gpu: $((SECONDS - began)) s in all; records in $out"
exit $failed
