#!/bin/sh
# RelayMoE, Figure 9: one layer, forward and backward, micro-batch 12 at 40K and 98K
# (12 S / 8 tokens a rank), BF16, balanced routing, on two nodes of four H100. relay-expert beside the
# all-to-all of Megatron-Core, FasterMoE and Tutel as docs/BASELINES.md models them. Bars are unlabelled;
# what the text prints is set against ours.
#
# Usage: bench/tables/relay_figure_09.sh [OPTION]...
set -- --device sim:h100-64gb-4 "$@"
. "$(dirname "$0")/common.sh"

# name, hidden, ffn, experts, top-k
configs='E64 2048 768 64 8
E128 2048 768 128 8
E384 2048 768 384 8
K4 2048 768 128 4
K12 2048 768 128 12
K16 2048 768 128 16
H512 2048 512 128 8
H2048 2048 2048 128 8'

layers()
{
    echo "$configs" | while read -r _ hidden ffn experts topk; do
        run dispatch --impl alltoall,fastermoe,tutel,relay-expert --keep megatron --ranks 8 \
            --tokens 61440,147456 --hidden "$hidden" --ffn "$ffn" --experts "$experts" --topk "$topk" \
            --dtype bf16 || exit
    done
}

# mean IMPL PATH: of the baseline's over relay-expert's, all configurations and lengths.
mean()
{
    echo "$configs" | while read -r _ hidden ffn experts topk; do
        for tokens in 61440 147456; do
            at="tokens=$tokens hidden=$hidden ffn=$ffn experts=$experts topk=$topk"
            printf '[%s %s : %s] / [relay-expert %s : %s] + ' "$1" "$at" "$2" "$at" "$2"
        done
    done
}

layers || exit

tabulate <<END
title RelayMoE Figure 9: speed of one layer, EP = 8, micro-batch 12, forward and backward
gpu H100
note gradients travel in FP32 here, the paper counts them in the weights' type: a backward hop moves 6 bytes a value for its 4

rows -
what
mean
end
name average over configurations, EP=8
where op=dispatch
figure speed over all-to-all | | 2.0 | ($(mean alltoall time.median_s)0) / 16 | time 25
why eight configurations at the shortest and the longest of three lengths

rows -
name,hidden,ffn,experts,topk,length,tokens,printed
E128,2048,768,128,8,40960,61440,1.77
E128,2048,768,128,8,98304,147456,2.4
E384,2048,768,384,8,98304,147456,1.51
H2048,2048,2048,128,8,98304,147456,1.56
end
name {name}, S={length}
where tokens={tokens} hidden={hidden} ffn={ffn} experts={experts} topk={topk}
figure speed over all-to-all | | {printed} | [alltoall : time.median_s] / [relay-expert : time.median_s] | time 25
why E128, S=40960 | at this length the hops of backward, with FP32 gradients, outlast their products
why E384* | a partition of E384 is three of E128's, in FP32 on its way back
why H2048* | a partition of H2048 is nearly three of E128's, in FP32 on its way back

rows -
name,hidden,ffn,experts,topk,length,tokens
E384,2048,768,384,8,40960,61440
H2048,2048,2048,128,8,40960,61440
end
name {name}, S={length}
where tokens={tokens} hidden={hidden} ffn={ffn} experts={experts} topk={topk}
figure speed over all-to-all, printed: slower | | 1 | [alltoall : time.median_s] / [relay-expert : time.median_s] | relation <1

rows -
what
mean
end
name average
where op=dispatch
figure speed over FasterMoE | | 4.03 | ($(mean fastermoe time.median_s)0) / 16 | time 25
why bytes and FLOP alone are modelled: balanced routing shadows nothing, and what makes upstream slower than all-to-all is not in the schedule
figure speed over Tutel | | 2.94 | ($(mean tutel time.median_s)0) / 16 | time 25
why bytes and FLOP alone are modelled: balanced routing pads nothing, and what makes upstream slower than all-to-all is not in the schedule

rows -
name,hidden,ffn,experts,topk
$(echo "$configs" | tr ' ' ,)
end
name {name}
where hidden={hidden} ffn={ffn} experts={experts} topk={topk}
figure 40K: relay-expert | ms | - | [tokens=61440 relay-expert : time.median_s] / ms | shown
figure 40K: speed over all-to-all | | - | [tokens=61440 alltoall : time.median_s] / [tokens=61440 relay-expert : time.median_s] | shown
figure 40K: MoE peak | GiB | - | [tokens=61440 relay-expert : memory.tracked_peak_bytes] / GiB | shown
figure 40K: MoE peak of all-to-all over it | | - | [tokens=61440 alltoall : memory.tracked_peak_bytes] / [tokens=61440 relay-expert : memory.tracked_peak_bytes] | shown
figure 98K: relay-expert | ms | - | [tokens=147456 relay-expert : time.median_s] / ms | shown
figure 98K: speed over all-to-all | | - | [tokens=147456 alltoall : time.median_s] / [tokens=147456 relay-expert : time.median_s] | shown
figure 98K: MoE peak | GiB | - | [tokens=147456 relay-expert : memory.tracked_peak_bytes] / GiB | shown
figure 98K: MoE peak of all-to-all over it | | - | [tokens=147456 alltoall : memory.tracked_peak_bytes] / [tokens=147456 relay-expert : memory.tracked_peak_bytes] | shown
END
