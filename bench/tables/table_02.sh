#!/bin/sh
# Table 2: the vocabulary projection on 8 ranks at two batch sizes. Its peaks are of forward and
# backward; its latencies are Table 11's forward latencies, though the table is headed otherwise: a
# backward that keeps no logits must form them again, four products for three.
#
# Usage: bench/tables/table_02.sh [OPTION]...
. "$(dirname "$0")/common.sh"

run vocab --impl materialized,ring-dtp --ranks 8 --tokens 16K,32K --hidden 7168 --vocab 200000 \
    --pass forward,both

tabulate <<'END'
title Table 2: vocabulary projection, P = 8, H = 7168, V = 200000, FP32

rows results/paper/table_02.csv
name N = {tokens_per_rank} ({schedule})
where op=vocab tokens={tokens_per_rank} pass=both
figure peak, standard | GiB | {standard_peak_gib} | [materialized : memory.tracked_peak_bytes] / GiB | memory
why the paper's holds 0.0628 GiB of a framework's GEMM workspace, ours none
figure peak and the paper's 0.0628 GiB, standard | GiB | {standard_peak_gib} | [materialized : memory.tracked_peak_bytes] / GiB + 0.0628 | exact 0.0005
figure peak, ring-dtp | GiB | {ring_dtp_peak_gib} | [ring-dtp : memory.tracked_peak_bytes] / GiB | better
figure peak saved | % | {peak_saved_pct} | 100 * (1 - [ring-dtp : memory.tracked_peak_bytes] / [materialized : memory.tracked_peak_bytes]) | relation >{peak_saved_pct}

rows results/paper/table_02.csv
name N = {tokens_per_rank} ({schedule})
where op=vocab tokens={tokens_per_rank} pass=forward
figure forward, ring-dtp | ms | {ring_dtp_ms} | [ring-dtp : time.median_s] / ms | fitted 6
figure forward, ring-dtp over standard | | {ring_dtp_ms} / {standard_ms} | [ring-dtp : time.median_s] / [materialized : time.median_s] | fitted 3

rows results/paper/table_02.csv
keep tokens_per_rank 32768
name N = {tokens_per_rank} ({schedule})
where op=vocab tokens={tokens_per_rank} pass=forward
figure forward, standard | ms | {standard_ms} | [materialized : time.median_s] / ms | time 10

rows results/paper/table_02.csv
name N = {tokens_per_rank} ({schedule})
where op=vocab tokens={tokens_per_rank} pass=both
figure forward and backward, ring-dtp over standard (printed: forward alone) | | {ring_dtp_ms} / {standard_ms} | [ring-dtp : time.median_s] / [materialized : time.median_s] | time 10
why what is printed are Table 11's forward latencies
note "Forward and backward" is what the printed table is headed; its latencies are forward latencies.
END
