#!/bin/sh
# Table 11: forward latency of the vocabulary projection at the shape of Table 10. The standard column
# set the profile's FP32 rate, and what the ring costs on top of it the side at which a product runs at
# half of it (docs/TABLES.md): both are fitted.
#
# Usage: bench/tables/table_11.sh [OPTION]...
. "$(dirname "$0")/common.sh"

run vocab --impl materialized,ring-dtp --ranks 4,8 --tokens 16K --hidden 7168 --vocab 200000 \
    --pass forward

tabulate <<'END'
title Table 11: forward latency of the vocabulary projection, N = 16384, H = 7168, V = 200000, FP32

rows results/paper/table_11.csv
name P = {ranks}
where op=vocab ranks={ranks} pass=forward
figure standard | ms | {standard_ms} | [materialized : time.median_s] / ms | fitted 1
figure ring-dtp | ms | {ring_dtp_ms} | [ring-dtp : time.median_s] / ms | fitted 3
figure ring-dtp over standard | | {ring_dtp_ms} / {standard_ms} | [ring-dtp : time.median_s] / [materialized : time.median_s] | fitted 3
END
