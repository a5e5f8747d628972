#!/bin/sh
# RelayMoE, Figure 17: one layer of E128, EP = 8, as a serial ring with a launch per expert, with overlap, and
# with grouped products as well; and the buffers of its section 2. Forward and backward at 40K (61440 tokens a
# rank), BF16, balanced routing, on two nodes of four H100.
#
# Usage: bench/tables/relay_figure_17.sh [OPTION]...
set -- --device sim:h100-64gb-4 "$@"
. "$(dirname "$0")/common.sh"

run dispatch --impl relay-expert --overlap on,off --grouped on,off --ranks 8 --tokens 61440 --hidden 2048 \
    --ffn 768 --experts 128 --topk 8 --dtype bf16
run dispatch --impl alltoall --ranks 8 --tokens 49152 --hidden 3584 --ffn 2560 --experts 64 --topk 8 \
    --dtype bf16 --pass forward

tabulate <<'END'
title RelayMoE Figure 17: overlap and grouped products, one layer of E128, EP = 8
gpu H100

rows -
what,overlap,grouped,ms
serial ring,off,off,295.9
overlap,on,off,203.4
overlap and grouped GEMM,on,on,175.8
end
name E128, {what}
where relay-expert
figure single-layer time | ms | {ms} | [overlap={overlap} grouped={grouped} : time.median_s] / ms | time 25

rows -
what,overlap,grouped,ms
overlap,on,off,203.4
overlap and grouped GEMM,on,on,175.8
end
name E128, {what}
where relay-expert
figure over the serial ring | | 295.9 / {ms} | [overlap=off grouped=off : time.median_s] / [overlap={overlap} grouped={grouped} : time.median_s] | time 25

rows -
what
section 2
end
name section 2: 24 sequences of 2048 tokens a rank, hidden 3584, BF16, top-8
where alltoall
figure one activation | MiB | 336 | [ : memory.by_live_set.output.peak_bytes] / MiB | exact
figure one expanded dispatch buffer | GiB | 2.625 | [ : memory.by_live_set.staging.peak_bytes] / GiB | exact
END
