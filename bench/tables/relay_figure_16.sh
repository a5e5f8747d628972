#!/bin/sh
# RelayMoE, Figure 16: travelling tokens against travelling experts on E384-K12 at 20K and 40K, EP = 8, one
# layer, forward and backward, BF16, balanced routing, on two nodes of four H100.
#
# Usage: bench/tables/relay_figure_16.sh [OPTION]...
set -- --device sim:h100-64gb-4 "$@"
. "$(dirname "$0")/common.sh"

run dispatch --impl relay-expert,relay-token --ranks 8 --tokens 30720,61440 --hidden 2048 --ffn 2048 \
    --experts 384 --topk 12 --dtype bf16

tabulate <<'END'
title RelayMoE Figure 16: token over expert routing, one layer, EP = 8
gpu H100

rows -
length,tokens,printed
20480,30720,3.7
40960,61440,2.1
end
name E384-K12, S={length}
where tokens={tokens}
figure token over expert routing | | {printed} | [relay-expert : time.median_s] / [relay-token : time.median_s] | time 25
why gradients travel in FP32 here: an expert hop of backward moves 1.5 times the paper's bytes
figure relay-token | ms | - | [relay-token : time.median_s] / ms | shown
figure relay-expert | ms | - | [relay-expert : time.median_s] / ms | shown
END
