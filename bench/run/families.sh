# shellcheck shell=bash disable=SC2154 # variables of run_all.sh
# What run_all.sh measures: the shapes of each tier and the commands of each family. Read by run_all.sh
# with '.', never run. Each function is one step and leaves its records in records/STEP.jsonl.

# program NAME: one of ours.
program()
{
    echo "$build/bin/$1"
}

# measure STEP PROGRAM OPTION...: a table on the terminal and records.
measure()
{
    local step=$1 name=$2
    shift 2
    shown "$step" "$(program "$name")" --device "$device" "$@" --json "$run/records/$step.jsonl"
}

# Limits of the repetitions that --quick allows.
limits()
{
    [ "$mode" != quick ] || echo --iters "$1"
}

# ---- shapes ------------------------------------------------------------------------------------------

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

# Ranks, tokens per rank, widths, experts and slots.
dispatch_shape()
{
    case $tier in
    tiny) echo --ranks 8 --tokens 256 --hidden 128 --ffn 128 --experts 32 --topk 4 ;;
    small) echo --ranks 8 --tokens 512 --hidden 256 --ffn 256 --experts 32 --topk 4 ;;
    medium) echo --ranks 8 --tokens 2048 --hidden 1024 --ffn 512 --experts 64 --topk 8 ;;
    large) echo --ranks 8 --tokens 8192 --hidden 2048 --ffn 1024 --experts 128 --topk 8 ;;
    esac
}

# The token budget of a chunk.
dispatch_budget()
{
    case $tier in
    tiny) echo 64 ;;
    small) echo 128 ;;
    medium) echo 256 ;;
    large) echo 1024 ;;
    esac
}

# Layers, tokens and widths.
checkpoint_shape()
{
    case $tier in
    tiny) echo --layers 8 --tokens 128 --hidden 256 --ffn 512 ;;
    small) echo --layers 12 --tokens 512 --hidden 512 --ffn 1024 ;;
    medium) echo --layers 24 --tokens 2048 --hidden 1024 --ffn 2048 ;;
    large) echo --layers 24 --tokens 8192 --hidden 2048 --ffn 4096 ;;
    esac
}

# Host budgets of nothing, a few boundaries, more of them, all.
checkpoint_budgets()
{
    case $tier in
    tiny) echo 0,256K,512K,1G ;;
    small) echo 0,4M,8M,1G ;;
    medium) echo 0,64M,128M,16G ;;
    large) echo 0,512M,1G,64G ;;
    esac
}

optimizer_params()
{
    case $tier in
    tiny) echo 4M ;;
    small) echo 16M ;;
    medium) echo 128M ;;
    large) echo 512M ;;
    esac
}

# ---- vocab -------------------------------------------------------------------------------------------

vocab_launch()
{
    local shape=() axes=() limit=()
    read -r -a shape <<<"$(vocab_shape)"
    read -r -a limit <<<"$(limits 4)"
    [ "$mode" != full ] || axes=(--dtype 'f32,bf16' --move 'weights,activations')
    measure "$1" vocab --impl all "${shape[@]}" --pass 'forward,both' "${axes[@]}" "${limit[@]}"
}

# With a core for every rank the two can be compared in time.
vocab_time()
{
    measure vocab-time vocab --impl materialized,ring-dtp --ranks 2 --threads 2 --tokens 512 \
        --hidden 512 --vocab 8000 --pass forward --iters 9
}

# Uneven ranks, one of them empty, and a vocabulary that does not divide.
vocab_uneven()
{
    measure vocab-uneven vocab --impl all --ranks 3 --tokens-per-rank '5,0,7' --hidden 256 \
        --vocab 1003 --check reference --iters 3
}

# The closed forms at the paper's shapes need no storage.
vocab_plan()
{
    quiet vocab-plan "$(program vocab)" --plan --impl all --ranks '4,8' --tokens '16K,32K' \
        --hidden 7168 --vocab 200000 --pass both --json "$run/records/vocab-plan.jsonl"
}

plan_vocab()
{
    local launch
    plan_step 1 vocab-plan vocab_plan
    for ((launch = 1; launch <= launches; launch++)); do
        plan_step "$((measure_seconds * 8))" "vocab-$launch" vocab_launch "vocab-$launch"
    done
    [ "$machine_cores" -lt 2 ] || plan_step 2 vocab-time vocab_time
    plan_step 1 vocab-uneven vocab_uneven
}

# ---- dispatch ----------------------------------------------------------------------------------------

dispatch_launch()
{
    local shape=() limit=() routing='balanced,95/16,30/4'
    read -r -a shape <<<"$(dispatch_shape)"
    read -r -a limit <<<"$(limits 2)"
    [ "$mode" != quick ] || routing='balanced,80/16'
    measure "$1" dispatch --impl all "${shape[@]}" --chunk-budget "$(dispatch_budget)" \
        --routing "$routing" --min-gemm 64 "${limit[@]}"
}

