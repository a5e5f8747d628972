#!/bin/sh
# Figure 8: what more chunks save. 65536 tokens per rank, routing 80/16, one chunk to forty. The text says:
# one chunk holds 8.3 GiB more than LLEP, ten chunks remove 38.4 GiB of it, the next ten 2.4.
#
# Usage: bench/tables/figure_08.sh [OPTION]...
. "$(dirname "$0")/common.sh"

layer='--ranks 8 --tokens 64K --hidden 7168 --ffn 2048 --experts 128 --topk 8 --routing 80/16 --dtype bf16
    --pass forward'
run dispatch $layer --impl llep
run dispatch $layer --impl pipelined-llep --chunk-count 1,2,4,6,8,10,16,20,40

tabulate <<'END'
title Figure 8: chunks of 65536 tokens per rank, routing 80/16

rows -
what,from,to,gib
ten chunks in place of one,1,10,38.4
twenty in place of ten,10,20,2.4
end
name {what}
where op=dispatch pipelined-llep
figure peak removed | GiB | {gib} | ([chunk_count={from} : memory.tracked_peak_bytes] - [chunk_count={to} : memory.tracked_peak_bytes]) / GiB | memory
why ours keeps less of a route in a chunk, so there is less to remove

rows -
what,gib
one chunk over LLEP,8.3
end
name {what}
where op=dispatch
figure peak | GiB | {gib} | ([pipelined-llep chunk_count=1 : memory.tracked_peak_bytes] - [llep : memory.tracked_peak_bytes]) / GiB | memory
why LLEP keeps less of a route here than the printed one; a single chunk has the same slots for the way out and the way home

rows -
chunks
1
2
4
6
8
10
16
20
40
end
name K = {chunks}
where op=dispatch
figure peak | GiB | - | [pipelined-llep chunk_count={chunks} : memory.tracked_peak_bytes] / GiB | shown
figure LLEP over pipelined-llep, time | | - | [llep : time.median_s] / [pipelined-llep chunk_count={chunks} : time.median_s] | shown
END
