#!/bin/sh
# Table 9: forward and backward together in ten chunks, at the paper's two shapes.
#
# Usage: bench/tables/table_09.sh [OPTION]...
. "$(dirname "$0")/common.sh"

common='--impl llep,pipelined-llep --ranks 8 --experts 128 --dtype bf16 --pass both
    --routing balanced,80/16 --chunk-count 10'
run dispatch $common --tokens 64K --topk 8 --hidden 7168 --ffn 2048
run dispatch $common --tokens 32K --topk 4 --hidden 4096 --ffn 4096

tabulate <<'END'
title Table 9: forward and backward, K = 10, 8 ranks, 128 experts, BF16

rows results/paper/table_09.csv
name {shape} {routing}
where op=dispatch tokens={tokens_per_rank} topk={top_k} routing={routing} pass=both
figure LLEP, peak | GiB | {llep_gib} | [llep : memory.tracked_peak_bytes] / GiB | memory
why the paper's holds all 128 experts on every rank, and keeps what an eager framework keeps of every route
figure pipelined-llep, peak | GiB | {pipelined_llep_gib} | [pipelined-llep : memory.tracked_peak_bytes] / GiB | memory
why the same
figure peak saved | % | {peak_saved_pct} | 100 * (1 - [pipelined-llep : memory.tracked_peak_bytes] / [llep : memory.tracked_peak_bytes]) | relation >{peak_saved_pct}
figure LLEP over pipelined-llep, time | | {speedup} | [llep : time.median_s] / [pipelined-llep : time.median_s] | time 25
END
