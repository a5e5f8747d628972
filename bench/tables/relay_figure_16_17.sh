#!/bin/sh
# RelayMoE, Figures 16 and 17 and the arithmetic of its section 2, on two nodes of four H100, BF16, balanced
# routing, forward and backward. 16: travelling tokens against travelling experts on E384-K12 at 20K and
# 40K. 17: one layer of E128 at 40K as a serial ring with a launch per expert, with overlap, and with grouped
# products as well. 2: one activation and one expanded buffer.
#
# Usage: bench/tables/relay_figure_16_17.sh [OPTION]...
set -- --device sim:h100-64gb-4 "$@"
. "$(dirname "$0")/common.sh"

run dispatch --impl relay-expert,relay-token --ranks 8 --tokens 30720,61440 --hidden 2048 --ffn 2048 \
    --experts 384 --topk 12 --dtype bf16
run dispatch --impl relay-expert --overlap on,off --grouped on,off --ranks 8 --tokens 61440 --hidden 2048 \
    --ffn 768 --experts 128 --topk 8 --dtype bf16
run dispatch --impl alltoall --keep megatron --ranks 8 --tokens 49152 --hidden 3584 --ffn 2560 --experts 64 \
    --topk 8 --dtype bf16 --pass forward

tabulate <<'END'
title RelayMoE, Figures 16 and 17, and section 2: modes, overlap and buffers, EP = 8

rows -
length,tokens,printed
20480,30720,3.7
40960,61440,2.1
end
name E384-K12 at {length}
where tokens={tokens} experts=384 topk=12
figure relay-token's speed over relay-expert | | {printed} | [relay-expert : time.median_s] / [relay-token : time.median_s] | time 25
why sums are FP32 on our ring: a token hop moves three times the printed rule's bytes, an expert hop 1.5 times
figure relay-token | ms | - | [relay-token : time.median_s] / ms | shown
figure relay-expert | ms | - | [relay-expert : time.median_s] / ms | shown

rows -
what,overlap,grouped,ms
serial ring,off,off,295.9
overlap,on,off,203.4
overlap and grouped products,on,on,175.8
end
name E128 at 40960: {what}
where relay-expert tokens=61440 ffn=768
figure one layer | ms | {ms} | [overlap={overlap} grouped={grouped} : time.median_s] / ms | time 25
why FP32 gradients: the hops of backward, 432 MiB over the network, outlast its products
figure over the serial ring | | 295.9 / {ms} | [overlap=off grouped=off : time.median_s] / [overlap={overlap} grouped={grouped} : time.median_s] | time 25

rows -
what
section 2
end
name 24 sequences of 2048 tokens a rank, hidden 3584, BF16, top-8
where alltoall hidden=3584
figure one activation | MiB | 336 | [ : memory.by_live_set.output.peak_bytes] / MiB | exact
figure one expanded dispatch buffer | GiB | 2.625 | [ : memory.by_live_set.staging.peak_bytes] / GiB | exact
END