# More chunks: less memory, more launches.
dispatch_chunks()
{
    local shape=() limit=()
    read -r -a shape <<<"$(dispatch_shape)"
    read -r -a limit <<<"$(limits 2)"
    measure dispatch-chunks dispatch --impl pipelined-llep "${shape[@]}" --chunk-count 1,2,4,8,16 \
        --routing balanced,80/16 --min-gemm 64 --check off "${limit[@]}"
}

# Whole numbers: every schedule, whatever its order, must give the same bits.
dispatch_integers()
{
    measure dispatch-integers dispatch --impl all --ranks 4 --tokens 64 --hidden 64 --ffn 64 \
        --experts 16 --topk 2 --routing 'uniform,burst' --data integers --activation relu \
        --min-gemm 8 --chunk-budget 16 --iters 2
}

# The layer that the second paper's introduction counts: 24 x 2048 tokens a rank of width 3584.
dispatch_expanded()
{
    quiet dispatch-expanded "$(program dispatch)" --device sim:h100-64gb-4 --impl alltoall --ranks 8 \
        --tokens 48K --hidden 3584 --ffn 2560 --experts 64 --topk 8 --dtype bf16 --routing balanced \
        --pass forward --json "$run/records/dispatch-expanded.jsonl"
}

plan_dispatch()
{
    local launch
    for ((launch = 1; launch <= launches; launch++)); do
        plan_step "$((measure_seconds * 8))" "dispatch-$launch" dispatch_launch "dispatch-$launch"
    done
    plan_step "$((measure_seconds * 3))" dispatch-chunks dispatch_chunks
    plan_step 1 dispatch-integers dispatch_integers
    plan_step 1 dispatch-expanded dispatch_expanded
}

# ---- checkpoint --------------------------------------------------------------------------------------

checkpoint_launch()
{
    local shape=() limit=()
    read -r -a shape <<<"$(checkpoint_shape)"
    read -r -a limit <<<"$(limits 3)"
    measure "$1" checkpoint --impl all "${shape[@]}" --host-budget "$(checkpoint_budgets)" \
        "${limit[@]}"
}

checkpoint_plan()
{
    quiet checkpoint-plan "$(program checkpoint)" --plan --impl sco --layers 47 --tokens 69632 \
        --hidden 2880 --ffn 2880 --dtype bf16 --host-budget 0,8G,16G,64G --pinned-rounding pow2 \
        --json "$run/records/checkpoint-plan.jsonl"
}

plan_checkpoint()
{
    local launch
    plan_step 1 checkpoint-plan checkpoint_plan
    for ((launch = 1; launch <= launches; launch++)); do
        plan_step "$((measure_seconds * 4))" "checkpoint-$launch" checkpoint_launch "checkpoint-$launch"
    done
}

# ---- optimizer ---------------------------------------------------------------------------------------

optimizer_launch()
{
    local limit=()
    read -r -a limit <<<"$(limits 4)"
    measure "$1" optimizer --impl all --params "$(optimizer_params)" --bucket 256K --slots '1,2,3' \
        --gradients 'host-f32,device-bf16' --clip 1 "${limit[@]}"
}

optimizer_buckets()
{
    local limit=()
    read -r -a limit <<<"$(limits 3)"
    measure optimizer-buckets optimizer --impl offload-stream --params "$(optimizer_params)" \
        --bucket 64K,256K,1M --slots '1,2,3' --check off "${limit[@]}"
}

# The link decides: staged takes the sum of its stages, offload-stream the longest.
optimizer_paced()
{
    measure optimizer-paced optimizer --impl staged,offload-stream --params 2M --bucket 256K \
        --slots '1,2' --link-gbps 0.25 --iters 3
}

# Buckets and staging at the paper's shape need no storage.
optimizer_plan()
{
    quiet optimizer-plan "$(program optimizer)" --plan --impl offload-stream --model gpt-oss-20b \
        --world 8 --whole-tensors --slots '2,3' --bucket '100e6,150e6,200e6,250e6' \
        --json "$run/records/optimizer-plan.jsonl"
}

plan_optimizer()
{
    local launch
    plan_step 1 optimizer-plan optimizer_plan
    for ((launch = 1; launch <= launches; launch++)); do
        plan_step "$((measure_seconds * 2))" "optimizer-$launch" optimizer_launch "optimizer-$launch"
    done
    plan_step "$measure_seconds" optimizer-buckets optimizer_buckets
    plan_step 2 optimizer-paced optimizer_paced
}
