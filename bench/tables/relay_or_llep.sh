#!/bin/sh
# Not in the papers: the two answers on the same layer. pipelined-llep (a token budget bounds what is
# received, a plan evens it) against relay (nothing is expanded, experts or tokens go round) over routing skew
# and tokens: bytes of a step, messages, MoE peak, simulated time. 8 ranks, 128 experts of 768, hidden 2048,
# top-8, BF16, forward and backward; chunks and pieces of a hop sized alike: 4096 tokens a chunk, 32768 routes
# a piece. Uniform routing stands for even loads: balanced is in step with strided chunks. The default machine is one node of eight H200; --device sim:h100-64gb-4 is two nodes of four H100,
# where the link between them decides.
#
# Usage: bench/tables/relay_or_llep.sh [OPTION]...
. "$(dirname "$0")/common.sh"

routings='uniform 30/16 80/16 95/16'
tokens='2048 8192 32768 131072'
layer='--ranks 8 --hidden 2048 --ffn 768 --experts 128 --topk 8 --dtype bf16
    --routing uniform,30/16,80/16,95/16 --tokens 2048,8192,32768,131072'
run dispatch --impl pipelined-llep $layer --chunk-budget 4096 --max-chunks 0
run dispatch --impl relay $layer --hop-rows 32768 --volume true
run dispatch --impl relay $layer --hop-rows 0 --volume true

rows()
{
    for routing in $routings; do
        for count in $tokens; do echo "$routing,$count"; done
    done
}

tabulate <<END
title pipelined-llep or relay: one layer, 8 ranks, 128 experts, top-8, forward and backward
note relay chooses by what travels (--volume true): tokens up to 8192 a rank, experts from 32768 on
note ratios below 1: relay takes less

rows -
routing,tokens
$(rows)
end
name {routing}, {tokens} tokens
where routing={routing} tokens={tokens}
figure relay in pieces over pipelined-llep, time | | - | [relay hop_rows=32768 : time.median_s] / [pipelined-llep : time.median_s] | shown
figure relay in pieces over pipelined-llep, MoE peak | | - | [relay hop_rows=32768 : memory.tracked_peak_bytes] / [pipelined-llep : memory.tracked_peak_bytes] | shown
figure relay over pipelined-llep, bytes on the wire | | - | [relay hop_rows=32768 : traffic.wire_bytes] / [pipelined-llep : traffic.wire_bytes] | shown
figure relay over pipelined-llep, messages | | - | [relay hop_rows=32768 : traffic.messages] / [pipelined-llep : traffic.messages] | shown
figure pipelined-llep, time | ms | - | [pipelined-llep : time.median_s] / ms | shown
figure pipelined-llep, MoE peak | GiB | - | [pipelined-llep : memory.tracked_peak_bytes] / GiB | shown
figure pipelined-llep, bytes on the wire | GiB | - | [pipelined-llep : traffic.wire_bytes] / GiB | shown
figure relay in pieces, time | ms | - | [relay hop_rows=32768 : time.median_s] / ms | shown
figure relay in pieces, MoE peak | GiB | - | [relay hop_rows=32768 : memory.tracked_peak_bytes] / GiB | shown
figure relay, bytes on the wire | GiB | - | [relay hop_rows=32768 : traffic.wire_bytes] / GiB | shown
figure whole hops over pieces, time | | - | [relay hop_rows=0 : time.median_s] / [relay hop_rows=32768 : time.median_s] | shown
figure whole hops over pieces, MoE peak | | - | [relay hop_rows=0 : memory.tracked_peak_bytes] / [relay hop_rows=32768 : memory.tracked_peak_bytes] | shown
END
