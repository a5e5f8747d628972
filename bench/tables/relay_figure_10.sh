#!/bin/sh
# RelayMoE, Figure 10 and what Figure 15 says of the dispatch: expert parallelism from 8 to 64 ranks at 98304
# tokens a rank (micro-batch 12, 8192 tokens of a sequence a GPU), nodes of four H100, BF16, balanced
# routing, forward and backward. The paper's reach is a whole model's; here it is the layer's: does travelling
# experts' peak at the longer length stay below the all-to-all's at the shorter one?
#
# Usage: bench/tables/relay_figure_10.sh [OPTION]...
set -- --device sim:h100-64gb-4 "$@"
. "$(dirname "$0")/common.sh"

layer='--hidden 2048 --ffn 768 --experts 128 --dtype bf16'
run dispatch --impl alltoall,fastermoe,tutel,relay-expert --keep megatron $layer --ranks 8,64 --tokens 98304 --topk 16
run dispatch --impl alltoall,relay-expert --keep megatron $layer --ranks 8,64 --tokens 98304 --topk 4,8
run dispatch --impl alltoall,relay-expert --keep megatron $layer --ranks 16,32 --tokens 98304 --topk 16
run dispatch --impl alltoall --keep megatron $layer --ranks 8 --tokens 61440 --topk 12,16
run dispatch --impl relay-expert $layer --ranks 8 --tokens 175104 --topk 12,16

tabulate <<'END'
title RelayMoE Figure 10: from 8 to 64 ranks at 98304 tokens a rank; and Figure 15's lengths, of the layer alone
gpu H100

rows -
ranks,reduction
8,3.8
64,7.6
end
name average, EP={ranks}
where ranks={ranks} tokens=98304
figure MoE peak memory reduction | | {reduction} | ([alltoall topk=4 : memory.tracked_peak_bytes] / [relay-expert topk=4 : memory.tracked_peak_bytes] + [alltoall topk=8 : memory.tracked_peak_bytes] / [relay-expert topk=8 : memory.tracked_peak_bytes] + [alltoall topk=16 : memory.tracked_peak_bytes] / [relay-expert topk=16 : memory.tracked_peak_bytes]) / 3 | memory
why of K4, K8 and K16; the paper's average is over other configurations too

rows -
topk,ranks,reduction
16,8,-
16,16,-
16,32,-
16,64,13.4
8,64,-
4,64,-
end
name K{topk}, EP={ranks}
where ranks={ranks} tokens=98304 topk={topk}
figure MoE peak memory reduction | | {reduction} | [alltoall : memory.tracked_peak_bytes] / [relay-expert : memory.tracked_peak_bytes] | memory
why what else the paper's layer holds is in both of its peaks
figure relay-expert's MoE peak | GiB | - | [relay-expert : memory.tracked_peak_bytes] / GiB | shown
figure all-to-all's MoE peak | GiB | - | [alltoall : memory.tracked_peak_bytes] / GiB | shown

rows -
ranks,speed
8,2.5
16,-
32,-
64,5
end
name K16, EP={ranks}
where ranks={ranks} tokens=98304 topk=16
figure speed over all-to-all | | {speed} | [alltoall : time.median_s] / [relay-expert : time.median_s] | time 25

rows -
ranks
8
64
end
name K16, EP={ranks}
where ranks={ranks} tokens=98304 topk=16
figure MoE peak of FasterMoE over its own | | - | [fastermoe : memory.tracked_peak_bytes] / [relay-expert : memory.tracked_peak_bytes] | shown
figure MoE peak of Tutel over its own | | - | [tutel : memory.tracked_peak_bytes] / [relay-expert : memory.tracked_peak_bytes] | shown

rows -
topk
12
16
end
name K{topk}, 114K against 40K
where ranks=8 topk={topk}
figure relay-expert's MoE peak over all-to-all's | | 1 | [relay-expert tokens=175104 : memory.tracked_peak_bytes] / [alltoall tokens=61440 : memory.tracked_peak_bytes] | relation <1
END
