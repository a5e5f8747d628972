#!/usr/bin/env bash
# The main job: builds, runs the gates, measures every family at a named tier of fixed shapes, and
# prints one table: claim, printed figure, ours, verdict. Everything goes to a folder of its own under
# results/runs; nothing there is ever overwritten, and two runs side by side touch no common file.
set -uo pipefail
cd "$(dirname "$0")" || exit 3

usage()
{
    cat <<'END'
Usage: ./run_all.sh [--quick | --full] [OPTION]...
Builds, runs the gates, measures, and sets the papers' claims beside our figures.

  --quick          smoke tests, the smallest shapes: under 2 minutes with the build on 2 cores
  (neither)        all tests, shapes chosen by the machine: about 10 minutes on 2 cores
  --full           also BF16, more ranks, and 5 launches of every case (for bin/compare)
  --tier NAME      tiny, small, medium or large, whatever the machine is
  --gates NAME     none, smoke or all; default smoke with --quick, else all
  --only FAMILY    one family alone: vocab, dispatch, checkpoint or optimizer
  --device NAME    cpu or cuda; default cpu
  --help           this page

Tiers (chosen by cores and by the memory that the cgroup allows):
  tiny             with --quick, or below 2 cores or 4 GiB
  small            from 2 cores and 4 GiB
  medium           from 16 cores and 32 GiB
  large            from 64 cores and 128 GiB

Environment: BUILDDIR (build), RUNS (results/runs).
Output: RUNS/ID/ with run.txt (machine, tier, commit), records/*.jsonl, tables/*.txt, logs/*.log,
claims.txt and claims.tsv. Ctrl-C finishes the line that is being measured, keeps what is there and
exits 130.

Exit status: 0 all fine; 1 a gate, check, bound or verdict failed; 2 bad option; 3 something is missing
here; 130 interrupted.
END
}

refuse()
{
    echo "run_all.sh: $*" >&2
    exit 2
}

# ---- options -----------------------------------------------------------------------------------------

command_line=("$0" "$@")
mode=default tier='' gates='' only='' device=cpu
families=(vocab dispatch checkpoint optimizer)

# take_value OPTION VALUE...: sets `value`.
take_value()
{
    [ "$#" -ge 2 ] || refuse "option $1: value missing"
    value=$2
}

# one_of OPTION VALUE ALLOWED...
one_of()
{
    local option=$1 given=$2 allowed
    shift 2
    for allowed; do
        [ "$given" != "$allowed" ] || return 0
    done
    refuse "option $option: got '$given', allowed $(printf '%s, ' "$@" | sed 's/, $//')"
}

set_mode()
{
    [ "$mode" = default ] || refuse "option --$1: --$mode was given too; give one of them"
    mode=$1
}

while [ "$#" -gt 0 ]; do
    case $1 in
    --*=*)
        argument=$1
        shift
        set -- "${argument%%=*}" "${argument#*=}" "$@"
        continue
        ;;
    --quick) set_mode quick ;;
    --full) set_mode full ;;
    --tier | --gates | --only | --device)
        take_value "$@"
        case $1 in
        --tier) one_of "$1" "$value" tiny small medium large && tier=$value ;;
        --gates) one_of "$1" "$value" none smoke all && gates=$value ;;
        --only) one_of "$1" "$value" "${families[@]}" && only=$value ;;
        --device) one_of "$1" "$value" cpu cuda && device=$value ;;
        esac
        shift
        ;;
    --help)
        usage
        exit 0
        ;;
    *) refuse "unknown option $1; --help lists the options" ;;
    esac
    shift
done

# ---- the machine -------------------------------------------------------------------------------------

# Cores this process may use: affinity, and the cgroup's quota.
cores()
{
    local allowed quota period
    allowed=$(nproc)
    if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [ "$quota" != max ]; then
        quota=$(((quota + period - 1) / period))
        [ "$quota" -ge "$allowed" ] || allowed=$quota
    fi
    echo "$allowed"
}

memory_gib()
{
    local bytes limit file
    bytes=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
    for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        limit=$(cat "$file" 2>/dev/null) || continue
        # The old interface says "no limit" with a number of 19 digits.
        case $limit in
        max | ???????????????????*) ;;
        *) [ "$limit" -ge "$bytes" ] || bytes=$limit ;;
        esac
    done
    echo $((bytes / 1024 / 1024 / 1024))
}

machine_cores=$(cores)
machine_gib=$(memory_gib)

choose_tier()
{
    if [ "$mode" = quick ]; then
        echo tiny
    elif [ "$machine_cores" -ge 64 ] && [ "$machine_gib" -ge 128 ]; then
        echo large
    elif [ "$machine_cores" -ge 16 ] && [ "$machine_gib" -ge 32 ]; then
        echo medium
    elif [ "$machine_cores" -ge 2 ] && [ "$machine_gib" -ge 4 ]; then
        echo small
    else
        echo tiny
    fi
}

[ -n "$tier" ] || tier=$(choose_tier)
[ -n "$gates" ] || { [ "$mode" = quick ] && gates=smoke || gates=all; }
launches=1
[ "$mode" != full ] || launches=5

# ---- the run's folder --------------------------------------------------------------------------------

runs=${RUNS:-results/runs}
build=${BUILDDIR:-build}
mkdir -p "$runs" || exit 3

# mkdir fails when the folder is there: whoever makes it owns it.
make_folder()
{
    local id
    id=$(date -u +%Y%m%dT%H%M%SZ)-$$
    run=$runs/$id
    while ! mkdir "$run" 2>/dev/null; do
        [ -e "$run" ] || { echo "run_all.sh: $run: cannot be made" >&2; exit 3; }
        run=$run-again
    done
    mkdir "$run/records" "$run/tables" "$run/logs" || exit 3
}
make_folder
# Recorded in every record's environment.
export FLATPEAK_TIER=$tier

describe_run()
{
    echo "command: ${command_line[*]}"
    echo "mode: $mode"
    echo "tier: $tier"
    echo "device: $device"
    echo "cores: $machine_cores"
    echo "memory_gib: $machine_gib"
    echo "started: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "commit: $(git rev-parse HEAD 2>/dev/null || echo none)"
    echo "uncommitted: $(git status --porcelain 2>/dev/null | wc -l) files"
}

# ---- steps -------------------------------------------------------------------------------------------

failures=()
worst=0
interrupted=0
trap 'interrupted=1' INT TERM

finish()
{
    local failure
    echo
    if [ "$interrupted" = 1 ]; then
        echo "run_all.sh: interrupted; what was finished is in $run" >&2
        exit 130
    fi
    for failure in "${failures[@]}"; do
        echo "run_all.sh: FAILED: $failure" >&2
    done
    echo "run_all.sh: $SECONDS s, everything is in $run"
    exit "$worst"
}

# 1 (something failed) outranks 3 (something is missing). A command of ours that exits 2 or dies is a
# failure.
note_failure()
{
    failures+=("$1 (exit $2, $3)")
    echo "run_all.sh: FAILED: $1 (exit $2)" >&2
    if [ "$2" = 3 ]; then
        [ "$worst" = 1 ] || worst=3
    else
        worst=1
    fi
}

# quiet NAME LOG COMMAND...: output to the log alone, its end on the terminal when it fails.
quiet()
{
    local name=$1 log=$run/logs/$2.log status=0 start=$SECONDS
    shift 2
    printf '%-28s ' "$name"
    "$@" >"$log" 2>&1 || status=$?
    [ "$interrupted" = 0 ] || finish
    if [ "$status" = 0 ]; then
        echo "ok, $((SECONDS - start)) s"
        return 0
    fi
    echo "FAILED, $((SECONDS - start)) s"
    tail -n 40 "$log"
    note_failure "$name" "$status" "$log"
    return 1
}

# shown NAME FILE COMMAND...: output to the terminal and to the file.
shown()
{
    local name=$1 file=$run/$2 status
    shift 2
    # tee outlives Ctrl-C, so that the program can finish its line.
    "$@" | tee -i "$file"
    status=${PIPESTATUS[0]}
    [ "$status" != 130 ] || interrupted=1
    [ "$interrupted" = 0 ] || finish
    [ "$status" = 0 ] || note_failure "$name" "$status" "$file"
    return "$status"
}

# ---- build and gates ---------------------------------------------------------------------------------

# One test of each room: minutes less than all of them.
smoke=(memory timing record device comm options report compare vocab_order vocab moe_route moe_schedules adamw)

run_gates()
{
    local name present=()
    for name in "${smoke[@]}"; do
        [ ! -e "tests/test_$name.c" ] || present+=("$name")
    done
    case $gates in
    smoke) quiet 'gates (smoke)' gates make BUILDDIR="$build" check ONLY="${present[*]}" ;;
    all) quiet 'gates (make check)' gates make BUILDDIR="$build" check ;;
    esac
}

# ---- vocab -------------------------------------------------------------------------------------------

# Ranks, tokens per rank, hidden and vocabulary of a tier.
vocab_shape()
{
    case $tier in
    tiny) echo --ranks 4 --tokens 256 --hidden 256 --vocab 8000 ;;
    small) echo --ranks 4 --tokens 512 --hidden 512 --vocab 16000 ;;
    medium) echo --ranks 8 --tokens 1024 --hidden 1024 --vocab 50257 ;;
    large) echo --ranks 8 --tokens 4096 --hidden 2048 --vocab 128256 ;;
    esac
}

measure_vocab()
{
    local shape=() launch axes=() limits=() vocab=("$build/bin/vocab" --device "$device" --impl all)
    read -r -a shape <<<"$(vocab_shape)"
    [ "$mode" != full ] || axes=(--dtype 'f32,bf16' --move 'weights,activations')
    [ "$mode" != quick ] || limits=(--iters 6)
    for ((launch = 1; launch <= launches; launch++)); do
        echo
        shown "vocab, launch $launch" "tables/vocab-$launch.txt" "${vocab[@]}" "${shape[@]}" \
            --pass 'forward,both' "${axes[@]}" "${limits[@]}" --json "$run/records/vocab.jsonl"
    done
    # With a core for every rank the two can be compared in time.
    if [ "$machine_cores" -ge 2 ]; then
        echo
        shown 'vocab, a core for every rank' tables/vocab-time.txt "$build/bin/vocab" \
            --device "$device" --impl materialized,ring-dtp --ranks 2 --threads 2 --tokens 512 \
            --hidden 512 --vocab 8000 --pass forward --iters 9 --json "$run/records/vocab.jsonl"
    fi
    # Uneven ranks, one of them empty, and a vocabulary that does not divide.
    echo
    shown 'vocab, uneven ranks' tables/vocab-uneven.txt "${vocab[@]}" --ranks 3 \
        --tokens-per-rank '5,0,7' --hidden 256 --vocab 1003 --check reference --iters 6 \
        --json "$run/records/vocab.jsonl"
}

# The closed forms at the papers' shapes need no storage.
plan_vocab()
{
    "$build/bin/vocab" --help | grep -q -- '--plan' || return 0
    quiet 'vocab, closed forms' vocab-plan "$build/bin/vocab" --plan --impl all --ranks '4,8' \
        --tokens '16K,32K' --hidden 7168 --vocab 200000 --pass both \
        --json "$run/records/vocab-plan.jsonl"
    cp "$run/logs/vocab-plan.log" "$run/tables/vocab-plan.txt"
}

# ---- dispatch ----------------------------------------------------------------------------------------

# Ranks, tokens per rank, widths, experts, slots and the token budget of a chunk.
dispatch_shape()
{
    case $tier in
    tiny) echo --ranks 8 --tokens 256 --hidden 128 --ffn 128 --experts 32 --topk 4 --chunk-budget 64 ;;
    small) echo --ranks 8 --tokens 512 --hidden 256 --ffn 256 --experts 32 --topk 4 --chunk-budget 128 ;;
    medium) echo --ranks 8 --tokens 2048 --hidden 1024 --ffn 512 --experts 64 --topk 8 --chunk-budget 256 ;;
    large) echo --ranks 8 --tokens 8192 --hidden 2048 --ffn 1024 --experts 128 --topk 8 --chunk-budget 1024 ;;
    esac
}

measure_dispatch()
{
    local shape=() launch limits=() routing='balanced,95/16,30/4'
    local dispatch=("$build/bin/dispatch" --device "$device" --impl all)
    read -r -a shape <<<"$(dispatch_shape)"
    [ "$mode" != quick ] || limits=(--iters 2) routing='balanced,80/16'
    for ((launch = 1; launch <= launches; launch++)); do
        echo
        shown "dispatch, launch $launch" "tables/dispatch-$launch.txt" "${dispatch[@]}" "${shape[@]}" \
            --routing "$routing" --min-gemm 64 "${limits[@]}" --json "$run/records/dispatch.jsonl"
    done
    # Whole numbers: every schedule, whatever its order, must give the same bits.
    echo
    shown 'dispatch, whole numbers' tables/dispatch-integers.txt "${dispatch[@]}" --ranks 4 \
        --tokens 64 --hidden 64 --ffn 64 --experts 16 --topk 2 --routing 'uniform,burst' \
        --data integers --activation relu --min-gemm 8 --chunk-budget 16 --iters 2 \
        --json "$run/records/dispatch.jsonl"
}

# ---- checkpoint --------------------------------------------------------------------------------------

# Layers, tokens and widths; and host budgets of nothing, a few boundaries, all of them.
checkpoint_shape()
{
    case $tier in
    tiny) echo --layers 8 --tokens 128 --hidden 256 --ffn 512 --host-budget 0,256K,1G ;;
    small) echo --layers 12 --tokens 512 --hidden 512 --ffn 1024 --host-budget 0,4M,1G ;;
    medium) echo --layers 24 --tokens 2048 --hidden 1024 --ffn 2048 --host-budget 0,64M,16G ;;
    large) echo --layers 24 --tokens 8192 --hidden 2048 --ffn 4096 --host-budget 0,512M,64G ;;
    esac
}

measure_checkpoint()
{
    local shape=() launch limits=() checkpoint=("$build/bin/checkpoint" --device "$device")
    read -r -a shape <<<"$(checkpoint_shape)"
    [ "$mode" != quick ] || limits=(--iters 6)
    for ((launch = 1; launch <= launches; launch++)); do
        echo
        shown "checkpoint, launch $launch" "tables/checkpoint-$launch.txt" "${checkpoint[@]}" \
            --impl all "${shape[@]}" "${limits[@]}" --json "$run/records/checkpoint.jsonl"
    done
}

# ---- optimizer ---------------------------------------------------------------------------------------

optimizer_params()
{
    case $tier in
    tiny) echo 4M ;;
    small) echo 16M ;;
    medium) echo 128M ;;
    large) echo 512M ;;
    esac
}

measure_optimizer()
{
    local launch limits=() optimizer=("$build/bin/optimizer" --device "$device")
    [ "$mode" != quick ] || limits=(--iters 6)
    for ((launch = 1; launch <= launches; launch++)); do
        echo
        shown "optimizer, launch $launch" "tables/optimizer-$launch.txt" "${optimizer[@]}" --impl all \
            --params "$(optimizer_params)" --bucket 256K --slots '1,2,3' \
            --gradients 'host-f32,device-bf16' --clip 1 "${limits[@]}" \
            --json "$run/records/optimizer.jsonl"
    done
    # The link decides: staged takes the sum of its stages, offload-stream the longest.
    echo
    shown 'optimizer, paced' tables/optimizer-paced.txt "${optimizer[@]}" \
        --impl staged,offload-stream --params 2M --bucket 256K --slots '1,2' --link-gbps 0.25 \
        --iters 6 --json "$run/records/optimizer.jsonl"
}

# Buckets and staging at the paper's shape need no storage.
plan_optimizer()
{
    quiet 'optimizer, closed forms' optimizer-plan "$build/bin/optimizer" --plan \
        --impl offload-stream --model gpt-oss-20b --world 8 --whole-tensors --slots '2,3' \
        --bucket '100e6,150e6,200e6,250e6' --json "$run/records/optimizer-plan.jsonl"
}

# ---- tables of the papers, at full shape on the simulated device -------------------------------------

tables_of()
{
    local table
    for table in "$@"; do
        BUILDDIR=$build quiet "${table/_/ }" "$table" "bench/tables/$table.sh" \
            --save "$run/tables/records" && cp "$run/logs/$table.log" "$run/tables/$table.txt"
    done
}

# ---- all of it ---------------------------------------------------------------------------------------

wanted()
{
    [ -z "$only" ] || [ "$only" = "$1" ]
}

describe_run >"$run/run.txt"
echo "run_all.sh: $mode, tier $tier ($machine_cores cores, $machine_gib GiB), $run"
quiet build build make BUILDDIR="$build" programs || { worst=3 && finish; }
run_gates
if wanted vocab; then
    plan_vocab
    measure_vocab
    tables_of table_02 table_10 table_11
fi
if wanted dispatch; then
    measure_dispatch
    tables_of table_06 table_07 table_08 table_09 figure_08
fi
if wanted checkpoint; then
    measure_checkpoint
    tables_of table_03_12
fi
if wanted optimizer; then
    plan_optimizer
    measure_optimizer
    tables_of table_04_14 figure_05
fi
echo
if compgen -G "$run/records/*.jsonl" >/dev/null; then
    shown claims claims.txt "$build/bin/claims" --save "$run/claims.tsv" "$run/records"
else
    note_failure 'claims: nothing was recorded' 1 "$run"
fi
finish
