#!/bin/sh
# Table 10: memory of the vocabulary projection as the ring grows. 16384 tokens per rank, H = 7168,
# V = 200000, FP32, forward and backward.
#
# Every resident figure of the paper holds a constant 0.0628 GiB beside weight and input, a framework's
# GEMM workspace of 64 MiB. It is a row of its own here, and in no other figure.
#
# Usage: bench/tables/table_10.sh [OPTION]...
. "$(dirname "$0")/common.sh"

run vocab --impl materialized,ring-dtp --ranks 4,8 --tokens 16K --hidden 7168 --vocab 200000 --pass both

tabulate <<'END'
title Table 10: memory of the vocabulary projection, N = 16384, H = 7168, V = 200000, FP32, forward and backward

rows results/paper/table_10.csv
keep metric projection weight
name P = {ranks}
where op=vocab ranks={ranks} pass=both
figure projection weight, standard | GiB | {standard_gib} | [materialized : memory.by_live_set.weights.peak_bytes] / GiB | exact
figure projection weight, ring-dtp | GiB | {ring_dtp_gib} | [ring-dtp : memory.by_live_set.weights.peak_bytes] / GiB | exact

rows results/paper/table_10.csv
keep metric resident weight and input
name P = {ranks}
where op=vocab ranks={ranks} pass=both
figure resident, standard | GiB | {standard_gib} | [materialized : memory.resident_bytes] / GiB | memory
why the paper's holds 0.0628 GiB of a framework's GEMM workspace, ours none
figure resident, ring-dtp | GiB | {ring_dtp_gib} | [ring-dtp : memory.resident_bytes] / GiB | memory
why the paper's holds 0.0628 GiB of a framework's GEMM workspace, ours none
figure resident and the paper's 0.0628 GiB, standard | GiB | {standard_gib} | [materialized : memory.resident_bytes] / GiB + 0.0628 | exact 0.0003
figure resident and the paper's 0.0628 GiB, ring-dtp | GiB | {ring_dtp_gib} | [ring-dtp : memory.resident_bytes] / GiB + 0.0628 | exact 0.0003

rows results/paper/table_10.csv
keep metric increment over resident
name P = {ranks}
where op=vocab ranks={ranks} pass=both
figure three N x V tensors | GiB | {standard_gib} | [materialized : memory.by_live_set.logits.peak_bytes] / GiB | exact 0.0002
figure increment, standard | GiB | {standard_gib} | [materialized : memory.increment_bytes] / GiB | exact 0.0002
figure increment, ring-dtp | GiB | {ring_dtp_gib} | [ring-dtp : memory.increment_bytes] / GiB | better
figure increment, ring-dtp over the printed | | - | [ring-dtp : memory.increment_bytes] / GiB / {ring_dtp_gib} | shown
figure increment saved | % | {lower_pct} | 100 * (1 - [ring-dtp : memory.increment_bytes] / [materialized : memory.increment_bytes]) | relation >{lower_pct}

rows results/paper/table_10.csv
keep metric forward+backward peak
name P = {ranks}
where op=vocab ranks={ranks} pass=both
figure peak, standard | GiB | {standard_gib} | [materialized : memory.tracked_peak_bytes] / GiB | memory
why the paper's holds 0.0628 GiB of a framework's GEMM workspace, ours none
figure peak and the paper's 0.0628 GiB, standard | GiB | {standard_gib} | [materialized : memory.tracked_peak_bytes] / GiB + 0.0628 | exact 0.0005
figure peak, ring-dtp | GiB | {ring_dtp_gib} | [ring-dtp : memory.tracked_peak_bytes] / GiB | better
figure peak saved | % | {lower_pct} | 100 * (1 - [ring-dtp : memory.tracked_peak_bytes] / [materialized : memory.tracked_peak_bytes]) | relation >{lower_pct}
END
