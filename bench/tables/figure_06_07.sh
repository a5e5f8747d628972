#!/bin/sh
# Figures 6 and 7: the models of 120B, 241B and 667B end to end, on 16, 32 and 64 H200. What a rank of the
# composed step holds and how long its step takes, beside FSDP2's best (docs/PLAN.md tells both models).
# Degrees as the paper's: E_p = all ranks, P = 8, chunks within its 4096 to 32768. It does not print D and
# the batch of a time; here D is the least for which a step has no more tokens than the largest printed
# batch, and 16, its largest, at 1M. Routing is balanced, as the paper's bias balancing has it.
#
# Usage: bench/tables/figure_06_07.sh [OPTION]...     (--device sim:PROFILE has no effect: each model has
# its own machine)
. "$(dirname "$0")/common.sh"

budgets='--vocab-group 8 --chunk-budget 16384 --bucket 100e6'
# launch MODEL GPUS D-AT-128K
launch()
{
    machine="--model e2e-$1 --gpus $2 --profile h200-$2 --expert-group $2 $budgets"
    search="--search --verdict balanced --keep-attention 0 $machine"
    plan plan $machine --sequence-group 16 --context 128K --reach
    plan plan $machine --context 128K --reach --baseline fsdp2
    plan plan $search --sequences 1 --context 128K --sequence-group "$3"
    plan plan $search --sequences 1 --context 1M --sequence-group 16
    plan plan --search --verdict balanced $machine --sequences 1 --context 1M --sequence-group 16
    plan plan $search --context 128K --baseline fsdp2
    plan plan $search --context 1M
}
launch 120b 16 2
launch 241b 32 4
launch 667b 64 4
plan plan $search --context 64K --baseline fsdp2
# The baseline with as many tokens in a step as its largest printed batch.
plan plan --model e2e-120b --gpus 16 --profile h200-16 --context 128K --baseline fsdp2 --baseline-degrees 8,2,8
plan plan --model e2e-667b --gpus 64 --profile h200-64 --context 64K --baseline fsdp2 --baseline-degrees 8,2,2

tabulate <<'END'
title Figures 6 and 7: 120B, 241B and 667B end to end on 16, 32 and 64 H200
note tokens/s and TFLOP/s are of one GPU; TFLOP/s by definition, 6 FLOP a weight that a token meets and 6 L T H for attention
note Contexts are sequences: with D of 16 or less, 1M on 32 and 64 GPUs are 2 and 4 sequences, 2M and 4M tokens a step. The largest batches that the paper prints for them are 1.8M and 3M.
note "FSDP2 stays below 40 TFLOP/s" fits these labels, 7.6 and 10.4 times below 91 and 107; it does not fit 91/1.8 and 107/2.2, which the text also prints. 10.4 compares 128K with 64K.

rows results/paper/figure_06_07.csv
keep context_k 128
map d params_b 120=2,241=4,667=4
name {params_b}B, {gpus} GPUs, 128K
where op=plan gpus={gpus} context=131072
figure tokens/s | /s | {stack_tokens_per_s} | [composed sequence_group={d} free=S : figures.tokens_per_rank] / [composed sequence_group={d} free=S : time.median_s] | time 25
why the time follows the tokens of a step, which the paper does not print: the optimizer's trip over the host's link takes as long for few as for many
figure TFLOP/s | TFLOP/s | {stack_tflops} | [composed sequence_group={d} free=S : figures.tokens_per_rank] / [composed sequence_group={d} free=S : time.median_s] * [composed sequence_group={d} free=S : figures.flops_per_token] / 1000000000000 | time 25
why as the tokens/s; and the paper's two figures are 67, 127 and 339 GFLOP a token, 6 % fewer than the definition gives
figure tokens/s, fastest D and number of sequences | /s | - | [composed free=D+B+S : figures.tokens_per_rank] / [composed free=D+B+S : time.median_s] | shown
figure its D | | - | [composed free=D+B+S : figures.sequence_group] | shown
figure FSDP2, tokens/s | /s | - | [fsdp2 free=D+B+S : figures.tokens_per_rank] / [fsdp2 free=D+B+S : time.median_s] | shown
figure FSDP2, memory of that | GiB | - | [fsdp2 free=D+B+S : figures.device_bytes] / GiB | shown

rows results/paper/figure_06_07.csv
keep context_k 1024
name {params_b}B, {gpus} GPUs, 1M
where op=plan gpus={gpus} context=1048576
figure tokens/s | /s | {stack_tokens_per_s} | [composed sequence_group=16 free=S : figures.tokens_per_rank] / [composed sequence_group=16 free=S : time.median_s] | time 25
why attention is nearly all of it: ours forms its scores in both kernels of its backward pass, 11 products for flash attention's 9, and the profile's one efficiency, 0.35 of the peak, is fitted to the experts' products
figure TFLOP/s | TFLOP/s | {stack_tflops} | [composed sequence_group=16 free=S : figures.tokens_per_rank] / [composed sequence_group=16 free=S : time.median_s] * [composed sequence_group=16 free=S : figures.flops_per_token] / 1000000000000 | time 25
why as the tokens/s
figure tokens/s, fastest D and number of sequences | /s | - | [composed free=D+B+S : figures.tokens_per_rank] / [composed free=D+B+S : time.median_s] | shown
figure its D | | - | [composed free=D+B+S : figures.sequence_group] | shown
figure tokens/s, attention kept in what is left of the device | /s | - | [composed sequence_group=16 free=S+A : figures.tokens_per_rank] / [composed sequence_group=16 free=S+A : time.median_s] | shown
figure budget without | GiB | - | [composed sequence_group=16 free=S : figures.device_bytes] / GiB | shown

rows -
name,gpus,of,over,speedup
120B at 128K,16,131072,131072,7.6
667B at 128K over FSDP2 at 64K,64,131072,65536,10.4
end
map d gpus 16=2,64=4
name {name}
where op=plan gpus={gpus}
figure composed over FSDP2, tokens/s | | {speedup} | [composed context={of} sequence_group={d} free=S : figures.tokens_per_rank] / [composed context={of} sequence_group={d} free=S : time.median_s] / ([fsdp2 context={over} free=D+B+S : figures.tokens_per_rank] / [fsdp2 context={over} free=D+B+S : time.median_s]) | time 25
why our model of FSDP2 leaves out what slows it down (docs/PLAN.md), takes its best degrees, and fits more tokens in a step than the paper's does
figure composed over FSDP2 with its largest printed batch in a step | | {speedup} | [composed context={of} sequence_group={d} free=S : figures.tokens_per_rank] / [composed context={of} sequence_group={d} free=S : time.median_s] / ([fsdp2 context={over} free=D+B+E_p+P+c+beta+S+A : figures.tokens_per_rank] / [fsdp2 context={over} free=D+B+E_p+P+c+beta+S+A : time.median_s]) | time 25
why as above, but for the tokens

rows results/paper/figure_06_07.csv
keep context_k 128
map batch_m stack_largest_batch_tokens 1.5M=1.5,1.8M=1.8,3M=3
map baseline_batch_k baseline_largest_batch_tokens 128K=128,256K=256,1M=1024
name {params_b}B, {gpus} GPUs
where op=plan gpus={gpus} reach=true context=131072
figure longest context | K | {stack_longest_context_k} | [composed : figures.longest_balanced] / 1024 | memory
why 1M is the longest context that the paper prints; here a power of two, and nothing but the device and the host ends it
figure FSDP2, longest context | K | {baseline_longest_context_k} | [fsdp2 : figures.longest] / 1024 | memory
why by its closed form, with nothing for fragmentation and at the degrees that need least; each further doubling is above the device
figure reach over FSDP2's | | {reach_multiple} | - | needs FSDP2 on GPUs: its length here is a closed form's
figure largest batch at 128K | M | {batch_m} | [composed : figures.batch_balanced] / 1048576 | memory
why here a step may fill the device and the host; the paper does not say at which context or what ended it
figure FSDP2, largest batch | K | {baseline_batch_k} | [fsdp2 : figures.batch] / 1024 | memory
why as its longest context
figure batch over FSDP2's | | {batch_multiple} | - | needs FSDP2 on GPUs: its batch here is a closed form's
figure FSDP2 at twice its longest context: in all | GiB | - | [fsdp2 : figures.beyond_bytes] / GiB | shown
figure of it logits, softmax and their gradient | GiB | - | [fsdp2 : figures.beyond_logits_bytes] / GiB | shown
figure of it the dispatch of a layer | GiB | - | [fsdp2 : figures.beyond_dispatch_bytes] / GiB | shown
figure of it boundaries | GiB | - | [fsdp2 : figures.beyond_boundaries_bytes] / GiB | shown
figure of it parameters and gradients | GiB | - | [fsdp2 : figures.beyond_parameters_bytes] / GiB | shown
END
